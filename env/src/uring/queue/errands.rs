//! Direct reads without a ring of the queue's own. One after another they would take as long as
//! the device is far away, so they go to the reactor's ring, together; where there is no reactor
//! the queue waits a little for a ring that comes back. Reads through the page cache need neither:
//! the kernel is told of them, and plain calls find them there.

use std::time::Duration;

use super::RingQueue;
use crate::Request;
use crate::counters::Count;
use crate::os_file::Os;
use crate::sync::Arc;
use crate::trace;
use crate::uring::op::Piece;
use crate::uring::reactor::{Errand, Mailbox, Reactor};
use crate::uring::slots::Slots;

/// How long a queue waits for a ring, once in a batch: no longer than it takes to read some tens
/// of blocks one after another, so that waiting in vain at most doubles the time.
const PATIENCE: Duration = Duration::from_millis(1);

/// Direct reads below which plain calls are faster than the way to the reactor and back, unless
/// others of the queue are there already.
const ERRANDS_MIN: usize = 3;

/// A request whose operation is with the reactor, should it have to be begun again.
#[derive(Debug)]
struct Out {
    tag: u64,
    request: Request,
    /// Memory of the operation.
    bytes: usize,
}

/// What one queue has with the reactor.
#[derive(Debug)]
pub(super) struct Errands {
    mailbox: Arc<Mailbox>,
    out: Slots<Out>,
    count: usize,
    /// Waiting for a ring was in vain in this batch.
    waited: bool,
}

impl Errands {
    pub(super) fn new(os: &Arc<Os>) -> Self {
        Self { mailbox: Mailbox::new(os), out: Slots::default(), count: 0, waited: false }
    }

    pub(super) fn are_none(&self) -> bool {
        self.count == 0
    }

    pub(super) fn end_batch(&mut self) {
        self.waited = false;
    }
}

impl RingQueue {
    /// Waits for a ring if direct reads are staged that nobody else would do together; false if
    /// none is held after that.
    pub(super) fn wait_for_ring(&mut self) -> bool {
        if self.errands.waited || self.reactor().is_some() || !self.shared.pool.is_ours() {
            return false;
        }
        if self.direct_pieces() == 0 {
            return false;
        }
        let got = self.lane.open_within(PATIENCE);
        self.errands.waited = !got;
        let count = if got { Count::RingWaits } else { Count::RingWaitsInVain };
        self.shared.os.counters.bump(count);
        got
    }

    /// How much of what is staged are direct reads.
    fn direct_pieces(&mut self) -> usize {
        let ops = &mut self.ops;
        let is_direct =
            |piece: &&Piece| ops.get_mut(piece.op).is_some_and(|op| op.file().direct().is_some());
        self.staged.iter().filter(is_direct).count()
    }

    /// The reactor, if it takes reads now.
    fn reactor(&self) -> Option<&Arc<Reactor>> {
        self.shared.reactor.as_ref().filter(|reactor| reactor.takes())
    }

    /// Finds another way for everything staged: there is no ring.
    pub(super) fn read_without_ring(&mut self) {
        self.without_ring = true;
        self.shared.os.counters.bump(Count::PoolEmpty);
        trace::no_free_ring(self.staged.len());
        let enough = !self.errands.are_none() || self.direct_pieces() >= ERRANDS_MIN;
        let reactor = self.reactor().filter(|_| enough).cloned();
        let mut errands = Vec::new();
        let pieces: Vec<Piece> = self.staged.drain(..).collect();
        for piece in &pieces {
            let op = self.op(piece.op);
            op.piece_left(piece);
            let direct = op.file().direct().is_some();
            if reactor.is_some() && direct && op.is_idle() && op.has_rest() {
                errands.push(self.send_out(piece.op));
            } else {
                self.settle(piece.op, true);
            }
        }
        if let Some(reactor) = reactor {
            reactor.read(errands);
        }
    }

    fn send_out(&mut self, key: u64) -> Errand {
        let op = self.ops.remove(key).expect("just looked at");
        let out = Out { tag: op.tag, request: op.request(), bytes: op.memory_len() };
        self.errands.count += 1;
        let home = Arc::clone(&self.errands.mailbox);
        Errand::new(op, self.errands.out.insert(out), home)
    }

    /// Takes what came back from the reactor, waiting for something if `wait`; false if nothing
    /// was out.
    pub(super) fn collect_errands(&mut self, wait: bool) -> bool {
        if self.errands.are_none() {
            return false;
        }
        if !self.shared.pool.is_ours() {
            self.begin_errands_again();
            return true;
        }
        let mailbox = &self.errands.mailbox;
        let back = if wait { mailbox.wait_unless(|| self.gave_up()) } else { mailbox.take() };
        if wait && back.is_empty() {
            self.begin_errands_again();
            return true;
        }
        for (out, op) in back {
            if self.errands.out.remove(out).is_none() {
                // It was begun again, and nobody wants this one any more.
                continue;
            }
            self.errands.count -= 1;
            let key = self.ops.insert(op);
            self.settle(key, true);
        }
        true
    }

    /// Whether a shutdown ran out of time, so that what is out may never come back.
    fn gave_up(&self) -> bool {
        self.shared.reactor.as_ref().is_none_or(|reactor| reactor.gave_up())
    }

    /// In other memory: what is out stays the reactor's. That is gone for a forked child, where the
    /// lock of the mailbox may have been held when the process was copied, or was given up.
    fn begin_errands_again(&mut self) {
        self.errands.count = 0;
        for key in self.errands.out.keys() {
            let Out { tag, request, bytes } = self.errands.out.remove(key).expect("just listed");
            self.reads.held -= 1;
            self.held_bytes -= bytes;
            self.issue(tag, request);
        }
    }

    /// Waits until nothing of this queue is with the reactor any more, unless that may take for
    /// ever.
    pub(super) fn await_errands(&mut self) {
        while !self.errands.are_none() && self.shared.pool.is_ours() {
            let back = self.errands.mailbox.wait_unless(|| self.gave_up());
            if back.is_empty() {
                return;
            }
            for (out, _) in back {
                self.errands.count -= usize::from(self.errands.out.remove(out).is_some());
            }
        }
    }
}
