//! The cursor and the range against a `BTreeMap`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::range::MakeCursor;
use super::*;
use crate::memtable::MemTable;
use crate::merge_iter::MergeCursor;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn cursor(tables: &[Arc<MemTable>], bounds: KeyBounds, sequence: u64) -> DbCursor {
    let children = tables.iter().map(|table| Box::new(table.cursor()) as _).collect();
    let merge = Box::new(MergeCursor::new(children));
    DbCursor::new(merge, bounds, sequence, PathBuf::from("db"), Arc::new(()))
}

fn range(tables: &[Arc<MemTable>], bounds: &KeyBounds, sequence: u64) -> Range {
    let (tables, bounds) = (tables.to_vec(), bounds.clone());
    let make: MakeCursor = Box::new(move || Ok(cursor(&tables, bounds.clone(), sequence)));
    Range::new(make)
}

fn random_key(rng: &mut StdRng) -> Vec<u8> {
    (0..rng.random_range(0..4)).map(|_| rng.random_range(b'a'..b'd')).collect()
}

fn random_bound(rng: &mut StdRng) -> Bound<Vec<u8>> {
    match rng.random_range(0..4) {
        0 => Bound::Included(random_key(rng)),
        1 => Bound::Excluded(random_key(rng)),
        _ => Bound::Unbounded,
    }
}

/// Random versions over a few memtables, and the model at a random sequence.
fn random_state(rng: &mut StdRng) -> (Vec<Arc<MemTable>>, u64, Model) {
    let tables: Vec<_> = (0..rng.random_range(1..4)).map(|_| Arc::new(MemTable::new())).collect();
    let last = rng.random_range(1..120);
    let visible = rng.random_range(0..=last);
    let mut model = Model::new();
    for sequence in 1..=last {
        let key = random_key(rng);
        let table = &tables[rng.random_range(0..tables.len())];
        if rng.random_bool(0.3) {
            table.insert(&key, sequence, ValueKind::Deletion, b"");
            if sequence <= visible {
                model.remove(&key);
            }
        } else {
            let value = sequence.to_string().into_bytes();
            table.insert(&key, sequence, ValueKind::Put, &value);
            if sequence <= visible {
                model.insert(key, value);
            }
        }
    }
    (tables, visible, model)
}

fn inside(model: &Model, bounds: &KeyBounds) -> Vec<(Vec<u8>, Vec<u8>)> {
    model
        .iter()
        .filter(|(key, _)| !bounds.below(key) && !bounds.above(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// ITER-04, ITER-05, ITER-10: random walks inside random bounds, turning at any key; keys are
/// prefixes of each other.
#[test]
fn random_walks_agree_with_a_sorted_map() {
    for seed in 0..150 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (tables, visible, model) = random_state(&mut rng);
        let bounds = KeyBounds { lower: random_bound(&mut rng), upper: random_bound(&mut rng) };
        let entries = inside(&model, &bounds);
        let mut cursor = cursor(&tables, bounds, visible);
        let mut at: Option<usize> = None;
        for step in 0..200 {
            match rng.random_range(0..8) {
                0 => {
                    cursor.seek_to_first().unwrap();
                    at = Some(0);
                }
                1 => {
                    cursor.seek_to_last().unwrap();
                    at = entries.len().checked_sub(1);
                }
                2 => {
                    let target = random_key(&mut rng);
                    cursor.seek(&target).unwrap();
                    at = entries.iter().position(|(key, _)| *key >= target);
                }
                3 => {
                    let target = random_key(&mut rng);
                    cursor.seek_for_prev(&target).unwrap();
                    at = entries.iter().rposition(|(key, _)| *key <= target);
                }
                4..=5 => {
                    cursor.next().unwrap();
                    at = at.map(|i| i + 1);
                }
                _ => {
                    cursor.prev().unwrap();
                    at = at.and_then(|i| i.checked_sub(1));
                }
            }
            at = at.filter(|&i| i < entries.len());
            let expected = at.map(|i| (&entries[i].0[..], &entries[i].1[..]));
            assert_eq!(cursor.key().zip(cursor.value()), expected, "seed {seed}, step {step}");
            assert_eq!(cursor.valid(), at.is_some());
        }
    }
}

#[test]
fn a_range_gives_each_entry_once_whichever_ends_are_taken() {
    for seed in 0..150 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (tables, visible, model) = random_state(&mut rng);
        let bounds = KeyBounds { lower: random_bound(&mut rng), upper: random_bound(&mut rng) };
        let mut entries: std::collections::VecDeque<_> = inside(&model, &bounds).into();
        let mut range = range(&tables, &bounds, visible);
        loop {
            let (found, expected) = if rng.random_bool(0.5) {
                (range.next(), entries.pop_front())
            } else {
                (range.next_back(), entries.pop_back())
            };
            let found = found.map(|item| item.unwrap());
            let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert_eq!(found, expected, "seed {seed}");
            if expected.is_none() {
                break;
            }
        }
        assert!(range.next().is_none() && range.next_back().is_none());
    }
}

#[test]
fn prefixes_hold_exactly_the_keys_that_begin_with_them() {
    let table = Arc::new(MemTable::new());
    let keys: [&[u8]; 7] = [b"", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xffz"];
    for (sequence, key) in (1..).zip(keys) {
        table.insert(key, sequence, ValueKind::Put, b"");
    }
    for prefix in [&b""[..], b"a", b"a\xff", b"b", b"c", b"\xff", b"\xff\xff"] {
        let bounds = KeyBounds::prefix(prefix);
        let tables = [Arc::clone(&table)];
        let found: Vec<_> =
            range(&tables, &bounds, 99).map(|item| item.unwrap().0.to_vec()).collect();
        let expected: Vec<_> =
            keys.iter().filter(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
        assert_eq!(found, expected, "{prefix:?}");
    }
}

/// RDEL-08, for iteration: an inverted range is empty.
#[test]
fn an_inverted_range_is_empty() {
    let table = Arc::new(MemTable::new());
    table.insert(b"b", 1, ValueKind::Put, b"");
    let bounds = KeyBounds::new(&("c".."a"));
    assert!(range(&[Arc::clone(&table)], &bounds, 9).next().is_none());
    assert!(range(&[table], &bounds, 9).next_back().is_none());
}

/// ITER-09
#[test]
fn an_unpositioned_cursor_has_no_key_and_moves_nowhere() {
    let table = Arc::new(MemTable::new());
    table.insert(b"b", 1, ValueKind::Put, b"v");
    let mut cursor = cursor(&[table], KeyBounds::all(), 9);
    for _ in 0..2 {
        assert_eq!((cursor.valid(), cursor.key(), cursor.value()), (false, None, None));
        cursor.next().unwrap();
        cursor.prev().unwrap();
    }
    cursor.seek_to_first().unwrap();
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    cursor.next().unwrap();
    cursor.prev().unwrap();
    assert!(!cursor.valid(), "past the end only a seek helps");
}

/// ITER-07, ITER-08: the error of a move is returned again until an explicit seek.
#[test]
fn an_error_is_repeated_until_a_seek() {
    struct Broken(Box<dyn Cursor>);
    impl Cursor for Broken {
        fn valid(&self) -> bool {
            self.0.valid()
        }
        fn key(&self) -> &[u8] {
            self.0.key()
        }
        fn value(&self) -> &[u8] {
            self.0.value()
        }
        fn seek_to_first(&mut self) -> Result<()> {
            self.0.seek_to_first()
        }
        fn seek_to_last(&mut self) -> Result<()> {
            self.0.seek_to_last()
        }
        fn seek(&mut self, target: &[u8]) -> Result<()> {
            self.0.seek(target)
        }
        fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
            self.0.seek_for_prev(target)
        }
        fn next(&mut self) -> Result<()> {
            Err(Error::Closed)
        }
        fn prev(&mut self) -> Result<()> {
            Err(Error::Closed)
        }
    }
    let table = Arc::new(MemTable::new());
    table.insert(b"a", 1, ValueKind::Put, b"");
    table.insert(b"b", 2, ValueKind::Put, b"");
    let inner = Box::new(Broken(Box::new(table.cursor())));
    let mut cursor = DbCursor::new(inner, KeyBounds::all(), 9, "db".into(), Arc::new(()));
    cursor.seek_to_first().unwrap();
    assert!(cursor.valid());
    for _ in 0..3 {
        assert!(matches!(cursor.next(), Err(Error::Closed)));
        assert!(matches!(cursor.prev(), Err(Error::Closed)));
        assert!(!cursor.valid());
    }
    cursor.seek("a").unwrap();
    assert_eq!(cursor.key(), Some(&b"a"[..]));
}

/// ITER-13
#[test]
fn cursors_and_ranges_can_be_sent_to_another_thread() {
    const fn sendable<T: Send + 'static>() {}
    const { sendable::<DbCursor>() };
    const { sendable::<Range>() };
}
