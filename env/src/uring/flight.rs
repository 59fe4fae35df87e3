//! A ring and what is in it: pushing entries, entering the kernel, and what to make of its
//! refusals.
//!
//! Invariants:
//! * An entry is in flight from the moment it is pushed, whether or not the kernel took it yet.
//! * In flight never exceeds the submission entries, half of what the completion side holds.
//! * It never waits for what the kernel has not taken.
//! * Entries that were taken back are never offered again: the ring submits no more and is retired
//!   once nothing is in flight. Of a ring with a poll thread none is ever taken back.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use super::kernel::Registered;
use super::ring::{Completed, DRAIN_BATCH, Entry, Errno, How, Ring, Took};
use crate::counters::{Count, Counters};
use crate::sync::Arc;

/// How often a refused submission is tried again, giving up the CPU in between.
const YIELDS: u32 = 16;
/// How often an interrupted call is repeated while it should also submit: entering submits before
/// it can be interrupted, so this is rare. A call that only waits is repeated without limit.
const INTERRUPTIONS: u32 = 256;
/// How often, a millisecond or two apart, a ring that may not be entered is looked at for what is
/// in it. Nearly every device has answered by then, and one that has not must not hold the caller
/// for ever.
const LOOKS: u32 = 2000;
/// The same for a ring that must be entered: its poll thread could still show something only if it
/// is woken for another ring, or looks once more before it sleeps.
const VAIN_LOOKS: u32 = 300;

/// What became of one turn at the ring. Unless it says otherwise everything offered was taken, and
/// if a wait was wanted, something completed.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Turn {
    /// Entries that the kernel refused: they never ran and never will.
    pub(crate) taken_back: Vec<u64>,
    /// The ring is unusable, and what else is in flight has no answer: the kernel may still use its
    /// memory.
    pub(crate) broken: bool,
}

impl Turn {
    pub(crate) const BROKEN: Self = Self { taken_back: Vec::new(), broken: true };
}

/// What a turn at the ring is for, besides offering what was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Nothing: without anything to offer the kernel is not entered.
    Nothing,
    /// What has completed. A kernel may show it only to a thread that enters.
    Ready,
    /// The kernel is to wait for so many completions, at most what is in flight. At least one
    /// comes of it, if anything is in flight: a signal cuts the wait short.
    Completions(usize),
}

/// The counters that one kind of user of rings counts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub(crate) enters: Count,
    pub(crate) cqes: Count,
    pub(crate) per_enter_peak: Count,
    pub(crate) in_flight_peak: Count,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Flight {
    ring: Box<dyn Ring>,
    tally: Tally,
    /// Pushed and not yet taken by the kernel, in order.
    offered: VecDeque<u64>,
    /// Pushed and not yet completed, `offered` included.
    owed: usize,
    /// Something is wrong with the ring: it submits no more, and is retired when empty.
    spoiled: bool,
}

impl Flight {
    /// Takes a ring with nothing in it.
    pub(crate) fn new(ring: Box<dyn Ring>, tally: Tally) -> Self {
        Self { ring, tally, offered: VecDeque::new(), owed: 0, spoiled: false }
    }

    /// Entries pushed and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.owed
    }

    /// Whether something was pushed that the kernel has not taken.
    pub(crate) fn has_offers(&self) -> bool {
        !self.offered.is_empty()
    }

    /// How many more entries may be pushed.
    pub(crate) fn room(&self) -> usize {
        if self.spoiled { 0 } else { self.ring.entries() - self.owed }
    }

    /// Whether another entry may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Makes registered memory known to the ring.
    pub(crate) fn learn(&mut self, memory: &Arc<Registered>) {
        self.ring.learn(memory);
    }

    /// Whether an entry's memory is registered with the ring.
    pub(crate) fn knows(&self, entry: &Entry) -> bool {
        self.ring.knows(entry)
    }

    /// Pushes an entry; the ring must have room.
    ///
    /// # Safety
    ///
    /// As for [`Ring::push`]. An entry that is taken back ([`Turn::taken_back`]) was not taken by
    /// the kernel and never will be: the ring is spoiled, and a spoiled ring submits no more.
    pub(crate) unsafe fn push(&mut self, entry: Entry, counters: &Counters) {
        // SAFETY: the caller's promise is the ring's requirement.
        let pushed = unsafe { self.ring.push(entry) };
        assert!(pushed, "in flight never exceeds the submission entries");
        self.offered.push_back(entry.user_data);
        self.owed += 1;
        counters.peak(self.tally.in_flight_peak, self.owed as u64);
    }

    /// Offers what was pushed, and gets what is wanted besides. Completions that are there are
    /// added to `completed`.
    pub(crate) fn enter(
        &mut self,
        want: Want,
        completed: &mut Vec<Completed>,
        counters: &Counters,
    ) -> Turn {
        let (mut refusals, mut interruptions) = (0, 0);
        let before = completed.len();
        let mut look = want == Want::Ready && self.owed > 0;
        loop {
            let wait = match want {
                Want::Completions(wait) if completed.len() == before && self.owed > 0 => wait,
                _ => 0,
            };
            if self.offered.is_empty() && wait == 0 && !look {
                return Turn::default();
            }
            match self.enter_once(wait, completed, counters) {
                Ok(progress) => {
                    look = false;
                    if progress {
                        refusals = 0;
                    } else {
                        refusals += 1;
                        thread::yield_now();
                    }
                }
                Err(libc::EINTR) if interruptions < INTERRUPTIONS || self.offered.is_empty() => {
                    interruptions += 1;
                }
                Err(libc::EAGAIN | libc::ENOMEM | libc::EBUSY | libc::EINTR) => {
                    refusals += 1;
                    thread::yield_now();
                }
                Err(errno) if is_denied(errno) => {
                    return self.without_entering(want, before, completed, counters);
                }
                // Of what was offered nothing is known either.
                Err(libc::EOWNERDEAD) => return self.broken(),
                Err(_) => {
                    let taken_back = self.take_back();
                    return Turn { taken_back, broken: true };
                }
            }
            if refusals > YIELDS && self.offered.is_empty() {
                return self.broken();
            }
            if refusals > YIELDS {
                return Turn { taken_back: self.take_back(), broken: false };
            }
        }
    }

    /// One call of the kernel; whether it took, or there came, anything.
    fn enter_once(
        &mut self,
        wait: usize,
        completed: &mut Vec<Completed>,
        counters: &Counters,
    ) -> Result<bool, Errno> {
        let offers = self.offered.len();
        let entered = self.ring.enter(offers > 0, wait);
        let uncalled = How::PollThread { called: false, woken: false };
        let called = !entered.is_ok_and(|took| took.how == uncalled);
        counters.add(self.tally.enters, u64::from(called));
        let came = self.peek(completed, counters);
        let Took { entries, how } = entered?;
        let took = entries.min(offers);
        if let How::PollThread { woken, .. } = how {
            counters.add(Count::SqpollSqes, took as u64);
            counters.add(Count::SqpollWakeups, u64::from(woken));
        }
        counters.peak(self.tally.per_enter_peak, took as u64);
        self.offered.drain(..took);
        // An early return that only waited is a signal's doing: the wait goes on.
        Ok(took > 0 || came > 0 || offers == 0)
    }

    /// Adds all completions that are visible already, without entering the kernel; how many. All,
    /// because what has rung for them does so once.
    pub(crate) fn peek(&mut self, completed: &mut Vec<Completed>, counters: &Counters) -> usize {
        let before = completed.len();
        loop {
            let drained = completed.len();
            self.ring.drain(completed);
            if completed.len() - drained < DRAIN_BATCH {
                break;
            }
        }
        let came = completed.len() - before;
        counters.add(self.tally.cqes, came as u64);
        came
    }

    /// Counts a completion that was matched to an entry in flight.
    pub(crate) fn completed_one(&mut self) {
        self.owed = self.owed.checked_sub(1).expect("matched completions were in flight");
    }

    /// Takes the ring out of use: it submits nothing more.
    pub(crate) fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Whether the ring is out of use.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// A filter lets nobody enter any more. What was offered the kernel has not seen, unless a poll
    /// thread takes it. What an ordinary ring took before is worked off and shows to who looks,
    /// once this thread has made any system call. Two kinds of rings show nothing: one that asks
    /// the device, which is asked by entering, and one whose poll thread sleeps, which only
    /// entering wakes, if need be that of another ring. Those, and what takes a device longer than
    /// all looks, end as broken: nobody knows what becomes of what is in flight. Who wants no
    /// completion does not wait for one here.
    fn without_entering(
        &mut self,
        want: Want,
        before: usize,
        completed: &mut Vec<Completed>,
        counters: &Counters,
    ) -> Turn {
        if !self.offered.is_empty() {
            return Turn { taken_back: self.take_back(), broken: false };
        }
        self.spoiled = true;
        let mut looks = 0;
        while matches!(want, Want::Completions(_)) && completed.len() == before && self.owed > 0 {
            if looks >= if self.ring.must_be_entered() { VAIN_LOOKS } else { LOOKS } {
                return self.broken();
            }
            looks += 1;
            thread::sleep(Duration::from_millis(1));
            self.peek(completed, counters);
        }
        Turn::default()
    }

    /// What was offered, which the kernel has not taken.
    fn take_back(&mut self) -> Vec<u64> {
        self.spoiled = true;
        self.owed -= self.offered.len();
        self.offered.drain(..).collect()
    }

    fn broken(&mut self) -> Turn {
        self.spoiled = true;
        Turn::BROKEN
    }

    /// Forgets what is in flight, whose memory the caller has leaked.
    pub(crate) fn abandon(&mut self) {
        self.owed = 0;
        self.offered.clear();
        self.spoiled = true;
    }

    /// The ring, with nothing in it.
    pub(crate) fn into_ring(self) -> Box<dyn Ring> {
        assert_eq!(self.owed, 0, "a ring is given back empty");
        self.ring
    }
}

/// Whether a system call filter says so: the kernel itself never answers an entering like this.
fn is_denied(errno: Errno) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}
