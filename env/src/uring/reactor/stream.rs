//! One file as its owner and the reactor share it: which blocks are out, what came back, and what
//! went wrong.
//!
//! Invariants:
//! * Each block that was handed over is settled exactly once, by one of the ways of [`Ticket`]; a
//!   ticket that is dropped unsettled, whatever the reason, settles as lost. So no owner waits for
//!   a block that nobody has.
//! * An error is the file's before its block is settled: an owner that finds nothing out finds
//!   the error.

use crate::posix::outlet::WRITE_BACK;
use crate::posix::writable::Shared as File;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, Ordering};
use crate::{Buffer, Error, ErrorKind};

/// Bytes of buffers that all owners together have with the reactor.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Sets bytes aside; `None` if that would exceed the limit. Never waits.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        // Relaxed, here and below: the number guards no other memory.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .ok()?;
        Some(Share { budget: Arc::clone(self), bytes })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

/// Bytes set aside, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A block that came back: its owner writes it from `from` on.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) data: Buffer,
    pub(crate) at: u64,
    pub(crate) from: usize,
    _share: Share,
}

#[derive(Debug, Default)]
struct Progress {
    /// Where the blocks begin that are queued or in flight.
    out: Vec<u64>,
    returned: Vec<Returned>,
    /// Where everything put so far ends.
    end: u64,
    /// Write-back was started up to here; `None` if it is left to the kernel.
    pushed: Option<u64>,
    /// The lowest place from which on bytes are missing or in doubt.
    broken_at: Option<u64>,
    /// Whether the kernel may still write a block that counts as lost.
    lost: bool,
    owner_waits: bool,
    /// The owner is gone and waits for nothing more.
    abandoned: bool,
}

impl Progress {
    fn take_unpushed(&mut self) -> Option<(u64, u64)> {
        let pushed = self.pushed?;
        let returned = self.returned.iter().map(|block| block.at);
        let low = self.out.iter().copied().chain(returned).min().unwrap_or(self.end);
        let len = low.saturating_sub(pushed);
        if len < WRITE_BACK {
            return None;
        }
        self.pushed = Some(low);
        Some((pushed, len))
    }

    /// Bytes from `at` on are missing or in doubt.
    fn break_at(&mut self, at: u64) {
        self.broken_at = Some(self.broken_at.map_or(at, |before| before.min(at)));
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    file: Arc<File>,
    /// Its file system was found not to write on a ring.
    refused: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Stream {
    /// A file of which nothing was handed over. With `starts_write_back` finished ranges are sent
    /// on to the device as they grow.
    pub(crate) fn new(file: &Arc<File>, starts_write_back: bool) -> Arc<Self> {
        let pushed = starts_write_back.then_some(0);
        let progress = Mutex::new(Progress { pushed, ..Progress::default() });
        let (refused, changed) = Default::default();
        Arc::new(Self { file: Arc::clone(file), refused, progress, changed })
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Blocks that are queued or in flight.
    pub(crate) fn out(&self) -> usize {
        self.progress.lock().out.len()
    }

    /// Whether its file system was found not to write on a ring.
    pub(crate) fn is_refused(&self) -> bool {
        // Relaxed: it guards no other memory.
        self.refused.load(Ordering::Relaxed)
    }

    /// A block at `at` goes out.
    pub(crate) fn hand_over(self: &Arc<Self>, at: u64, len: usize) -> Ticket {
        let mut progress = self.progress.lock();
        progress.out.push(at);
        progress.end = progress.end.max(at + len as u64);
        Ticket { stream: Arc::clone(self), at, settled: false }
    }

    /// The owner itself put something that ends at `end`.
    pub(crate) fn wrote(&self, end: u64) {
        let mut progress = self.progress.lock();
        progress.end = progress.end.max(end);
    }

    /// A block that came back.
    pub(crate) fn next_returned(&self) -> Option<Returned> {
        self.progress.lock().returned.pop()
    }

    /// Waits until fewer than `out` blocks are out, or one came back. Every block that is out is
    /// settled some day, so this ends.
    pub(crate) fn wait(&self, out: usize) {
        let mut progress = self.progress.lock();
        while progress.out.len() >= out && progress.returned.is_empty() {
            progress.owner_waits = true;
            self.changed.wait(&mut progress);
        }
        progress.owner_waits = false;
    }

    /// Bytes from `at` on are missing.
    pub(crate) fn break_at(&self, at: u64) {
        self.progress.lock().break_at(at);
    }

    /// Where the file ends without a gap if bytes are missing or in doubt, and whether what lies
    /// beyond can be cut off: not if the kernel may still write there, nor if nothing is there.
    pub(crate) fn broken_at(&self) -> (Option<u64>, bool) {
        let progress = self.progress.lock();
        let beyond = progress.broken_at.is_some_and(|at| at < progress.end);
        (progress.broken_at, beyond && !progress.lost)
    }

    /// The next range whose write-back is worth starting, if there is one; it counts as started.
    pub(crate) fn take_unpushed(&self) -> Option<(u64, u64)> {
        self.progress.lock().take_unpushed()
    }

    /// The owner goes: what comes back from now on is dropped.
    pub(crate) fn abandon(&self) {
        let mut progress = self.progress.lock();
        progress.abandoned = true;
        progress.returned.clear();
    }

    fn settle(&self, at: u64, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        let place = progress.out.iter().position(|out| *out == at);
        progress.out.swap_remove(place.expect("a ticket's block is out until it is settled"));
        change(&mut progress);
        if progress.owner_waits {
            self.changed.notify_all();
        }
    }
}

/// The duty to settle one block.
#[derive(Debug)]
pub(crate) struct Ticket {
    stream: Arc<Stream>,
    at: u64,
    settled: bool,
}

impl Ticket {
    fn settle(mut self, change: impl FnOnce(&mut Progress)) {
        self.settled = true;
        self.stream.settle(self.at, change);
    }
}

impl Drop for Ticket {
    /// Nobody knows what became of the block.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let message = "handed to the reactor, which is gone; it may be written or not";
        let file = &self.stream.file;
        file.fail(Error::new(ErrorKind::Other, "append", file.path(), message).at(self.at));
        let at = self.at;
        self.stream.settle(at, |progress| {
            progress.lost = true;
            progress.break_at(at);
        });
    }
}

/// Bytes on their way to one place in a file. Dropped, it counts as lost.
#[derive(Debug)]
pub(crate) struct Block {
    ticket: Ticket,
    data: Buffer,
    share: Share,
}

impl Block {
    pub(crate) fn new(ticket: Ticket, data: Buffer, share: Share) -> Self {
        Self { ticket, data, share }
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.ticket.stream
    }

    pub(crate) fn at(&self) -> u64 {
        self.ticket.at
    }

    /// Its bytes; not to be asked for while a kernel reads them.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// How many bytes it has; may be asked at any time.
    pub(crate) fn len(&self) -> usize {
        self.data.shown()
    }

    /// All of it is in the file. If `hints`, gives the next range whose write-back is worth
    /// starting. This is the last touch of the stream: an owner that knows that nothing is out may
    /// fork, and the child find its locks free.
    pub(crate) fn done(self, hints: bool) -> Option<(u64, u64)> {
        let Self { ticket, data, share } = self;
        drop(data);
        drop(share);
        let mut range = None;
        ticket.settle(|progress| {
            range = if hints { progress.take_unpushed() } else { None };
        });
        range
    }

    /// Its owner is to write it from `from` on; `refused` if it should not send more.
    pub(crate) fn give_back(self, from: usize, refused: bool) {
        let Self { ticket, data, share } = self;
        let at = ticket.at;
        let returned = Returned { data, at, from, _share: share };
        if refused {
            ticket.stream.refused.store(true, Ordering::Relaxed);
        }
        ticket.settle(|progress| {
            if !progress.abandoned {
                progress.returned.push(returned);
            }
        });
    }

    /// It failed, and nothing of it is in the file.
    pub(crate) fn failed(self, error: Error) {
        self.ticket.stream.file.fail(error);
        let at = self.ticket.at;
        self.ticket.settle(|progress| progress.break_at(at));
    }

    /// Nobody will ever know what becomes of it: the kernel may go on using the memory, which is
    /// therefore never freed.
    pub(crate) fn leak(self) {
        let Self { ticket, data, share: _ } = self;
        std::mem::forget(data);
        drop(ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_comes_back_with_its_shares() {
        let budget = Budget::new(100);
        let first = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        let second = budget.take(40).unwrap();
        assert!(budget.take(1).is_none() && budget.take(usize::MAX).is_none());
        drop(first);
        assert_eq!(budget.used(), 40);
        drop(second);
        assert_eq!((budget.used(), budget.limit()), (0, 100));
    }
}
