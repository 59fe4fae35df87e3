//! A file read and written in place.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::write::{Durability, pwrite_all};
use super::{Os, OsFile};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::sys::uninterrupted;
use crate::{Error, RandomAccessFile, RandomRwFile, Result};

/// See [`RandomRwFile`]. Always through the page cache.
#[derive(Debug)]
pub(crate) struct OsRwFile {
    pub(super) file: OsFile,
    durability: Durability,
    /// No write below it can make the file longer.
    known_end: AtomicU64,
}

impl OsRwFile {
    pub(crate) fn open(os: &Arc<Os>, path: &Path) -> Result<Self> {
        let file = OsFile::open_rw(os, path)?;
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

    /// To be called when bytes up to `end` may be in the file, before they are flushed.
    pub(crate) fn note_written(&self, end: u64) {
        // Relaxed: the mark that a flush must see is released by `note_size_changed`.
        if self.known_end.fetch_max(end, Ordering::Relaxed) < end {
            self.durability.note_size_changed();
        }
    }
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
        let file = &self.file;
        let done = pwrite_all(&file.os, file.fd(), "write", &file.path, data, offset);
        let written = done.as_ref().map_or_else(|failure| failure.written, |()| data.len());
        if written > 0 {
            self.note_written(offset.saturating_add(written as u64));
        }
        done.map_err(|failure| failure.error)
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
