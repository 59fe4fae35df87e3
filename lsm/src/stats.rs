//! What a database says about itself: counters, and the shape of its data.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that any thread may raise.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub(crate) fn add(&self, amount: u64) {
        // A statistic orders nothing.
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Raises the counter to `value` if it is lower.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    /// The value now.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of an open database.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) groups: Counter,
    pub(crate) batches: Counter,
    pub(crate) largest_group: Counter,
    pub(crate) log_bytes: Counter,
    pub(crate) log_syncs: Counter,
    pub(crate) log_switches: Counter,
    pub(crate) flushes: Counter,
    pub(crate) flushed_bytes: Counter,
    pub(crate) compactions: Counter,
    pub(crate) moves: Counter,
    pub(crate) compaction_read: Counter,
    pub(crate) compaction_written: Counter,
    pub(crate) slowed_writes: Counter,
    pub(crate) stopped_writes: Counter,
    pub(crate) removed_files: Counter,
    pub(crate) failed_removals: Counter,
}

impl Counters {
    /// Counts a commit group of `batches` batches and `bytes` bytes of operations.
    pub(crate) fn group(&self, batches: usize, bytes: usize) {
        self.groups.add(1);
        self.batches.add(batches as u64);
        self.largest_group.raise(batches as u64);
        self.log_bytes.add(bytes as u64);
    }
}

/// The state and the counters of a database at one moment. `Display` prints it for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The column families, by their ids.
    pub families: Vec<FamilyStats>,
    /// The last published sequence number.
    pub last_sequence: u64,
    /// Snapshots alive.
    pub snapshots: usize,
    /// Commit groups since the open: one log record each.
    pub groups: u64,
    /// Batches written since the open.
    pub batches: u64,
    /// The most batches in one group.
    pub largest_group: u64,
    /// Bytes of operations appended to the log since the open.
    pub log_bytes: u64,
    /// Syncs of the log since the open.
    pub log_syncs: u64,
    /// Switches to a new log segment since the open.
    pub log_switches: u64,
    /// Log segments that are needed now.
    pub log_segments: usize,
    /// Bytes of records in them.
    pub log_size: u64,
    /// Those of them that are in this process's memory only: buffered writes.
    pub log_buffered: usize,
    /// Memtables flushed since the open.
    pub flushes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Flushes that failed since the open.
    pub failed_flushes: u64,
    /// The failure of the last flush, if no later one succeeded.
    pub flush_error: Option<String>,
    /// Compactions since the open, moves of single tables not counted.
    pub compactions: u64,
    /// Tables that moved down a level without being rewritten.
    pub moves: u64,
    /// Bytes that compactions read.
    pub compaction_read: u64,
    /// Bytes that compactions wrote.
    pub compaction_written: u64,
    /// Compactions that run now.
    pub running_compactions: usize,
    /// Compactions that failed since the open.
    pub failed_compactions: u64,
    /// The failure of the last compaction, if no later one succeeded.
    pub compaction_error: Option<String>,
    /// Writes that were delayed because work was waiting.
    pub slowed_writes: u64,
    /// Times that a write was held back until work was done.
    pub stopped_writes: u64,
    /// Files removed since the open.
    pub removed_files: u64,
    /// Files that could not be removed; the next open tries again.
    pub failed_removals: u64,
    /// Look-ups that found their block in the block cache.
    pub cache_hits: u64,
    /// Look-ups that did not.
    pub cache_misses: u64,
    /// Bytes in the block cache.
    pub cache_bytes: u64,
    /// Tables kept open.
    pub open_tables: usize,
    /// The failure that stopped all writes, if one did.
    pub poisoned: Option<String>,
    /// What the open found and did.
    pub recovery: RecoveryReport,
}

/// One column family in [`Stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyStats {
    /// The family's name.
    pub name: String,
    /// Bytes in the memtable that takes writes.
    pub memtable_bytes: usize,
    /// Entries in it.
    pub memtable_entries: usize,
    /// Frozen memtables that wait for their flush.
    pub immutable_memtables: usize,
    /// Bytes in them.
    pub immutable_bytes: usize,
    /// Tables and their bytes, level by level.
    pub levels: Vec<LevelStats>,
    /// Bytes that compactions must still read until every level is within its target.
    pub pending_compaction_bytes: u64,
}

/// One level in [`FamilyStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelStats {
    /// Tables.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for family in &self.families {
            family.fmt(f)?;
        }
        writeln!(f, "last sequence {}, snapshots {}", self.last_sequence, self.snapshots)?;
        writeln!(
            f,
            "log: {} segments, {} bytes ({} of them buffered); {} batches in {} groups (largest {}), \
             {} bytes, {} syncs, {} switches",
            self.log_segments,
            self.log_size,
            self.log_buffered,
            self.batches,
            self.groups,
            self.largest_group,
            self.log_bytes,
            self.log_syncs,
            self.log_switches
        )?;
        writeln!(
            f,
            "flushes: {} ({} bytes), {} failed",
            self.flushes, self.flushed_bytes, self.failed_flushes
        )?;
        writeln!(
            f,
            "compactions: {} (read {} bytes, wrote {}), {} moves, {} failed, {} running",
            self.compactions,
            self.compaction_read,
            self.compaction_written,
            self.moves,
            self.failed_compactions,
            self.running_compactions
        )?;
        writeln!(
            f,
            "stalls: {} writes slowed, {} stopped",
            self.slowed_writes, self.stopped_writes
        )?;
        writeln!(
            f,
            "files: {} removed, {} removals failed; {} tables open",
            self.removed_files, self.failed_removals, self.open_tables
        )?;
        writeln!(
            f,
            "block cache: {} bytes, {} hits, {} misses",
            self.cache_bytes, self.cache_hits, self.cache_misses
        )?;
        for (what, error) in [("flush", &self.flush_error), ("compaction", &self.compaction_error)]
        {
            if let Some(error) = error {
                writeln!(f, "the last {what} failed: {error}")?;
            }
        }
        if let Some(error) = &self.poisoned {
            writeln!(f, "writes stopped: {error}")?;
        }
        self.recovery.fmt(f)
    }
}

impl fmt::Display for FamilyStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "family {}: memtable {} entries, {} bytes; {} immutable, {} bytes",
            self.name,
            self.memtable_entries,
            self.memtable_bytes,
            self.immutable_memtables,
            self.immutable_bytes
        )?;
        for (number, level) in self.levels.iter().enumerate().filter(|(_, level)| level.files > 0) {
            writeln!(f, "  level {number}: {} tables, {} bytes", level.files, level.bytes)?;
        }
        if self.pending_compaction_bytes > 0 {
            writeln!(f, "  {} bytes wait for compaction", self.pending_compaction_bytes)?;
        }
        Ok(())
    }
}

/// What an open found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the database was created by this open.
    pub created: bool,
    /// Log segments that were read.
    pub segments: usize,
    /// Log records that were read.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Operations that were not in tables yet.
    pub operations: u64,
    /// Tables written from them.
    pub tables: usize,
    /// Ends of logs, and of the manifest, that were left out because the write never finished.
    pub cuts: Vec<RecoveryCut>,
    /// Files that the open removed: the logs and manifests it replaced, and what an earlier
    /// process left behind.
    pub removed_files: usize,
}

/// Bytes that an open left out; see [`RecoveryReport::cuts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryCut {
    /// The file.
    pub path: PathBuf,
    /// Where the valid records end.
    pub offset: u64,
    /// How many bytes follow up to the last that is not zero.
    pub dropped_bytes: u64,
    /// Why they do not count.
    pub reason: &'static str,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.created {
            return writeln!(f, "recovery: the database was created");
        }
        writeln!(
            f,
            "recovery: {} records, {} bytes in {} log segments; {} operations into {} tables; \
             {} files no longer needed removed",
            self.records,
            self.bytes,
            self.segments,
            self.operations,
            self.tables,
            self.removed_files
        )?;
        for cut in &self.cuts {
            writeln!(
                f,
                "  {}: {} bytes from offset {} left out: {}",
                cut.path.display(),
                cut.dropped_bytes,
                cut.offset,
                cut.reason
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_for_people_names_levels_failures_and_cuts() {
        let level = LevelStats { files: 2, bytes: 300 };
        let levels = vec![LevelStats::default(), level];
        let family = FamilyStats { name: "users".to_owned(), levels, ..FamilyStats::default() };
        let stats = Stats {
            families: vec![family],
            poisoned: Some("sync 000012.log: full".to_owned()),
            ..Stats::default()
        };
        let text = stats.to_string();
        assert!(text.contains("family users"), "{text}");
        assert!(text.contains("  level 1: 2 tables, 300 bytes"), "{text}");
        assert!(!text.contains("level 0"), "{text}");
        assert!(text.contains("writes stopped: sync 000012.log: full"), "{text}");
        let (path, reason) = (PathBuf::from("000003.log"), "a write that never finished");
        let cut = RecoveryCut { path, offset: 96, dropped_bytes: 7, reason };
        let report = RecoveryReport { cuts: vec![cut], ..RecoveryReport::default() };
        let line = "  000003.log: 7 bytes from offset 96 left out: a write that never finished\n";
        assert!(report.to_string().ends_with(line), "{report}");
    }
}
