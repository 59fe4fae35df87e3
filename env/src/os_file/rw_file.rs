//! A file read and written in place, through the page cache or past it.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::write::{Durability, WriteFailure, pwrite_all, pwrite_blocks};
use super::{DirectAlign, Os, OsFile, direct, no_direct};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::sys::{OpenMode, uninterrupted};
use crate::{Access, Alignment, Error, RandomAccessFile, RandomRwFile, Result};

/// See [`RandomRwFile`].
#[derive(Debug)]
pub(crate) struct OsRwFile {
    pub(super) file: OsFile,
    durability: Durability,
    /// No write below it can make the file longer.
    known_end: AtomicU64,
}

impl OsRwFile {
    /// Opens a file, creating it if absent. With `direct` its reads and writes go past the page
    /// cache; a file system that refuses that is an error, and none is left behind there.
    pub(crate) fn open(os: &Arc<Os>, path: &Path, direct: bool) -> Result<Self> {
        let mut file = if direct { open_direct(os, path)? } else { open_buffered(os, path)? };
        file.fixed_size = None;
        let known_end = AtomicU64::new(file.size());
        let durability = Durability::default();
        // The open may have created it, and a file of an earlier process may not be synced.
        durability.note_size_changed();
        Ok(Self { file, durability, known_end })
    }

    /// The file behind a trait object, if it is one of ours.
    pub(crate) fn of(file: &dyn RandomRwFile) -> Option<&Self> {
        let file: &dyn Any = file;
        file.downcast_ref()
    }

    /// The descriptor, open as long as this file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    /// The alignment it needs, if it is read and written past the page cache.
    pub(crate) fn direct(&self) -> Option<DirectAlign> {
        self.file.direct()
    }

    /// Refuses a write that the file cannot take as it is.
    pub(crate) fn check_write(&self, data: &[u8], offset: u64) -> Result<()> {
        let check = |align| direct::check_write(align, &self.file.path, data, offset);
        self.direct().map_or(Ok(()), check)
    }

    /// To be called when bytes up to `end` may be in the file, before they are flushed.
    pub(crate) fn note_written(&self, end: u64) {
        // Relaxed: the mark that a flush must see is released by `note_size_changed`.
        if self.known_end.fetch_max(end, Ordering::Relaxed) < end {
            self.durability.note_size_changed();
        }
    }

    fn pwrite(&self, data: &[u8], offset: u64) -> Result<(), WriteFailure> {
        let OsFile { os, path, .. } = &self.file;
        let Some(align) = self.direct() else {
            return pwrite_all(os, self.fd(), "write", path, data, offset);
        };
        let done = pwrite_blocks(os, self.fd(), align, "write", path, data, offset);
        done.map_err(|WriteFailure { error, written }| {
            let error = match error.errno() {
                Some(libc::EINVAL) => direct::direct_error("write", path, align, libc::EINVAL)
                    .at(offset + written as u64),
                _ => error,
            };
            WriteFailure { error, written }
        })
    }
}

fn open_buffered(os: &Arc<Os>, path: &Path) -> Result<OsFile> {
    let fd = os.open_file(path, OpenMode::ReadWrite, "open")?;
    let stat = os.stat_fd(&fd, path)?;
    OsFile::from_parts(os, fd, path, stat, Access::Random, None)
}

/// A refusal may leave an empty file: the kernel makes the name before it finds that the file
/// cannot be direct, and by then the name may be another opener's too, so it is not taken away.
fn open_direct(os: &Arc<Os>, path: &Path) -> Result<OsFile> {
    let fd = os.open_file(path, OpenMode::ReadWriteDirect, "open").map_err(|error| match error
        .errno()
    {
        Some(libc::EINVAL) => no_direct("writes in place", path),
        _ => error,
    })?;
    let stat = os.stat_fd(&fd, path)?;
    let align = DirectAlign::of(stat.direct);
    let align = align.ok_or_else(|| no_direct("writes in place", path))?;
    OsFile::from_parts(os, fd, path, stat, Access::Random, Some(align))
}

impl RandomAccessFile for OsRwFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.file.will_need(offset, len);
    }
}

impl RandomRwFile for OsRwFile {
    fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_write(data, offset)?;
        let done = self.pwrite(data, offset);
        let written = done.as_ref().map_or_else(|failure| failure.written, |()| data.len());
        if written > 0 {
            self.note_written(offset.saturating_add(written as u64));
        }
        done.map_err(|failure| failure.error)
    }

    fn alignment(&self) -> Alignment {
        self.direct().map_or(Alignment::ANY, DirectAlign::of_writes)
    }

    fn sync(&self) -> Result<()> {
        self.durability.sync(&self.file.os, &self.file.fd, &self.file.path, false)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let file = &self.file;
        uninterrupted(&file.os.counters, || file.os.sys.ftruncate(file.fd.as_fd(), size))
            .map_err(|errno| Error::from_errno(errno, "set_size", &file.path))?;
        self.known_end.store(size, Ordering::Relaxed);
        self.durability.note_size_changed();
        Ok(())
    }
}
