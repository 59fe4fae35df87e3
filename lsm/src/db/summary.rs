//! The numbers that a database gives about itself.

use std::sync::atomic::Ordering;

use super::Shared;
use super::state::Family;
use crate::compaction::pending_bytes;
use crate::stats::{FamilyStats, LevelStats, Stats};
use crate::version::LEVELS;

impl Shared {
    /// See [`super::Db::stats`].
    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.stats;
        let blocks = self.tables.blocks();
        let mut stats = Stats {
            last_sequence: self.visible.load(Ordering::Acquire),
            groups: counters.groups.get(),
            batches: counters.batches.get(),
            largest_group: counters.largest_group.get(),
            log_bytes: counters.log_bytes.get(),
            log_syncs: counters.log_syncs.get(),
            log_switches: counters.log_switches.get(),
            flushes: counters.flushes.get(),
            flushed_bytes: counters.flushed_bytes.get(),
            compactions: counters.compactions.get(),
            moves: counters.moves.get(),
            compaction_read: counters.compaction_read.get(),
            compaction_written: counters.compaction_written.get(),
            slowed_writes: counters.slowed_writes.get(),
            stopped_writes: counters.stopped_writes.get(),
            removed_files: counters.removed_files.get(),
            failed_removals: counters.failed_removals.get(),
            cache_hits: blocks.hits(),
            cache_misses: blocks.misses(),
            cache_bytes: blocks.bytes(),
            open_tables: self.tables.open_tables(),
            poisoned: self.poison.get().map(ToString::to_string),
            recovery: self.report.clone(),
            ..Stats::default()
        };
        {
            let log = self.log.lock();
            stats.log_segments = log.segments();
            stats.log_size = log.size();
            stats.log_buffered = log.buffered_bytes();
        }
        let state = self.state.lock();
        stats.families = state.families.values().map(of_family).collect();
        stats.snapshots = state.snapshots.values().sum();
        stats.failed_flushes = state.flush.failures;
        stats.flush_error = state.flush.error().map(|error| error.to_string());
        stats.running_compactions = state.compaction.running;
        stats.failed_compactions = state.compaction.failures;
        stats.compaction_error = state.compaction.error().map(|error| error.to_string());
        stats
    }
}

fn of_family(family: &Family) -> FamilyStats {
    let level = |level| LevelStats {
        files: family.version.files(level).len(),
        bytes: family.version.level_size(level),
    };
    let frozen = family.frozen.iter().map(|frozen| frozen.mem.table.approximate_size());
    FamilyStats {
        name: family.name.to_string(),
        memtable_bytes: family.active.table.approximate_size(),
        memtable_entries: family.active.table.entries(),
        immutable_memtables: family.frozen.len(),
        immutable_bytes: frozen.sum(),
        levels: (0..LEVELS).map(level).collect(),
        pending_compaction_bytes: pending_bytes(&family.version, &family.options),
    }
}
