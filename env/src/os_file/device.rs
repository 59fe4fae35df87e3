//! What is known about one device (`st_dev`): from how its reads behaved, whether a NOWAIT miss
//! also starts the read, and how often NOWAIT reads hit; from its driver, how long a read may be.
//!
//! Nothing is concluded from a kernel's version: distributions port features back.

#[cfg(target_os = "linux")]
use super::chunk::Chunk;
#[cfg(target_os = "linux")]
use super::polling;
#[cfg(target_os = "linux")]
use crate::sync::{AtomicBool, OnceLock};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};

/// Batches in a row that must agree before a verdict.
const AGREEING: u32 = 4;
/// One batch in this many checks a verdict again.
const RECHECK: u64 = 1024;
/// Hit rates are in units of 1 / `WHOLE`.
const WHOLE: u64 = 1 << 16;
/// Below this rate NOWAIT reads that start nothing are left out ...
const HARDLY_ANY: u64 = WHOLE / 16;
/// ... but for one batch in this many.
const LOOK_AGAIN: u64 = 16;

/// Whether a NOWAIT read that misses has started the read from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kick {
    /// Not known yet: a read-ahead hint is needed, and a batch may find out.
    Unknown,
    /// It has: no hint is needed.
    Kicks,
    /// It has not: it only looked into the cache.
    OnlyLooks,
}

#[derive(Debug, Default)]
struct Votes {
    kicked: bool,
    in_a_row: u32,
}

/// One device, shared by every file of an environment that is on it.
#[derive(Debug)]
pub(crate) struct Device {
    id: u64,
    kick: AtomicU8,
    votes: Mutex<Votes>,
    batches: AtomicU64,
    hit_rate: AtomicU64,
    /// Whether it has queues that can be asked for completions.
    #[cfg(target_os = "linux")]
    polls: OnceLock<bool>,
    /// It has, and yet a read on a ring that asks was refused.
    #[cfg(target_os = "linux")]
    refused_polling: AtomicBool,
    #[cfg(target_os = "linux")]
    chunk: OnceLock<Chunk>,
}

impl Device {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            kick: AtomicU8::new(Kick::Unknown as u8),
            votes: Mutex::default(),
            batches: AtomicU64::new(0),
            hit_rate: AtomicU64::new(WHOLE),
            #[cfg(target_os = "linux")]
            polls: OnceLock::new(),
            #[cfg(target_os = "linux")]
            refused_polling: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            chunk: OnceLock::new(),
        }
    }

    /// `st_dev`.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How long a read may be that is given to it at once. The first call asks the kernel.
    #[cfg(target_os = "linux")]
    pub(crate) fn chunk(&self) -> Chunk {
        *self.chunk.get_or_init(|| Chunk::of(self.id))
    }

    /// Whether it may be read by rings that ask it for completions. The first call asks the kernel.
    /// Relaxed: a stale answer costs a read that is refused and done again.
    #[cfg(target_os = "linux")]
    pub(crate) fn polls(&self) -> bool {
        let has_queues = *self.polls.get_or_init(|| polling::polls(self.id));
        has_queues && !self.refused_polling.load(Ordering::Relaxed)
    }

    /// Remembers that it refused such a read.
    #[cfg(target_os = "linux")]
    pub(crate) fn refuse_polling(&self) {
        self.refused_polling.store(true, Ordering::Relaxed);
    }

    /// Has it pass for one that can be asked.
    #[cfg(test)]
    pub(crate) fn pretend_to_poll(&self) {
        self.polls.get_or_init(|| true);
    }

    /// Has it pass for one whose driver takes twice so many bytes at once. Nobody may have asked it
    /// before.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn pretend_chunk(&self, bytes: usize) {
        let pretended = Chunk { bytes, driver_kib: None };
        assert!(self.chunk.set(pretended).is_ok(), "the kernel was asked already");
    }

    /// The verdict so far. Relaxed: it guards no other memory, and a stale one costs a hint.
    pub(crate) fn kick(&self) -> Kick {
        match self.kick.load(Ordering::Relaxed) {
            k if k == Kick::Kicks as u8 => Kick::Kicks,
            k if k == Kick::OnlyLooks as u8 => Kick::OnlyLooks,
            _ => Kick::Unknown,
        }
    }

    /// Begins a batch: whether it should find out about kicks, and whether it should leave out
    /// NOWAIT reads because hardly any would hit and none would start a read.
    pub(crate) fn begin_batch(&self) -> BatchPlan {
        let nth = self.batches.fetch_add(1, Ordering::Relaxed);
        let kick = self.kick();
        let rate = self.hit_rate.load(Ordering::Relaxed);
        let look = rate >= HARDLY_ANY || nth.is_multiple_of(LOOK_AGAIN);
        BatchPlan {
            probe_kick: kick == Kick::Unknown || nth % RECHECK == RECHECK - 1,
            skip_nowait: kick == Kick::OnlyLooks && !look,
        }
    }

    /// Folds in how the NOWAIT reads of a batch went. A lost update of a racing batch is harmless.
    pub(crate) fn end_batch(&self, hits: u64, tried: u64) {
        if tried == 0 {
            return;
        }
        let old = self.hit_rate.load(Ordering::Relaxed);
        let new = old - old / 8 + hits * WHOLE / tried / 8;
        self.hit_rate.store(new.min(WHOLE), Ordering::Relaxed);
    }

    /// Takes a batch's finding: after a miss, and another read that had to wait, the range that
    /// had missed was there (`kicked`) or not.
    pub(crate) fn vote(&self, kicked: bool) {
        let mut votes = self.votes.lock();
        if votes.kicked != kicked {
            *votes = Votes { kicked, in_a_row: 0 };
            self.kick.store(Kick::Unknown as u8, Ordering::Relaxed);
        }
        votes.in_a_row = votes.in_a_row.saturating_add(1);
        if votes.in_a_row >= AGREEING {
            let verdict = if kicked { Kick::Kicks } else { Kick::OnlyLooks };
            self.kick.store(verdict as u8, Ordering::Relaxed);
        }
    }
}

/// What one batch does on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPlan {
    pub(crate) probe_kick: bool,
    pub(crate) skip_nowait: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_agreeing_batches_decide_and_one_that_disagrees_reopens_the_question() {
        let device = Device::new(1);
        for _ in 0..3 {
            device.vote(true);
            assert_eq!(device.kick(), Kick::Unknown);
        }
        device.vote(true);
        assert_eq!(device.kick(), Kick::Kicks);
        device.vote(false);
        assert_eq!(device.kick(), Kick::Unknown);
        for _ in 0..3 {
            device.vote(false);
        }
        assert_eq!(device.kick(), Kick::OnlyLooks);
    }

    #[test]
    fn a_verdict_is_checked_again_once_in_1024_batches() {
        let device = Device::new(1);
        (0..4).for_each(|_| device.vote(true));
        let probes = (0..2048).filter(|_| device.begin_batch().probe_kick).count();
        assert_eq!(probes, 2);
    }

    #[test]
    fn nowait_reads_that_never_hit_are_left_out_only_where_a_miss_starts_nothing() {
        let (kicks, looks) = (Device::new(1), Device::new(2));
        (0..4).for_each(|_| kicks.vote(true));
        (0..4).for_each(|_| looks.vote(false));
        for device in [&kicks, &looks] {
            (0..64).for_each(|_| device.end_batch(0, 64));
        }
        let skipped = |d: &Device| (0..160).filter(|_| d.begin_batch().skip_nowait).count();
        assert_eq!(skipped(&kicks), 0);
        assert_eq!(skipped(&looks), 150);
        (0..64).for_each(|_| looks.end_batch(64, 64));
        assert_eq!(skipped(&looks), 0);
    }
}
