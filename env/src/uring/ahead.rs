//! Read-ahead of direct files. What `will_need` announces the reactor reads, into memory that is
//! kept here until reads have come from one end of it to the other. Nothing of it belongs to a
//! thread that reads.
//!
//! Invariants:
//! * Memory kept and memory on its way together are never more than the limit. What finds no room
//!   is refused, since throwing out what others are about to read would make every read a waste.
//!   Only what nobody has read from for a while goes.
//! * A read waits for nothing that nobody has: a range that could not be read whole, for whatever
//!   reason, is forgotten, and a plain read has the last word.
//! * Files do not change while they are open for reading, so nothing kept is ever old.
//! * No file is closed, and no memory freed, under the lock.

use std::collections::BTreeMap;
use std::ops;

use super::op::Op;
use super::reactor::{Errand, Home, Reactor};
use crate::counters::Count;
use crate::os_file::{Announced, Os, OsFile};
use crate::process::Process;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Condvar, LOOKS_EVERY, Mutex, Ordering, Weak};
use crate::{Buffer, RandomAccessFile};

/// The longest range that is read ahead for one announcement: some milliseconds of a slow device.
const LONGEST: usize = 1 << 20;
/// Memory pages, and the blocks of most tables.
const PAGE: usize = 4096;
/// A range nobody has read from during so many refusals is taken for left behind. A scan that goes
/// on reads from its ranges some hundred times between two announcements.
const REFUSALS: u64 = 16;

/// A file, and where in it a range begins.
type Place = (u64, u64);

/// What is kept, and what is on its way, of all files of one environment.
#[derive(Debug)]
pub(crate) struct Ahead {
    os: Arc<Os>,
    /// Weak, since files are also closed on the thread of the reactor, which cannot wait for
    /// itself.
    reactor: Weak<Reactor>,
    /// The process that has the reactor; another knows nothing of what is kept, lock included.
    owner: Process,
    /// Bytes.
    limit: usize,
    files: AtomicU64,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ranges: BTreeMap<Place, Range>,
    /// What has arrived, by the key of its errand: the oldest first.
    arrived: BTreeMap<u64, Place>,
    /// What is on its way, by the key of its errand. One that was forgotten stays here until it has
    /// come back, since its memory does.
    expected: BTreeMap<u64, (Place, usize)>,
    next_key: u64,
    refusals: u64,
    /// Of `ranges` that arrived and of all that is expected.
    bytes: usize,
}

#[derive(Debug)]
struct Range {
    key: u64,
    len: usize,
    /// `None` while it is on its way.
    data: Option<Arc<Buffer>>,
    /// From where to where reads have taken of it.
    taken: ops::Range<usize>,
    /// How many refusals there had been when it came or was last read from.
    touched: u64,
    /// How many ranges of its file there are.
    of_file: Arc<AtomicUsize>,
}

impl Range {
    /// Whether reads have come from one end to the other, but for less than a page at either, which
    /// may be the padding of a block or a part of the next one.
    fn is_read(&self) -> bool {
        !self.taken.is_empty() && self.taken.start < PAGE && self.taken.end + PAGE > self.len
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // Relaxed: whoever finds another number than is true takes or spares the lock in vain.
        self.of_file.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// The range that holds the byte at `at`, and where it begins.
    fn holding(&mut self, file: u64, at: u64) -> Option<(u64, &mut Range)> {
        let ((of, start), range) = self.ranges.range_mut(..=(file, at)).next_back()?;
        (*of == file && at - start < range.len as u64).then_some((*start, range))
    }

    /// Forgets a range; gives its memory if it was there.
    fn forget(&mut self, place: Place) -> Option<Arc<Buffer>> {
        let mut range = self.ranges.remove(&place)?;
        let data = range.data.take()?;
        self.arrived.remove(&range.key);
        self.bytes -= range.len;
        Some(data)
    }

    /// Forgets the oldest that was left behind.
    fn forget_one_left(&mut self) -> Option<Arc<Buffer>> {
        let left = |place| {
            self.ranges.get(place).is_some_and(|range| self.refusals - range.touched >= REFUSALS)
        };
        let place = *self.arrived.values().find(|place| left(place))?;
        self.forget(place)
    }

    /// A read has taken the bytes from `from` to `end`. Forgets what is of no more use: ranges of
    /// which all was taken, and, when a range is begun, those of the file that were left by the way
    /// to it.
    fn take(&mut self, file: u64, from: u64, end: u64) -> Vec<Arc<Buffer>> {
        let (refusals, mut begun, mut over, mut at) = (self.refusals, None, Vec::new(), from);
        while at < end
            && let Some((start, range)) = self.holding(file, at)
        {
            let until = end.min(start + range.len as u64);
            let inside = |place: u64| usize::try_from(place - start).expect("inside a range");
            if range.taken.is_empty() {
                begun = Some(start);
            }
            range.touched = refusals;
            range.taken = range.taken.start.min(inside(at))..range.taken.end.max(inside(until));
            if range.taken == (0..range.len) {
                over.push((file, start));
            }
            at = until;
        }
        if let Some(begun) = begun {
            let others = self.ranges.range((file, 0)..=(file, u64::MAX));
            let left = others.filter(|((_, start), range)| *start != begun && range.is_read());
            over.extend(left.map(|(place, _)| *place));
        }
        over.into_iter().filter_map(|place| self.forget(place)).collect()
    }

    /// The part of a range that nothing covers yet, from its first such byte on and no longer than
    /// `longest`.
    fn uncovered(
        &mut self,
        file: u64,
        mut from: u64,
        mut end: u64,
        longest: usize,
    ) -> Option<(u64, usize)> {
        while from < end
            && let Some((start, range)) = self.holding(file, from)
        {
            from = start + range.len as u64;
        }
        if from >= end {
            return None;
        }
        if let Some((&(_, next), _)) = self.ranges.range((file, from)..(file, end)).next() {
            end = next;
        }
        Some((from, usize::try_from(end - from).unwrap_or(longest).min(longest)))
    }
}

impl Ahead {
    /// Keeps up to `limit` bytes read by `reactor`.
    pub(crate) fn new(os: &Arc<Os>, reactor: &Arc<Reactor>, limit: usize) -> Arc<Self> {
        let (files, state, arrived) = Default::default();
        let reactor = Arc::downgrade(reactor);
        let (os, owner) = (Arc::clone(os), Process::current());
        Arc::new(Self { os, reactor, owner, limit, files, state, arrived })
    }

    /// How much is read ahead for one announcement: some ranges must find room together.
    fn longest(&self) -> usize {
        (self.limit / 4).clamp(PAGE, LONGEST) & !(PAGE - 1)
    }

    fn is_ours(&self) -> bool {
        self.owner.is_current()
    }

    /// Takes the announcements of a direct file from now on.
    pub(crate) fn attend(self: &Arc<Self>, file: &Arc<OsFile>) {
        // Relaxed: only that no number is given twice matters.
        let id = self.files.fetch_add(1, Ordering::Relaxed);
        let ranges = Arc::default();
        let of_file = OfFile { ahead: Arc::clone(self), file: Arc::downgrade(file), id, ranges };
        file.tell_announcements(Box::new(of_file));
    }

    /// Bytes kept or on their way, and how many they may be.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = if self.is_ours() { self.state.lock().bytes } else { 0 };
        (bytes, self.limit)
    }

    /// Sends the reactor for what is not there yet of a range of whole blocks of its file.
    fn fetch(self: &Arc<Self>, of_file: &OfFile, file: Arc<OsFile>, from: u64, end: u64) {
        let Some(reactor) = self.reactor.upgrade().filter(|reactor| reactor.takes()) else {
            return;
        };
        let mut freed = Vec::new();
        let mut state = self.state.lock();
        let Some((start, len)) = state.uncovered(of_file.id, from, end, self.longest()) else {
            return;
        };
        while state.bytes + len > self.limit {
            let Some(left) = state.forget_one_left() else {
                state.refusals += 1;
                drop(state);
                self.os.counters.bump(Count::ReadAheadRefused);
                return;
            };
            freed.push(left);
        }
        let (place, key) = ((of_file.id, start), state.next_key);
        state.next_key += 1;
        state.bytes += len;
        state.expected.insert(key, (place, len));
        of_file.ranges.fetch_add(1, Ordering::Relaxed);
        let ranges = Arc::clone(&of_file.ranges);
        let touched = state.refusals;
        let taken = len..0;
        let range = Range { key, len, data: None, taken, touched, of_file: ranges };
        state.ranges.insert(place, range);
        drop(state);
        drop(freed);
        self.os.counters.bump(Count::ReadAheadRanges);
        let mut op = Op::new(key, file, start, len, &self.os);
        op.leave(0);
        let home = Arc::clone(self) as Arc<dyn Home>;
        reactor.read(vec![Errand::new(op, key, home)]);
    }

    /// Fills `buf` if all of it was announced, waiting for what is on its way; else its contents
    /// are unspecified.
    fn fill(&self, id: u64, buf: &mut [u8], offset: u64) -> bool {
        if buf.is_empty() || !self.is_ours() {
            return false;
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let Some((start, data)) = self.await_range(id, at) else { return false };
            let skip = usize::try_from(at - start).expect("inside a range");
            let part = (data.len() - skip).min(buf.len() - done);
            buf[done..done + part].copy_from_slice(&data[skip..skip + part]);
            done += part;
        }
        let mut state = self.state.lock();
        let freed = state.take(id, offset, offset + done as u64);
        drop(state);
        drop(freed);
        self.os.counters.bump(Count::ReadAheadHits);
        true
    }

    /// The range that holds a byte, when it is there; `None` if there is none, or none any more.
    fn await_range(&self, id: u64, at: u64) -> Option<(u64, Arc<Buffer>)> {
        loop {
            let mut state = self.state.lock();
            let (start, range) = state.holding(id, at)?;
            if let Some(data) = &range.data {
                return Some((start, Arc::clone(data)));
            }
            let timed_out = self.arrived.wait_for(&mut state, LOOKS_EVERY).timed_out();
            drop(state);
            // Not under the lock: this may be the last handle of a reactor that needs it to end.
            if timed_out && self.reactor.upgrade().is_none_or(|reactor| reactor.gave_up()) {
                let freed = self.state.lock().forget((id, start));
                drop(freed);
                return None;
            }
        }
    }

    /// Forgets all of a file.
    fn forget_file(&self, id: u64) {
        if !self.is_ours() {
            return;
        }
        let mut state = self.state.lock();
        let places: Vec<Place> =
            state.ranges.range((id, 0)..=(id, u64::MAX)).map(|(p, _)| *p).collect();
        let freed: Vec<_> = places.into_iter().filter_map(|place| state.forget(place)).collect();
        drop(state);
        drop(freed);
    }
}

impl Home for Ahead {
    fn os(&self) -> &Os {
        &self.os
    }

    fn take_back(&self, key: u64, op: Op) {
        // Nobody is made to wait for a plain read on this thread.
        let data = if op.has_rest() { None } else { op.finish(&self.os.counters).1.ok() };
        let mut state = self.state.lock();
        let (place, len) = state.expected.remove(&key).expect("an errand comes back once");
        let refusals = state.refusals;
        match (state.ranges.get_mut(&place).filter(|range| range.key == key), data) {
            (Some(range), Some(data)) => {
                range.data = Some(Arc::new(data));
                range.touched = refusals;
                state.arrived.insert(key, place);
            }
            (kept, data) => {
                if kept.is_some() {
                    state.ranges.remove(&place);
                }
                state.bytes -= len;
                drop(state);
                drop(data);
            }
        }
        self.arrived.notify_all();
    }
}

/// What one file announces.
#[derive(Debug)]
struct OfFile {
    ahead: Arc<Ahead>,
    file: Weak<OsFile>,
    id: u64,
    /// How many ranges of it are kept or on their way; if none, a read need not look.
    ranges: Arc<AtomicUsize>,
}

impl Announced for OfFile {
    fn announce(&self, offset: u64, len: u64) {
        let Some(file) = self.file.upgrade() else { return };
        let Some(align) = file.direct() else { return };
        // Whole blocks are what is read, and what must be counted.
        let block = align.offset.max(PAGE as u64);
        let (size, from) = (file.size(), offset & !(block - 1));
        let end = offset.saturating_add(len).min(size);
        if offset < end {
            self.ahead.fetch(self, file, from, end.next_multiple_of(block).min(size));
        }
    }

    fn fill(&self, buf: &mut [u8], offset: u64) -> bool {
        self.ranges.load(Ordering::Relaxed) > 0 && self.ahead.fill(self.id, buf, offset)
    }
}

impl Drop for OfFile {
    fn drop(&mut self) {
        if self.ranges.load(Ordering::Relaxed) > 0 {
            self.ahead.forget_file(self.id);
        }
    }
}
