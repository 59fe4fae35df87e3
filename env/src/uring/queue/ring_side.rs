//! The side of the queue that faces the ring: turns at it, the verdict on each completion, and
//! waiting for everything in flight when the queue goes away.

use std::mem;

use super::{RingQueue, WAIT_BATCH};
use crate::counters::Count;
use crate::sync::Arc;
use crate::uring::lane::Turn;
use crate::uring::op::Piece;
use crate::uring::ring::{Completed, Entry};
use crate::uring::run::Load;
use crate::uring::verdict::{Verdict, judge, retried, strains_the_breaker};
use crate::{Error, RandomAccessFile};

impl RingQueue {
    /// One turn at the ring: pushes what is staged, enters, judges what came. With `wait` it
    /// returns when half of what is in flight has completed, or [`WAIT_BATCH`].
    pub(super) fn turn(&mut self, wait: bool) {
        if !self.lane.is_ours() {
            self.abandon();
            return;
        }
        let first = self.staged.front().map(|piece| piece.op);
        let asking = first.is_some_and(|op| self.can_be_asked(op));
        if !self.lane.open(asking) && !self.wait_for_ring() {
            self.read_without_ring();
            return;
        }
        self.bring_neighbours_together();
        while self.lane.has_room() {
            self.leave_what_cannot_be_asked();
            let Some((load, entry)) = self.next_load() else { break };
            self.push_load(load, entry);
        }
        let mut completed = mem::take(&mut self.completed);
        let half = (self.lane.in_flight() / 2).clamp(1, WAIT_BATCH);
        let turn = self.lane.enter(if wait { half } else { 0 }, &mut completed);
        self.judge_all(&mut completed);
        for key in turn.taken_back {
            let load = self.loads.remove(key).expect("offered entries have loads");
            load.pieces().for_each(|piece| self.leave_piece(piece, true));
        }
        if turn.broken {
            self.abandon();
        }
        if self.lane.is_spent() {
            self.lane.close();
        }
    }

    /// Whether a ring that asks the device for completions may read for an operation.
    fn can_be_asked(&mut self, op: u64) -> bool {
        if self.shared.asking.is_none() {
            return false;
        }
        let file = self.op(op).file();
        file.direct().is_some() && file.device().polls()
    }

    /// Takes what is staged first out of line until it is something that the ring which is held
    /// can read.
    fn leave_what_cannot_be_asked(&mut self) {
        while self.lane.asks_device()
            && let Some(first) = self.staged.front().map(|piece| piece.op)
            && !self.can_be_asked(first)
            && let Some(piece) = self.staged.pop_front()
        {
            self.leave_piece(&piece, true);
        }
    }

    /// Pushes the entry that was made for a load.
    fn push_load(&mut self, load: Load, mut entry: Entry) {
        if let Load::One(piece) = &load {
            let op = self.ops.get_mut(piece.op).expect("operations under way are in the table");
            let os = &self.shared.os;
            if os.wants_fixed() && op.file().direct().is_some() && !self.lane.knows(&entry) {
                os.counters.bump(Count::FixedRefused);
            }
        }
        entry.user_data = self.loads.insert(load);
        // SAFETY: the addresses are those of heap memory which operations in `self.ops` own and
        // do not touch while a piece is outstanding, and those of a run's waste and of its list,
        // which the run in `self.loads` owns and does not touch. An operation is removed and
        // taken apart only when nothing of it is outstanding, or after `abandon` leaked its
        // memory; a run only after its completion, or it is leaked too. Dropping the queue waits
        // for everything in flight or leaks it (`Drop`), unwinding included; a queue that is
        // forgotten never frees anything. The same holds for the file, whose descriptor stays
        // open.
        unsafe { self.lane.push(entry) }
    }

    /// Judges completions that are visible without entering the kernel.
    pub(super) fn peek(&mut self) {
        if !self.lane.is_ours() {
            self.abandon();
            return;
        }
        let mut completed = mem::take(&mut self.completed);
        self.lane.peek(&mut completed);
        self.judge_all(&mut completed);
        if self.lane.is_spent() {
            self.lane.close();
        }
    }

    /// Acts upon completions that were collected before. All of them are out of flight before
    /// the first is judged: should judging panic, the queue's end waits for none of them.
    fn judge_all(&mut self, completed: &mut Vec<Completed>) {
        let mut answered = mem::take(&mut self.answered);
        for done in completed.drain(..) {
            if let Some(load) = self.loads.remove(done.user_data) {
                self.lane.completed_one();
                answered.push((load, done.result));
            } else {
                self.shared.os.counters.bump(Count::RingStale);
                self.lane.spoil();
            }
        }
        self.completed = mem::take(completed);
        for (load, result) in answered.drain(..) {
            match load {
                Load::One(piece) => self.judge(piece, result),
                Load::Run(run) => self.judge_run(run, result),
            }
        }
        self.answered = answered;
    }

    fn judge(&mut self, mut piece: Piece, result: i32) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.os.counters;
        let asked_device = self.lane.asks_device();
        let op = self.op(piece.op);
        let asked = op.asked(&piece);
        match judge(asked, result) {
            Verdict::Done => {
                shared.breaker.good();
                op.piece_done();
                self.settle(piece.op, true);
            }
            Verdict::Partly(got) => {
                shared.breaker.good();
                counters.bump(Count::ShortReads);
                if op.advance(&mut piece, got) {
                    self.staged.push_front(piece);
                } else {
                    self.leave_piece(&piece, true);
                }
            }
            Verdict::Nothing => {
                counters.bump(Count::ShortReads);
                self.leave_piece(&piece, true);
            }
            Verdict::Medium(_) => self.leave_piece(&piece, true),
            Verdict::Passing(errno) => {
                counters.bump(retried(errno));
                if strains_the_breaker(errno) && shared.breaker.fault() {
                    counters.bump(Count::BreakerOpened);
                }
                self.leave_piece(&piece, true);
            }
            Verdict::Unsupported if asked_device => {
                counters.bump(Count::IopollRefused);
                op.file().device().refuse_polling();
                self.leave_piece(&piece, true);
            }
            Verdict::Unsupported => {
                op.file().latch_unsupported();
                self.leave_piece(&piece, true);
            }
            Verdict::Failed(errno) => {
                let at = op.offset_of(piece.from);
                let error = Error::from_errno(errno, "read", op.file().path()).at(at);
                self.fail_piece(&piece, error);
            }
            Verdict::Overlong => {
                let error = op.overlong(&piece, result);
                self.lane.spoil();
                self.fail_piece(&piece, error);
            }
        }
    }

    /// Gives up a ring that owes answers: what is in flight is read again, into other memory.
    fn abandon(&mut self) {
        let mut hit = Vec::new();
        for load in self.give_up_loads() {
            for piece in load.pieces() {
                if !hit.contains(&piece.op) {
                    hit.push(piece.op);
                }
            }
            mem::forget(load);
        }
        self.staged.retain(|piece| !hit.contains(&piece.op));
        for key in hit {
            let os = Arc::clone(&self.shared.os);
            self.op(key).leak_memory(&os);
            self.line_up_plain(key, true);
        }
        self.lane.abandon();
    }

    /// What a broken ring may still use: to be leaked.
    fn give_up_loads(&mut self) -> Vec<Load> {
        let keys = self.loads.keys();
        keys.into_iter().filter_map(|key| self.loads.remove(key)).collect()
    }
}

impl Drop for RingQueue {
    /// Waits until nothing is in flight: the kernel may write to our memory until then.
    fn drop(&mut self) {
        let mut completed = Vec::new();
        while self.lane.in_flight() > 0 {
            let turn =
                if self.lane.is_ours() { self.lane.enter(1, &mut completed) } else { Turn::BROKEN };
            for done in completed.drain(..) {
                match self.loads.remove(done.user_data) {
                    Some(_) => self.lane.completed_one(),
                    None => self.lane.spoil(),
                }
            }
            for key in turn.taken_back {
                self.loads.remove(key);
            }
            if turn.broken {
                for load in self.give_up_loads() {
                    for piece in load.pieces() {
                        mem::forget(self.ops.remove(piece.op));
                    }
                    mem::forget(load);
                }
                self.lane.abandon();
            }
        }
        self.await_errands();
        self.end_batch();
    }
}
