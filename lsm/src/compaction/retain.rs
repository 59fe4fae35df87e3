//! Which versions of a key somebody can still see.
//!
//! The sequence numbers of the live snapshots, and "now" after the last of them, cut the sequence
//! numbers into stripes. Of the versions of one key in one stripe only the newest can be seen:
//! the others are shadowed for every snapshot. A snapshot taken later sees what "now" sees.

use crate::version::{FileMeta, LEVELS, Version};

use std::sync::Arc;

/// Decides about versions in the order of internal keys.
#[derive(Debug)]
pub(super) struct Retention<'a> {
    /// Ascending.
    snapshots: &'a [u64],
    key: Option<Vec<u8>>,
    /// The stripe of the version of `key` that came last.
    stripe: usize,
}

impl<'a> Retention<'a> {
    /// `snapshots` are the sequence numbers of all live snapshots, ascending.
    pub(super) fn new(snapshots: &'a [u64]) -> Self {
        assert!(snapshots.is_sorted(), "snapshots come in ascending order");
        Self { snapshots, key: None, stripe: 0 }
    }

    /// Whether `user_key` is another key than that of the last call to [`Retention::keep`].
    pub(super) fn is_new(&self, user_key: &[u8]) -> bool {
        self.key.as_deref() != Some(user_key)
    }

    /// Whether the next version can be seen by a snapshot or now.
    pub(super) fn keep(&mut self, user_key: &[u8], sequence: u64) -> bool {
        let stripe = self.snapshots.partition_point(|snapshot| *snapshot < sequence);
        let is_new = self.is_new(user_key);
        if !is_new && stripe == self.stripe {
            return false;
        }
        self.stripe = stripe;
        if is_new {
            let key = self.key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(user_key);
        }
        true
    }
}

/// Tells for ascending keys whether a level below may hold them.
#[derive(Debug)]
pub(super) struct LevelsBelow {
    levels: Vec<(Arc<[Arc<FileMeta>]>, usize)>,
}

impl LevelsBelow {
    /// The levels of `version` that are deeper than `level`.
    pub(super) fn new(version: &Version, level: usize) -> Self {
        let levels = (level + 1..LEVELS).map(|level| (Arc::clone(version.shared_files(level)), 0));
        Self { levels: levels.filter(|(files, _)| !files.is_empty()).collect() }
    }

    /// Whether some table may hold `user_key`, which is not before the key of the last call.
    pub(super) fn may_hold(&mut self, user_key: &[u8]) -> bool {
        self.levels.iter_mut().any(|(files, next)| {
            let rest = files.iter().skip(*next);
            *next += rest.take_while(|file| file.largest_user_key() < user_key).count();
            files.get(*next).is_some_and(|file| file.smallest_user_key() <= user_key)
        })
    }
}
