//! The compaction job: merges the inputs, leaves out what nobody can see, and writes the rest as
//! new tables. It changes nothing but the tables it writes: making them part of the database is
//! an edit that the caller logs.

use std::path::Path;
use std::sync::Arc;

use treering_env::Env;

use super::Compaction;
use super::input::InputRun;
use super::output::{Outputs, remove_all};
use super::picker::MAX_GRANDPARENT_TABLES;
use super::retain::{LevelsBelow, Retention};
use crate::cursor::Cursor;
use crate::filename::FileName;
use crate::key::{self, ParsedKey, ValueKind};
use crate::merge_iter::MergeCursor;
use crate::table_cache::TableCache;
use crate::version::{FileMeta, FileNumbers};
use crate::{CfOptions, Error, Result};

/// The job asks whether to stop once in this many entries.
const STOP_INTERVAL: u64 = 256;

/// What jobs need of the database.
pub(crate) struct JobContext<'a> {
    /// The environment.
    pub(crate) env: &'a dyn Env,
    /// The database's directory.
    pub(crate) dir: &'a Path,
    /// Opens the inputs.
    pub(crate) tables: &'a Arc<TableCache>,
    /// Numbers the outputs.
    pub(crate) numbers: &'a FileNumbers,
    /// The family's options.
    pub(crate) options: &'a CfOptions,
    /// The sequence numbers of all live snapshots, ascending. Taken while no snapshot could be
    /// created: one that comes later must see everything that the inputs hold.
    pub(crate) snapshots: &'a [u64],
    /// Asked now and then: an error ends the job, which returns it.
    pub(crate) should_stop: &'a dyn Fn() -> Option<Error>,
}

/// What a job read and wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobStats {
    /// Bytes of the input tables.
    pub(crate) bytes_read: u64,
    /// Bytes of the output tables.
    pub(crate) bytes_written: u64,
    /// Entries in the inputs.
    pub(crate) entries_read: u64,
    /// Entries in the outputs.
    pub(crate) entries_written: u64,
}

/// Tables that are durable and that no edit names yet.
#[derive(Debug)]
#[must_use = "the tables must be logged or discarded"]
pub(crate) struct JobOutput {
    /// The tables, by key. Empty if nothing was left.
    pub(crate) added: Vec<Arc<FileMeta>>,
    /// What it took.
    pub(crate) stats: JobStats,
}

impl JobOutput {
    /// Removes the tables. Only if no edit that names them was written.
    pub(crate) fn discard(self, env: &dyn Env, dir: &Path) {
        let path = |file: &Arc<FileMeta>| FileName::Table(file.number).path(dir);
        remove_all(env, &self.added.iter().map(path).collect::<Vec<_>>());
    }
}

/// Runs one compaction to its end on this thread.
#[derive(Debug)]
pub(crate) struct CompactionJob<'a> {
    compaction: &'a Compaction,
}

impl<'a> CompactionJob<'a> {
    /// The job for `compaction`.
    pub(crate) fn new(compaction: &'a Compaction) -> Self {
        Self { compaction }
    }

    /// Merges the inputs into new tables, which are durable, with their names, on success. After
    /// an error there are none: inputs are untouched and outputs removed.
    ///
    /// Inputs whose keys are out of order, or that do not hold what the manifest says, are
    /// `Corruption`.
    pub(crate) fn run(&self, context: &JobContext<'_>) -> Result<JobOutput> {
        let compaction = self.compaction;
        let mut merged = MergeCursor::new(self.inputs(context));
        let mut merge = Merge {
            outputs: Outputs::new(context.env, context.dir, context.numbers, context.options),
            retention: Retention::new(context.snapshots),
            below: LevelsBelow::new(&compaction.version, compaction.output_level),
            is_bottom: false,
            pending: Vec::new(),
            grandparents: Grandparents::new(&compaction.grandparents, context.options),
            table_size: context.options.table_size,
        };
        let mut entries_read = 0_u64;
        let mut previous = Vec::new();
        merged.seek_to_first()?;
        while merged.valid() {
            if entries_read.is_multiple_of(STOP_INTERVAL)
                && let Some(error) = (context.should_stop)()
            {
                return Err(error);
            }
            if entries_read > 0 && !key::compare(&previous, merged.key()).is_lt() {
                return Err(self.doubled(context));
            }
            entries_read += 1;
            previous.clear();
            previous.extend_from_slice(merged.key());
            merge.add(merged.key(), merged.value())?;
            merged.next()?;
        }
        let entries_written = merge.outputs.entries();
        let added = merge.outputs.finish()?;
        let bytes_written = added.iter().map(|file| file.size).sum();
        let bytes_read = compaction.input_size();
        let stats = JobStats { bytes_read, bytes_written, entries_read, entries_written };
        Ok(JobOutput { added, stats })
    }

    /// The inputs, newest first.
    fn inputs(&self, context: &JobContext<'_>) -> Vec<Box<dyn Cursor>> {
        let [upper, lower] = &self.compaction.inputs;
        let run = |files: Vec<Arc<FileMeta>>| -> Box<dyn Cursor> {
            Box::new(InputRun::new(files, context.dir, context.tables))
        };
        let mut inputs = Vec::new();
        if self.compaction.level == 0 {
            inputs.extend(upper.iter().map(|file| run(vec![Arc::clone(file)])));
        } else {
            inputs.push(run(upper.clone()));
        }
        inputs.push(run(lower.clone()));
        inputs
    }

    fn doubled(&self, context: &JobContext<'_>) -> Error {
        let numbers: Vec<u64> = self.compaction.all_inputs().map(|(_, file)| file.number).collect();
        let first = FileName::Table(numbers[0]).path(context.dir);
        let what = format!("of the tables {numbers:?} two hold the same version of a key");
        Error::corruption(&first, None, what)
    }
}

/// Takes the merged entries one by one.
struct Merge<'a> {
    outputs: Outputs<'a>,
    retention: Retention<'a>,
    below: LevelsBelow,
    /// Whether no deeper level may hold the current user key.
    is_bottom: bool,
    /// Tombstones of the current user key, at the bottom: they go unless an older version that
    /// a snapshot sees stays.
    pending: Vec<Vec<u8>>,
    grandparents: Grandparents<'a>,
    table_size: u64,
}

impl Merge<'_> {
    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let ParsedKey { user_key, sequence, kind } =
            key::parse(internal_key).expect("the inputs check each key");
        if self.retention.is_new(user_key) {
            self.pending.clear();
            self.is_bottom = !self.below.may_hold(user_key);
            // Only between user keys: tables of a level share none.
            let has_outgrown = self.outputs.current_size() >= self.table_size;
            if self.grandparents.should_cut(user_key, self.outputs.current_size()) || has_outgrown {
                self.outputs.cut()?;
            }
        }
        if !self.retention.keep(user_key, sequence) {
            return Ok(());
        }
        if kind == ValueKind::Deletion && self.is_bottom {
            self.pending.push(internal_key.to_vec());
            return Ok(());
        }
        for tombstone in self.pending.drain(..) {
            self.outputs.add(&tombstone, b"")?;
        }
        self.outputs.add(internal_key, value)
    }
}

/// Ends an output before it overlaps too much of the level below it.
struct Grandparents<'a> {
    files: &'a [Arc<FileMeta>],
    /// Those before this one end before the current key.
    next: usize,
    /// Bytes that the current output has passed.
    passed: u64,
    limit: u64,
}

impl<'a> Grandparents<'a> {
    fn new(files: &'a [Arc<FileMeta>], options: &CfOptions) -> Self {
        let limit = options.table_size.saturating_mul(MAX_GRANDPARENT_TABLES);
        Self { files, next: 0, passed: 0, limit }
    }

    /// Whether the current output, of `size` bytes, must end before `user_key`.
    fn should_cut(&mut self, user_key: &[u8], size: u64) -> bool {
        while let Some(file) = self.files.get(self.next) {
            if file.largest_user_key() >= user_key {
                break;
            }
            self.passed = self.passed.saturating_add(file.size);
            self.next += 1;
        }
        if size == 0 {
            // Nothing was written since the last cut: what was passed is nobody's overlap.
            self.passed = 0;
        }
        let cut = self.passed > self.limit;
        if cut {
            self.passed = 0;
        }
        cut
    }
}
