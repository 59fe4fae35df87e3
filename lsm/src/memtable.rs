//! The memtable: the sorted map that takes writes until it is frozen and flushed.
//!
//! Invariants:
//! * Entries are only added; a key with its sequence number is never changed or removed.
//! * Any number of threads may insert and read at once. A reader at sequence *s* sees every entry
//!   up to *s* whose insert had returned before *s* was published.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;

use crate::Result;
use crate::cursor::Cursor;
use crate::key::{self, ValueKind};

/// Bytes that an entry takes beside its key and value: skip list node, pointers, reference count.
const ENTRY_OVERHEAD: usize = 96;

/// What a look-up found for a key: its newest visible version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The key has this value.
    Found(Bytes),
    /// The key was deleted.
    Deleted,
}

/// A sorted map from internal keys to values; see the module's top.
pub(crate) struct MemTable {
    map: SkipMap<MemKey, Bytes>,
    size: AtomicUsize,
}

impl MemTable {
    /// An empty memtable.
    pub(crate) fn new() -> Self {
        Self { map: SkipMap::new(), size: AtomicUsize::new(0) }
    }

    /// Adds a version of a key. Inserting the same version twice leaves one of the two, which
    /// recovery relies on.
    pub(crate) fn insert(&self, user_key: &[u8], sequence: u64, kind: ValueKind, value: &[u8]) {
        let internal_key = key::encode(user_key, key::trailer(sequence, kind));
        let size = internal_key.len() + value.len() + ENTRY_OVERHEAD;
        self.map.insert(MemKey(internal_key.into_boxed_slice()), Bytes::copy_from_slice(value));
        // A statistic: nothing is read because of it, so no ordering is needed.
        self.size.fetch_add(size, Memory::Relaxed);
    }

    /// The newest version of `user_key` at or below `sequence`.
    pub(crate) fn get(&self, user_key: &[u8], sequence: u64) -> Option<Lookup> {
        let target = Parts { user_key, trailer: key::seek_trailer(sequence) };
        let entry = self.map.lower_bound(Bound::Included(&target as &dyn KeyParts))?;
        let (found, trailer) = key::split(&entry.key().0);
        if found != user_key {
            return None;
        }
        if trailer & 0xff == ValueKind::Deletion as u64 {
            return Some(Lookup::Deleted);
        }
        Some(Lookup::Found(entry.value().clone()))
    }

    /// About how much memory the entries take, in bytes.
    pub(crate) fn approximate_size(&self) -> usize {
        self.size.load(Memory::Relaxed)
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing was inserted.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A cursor over the entries, which keeps the memtable alive. It may or may not see entries
    /// inserted while it moves; a reader filters by sequence.
    pub(crate) fn cursor(self: &Arc<Self>) -> MemCursor {
        MemCursor { table: Arc::clone(self), at: None }
    }
}

impl fmt::Debug for MemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, size) = (self.entries(), self.approximate_size());
        write!(f, "MemTable({entries} entries, {size} bytes)")
    }
}

/// A cursor over a memtable: an entry's key and value, copied out of the map, so that the cursor
/// borrows nothing and can be moved between threads.
#[derive(Debug)]
pub(crate) struct MemCursor {
    table: Arc<MemTable>,
    at: Option<(Box<[u8]>, Bytes)>,
}

impl MemCursor {
    fn go_to(&mut self, bound: Bound<&[u8]>, forward: bool) {
        let parts = |internal_key| {
            let (user_key, trailer) = key::split(internal_key);
            Parts { user_key, trailer }
        };
        let bound = bound.map(parts);
        let bound = bound.as_ref().map(|parts| parts as &dyn KeyParts);
        let map = &self.table.map;
        let entry = if forward { map.lower_bound(bound) } else { map.upper_bound(bound) };
        self.at = entry.as_ref().map(copied);
    }
}

fn copied(entry: &Entry<'_, MemKey, Bytes>) -> (Box<[u8]>, Bytes) {
    (entry.key().0.clone(), entry.value().clone())
}

impl Cursor for MemCursor {
    fn valid(&self) -> bool {
        self.at.is_some()
    }

    fn key(&self) -> &[u8] {
        &self.at.as_ref().expect("key() is called on a valid cursor only").0
    }

    fn value(&self) -> &[u8] {
        &self.at.as_ref().expect("value() is called on a valid cursor only").1
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.at = self.table.map.front().as_ref().map(copied);
        Ok(())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.at = self.table.map.back().as_ref().map(copied);
        Ok(())
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.go_to(Bound::Included(target), true);
        Ok(())
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.go_to(Bound::Included(target), false);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if let Some((key, _)) = self.at.take() {
            self.go_to(Bound::Excluded(&key), true);
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if let Some((key, _)) = self.at.take() {
            self.go_to(Bound::Excluded(&key), false);
        }
        Ok(())
    }
}

/// An internal key in the map.
struct MemKey(Box<[u8]>);

/// The parts of an internal key, borrowed: a look-up compares them without building a key.
struct Parts<'a> {
    user_key: &'a [u8],
    trailer: u64,
}

/// What [`MemKey`] and [`Parts`] have in common, so that the map can be searched by either.
trait KeyParts {
    fn parts(&self) -> (&[u8], u64);
}

impl KeyParts for MemKey {
    fn parts(&self) -> (&[u8], u64) {
        key::split(&self.0)
    }
}

impl KeyParts for Parts<'_> {
    fn parts(&self) -> (&[u8], u64) {
        (self.user_key, self.trailer)
    }
}

impl<'a> Borrow<dyn KeyParts + 'a> for MemKey {
    fn borrow(&self) -> &(dyn KeyParts + 'a) {
        self
    }
}

impl Ord for dyn KeyParts + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a_key, a_trailer) = self.parts();
        let (b_key, b_trailer) = other.parts();
        a_key.cmp(b_key).then(b_trailer.cmp(&a_trailer))
    }
}

impl PartialOrd for dyn KeyParts + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn KeyParts + '_ {}

impl Ord for MemKey {
    fn cmp(&self, other: &Self) -> Ordering {
        key::compare(&self.0, &other.0)
    }
}

impl PartialOrd for MemKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MemKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for MemKey {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{encode, trailer};

    fn table() -> Arc<MemTable> {
        let table = MemTable::new();
        table.insert(b"a", 1, ValueKind::Put, b"a1");
        table.insert(b"a", 3, ValueKind::Deletion, b"");
        table.insert(b"a", 5, ValueKind::Put, b"a5");
        table.insert(b"b", 2, ValueKind::Put, b"b2");
        table.insert(b"", 4, ValueKind::Put, b"empty");
        Arc::new(table)
    }

    #[test]
    fn a_look_up_finds_the_newest_version_at_or_below_its_sequence() {
        let table = table();
        let found = |value: &'static [u8]| Some(Lookup::Found(Bytes::from_static(value)));
        assert_eq!(table.get(b"a", 0), None);
        assert_eq!(table.get(b"a", 2), found(b"a1"));
        assert_eq!(table.get(b"a", 3), Some(Lookup::Deleted));
        assert_eq!(table.get(b"a", 4), Some(Lookup::Deleted));
        assert_eq!(table.get(b"a", 99), found(b"a5"));
        assert_eq!(table.get(b"", 99), found(b"empty"));
        assert_eq!(table.get(b"aa", 99), None);
        assert_eq!(table.get(b"c", 99), None);
    }

    #[test]
    fn the_cursor_walks_both_ways_newest_version_first() {
        let mut cursor = table().cursor();
        assert!(!cursor.valid());
        let mut values = Vec::new();
        cursor.seek_to_first().unwrap();
        while cursor.valid() {
            values.push(String::from_utf8(cursor.value().to_vec()).unwrap());
            cursor.next().unwrap();
        }
        assert_eq!(values, ["empty", "a5", "", "a1", "b2"]);
        cursor.next().unwrap();
        assert!(!cursor.valid());
        cursor.seek_to_last().unwrap();
        let mut back = Vec::new();
        while cursor.valid() {
            back.push(String::from_utf8(cursor.value().to_vec()).unwrap());
            cursor.prev().unwrap();
        }
        back.reverse();
        assert_eq!(values, back);
    }

    #[test]
    fn seeks_land_on_the_neighbour_of_an_absent_key() {
        let mut cursor = table().cursor();
        let between = encode(b"a", trailer(4, ValueKind::Put));
        cursor.seek(&between).unwrap();
        assert_eq!(cursor.key(), encode(b"a", trailer(3, ValueKind::Deletion)));
        cursor.seek_for_prev(&between).unwrap();
        assert_eq!(cursor.value(), b"a5");
        cursor.seek(&encode(b"c", trailer(9, ValueKind::Put))).unwrap();
        assert!(!cursor.valid());
        cursor.seek_for_prev(&encode(b"c", trailer(9, ValueKind::Put))).unwrap();
        assert_eq!(cursor.value(), b"b2");
    }

    #[test]
    fn threads_insert_and_read_at_once() {
        let table = Arc::new(MemTable::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let table = &table;
                scope.spawn(move || {
                    for i in 0..500 {
                        let sequence = i * 4 + thread + 1;
                        let key = (i % 50).to_be_bytes();
                        table.insert(&key, sequence, ValueKind::Put, &sequence.to_be_bytes());
                        let Some(Lookup::Found(value)) = table.get(&key, key::MAX_SEQUENCE) else {
                            panic!("a key is missing right after its insert");
                        };
                        let seen = u64::from_be_bytes(value[..].try_into().unwrap());
                        assert!(seen >= sequence);
                    }
                });
            }
        });
        assert_eq!(table.entries(), 2000);
        assert!(table.approximate_size() > 2000 * ENTRY_OVERHEAD);
    }
}
