//! The batched reads of `PosixEnv`: parallel without a ring.
//!
//! A read is issued by asking the page cache without waiting (NOWAIT). Since Linux 6.12 a miss has
//! already started the device read; where that is not known of the device, a read-ahead hint starts
//! it. So all misses of the window are on their way while the first is waited for by a plain read.
//!
//! Invariants:
//! * Memory and hints are bounded: at most `WINDOW` reads and `WINDOW_BYTES` (or one longer read)
//!   are issued or ready; of the others only the request is kept.
//! * Nothing borrowed is in flight: between calls the kernel holds no pointer of this queue.
//! * A request is asked of the cache at most once before it is read, but for one per probing batch.

use std::collections::VecDeque;

use crate::counters::Count;
use crate::os_file::{BatchPlan, Device, Kick, Latch, Nowait, Os, OsFile};
use crate::sync::Arc;
use crate::{Access, Buffer, Completion, IoQueue, RandomAccessFile, Request, Result, queue};

/// Reads issued or ready at once: what the measured devices do in parallel.
pub(crate) const WINDOW: usize = 64;
/// Bytes issued or ready at once.
pub(crate) const WINDOW_BYTES: usize = 8 << 20;
/// A longer read is not asked of the cache: the hint alone keeps the device busy.
const LONG: usize = 512 << 10;
/// A range that is asked for twice to learn about the device is no longer than this.
const PROBE: usize = 64 << 10;
/// A queue that never runs dry counts as a new batch after so many reads.
const BATCH: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct PrefetchQueue {
    os: Arc<Os>,
    prefetch: bool,
    window: usize,
    /// Not issued yet, in the order of the pushes.
    waiting: VecDeque<(u64, Request)>,
    /// Issued; each needs a plain read or write when its turn comes.
    pending: VecDeque<Pending>,
    /// Finished, each with the bytes it was counted for.
    ready: VecDeque<(Completion, usize)>,
    /// What `pending` and `ready` stand for, in bytes.
    bytes: usize,
    /// The read issued last was all in the cache.
    streak: bool,
    batch: Batch,
}

#[derive(Debug)]
enum Pending {
    Read(Miss),
    /// A write, or a read of a file that is not ours: through the file's own methods.
    Run(u64, Request),
}

#[derive(Debug)]
struct Miss {
    tag: u64,
    file: Arc<dyn RandomAccessFile>,
    offset: u64,
    len: usize,
    /// The memory, if the cache was asked; its first `filled` bytes are there.
    buffer: Option<Buffer>,
    filled: usize,
    /// This one shows whether misses start reads: no hint was given for it.
    subject: bool,
}

/// What is known about the batch under way. Few devices, so a list.
#[derive(Debug, Default)]
struct Batch {
    issued: u64,
    peak: u64,
    devices: Vec<OnDevice>,
}

#[derive(Debug)]
struct OnDevice {
    device: Arc<Device>,
    plan: BatchPlan,
    hits: u64,
    tried: u64,
    subject: Subject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// None yet, but one is wanted.
    Wanted,
    /// Waiting, until other misses behind it have been read.
    Waiting { others_read: bool, put_back: bool },
    /// Done, or not wanted.
    Over,
}

impl PrefetchQueue {
    /// A queue that keeps up to `window` reads going.
    pub(crate) fn new(os: &Arc<Os>, window: usize) -> Self {
        Self::with_mode(os, window, true)
    }

    /// One plain read after another, each when it is popped: the baseline.
    pub(crate) fn serial(os: &Arc<Os>) -> Self {
        Self::with_mode(os, 1, false)
    }

    fn with_mode(os: &Arc<Os>, window: usize, prefetch: bool) -> Self {
        let (waiting, pending, ready, batch) = Default::default();
        let os = Arc::clone(os);
        Self { os, prefetch, window, waiting, pending, ready, bytes: 0, streak: false, batch }
    }

    fn in_window(&self) -> usize {
        self.pending.len() + self.ready.len()
    }

    /// Whether reads wait until they are asked for. While all of them hit there is nothing to
    /// start early, and one that is issued when it is popped reuses memory that is still in the
    /// processor's cache. The first miss sends everything out.
    fn holds_back(&self) -> bool {
        self.streak && self.pending.is_empty()
    }

    fn has_room(&self, request: &Request) -> bool {
        let len = read_len(request);
        self.in_window() == 0
            || (self.in_window() < self.window && self.bytes.saturating_add(len) <= WINDOW_BYTES)
    }

    /// Starts a request as far as it can be started without waiting.
    fn issue(&mut self, tag: u64, request: Request) {
        self.bytes = self.bytes.saturating_add(read_len(&request));
        let (file, offset, len) = match request {
            Request::Read { file, offset, len } => (file, offset, len),
            Request::Write { .. } => return self.pending.push_back(Pending::Run(tag, request)),
        };
        let Some(os_file) = OsFile::of(&*file) else {
            let request = Request::Read { file, offset, len };
            return self.pending.push_back(Pending::Run(tag, request));
        };
        // Checked before memory is made, so that a wild length is an error and no allocation.
        if let Err(error) = os_file.check_range(offset, len) {
            return self.complete(tag, len, Err(error));
        }
        if let Some(view) = os_file.view(offset, len) {
            self.os.counters.bump(Count::MmapReads);
            return self.complete(tag, len, Ok(view));
        }
        let mut miss = Miss {
            tag,
            file: Arc::clone(&file),
            offset,
            len,
            buffer: None,
            filled: 0,
            subject: false,
        };
        if self.prefetch
            && len > 0
            && os_file.direct().is_none()
            && self.prefetched(os_file, &mut miss)
        {
            let buffer = miss.buffer.take().expect("a read that hit has its memory");
            self.streak = true;
            return self.complete(tag, len, Ok(buffer));
        }
        self.streak = false;
        self.pending.push_back(Pending::Read(miss));
        self.batch.issued += 1;
        self.batch.peak = self.batch.peak.max(self.in_window() as u64);
    }

    /// Asks the cache for a read; true if all of it was there. If not, the device read of the rest
    /// has been started.
    fn prefetched(&mut self, file: &OsFile, miss: &mut Miss) -> bool {
        let on = self.batch.on(file.device());
        let counters = &self.os.counters;
        if miss.len > LONG || file.nowait_latch() == Latch::Unsupported {
            file.hint(miss.offset, miss.len as u64, counters);
            return false;
        }
        if on.plan.skip_nowait {
            counters.bump(Count::NowaitSkipped);
            file.hint(miss.offset, miss.len as u64, counters);
            return false;
        }
        let buffer = miss.buffer.insert(self.os.pool.take(miss.len));
        let asked = file.read_nowait(buffer.as_mut_slice(), miss.offset, counters);
        on.tried += 1;
        miss.filled = match asked {
            Nowait::Full => {
                on.hits += 1;
                return true;
            }
            Nowait::Short(n) => n,
            Nowait::Miss | Nowait::Unsupported => 0,
        };
        let may_probe =
            asked == Nowait::Miss && miss.len <= PROBE && file.access() == Access::Random;
        if may_probe && on.subject == Subject::Wanted {
            on.subject = Subject::Waiting { others_read: false, put_back: false };
            miss.subject = true;
        } else if file.device().kick() != Kick::Kicks || asked == Nowait::Unsupported {
            let filled = miss.filled as u64;
            file.hint(miss.offset + filled, miss.len as u64 - filled, counters);
        }
        false
    }

    fn complete(&mut self, tag: u64, len: usize, result: Result<Buffer>) {
        self.ready.push_back((Completion { tag, result }, len));
        self.batch.issued += 1;
        self.batch.peak = self.batch.peak.max(self.in_window() as u64);
    }

    /// The oldest pending request; a probing batch's subject goes behind the others once.
    fn next_pending(&mut self) -> Option<Pending> {
        let front = self.pending.pop_front()?;
        if let Pending::Read(miss) = &front
            && miss.subject
            && !self.pending.is_empty()
            && let Some(file) = OsFile::of(&*miss.file)
        {
            let on = self.batch.on(file.device());
            if let Subject::Waiting { put_back: put_back @ false, .. } = &mut on.subject {
                *put_back = true;
                self.pending.push_back(front);
                return self.pending.pop_front();
            }
        }
        Some(front)
    }

    /// Finishes a request by plain reads or writes on the calling thread.
    fn finish(&mut self, pending: Pending) -> (u64, Result<Buffer>, usize) {
        match pending {
            Pending::Run(tag, request) => {
                let len = read_len(&request);
                (tag, queue::run(request), len)
            }
            Pending::Read(miss) => {
                let (tag, len) = (miss.tag, miss.len);
                (tag, self.finish_read(miss), len)
            }
        }
    }

    fn finish_read(&mut self, mut miss: Miss) -> Result<Buffer> {
        let file = Arc::clone(&miss.file);
        let file = OsFile::of(&*file).expect("only reads of our files are kept as misses");
        let Some(mut buffer) = miss.buffer.take() else {
            let buffer = file.read_buffer(&self.os, miss.offset, miss.len);
            self.batch.note_read(file);
            return buffer;
        };
        if miss.subject && self.subject_hits(file, &mut buffer, miss.offset) {
            return Ok(buffer);
        }
        let rest = &mut buffer.as_mut_slice()[miss.filled..];
        file.pread_exact(rest, miss.offset + miss.filled as u64, &self.os.counters)?;
        self.batch.note_read(file);
        Ok(buffer)
    }

    /// Asks the cache again for the read that had missed and got no hint, now that reads behind it
    /// have finished: if it is there, the miss itself had started it.
    fn subject_hits(&mut self, file: &OsFile, buffer: &mut Buffer, offset: u64) -> bool {
        let counters = &self.os.counters;
        let on = self.batch.on(file.device());
        let tells = matches!(on.subject, Subject::Waiting { others_read: true, .. });
        on.subject = Subject::Over;
        if !tells {
            return false;
        }
        match file.read_nowait(buffer.as_mut_slice(), offset, counters) {
            Nowait::Full => {
                counters.bump(Count::KickYes);
                file.device().vote(true);
                true
            }
            Nowait::Miss => {
                counters.bump(Count::KickNo);
                file.device().vote(false);
                false
            }
            // Says nothing: some of it may have been there before.
            Nowait::Short(_) | Nowait::Unsupported => false,
        }
    }

    fn refill(&mut self) {
        while let Some((_, request)) = self.waiting.front()
            && self.has_room(request)
            && !self.holds_back()
        {
            let (tag, request) = self.waiting.pop_front().expect("there is a first one");
            self.issue(tag, request);
        }
        let dry = self.in_window() == 0 && self.waiting.is_empty();
        if dry || (self.batch.issued >= BATCH && !self.batch.subject_waits()) {
            self.batch.end(&self.os);
        }
    }
}

impl IoQueue for PrefetchQueue {
    fn push(&mut self, tag: u64, request: Request) {
        if self.waiting.is_empty() && self.has_room(&request) && !self.holds_back() {
            self.issue(tag, request);
        } else {
            self.waiting.push_back((tag, request));
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        if self.in_window() == 0
            && let Some((tag, request)) = self.waiting.pop_front()
        {
            self.issue(tag, request);
            self.refill();
        }
        let (completion, len) = if let Some(ready) = self.ready.pop_front() {
            ready
        } else {
            let pending = self.next_pending()?;
            let (tag, result, len) = self.finish(pending);
            (Completion { tag, result }, len)
        };
        self.bytes -= len;
        self.refill();
        Some(completion)
    }
}

impl Drop for PrefetchQueue {
    fn drop(&mut self) {
        self.batch.end(&self.os);
    }
}

impl Batch {
    /// The device's part of this batch, begun if this is its first read.
    fn on(&mut self, device: &Arc<Device>) -> &mut OnDevice {
        let known = self.devices.iter().position(|on| Arc::ptr_eq(&on.device, device));
        let index = known.unwrap_or_else(|| {
            let plan = device.begin_batch();
            let subject = if plan.probe_kick { Subject::Wanted } else { Subject::Over };
            let device = Arc::clone(device);
            self.devices.push(OnDevice { device, plan, hits: 0, tried: 0, subject });
            self.devices.len() - 1
        });
        &mut self.devices[index]
    }

    /// A plain read of a miss has finished.
    fn note_read(&mut self, file: &OsFile) {
        if let Subject::Waiting { others_read, .. } = &mut self.on(file.device()).subject {
            *others_read = true;
        }
    }

    fn subject_waits(&self) -> bool {
        self.devices.iter().any(|on| matches!(on.subject, Subject::Waiting { .. }))
    }

    fn end(&mut self, os: &Os) {
        for on in self.devices.drain(..) {
            on.device.end_batch(on.hits, on.tried);
        }
        if self.peak > 0 {
            os.counters.peak(Count::InFlightPeak, self.peak);
        }
        (self.issued, self.peak) = (0, 0);
    }
}

/// The bytes a read will hold; a write brings its own, which its caller bounds.
fn read_len(request: &Request) -> usize {
    match request {
        Request::Read { len, .. } => *len,
        Request::Write { .. } => 0,
    }
}
