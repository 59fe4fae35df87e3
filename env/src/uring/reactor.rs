//! The reactor: a thread of the environment with a ring of its own, to which the writers of tables
//! hand full buffers. It keeps several writes of a file in the kernel at once, while their owner
//! goes on filling the next buffer.
//!
//! A write that was handed over belongs to the reactor until it has completed whole, or has come
//! back to its owner, who then writes it with a plain call: after a short write, a cancelled or
//! otherwise passing failure, a refusal of the kernel. That is safe because every write has a fixed
//! offset and no younger write touches its range. The reactor never syncs: owners flush to the
//! medium on their own thread, when everything they put is known to be in.
//!
//! Queues of direct reads that find no free ring hand their reads over as well, and so do files
//! that are read ahead: see [`errand`]. Tasks go to the ring in the order in which they were handed
//! over, whatever they are, and the parts of a long read take turns with what came after it, so
//! that neither kind keeps the other out.
//!
//! Invariants:
//! * Nothing that the kernel may still use is freed: see [`machine`].
//! * No owner waits for what nobody has: see [`stream`].
//! * Nothing is left queued while the thread sleeps: see [`inbox`].
//! * A process that did not start the thread touches nothing of it but what never changes.

use std::panic::{self, AssertUnwindSafe};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::breaker::Breaker;
use super::kernel::SetupError;
use super::ring::Ring;
use crate::counters::Count;
use crate::os_file::Os;
use crate::process::Process;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering};
use crate::trace;

use errand::Task;
use handover::Rests;
use inbox::{Bell, Inbox, Next};
use machine::Machine;
use stream::{Block, Budget, Stream};

pub(crate) use bell::EventBell;
pub(crate) use errand::{Errand, Home, Mailbox};
#[cfg(test)]
pub(crate) use handover::HANDED;
pub(crate) use handover::{Handover, Manner, PER_TABLE, SHORTEST};

mod bell;
mod errand;
mod handover;
mod inbox;
mod machine;
mod signals;
mod stream;
#[cfg(test)]
mod tests;

/// The thread's name, which the kernel cuts off after 15 bytes.
pub(crate) const THREAD_NAME: &str = "treering-react";

/// Makes a ring for the reactor, on its thread.
pub(crate) type MakeRing = dyn FnMut() -> Result<Box<dyn Ring>, SetupError> + Send;

/// How far the thread has come.
#[derive(Debug, Default)]
struct Life {
    /// It serves, as far as anybody knows.
    alive: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// The handle that all files of an environment share. Dropping the last one ends the thread, when
/// everything in flight has completed.
#[derive(Debug)]
pub(crate) struct Reactor {
    inbox: Arc<Inbox<Task, EventBell>>,
    os: Arc<Os>,
    breaker: Breaker,
    budget: Arc<Budget>,
    life: Arc<Life>,
    thread: Mutex<Option<JoinHandle<()>>>,
    owner: Process,
    gave_up: Arc<AtomicBool>,
    rests: Rests,
}

/// Why there is no reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReactor {
    /// Its ring could not be made.
    Ring(SetupError),
    /// Its thread could not be made.
    Thread(i32),
}

impl Reactor {
    /// Starts the thread, which makes its ring with `make` for a bell; returns when that worked or
    /// failed.
    pub(crate) fn start<M, R>(
        os: &Arc<Os>,
        breaker: &Breaker,
        budget: usize,
        make: M,
    ) -> Result<Arc<Self>, NoReactor>
    where
        M: Fn(&EventBell) -> Result<R, SetupError> + Send + 'static,
        R: Ring + 'static,
    {
        let reactor = Self::without_thread(os, breaker, budget)?;
        let inbox = Arc::clone(&reactor.inbox);
        let life = Arc::clone(&reactor.life);
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (os, breaker) = (Arc::clone(os), breaker.clone());
        let serve = move || {
            let _end = End { inbox: &inbox, life: &life };
            signals::block_all();
            let for_ring = Arc::clone(&inbox);
            let make = move || Ok(Box::new(make(for_ring.bell())?) as Box<dyn Ring>);
            match Machine::new(&os, &breaker, Box::new(make)) {
                Ok(machine) => {
                    life.alive.store(true, Ordering::Release);
                    // The starter waits for this word, so it is there.
                    let _ = tell.send(Ok(()));
                    drop(tell);
                    run(machine, &os, &inbox, &life)
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    None
                }
            }
        };
        let body = move || tell_of_the_end(serve);
        let spawned = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(body);
        let thread =
            spawned.map_err(|e| NoReactor::Thread(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        // No word at all: it panicked while it made the ring.
        let started = told.recv().unwrap_or(Err(SetupError::Setup(libc::EIO)));
        *reactor.thread.lock() = Some(thread);
        started.map_err(NoReactor::Ring)?;
        Ok(Arc::new(reactor))
    }

    /// A reactor that takes nothing yet.
    fn without_thread(os: &Arc<Os>, breaker: &Breaker, budget: usize) -> Result<Self, NoReactor> {
        let bell = EventBell::new().map_err(|errno| NoReactor::Ring(SetupError::Bell(errno)))?;
        Ok(Self {
            inbox: Arc::new(Inbox::new(bell)),
            os: Arc::clone(os),
            breaker: breaker.clone(),
            budget: Budget::new(budget),
            life: Arc::default(),
            thread: Mutex::new(None),
            owner: Process::current(),
            gave_up: Arc::default(),
            rests: Rests::default(),
        })
    }

    /// Whether this process started the thread.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner.is_current()
    }

    /// Whether the thread is there and serves.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.alive.load(Ordering::Acquire)
    }

    /// Whether blocks should be handed over now.
    pub(crate) fn takes(&self) -> bool {
        self.is_alive() && !self.breaker.is_open() && self.is_ours()
    }

    /// Whether a shutdown ran out of time, with writes in the kernel that may never end.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Acquire)
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// What handed-over buffers may take together.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Hands a block over, or gives it back if nothing is taken any more.
    fn push(&self, block: Block) -> Result<(), Block> {
        self.os.counters.peak(Count::ReactorBytesPeak, self.budget.used() as u64);
        self.inbox.push(Task::Write(block)).map_err(|task| match task {
            Task::Write(block) => block,
            Task::Read(_) => unreachable!("what is refused is what was given"),
        })
    }

    /// Hands reads over; they come back through their mailbox, at once if nothing is taken any
    /// more.
    pub(crate) fn read(&self, errands: Vec<Errand>) {
        let refused = self.inbox.push_all(errands.into_iter().map(Task::Read));
        refused.into_iter().for_each(Task::give_back);
    }

    /// The oldest block of a file that is still queued.
    fn take_back(&self, stream: &Arc<Stream>) -> Option<Block> {
        match self.inbox.take_back(|task| task.is_block_of(stream))? {
            Task::Write(block) => Some(block),
            Task::Read(_) => unreachable!("a read is no block"),
        }
    }

    /// Lets the thread look at its ring.
    #[cfg(test)]
    pub(crate) fn nudge(&self) {
        self.inbox.bell().ring();
    }

    /// Takes nothing more, works off what was handed over, and ends the thread. False if that took
    /// longer than `patience`: the thread then keeps what is in the kernel, for ever if need be.
    pub(crate) fn shut_down(&self, patience: Duration) -> bool {
        if !self.is_ours() {
            return true;
        }
        self.life.alive.store(false, Ordering::Release);
        self.inbox.close();
        let deadline = Instant::now().checked_add(patience);
        let mut ended = self.life.ended.lock();
        while !*ended && self.thread.lock().is_some() {
            let Some(deadline) = deadline else {
                self.life.changed.wait(&mut ended);
                continue;
            };
            if self.life.changed.wait_until(&mut ended, deadline).timed_out() && !*ended {
                self.gave_up.store(true, Ordering::Release);
                return false;
            }
        }
        drop(ended);
        let thread = self.thread.lock().take();
        // A panic of the thread was told to every owner that it concerns.
        drop(thread.map(JoinHandle::join));
        true
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if !self.is_ours() || self.gave_up() {
            // The thread is not here, or may never end.
            std::mem::forget(self.thread.lock().take());
            return;
        }
        // Files hold this handle and wait for their own blocks, queues for their reads. What may
        // still be in flight are hints, early flushes of files that were dropped, and reads of
        // queues that were forgotten, and all of these end by themselves.
        self.shut_down(Duration::MAX);
    }
}

/// Does all that the thread does, and tells why it ended, if nobody asked for it.
fn tell_of_the_end(serve: impl FnOnce() -> Option<&'static str>) {
    let ended = panic::catch_unwind(AssertUnwindSafe(serve));
    // Last of all: whoever is told may take long, or panic.
    if let Some(cause) = ended.unwrap_or(Some("it panicked")) {
        trace::reactor_ended(cause);
    }
}

/// The loop of the thread; why it ends, if nobody asked for it.
fn run(
    mut machine: Machine,
    os: &Arc<Os>,
    inbox: &Inbox<Task, EventBell>,
    life: &Arc<Life>,
) -> Option<&'static str> {
    // Before `machine` goes, so that owners that are told of lost blocks know that no more are
    // taken. It goes first because it was made last.
    let _end = End { inbox, life };
    loop {
        machine.turn(inbox);
        if machine.is_off() {
            life.alive.store(false, Ordering::Release);
            // These were never in a ring, so their owners may write them.
            inbox.close_and_drain().into_iter().for_each(Task::give_back);
            return Some("it lost its ring, and another cannot be made");
        }
        if machine.can_go_on() {
            continue;
        }
        match inbox.arm(machine.has_room(), machine.in_flight() > 0) {
            Next::Look => {}
            Next::Wait => {
                inbox.bell().wait();
                os.counters.bump(Count::ReactorWakeups);
            }
            Next::Exit => return None,
        }
    }
}

/// Tells of the thread's end, on every way out.
struct End<'a> {
    inbox: &'a Inbox<Task, EventBell>,
    life: &'a Life,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.life.alive.store(false, Ordering::Release);
        // Blocks that are still queued settle as lost, reads come back.
        drop(self.inbox.close_and_drain());
        *self.life.ended.lock() = true;
        self.life.changed.notify_all();
    }
}
