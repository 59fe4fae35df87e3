//! What the state lock protects: the column families with their memtables and versions, the
//! snapshots, and how the background jobs are doing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::view::{FamilyView, Mem, ReadView};
use crate::batch::FamilyId;
use crate::compaction::Picker;
use crate::filename::FileName;
use crate::version::{FamilyVersions, Version};
use crate::{CfOptions, Error};

/// The first wait after a failed job.
const FIRST_BACK_OFF: Duration = Duration::from_millis(20);
/// The longest wait after a failed job.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2);

/// A frozen memtable that waits for its flush.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    /// The memtable.
    pub(crate) mem: Arc<Mem>,
    /// Everything of the family up to here is in this memtable, an older one, or tables.
    pub(crate) last_sequence: u64,
}

/// A column family.
#[derive(Debug)]
pub(crate) struct Family {
    /// The family's number.
    pub(crate) id: FamilyId,
    /// The family's name.
    pub(crate) name: Arc<str>,
    /// The family's options.
    pub(crate) options: Arc<CfOptions>,
    /// The memtable that takes writes.
    pub(crate) active: Arc<Mem>,
    /// Frozen memtables, oldest first: flushes install in this order.
    pub(crate) frozen: VecDeque<Frozen>,
    /// The tables.
    pub(crate) version: Arc<Version>,
    /// Chooses the family's compactions.
    pub(crate) picker: Picker,
    /// The oldest segment that the manifest says the family needs.
    pub(crate) log_number: u64,
    /// The last sequence that the manifest says is in the family's tables.
    pub(crate) flushed_sequence: u64,
}

impl Family {
    /// A family with an empty memtable.
    pub(crate) fn new(options: CfOptions, versions: &FamilyVersions) -> Self {
        Self {
            id: versions.id,
            name: versions.name.as_str().into(),
            options: Arc::new(options),
            active: Mem::new(),
            frozen: VecDeque::new(),
            version: Arc::clone(&versions.current),
            picker: Picker::new(versions.id),
            log_number: versions.log_number,
            flushed_sequence: versions.flushed_sequence,
        }
    }

    /// The oldest segment up to `current` that holds records of the family which no table holds,
    /// leaving out the first `flushed` frozen memtables; `current` if there is none.
    pub(crate) fn oldest_log(&self, flushed: usize, current: u64) -> u64 {
        let frozen = self.frozen.iter().skip(flushed).map(|frozen| &frozen.mem);
        let memtables = frozen.chain([&self.active]);
        memtables.filter_map(|mem| mem.first_log()).fold(current, u64::min)
    }

    /// Freezes the active memtable, which holds every write of the family up to `last_sequence`
    /// that is not frozen or flushed yet.
    pub(crate) fn freeze(&mut self, last_sequence: u64) {
        let mem = std::mem::replace(&mut self.active, Mem::new());
        self.frozen.push_back(Frozen { mem, last_sequence });
    }

    fn view(&self) -> FamilyView {
        FamilyView {
            id: self.id,
            options: Arc::clone(&self.options),
            active: Arc::clone(&self.active),
            immutables: self.frozen.iter().rev().map(|frozen| Arc::clone(&frozen.mem)).collect(),
            version: Arc::clone(&self.version),
        }
    }
}

/// The last failure of a kind of job, until one succeeds.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What went wrong.
    pub(crate) error: Error,
    /// How often in a row.
    pub(crate) attempts: u32,
    /// When to try again, by the database's clock.
    pub(crate) retry_at: Duration,
}

/// How one kind of job is doing.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Jobs that run now.
    pub(crate) running: usize,
    /// The last failure, unless a job has succeeded since.
    pub(crate) failure: Option<Failure>,
    /// Failures since the open.
    pub(crate) failures: u64,
}

impl Jobs {
    /// Notes a failure at `now`: the next try waits twice as long as the last.
    pub(crate) fn failed(&mut self, error: Error, now: Duration) {
        let attempts = self.failure.as_ref().map_or(0, |failure| failure.attempts) + 1;
        let wait = FIRST_BACK_OFF.saturating_mul(1 << (attempts - 1).min(10)).min(LONGEST_BACK_OFF);
        self.failure = Some(Failure { error, attempts, retry_at: now.saturating_add(wait) });
        self.failures += 1;
    }

    /// Notes a success.
    pub(crate) fn succeeded(&mut self) {
        self.failure = None;
    }

    /// How much longer to wait before the next try; `None` if one may start now. A clock that
    /// stepped back never makes the wait longer than the longest.
    pub(crate) fn wait_left(&self, now: Duration) -> Option<Duration> {
        let left = self.failure.as_ref()?.retry_at.saturating_sub(now).min(LONGEST_BACK_OFF);
        (left > Duration::ZERO).then_some(left)
    }

    /// The error that writes get which cannot wait for this job.
    pub(crate) fn error(&self) -> Option<Error> {
        self.failure.as_ref().map(|failure| failure.error.clone())
    }
}

/// What the state lock protects.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The families by number.
    pub(crate) families: BTreeMap<FamilyId, Family>,
    /// Sequence numbers that snapshots keep alive, with how many snapshots each.
    pub(crate) snapshots: BTreeMap<u64, usize>,
    /// Flushes.
    pub(crate) flush: Jobs,
    /// Compactions.
    pub(crate) compaction: Jobs,
    /// Segments that no family needs by the durable manifest.
    pub(crate) obsolete_logs: Vec<FileName>,
}

impl State {
    /// The state as readers see it.
    pub(crate) fn view(&self) -> ReadView {
        ReadView::new(self.families.values().map(|family| Arc::new(family.view())).collect())
    }

    /// The family whose oldest frozen memtable is the oldest of all.
    pub(crate) fn next_to_flush(&self) -> Option<(FamilyId, Frozen)> {
        let oldest = |family: &Family| Some((family.id, family.frozen.front()?.clone()));
        self.families.values().filter_map(oldest).min_by_key(|(_, frozen)| frozen.last_sequence)
    }

    /// Whether another memtable of the family must not be frozen now.
    pub(crate) fn has_no_room(&self, family: FamilyId) -> bool {
        self.families
            .get(&family)
            .is_some_and(|family| family.frozen.len() >= family.options.max_immutable_memtables)
    }

    /// Sequence numbers kept alive, ascending.
    pub(crate) fn snapshot_sequences(&self) -> Vec<u64> {
        self.snapshots.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_failed_tries_double_up_to_a_limit() {
        let mut jobs = Jobs::default();
        let now = Duration::from_secs(100);
        assert_eq!(jobs.wait_left(now), None);
        let mut waits = Vec::new();
        for _ in 0..20 {
            jobs.failed(Error::Closed, now);
            waits.extend(jobs.wait_left(now));
        }
        assert_eq!(waits[..3], [1, 2, 4].map(|n| FIRST_BACK_OFF * n));
        assert_eq!(waits[19], LONGEST_BACK_OFF);
        assert_eq!(jobs.wait_left(Duration::ZERO), Some(LONGEST_BACK_OFF), "the clock went back");
        assert_eq!(jobs.wait_left(now + LONGEST_BACK_OFF), None);
        jobs.succeeded();
        assert_eq!(jobs.wait_left(now), None);
        assert_eq!(jobs.failures, 20);
    }
}
