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

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::version::testing::{put, version};

    /// What somebody can see: for each snapshot and for now, the newest version at or before it.
    fn visible(versions: &[u64], snapshots: &[u64]) -> Vec<u64> {
        let mut seen: Vec<u64> = snapshots
            .iter()
            .chain([&u64::MAX])
            .filter_map(|at| versions.iter().copied().find(|version| version <= at))
            .collect();
        seen.sort_unstable_by(|a, b| b.cmp(a));
        seen.dedup();
        seen
    }

    #[test]
    fn exactly_the_visible_versions_are_kept() {
        for seed in 0..2000 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut draw = |most: usize, limit: u64| -> Vec<u64> {
                let count = random.random_range(0..=most);
                let mut drawn: Vec<u64> =
                    (0..count).map(|_| random.random_range(0..limit)).collect();
                drawn.sort_unstable();
                drawn
            };
            let snapshots = draw(4, 25);
            let mut retention = Retention::new(&snapshots);
            for key in [&b"a"[..], b"b", b""] {
                let mut versions = draw(12, 20);
                versions.dedup();
                versions.reverse();
                let kept = versions.iter().copied().filter(|version| retention.keep(key, *version));
                let kept: Vec<u64> = kept.collect();
                assert_eq!(kept, visible(&versions, &snapshots), "seed {seed}: {snapshots:?}");
            }
        }
    }

    #[test]
    fn levels_below_hold_what_their_tables_span() {
        let file =
            |number, first, last| Arc::new(FileMeta::new(number, 1, put(first, 1), put(last, 1)));
        let (one, two) = ([file(1, "b", "d"), file(2, "h", "k")], [file(3, "j", "m")]);
        let version = version(&[(1, &[file(4, "a", "z")]), (2, &one), (4, &two)]);
        let mut below = LevelsBelow::new(&version, 1);
        let held: String =
            ('a'..='z').filter(|key| below.may_hold(key.to_string().as_bytes())).collect();
        assert_eq!(held, "bcdhijklm");
        let mut below = LevelsBelow::new(&version, 4);
        assert!(!below.may_hold(b"j"));
        let mut below = LevelsBelow::new(&version, 6);
        assert!(!below.may_hold(b"j"));
    }
}
