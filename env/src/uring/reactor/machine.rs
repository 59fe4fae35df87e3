//! What the reactor does, step by step, apart from the thread that does it.
//!
//! One turn takes what is queued as far as the ring has room, enters the kernel once for all of
//! it, and settles what has completed. It never waits: not for a device, and not for an owner. A
//! block that did not go through whole goes back to its owner, who writes it with a plain call, and
//! so does a read.
//!
//! Invariants:
//! * The memory of a block in flight belongs to `jobs`, that of a read to `errands`, and is touched
//!   by nobody. A machine that goes away with any of them in flight leaks their memory, unwinding
//!   included.
//! * All completions of a turn are out of flight before the first is judged.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;

use super::errand::{Errand, Task};
use super::inbox::{Bell, Inbox};
use super::stream::{Block, EarlySync, Sequel, Stream};
use super::{MakeRing, SetupError};
use crate::counters::Count;
use crate::os_file::Os;
use crate::sync::Arc;
use crate::trace;
use crate::uring::breaker::Breaker;
use crate::uring::flight::{Flight, Tally, Want};
use crate::uring::op::Piece;
use crate::uring::ring::{Completed, Entry, Work};
use crate::uring::slots::Slots;
use crate::uring::verdict::{
    Verdict, Written, judge, judge_write, never_ran, retried, strains_the_breaker,
};
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
    /// A piece of the errand in `errands` that it names.
    Read(Piece),
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
    errands: Slots<Errand>,
    /// Pieces of errands that were begun, and not pushed yet.
    pieces: VecDeque<Piece>,
    /// Something new is begun before the next of these pieces: they take turns.
    begins: bool,
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
            errands: Slots::default(),
            pieces: VecDeque::new(),
            begins: false,
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

    /// Whether another turn would give the ring something, whatever is handed over.
    pub(crate) fn can_go_on(&self) -> bool {
        self.has_room() && !self.pieces.is_empty()
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_off(&self) -> bool {
        self.flight.is_none()
    }

    /// One turn.
    pub(crate) fn turn<B: Bell>(&mut self, inbox: &Inbox<Task, B>) {
        while self.has_room() {
            if !std::mem::take(&mut self.begins)
                && let Some(piece) = self.pieces.pop_front()
            {
                self.push_piece(piece);
                self.begins = true;
                continue;
            }
            match inbox.pop() {
                Some(Task::Write(block)) => self.push_block(block),
                Some(Task::Read(errand)) => self.begin(errand),
                None if self.pieces.is_empty() => break,
                None => {}
            }
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
        turn.taken_back.into_iter().for_each(|key| self.take_back(key));
        if turn.broken {
            self.abandon();
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

    /// Cuts an errand into pieces, which go behind those of others.
    fn begin(&mut self, errand: Errand) {
        let key = self.errands.insert(errand);
        let op = self.errands.get_mut(key).expect("just put there").op();
        let from = op.take_rest();
        self.pieces.extend(op.cut(key, from));
    }

    /// Pushes a piece of an errand. The ring has room.
    fn push_piece(&mut self, piece: Piece) {
        let errand = self.errands.get_mut(piece.op).expect("errands last as long as their pieces");
        let mut entry = errand.op().entry(&piece);
        if self.os.wants_fixed() && !self.knows(&entry) {
            self.os.counters.bump(Count::FixedRefused);
        }
        entry.user_data = self.jobs.insert(Job::Read(piece));
        self.push(entry);
        self.os.counters.bump(Count::ReactorReads);
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
        // entry's tag, or that of an operation in `self.errands` with this piece outstanding.
        // Nobody touches it there, and it leaves only when its completion was drained, or was taken
        // back unseen by the kernel; `abandon` and `drop`, the ways out without a completion, leak
        // it, and so does an errand that is dropped with pieces outstanding. The address is on the
        // heap, however the block or operation moves.
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
                Job::Read(piece) => self.judge_read(piece, result),
                Job::StartWriteBack { .. } if result < 0 => {
                    self.os.counters.bump(Count::RangeFlushFailed);
                }
                Job::StartWriteBack { .. } => {}
                Job::Sync(sync) => self.judge_sync(sync, result),
            }
        }
    }

    /// A flush that was cancelled did nothing, and the one at the end of the file does all of it.
    /// Any other failure was told to this flush alone, and must be the file's.
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
                block.give_back(0, matches!(errno, libc::EINVAL | libc::EOPNOTSUPP));
                if strains_the_breaker(errno) {
                    self.fault();
                }
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

    /// A read that brings nothing new comes back to its owner, and a plain read decides.
    fn judge_read(&mut self, mut piece: Piece, result: i32) {
        let key = piece.op;
        let counters = &self.os.counters;
        let op = self.errands.get_mut(key).expect("errands last as long as their pieces").op();
        let verdict = judge(op.asked(&piece), result);
        match verdict {
            Verdict::Done | Verdict::Partly(_) => self.breaker.good(),
            Verdict::Nothing | Verdict::Medium(_) | Verdict::Failed(_) => {}
            Verdict::Passing(errno) => counters.bump(retried(errno)),
            Verdict::Unsupported => op.file().latch_unsupported(),
            Verdict::Overlong => {
                let error = op.overlong(&piece, result);
                op.piece_failed(error);
            }
        }
        if matches!(verdict, Verdict::Partly(_) | Verdict::Nothing) {
            counters.bump(Count::ShortReads);
        }
        match verdict {
            Verdict::Partly(got) if op.advance(&mut piece, got) => {
                return self.pieces.push_front(piece);
            }
            Verdict::Done => op.piece_done(),
            Verdict::Overlong => {
                if let Some(flight) = &mut self.flight {
                    flight.spoil();
                }
            }
            _ => op.piece_left(&piece),
        }
        self.settle(key);
        if matches!(verdict, Verdict::Passing(errno) if strains_the_breaker(errno)) {
            self.fault();
        }
    }

    /// Sends an errand of which nothing is outstanding back to its owner.
    fn settle(&mut self, key: u64) {
        if self.errands.get_mut(key).is_some_and(|errand| errand.op().is_idle()) {
            drop(self.errands.remove(key));
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
                block.give_back(0, false);
                self.fault();
            }
            Job::Read(piece) => {
                let errand = self.errands.get_mut(piece.op);
                errand.expect("errands last as long as their pieces").op().piece_left(&piece);
                self.settle(piece.op);
                self.fault();
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

    /// What is in flight has no answer: its memory is leaked and its owners are told. What of an
    /// errand is not in the ring, or has been answered, the kernel does not use: one of which no
    /// more than that is left comes back as it is.
    fn leak_jobs(&mut self) {
        let answered = self.answered.extract_if(.., |(job, _)| matches!(job, Job::Read(_)));
        let answered = answered.filter_map(|(job, _)| match job {
            Job::Read(piece) => Some(piece),
            _ => None,
        });
        for piece in self.pieces.drain(..).chain(answered) {
            if let Some(errand) = self.errands.get_mut(piece.op) {
                errand.op().piece_left(&piece);
            }
        }
        self.errands.keys().into_iter().for_each(|key| drop(self.errands.remove(key)));
        for key in self.jobs.keys() {
            if let Some(Job::Write(block)) = self.jobs.remove(key) {
                block.leak();
            }
        }
    }

    /// Puts another ring in the place of one that is out of use and empty; if there is none to be
    /// had the machine is off, and reads that were to go on come back.
    fn replace_spent(&mut self) {
        if self.flight.as_ref().is_some_and(|f| f.is_spoiled() && f.in_flight() == 0) {
            self.os.counters.bump(Count::RingRetired);
            self.flight = None;
            self.flight = (self.make)().ok().map(|ring| Flight::new(ring, TALLY));
            if self.is_off() {
                // The thread ends, and tells that when everybody has back what was theirs.
                self.leak_jobs();
            } else {
                trace::ring_retired();
            }
            self.fault();
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
