//! Replaying the log of a database that is being opened.
//!
//! Records go into memtables and these into new tables, several if need be; the log stays as it
//! is. Nothing names the tables until the open's new manifest does, for all families at once. So a
//! crash at any point of a recovery leaves what was there before, and the next one does the same.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::Env;

use crate::batch::{self, FamilyId};
use crate::compaction::{JobContext, flush};
use crate::filename::FileName;
use crate::key::MAX_SEQUENCE;
use crate::memtable::MemTable;
use crate::record::{Cut, CutReason, Predecessor};
use crate::stats::{RecoveryCut, RecoveryReport};
use crate::table_cache::TableCache;
use crate::version::{FileMeta, VersionSet};
use crate::wal::{self, ReplayPlan, ReplayReport};
use crate::{CfOptions, Error, Result, TailPolicy};

/// What a recovery found, and the tables it wrote, which nothing names yet.
pub(crate) struct Recovered {
    pub(crate) tables: Vec<(FamilyId, Arc<FileMeta>)>,
    /// What the next segment names as its predecessor.
    pub(crate) predecessor: Option<Predecessor>,
    /// The number of the next segment's first record.
    pub(crate) next_wal_seq: u64,
    /// The last sequence number of the database.
    pub(crate) last_sequence: u64,
    pub(crate) report: RecoveryReport,
}

impl Recovered {
    /// What a database that does not exist yet has to recover.
    pub(crate) fn nothing() -> Self {
        let report = RecoveryReport::default();
        Self { tables: Vec::new(), predecessor: None, next_wal_seq: 1, last_sequence: 0, report }
    }
}

/// A family during recovery.
struct Target<'a> {
    memtable: Arc<MemTable>,
    flushed_sequence: u64,
    options: &'a CfOptions,
}

/// A recovery under way.
pub(crate) struct Recovery<'a> {
    env: &'a dyn Env,
    dir: &'a Path,
    table_cache: &'a Arc<TableCache>,
    versions: &'a VersionSet,
    targets: BTreeMap<FamilyId, Target<'a>>,
    /// Numbers below this one were given to families once.
    next_family_id: FamilyId,
    tables: Vec<(FamilyId, Arc<FileMeta>)>,
    last_sequence: u64,
    /// The last sequence number of the record before.
    replayed: u64,
    operations: u64,
}

impl<'a> Recovery<'a> {
    /// A recovery of the database in `dir` at the state of its manifest.
    pub(crate) fn new(
        env: &'a dyn Env,
        dir: &'a Path,
        table_cache: &'a Arc<TableCache>,
        versions: &'a VersionSet,
        options: &'a HashMap<FamilyId, CfOptions>,
    ) -> Self {
        let target = |family: crate::version::FamilyVersions| {
            let options = &options[&family.id];
            let flushed_sequence = family.flushed_sequence;
            (family.id, Target { memtable: Arc::new(MemTable::new()), flushed_sequence, options })
        };
        Self {
            env,
            dir,
            table_cache,
            versions,
            targets: versions.families().map(target).collect(),
            next_family_id: versions.next_family_id(),
            tables: Vec::new(),
            last_sequence: versions.last_sequence(),
            replayed: 0,
            operations: 0,
        }
    }

    /// Replays the log. After an error no table is left of it.
    pub(crate) fn run(mut self, tail_policy: TailPolicy) -> Result<Recovered> {
        match self.replay(tail_policy) {
            Ok(report) => Ok(self.finish(&report)),
            Err(error) => {
                for (_, table) in &self.tables {
                    let _leftover = self.env.remove(&FileName::Table(table.number).path(self.dir));
                }
                Err(error)
            }
        }
    }

    fn replay(&mut self, tail_policy: TailPolicy) -> Result<ReplayReport> {
        let plan = ReplayPlan {
            from_number: self.versions.log_floor(),
            facts: self.versions.logs().copied().collect(),
            tail_policy,
        };
        let (env, dir) = (self.env, self.dir);
        let report = wal::replay(env, dir, &plan, &mut |path, offset, _, payload| {
            self.apply(path, offset, payload)
        })?;
        let all: Vec<FamilyId> = self.targets.keys().copied().collect();
        for family in all {
            self.flush(family)?;
        }
        self.versions.numbers().raise_above(report.highest_file_number);
        Ok(report)
    }

    /// Applies one record, if it is valid as a whole.
    fn apply(&mut self, path: &Path, offset: u64, payload: &[u8]) -> Result<()> {
        let corrupt = |what: String| Err(Error::corruption(path, offset, what));
        let Some((first, count, ops)) = batch::decode_header(payload) else {
            return corrupt("a write record without a header".to_owned());
        };
        let last = first.checked_add(u64::from(count)).map(|end| end.saturating_sub(1));
        let Some(last) = last.filter(|last| count > 0 && first > 0 && *last <= MAX_SEQUENCE) else {
            return corrupt(format!("impossible sequence numbers: {first} and {count} more"));
        };
        if first <= self.replayed {
            let before = self.replayed;
            return corrupt(format!("sequence {first} after {before}: the numbers go back"));
        }
        for op in batch::ops(ops, count) {
            let Some(op) = op else {
                return corrupt("the operations do not match their count".to_owned());
            };
            if op.family >= self.next_family_id {
                let family = op.family;
                return corrupt(format!("an operation for column family {family}, never created"));
            }
        }
        self.replayed = last;
        self.last_sequence = self.last_sequence.max(last);
        for (sequence, op) in (first..).zip(batch::ops(ops, count).flatten()) {
            // A family that is gone was dropped, and its operations with it.
            let Some(target) = self.targets.get(&op.family) else { continue };
            if sequence > target.flushed_sequence {
                target.memtable.insert(op.key, sequence, op.kind, op.value);
                self.operations += 1;
            }
        }
        let is_full = |target: &Target<'_>| {
            target.memtable.approximate_size() >= target.options.memtable_size
        };
        let full = self.targets.iter().filter(|(_, target)| is_full(target));
        let full: Vec<FamilyId> = full.map(|(id, _)| *id).collect();
        full.into_iter().try_for_each(|family| self.flush(family))
    }

    fn flush(&mut self, family: FamilyId) -> Result<()> {
        let target = self.targets.get_mut(&family).expect("only known families are flushed");
        let memtable = std::mem::replace(&mut target.memtable, Arc::new(MemTable::new()));
        let context = JobContext {
            env: self.env,
            dir: self.dir,
            tables: self.table_cache,
            numbers: self.versions.numbers(),
            options: target.options,
            snapshots: &[],
            should_stop: &|| None,
        };
        let table = flush::write_table(&context, &mut memtable.cursor())?;
        self.tables.extend(table.map(|table| (family, table)));
        Ok(())
    }

    fn finish(self, replayed: &ReplayReport) -> Recovered {
        let cuts = replayed.cuts.iter().map(|cut| recovery_cut(cut.path.clone(), &cut.cut));
        let report = RecoveryReport {
            segments: replayed.segments.len(),
            records: replayed.records,
            bytes: replayed.bytes,
            operations: self.operations,
            tables: self.tables.len(),
            cuts: cuts.collect(),
            ..RecoveryReport::default()
        };
        Recovered {
            tables: self.tables,
            predecessor: replayed.predecessor,
            next_wal_seq: replayed.next_wal_seq,
            last_sequence: self.last_sequence,
            report,
        }
    }
}

/// What was left out at the end of a log or manifest, for the report.
pub(crate) fn recovery_cut(path: PathBuf, cut: &Cut) -> RecoveryCut {
    let reason = match cut.reason {
        CutReason::TornTail => "a write that never finished",
        CutReason::UnsyncedReorder => "unsynced writes of which an earlier one is missing",
    };
    RecoveryCut { path, offset: cut.offset, dropped_bytes: cut.dropped_bytes, reason }
}

#[cfg(test)]
mod tests;
