//! Versions: which tables hold a family's data, level by level.
//!
//! A [`Version`] is immutable and shared. A table that no version names any more is obsolete: when
//! the last version, cursor or job that holds its [`FileMeta`] is gone, its name is queued in
//! [`ObsoleteFiles`], so a file outlives every reader that may still need it without anyone
//! keeping lists of readers.
//!
//! Invariants of a version: level 0 is ordered from newest to oldest; every deeper level is
//! ordered by key, and no two of its tables share a user key. Tables enter level 0 oldest first.

pub(crate) mod current;
pub(crate) mod edit;
mod level;
pub(crate) mod manifest;
pub(crate) mod set;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::cursor::Cursor;
use crate::filename::FileName;
use crate::key;
use crate::table::{Table, TableCursor, TableSummary};
use crate::table_cache::TableCache;
use crate::{Error, ReadOptions, Result};

use level::LevelCursor;

pub(crate) use crate::batch::FamilyId;
pub(crate) use edit::{FamilyLog, MAX_FAMILY_NAME, VersionEdit};
pub(crate) use manifest::Claims;
pub(crate) use set::{FamilyVersions, Installed, VersionSet};

/// Levels of a family.
pub(crate) const LEVELS: usize = 7;

/// A table as the manifest knows it.
#[derive(Debug)]
pub(crate) struct FileMeta {
    /// The file's number.
    pub(crate) number: u64,
    /// The file's size in bytes.
    pub(crate) size: u64,
    /// The random id in the table's checksums.
    pub(crate) table_id: u64,
    /// Entries in the table.
    pub(crate) entries: u64,
    /// The smallest sequence number in the table.
    pub(crate) smallest_sequence: u64,
    /// The largest sequence number in the table.
    pub(crate) largest_sequence: u64,
    /// The first internal key.
    pub(crate) smallest: Vec<u8>,
    /// The last internal key.
    pub(crate) largest: Vec<u8>,
    /// Whether a compaction has the table among its inputs. Changed under the picker's lock only.
    pub(crate) being_compacted: AtomicBool,
    obsolete: ObsoleteMark,
}

impl FileMeta {
    /// A table with these bounds; the facts that are not given are zero.
    pub(crate) fn new(number: u64, size: u64, smallest: Vec<u8>, largest: Vec<u8>) -> Self {
        Self {
            number,
            size,
            table_id: 0,
            entries: 0,
            smallest_sequence: 0,
            largest_sequence: 0,
            smallest,
            largest,
            being_compacted: AtomicBool::new(false),
            obsolete: ObsoleteMark::default(),
        }
    }

    /// The table that was just written as file `number`.
    pub(crate) fn of_table(number: u64, table: TableSummary) -> Self {
        Self {
            table_id: table.table_id,
            entries: table.entries,
            smallest_sequence: table.smallest_sequence,
            largest_sequence: table.largest_sequence,
            ..Self::new(number, table.size, table.smallest, table.largest)
        }
    }

    /// The first user key.
    pub(crate) fn smallest_user_key(&self) -> &[u8] {
        key::user_key(&self.smallest)
    }

    /// The last user key.
    pub(crate) fn largest_user_key(&self) -> &[u8] {
        key::user_key(&self.largest)
    }

    /// Whether the table may hold user keys in `range`.
    pub(crate) fn overlaps(&self, range: KeyRange<'_>) -> bool {
        range.begin.is_none_or(|begin| self.largest_user_key() >= begin)
            && range.end.is_none_or(|end| self.smallest_user_key() <= end)
    }

    /// Whether a compaction has the table among its inputs.
    pub(crate) fn is_being_compacted(&self) -> bool {
        self.being_compacted.load(Ordering::Relaxed)
    }

    /// The table, from the cache or opened. A valid table in the place of this one, restored or
    /// renamed by hand, is corruption: it would answer with other data.
    pub(crate) fn open(&self, tables: &TableCache) -> Result<Arc<Table>> {
        let table = tables.get(self.number, self.size)?;
        if table.table_id() == self.table_id {
            return Ok(table);
        }
        tables.evict(self.number);
        let what = "another table stands in its place: its id is not the recorded one";
        Err(Error::corruption(table.path(), None, what))
    }

    /// A cursor that reads the whole table once, past the block cache.
    pub(crate) fn scan(&self, tables: &TableCache) -> Result<TableCursor> {
        self.open(tables)?;
        tables.scan(self.number, self.size)
    }

    /// From now on the file is removed when the last holder of `self` is gone. Only after the
    /// edit that dropped it is durable.
    fn mark_obsolete(&self, queue: &Arc<ObsoleteFiles>) {
        // A second mark changes nothing.
        let _ = self.obsolete.0.set((Arc::clone(queue), FileName::Table(self.number)));
    }
}

impl PartialEq for FileMeta {
    /// Compares what the manifest stores.
    fn eq(&self, other: &Self) -> bool {
        let facts = |file: &Self| {
            let sequences = (file.smallest_sequence, file.largest_sequence);
            (file.number, file.size, file.table_id, file.entries, sequences)
        };
        facts(self) == facts(other)
            && self.smallest == other.smallest
            && self.largest == other.largest
    }
}

/// Queues a file for removal when it is dropped, if it was set.
#[derive(Debug, Default)]
struct ObsoleteMark(OnceLock<(Arc<ObsoleteFiles>, FileName)>);

impl Drop for ObsoleteMark {
    fn drop(&mut self) {
        if let Some((queue, name)) = self.0.get() {
            queue.push(*name);
        }
    }
}

/// Files that the durable manifest does not name and nobody reads: the database removes them, and
/// evicts the tables among them from its table cache.
///
/// A file is queued at most once. While the manifest's state is unknown (after a failed edit)
/// nothing may be removed; the next open finds what was left.
#[derive(Default)]
pub(crate) struct ObsoleteFiles {
    names: Mutex<Vec<FileName>>,
    on_push: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for ObsoleteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names.lock().iter()).finish()
    }
}

impl ObsoleteFiles {
    fn push(&self, name: FileName) {
        self.names.lock().push(name);
        if let Some(tell) = self.on_push.get() {
            tell();
        }
    }

    /// Calls `tell` whenever a file is queued from now on, on the thread that was its last reader
    /// and under whatever locks that one holds: it must take none that others wait under.
    pub(crate) fn on_push(&self, tell: impl Fn() + Send + Sync + 'static) {
        let first = self.on_push.set(Box::new(tell)).is_ok();
        assert!(first, "the queue has one listener");
    }

    /// Takes all names that are queued now.
    pub(crate) fn take(&self) -> Vec<FileName> {
        std::mem::take(&mut *self.names.lock())
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.lock().is_empty()
    }
}

/// The one counter that numbers tables, logs and manifests. It only grows, also over reopens.
#[derive(Debug)]
pub(crate) struct FileNumbers {
    next: AtomicU64,
}

impl FileNumbers {
    fn new(next: u64) -> Self {
        Self { next: AtomicU64::new(next) }
    }

    /// A number that no file has or had. Never waits.
    pub(crate) fn next(&self) -> u64 {
        // Relaxed: only uniqueness matters; whoever passes the number on synchronises.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that [`FileNumbers::next`] would give: all given ones are smaller.
    pub(crate) fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Never gives out `number` or a smaller one again.
    pub(crate) fn raise_above(&self, number: u64) {
        self.next.fetch_max(number + 1, Ordering::Relaxed);
    }
}

/// A range of user keys, both ends included; `None` is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyRange<'a> {
    /// The first user key.
    pub(crate) begin: Option<&'a [u8]>,
    /// The last user key.
    pub(crate) end: Option<&'a [u8]>,
}

/// The tables of one family at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    levels: [Arc<[Arc<FileMeta>]>; LEVELS],
}

impl Version {
    /// The tables of `level`: level 0 newest first, deeper ones by key.
    pub(crate) fn files(&self, level: usize) -> &[Arc<FileMeta>] {
        &self.levels[level]
    }

    /// The same, shared.
    pub(crate) fn shared_files(&self, level: usize) -> &Arc<[Arc<FileMeta>]> {
        &self.levels[level]
    }

    /// Bytes of all tables in `level`.
    pub(crate) fn level_size(&self, level: usize) -> u64 {
        self.files(level).iter().map(|file| file.size).sum()
    }

    #[cfg(test)]
    /// Tables in all levels.
    pub(crate) fn file_count(&self) -> usize {
        self.levels.iter().map(|files| files.len()).sum()
    }

    /// The tables that may hold `user_key`, with their levels, those with newer data first. Looks
    /// at every table of level 0 and at one of each deeper level, found by binary search.
    pub(crate) fn candidates<'a>(
        &'a self,
        user_key: &'a [u8],
    ) -> impl Iterator<Item = (usize, &'a Arc<FileMeta>)> {
        let only = KeyRange { begin: Some(user_key), end: Some(user_key) };
        let newest = self.files(0).iter().filter(move |file| file.overlaps(only));
        let deeper = (1..LEVELS)
            .filter_map(move |level| Some((level, self.candidate_from(level, &mut 0, user_key)?)));
        newest.map(|file| (0, file)).chain(deeper)
    }

    /// The table of a level below 0 that may hold `user_key`, for keys in ascending order: `from`
    /// is 0 for the first of them, and moves along with them.
    pub(crate) fn candidate_from(
        &self,
        level: usize,
        from: &mut usize,
        user_key: &[u8],
    ) -> Option<&Arc<FileMeta>> {
        let files = self.files(level);
        let ends_before = |file: &Arc<FileMeta>| file.largest_user_key() < user_key;
        if files.get(*from).is_some_and(ends_before) {
            *from += files[*from..].partition_point(ends_before);
        }
        files.get(*from).filter(|file| file.smallest_user_key() <= user_key)
    }

    /// The tables of `level` that may hold keys in `range`, in the level's order.
    pub(crate) fn overlapping(&self, level: usize, range: KeyRange<'_>) -> Vec<Arc<FileMeta>> {
        let files = self.files(level);
        if level == 0 {
            return files.iter().filter(|file| file.overlaps(range)).cloned().collect();
        }
        let start = range.begin.map_or(0, |begin| self.first_at_or_after(level, begin));
        let rest = files.get(start..).unwrap_or_default();
        rest.iter().take_while(|file| file.overlaps(range)).cloned().collect()
    }

    /// A cursor for each table of level 0, newest first, and one for each deeper level that has
    /// tables. Opens the tables of level 0; the others open when the cursor comes to them.
    pub(crate) fn cursors(
        &self,
        tables: &Arc<TableCache>,
        options: &ReadOptions,
    ) -> Result<Vec<Box<dyn Cursor>>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for file in self.files(0) {
            let single: Arc<[Arc<FileMeta>]> = Arc::from([Arc::clone(file)]);
            let mut cursor = LevelCursor::new(single, tables, options);
            cursor.open_first()?;
            cursors.push(Box::new(cursor));
        }
        for files in self.levels.iter().skip(1).filter(|files| !files.is_empty()) {
            cursors.push(Box::new(LevelCursor::new(Arc::clone(files), tables, options)));
        }
        Ok(cursors)
    }

    /// The index of the first table of a deeper `level` whose last user key is at or after
    /// `user_key`.
    fn first_at_or_after(&self, level: usize, user_key: &[u8]) -> usize {
        self.files(level).partition_point(|file| file.largest_user_key() < user_key)
    }
}
