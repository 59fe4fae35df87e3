//! Tables written past the page cache (`direct_writes`).
//!
//! Whole aligned blocks go to space allocated ahead, since a direct write that extends a file is
//! the slow kind. An unaligned tail is written padded with zeros, the padding is cut off, and the
//! tail is kept to be written again with what follows: a flush in mid-table costs that.

use std::path::Path;

use super::paths::path_error;
use super::writable::{Shared, TABLE_BUFFER};
use crate::os_file::{DirectAlign, Os, WriteFailure};
use crate::sync::Arc;
use crate::sys::{OpenMode, uninterrupted};
use crate::{Buffer, Error, ErrorKind, LogHandle, Outcome, Result, WritableFile};

/// How much is allocated at a time.
const AHEAD: u64 = 8 << 20;

/// See [`WritableFile`].
#[derive(Debug)]
pub(crate) struct DirectTable {
    shared: Arc<Shared>,
    block: usize,
    buffer: Buffer,
    /// Bytes of the buffer that are appended data.
    buffered: usize,
    /// The first so many of them are in the file already, padded.
    flushed: usize,
    /// Where the buffer goes: a multiple of its size.
    base: u64,
    allocated: u64,
}

impl DirectTable {
    pub(crate) fn create(os: &Arc<Os>, path: &Path) -> Result<Self> {
        let opened = uninterrupted(&os.counters, || os.sys.open(path, OpenMode::CreateDirect));
        let fd = match opened {
            Ok(fd) => fd,
            Err(libc::EINVAL) => {
                // The kernel makes the name before it finds that the file cannot be direct.
                let _ = os.sys.unlink(path);
                return Err(no_direct(path));
            }
            Err(errno) => return Err(path_error(errno, "create", path)),
        };
        let align = os
            .stat_fd(&fd, path)
            .and_then(|stat| DirectAlign::of(stat.direct).ok_or_else(|| no_direct(path)));
        let align = align.inspect_err(|_| {
            // The file is empty and ours alone; left behind it would be in the way of another try.
            let _ = os.sys.unlink(path);
        })?;
        Ok(Self {
            shared: Shared::new(os, path, fd, Some(align)),
            block: usize::try_from(align.offset).expect("at most 64 KiB"),
            buffer: os.pool.take(TABLE_BUFFER),
            buffered: 0,
            flushed: 0,
            base: 0,
            allocated: 0,
        })
    }

    /// Writes the first `len` bytes of the buffer, a multiple of the block size.
    fn write(&mut self, len: usize) -> Result<()> {
        let end = self.base + len as u64;
        if end > self.allocated {
            let from = self.allocated.max(self.base);
            self.allocated = from + AHEAD.max(end - from);
            self.shared.allocate_ahead(from, self.allocated);
        }
        let done = self.shared.put(&self.buffer[..len], self.base);
        done.map_err(|WriteFailure { error, .. }| error)
    }
}

impl WritableFile for DirectTable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.shared.check()?;
        let mut rest = data;
        while !rest.is_empty() {
            let room = self.buffer.len() - self.buffered;
            let (fits, more) = rest.split_at(room.min(rest.len()));
            let to = self.buffered..self.buffered + fits.len();
            self.buffer.as_mut_slice()[to].copy_from_slice(fits);
            self.buffered += fits.len();
            rest = more;
            if self.buffered == self.buffer.len() {
                self.write(self.buffered)?;
                self.base += self.buffered as u64;
                (self.buffered, self.flushed) = (0, 0);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.shared.check()?;
        if self.flushed < self.buffered {
            let padded = self.buffered.next_multiple_of(self.block);
            self.buffer.as_mut_slice()[self.buffered..padded].fill(0);
            self.write(padded)?;
            self.flushed = self.buffered;
        }
        self.allocated = self.base;
        self.shared.cut_to(self.len())
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.shared.sync(false)
    }

    fn len(&self) -> u64 {
        self.base + self.buffered as u64
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        Arc::clone(&self.shared) as Arc<dyn LogHandle>
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        self.flush()?;
        self.shared.finish(self.len())?;
        Ok(self.len())
    }
}

fn no_direct(path: &Path) -> Error {
    let message = "direct writes were asked for, but this file system does not do direct I/O";
    Error::new(ErrorKind::Unsupported, "create", path, message).with_outcome(Outcome::NotApplied)
}
