//! The write queue: who may change the log and the memtables next, and in which order finished
//! groups become visible.
//!
//! Leadership is a baton. The writer that finds the queue without a leader takes it; every other
//! one waits until it is given the baton or its batch was written by a leader. The leader gives
//! the baton on right after its append, so that the next group is appended while the sync of
//! this one is in flight; the [`Turnstile`] then keeps publication in the order of the appends.
//!
//! Invariants:
//! * At most one thread holds the baton.
//! * Every queued request ends: as a member of a group, or with the baton in hand.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::batch::{FamilyId, WriteBatch};
use crate::{Durability, Error, Result};

/// The most batches in a group: bounds the latency of its first member.
const MAX_GROUP_BATCHES: usize = 512;
/// The most bytes in a group, unless its first batch alone is larger.
const MAX_GROUP_BYTES: usize = 1 << 20;

/// A batch on its way into the log.
#[derive(Debug)]
pub(crate) struct Write {
    /// The operations; validated.
    pub(crate) batch: WriteBatch,
    /// The families they touch, each once.
    pub(crate) families: Vec<FamilyId>,
    /// Where the batch must be before it is acknowledged.
    pub(crate) durability: Durability,
}

/// A thread's place in the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// What it wants written; `None` wants the baton for itself.
    write: Option<Write>,
    state: Mutex<Progress>,
    wake: Condvar,
}

#[derive(Debug)]
enum Progress {
    Waiting,
    Leading,
    Done(Result<()>),
}

impl Waiter {
    fn new(write: Option<Write>) -> Arc<Self> {
        let state = Mutex::new(Progress::Waiting);
        Arc::new(Self { write, state, wake: Condvar::new() })
    }

    /// The batch of a member of a group.
    pub(crate) fn write(&self) -> &Write {
        self.write.as_ref().expect("only waiters with a batch become members of a group")
    }

    /// Tells the waiting thread how its batch ended.
    pub(crate) fn finish(&self, result: Result<()>) {
        *self.state.lock() = Progress::Done(result);
        self.wake.notify_one();
    }

    fn lead(&self) {
        *self.state.lock() = Progress::Leading;
        self.wake.notify_one();
    }
}

/// How waiting in the queue ended.
#[derive(Debug)]
pub(crate) enum Joined<'a> {
    /// The caller leads and must see to its own batch too.
    Leading(Baton<'a>, Arc<Waiter>),
    /// A leader wrote the batch, or failed to.
    Done(Result<()>),
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Arc<Waiter>>,
    led: bool,
}

impl WriteQueue {
    /// Queues a batch and waits until it is written or the caller leads.
    pub(crate) fn join(&self, write: Write) -> Joined<'_> {
        self.wait(Waiter::new(Some(write)))
    }

    /// Waits for the baton, to do something that no write may overlap.
    pub(crate) fn baton(&self) -> Baton<'_> {
        match self.wait(Waiter::new(None)) {
            Joined::Leading(baton, _) => baton,
            Joined::Done(_) => unreachable!("a waiter without a batch is never part of a group"),
        }
    }

    fn wait(&self, waiter: Arc<Waiter>) -> Joined<'_> {
        {
            let mut inner = self.inner.lock();
            if !inner.led {
                inner.led = true;
                return Joined::Leading(Baton { queue: self }, waiter);
            }
            inner.waiting.push_back(Arc::clone(&waiter));
        }
        let mut state = waiter.state.lock();
        loop {
            match &*state {
                Progress::Waiting => waiter.wake.wait(&mut state),
                Progress::Leading => {
                    drop(state);
                    return Joined::Leading(Baton { queue: self }, waiter);
                }
                Progress::Done(result) => return Joined::Done(result.clone()),
            }
        }
    }
}

/// The right to append to the log and to switch memtables. Dropping it hands it on.
#[derive(Debug)]
pub(crate) struct Baton<'a> {
    queue: &'a WriteQueue,
}

impl Baton<'_> {
    /// Takes the batches that go into one record with those of `group`, oldest first.
    pub(crate) fn fill(&self, group: &mut Group) {
        let group = &mut group.members;
        let mut bytes = group.iter().map(|member| member.write().batch.size_in_bytes()).sum();
        let mut inner = self.queue.inner.lock();
        while group.len() < MAX_GROUP_BATCHES
            && let Some(next) = inner.waiting.front()
            && let Some(write) = &next.write
        {
            bytes = usize::saturating_add(bytes, write.batch.size_in_bytes());
            if bytes > MAX_GROUP_BYTES {
                break;
            }
            group.extend(inner.waiting.pop_front());
        }
    }
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.inner.lock();
        match inner.waiting.pop_front() {
            Some(next) => next.lead(),
            None => inner.led = false,
        }
    }
}

/// Lets groups through in the order of their appends.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    turns: Mutex<Turns>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    /// Tickets given out.
    issued: u64,
    /// Tickets done with: the next one to pass has this number.
    passed: u64,
}

impl Turnstile {
    /// The next ticket; only while holding the baton, so that tickets are in log order.
    pub(crate) fn ticket(&self) -> Ticket<'_> {
        let mut turns = self.turns.lock();
        let number = turns.issued;
        turns.issued += 1;
        Ticket { turnstile: self, number }
    }

    /// Waits until at most `count` groups are between append and publication. The caller holds
    /// the baton, or more may follow at once.
    pub(crate) fn wait_for_at_most(&self, count: u64) {
        let mut turns = self.turns.lock();
        while turns.issued - turns.passed > count {
            self.moved.wait(&mut turns);
        }
    }
}

/// A group's place in the order of publication. Dropping it, on any way out, lets the next pass.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    turnstile: &'a Turnstile,
    number: u64,
}

impl Ticket<'_> {
    /// Waits until every earlier group has passed.
    pub(crate) fn wait(&self) {
        let mut turns = self.turnstile.turns.lock();
        while turns.passed != self.number {
            self.turnstile.moved.wait(&mut turns);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.wait();
        self.turnstile.turns.lock().passed += 1;
        self.turnstile.moved.notify_all();
    }
}

/// Fails the members of a group that have not been finished, on whatever way the leader leaves.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<Arc<Waiter>>,
}

impl Group {
    /// A group of `members`, the leader first.
    pub(crate) fn new(members: Vec<Arc<Waiter>>) -> Self {
        Self { members }
    }

    /// The members, in the order of their batches.
    pub(crate) fn members(&self) -> &[Arc<Waiter>] {
        &self.members
    }

    /// Ends the members that `refuse` has an error for, and takes them out of the group.
    pub(crate) fn refuse(&mut self, refuse: impl Fn(&Write) -> Option<Error>) {
        self.members.retain(|member| match refuse(member.write()) {
            Some(error) => {
                member.finish(Err(error));
                false
            }
            None => true,
        });
    }

    /// Ends all members with `result`.
    pub(crate) fn finish(&mut self, result: &Result<()>) {
        for member in self.members.drain(..) {
            member.finish(result.clone());
        }
    }
}

/// How a leader's own batch ended, after its group was finished.
pub(crate) fn outcome(leader: &Waiter) -> Result<()> {
    match &*leader.state.lock() {
        Progress::Done(result) => result.clone(),
        Progress::Waiting | Progress::Leading => {
            unreachable!("a leader finishes every member of its group, itself included")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn write(size: usize) -> Write {
        let mut batch = WriteBatch::new();
        batch.put("k", vec![0; size]);
        Write { batch, families: vec![0], durability: Durability::Flushed }
    }

    fn queued(queue: &WriteQueue, count: usize) {
        while queue.inner.lock().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn writers_behind_a_leader_form_one_group_and_all_get_its_result() {
        let queue = WriteQueue::default();
        let baton = queue.baton();
        std::thread::scope(|scope| {
            let joins: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| match queue.join(write(1)) {
                        Joined::Leading(baton, me) => {
                            let mut group = Group::new(vec![Arc::clone(&me)]);
                            baton.fill(&mut group);
                            assert_eq!(group.members().len(), 4);
                            group.finish(&Err(Error::Closed));
                            outcome(&me)
                        }
                        Joined::Done(result) => result,
                    })
                })
                .collect();
            queued(&queue, 4);
            drop(baton);
            for join in joins {
                assert!(matches!(join.join().unwrap(), Err(Error::Closed)));
            }
        });
        assert!(!queue.inner.lock().led);
    }

    #[test]
    fn a_group_ends_before_a_barrier_and_before_it_grows_too_large() {
        let queue = WriteQueue::default();
        let baton = queue.baton();
        {
            let mut inner = queue.inner.lock();
            inner.waiting.push_back(Waiter::new(Some(write(10))));
            inner.waiting.push_back(Waiter::new(Some(write(MAX_GROUP_BYTES))));
            inner.waiting.push_back(Waiter::new(None));
            inner.waiting.push_back(Waiter::new(Some(write(10))));
        }
        let mut sizes = Vec::new();
        for leader in [write(10), write(10), write(MAX_GROUP_BYTES * 2)] {
            let mut group = Group::new(vec![Waiter::new(Some(leader))]);
            baton.fill(&mut group);
            sizes.push(group.members().len());
            if sizes.len() == 1 {
                queue.inner.lock().waiting.pop_front();
            }
        }
        assert_eq!(sizes, [2, 1, 1]);
    }

    #[test]
    fn tickets_pass_in_their_order_whatever_the_threads_do() {
        let turnstile = Turnstile::default();
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for expected in 0..8 {
                let ticket = turnstile.ticket();
                let passed = &passed;
                scope.spawn(move || {
                    if expected % 3 == 0 {
                        std::thread::yield_now();
                    }
                    ticket.wait();
                    assert_eq!(passed.fetch_add(1, Ordering::SeqCst), expected);
                });
            }
        });
        turnstile.wait_for_at_most(0);
    }
}
