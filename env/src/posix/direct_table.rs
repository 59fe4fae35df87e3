//! Tables written past the page cache (`direct_writes`).
//!
//! Whole aligned blocks go to space allocated ahead, since a direct write that extends a file is
//! the slow kind. An unaligned tail is written padded with zeros, the padding is cut off, and the
//! tail is kept to be written again with what follows: a flush in mid-table costs that.

use std::path::Path;

use super::outlet::{CallerOutlet, Outlet, Stopped};
use super::paths::path_error;
use super::writable::Shared;
use crate::os_file::{DirectAlign, Os};
use crate::sync::Arc;
use crate::sys::{OpenMode, uninterrupted};
use crate::{Buffer, Error, ErrorKind, LogHandle, Outcome, Result, WritableFile};

/// How much is allocated at a time.
const AHEAD: u64 = 8 << 20;

/// See [`WritableFile`].
#[derive(Debug)]
pub(crate) struct DirectTable {
    shared: Arc<Shared>,
    outlet: Box<dyn Outlet>,
    block: usize,
    buffer: Buffer,
    /// Bytes of the buffer that are appended data.
    buffered: usize,
    /// The first so many of them are in the file already, padded.
    flushed: usize,
    /// Where the buffer goes: a multiple of the block.
    base: u64,
    allocated: u64,
}

impl DirectTable {
    /// Creates a table that is written through what `outlet` gives, or on the calling thread.
    pub(super) fn create(
        os: &Arc<Os>,
        path: &Path,
        outlet: impl FnOnce(&Arc<Shared>) -> Option<Box<dyn Outlet>>,
    ) -> Result<Self> {
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
        let shared = Shared::new(os, path, fd, Some(align));
        let outlet = outlet(&shared).unwrap_or_else(|| Box::new(CallerOutlet::new(&shared, false)));
        let buffer = os.take_direct(outlet.buffer_len());
        Ok(Self {
            shared,
            outlet,
            block: usize::try_from(align.offset).expect("at most 64 KiB"),
            buffer,
            buffered: 0,
            flushed: 0,
            base: 0,
            allocated: 0,
        })
    }

    /// Makes room for what goes up to `end`.
    fn allocate(&mut self, end: u64) {
        if end > self.allocated {
            let from = self.allocated.max(self.base);
            self.allocated = from + AHEAD.max(end - from);
            self.shared.allocate_ahead(from, self.allocated);
        }
    }

    fn check(&mut self) -> Result<()> {
        let checked = self.outlet.check();
        self.stopped(checked)
    }

    /// Writes the full buffer, which may be another afterwards.
    fn write_out(&mut self) -> Result<()> {
        let len = self.buffered;
        self.allocate(self.base + len as u64);
        let done = self.outlet.put_buffer(&mut self.buffer, len, self.base);
        self.stopped(done)?;
        self.base += len as u64;
        (self.buffered, self.flushed) = (0, 0);
        Ok(())
    }

    /// Moves the position to where a failure left it, and cuts off the space allocated ahead.
    fn stopped(&mut self, done: Result<(), Stopped>) -> Result<()> {
        done.map_err(|Stopped { error, end }| {
            if let Some(end) = end {
                (self.base, self.buffered, self.flushed) = (end, 0, 0);
                // The error that the caller gets is the one that matters.
                let _ = self.shared.cut_to(end);
            }
            error
        })
    }
}

impl WritableFile for DirectTable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.check()?;
        let mut rest = data;
        while !rest.is_empty() {
            let room = self.buffer.len() - self.buffered;
            let (fits, more) = rest.split_at(room.min(rest.len()));
            let to = self.buffered..self.buffered + fits.len();
            self.buffer.as_mut_slice()[to].copy_from_slice(fits);
            self.buffered += fits.len();
            rest = more;
            if self.buffered == self.buffer.len() {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        if self.flushed < self.buffered {
            let padded = self.buffered.next_multiple_of(self.block);
            self.buffer.as_mut_slice()[self.buffered..padded].fill(0);
            self.allocate(self.base + padded as u64);
            let done = self.outlet.put(&self.buffer[..padded], self.base);
            self.stopped(done)?;
        }
        let settled = self.outlet.settle(self.len());
        self.stopped(settled)?;
        self.flushed = self.buffered;
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
