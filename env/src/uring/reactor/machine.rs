//! What the reactor does, step by step, apart from the thread that does it.
//!
//! One turn takes what is queued as far as the ring has room, enters the kernel once for all of
//! it, and settles what has completed. It never waits: not for a device, and not for an owner. A
//! block that did not go through whole goes back to its owner, who writes it with a plain call.
//!
//! Invariants:
//! * The memory of a block in flight belongs to `jobs` and is touched by nobody. A machine that
//!   goes away with blocks in flight leaks their memory, unwinding included.
//! * All completions of a turn are out of flight before the first is judged.

use std::os::fd::AsRawFd;

use super::inbox::{Bell, Inbox};
use super::stream::{Block, EarlySync, Sequel, Stream};
use super::{MakeRing, SetupError};
use crate::counters::Count;
use crate::os_file::Os;
use crate::sync::Arc;
use crate::uring::breaker::Breaker;
use crate::uring::flight::{Flight, Tally, Turn, Want};
use crate::uring::ring::{Completed, Entry, Work};
use crate::uring::slots::Slots;
use crate::uring::verdict::{Written, judge_write, never_ran, retried, strains_the_breaker};
use crate::{Error, ErrorKind};

/// What the reactor counts in.
const TALLY: Tally = Tally {
    enters: Count::ReactorEnters,
    cqes: Count::ReactorCqes,
    per_enter_peak: Count::ReactorSqesPerEnterPeak,
    in_flight_peak: Count::ReactorInFlightPeak,
};

/// The longest range of one hint.
const HINT_LEN: u64 = 1 << 30;

/// What an entry in the ring is.
#[derive(Debug)]
enum Job {
    Write(Block),
    /// A hint for a range of the file, which is kept open for it.
    StartWriteBack {
        _file: Arc<Stream>,
    },
    Sync(EarlySync),
}

/// See the module.
pub(crate) struct Machine {
    os: Arc<Os>,
    breaker: Breaker,
    make: Box<MakeRing>,
    /// `None` when there is no ring any more, and none could be made.
    flight: Option<Flight>,
    jobs: Slots<Job>,
    completed: Vec<Completed>,
    /// Jobs that left the ring, with their results, until they are judged.
    answered: Vec<(Job, i32)>,
    /// Called before each judgement.
    #[cfg(test)]
    pub(super) before_judging: Option<Box<dyn FnMut() + Send>>,
}

impl Machine {
    /// Makes its first ring.
    pub(crate) fn new(
        os: &Arc<Os>,
        breaker: &Breaker,
        mut make: Box<MakeRing>,
    ) -> Result<Self, SetupError> {
        let ring = make()?;
        Ok(Self {
            os: Arc::clone(os),
            breaker: breaker.clone(),
            make,
            flight: Some(Flight::new(ring, TALLY)),
            jobs: Slots::default(),
            completed: Vec::new(),
            answered: Vec::new(),
            #[cfg(test)]
            before_judging: None,
        })
    }

    /// Whether another block could be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.flight.as_ref().is_some_and(Flight::has_room)
    }

    /// Entries in the ring.
    pub(crate) fn in_flight(&self) -> usize {
        self.flight.as_ref().map_or(0, Flight::in_flight)
    }

    /// Whether entries wait to be given to the kernel; never between two turns.
    pub(crate) fn has_offers(&self) -> bool {
        self.flight.as_ref().is_some_and(Flight::has_offers)
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_off(&self) -> bool {
        self.flight.is_none()
    }

    /// One turn.
    pub(crate) fn turn<B: Bell>(&mut self, inbox: &Inbox<Block, B>) {
        while self.has_room()
            && let Some(block) = inbox.pop()
        {
            self.push_block(block);
        }
        self.enter(Want::Ready);
        // Hints that the completions gave rise to: none may be left here while the thread waits for
        // what the kernel owes it.
        while self.has_offers() {
            self.enter(Want::Nothing);
        }
        self.replace_spent();
    }

    fn enter(&mut self, want: Want) {
        let Some(flight) = &mut self.flight else { return };
        let mut completed = std::mem::take(&mut self.completed);
        let turn = flight.enter(want, &mut completed, &self.os.counters);
        self.judge_all(&mut completed);
        self.completed = completed;
        match turn {
            Turn::Done => {}
            Turn::TakenBack(keys) => keys.into_iter().for_each(|key| self.take_back(key)),
            Turn::Broken => self.abandon(),
        }
    }

    fn push_block(&mut self, block: Block) {
        let fd = block.stream().file().fd().as_raw_fd();
        let (start, offset) = (block.data().as_ptr().cast_mut(), block.at());
        let len = u32::try_from(block.len()).expect("a block is at most a few megabytes");
        let direct = block.stream().file().direct().is_some();
        let user_data = self.jobs.insert(Job::Write(block));
        let entry = Entry { work: Work::Write, fd, start, len, offset, user_data };
        if direct && self.os.wants_fixed() && !self.knows(&entry) {
            self.os.counters.bump(Count::FixedRefused);
        }
        self.push(entry);
        self.os.counters.bump(Count::ReactorWrites);
    }

    /// Starts write-back of a finished range: a hint. The ring has room.
    fn push_hint(&mut self, stream: Arc<Stream>, (offset, len): (u64, u64)) {
        let fd = stream.file().fd().as_raw_fd();
        let len = u32::try_from(len.min(HINT_LEN)).expect("limited to 1 GiB");
        let user_data = self.jobs.insert(Job::StartWriteBack { _file: stream });
        let start = std::ptr::null_mut();
        self.push(Entry { work: Work::StartWriteBack, fd, start, len, offset, user_data });
        self.os.counters.bump(Count::RangeFlushes);
        self.os.counters.bump(Count::ReactorRangeFlushes);
    }

    fn knows(&self, entry: &Entry) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.knows(entry))
    }

    /// Begins a flush to the medium. The ring has room.
    fn push_sync(&mut self, sync: EarlySync) {
        let fd = sync.file().fd().as_raw_fd();
        let user_data = self.jobs.insert(Job::Sync(sync));
        let start = std::ptr::null_mut();
        self.push(Entry { work: Work::Sync, fd, start, len: 0, offset: 0, user_data });
        self.os.counters.bump(Count::EarlySyncs);
    }

    fn push(&mut self, entry: Entry) {
        self.os.counters.add(Count::FixedUsed, u64::from(self.knows(&entry)));
        let flight = self.flight.as_mut().expect("there was room");
        // SAFETY: an entry names no memory, or that of a block which is in `self.jobs` under the
        // entry's tag. Nobody changes it there, and it leaves only when its completion was drained,
        // or was taken back unseen by the kernel; `abandon` and `drop`, the ways out without
        // a completion, leak it. The address is on the heap, however the block moves.
        unsafe { flight.push(entry, &self.os.counters) }
    }

    /// Acts upon completions that were collected before.
    fn judge_all(&mut self, completed: &mut Vec<Completed>) {
        for done in completed.drain(..) {
            let flight = self.flight.as_mut().expect("completions come from a ring");
            if let Some(job) = self.jobs.remove(done.user_data) {
                flight.completed_one();
                self.answered.push((job, done.result));
            } else {
                self.os.counters.bump(Count::RingStale);
                flight.spoil();
            }
        }
        // One at a time: what an unwinding leaves here settles as lost.
        while let Some((job, result)) = self.answered.pop() {
            #[cfg(test)]
            if let Some(hook) = &mut self.before_judging {
                hook();
            }
            match job {
                Job::Write(block) => self.judge(block, result),
                Job::StartWriteBack { .. } if result < 0 => {
                    self.os.counters.bump(Count::RangeFlushFailed);
                }
                Job::StartWriteBack { .. } => {}
                Job::Sync(sync) => self.judge_sync(sync, result),
            }
        }
    }

    /// A flush that was cancelled did nothing, and the one at the end of the file does all of it. Any
    /// other failure was told to this flush alone, and must be the file's.
    fn judge_sync(&mut self, sync: EarlySync, result: i32) {
        let errno = result.saturating_neg();
        if errno <= 0 {
            self.breaker.good();
            return sync.ended();
        }
        if !never_ran(errno) {
            let error = Error::from_errno(errno, "sync", sync.file().path());
            return sync.failed(error);
        }
        self.os.counters.bump(Count::EarlySyncsSkipped);
        self.fault();
        sync.ended();
    }

    fn judge(&mut self, block: Block, result: i32) {
        let counters = &self.os.counters;
        match judge_write(block.len(), result) {
            Written::Done => {
                self.breaker.good();
                let stream = Arc::clone(block.stream());
                let room = self.flight.as_ref().map_or(0, Flight::room);
                let Sequel { write_back, early_sync } = block.done(room);
                if let Some(range) = write_back {
                    self.push_hint(stream, range);
                }
                if let Some(sync) = early_sync {
                    self.push_sync(sync);
                }
            }
            Written::Partly(took) => {
                self.breaker.good();
                counters.bump(Count::ShortWrites);
                block.give_back(took, false);
            }
            Written::Passing(errno) => {
                counters.bump(retried(errno));
                if strains_the_breaker(errno) {
                    self.fault();
                }
                block.give_back(0, matches!(errno, libc::EINVAL | libc::EOPNOTSUPP));
            }
            Written::Failed(errno) => {
                let error = Error::from_errno(errno, "append", block.stream().file().path());
                let at = block.at();
                block.failed(error.at(at));
            }
            Written::Overlong => {
                let file = block.stream().file();
                let message = format!("the ring claims {result} of {} bytes", block.len());
                let error = Error::new(ErrorKind::Other, "append", file.path(), message);
                let at = block.at();
                block.failed(error.at(at));
                if let Some(flight) = &mut self.flight {
                    flight.spoil();
                }
            }
        }
    }

    fn fault(&self) {
        if self.breaker.fault() {
            self.os.counters.bump(Count::BreakerOpened);
        }
    }

    /// An entry that the kernel refused to take and has never seen.
    fn take_back(&mut self, key: u64) {
        match self.jobs.remove(key).expect("offered entries have jobs") {
            Job::Write(block) => {
                self.fault();
                block.give_back(0, false);
            }
            Job::StartWriteBack { .. } => self.os.counters.bump(Count::RangeFlushFailed),
            Job::Sync(sync) => {
                self.os.counters.bump(Count::EarlySyncsSkipped);
                sync.ended();
            }
        }
    }

    /// Gives up a ring that owes answers.
    fn abandon(&mut self) {
        self.leak_jobs();
        if let Some(flight) = &mut self.flight {
            flight.abandon();
        }
    }

    /// What is in flight has no answer: its memory is leaked and its owners are told.
    fn leak_jobs(&mut self) {
        for key in self.jobs.keys() {
            if let Some(Job::Write(block)) = self.jobs.remove(key) {
                block.leak();
            }
        }
    }

    /// Puts another ring in the place of one that is out of use and empty; if there is none to be
    /// had the machine is off.
    fn replace_spent(&mut self) {
        if self.flight.as_ref().is_some_and(|f| f.is_spoiled() && f.in_flight() == 0) {
            self.os.counters.bump(Count::RingRetired);
            self.flight = None;
            self.flight = (self.make)().ok().map(|ring| Flight::new(ring, TALLY));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The ring goes with entries in it: closing is no barrier, hence the leaked memory.
        self.leak_jobs();
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine({} in flight)", self.in_flight())
    }
}
