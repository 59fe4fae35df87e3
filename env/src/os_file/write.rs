//! Positional writes on the calling thread, and the flush to the medium that must not fail twice.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{DirectAlign, Os};
use crate::counters::Count;
use crate::process::Process;
use crate::sync::{Arc, AtomicBool, Condvar, LOOKS_EVERY, Mutex, MutexGuard, OnceLock, Ordering};
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

/// A flush on another thread.
#[derive(Debug)]
pub(crate) struct Early {
    process: Process,
    /// Whether it may never end.
    given_up: Arc<AtomicBool>,
}

/// The durable state of one file: whether its metadata must be flushed too, and its first error.
///
/// Invariants:
/// * After a failure no flush returns Ok: the kernel marks the pages clean, so a second flush
///   would succeed without having written anything.
/// * Flushes of one descriptor run one at a time: the kernel reports an error once, and of two
///   flushes at once the one that did not get it would take the other's lost pages for durable.
///   That holds for a flush begun early, on another thread, as well: who syncs waits for its end.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    failed: OnceLock<Error>,
    /// The early flush that is under way. Held while a flush runs on the caller.
    early: Mutex<Option<Early>>,
    early_ended: Condvar,
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

    /// Whether a flush of the data may begin now, apart from the caller. If so it is under way
    /// until [`Durability::end_early`] says how it ended, or `given_up` that it may never end.
    /// Never waits.
    pub(crate) fn begin_early(&self, given_up: &Arc<AtomicBool>) -> bool {
        match self.early.try_lock() {
            Some(mut early) if early.is_none() && self.failed.get().is_none() => {
                *early =
                    Some(Early { process: Process::current(), given_up: Arc::clone(given_up) });
                true
            }
            _ => false,
        }
    }

    /// Ends a flush that was begun early. Its failure is the file's, and known to whoever waits.
    pub(crate) fn end_early(&self, failure: Option<Error>) {
        if let Some(error) = failure {
            self.fail(error);
        }
        *self.early.lock() = None;
        self.early_ended.notify_all();
    }

    /// Waits until no early flush is under way. That of another process, which was copied when it
    /// forked, is not waited for: nobody here would end it. One that was given up fails the file,
    /// since it may fail yet.
    fn await_early(&self, path: &Path) -> MutexGuard<'_, Option<Early>> {
        let mut early = self.early.lock();
        while let Some(Early { given_up, .. }) =
            early.as_ref().filter(|early| early.process.is_current())
        {
            if given_up.load(Ordering::Acquire) {
                let message = "begun early, and given up by a shutdown that ran out of time";
                self.fail(Error::new(ErrorKind::Other, "sync", path, message));
                break;
            }
            self.early_ended.wait_for(&mut early, LOOKS_EVERY);
        }
        early
    }

    /// Flushes what was written before the call: data only, unless the size has changed since the
    /// last flush or `full` asks for everything.
    pub(crate) fn sync(&self, os: &Os, fd: &OwnedFd, path: &Path, full: bool) -> Result<()> {
        let _turn = self.await_early(path);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_flush_is_one_at_a_time_and_none_begins_for_a_file_that_failed() {
        let (durability, given_up) = (Durability::default(), Arc::default());
        assert!(durability.begin_early(&given_up));
        assert!(!durability.begin_early(&given_up));
        durability.end_early(None);
        assert!(durability.begin_early(&given_up));
        let error = Error::new(ErrorKind::Other, "sync", Path::new("f"), "lost");
        durability.end_early(Some(error));
        assert!(!durability.begin_early(&given_up));
        assert_eq!(durability.check().unwrap_err().op(), "sync");
    }

    /// LIFE-01: nobody in a forked child would ever end it.
    #[test]
    fn the_early_flush_of_another_process_is_not_waited_for() {
        let durability = Durability::default();
        let early = Early { process: Process::OTHER, given_up: Arc::default() };
        *durability.early.lock() = Some(early);
        drop(durability.await_early(Path::new("f")));
        assert!(durability.check().is_ok());
    }
}
