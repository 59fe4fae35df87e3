//! Chooses compactions, so that no table is in two of them and no two write into one range of a
//! level.
//!
//! Every deeper level is disjoint by user key, inclusive bounds, so a choice by user-key range
//! never separates the versions of one key: what must move together does.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{Compaction, hull, score};
use crate::CfOptions;
use crate::version::{FamilyId, FileMeta, KeyRange, LEVELS, Version};

/// A compaction takes at most this many table sizes of input, unless one table alone needs more.
const MAX_INPUT_TABLES: u64 = 25;
/// A table, moved or written, overlaps at most this many table sizes of the level below it, so
/// that merging it further stays affordable.
pub(super) const MAX_GRANDPARENT_TABLES: u64 = 10;

/// Chooses the compactions of one family. Used under the database's state lock.
#[derive(Debug)]
pub(crate) struct Picker {
    family: FamilyId,
    /// Per level, the last user key of the latest compaction: the next one starts behind it, so
    /// that every part of a level has its turn.
    pointers: [Vec<u8>; LEVELS],
    claims: Arc<Claims>,
}

/// What a manual compaction found.
#[derive(Debug)]
pub(crate) enum RangePick {
    /// No table of the level is in the range.
    Nothing,
    /// Another compaction holds what is needed; try again when one has finished.
    Busy,
    /// The next piece of the range.
    Job(Box<Compaction>),
}

/// The ranges that running compactions write.
#[derive(Debug, Default)]
struct Claims {
    running: Mutex<Vec<Running>>,
}

#[derive(Debug)]
struct Running {
    id: u64,
    output_level: usize,
    begin: Vec<u8>,
    end: Vec<u8>,
}

/// A running compaction's entry among the claims.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Arc<Claims>,
    id: u64,
}

impl Claim {
    pub(super) fn release(&self) {
        self.claims.running.lock().retain(|running| running.id != self.id);
    }
}

impl Picker {
    /// A picker for `family`.
    pub(crate) fn new(family: FamilyId) -> Self {
        Self { family, pointers: Default::default(), claims: Arc::default() }
    }

    /// The most urgent compaction that is due and can run now.
    pub(crate) fn pick(
        &mut self,
        version: &Arc<Version>,
        options: &CfOptions,
    ) -> Option<Compaction> {
        let mut due: Vec<(f64, usize)> = (0..LEVELS - 1)
            .map(|level| (score(version, options, level), level))
            .filter(|(score, _)| *score >= 1.0)
            .collect();
        // Of equal scores the upper level first: it is what reads and writes feel.
        due.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        due.iter().find_map(|(_, level)| self.pick_level(version, options, *level))
    }

    /// Whether some compaction is due, ready to run or not.
    pub(crate) fn is_due(version: &Version, options: &CfOptions) -> bool {
        (0..LEVELS - 1).any(|level| score(version, options, level) >= 1.0)
    }

    #[cfg(test)]
    /// Whether any compaction of the family is running.
    pub(crate) fn is_running(&self) -> bool {
        !self.claims.running.lock().is_empty()
    }

    fn pick_level(
        &mut self,
        version: &Arc<Version>,
        options: &CfOptions,
        level: usize,
    ) -> Option<Compaction> {
        if level == 0 {
            return self.assemble(version, options, 0, 1, version.files(0).to_vec());
        }
        let files = version.files(level);
        let pointer = &self.pointers[level];
        let start = files.partition_point(|file| file.smallest_user_key() <= &pointer[..]);
        // An empty pointer is no key: the empty key itself may be one.
        let start = if pointer.is_empty() { 0 } else { start };
        let order = files.iter().skip(start).chain(files.iter().take(start));
        order.filter(|file| !file.is_being_compacted()).find_map(|file| {
            self.assemble(version, options, level, level + 1, vec![Arc::clone(file)])
        })
    }

    /// The next piece of a manual compaction of `range` from `level` into `output_level`, which
    /// is the next level, or the same one to rewrite the tables in place and drop what nobody
    /// needs. The piece begins with the first table in the range; after a rewrite in place the
    /// caller goes on behind the piece's `end`.
    pub(crate) fn pick_range(
        &mut self,
        version: &Arc<Version>,
        options: &CfOptions,
        (level, output_level): (usize, usize),
        range: KeyRange<'_>,
    ) -> RangePick {
        assert!(
            output_level < LEVELS
                && (output_level == level && level > 0 || output_level == level + 1),
            "a compaction goes one level down or rewrites a sorted level in place"
        );
        let mut files = version.overlapping(level, range);
        if files.is_empty() {
            return RangePick::Nothing;
        }
        if level == 0 {
            // Older tables of level 0 must not stay above newer ones that moved down.
            files = version.files(0).to_vec();
        } else {
            let limit = options.table_size.saturating_mul(MAX_INPUT_TABLES);
            files.truncate(within(&files, limit).max(1));
        }
        match self.assemble(version, options, level, output_level, files) {
            Some(compaction) => RangePick::Job(Box::new(compaction)),
            None => RangePick::Busy,
        }
    }

    /// Completes `upper` to a compaction and claims it; `None` if it cannot run now.
    fn assemble(
        &mut self,
        version: &Arc<Version>,
        options: &CfOptions,
        level: usize,
        output_level: usize,
        mut upper: Vec<Arc<FileMeta>>,
    ) -> Option<Compaction> {
        let (begin, end) = hull(upper.iter())?;
        let mut range = (begin.to_vec(), end.to_vec());
        let mut lower = Vec::new();
        if output_level != level {
            lower = version.overlapping(output_level, as_range(&range));
            if level > 0 {
                expand(version, options, level, &mut upper, &lower);
            }
            let (begin, end) = hull(upper.iter().chain(&lower))?;
            range = (begin.to_vec(), end.to_vec());
        }
        let busy = upper.iter().chain(&lower).any(|file| file.is_being_compacted());
        if busy || !self.claims.are_free(output_level, &range) {
            return None;
        }
        let grandparents = if output_level + 1 < LEVELS {
            version.overlapping(output_level + 1, as_range(&range))
        } else {
            Vec::new()
        };
        let below: u64 = grandparents.iter().map(|file| file.size).sum();
        let trivial_move = output_level != level
            && upper.len() == 1
            && lower.is_empty()
            && below <= options.table_size.saturating_mul(MAX_GRANDPARENT_TABLES);
        for file in upper.iter().chain(&lower) {
            file.being_compacted.store(true, Ordering::Relaxed);
        }
        let (_, last) = hull(upper.iter())?;
        self.pointers[level] = last.to_vec();
        let claim = self.claims.add(output_level, &range);
        let (_, end) = range;
        Some(Compaction {
            family: self.family,
            level,
            output_level,
            inputs: [upper, lower],
            grandparents,
            version: Arc::clone(version),
            end,
            trivial_move,
            claim,
        })
    }
}

/// Adds the neighbours in `level` that overlap no further table of the output level: they move
/// down at no cost.
fn expand(
    version: &Version,
    options: &CfOptions,
    level: usize,
    upper: &mut Vec<Arc<FileMeta>>,
    lower: &[Arc<FileMeta>],
) {
    if lower.is_empty() {
        return;
    }
    let Some((begin, end)) = hull(upper.iter().chain(lower)) else { return };
    let range = KeyRange { begin: Some(begin), end: Some(end) };
    let wider = version.overlapping(level, range);
    if wider.len() <= upper.len() || wider.iter().any(|file| file.is_being_compacted()) {
        return;
    }
    let Some((begin, end)) = hull(wider.iter()) else { return };
    let lower_again =
        version.overlapping(level + 1, KeyRange { begin: Some(begin), end: Some(end) });
    let size: u64 = wider.iter().chain(lower).map(|file| file.size).sum();
    let limit = options.table_size.saturating_mul(MAX_INPUT_TABLES);
    if lower_again.len() == lower.len() && size <= limit {
        *upper = wider;
    }
}

/// How many of the first `files` are within `limit` bytes together.
fn within(files: &[Arc<FileMeta>], limit: u64) -> usize {
    let mut total = 0_u64;
    files
        .iter()
        .take_while(|file| {
            total = total.saturating_add(file.size);
            total <= limit
        })
        .count()
}

fn as_range((begin, end): &(Vec<u8>, Vec<u8>)) -> KeyRange<'_> {
    KeyRange { begin: Some(begin), end: Some(end) }
}

impl Claims {
    fn are_free(&self, output_level: usize, (begin, end): &(Vec<u8>, Vec<u8>)) -> bool {
        let running = self.running.lock();
        running.iter().all(|other| {
            other.output_level != output_level || other.end < *begin || other.begin > *end
        })
    }

    fn add(self: &Arc<Self>, output_level: usize, range: &(Vec<u8>, Vec<u8>)) -> Claim {
        let mut running = self.running.lock();
        let id = running.iter().map(|other| other.id).max().unwrap_or(0) + 1;
        let (begin, end) = range.clone();
        running.push(Running { id, output_level, begin, end });
        Claim { claims: Arc::clone(self), id }
    }
}
