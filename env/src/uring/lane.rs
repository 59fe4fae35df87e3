//! A ring of the pool in the hands of one queue: taken when it is first needed, given back empty,
//! or retired.

use std::time::Duration;

use super::Shared;
use super::flight::{Flight, Tally, Want};
use super::pool::{Pool, Taken};
use super::ring::{Completed, Entry, Work};
use crate::counters::Count;
use crate::sync::Arc;

pub(crate) use super::flight::Turn;

/// What queues count in.
const TALLY: Tally = Tally {
    enters: Count::RingEnters,
    cqes: Count::RingCqes,
    per_enter_peak: Count::SqesPerEnterPeak,
    in_flight_peak: Count::InFlightPeak,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    shared: Arc<Shared>,
    taken: Option<(Flight, usize)>,
    /// The ring that is held asks the device for completions.
    asks_device: bool,
}

impl Lane {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), taken: None, asks_device: false }
    }

    /// Entries pushed and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.taken.as_ref().map_or(0, |(flight, _)| flight.in_flight())
    }

    /// Takes a ring from the pool unless one is held already; false if there is none. With
    /// `asking` one that asks the device for completions, if such a one is free.
    pub(crate) fn open(&mut self, asking: bool) -> bool {
        if self.taken.is_none() {
            let pool = self.shared.asking.as_ref().filter(|_| asking);
            let asks = pool.and_then(Pool::take);
            self.asks_device = asks.is_some();
            self.hold(asks.or_else(|| self.shared.pool.take()));
        }
        self.taken.is_some()
    }

    /// Takes a ring that comes back to the pool in time; false if none does. None may be held.
    pub(crate) fn open_within(&mut self, patience: Duration) -> bool {
        self.asks_device = false;
        self.hold(self.shared.pool.take_within(patience));
        self.taken.is_some()
    }

    fn hold(&mut self, taken: Option<Taken>) {
        self.taken = taken.map(|Taken { ring, place }| (Flight::new(ring, TALLY), place));
        if let (Some((flight, _)), Some(memory)) = (&mut self.taken, &self.shared.registered) {
            flight.learn(memory);
        }
    }

    /// Whether the memory of an entry is registered with the ring that is held.
    pub(crate) fn knows(&self, entry: &Entry) -> bool {
        self.taken.as_ref().is_some_and(|(flight, _)| flight.knows(entry))
    }

    /// How many more entries may be pushed.
    pub(crate) fn room(&self) -> usize {
        self.taken.as_ref().map_or(0, |(flight, _)| flight.room())
    }

    /// Whether another entry may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.taken.as_ref().is_some_and(|(flight, _)| flight.has_room())
    }

    /// Pushes a read or a write; the ring must have room.
    ///
    /// # Safety
    ///
    /// As for [`Ring::push`](super::ring::Ring::push). An entry that is taken back never runs.
    pub(crate) unsafe fn push(&mut self, entry: Entry) {
        let counters = &self.shared.os.counters;
        let (flight, _) = self.taken.as_mut().expect("a ring with room is held");
        counters.add(Count::FixedUsed, u64::from(flight.knows(&entry)));
        // SAFETY: the caller's promise is the requirement.
        unsafe { flight.push(entry, counters) }
        let reads = matches!(entry.work, Work::Read | Work::ReadVectored);
        counters.bump(if reads { Count::RingReads } else { Count::RingWrites });
        counters.add(Count::IopollReads, u64::from(self.asks_device));
    }

    /// Offers what was pushed. With a `want` above 0, which is at most what is in flight, the
    /// kernel waits for so many completions, and this returns only when something completed: a
    /// signal cuts the wait short. Completions that are there are added to `completed`.
    pub(crate) fn enter(&mut self, want: usize, completed: &mut Vec<Completed>) -> Turn {
        let want = if want > 0 { Want::Completions(want) } else { Want::Nothing };
        match &mut self.taken {
            Some((flight, _)) => flight.enter(want, completed, &self.shared.os.counters),
            None => Turn::default(),
        }
    }

    /// Adds completions that are visible already, without entering the kernel.
    pub(crate) fn peek(&mut self, completed: &mut Vec<Completed>) {
        if let Some((flight, _)) = &mut self.taken {
            flight.peek(completed, &self.shared.os.counters);
        }
    }

    /// Counts a completion that was matched to an entry in flight.
    pub(crate) fn completed_one(&mut self) {
        let (flight, _) = self.taken.as_mut().expect("matched completions came from a ring");
        flight.completed_one();
    }

    /// Takes the ring out of use: it is not given back, and submits nothing more.
    pub(crate) fn spoil(&mut self) {
        if let Some((flight, _)) = &mut self.taken {
            flight.spoil();
        }
    }

    /// Forgets what is in flight, whose memory the caller has leaked, and gives up the ring.
    pub(crate) fn abandon(&mut self) {
        if let Some((flight, _)) = &mut self.taken {
            flight.abandon();
        }
        self.close();
    }

    /// Gives the ring back, or up. Nothing may be in flight.
    pub(crate) fn close(&mut self) {
        let Some((flight, place)) = self.taken.take() else { return };
        let spoiled = flight.is_spoiled();
        let taken = Taken { ring: flight.into_ring(), place };
        let asking = self.shared.asking.as_ref().filter(|_| self.asks_device);
        let pool = asking.unwrap_or(&self.shared.pool);
        if !pool.is_ours() {
            // A forked child: the ring's memory is not here, and may be something else by now.
            std::mem::forget(taken);
        } else if spoiled {
            self.shared.os.counters.bump(Count::RingRetired);
            // Or else, where every ring fails, each batch would have a new one made.
            if self.shared.breaker.fault() {
                self.shared.os.counters.bump(Count::BreakerOpened);
            }
            pool.retire(taken);
        } else {
            pool.give_back(taken);
        }
    }

    /// Whether a ring is held that takes nothing but direct reads of devices that can be asked.
    pub(crate) fn asks_device(&self) -> bool {
        self.taken.is_some() && self.asks_device
    }

    /// Whether the ring should be given up now.
    pub(crate) fn is_spent(&self) -> bool {
        self.taken
            .as_ref()
            .is_some_and(|(flight, _)| flight.is_spoiled() && flight.in_flight() == 0)
    }

    /// Whether this process may touch the ring.
    pub(crate) fn is_ours(&self) -> bool {
        self.taken.is_none() || self.shared.pool.is_ours()
    }
}
