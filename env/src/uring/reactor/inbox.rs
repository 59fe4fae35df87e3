//! What is handed to the reactor, and the protocol that wakes it.
//!
//! The reactor waits in one place for two kinds of news: things handed over, and completions. Both
//! are told by its bell, which remembers that it was rung. Before it waits it says so under the
//! lock of the queue, having seen there that nothing is queued; whoever queues something finds
//! that word, takes it away and rings. So no item is left behind while the reactor sleeps, and a
//! reactor that is awake is never rung for.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::sync::modelled::Mutex;

/// Wakes one thread, whether it waits already or will.
pub(crate) trait Bell: Debug {
    /// Lets the present wait return, or else the next one.
    fn ring(&self);

    /// Returns once it was rung since the last return. May return though it was not.
    fn wait(&self);
}

/// What the reactor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Something is queued.
    Look,
    /// Wait for the bell.
    Wait,
    /// Nothing is queued, nothing is in flight, and nothing will come.
    Exit,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    /// The reactor waits, or is about to, and must be rung for what is queued now.
    asleep: bool,
    open: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbox<T, B> {
    state: Mutex<State<T>>,
    bell: B,
}

impl<T, B: Bell> Inbox<T, B> {
    pub(crate) fn new(bell: B) -> Self {
        let state = State { queue: VecDeque::new(), asleep: false, open: true };
        Self { state: Mutex::new(state), bell }
    }

    /// What completions are to ring.
    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Queues an item, or gives it back if the inbox is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        self.push_all([item]).pop().map_or(Ok(()), Err)
    }

    /// Queues items, ringing at most once, or gives them back if the inbox is closed.
    pub(crate) fn push_all(&self, items: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut state = self.state.lock();
        if !state.open {
            drop(state);
            return items.into_iter().collect();
        }
        state.queue.extend(items);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.bell.ring();
        }
        Vec::new()
    }

    /// Takes the oldest item. For the reactor, which is awake then.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        state.asleep = false;
        state.queue.pop_front()
    }

    /// Takes the oldest item that is `mine`, so that its owner can do it itself.
    pub(crate) fn take_back(&self, mine: impl Fn(&T) -> bool) -> Option<T> {
        let mut state = self.state.lock();
        let place = state.queue.iter().position(mine)?;
        state.queue.remove(place)
    }

    /// To be asked by the reactor when it has nothing to do: `takes` if it could take more,
    /// `owed` if completions will ring the bell.
    pub(crate) fn arm(&self, takes: bool, owed: bool) -> Next {
        let mut state = self.state.lock();
        if takes && !state.queue.is_empty() {
            return Next::Look;
        }
        if !state.open && state.queue.is_empty() && !owed {
            return Next::Exit;
        }
        // While nothing more can be taken only a completion changes anything.
        state.asleep = takes;
        Next::Wait
    }

    /// Takes nothing more. What is queued stays, and the reactor exits when all is done.
    pub(crate) fn close(&self) {
        self.state.lock().open = false;
        self.bell.ring();
    }

    /// Takes nothing more, and gives up what is queued.
    pub(crate) fn close_and_drain(&self) -> VecDeque<T> {
        let mut state = self.state.lock();
        state.open = false;
        std::mem::take(&mut state.queue)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Counted(AtomicU32);

    impl Bell for Counted {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn wait(&self) {}
    }

    fn inbox() -> Inbox<u32, Counted> {
        Inbox::new(Counted::default())
    }

    fn rings(inbox: &Inbox<u32, Counted>) -> u32 {
        inbox.bell().0.load(Ordering::SeqCst)
    }

    #[test]
    fn the_bell_is_rung_once_for_a_reactor_that_said_it_waits() {
        let inbox = inbox();
        inbox.push(1).unwrap();
        assert_eq!(rings(&inbox), 0, "it is awake and will look");
        assert_eq!(inbox.arm(true, false), Next::Look);
        assert_eq!(inbox.pop(), Some(1));
        assert_eq!(inbox.arm(true, false), Next::Wait);
        inbox.push(2).unwrap();
        inbox.push(3).unwrap();
        assert_eq!(rings(&inbox), 1);
        assert_eq!((inbox.pop(), inbox.pop(), inbox.pop()), (Some(2), Some(3), None));
    }

    #[test]
    fn a_reactor_without_room_is_woken_by_completions_only() {
        let inbox = inbox();
        inbox.push(1).unwrap();
        assert_eq!(inbox.arm(false, true), Next::Wait);
        inbox.push(2).unwrap();
        assert_eq!(rings(&inbox), 0);
    }

    #[test]
    fn a_closed_inbox_is_worked_off_before_the_reactor_exits() {
        let inbox = inbox();
        inbox.push(1).unwrap();
        inbox.close();
        assert_eq!(rings(&inbox), 1);
        assert_eq!(inbox.push(2), Err(2));
        assert_eq!(inbox.arm(true, false), Next::Look);
        assert_eq!(inbox.pop(), Some(1));
        assert_eq!(inbox.arm(true, true), Next::Wait);
        assert_eq!(inbox.arm(true, false), Next::Exit);
    }

    #[test]
    fn an_owner_takes_back_its_own_oldest_item_only() {
        let inbox = inbox();
        for item in [10, 21, 31, 40] {
            inbox.push(item).unwrap();
        }
        assert_eq!(inbox.take_back(|item| item % 10 == 1), Some(21));
        assert_eq!(inbox.take_back(|item| item % 10 == 1), Some(31));
        assert_eq!(inbox.take_back(|item| item % 10 == 1), None);
        assert_eq!(inbox.close_and_drain(), [10, 40]);
        assert_eq!(inbox.push(5), Err(5));
    }
}

/// Every interleaving of the wake-up protocol. A wait that nothing ends is a deadlock, which the
/// model reports.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// An eventfd: a count that a wait takes to zero.
    #[derive(Debug)]
    struct Eventfd {
        count: Mutex<u64>,
        changed: Condvar,
    }

    impl Bell for Eventfd {
        fn ring(&self) {
            *self.count.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.changed.wait(count).unwrap();
            }
            *count = 0;
        }
    }

    fn inbox() -> Arc<Inbox<u32, Eventfd>> {
        let bell = Eventfd { count: Mutex::new(0), changed: Condvar::new() };
        Arc::new(Inbox::new(bell))
    }

    /// The loop of the reactor: everything it was given, in the order of completion.
    fn react(inbox: &Inbox<u32, Eventfd>) -> Vec<u32> {
        let mut done = Vec::new();
        loop {
            while let Some(item) = inbox.pop() {
                done.push(item);
            }
            match inbox.arm(true, false) {
                Next::Look => {}
                Next::Wait => inbox.bell().wait(),
                Next::Exit => return done,
            }
        }
    }

    #[test]
    fn no_item_is_left_behind_by_a_reactor_that_sleeps() {
        loom::model(|| {
            let inbox = inbox();
            let reactor = thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || react(&inbox)
            });
            let other = thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || inbox.push(1).unwrap()
            });
            inbox.push(2).unwrap();
            other.join().unwrap();
            inbox.close();
            let mut done = reactor.join().unwrap();
            done.sort_unstable();
            assert_eq!(done, [1, 2]);
        });
    }

    #[test]
    fn an_item_is_done_by_its_owner_or_by_the_reactor_and_never_by_both() {
        loom::model(|| {
            let inbox = inbox();
            let reactor = thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || react(&inbox)
            });
            inbox.push(1).unwrap();
            let taken_back = inbox.take_back(|item| *item == 1);
            inbox.close();
            let done = reactor.join().unwrap();
            assert_eq!(done.len() + usize::from(taken_back.is_some()), 1);
        });
    }
}
