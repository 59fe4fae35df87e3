//! A ring in the hands of one queue: pushing entries, entering the kernel, and what to make of its
//! refusals.
//!
//! Invariants:
//! * An entry is in flight from the moment it is pushed, whether or not the kernel took it yet.
//! * In flight never exceeds the submission entries, half of what the completion side holds.
//! * It never waits for what the kernel has not taken.
//! * Entries that were taken back are never offered again: the ring submits no more and is retired
//!   once nothing is in flight.

use std::collections::VecDeque;
use std::thread;

use super::Shared;
use super::pool::Taken;
use super::ring::{Completed, Errno, ReadEntry};
use crate::counters::Count;
use crate::sync::Arc;

/// How often a refused submission is tried again, giving up the CPU in between.
const YIELDS: u32 = 16;
/// How often an interrupted call is repeated while it should also submit: entering submits before
/// it can be interrupted, so this is rare. A call that only waits is repeated without limit.
const INTERRUPTIONS: u32 = 256;

/// What became of one turn at the ring.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Everything offered was taken, and if a wait was wanted, something completed.
    Done,
    /// The kernel goes on refusing these entries: they never ran and never will.
    TakenBack(Vec<u64>),
    /// The ring is unusable, and what is in flight has no answer: the kernel may still write to
    /// its memory.
    Broken,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    shared: Arc<Shared>,
    taken: Option<Taken>,
    /// Pushed and not yet taken by the kernel, in order.
    offered: VecDeque<u64>,
    /// Pushed and not yet completed, `offered` included.
    in_flight: usize,
    /// Something is wrong with the ring: it submits no more, and is retired when empty.
    spoiled: bool,
}

impl Lane {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            taken: None,
            offered: VecDeque::new(),
            in_flight: 0,
            spoiled: false,
        }
    }

    /// Entries pushed and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a ring from the pool unless one is held already; false if there is none.
    pub(crate) fn open(&mut self) -> bool {
        if self.taken.is_none() {
            self.taken = self.shared.pool.take();
        }
        self.taken.is_some()
    }

    /// Whether another entry may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        let entries = self.taken.as_ref().map_or(0, |taken| taken.ring.entries());
        !self.spoiled && self.in_flight < entries
    }

    /// Pushes a read; the ring must have room.
    ///
    /// # Safety
    ///
    /// As for [`Ring::push`](super::ring::Ring::push). An entry that is taken back never runs.
    pub(crate) unsafe fn push(&mut self, entry: ReadEntry) {
        let taken = self.taken.as_mut().expect("a ring with room is held");
        // SAFETY: the caller's promise is the ring's requirement.
        let pushed = unsafe { taken.ring.push(entry) };
        assert!(pushed, "in flight never exceeds the submission entries");
        self.offered.push_back(entry.user_data);
        self.in_flight += 1;
        self.shared.os.counters.bump(Count::RingReads);
        self.shared.os.counters.peak(Count::InFlightPeak, self.in_flight as u64);
    }

    /// Offers what was pushed. With a `want` above 0, which is at most what is in flight, the
    /// kernel waits for so many completions, and this returns only when something completed: a
    /// signal cuts the wait short. Completions that are there are added to `completed`.
    pub(crate) fn enter(&mut self, want: usize, completed: &mut Vec<Completed>) -> Turn {
        let (mut refusals, mut interruptions) = (0, 0);
        let before = completed.len();
        loop {
            let still_waits = want > 0 && completed.len() == before && self.in_flight > 0;
            if self.offered.is_empty() && !still_waits {
                return Turn::Done;
            }
            match self.enter_once(if still_waits { want } else { 0 }, completed) {
                Ok(progress) if progress => refusals = 0,
                Err(libc::EINTR) if interruptions < INTERRUPTIONS || self.offered.is_empty() => {
                    interruptions += 1;
                }
                Ok(_) | Err(libc::EAGAIN | libc::ENOMEM | libc::EBUSY | libc::EINTR) => {
                    refusals += 1;
                    thread::yield_now();
                }
                Err(_) => return self.broken(),
            }
            if refusals > YIELDS {
                return if self.offered.is_empty() { self.broken() } else { self.take_back() };
            }
        }
    }

    /// One call of the kernel; whether it took, or there came, anything.
    fn enter_once(&mut self, want: usize, completed: &mut Vec<Completed>) -> Result<bool, Errno> {
        let counters = &self.shared.os.counters;
        let taken = self.taken.as_mut().expect("a ring is held while anything is in flight");
        let offers = self.offered.len();
        let entered = taken.ring.enter(offers > 0, want);
        counters.bump(Count::RingEnters);
        let before = completed.len();
        taken.ring.drain(completed);
        let came = completed.len() - before;
        counters.add(Count::RingCqes, came as u64);
        let took = entered?.min(offers);
        counters.peak(Count::SqesPerEnterPeak, took as u64);
        self.offered.drain(..took);
        // An early return that only waited is a signal's doing: the wait goes on.
        Ok(took > 0 || came > 0 || offers == 0)
    }

    /// Adds completions that are visible already, without entering the kernel.
    pub(crate) fn peek(&mut self, completed: &mut Vec<Completed>) {
        if let Some(taken) = &mut self.taken {
            let before = completed.len();
            taken.ring.drain(completed);
            self.shared.os.counters.add(Count::RingCqes, (completed.len() - before) as u64);
        }
    }

    /// Counts a completion that was matched to an entry in flight.
    pub(crate) fn completed_one(&mut self) {
        self.in_flight = self.in_flight.checked_sub(1).expect("matched completions were in flight");
    }

    /// Takes the ring out of use: it is not given back, and submits nothing more.
    pub(crate) fn spoil(&mut self) {
        self.spoiled = true;
    }

    fn take_back(&mut self) -> Turn {
        self.spoiled = true;
        self.in_flight -= self.offered.len();
        Turn::TakenBack(self.offered.drain(..).collect())
    }

    fn broken(&mut self) -> Turn {
        self.spoiled = true;
        Turn::Broken
    }

    /// Forgets what is in flight, whose memory the caller has leaked, and gives up the ring.
    pub(crate) fn abandon(&mut self) {
        self.in_flight = 0;
        self.offered.clear();
        self.spoiled = true;
        self.close();
    }

    /// Gives the ring back, or up. Nothing may be in flight.
    pub(crate) fn close(&mut self) {
        assert_eq!(self.in_flight, 0, "a ring is given back empty");
        let spoiled = std::mem::take(&mut self.spoiled);
        let Some(taken) = self.taken.take() else { return };
        if !self.shared.pool.is_ours() {
            // A forked child: the ring's memory is not here, and may be something else by now.
            std::mem::forget(taken);
        } else if spoiled {
            self.shared.os.counters.bump(Count::RingRetired);
            self.shared.pool.retire(taken);
        } else {
            self.shared.pool.give_back(taken);
        }
    }

    /// Whether the ring should be given up now.
    pub(crate) fn is_spent(&self) -> bool {
        self.spoiled && self.in_flight == 0
    }

    /// Whether this process may touch the ring.
    pub(crate) fn is_ours(&self) -> bool {
        self.taken.is_none() || self.shared.pool.is_ours()
    }
}
