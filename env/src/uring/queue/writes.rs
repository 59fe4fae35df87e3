//! The queue's writes to files written in place past the page cache: all that are staged go to a
//! ring in one submission, and each has a result of its own.
//!
//! They have a ring of their own, so that no read waits for a write. Where none is free the reads
//! of the queue come first: while they are in flight, writes are made by plain calls where the
//! thread would else wait, one at a time, and once no read needs the queue's ring the writes have
//! it.
//!
//! Whatever does not go through whole is written by a plain call, which is harmless: the offset is
//! fixed, and no other request for the range may be pending.
//!
//! Invariant: memory in a ring belongs to a [`Put`] in `in_ring`, changed by nobody, until its
//! completion was seen. Dropping waits for that; what has no answer is leaked.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;

use super::{RingQueue, Share, WAIT_BATCH};
use crate::counters::Count;
use crate::os_file::{DirectAlign, OsRwFile};
use crate::sync::Arc;
use crate::uring::lane::Lane;
use crate::uring::ring::{Completed, Entry, Work};
use crate::uring::slots::Slots;
use crate::uring::verdict::{Written, is_of_the_medium, judge_write, retried, strains_the_breaker};
use crate::uring::{Shared, WritePath};
use crate::{Buffer, Error, ErrorKind, RandomRwFile, Request, Result};

/// The longest write given to a ring; a device would split a longer one.
const LONGEST: usize = 512 << 10;

/// How far one turn takes the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// What is staged goes to a ring, if there is one.
    Submit,
    /// The same; without a ring one of them is made by a plain call.
    Step,
    /// The same, and on a ring something is waited for: at least one write is done.
    Wait,
}

/// One write under way.
#[derive(Debug)]
struct Put {
    tag: u64,
    file: Arc<dyn RandomRwFile>,
    offset: u64,
    data: Buffer,
}

/// A finished write: its tag and its result.
type Done = (u64, Result<Buffer>);

impl RingQueue {
    /// Begins a write: on a ring if it takes it, else at once on the calling thread. One that the
    /// file cannot take as it is fails here, before the kernel sees it.
    pub(super) fn issue_write(&mut self, tag: u64, request: Request) {
        match request {
            Request::Write { file, offset, data } if self.writes.takes(&*file, data.len()) => {
                let put = Put { tag, file, offset, data };
                if let Err(error) = put.ours().check_write(&put.data, offset) {
                    return self.finished(tag, Err(error), Share::Write);
                }
                self.writes.staged.push_back(put);
            }
            request => self.run_through_file(tag, request),
        }
    }

    /// One turn of the writes; false if there are none.
    pub(super) fn advance_writes(&mut self, pace: Pace) -> bool {
        if !self.writes.are_pending() {
            return false;
        }
        if self.lane.in_flight() == 0 && self.staged.is_empty() {
            // It may be the only ring, and no read needs it now.
            self.lane.close();
        }
        let mut done = Vec::new();
        self.writes.turn(pace, &mut done);
        for (tag, result) in done {
            self.finished(tag, result, Share::Write);
        }
        true
    }
}

impl Put {
    fn ours(&self) -> &OsRwFile {
        OsRwFile::of(&*self.file).expect("only our own files are staged")
    }

    /// Writes what is left from `from` on by a plain call, whose word is final. Past the page cache
    /// that can begin at a whole block only.
    fn finish_plain(self, from: usize) -> Done {
        let step = self.ours().direct().map_or(1, DirectAlign::step);
        let from = from / step * step;
        let done = self.file.write_all_at(&self.data[from..], self.offset + from as u64);
        (self.tag, done.map(|()| self.data))
    }

    fn fail(self, error: Error) -> Done {
        (self.tag, Err(error.at(self.offset)))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct RingWrites {
    shared: Arc<Shared>,
    lane: Lane,
    staged: VecDeque<Put>,
    in_ring: Slots<Put>,
    completed: Vec<Completed>,
}

impl RingWrites {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            lane: Lane::new(shared),
            staged: VecDeque::new(),
            in_ring: Slots::default(),
            completed: Vec::new(),
        }
    }

    /// Whether a write of that much to that file goes through a ring. Through the page cache a
    /// write on a ring costs more than a plain one.
    fn takes(&self, file: &dyn RandomRwFile, len: usize) -> bool {
        let Some(ours) = OsRwFile::of(file) else { return false };
        let chosen = match self.shared.write_path {
            WritePath::Auto => ours.direct().is_some(),
            WritePath::Reactor => true,
            WritePath::Caller => false,
        };
        chosen && (1..=LONGEST).contains(&len)
    }

    /// Whether any are staged or in the ring.
    pub(super) fn are_pending(&self) -> bool {
        !self.staged.is_empty() || self.lane.in_flight() > 0
    }

    /// Submits what is staged, as far as there is room, and adds what is done to `done`. A wait
    /// ends when half of what is in flight has completed, or [`WAIT_BATCH`].
    fn turn(&mut self, pace: Pace, done: &mut Vec<Done>) {
        if !self.lane.is_ours() {
            // A forked child: the ring is the parent's, the memory a copy.
            for key in self.in_ring.keys() {
                let put = self.in_ring.remove(key).expect("just listed");
                self.plainly(put, 0, done);
            }
            self.lane.abandon();
        }
        if self.lane.in_flight() == 0 && (self.shared.breaker.is_open() || !self.open()) {
            if pace != Pace::Submit
                && let Some(put) = self.staged.pop_front()
            {
                self.plainly(put, 0, done);
            }
            return;
        }
        while self.lane.has_room()
            && let Some(put) = self.staged.pop_front()
        {
            self.push(put);
        }
        let mut completed = std::mem::take(&mut self.completed);
        let half = (self.lane.in_flight() / 2).clamp(1, WAIT_BATCH);
        let want = if pace == Pace::Wait { half } else { 0 };
        let turn = self.lane.enter(want, &mut completed);
        self.judge_all(&mut completed, done);
        self.completed = completed;
        for key in turn.taken_back {
            let put = self.in_ring.remove(key).expect("offered entries are in the table");
            self.plainly(put, 0, done);
        }
        if turn.broken {
            self.abandon(done);
        }
        if !self.are_pending() || self.lane.is_spent() {
            self.lane.close();
        }
    }

    fn open(&mut self) -> bool {
        let open = self.lane.open(false);
        if !open {
            self.shared.os.counters.bump(Count::PoolEmpty);
        }
        open
    }

    fn push(&mut self, put: Put) {
        let fd = put.ours().fd().as_raw_fd();
        let direct = put.ours().direct().is_some();
        let (start, offset) = (put.data.as_ptr().cast_mut(), put.offset);
        let len = u32::try_from(put.data.len()).expect("at most half a MiB");
        let user_data = self.in_ring.insert(put);
        let entry = Entry { work: Work::Write, fd, start, len, offset, user_data };
        if direct && self.shared.os.wants_fixed() && !self.lane.knows(&entry) {
            self.shared.os.counters.bump(Count::FixedRefused);
        }
        // SAFETY: the memory belongs to the request in `self.in_ring` and nobody changes it there.
        // The request leaves when its completion was drained or it was taken back unseen by the
        // kernel; `abandon` and `drop`, the ways out without a completion, leak it, unless this is
        // a forked child, whose memory is a copy that the kernel does not use. A queue that is
        // forgotten never frees anything.
        unsafe { self.lane.push(entry) }
    }

    fn judge_all(&mut self, completed: &mut Vec<Completed>, done: &mut Vec<Done>) {
        let mut answered = Vec::with_capacity(completed.len());
        for end in completed.drain(..) {
            if let Some(put) = self.in_ring.remove(end.user_data) {
                self.lane.completed_one();
                answered.push((put, end.result));
            } else {
                self.shared.os.counters.bump(Count::RingStale);
                self.lane.spoil();
            }
        }
        for (put, result) in answered {
            self.judge(put, result, done);
        }
    }

    fn judge(&mut self, put: Put, result: i32, done: &mut Vec<Done>) {
        let (counters, breaker) = (&self.shared.os.counters, &self.shared.breaker);
        match judge_write(put.data.len(), result) {
            Written::Done => {
                breaker.good();
                put.ours().note_written(put.offset + put.data.len() as u64);
                done.push((put.tag, Ok(put.data)));
            }
            Written::Partly(took) => {
                breaker.good();
                counters.bump(Count::ShortWrites);
                put.ours().note_written(put.offset + took as u64);
                self.plainly(put, took, done);
            }
            Written::Passing(errno) => {
                counters.bump(retried(errno));
                if strains_the_breaker(errno) && breaker.fault() {
                    counters.bump(Count::BreakerOpened);
                }
                self.plainly(put, 0, done);
            }
            // The kernel joins neighbouring writes and fails all of them for the sake of one. Past
            // the page cache a write that failed may be made again, and fails by itself.
            Written::Failed(errno) if is_of_the_medium(errno) && put.ours().direct().is_some() => {
                self.plainly(put, 0, done);
            }
            Written::Failed(errno) => {
                let error = Error::from_errno(errno, "write", put.file.path());
                done.push(put.fail(error));
            }
            Written::Overlong => {
                let message = format!("the ring claims {result} of {} bytes", put.data.len());
                let error = Error::new(ErrorKind::Other, "write", put.file.path(), message);
                // Whatever the ring did, it may have made the file longer.
                put.ours().note_written(put.offset + put.data.len() as u64);
                done.push(put.fail(error));
                self.lane.spoil();
            }
        }
    }

    fn plainly(&self, put: Put, from: usize, done: &mut Vec<Done>) {
        self.shared.os.counters.bump(Count::FallbackPwrites);
        self.shared.breaker.good();
        done.push(put.finish_plain(from));
    }

    /// Gives up a ring that owes answers: what became of its writes nobody will know.
    fn abandon(&mut self, done: &mut Vec<Done>) {
        for key in self.in_ring.keys() {
            let put = self.in_ring.remove(key).expect("just listed");
            let message = "given to a ring that broke; it may be written or not";
            let error = Error::new(ErrorKind::Other, "write", put.file.path(), message);
            // A write that is still to come may make the file longer.
            put.ours().note_written(put.offset + put.data.len() as u64);
            done.push((put.tag, Err(error.at(put.offset))));
            std::mem::forget(put);
        }
        self.lane.abandon();
    }
}

impl Drop for RingWrites {
    /// Waits until nothing is in flight: the kernel may read our memory until then.
    fn drop(&mut self) {
        self.staged.clear();
        let mut completed = Vec::new();
        while self.lane.in_flight() > 0 {
            if !self.lane.is_ours() {
                self.lane.abandon();
                return;
            }
            let turn = self.lane.enter(1, &mut completed);
            for end in completed.drain(..) {
                match self.in_ring.remove(end.user_data) {
                    Some(put) => {
                        self.lane.completed_one();
                        put.ours().note_written(put.offset + put.data.len() as u64);
                    }
                    None => self.lane.spoil(),
                }
            }
            for key in turn.taken_back {
                self.in_ring.remove(key);
            }
            if turn.broken {
                self.abandon(&mut Vec::new());
            }
        }
        self.lane.close();
    }
}
