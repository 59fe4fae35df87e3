//! Who does the work that writes make necessary.
//!
//! With background threads: one flushes, one prepares the log and removes files, the others
//! compact; so a flush never queues behind a compaction. A thread that finds nothing to do waits
//! for the state to change; after a failure it waits longer each time.
//!
//! With none: the call that makes work necessary does it, on its own thread, when it holds
//! nothing. One thread at a time runs it, so a database used by one thread is deterministic. The
//! one other thing that does some of it is the end of an iterator, which removes the tables that
//! it was the last to read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use treering_env as env;

use super::Shared;
use super::compact::PickedJob;
use super::state::{Jobs, State};
use crate::batch::FamilyId;
use crate::filename::FileName;
use crate::{Error, Result};

/// How long a thread sleeps at once while it backs off: bounds how late it sees a close.
const NAP: Duration = Duration::from_millis(20);

/// Whether a failed job is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not before its time: what a write does on its way.
    BackOff,
    /// Tried again now: somebody asked for it or cannot go on without it.
    None,
}

/// What a background thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Flush,
    Compact,
    Log,
}

impl Duty {
    /// What there is to do now; a compaction is picked by that. The log thread has its bell.
    fn work_in(self, state: &mut State) -> Option<Work> {
        match self {
            Self::Flush => state.next_to_flush().map(|_| Work::Flush),
            Self::Compact => state.pick_compaction().map(Work::Compact),
            Self::Log => None,
        }
    }
}

/// What a background thread has to do now.
enum Work {
    Flush,
    Compact(PickedJob),
}

/// Calls one thread to work. A ring is never lost: one before the wait ends it at once. Its lock
/// is the last of all, so that it may be rung with any other held.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    /// A bell that was rung once.
    pub(crate) fn rung() -> Self {
        Self { rung: Mutex::new(true), heard: Condvar::new() }
    }

    /// Ends the wait that runs, or else the next one.
    pub(crate) fn ring(&self) {
        let mut rung = self.rung.lock();
        if !*rung {
            *rung = true;
            self.heard.notify_one();
        }
    }

    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            self.heard.wait(&mut rung);
        }
        *rung = false;
    }
}

impl Shared {
    /// Whether there are no background threads.
    pub(crate) fn inline(&self) -> bool {
        self.options.background_threads == 0
    }

    /// Starts the background threads. If one cannot be started the others are ended again.
    pub(crate) fn start_threads(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        if self.inline() {
            return Ok(threads);
        }
        let compactions = (0..self.options.background_threads).map(|_| Duty::Compact);
        for duty in [Duty::Flush, Duty::Log].into_iter().chain(compactions) {
            let shared = Arc::clone(self);
            let name = format!("treering-{duty:?}").to_lowercase();
            let builder = std::thread::Builder::new().name(name);
            match builder.spawn(move || shared.serve(duty)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.stop_threads(threads);
                    let error = env::Error::from_io(&error, "start a thread", &self.dir);
                    return Err(Error::Io(error));
                }
            }
        }
        Ok(threads)
    }

    /// Ends the background threads and waits for them.
    pub(crate) fn stop_threads(&self, threads: Vec<JoinHandle<()>>) {
        self.closing.store(true, Ordering::SeqCst);
        // Rings the bell too.
        self.wake_all();
        for thread in threads {
            // A thread that panicked has poisoned the database; there is nothing to add.
            let _panicked = thread.join();
        }
    }

    /// Wakes every thread that waits for the state to change.
    pub(crate) fn wake_all(&self) {
        // Under the lock, or a thread between its check and its wait would miss it.
        let _state = self.state.lock();
        self.changed.notify_all();
        self.log_bell.ring();
    }

    /// Lets the log thread look whether there is something to prepare or to remove.
    pub(crate) fn wake_log_thread(&self) {
        self.log_bell.ring();
    }

    /// A reader is gone, which may have been the last one of an obsolete table.
    pub(crate) fn after_reader(&self) {
        if !self.inline() || self.obsolete.is_empty() {
            return;
        }
        // Whoever has the turn removes files before it ends, or the next write does.
        let Some(_turn) = self.inline_turn.try_lock() else { return };
        // With the turn in hand, which a close takes once it has said that it closes: after that
        // the directory may be somebody else's.
        if !self.closing.load(Ordering::SeqCst) {
            self.remove_obsolete();
        }
    }

    fn serve(&self, duty: Duty) {
        let guard = PanicGuard::of_thread(self);
        if duty == Duty::Log {
            self.serve_log();
        } else {
            self.serve_jobs(duty);
        }
        guard.disarm();
    }

    /// What the log thread does. It has a bell of its own: whoever drops the last reference to a
    /// table may hold any lock, and a write that finds little space prepared ahead takes none.
    fn serve_log(&self) {
        loop {
            self.log_bell.wait();
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            while self.check_poison().is_ok() && (self.prepare_log() || self.remove_obsolete()) {}
        }
    }

    fn serve_jobs(&self, duty: Duty) {
        while let Some(work) = self.wait_for_work(duty) {
            let result = match work {
                Work::Flush => self.flush_one().map(|_| ()),
                Work::Compact(job) => self.run_compaction(job).map(|_| ()),
            };
            if result.is_err() {
                self.back_off(duty);
            }
        }
    }

    /// Waits until there is work for a thread, and picks it if that is a compaction; `None` when
    /// the thread must end.
    fn wait_for_work(&self, duty: Duty) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if self.closing.load(Ordering::SeqCst) {
                return None;
            }
            if self.check_poison().is_ok()
                && let Some(work) = duty.work_in(&mut state)
            {
                return Some(work);
            }
            self.changed.wait(&mut state);
        }
    }

    fn back_off(&self, duty: Duty) {
        let jobs = |state: &State| match duty {
            Duty::Flush => state.flush.wait_left(self.clock.now()),
            Duty::Compact | Duty::Log => state.compaction.wait_left(self.clock.now()),
        };
        let mut left = jobs(&self.state.lock()).unwrap_or_default();
        // Counted down here, not by the clock: one that stands still must not keep us for ever.
        while left > Duration::ZERO && !self.closing.load(Ordering::SeqCst) {
            let nap = left.min(NAP);
            self.clock.sleep(nap);
            left -= nap;
        }
    }

    /// After a write without background threads: whatever it made necessary.
    pub(crate) fn run_due_if_any(&self) {
        let view = self.view.load();
        let full = view.families().iter().any(|family| family.is_full());
        let due = full
            || self.work_is_left.load(Ordering::Relaxed)
            || !self.obsolete.is_empty()
            || self.log.lock().wants_attention()
            || self.pins_old_log().is_some();
        drop(view);
        if due {
            self.run_due(Patience::BackOff);
        }
    }

    /// Without background threads: does all work that is due, until no trigger holds. Failures
    /// are kept in the state, for whoever depends on the job.
    pub(crate) fn run_due(&self, patience: Patience) {
        debug_assert!(self.inline(), "with threads, they do the work");
        let _one_at_a_time = self.inline_turn.lock();
        let (mut flush, mut compact) = (true, true);
        let may_start =
            |jobs: &Jobs| patience == Patience::None || jobs.wait_left(self.clock.now()).is_none();
        while self.check_writable().is_ok() {
            self.freeze_full();
            {
                let state = self.state.lock();
                flush = flush && may_start(&state.flush);
                compact = compact && may_start(&state.compaction);
            }
            if flush {
                match self.flush_one() {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(_) => flush = false,
                }
            }
            if compact {
                match self.compact_one() {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(_) => compact = false,
                }
            }
            if !self.prepare_log() && !self.remove_obsolete() {
                break;
            }
        }
        // What was given up is looked at again by the next write.
        self.work_is_left.store(!flush || !compact, Ordering::Relaxed);
    }

    fn freeze_full(&self) {
        let due = |shared: &Self| -> Vec<FamilyId> {
            let view = shared.view.load();
            let full = view.families().iter().filter(|family| family.is_full());
            full.map(|family| family.id).chain(shared.pins_old_log()).collect()
        };
        if due(self).is_empty() {
            return;
        }
        let baton = self.queue.baton();
        self.turnstile.wait_for_at_most(0);
        let due = due(self);
        let mut state = self.state.lock();
        for family in due {
            if !state.has_no_room(family) {
                self.freeze(&baton, &mut state, family);
            }
        }
    }

    /// Removes files that nobody needs; whether there were any. A file that cannot be removed is
    /// a left-over for the next open, never an error.
    pub(crate) fn remove_obsolete(&self) -> bool {
        // While the manifest's state is unknown, nothing may go.
        if self.check_poison().is_err() {
            return false;
        }
        let mut names = std::mem::take(&mut self.state.lock().obsolete_logs);
        names.extend(self.obsolete.take());
        for name in &names {
            self.remove_unnamed(*name);
        }
        !names.is_empty()
    }

    /// Removes a file that the durable manifest does not name.
    pub(crate) fn remove_unnamed(&self, name: FileName) {
        if let FileName::Table(number) = name {
            self.tables.evict(number);
        }
        match self.env.remove(&name.path(&self.dir)) {
            Ok(()) => self.stats.removed_files.add(1),
            Err(_leftover) => self.stats.failed_removals.add(1),
        }
    }
}

/// Poisons the database if whoever holds it panics, and counts the job as ended: nobody may wait
/// for its work then.
pub(crate) struct PanicGuard<'a> {
    shared: &'a Shared,
    what: &'static str,
    job: Option<fn(&mut State) -> &mut Jobs>,
}

impl<'a> PanicGuard<'a> {
    /// For a call that changes the log or the manifest on its caller's thread. To be made before
    /// any lock is taken, so that none is held when it acts.
    pub(crate) fn of_call(shared: &'a Shared) -> Self {
        Self { shared, what: "a call that changed the log or the manifest panicked", job: None }
    }

    fn of_thread(shared: &'a Shared) -> Self {
        Self { shared, what: "a background thread panicked", job: None }
    }

    /// For a job of the kind that `job` finds, which is counted as running.
    pub(crate) fn of_job(shared: &'a Shared, job: fn(&mut State) -> &mut Jobs) -> Self {
        Self { shared, what: "a flush or compaction panicked", job: Some(job) }
    }

    /// The work came to its end, good or bad.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if let Some(job) = self.job {
            job(&mut self.shared.state.lock()).running -= 1;
        }
        let error = env::Error::new(env::ErrorKind::Other, "run", &self.shared.dir, self.what);
        self.shared.poison(Error::Io(error));
    }
}
