//! Where the bytes of an appended file go: to the kernel on the calling thread, or, in an
//! environment that has one, to a thread that writes.

use std::fmt::Debug;
use std::os::fd::AsFd;

use super::writable::{Shared, TABLE_BUFFER};
use crate::counters::Count;
use crate::sync::Arc;
use crate::{Buffer, Error, Result};

/// Write-back of a table starts after each so many bytes.
pub(crate) const WRITE_BACK: u64 = 1 << 20;

/// Why an outlet takes no more bytes.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// The file's first error.
    pub(crate) error: Error,
    /// Where the appended bytes end that are known to be in the file without a gap, if that is not
    /// where it was thought to be.
    pub(crate) end: Option<u64>,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self { error, end: None }
    }
}

/// Takes the appended bytes of one file, in order and without gaps, and puts them into it.
pub(crate) trait Outlet: Send + Debug {
    /// The first error of the file.
    fn check(&mut self) -> Result<(), Stopped>;

    /// How long a buffer it wants next for what is appended in small pieces.
    fn buffer_len(&self) -> usize;

    /// Whether whole buffers are worth more to it than what copying into them costs.
    fn gathers(&self) -> bool;

    /// Writes the first `len` bytes of `buffer` at `at`, perhaps later. May keep the buffer and
    /// leave another of [`buffer_len`](Self::buffer_len), whose content is unspecified.
    fn put_buffer(&mut self, buffer: &mut Buffer, len: usize, at: u64) -> Result<(), Stopped>;

    /// Writes bytes at `at`, perhaps later.
    fn put(&mut self, data: &[u8], at: u64) -> Result<(), Stopped>;

    /// Waits until everything that was put is in the operating system: the appended bytes up to
    /// `end`, which no later failure takes back, even of a write that covers the last of them.
    fn settle(&mut self, end: u64) -> Result<(), Stopped>;
}

/// Writes on the calling thread, at once.
#[derive(Debug)]
pub(super) struct CallerOutlet {
    shared: Arc<Shared>,
    /// Write-back was started up to here; `None` if it is left to the kernel.
    pushed: Option<u64>,
    /// Appended bytes up to here are in the file whatever comes.
    kept: u64,
}

impl CallerOutlet {
    pub(super) fn new(shared: &Arc<Shared>, starts_write_back: bool) -> Self {
        Self { shared: Arc::clone(shared), pushed: starts_write_back.then_some(0), kept: 0 }
    }
}

impl Outlet for CallerOutlet {
    fn check(&mut self) -> Result<(), Stopped> {
        Ok(self.shared.check()?)
    }

    fn buffer_len(&self) -> usize {
        TABLE_BUFFER
    }

    fn gathers(&self) -> bool {
        false
    }

    fn put_buffer(&mut self, buffer: &mut Buffer, len: usize, at: u64) -> Result<(), Stopped> {
        self.put(&buffer[..len], at)
    }

    fn put(&mut self, data: &[u8], at: u64) -> Result<(), Stopped> {
        self.shared.put(data, at).map_err(|failure| Stopped {
            end: Some(self.kept.max(at + failure.written as u64)),
            error: failure.error,
        })?;
        let end = at + data.len() as u64;
        if let Some(pushed) = self.pushed
            && end - pushed >= WRITE_BACK
        {
            start_write_back(&self.shared, pushed, end - pushed);
            self.pushed = Some(end);
        }
        Ok(())
    }

    fn settle(&mut self, end: u64) -> Result<(), Stopped> {
        self.kept = end;
        Ok(())
    }
}

/// Asks for write-back of a finished range. A hint: it makes nothing durable, and its failure is
/// counted and otherwise ignored, since the flush at the end says what counts.
pub(crate) fn start_write_back(shared: &Shared, offset: u64, len: u64) {
    let os = shared.os();
    os.counters.bump(Count::RangeFlushes);
    if os.sys.flush_range(shared.fd().as_fd(), offset, len).is_err() {
        os.counters.bump(Count::RangeFlushFailed);
    }
}
