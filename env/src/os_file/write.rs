//! Positional writes on the calling thread, and the flush to the medium that must not fail twice.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{DirectAlign, Os};
use crate::counters::Count;
use crate::sync::{AtomicBool, Mutex, OnceLock, Ordering};
use crate::sys::{settled, uninterrupted};
use crate::{Error, ErrorKind, Result};

/// A write that did not take everything.
#[derive(Debug)]
pub(crate) struct WriteFailure {
    pub(crate) error: Error,
    /// How many bytes from the start did arrive.
    pub(crate) written: usize,
}

/// Writes all of `data` at `offset`, whatever it takes: short writes go on, interruptions are
/// repeated, which is safe because the offset is fixed.
pub(crate) fn pwrite_all(
    os: &Os,
    fd: BorrowedFd<'_>,
    op: &'static str,
    path: &Path,
    data: &[u8],
    offset: u64,
) -> Result<(), WriteFailure> {
    write_from(os, fd, 1, op, path, data, offset)
}

/// The same past the page cache; offset, length and memory are aligned. A short write goes on from
/// the last whole block that arrived, since a direct write cannot begin anywhere else.
pub(crate) fn pwrite_blocks(
    os: &Os,
    fd: BorrowedFd<'_>,
    align: DirectAlign,
    op: &'static str,
    path: &Path,
    data: &[u8],
    offset: u64,
) -> Result<(), WriteFailure> {
    write_from(os, fd, align.step(), op, path, data, offset)
}

fn write_from(
    os: &Os,
    fd: BorrowedFd<'_>,
    block: usize,
    op: &'static str,
    path: &Path,
    data: &[u8],
    offset: u64,
) -> Result<(), WriteFailure> {
    let mut written = 0;
    while written < data.len() {
        let at = offset + written as u64;
        os.counters.bump(Count::Pwrites);
        let rest = &data[written..];
        let taken = match settled(&os.counters, || os.sys.pwrite(fd, rest, at)) {
            Ok(n) if n == rest.len() => break,
            Ok(n) if n >= block => Ok(n / block * block),
            Ok(_) => Err(no_progress(op, path, rest.len())),
            Err(errno) => Err(Error::from_errno(errno, op, path)),
        };
        match taken {
            Ok(n) => written += n,
            Err(error) => return Err(WriteFailure { error: error.at(at), written }),
        }
        os.counters.bump(Count::ShortWrites);
    }
    Ok(())
}

fn no_progress(op: &'static str, path: &Path, len: usize) -> Error {
    Error::new(ErrorKind::Other, op, path, format!("no progress, {len} bytes left"))
}

/// The durable state of one file: whether its metadata must be flushed too, and its first error.
///
/// Invariants:
/// * After a failure no flush returns Ok: the kernel marks the pages clean, so a second flush
///   would succeed without having written anything.
/// * Flushes of one descriptor run one at a time: the kernel reports an error once, and of two
///   flushes at once the one that did not get it would take the other's lost pages for durable.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    failed: OnceLock<Error>,
    one_at_a_time: Mutex<()>,
    size_changed: AtomicBool,
}

impl Durability {
    /// The first error, if there was one.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Remembers a failure and returns the first one.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.failed.get_or_init(|| error).clone()
    }

    /// To be called after the size has changed: the next flush is a full one.
    pub(crate) fn note_size_changed(&self) {
        // Release, paired with the swap below: a flush that finds the mark runs after the change.
        self.size_changed.store(true, Ordering::Release);
    }

    /// Flushes what was written before the call: data only, unless the size has changed since the
    /// last flush or `full` asks for everything.
    pub(crate) fn sync(&self, os: &Os, fd: &OwnedFd, path: &Path, full: bool) -> Result<()> {
        let _turn = self.one_at_a_time.lock();
        self.check()?;
        let full = self.size_changed.swap(false, Ordering::AcqRel) || full;
        os.counters.bump(Count::Syncs);
        let flushed = uninterrupted(&os.counters, || {
            if full { os.sys.fsync(fd.as_fd()) } else { os.sys.fdatasync(fd.as_fd()) }
        });
        if full {
            os.counters.bump(Count::FullSyncs);
        }
        flushed.map_err(|errno| self.fail(Error::from_errno(errno, "sync", path)))
    }
}
