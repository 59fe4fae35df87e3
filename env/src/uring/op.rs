//! A read request under way: its memory, the pieces that are in a ring, and what is left for a
//! plain read.
//!
//! Invariants:
//! * The memory belongs to the operation until no piece is outstanding; meanwhile nobody touches
//!   it through Rust. Its address never changes: it is on the heap, however the operation moves.
//! * A request completes once, when no piece is outstanding and nothing is left to be read.

use std::mem;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

use super::ring::{Entry, Work};
use super::verdict::Asked;
use crate::counters::Counters;
use crate::os_file::{Os, OsFile};
use crate::sync::{Arc, AtomicPtr};
use crate::{Buffer, Error, ErrorKind, RandomAccessFile, Request, Result};

/// See the module.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) tag: u64,
    file: Arc<dyn RandomAccessFile>,
    /// Where in the file the memory begins.
    start: u64,
    memory: Buffer,
    /// The memory's address, taken while nothing was outstanding: taking it again meanwhile would
    /// claim the memory for Rust. Atomic for the sake of operations that go to the reactor's thread
    /// only; nobody shares it.
    base: AtomicPtr<u8>,
    /// The caller's bytes within the memory. Direct reads may need more around them.
    wanted: Range<usize>,
    outstanding: usize,
    rest: Vec<Range<usize>>,
    error: Option<Error>,
}

/// A part of an operation's memory that a ring is to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) op: u64,
    /// Where in the memory the next read of this piece begins.
    pub(crate) from: usize,
    /// Where in the memory the piece ends.
    pub(crate) end: usize,
    /// Bytes of the memory known to be there, up to here; a direct read may begin below.
    reached: usize,
    /// Whether the last completion brought nothing new.
    stuck: bool,
    /// It shares no entry with others.
    pub(crate) alone: bool,
}

impl Op {
    /// Memory for `len` bytes at `offset` of one of our own files that holds them.
    pub(crate) fn new(
        tag: u64,
        file: Arc<dyn RandomAccessFile>,
        offset: u64,
        len: usize,
        os: &Os,
    ) -> Self {
        let align = OsFile::of(&*file).and_then(OsFile::direct);
        let (start, window) = align.map_or((offset, len), |align| align.window(offset, len));
        let skip = usize::try_from(offset - start).expect("less than a block");
        Self {
            tag,
            memory: take_memory(os, window, align.is_some()),
            base: AtomicPtr::new(ptr::null_mut()),
            file,
            start,
            wanted: skip..skip + len,
            outstanding: 0,
            rest: Vec::new(),
            error: None,
        }
    }

    /// What it was made for.
    pub(crate) fn request(&self) -> Request {
        let offset = self.start + self.wanted.start as u64;
        Request::Read { file: Arc::clone(&self.file), offset, len: self.wanted.len() }
    }

    /// The file, which is known to be one of ours.
    pub(crate) fn file(&self) -> &OsFile {
        OsFile::of(&*self.file).expect("operations are made for our own files only")
    }

    /// The file's descriptor, open as long as this operation.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.file().fd().as_raw_fd()
    }

    /// Where in the file the bytes up to `at` of the memory end.
    pub(crate) fn offset_of(&self, at: usize) -> u64 {
        self.start + at as u64
    }

    /// The memory that a NOWAIT read may fill: all of it, while nothing is outstanding.
    pub(crate) fn memory(&mut self) -> (&OsFile, &mut [u8], u64) {
        assert_eq!(self.outstanding, 0, "memory in flight is touched by nobody");
        let file = OsFile::of(&*self.file).expect("operations are made for our own files only");
        (file, self.memory.as_mut_slice(), self.start)
    }

    /// Where the wanted bytes end in the memory: what must be filled.
    pub(crate) fn needed(&self) -> usize {
        self.wanted.end
    }

    /// Bytes of memory held.
    pub(crate) fn memory_len(&self) -> usize {
        self.memory.shown()
    }

    /// Cuts what is missing from `from` on into pieces for a ring, all of which are outstanding
    /// from now on. `op` is this operation's key.
    pub(crate) fn cut(&mut self, op: u64, from: usize) -> impl Iterator<Item = Piece> + use<> {
        assert_eq!(self.outstanding, 0, "memory in flight is touched by nobody");
        *self.base.get_mut() = self.memory.as_mut_slice().as_mut_ptr();
        let len = self.memory.len();
        let chunk = self.file().device().chunk().bytes;
        let cuts = (self.aligned_down(from)..len).step_by(chunk);
        self.outstanding = cuts.len();
        cuts.map(move |from| {
            let end = len.min(from + chunk);
            Piece { op, from, end, reached: from, stuck: false, alone: false }
        })
    }

    /// The address that a piece is read to, valid until the operation is taken apart.
    pub(crate) fn address(&mut self, piece: &Piece) -> *mut u8 {
        assert!(piece.from < piece.end && piece.end <= self.memory.shown(), "a piece lies inside");
        self.base.get_mut().wrapping_add(piece.from)
    }

    /// What a piece asks for, and how much of it must arrive.
    pub(crate) fn asked(&self, piece: &Piece) -> Asked {
        Asked {
            len: piece.end - piece.from,
            needed: piece.end.min(self.wanted.end).saturating_sub(piece.from),
        }
    }

    /// Takes note that the first `got` bytes a piece asked for are there. False if that brought
    /// nothing new twice in a row, and a plain read should go on.
    pub(crate) fn advance(&self, piece: &mut Piece, got: usize) -> bool {
        let reached = piece.from + got;
        let was_stuck = mem::replace(&mut piece.stuck, reached <= piece.reached);
        piece.reached = piece.reached.max(reached);
        piece.from = self.aligned_down(piece.reached);
        !(was_stuck && piece.stuck)
    }

    /// Whether its memory is that of one piece alone.
    pub(crate) fn is_sole(&self) -> bool {
        self.outstanding == 1
    }

    /// Lends the memory, while its one piece is out of the ring. It must be put back.
    pub(crate) fn lend(&mut self) -> Buffer {
        assert!(self.is_sole(), "memory in flight is touched by nobody");
        mem::replace(&mut self.memory, Buffer::zeroed(0))
    }

    /// Takes back the memory that was lent.
    pub(crate) fn put_back(&mut self, memory: Buffer) {
        self.memory = memory;
    }

    /// Bytes of the memory that have arrived, while its one piece is out of the ring.
    pub(crate) fn arrived(&self, range: Range<usize>) -> &[u8] {
        assert!(self.is_sole(), "memory in flight is touched by nobody");
        &self.memory[range]
    }

    /// Takes the memory's address anew, before its one piece goes to a ring again: it may have
    /// been touched in between.
    pub(crate) fn reclaim(&mut self) {
        assert!(self.is_sole(), "memory in flight is touched by nobody");
        *self.base.get_mut() = self.memory.as_mut_slice().as_mut_ptr();
    }

    /// The entry that reads a piece, without a tag.
    pub(crate) fn entry(&mut self, piece: &Piece) -> Entry {
        Entry {
            work: Work::Read,
            fd: self.raw_fd(),
            start: self.address(piece),
            len: u32::try_from(piece.end - piece.from).expect("a piece is at most one chunk"),
            offset: self.offset_of(piece.from),
            user_data: 0,
        }
    }

    /// The failure of a piece of which a ring claims to have read more than it was asked for.
    pub(crate) fn overlong(&self, piece: &Piece, result: i32) -> Error {
        let len = piece.end - piece.from;
        let message = format!("the ring claims {result} bytes for a read of {len}");
        let error = Error::new(ErrorKind::Other, "read", self.file().path(), message);
        error.at(self.offset_of(piece.from))
    }

    /// A piece is done with, whole.
    pub(crate) fn piece_done(&mut self) {
        self.outstanding -= 1;
    }

    /// A piece is done with; what it lacks is left for a plain read.
    pub(crate) fn piece_left(&mut self, piece: &Piece) {
        self.leave(piece.from);
        let range = self.rest.last_mut().expect("just left");
        range.end = range.end.min(piece.end);
        self.outstanding -= 1;
    }

    /// A piece is done with; it failed. The first failure is the request's.
    pub(crate) fn piece_failed(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.outstanding -= 1;
    }

    /// Leaves everything from `from` on for a plain read.
    pub(crate) fn leave(&mut self, from: usize) {
        self.rest.push(from..self.wanted.end);
    }

    /// Gives up memory that a broken ring may still write to, for ever, and starts afresh: all is
    /// left for a plain read.
    pub(crate) fn leak_memory(&mut self, os: &Os) {
        let fresh = take_memory(os, self.memory.shown(), self.file().direct().is_some());
        mem::forget(mem::replace(&mut self.memory, fresh));
        self.outstanding = 0;
        self.error = None;
        self.rest.clear();
        self.leave(self.wanted.start);
    }

    /// Whether no piece is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether something is left for a plain read.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty() && self.error.is_none()
    }

    /// Where the first of what was left for a plain read begins, all of which is to be read in
    /// another way now.
    pub(crate) fn take_rest(&mut self) -> usize {
        let rest = mem::take(&mut self.rest);
        rest.iter().map(|range| range.start).min().unwrap_or(self.wanted.start)
    }

    /// Ranges of the file left for a plain read, for hints.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (u64, u64)> {
        self.rest.iter().map(|range| (self.offset_of(range.start), range.len() as u64))
    }

    /// Reads what is left by plain reads, and gives the request's result.
    pub(crate) fn finish(mut self, counters: &Counters) -> (u64, Result<Buffer>) {
        assert_eq!(self.outstanding, 0, "memory in flight is touched by nobody");
        if let Some(error) = self.error.take() {
            return (self.tag, Err(error));
        }
        for range in mem::take(&mut self.rest) {
            let offset = self.start + range.start as u64;
            let file = OsFile::of(&*self.file).expect("operations are made for our own files only");
            let memory = &mut self.memory.as_mut_slice()[range];
            if let Err(error) = file.pread_exact(memory, offset, counters) {
                return (self.tag, Err(error));
            }
        }
        (self.tag, Ok(self.memory.narrowed(self.wanted.start, self.wanted.len())))
    }

    /// The last place at or below `at` where a read of this file may begin.
    fn aligned_down(&self, at: usize) -> usize {
        self.file().direct().map_or(at, |align| {
            let block = usize::try_from(align.offset).expect("at most 64 KiB");
            at & !(block - 1)
        })
    }
}

/// Memory for a read. Direct reads need it aligned, which only whole pages are sure to be.
fn take_memory(os: &Os, len: usize, direct: bool) -> Buffer {
    if direct { os.take_direct(len) } else { os.pool.take(len) }
}
