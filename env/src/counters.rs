//! How often everything happened, per environment: relaxed counters in padded shards, so that
//! threads that count do not share a cache line.

use crate::EnvReport;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Shards per environment. Threads are dealt out to them in turn; more threads than this share.
const SHARDS: usize = 16;

/// Declares [`Count`] and the names under which a report shows it.
macro_rules! counts {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// One counter of an environment.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Count { $($(#[$doc])* $variant,)* }

        impl Count {
            /// Every counter, in the order of its discriminant.
            const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in [`EnvReport::counters`].
            const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counts! {
    /// A NOWAIT read gave everything that was asked for.
    NowaitHit => "nowait_hit",
    /// A NOWAIT read gave a prefix; only the rest was fetched.
    NowaitShort => "nowait_short",
    /// A NOWAIT read gave nothing.
    NowaitMiss => "nowait_miss",
    /// A NOWAIT read was refused, which latched its file.
    NowaitUnsupported => "nowait_unsupported",
    /// A NOWAIT read was left out because one before it had missed, or hardly any had hit lately.
    NowaitSkipped => "nowait_skipped",
    /// A miss was probed a second time to learn whether misses start the read: they do.
    KickYes => "kick_probe_yes",
    /// The same probe, and the range was still not there.
    KickNo => "kick_probe_no",
    /// Read-ahead hints given to the kernel.
    WillNeed => "willneed",
    /// Blocking positional reads.
    Preads => "preads",
    /// Blocking reads in place of something that could not be done as planned.
    FallbackPreads => "fallback_preads",
    /// Reads that returned less than asked before the end of the file.
    ShortReads => "short_reads",
    /// Positional writes.
    Pwrites => "pwrites",
    /// Writes on the calling thread in place of something that could not be done as planned.
    FallbackPwrites => "fallback_pwrites",
    /// Writes that took less than given.
    ShortWrites => "short_writes",
    /// Calls repeated after EINTR.
    RetriedEintr => "retried_eintr",
    /// Calls repeated after EAGAIN.
    RetriedEagain => "retried_eagain",
    /// Operations repeated after a spontaneous ECANCELED.
    RetriedCanceled => "retried_canceled",
    /// Operations repeated after EFAULT.
    RetriedEfault => "retried_efault",
    /// Operations repeated after any other passing failure.
    RetriedOther => "retried_other",
    /// Flushes to the medium, full ones included.
    Syncs => "syncs",
    /// Full flushes (fsync) among them.
    FullSyncs => "full_syncs",
    /// Directory flushes.
    DirSyncs => "dir_syncs",
    /// Hints to start write-back of a finished range.
    RangeFlushes => "range_flushes",
    /// The same, failed and ignored.
    RangeFlushFailed => "range_flush_failed",
    /// Bytes copied because a direct read was not aligned.
    BounceBytes => "bounce_bytes",
    /// Reads answered by a memory mapping.
    MmapReads => "mmap_reads",
    /// The most reads that one queue had issued or ready at once.
    InFlightPeak => "in_flight_peak",
    /// Entries for reads given to a ring.
    RingReads => "ring_reads",
    /// Reads that went to a ring in the entry of another.
    MergedReads => "merged_reads",
    /// Bytes between merged reads that were read for nobody.
    MergedWasteBytes => "merged_waste_bytes",
    /// Bytes that merged reads have in common, read once and copied.
    MergedCopyBytes => "merged_copy_bytes",
    /// Files that refused an entry of several reads, and are given single ones from then on.
    MergeRefused => "merge_refused",
    /// Writes given to a ring.
    RingWrites => "ring_writes",
    /// Calls of `io_uring_enter`.
    RingEnters => "ring_enters",
    /// Completions taken from a ring.
    RingCqes => "ring_cqes",
    /// Completions that belong to no request in flight: a defect, and the end of their ring.
    RingStale => "ring_stale",
    /// The most entries that one enter gave to the kernel.
    SqesPerEnterPeak => "sqes_per_enter_peak",
    /// Turns of queues that found no free ring.
    PoolEmpty => "pool_empty",
    /// Turns of queues with direct reads that found neither a free ring nor a reactor, and got a
    /// ring by waiting a little.
    RingWaits => "ring_waits",
    /// The same, in vain: the reads of that batch were made one after another.
    RingWaitsInVain => "ring_waits_in_vain",
    /// Entries whose memory was registered with the ring.
    FixedUsed => "fixed_used",
    /// Entries for direct files that would use registered memory, and whose memory was not: the
    /// kernel would not register it, or all of it was in use.
    FixedRefused => "fixed_refused",
    /// Entries that the kernel's poll thread took, not a system call.
    SqpollSqes => "sqpoll_sqes",
    /// Calls that had to wake the poll thread.
    SqpollWakeups => "sqpoll_wakeups",
    /// Reads given to a ring that asks the device for completions.
    IopollReads => "iopoll_reads",
    /// The same, refused by the device and done by a plain call.
    IopollRefused => "iopoll_refused",
    /// Rings given up after a defect.
    RingRetired => "ring_retired",
    /// Writes given to the ring of the reactor, the thread that writes tables.
    ReactorWrites => "reactor_writes",
    /// Entries for reads given to the ring of the reactor, by queues that found no free ring and by
    /// direct files that are read ahead.
    ReactorReads => "reactor_reads",
    /// Announced ranges of direct files that the reactor was sent for.
    ReadAheadRanges => "read_ahead_ranges",
    /// Reads of direct files that were answered from such ranges.
    ReadAheadHits => "read_ahead_hits",
    /// Announcements of direct files that found no room.
    ReadAheadRefused => "read_ahead_refused",
    /// The most entries, hints included, that the reactor's ring held at once.
    ReactorInFlightPeak => "reactor_in_flight_peak",
    /// The most bytes of buffers that all files together had with the reactor.
    ReactorBytesPeak => "reactor_bytes_peak",
    /// How often a writer had to wait for one of its own writes before it could hand over another.
    ReactorStalls => "reactor_stalls",
    /// How often a table's writer was found to be faster than the reactor, and wrote for a while
    /// itself.
    ReactorRests => "reactor_rests",
    /// How often a write was not handed over at once because the budget of bytes was used.
    ReactorBudgetFull => "reactor_budget_full",
    /// How often the reactor woke up.
    ReactorWakeups => "reactor_wakeups",
    /// Calls of `io_uring_enter` by the reactor.
    ReactorEnters => "reactor_enters",
    /// Completions that the reactor took from its ring.
    ReactorCqes => "reactor_cqes",
    /// Hints to start write-back that went through the reactor's ring.
    ReactorRangeFlushes => "reactor_range_flushes",
    /// Flushes to the medium that the reactor began while their table was still being written.
    EarlySyncs => "early_syncs",
    /// The same, cancelled before they ran: the sync at the end says what counts.
    EarlySyncsSkipped => "early_syncs_skipped",
    /// The most entries that one enter of the reactor gave to the kernel.
    ReactorSqesPerEnterPeak => "reactor_sqes_per_enter_peak",
    /// Writes handed over and made by their owner, because the reactor had not taken them yet.
    TakenBack => "taken_back",
    /// How often the circuit breaker opened.
    BreakerOpened => "breaker_opened",
}

const COUNTS: usize = Count::ALL.len();

/// Aligned so that two shards never share a cache line, nor a pair that is fetched together.
#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; COUNTS]);

/// The counters of one environment.
#[derive(Debug)]
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
}

impl Default for Counters {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard(std::array::from_fn(|_| AtomicU64::new(0)))) }
    }
}

impl Counters {
    /// Counts `n` more. Relaxed: counters order nothing.
    pub(crate) fn add(&self, count: Count, n: u64) {
        self.shards[shard()].0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Counts one more.
    pub(crate) fn bump(&self, count: Count) {
        self.add(count, 1);
    }

    /// Raises a level (a counter named `..._peak`) to at least `level`.
    pub(crate) fn peak(&self, count: Count, level: u64) {
        debug_assert!(count.name().ends_with("_peak"), "levels are named so in reports");
        self.shards[shard()].0[count as usize].fetch_max(level, Ordering::Relaxed);
    }

    /// The present value.
    pub(crate) fn get(&self, count: Count) -> u64 {
        let values = self.shards.iter().map(|s| s.0[count as usize].load(Ordering::Relaxed));
        if count.name().ends_with("_peak") { values.max().unwrap_or(0) } else { values.sum() }
    }

    /// Writes every counter into `report`.
    pub(crate) fn fill(&self, report: &mut EnvReport) {
        for &count in Count::ALL {
            report.counters.insert(count.name(), self.get(count));
        }
    }
}

/// The calling thread's shard.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread whose locals are gone already still counts.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_add_up_and_peaks_do_not() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for level in 1..=20 {
                let counters = &counters;
                scope.spawn(move || {
                    counters.add(Count::Preads, 3);
                    counters.peak(Count::InFlightPeak, level);
                });
            }
        });
        let mut report = EnvReport::new("test");
        counters.fill(&mut report);
        assert_eq!(report.counter("preads"), 60);
        assert_eq!(report.counter("in_flight_peak"), 20);
        assert_eq!(report.counters.len(), COUNTS);
    }
}
