//! The owner's side: an outlet that hands buffers to the reactor, a few at a time, and writes
//! itself whatever the reactor does not.
//!
//! The owner never waits for anything but its own blocks, and of these only for what is in the
//! kernel: a block that is still queued it takes back (unless it was asked to send every single
//! write, to compare), and one that was given up by a shutdown it leaves to the reactor. So memory
//! that other owners hold, or a reactor that gets no processor, cost parallelism and never
//! progress.

use super::Reactor;
use super::stream::{Block, Hints, Returned, Share, Stream};
use crate::counters::Count;
use crate::os_file::Os;
use crate::posix::outlet::{Outlet, Stopped, start_write_back};
use crate::posix::writable::{Shared, TABLE_BUFFER};
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::{Buffer, Error, ErrorKind, Result};

/// Shorter blocks are written by their owner: handing one over costs more than writing it.
pub(crate) const SHORTEST: usize = 64 << 10;
/// Blocks of one table that are out at once.
pub(crate) const PER_TABLE: usize = 4;
/// What a table collects before it is handed over. Each handing over wakes two threads, so it is as
/// much as the longest buffers that the pool keeps.
pub(crate) const HANDED: usize = 1 << 20;
/// Bytes that an owner writes itself after it was first found to be faster than the reactor.
const SHORTEST_REST: usize = 4 << 20;
/// The most bytes of one rest, when that happens again and again.
const LONGEST_REST: usize = 64 << 20;
/// Blocks handed over without a stall that show that the reactor keeps up: several times what may
/// be out, which alone any owner can hand over.
const KEEPS_UP: usize = 4 * PER_TABLE;

/// How one file uses the reactor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Blocks out at once.
    pub(crate) depth: usize,
    /// Blocks shorter than this stay on the caller.
    pub(crate) shortest: usize,
    /// Whether each call waits until what it put is in the file.
    pub(crate) waits: bool,
    /// An owner that does nothing between its blocks writes them itself: the reactor, which writes
    /// no faster, would only be in its way.
    pub(crate) rests: bool,
    /// A flush to the medium is begun for each so many bytes.
    pub(crate) early_sync: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Handover {
    reactor: Arc<Reactor>,
    stream: Arc<Stream>,
    manner: Manner,
    /// Bytes that the owner writes itself before it hands a block over again.
    rest: usize,
    /// Blocks that were handed over since it last began to.
    handed: usize,
    /// Blocks were handed over since everything was last known to be in.
    unsettled: bool,
    /// The file may have grown since the last time it was told so.
    grown: bool,
    /// Appended bytes up to here are in the file whatever comes.
    kept: u64,
    /// The end was told to the caller with the first failure.
    stopped: bool,
}

/// How long the owners of tables rest, which they learn from each other: those of one environment
/// do much the same.
#[derive(Debug, Default)]
pub(super) struct Rests(AtomicUsize);

// Relaxed throughout: it is a guess that guards no other memory.
impl Rests {
    /// The bytes that the owner of a new file writes itself: fewer with each file, and none in the
    /// end, so that a rest that is longer than files are does not last.
    fn of_a_new_file(&self) -> usize {
        let bytes = self.0.load(Ordering::Relaxed);
        let fewer = bytes - bytes / 8;
        self.0.store(if fewer < SHORTEST_REST { 0 } else { fewer }, Ordering::Relaxed);
        bytes
    }

    /// An owner was faster than the reactor.
    fn longer(&self) -> usize {
        let bytes = self.0.load(Ordering::Relaxed) * 2;
        let bytes = bytes.clamp(SHORTEST_REST, LONGEST_REST);
        self.0.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// The reactor kept up.
    fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// How a block goes into the file.
enum Way {
    Reactor(Share),
    Caller,
}

impl Handover {
    pub(crate) fn new(reactor: &Arc<Reactor>, file: &Arc<Shared>, manner: Manner) -> Self {
        let write_back = file.direct().is_none() && !manner.waits;
        let hints = Hints { write_back, early_sync: manner.early_sync };
        Self {
            reactor: Arc::clone(reactor),
            stream: Stream::new(file, hints, &reactor.gave_up),
            manner,
            rest: if manner.rests { reactor.rests.of_a_new_file() } else { 0 },
            handed: 0,
            unsettled: false,
            grown: false,
            kept: 0,
            stopped: false,
        }
    }

    fn file(&self) -> &Arc<Shared> {
        self.stream.file()
    }

    fn os(&self) -> &Arc<Os> {
        self.file().os()
    }

    /// Memory of `len` bytes for one write of this file.
    fn memory(&self, len: usize) -> Buffer {
        if self.file().direct().is_some() {
            self.os().take_direct(len)
        } else {
            self.os().pool.take(len)
        }
    }

    /// Fails in a child of a fork if blocks are out there: their thread is not here. Nothing of
    /// the reactor's is touched, since its locks may have been held when the process was copied.
    fn check_process(&self) -> Result<(), Stopped> {
        if !self.unsettled || self.reactor.is_ours() {
            return Ok(());
        }
        let message = "written by a thread that a child made by fork does not have";
        let file = self.file();
        Err(file.fail(Error::new(ErrorKind::Other, "append", file.path(), message)).into())
    }

    /// Whether the reactor takes blocks of this file at all.
    fn reactor_takes(&self) -> bool {
        self.reactor.takes() && !self.stream.is_refused()
    }

    /// Decides how a block of `len` bytes that takes `memory` goes into the file; waits for own
    /// blocks if too many are out.
    fn way(&mut self, len: usize, memory: usize) -> Result<Way, Stopped> {
        if len < self.manner.shortest || !self.reactor_takes() {
            return Ok(Way::Caller);
        }
        if self.rest > 0 {
            self.rest = self.rest.saturating_sub(len);
            // What comes back meanwhile holds memory that other files may want.
            self.write_returned()?;
            return Ok(Way::Caller);
        }
        let mut stalled = false;
        loop {
            self.write_returned()?;
            self.check_file()?;
            let out = self.stream.out();
            if out < self.manner.depth {
                if let Some(share) = self.reactor.budget().take(memory) {
                    return Ok(Way::Reactor(share));
                }
                if !stalled {
                    self.os().counters.bump(Count::ReactorBudgetFull);
                }
            }
            if out == 0 {
                return Ok(Way::Caller);
            }
            if !stalled {
                self.os().counters.bump(Count::ReactorStalls);
                stalled = true;
            }
            if self.manner.rests && out >= self.manner.depth {
                self.begin_rest(len)?;
                return Ok(Way::Caller);
            }
            self.await_fewer_than(out)?;
        }
    }

    /// The owner writes what is still queued, and the next bytes, of which so many are there.
    fn begin_rest(&mut self, len: usize) -> Result<(), Stopped> {
        self.os().counters.bump(Count::ReactorRests);
        self.rest = self.reactor.rests.longer().saturating_sub(len);
        self.handed = 0;
        while let Some(block) = self.reactor.take_back(&self.stream) {
            self.os().counters.bump(Count::TakenBack);
            block.give_back(0, false);
        }
        self.write_returned()
    }

    /// Brings the blocks that are out below `out`: by writing the oldest of those that are still
    /// queued, or else by waiting for one in the kernel.
    fn await_fewer_than(&mut self, out: usize) -> Result<(), Stopped> {
        let queued = || self.reactor.take_back(&self.stream);
        // Who waits for every single write would take back each before the reactor wakes up.
        if let Some(block) = (!self.manner.waits).then(queued).flatten() {
            self.os().counters.bump(Count::TakenBack);
            block.give_back(0, false);
            self.write_returned()
        } else if self.stream.wait(out) {
            Ok(())
        } else {
            Err(self.given_up())
        }
    }

    /// Ends the file's writing because the kernel may keep what it has for ever.
    fn given_up(&mut self) -> Stopped {
        let message = "in the kernel when a shutdown ran out of time; it may be written or not";
        let file = self.file();
        let error = file.fail(Error::new(ErrorKind::Other, "append", file.path(), message));
        self.stop(error)
    }

    /// Writes what came back, by plain calls.
    fn write_returned(&mut self) -> Result<(), Stopped> {
        while let Some(Returned { data, at, from, .. }) = self.stream.next_returned() {
            let from = self.aligned_down(from);
            self.os().counters.bump(Count::FallbackPwrites);
            self.write_here(&data[from..], at + from as u64)?;
        }
        Ok(())
    }

    /// The last place at or below `at` where a write of this file may begin.
    fn aligned_down(&self, at: usize) -> usize {
        self.file().direct().map_or(at, |align| {
            let step = align.step();
            at / step * step
        })
    }

    /// Writes reserved bytes on this thread.
    fn write_here(&mut self, data: &[u8], at: u64) -> Result<(), Stopped> {
        if let Err(failure) = self.file().put_reserved(data, at) {
            self.stream.break_at(at + failure.written as u64);
            return Err(self.stop(failure.error));
        }
        self.reactor.breaker().good();
        self.stream.wrote(at + data.len() as u64);
        if let Some((from, len)) = self.stream.take_unpushed() {
            start_write_back(self.file(), from, len);
        }
        Ok(())
    }

    /// Puts bytes that need no buffer of their own: a short block, or one that the reactor does not
    /// take.
    fn put_here(&mut self, data: &[u8], at: u64) -> Result<(), Stopped> {
        self.grown |= self.file().reserve(at + data.len() as u64);
        if data.len() >= self.manner.shortest {
            self.os().counters.bump(Count::FallbackPwrites);
        }
        self.write_here(data, at)
    }

    /// Hands a buffer over, whose first `len` bytes go to `at`.
    fn hand_over(&mut self, data: Buffer, at: u64, share: Share) {
        self.grown |= self.file().reserve(at + data.len() as u64);
        self.unsettled = true;
        self.handed += 1;
        if self.manner.rests && self.handed == KEEPS_UP {
            self.reactor.rests.forget();
        }
        let ticket = self.stream.hand_over(at, data.len());
        if let Err(block) = self.reactor.push(Block::new(ticket, data, share)) {
            block.give_back(0, false);
        }
    }

    fn check_file(&mut self) -> Result<(), Stopped> {
        match self.file().check() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.stop(error)),
        }
    }

    /// Ends the file's writing: waits until nothing is out, drops what came back, and cuts off
    /// what lies beyond the first missing byte, so that the file is a prefix of what was appended.
    /// What the kernel may keep for ever stays with the reactor, and then nothing is cut off.
    fn stop(&mut self, error: Error) -> Stopped {
        if self.stopped {
            return error.into();
        }
        self.stopped = true;
        self.take_back_all();
        loop {
            while let Some(Returned { at, from, .. }) = self.stream.next_returned() {
                self.stream.break_at(at + self.aligned_down(from) as u64);
            }
            if self.stream.out() == 0 || !self.stream.wait(1) {
                break;
            }
        }
        self.unsettled = false;
        let (end, gap_beyond) = self.stream.broken_at();
        let end = end.map(|end| end.max(self.kept));
        if let Some(end) = end
            && gap_beyond
        {
            // Failing this too leaves a gap in a file whose error is known.
            let _ = self.file().cut_to(end);
        }
        Stopped { error, end }
    }

    /// Takes back whatever is still queued, to be dropped.
    fn take_back_all(&self) {
        while let Some(block) = self.reactor.take_back(&self.stream) {
            block.give_back(0, false);
        }
    }
}

impl Outlet for Handover {
    /// Asked by every append, so it makes no system call: that this is a child made by fork is
    /// found when something is put or settled, or before the reactor is touched for a failure.
    fn check(&mut self) -> Result<(), Stopped> {
        if self.file().check().is_ok() {
            return Ok(());
        }
        self.check_process()?;
        self.check_file()
    }

    fn buffer_len(&self) -> usize {
        if self.gathers() { HANDED } else { TABLE_BUFFER }
    }

    fn gathers(&self) -> bool {
        self.rest == 0 && self.reactor_takes()
    }

    fn put_buffer(&mut self, buffer: &mut Buffer, len: usize, at: u64) -> Result<(), Stopped> {
        self.check_process()?;
        match self.way(len, buffer.capacity())? {
            Way::Caller => {
                self.put_here(&buffer[..len], at)?;
                let next = self.buffer_len();
                if buffer.len() != next {
                    *buffer = self.memory(next);
                }
            }
            Way::Reactor(share) => {
                let next = self.memory(self.buffer_len());
                let full = std::mem::replace(buffer, next);
                self.hand_over(full.narrowed(0, len), at, share);
            }
        }
        if self.manner.waits { self.settle(at + len as u64) } else { Ok(()) }
    }

    fn put(&mut self, data: &[u8], at: u64) -> Result<(), Stopped> {
        self.check_process()?;
        let mut at = at;
        for part in data.chunks(HANDED) {
            match self.way(part.len(), part.len())? {
                Way::Caller => self.put_here(part, at)?,
                Way::Reactor(share) => {
                    let mut copy = self.memory(part.len());
                    copy.as_mut_slice().copy_from_slice(part);
                    self.hand_over(copy, at, share);
                }
            }
            at += part.len() as u64;
        }
        if self.manner.waits { self.settle(at) } else { Ok(()) }
    }

    fn settle(&mut self, end: u64) -> Result<(), Stopped> {
        self.check_process()?;
        if self.unsettled {
            loop {
                self.write_returned()?;
                let out = self.stream.out();
                if out == 0 {
                    break;
                }
                self.await_fewer_than(out)?;
            }
            self.write_returned()?;
            self.unsettled = false;
        }
        self.check_file()?;
        if std::mem::take(&mut self.grown) {
            self.file().note_growth();
        }
        self.kept = end;
        Ok(())
    }
}

impl Drop for Handover {
    /// Waits for what is in the kernel, so that nothing is written to the file afterwards, unless
    /// that may take for ever. What is queued is dropped: of bytes that were not flushed nothing
    /// was promised.
    fn drop(&mut self) {
        if !self.unsettled || !self.reactor.is_ours() {
            return;
        }
        self.stream.abandon();
        self.take_back_all();
        let _ = self.stream.wait(1);
    }
}
