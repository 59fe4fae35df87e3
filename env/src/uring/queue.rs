//! The queue of the io_uring environment.
//!
//! A read is first looked for in the page cache, on the calling thread (`RWF_NOWAIT`), until one
//! is not there: a look that misses starts the device for that read alone, so the reads behind it
//! are staged without one and go to a ring together, which starts the device once for all of them
//! and answers at once for those that are cached after all. That happens when enough are staged,
//! or when `pop` finds nothing ready. Results are delivered in completion order, so the caller
//! works on one while the others are in flight.
//!
//! Reads that lie next to each other in one file and go to the ring together are one entry.
//!
//! What a ring would not make faster, or cannot do, is read by plain calls: a single miss, files
//! whose file system has no asynchronous reads, files in the page cache while no ring is free,
//! everything while the breaker is open, and whatever a ring failed to read. Direct reads that find
//! no free ring go to that of the reactor: see [`errands`].
//!
//! Invariants:
//! * Every request completes exactly once, with its own result.
//! * Memory in flight belongs to an operation in `ops`, which is taken apart only when no piece of
//!   it is in a ring, or, if nobody wants its bytes, to a run in `loads`. Dropping the queue waits
//!   for both; leaking it leaks them and the ring. What is with the reactor is the reactor's.
//! * At most a window of reads, and one of writes, is issued; the others are descriptions only,
//!   with the memory that a write brings. Neither kind waits for room in the other's window. Reads
//!   whose results nobody took yet are not in the window, so that the device has all of it to do
//!   while the caller works on them, but only a few of them make room for more.

use std::collections::VecDeque;

use super::Shared;
use super::lane::Lane;
use super::op::{Op, Piece};
use super::ring::Completed;
use super::run::Load;
use super::slots::Slots;
use errands::Errands;
use writes::{Pace, RingWrites};

use crate::counters::Count;
use crate::os_file::{Latch, Nowait, OsFile};
use crate::queue::run;
use crate::sync::Arc;
use crate::{Buffer, Completion, Error, IoQueue, RandomAccessFile, Request, Result};

mod errands;
mod merging;
mod ring_side;
mod writes;

/// Staged reads that are worth entering the kernel for: 16 take nearly all of what batching gains.
const ENTER_BATCH: usize = 16;
/// Bytes of memory issued or ready at most, unless a single request needs more.
const WINDOW_BYTES: usize = 8 << 20;
/// Writes issued or ready at most, if reads may not be more, and counted apart from them: they
/// bring their own memory, and the deeper a device is written to the faster it is.
const WRITE_WINDOW: usize = 128;
/// Results that nobody took yet, for as many of which further reads are issued.
const READY_ASIDE: usize = 2 * WAIT_BATCH;
/// Staged reads below which a plain read is as fast as a ring.
const RING_MIN: usize = 2;
/// Completions that are waited for together, unless fewer than twice as many are in flight: a wait
/// for each would cost more than most completions take to be worked on.
const WAIT_BATCH: usize = 16;
/// After a look into the page cache that missed, so many reads go without one.
const UNLOOKED: usize = 64;
/// A direct look waits for the device in spite of its name, so it is no longer than this.
const DIRECT_LOOK: usize = 64 << 10;

/// Something to be read by plain calls when nothing better is left to do.
#[derive(Debug)]
enum Plain {
    /// What is left of an operation; `true` if a ring should have read it.
    Op(u64, bool),
    /// A request for a file that is not one of ours.
    Foreign(u64, Request),
}

/// Requests of one kind.
#[derive(Debug, Default)]
struct Line {
    /// How many are issued or ready.
    held: usize,
    /// Those that are not.
    backlog: VecDeque<(u64, Request)>,
}

/// What a request has of its kind's window until its result is popped.
#[derive(Clone, Copy, Debug)]
enum Share {
    /// So many bytes of memory.
    Read(usize),
    /// A write brings its own.
    Write,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RingQueue {
    shared: Arc<Shared>,
    lane: Lane,
    ops: Slots<Op>,
    /// What is in the ring, by the tag of the entry.
    loads: Slots<Load>,
    staged: VecDeque<Piece>,
    plain: VecDeque<Plain>,
    ready: VecDeque<(Completion, Share)>,
    ready_reads: usize,
    reads: Line,
    puts: Line,
    /// Reads to come that are not looked for in the page cache.
    unlooked: usize,
    /// Memory of the reads that are issued or ready.
    held_bytes: usize,
    /// The read issued last was all in the cache.
    streak: bool,
    /// No ring was free in this batch.
    without_ring: bool,
    errands: Errands,
    writes: RingWrites,
    completed: Vec<Completed>,
    /// What left the ring, with its result, until it is judged.
    answered: Vec<(Load, i32)>,
}

impl IoQueue for RingQueue {
    fn push(&mut self, tag: u64, request: Request) {
        if self.line_of(&request).backlog.is_empty() && self.may_issue(&request) {
            self.issue(tag, request);
        } else {
            self.line_of(&request).backlog.push_back((tag, request));
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        loop {
            if let Some((completion, share)) = self.ready.pop_front() {
                match share {
                    Share::Read(bytes) => {
                        self.reads.held -= 1;
                        self.ready_reads -= 1;
                        self.held_bytes -= bytes;
                    }
                    Share::Write => self.puts.held -= 1,
                }
                self.refill();
                return Some(completion);
            }
            if self.reads.held == 0
                && let Some((tag, request)) = self.reads.backlog.pop_front()
            {
                self.issue(tag, request);
                self.refill();
                continue;
            }
            if !self.advance() {
                self.end_batch();
                return None;
            }
            self.refill();
        }
    }
}

impl RingQueue {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            lane: Lane::new(shared),
            ops: Slots::default(),
            loads: Slots::default(),
            staged: VecDeque::new(),
            plain: VecDeque::new(),
            ready: VecDeque::new(),
            ready_reads: 0,
            reads: Line::default(),
            puts: Line::default(),
            unlooked: 0,
            held_bytes: 0,
            streak: false,
            without_ring: false,
            errands: Errands::new(&shared.os),
            writes: RingWrites::new(shared),
            completed: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Whether reads wait until they are asked for. While all of them hit there is nothing to
    /// start early, and one that is issued when it is popped reuses memory that is still in the
    /// processor's cache. The first miss sends everything out.
    fn holds_back(&self) -> bool {
        self.streak && self.reads.held == self.ready_reads
    }

    fn line_of(&mut self, request: &Request) -> &mut Line {
        match request {
            Request::Read { .. } => &mut self.reads,
            Request::Write { .. } => &mut self.puts,
        }
    }

    /// Whether a request may begin, as far as others of its kind are concerned.
    fn may_issue(&self, request: &Request) -> bool {
        let window = self.shared.max_in_flight;
        match request {
            Request::Read { len, .. } => {
                let held = self.reads.held;
                let window = window.saturating_add(self.ready_reads.min(READY_ASIDE));
                let fits = self.held_bytes.saturating_add(*len) <= WINDOW_BYTES;
                (held == 0 || held < window && fits) && !self.holds_back()
            }
            Request::Write { .. } => self.puts.held < window.max(WRITE_WINDOW),
        }
    }

    fn refill(&mut self) {
        while let Some((_, request)) = self.reads.backlog.front()
            && self.may_issue(request)
            && let Some((tag, request)) = self.reads.backlog.pop_front()
        {
            self.issue(tag, request);
        }
        while let Some((_, request)) = self.puts.backlog.front()
            && self.may_issue(request)
            && let Some((tag, request)) = self.puts.backlog.pop_front()
        {
            self.issue(tag, request);
        }
    }

    /// Begins a request.
    fn issue(&mut self, tag: u64, request: Request) {
        self.line_of(&request).held += 1;
        let Request::Read { file, offset, len } = request else {
            return self.issue_write(tag, request);
        };
        let Some(ours) = OsFile::of(&*file) else {
            let request = Request::Read { file, offset, len };
            return self.plain.push_back(Plain::Foreign(tag, request));
        };
        if let Err(error) = ours.check_range(offset, len) {
            self.finished(tag, Err(error), Share::Read(0));
        } else if let Some(view) = ours.view(offset, len) {
            self.shared.os.counters.bump(Count::MmapReads);
            self.finished(tag, Ok(view), Share::Read(0));
        } else if len == 0 {
            self.finished(tag, Ok(Buffer::zeroed(0)), Share::Read(0));
        } else {
            self.issue_read(tag, file, offset, len);
        }
    }

    /// Serves a request through its file's own methods, on the calling thread.
    fn run_through_file(&mut self, tag: u64, request: Request) {
        let writes = matches!(request, Request::Write { .. });
        let result = run(request);
        if writes {
            return self.finished(tag, result, Share::Write);
        }
        let bytes = result.as_ref().map_or(0, |data| data.len());
        self.held_bytes += bytes;
        self.finished(tag, result, Share::Read(bytes));
    }

    fn issue_read(&mut self, tag: u64, file: Arc<dyn RandomAccessFile>, offset: u64, len: usize) {
        let mut op = Op::new(tag, file, offset, len, &self.shared.os);
        self.held_bytes += op.memory_len();
        let gave = self.look_in_cache(&mut op);
        let from = match gave {
            Some(Nowait::Full) => op.needed(),
            Some(Nowait::Short(n)) => n,
            Some(Nowait::Miss | Nowait::Unsupported) | None => 0,
        };
        // Without the look into the cache nothing tells what the next read will find.
        self.streak = self.shared.nowait && from >= op.needed();
        if from >= op.needed() {
            self.complete(op);
            return;
        }
        let latched = op.file().nowait_latch() == Latch::Unsupported;
        let direct = op.file().direct().is_some();
        let key = self.ops.insert(op);
        let no_ring = self.without_ring && !direct || self.shared.breaker.is_open();
        if latched || no_ring {
            self.op(key).leave(from);
            self.line_up_plain(key, !latched);
        } else {
            self.stage(key, from);
            if self.staged.len() >= ENTER_BATCH {
                self.turn(false);
            }
        }
    }

    /// The NOWAIT read of a new operation; `None` if it is better left out. Even then the first
    /// read of a file is one, since it shows whether the file system can do without waiting.
    fn look_in_cache(&mut self, op: &mut Op) -> Option<Nowait> {
        let file = op.file();
        match file.nowait_latch() {
            Latch::Unknown => {}
            Latch::Unsupported => return Some(Nowait::Unsupported),
            // Direct reads are never in the cache.
            Latch::Works if file.direct().is_some() => return None,
            Latch::Works => {
                if !self.shared.nowait || self.unlooked > 0 {
                    self.unlooked = self.unlooked.saturating_sub(1);
                    self.shared.os.counters.bump(Count::NowaitSkipped);
                    return None;
                }
            }
        }
        let (file, memory, start) = op.memory();
        let counters = &self.shared.os.counters;
        if file.direct().is_none() {
            let gave = file.read_nowait(memory, start, counters);
            if gave == Nowait::Miss {
                self.unlooked = UNLOOKED;
            }
            return Some(gave);
        }
        let short = memory.len().min(DIRECT_LOOK);
        match file.read_nowait(&mut memory[..short], start, counters) {
            Nowait::Full if short < memory.len() => Some(Nowait::Short(short)),
            gave => Some(gave),
        }
    }

    fn op(&mut self, key: u64) -> &mut Op {
        self.ops.get_mut(key).expect("operations under way are in the table")
    }

    /// Puts what an operation lacks from `from` on in line for the ring.
    fn stage(&mut self, key: u64, from: usize) {
        let pieces = self.op(key).cut(key, from);
        self.staged.extend(pieces);
    }

    /// Puts what an operation has left for plain reads in line for them. If it is not the first
    /// there, the kernel is told to start, so that plain reads overlap too.
    fn line_up_plain(&mut self, key: u64, instead_of_ring: bool) {
        let counters = &self.shared.os.counters;
        let op = self.ops.get_mut(key).expect("operations under way are in the table");
        if !self.plain.is_empty() {
            op.rest().for_each(|(offset, len)| op.file().hint(offset, len, counters));
        }
        self.plain.push_back(Plain::Op(key, instead_of_ring));
    }

    /// Does the next thing that brings a result nearer; false if nothing is pending.
    fn advance(&mut self) -> bool {
        self.collect_errands(false);
        if self.lane.in_flight() > 0 {
            self.peek();
        } else if self.staged.len() < RING_MIN && self.errands.are_none() {
            self.unstage();
        }
        if !self.ready.is_empty() {
            return true;
        }
        // Reads go out first; what is written meanwhile keeps none of them from the device.
        let writing = self.writes.are_pending();
        if !self.staged.is_empty() && (writing || !self.plain.is_empty()) {
            self.turn(false);
        }
        let in_ring = self.lane.in_flight() + self.staged.len();
        if writing && in_ring > 0 || !self.plain.is_empty() {
            let pace = if self.plain.is_empty() { Pace::Step } else { Pace::Submit };
            self.advance_writes(pace);
        }
        if in_ring > 0 && self.plain.is_empty() && self.ready.is_empty() {
            self.turn(true);
        }
        if !self.ready.is_empty() {
            return true;
        }
        if let Some(plain) = self.plain.pop_front() {
            self.run_plain(plain);
            return true;
        }
        if in_ring == 0 && self.advance_writes(Pace::Wait) {
            return true;
        }
        if self.lane.in_flight() == 0 && self.collect_errands(true) {
            return true;
        }
        let pending = in_ring > 0 || !self.staged.is_empty();
        let held = self.reads.held + self.puts.held;
        assert!(pending || held == 0, "every request is ready, in the ring or in a line");
        pending
    }

    /// Takes everything staged out of line and leaves it for plain reads.
    fn unstage(&mut self) {
        let pieces: Vec<Piece> = self.staged.drain(..).collect();
        for piece in &pieces {
            self.leave_piece(piece, false);
        }
    }

    /// Leaves what a piece lacks for plain reads.
    fn leave_piece(&mut self, piece: &Piece, instead_of_ring: bool) {
        let op = self.op(piece.op);
        op.piece_left(piece);
        self.settle(piece.op, instead_of_ring);
    }

    fn fail_piece(&mut self, piece: &Piece, error: Error) {
        self.op(piece.op).piece_failed(error);
        self.settle(piece.op, true);
    }

    /// Ends an operation of which nothing is outstanding, or lines up what it lacks.
    fn settle(&mut self, key: u64, instead_of_ring: bool) {
        let op = self.op(key);
        if !op.is_idle() {
            return;
        }
        if op.has_rest() {
            self.line_up_plain(key, instead_of_ring);
            return;
        }
        let op = self.ops.remove(key).expect("just looked at");
        self.complete(op);
    }

    fn complete(&mut self, op: Op) {
        let bytes = op.memory_len();
        let (tag, result) = op.finish(&self.shared.os.counters);
        self.finished(tag, result, Share::Read(bytes));
    }

    fn finished(&mut self, tag: u64, result: Result<Buffer>, share: Share) {
        self.ready_reads += usize::from(matches!(share, Share::Read(_)));
        self.ready.push_back((Completion { tag, result }, share));
    }

    fn run_plain(&mut self, plain: Plain) {
        match plain {
            Plain::Op(key, instead_of_ring) => {
                if instead_of_ring {
                    self.shared.os.counters.bump(Count::FallbackPreads);
                }
                self.shared.breaker.good();
                let op = self.ops.remove(key).expect("what is lined up is in the table");
                self.complete(op);
            }
            Plain::Foreign(tag, request) => self.run_through_file(tag, request),
        }
    }

    /// Nothing is pending: the ring goes back to the pool for others.
    fn end_batch(&mut self) {
        self.unlooked = 0;
        self.without_ring = false;
        self.errands.end_batch();
        if self.lane.in_flight() == 0 {
            self.lane.close();
        }
    }
}

#[cfg(test)]
mod tests;
