//! One file as its owner and the reactor share it: which blocks are out, what came back, and what
//! went wrong.
//!
//! Invariants:
//! * Each block that was handed over is settled exactly once, by one of the ways of [`Ticket`]; a
//!   ticket that is dropped unsettled, whatever the reason, settles as lost. So no owner waits for
//!   a block that nobody has, nor for one that the reactor may keep for ever: see [`Stream::wait`].
//! * An error is the file's before its block is settled: an owner that finds nothing out finds
//!   the error.

use crate::posix::outlet::WRITE_BACK;
use crate::posix::writable::Shared;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, LOOKS_EVERY, Mutex, Ordering};
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
    /// A flush to the medium was begun for what lies below.
    flushed: u64,
    /// The lowest place from which on bytes are missing or in doubt.
    broken_at: Option<u64>,
    /// Whether the kernel may still write a block that counts as lost.
    lost: bool,
    owner_waits: bool,
    /// The owner waits for nothing more.
    abandoned: bool,
}

impl Progress {
    /// Up to where everything put so far is in the file.
    fn whole(&self) -> u64 {
        let returned = self.returned.iter().map(|block| block.at);
        self.out.iter().copied().chain(returned).min().unwrap_or(self.end)
    }

    fn take_unpushed(&mut self) -> Option<(u64, u64)> {
        let pushed = self.pushed?;
        let low = self.whole();
        let len = low.saturating_sub(pushed);
        if len < WRITE_BACK {
            return None;
        }
        self.pushed = Some(low);
        Some((pushed, len))
    }

    /// Nobody waits for it, and nobody will hear what becomes of it.
    fn lose_what_is_out(&mut self) {
        self.lost = true;
        self.abandoned = true;
        if let Some(at) = self.out.iter().copied().min() {
            self.break_at(at);
        }
    }

    /// Bytes from `at` on are missing or in doubt.
    fn break_at(&mut self, at: u64) {
        self.broken_at = Some(self.broken_at.map_or(at, |before| before.min(at)));
    }
}

/// What a file's blocks give rise to besides being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    /// Finished ranges are sent on to the device as they grow.
    pub(crate) write_back: bool,
    /// A flush to the medium is begun for each so many bytes.
    pub(crate) early_sync: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    file: Arc<Shared>,
    early_sync: Option<u64>,
    /// Its file system was found not to write on a ring.
    refused: AtomicBool,
    /// What is out may never be settled.
    given_up: Arc<AtomicBool>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Stream {
    /// A file of which nothing was handed over. That `given_up` says that a shutdown ran out of
    /// time.
    pub(crate) fn new(file: &Arc<Shared>, hints: Hints, given_up: &Arc<AtomicBool>) -> Arc<Self> {
        let pushed = hints.write_back.then_some(0);
        let progress = Mutex::new(Progress { pushed, ..Progress::default() });
        let (refused, changed) = Default::default();
        let early_sync = hints.early_sync;
        let (file, given_up) = (Arc::clone(file), Arc::clone(given_up));
        Arc::new(Self { file, early_sync, refused, given_up, progress, changed })
    }

    pub(crate) fn file(&self) -> &Arc<Shared> {
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

    /// Waits until fewer than `out` blocks are out, or one came back; false if a shutdown ran out
    /// of time, so that this may never be. The owner then waits no more, and what is out counts as
    /// lost: the reactor keeps it.
    pub(crate) fn wait(&self, out: usize) -> bool {
        let mut progress = self.progress.lock();
        while progress.out.len() >= out && progress.returned.is_empty() {
            // Acquire, paired with the store of the shutdown.
            if self.given_up.load(Ordering::Acquire) {
                progress.lose_what_is_out();
                return false;
            }
            progress.owner_waits = true;
            self.changed.wait_for(&mut progress, LOOKS_EVERY);
        }
        progress.owner_waits = false;
        true
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

    /// A flush to the medium, if one is worth beginning and may begin; it counts as begun.
    fn take_early_sync(self: &Arc<Self>, progress: &mut Progress) -> Option<EarlySync> {
        let whole = progress.whole();
        let due = whole.saturating_sub(progress.flushed) >= self.early_sync?;
        if !due || !self.file.begin_early_sync(&self.given_up) {
            return None;
        }
        progress.flushed = whole;
        Some(EarlySync { stream: Arc::clone(self), ended: false })
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

/// A flush to the medium that is under way, and the duty to say how it ended. It keeps the file
/// open. Dropped, its outcome counts as unknown, which fails the file: a failure that nobody saw
/// would make the next flush succeed though data is lost.
#[derive(Debug)]
pub(crate) struct EarlySync {
    stream: Arc<Stream>,
    ended: bool,
}

impl EarlySync {
    pub(crate) fn file(&self) -> &Arc<Shared> {
        &self.stream.file
    }

    /// It succeeded, or never ran: either way nothing was lost by it.
    pub(crate) fn ended(mut self) {
        self.ended = true;
        self.stream.file.end_early_sync(None);
    }

    /// It failed, and so has the file.
    pub(crate) fn failed(mut self, error: Error) {
        self.ended = true;
        self.stream.file.end_early_sync(Some(error));
    }
}

impl Drop for EarlySync {
    fn drop(&mut self) {
        if !self.ended {
            let message = "begun by the reactor, which is gone; it may have failed";
            let file = &self.stream.file;
            let error = Error::new(ErrorKind::Other, "sync", file.path(), message);
            file.end_early_sync(Some(error));
        }
    }
}

/// What the end of a block makes worth doing.
#[derive(Debug, Default)]
pub(crate) struct Sequel {
    /// Starting the write-back of this range.
    pub(crate) write_back: Option<(u64, u64)>,
    pub(crate) early_sync: Option<EarlySync>,
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

    /// All of it is in the file. Gives what is worth doing next, in up to `room` entries. But for
    /// the end of an early flush, for which syncs wait as well, this is the last touch of the
    /// stream: an owner that knows that nothing is out may fork, and the child find its locks free.
    pub(crate) fn done(self, room: usize) -> Sequel {
        let Self { ticket, data, share } = self;
        drop(data);
        drop(share);
        let stream = Arc::clone(&ticket.stream);
        let mut sequel = Sequel::default();
        ticket.settle(|progress| {
            if room >= 2 {
                sequel.write_back = progress.take_unpushed();
                sequel.early_sync = stream.take_early_sync(progress);
            }
        });
        sequel
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
