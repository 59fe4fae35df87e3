//! Compaction: what to merge next, and the job that merges it.
//!
//! Levels 1 and deeper are sorted runs, each some times larger than the one above. Level 0
//! collects flushed tables, which may overlap. When a level is over its target, tables of it are
//! merged into the next one; the deepest level is where deleted keys finally leave.

pub(crate) mod flush;
mod input;
pub(crate) mod job;
mod output;
pub(crate) mod picker;
mod retain;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::CfOptions;
use crate::key;
use crate::version::{FamilyId, FileMeta, LEVELS, Version, VersionEdit};

pub(crate) use job::{CompactionJob, JobContext};
pub(crate) use picker::{Picker, RangePick};

/// A chosen compaction. While it lives, no other one takes its tables or writes into its range of
/// the output level; dropping it, done or not, gives them back.
#[derive(Debug)]
pub(crate) struct Compaction {
    /// The family.
    pub(crate) family: FamilyId,
    /// The level that is over its target.
    pub(crate) level: usize,
    /// The level that the result enters: the next one, or the same one for a rewrite in place.
    pub(crate) output_level: usize,
    /// Tables of `level`, in that level's order, and those of `output_level` that overlap them,
    /// by key. A rewrite in place has only the former.
    pub(crate) inputs: [Vec<Arc<FileMeta>>; 2],
    /// Tables of the level below `output_level` that overlap the inputs, by key.
    pub(crate) grandparents: Vec<Arc<FileMeta>>,
    /// The version it was chosen from.
    pub(crate) version: Arc<Version>,
    /// The last user key of the inputs.
    pub(crate) end: Vec<u8>,
    /// Whether the one input can enter the output level as it is.
    pub(crate) trivial_move: bool,
    claim: picker::Claim,
}

impl Compaction {
    /// All inputs with their levels.
    pub(crate) fn all_inputs(&self) -> impl Iterator<Item = (usize, &Arc<FileMeta>)> {
        let [upper, lower] = &self.inputs;
        let upper = upper.iter().map(|file| (self.level, file));
        upper.chain(lower.iter().map(|file| (self.output_level, file)))
    }

    /// Bytes of all inputs.
    pub(crate) fn input_size(&self) -> u64 {
        self.all_inputs().map(|(_, file)| file.size).sum()
    }

    /// The edit that puts `added` in place of the inputs.
    pub(crate) fn edit(&self, added: Vec<Arc<FileMeta>>) -> VersionEdit {
        let added = added.into_iter().map(|file| (self.family, self.output_level, file)).collect();
        let removed = self.all_inputs().map(|(level, file)| (self.family, level, file.number));
        VersionEdit { removed: removed.collect(), added, ..VersionEdit::default() }
    }

    /// The edit of a trivial move.
    pub(crate) fn move_edit(&self) -> VersionEdit {
        assert!(self.trivial_move, "only a trivial move keeps its input as it is");
        self.edit(self.inputs[0].clone())
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        // Before the claim goes: a picker that sees no claim must see free tables.
        for (_, file) in self.all_inputs() {
            file.being_compacted.store(false, Ordering::Relaxed);
        }
        self.claim.release();
    }
}

/// The size in bytes above which `level` (1 or deeper) is due for compaction.
pub(crate) fn target_size(options: &CfOptions, level: usize) -> u64 {
    (1..level)
        .fold(options.level_base_size, |size, _| size.saturating_mul(options.level_multiplier))
}

/// How urgent a compaction of `level` is: 1 and above is due. Tables that are being compacted
/// already do not count.
pub(crate) fn score(version: &Version, options: &CfOptions, level: usize) -> f64 {
    let waiting = version.files(level).iter().filter(|file| !file.is_being_compacted());
    if level == 0 {
        ratio(waiting.count() as u64, options.level0_compaction_trigger as u64)
    } else {
        ratio(waiting.map(|file| file.size).sum(), target_size(options, level))
    }
}

/// Bytes that compactions must still read until every level is within its target: what the
/// write delay goes by. An estimate.
pub(crate) fn pending_bytes(version: &Version, options: &CfOptions) -> u64 {
    let mut pending = 0_u64;
    let mut incoming = 0_u64;
    if version.files(0).len() >= options.level0_compaction_trigger {
        incoming = version.level_size(0);
        pending = incoming.saturating_add(version.level_size(1));
    }
    for level in 1..LEVELS - 1 {
        let size = version.level_size(level).saturating_add(incoming);
        incoming = size.saturating_sub(target_size(options, level));
        if incoming > 0 {
            let fan_out = options.level_multiplier.saturating_add(1);
            pending = pending.saturating_add(incoming.saturating_mul(fan_out));
        }
    }
    pending
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more than 53 bits")]
fn ratio(value: u64, target: u64) -> f64 {
    value as f64 / target.max(1) as f64
}

/// The first and the last user key of `files`; `None` if there are none.
fn hull<'a>(files: impl Iterator<Item = &'a Arc<FileMeta>>) -> Option<(&'a [u8], &'a [u8])> {
    files.fold(None, |hull: Option<(&[u8], &[u8])>, file| {
        let (first, last) = (key::user_key(&file.smallest), key::user_key(&file.largest));
        Some(hull.map_or((first, last), |(begin, end)| (begin.min(first), end.max(last))))
    })
}
