//! `multi_get_columns` and `multi_get_fixed`: the answers of `multi_get` as columns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use treering_env::{Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{
    ColumnFamily, Db, Error, FailedKeys, FixedColumn, KeyColumn, Options, ReadOptions, Result,
    Snapshot, ValueColumn,
};

use crate::allocator::allocations;
use crate::support::{faulty, open_new, small};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// The width of most values, and of the columns of fixed width that are asked for.
const WIDTH: usize = 24;

/// Keys of any length as a column.
struct Packed {
    bytes: Vec<u8>,
    offsets: Vec<i64>,
}

impl Packed {
    /// The keys, as a slice of a larger column.
    fn new(keys: &[Vec<u8>]) -> Self {
        let (mut bytes, mut offsets) = (b"before".to_vec(), vec![6]);
        for key in keys {
            bytes.extend_from_slice(key);
            offsets.push(i64::try_from(bytes.len()).unwrap());
        }
        bytes.extend_from_slice(b"behind");
        Self { bytes, offsets }
    }

    fn column(&self) -> KeyColumn<'_> {
        KeyColumn::offsets(&self.bytes, &self.offsets).unwrap()
    }
}

/// A family at a moment.
struct Reader<'a> {
    family: &'a ColumnFamily,
    /// Now, if there is none.
    snapshot: Option<&'a Snapshot>,
}

impl Reader<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let answer = match self.snapshot {
            Some(snapshot) => snapshot.get_in(self.family, key),
            None => self.family.get(key),
        };
        answer.map(|value| value.map(|value| value.to_vec()))
    }

    /// By a cursor that seeks the key.
    fn seek(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut cursor = match self.snapshot {
            Some(snapshot) => snapshot.cursor_in(self.family)?,
            None => self.family.cursor()?,
        };
        cursor.seek(key)?;
        let value = cursor.value().map(<[u8]>::to_vec);
        Ok(value.filter(|_| cursor.key() == Some(key)))
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Vec<Result<Option<Vec<u8>>>> {
        let answers = match self.snapshot {
            Some(snapshot) => snapshot.multi_get_in(keys.iter().map(|key| (self.family, key))),
            None => self.family.multi_get(keys),
        };
        answers.into_iter().map(|answer| answer.map(|value| value.map(|v| v.to_vec()))).collect()
    }

    fn columns(&self, keys: KeyColumn<'_>) -> Result<(ValueColumn, FailedKeys)> {
        match self.snapshot {
            Some(snapshot) => snapshot.multi_get_columns_in(self.family, keys),
            None => self.family.multi_get_columns(keys),
        }
    }

    fn fixed(&self, keys: KeyColumn<'_>, out: FixedColumn<'_>) -> Result<FailedKeys> {
        match self.snapshot {
            Some(snapshot) => snapshot.multi_get_fixed_in(self.family, keys, out),
            None => self.family.multi_get_fixed(keys, out),
        }
    }
}

/// The answers of a column one by one, after its layout was checked.
fn unpacked((column, failed): (ValueColumn, FailedKeys)) -> Vec<Result<Option<Vec<u8>>>> {
    let ValueColumn { data, offsets, validity } = &column;
    assert_eq!(offsets[0], 0);
    assert!(offsets.is_sorted());
    assert_eq!(usize::try_from(offsets[column.len()]).unwrap(), data.len());
    assert_eq!(validity.len(), column.len().div_ceil(8));
    if !column.len().is_multiple_of(8) {
        assert_eq!(validity.last().unwrap() >> (column.len() % 8), 0, "bits behind the last key");
    }
    let mut answers: Vec<_> =
        (0..column.len()).map(|key| Ok(column.get(key).map(<[u8]>::to_vec))).collect();
    for (key, error) in failed {
        assert_eq!(answers[key].as_ref().unwrap(), &None, "a failed key has no value");
        answers[key] = Err(error);
    }
    answers
}

/// The answers of a column of fixed width, likewise. A value of another length is an error.
fn unpacked_fixed(reader: &Reader<'_>, keys: KeyColumn<'_>) -> Vec<Result<Option<Vec<u8>>>> {
    let count = keys.len();
    let (mut values, mut validity) = (vec![0xaa; count * WIDTH + 3], vec![0xaa; count / 8 + 3]);
    let out = FixedColumn { values: &mut values, width: WIDTH, validity: &mut validity };
    let failed = reader.fixed(keys, out).unwrap();
    assert_eq!(values[count * WIDTH..], [0xaa; 3], "what is behind the column is left alone");
    assert!(validity[count.div_ceil(8)..].iter().all(|byte| *byte == 0xaa));
    if !count.is_multiple_of(8) {
        assert_eq!(validity[count / 8] >> (count % 8), 0, "bits behind the last key");
    }
    let answer = |key: usize| {
        let value = &values[key * WIDTH..][..WIDTH];
        let valid = validity[key / 8] >> (key % 8) & 1 == 1;
        assert!(valid || value == [0; WIDTH], "zeros where no value is");
        Ok(valid.then(|| value.to_vec()))
    };
    let mut answers: Vec<_> = (0..count).map(answer).collect();
    for (key, error) in failed {
        assert_eq!(answers[key].as_ref().unwrap(), &None, "a failed key has no value");
        answers[key] = Err(error);
    }
    answers
}

/// Every way to read the keys gives what the model has, but for those that an unreadable block
/// fails: `names` says whether an error is of that block. Returns how many those are.
fn check(
    reader: &Reader<'_>,
    model: &Model,
    keys: &[Vec<u8>],
    names: impl Fn(&Error) -> bool,
    context: &str,
) -> usize {
    let packed = Packed::new(keys);
    let each = reader.multi_get(keys);
    let columns = unpacked(reader.columns(packed.column()).unwrap());
    let fixed = unpacked_fixed(reader, packed.column());
    assert_eq!((each.len(), columns.len(), fixed.len()), (keys.len(), keys.len(), keys.len()));
    let mut broken = 0;
    for (index, key) in keys.iter().enumerate() {
        let right = model.get(key);
        let context = format!("{context}: key {index}, {:?}", String::from_utf8_lossy(key));
        let single = reader.get(key);
        for (way, answer) in [("multi_get", &each[index]), ("columns", &columns[index])] {
            match (&single, answer) {
                (Ok(single), Ok(answer)) => {
                    assert_eq!(answer.as_ref(), right, "{context} by {way}");
                    assert_eq!(single, answer, "{context} by get");
                }
                (Err(single), Err(error)) => {
                    assert!(names(error), "{context} by {way}: {error}");
                    assert_eq!(single.to_string(), error.to_string(), "{context} by {way}");
                }
                _ => panic!("{context}: {single:?} by get, {answer:?} by {way}"),
            }
        }
        match (&single, &fixed[index]) {
            (Ok(Some(value)), Err(error)) if value.len() != WIDTH => {
                let expected = format!("the value of key {index} has {} bytes", value.len());
                assert!(error.to_string().contains(&expected), "{context}: {error}");
            }
            (Ok(_), answer) => assert_eq!(answer.as_ref().unwrap().as_ref(), right, "{context}"),
            (Err(_), answer) => assert!(names(answer.as_ref().unwrap_err()), "{context}"),
        }
        match reader.seek(key) {
            Ok(answer) => assert_eq!(answer.as_ref(), right, "{context} by cursor"),
            Err(error) => assert!(names(&error), "{context} by cursor: {error}"),
        }
        broken += usize::from(single.is_err());
    }
    broken
}

/// Two families with levels, tombstones, overwritten keys and snapshots; and what is in them.
struct State {
    db: Db,
    families: [ColumnFamily; 2],
    now: [Model; 2],
    snapshots: Vec<(Snapshot, [Model; 2])>,
}

impl State {
    fn random(db: Db, random: &mut StdRng) -> Self {
        let other = db.create_column_family("other", small().cf).unwrap();
        let families = [db.column_family("default").unwrap(), other];
        let mut state = Self { db, families, now: Default::default(), snapshots: Vec::new() };
        for step in 0..4000 {
            let index = usize::from(random.random_bool(0.3));
            let (family, model) = (&state.families[index], &mut state.now[index]);
            let key = format!("key{:04}", random.random_range(0..700)).into_bytes();
            if random.random_range(0..5) == 0 {
                family.delete(&key).unwrap();
                model.remove(&key);
            } else {
                let mut value = format!("{step:0WIDTH$}").into_bytes();
                match random.random_range(0..20) {
                    0 => value.clear(),
                    1 => value.resize(random.random_range(0..600), b'v'),
                    _ => {}
                }
                family.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            match random.random_range(0..600) {
                0 => state.db.flush().unwrap(),
                1 => family.compact_range::<&str>(..).unwrap(),
                2..=4 => state.snapshots.push((state.db.snapshot(), state.now.clone())),
                _ => {}
            }
        }
        state
    }

    /// Every family at every moment, with what it holds.
    fn readers(&self) -> Vec<(Reader<'_>, &Model)> {
        let moments = self.snapshots.iter().map(|(snapshot, models)| (Some(snapshot), models));
        let moments = moments.chain([(None, &self.now)]);
        moments
            .flat_map(|(snapshot, models)| {
                let families = self.families.iter().zip(models);
                families.map(move |(family, model)| (Reader { family, snapshot }, model))
            })
            .collect()
    }
}

fn random_keys(random: &mut StdRng, count: usize) -> Vec<Vec<u8>> {
    let key = |random: &mut StdRng| match random.random_range(0..40) {
        0 => Vec::new(),
        1 => vec![b'z'; 100],
        2 => b"key0699".to_vec(),
        _ => format!("key{:04}", random.random_range(0..800)).into_bytes(),
    };
    (0..count).map(|_| key(random)).collect()
}

/// MGET-01, MGET-05, MGET-07, MGET-08
#[test]
fn columns_have_the_answers_of_multi_get_and_get_and_cursors_in_any_state() {
    for seed in [31, 32, 33] {
        let mut random = StdRng::seed_from_u64(seed);
        let options = if seed == 32 { uncached() } else { small() };
        let (_env, db) = open_new(options);
        let state = State::random(db, &mut random);
        assert!(!state.snapshots.is_empty(), "seed {seed}");
        for (number, (reader, model)) in state.readers().iter().enumerate() {
            for size in [0, 1, 2, 7, 8, 9, 33, 257] {
                let keys = random_keys(&mut random, size);
                let broken = check(
                    reader,
                    model,
                    &keys,
                    |_| false,
                    &format!("seed {seed}, reader {number}, {size} keys"),
                );
                assert_eq!(broken, 0);
            }
        }
        let mut keys = random_keys(&mut random, 3000);
        keys.sort();
        let (reader, model) = &state.readers()[0];
        check(reader, model, &keys, |_| false, &format!("seed {seed}, in order"));
    }
}

fn uncached() -> Options {
    Options { block_cache_size: 0, ..small() }
}

fn is_of(error: &Error, path: &PathBuf, offset: u64) -> bool {
    match error {
        Error::Io(io) => io.path() == path && io.offset() == Some(offset),
        Error::Corruption { path: damaged, offset: at, .. } => {
            damaged == path && *at == Some(offset)
        }
        _ => false,
    }
}

/// MGET-03, MGET-04
#[test]
fn with_one_unreadable_block_every_way_to_read_gives_the_right_value_or_the_error_of_that_block() {
    for seed in [41, 42] {
        let mut random = StdRng::seed_from_u64(seed);
        let (_env, faults, db) = faulty(uncached());
        let state = State::random(db, &mut random);
        let mut keys: Vec<Vec<u8>> = (0..720).map(|i| format!("key{i:04}").into_bytes()).collect();
        keys.extend_from_within(100..110);
        keys.shuffle(&mut random);
        let readers = state.readers();
        let (reader, model) = readers.choose(&mut random).unwrap();
        // All tables are open after this, so that only blocks of data are read.
        check(reader, model, &keys, |_| false, &format!("seed {seed}, without a fault"));
        let blocks = blocks_read(&faults, || drop(reader.multi_get(&keys)));
        for (path, offset) in blocks.into_iter().sample(&mut random, 12) {
            for kind in [FaultKind::Error(5), FaultKind::FlipBit(100)] {
                let wanted = path.clone();
                let hits = move |call: &treering_env::Call<'_>| {
                    call.path == wanted && call.offset == offset
                };
                let fault = faults.add(Fault::new(kind).on(Op::Read).matching(hits));
                let context = format!("seed {seed}, {kind:?} at {offset} of {}", path.display());
                let names = |error: &Error| is_of(error, &path, offset);
                let broken = check(reader, model, &keys, names, &context);
                fault.remove();
                assert!(broken > 0 && broken < 200, "{context}: {broken} keys failed");
            }
        }
        check(reader, model, &keys, |_| false, &format!("seed {seed}, after the faults"));
    }
}

/// The blocks of tables that are read while `run` runs.
pub(crate) fn blocks_read(faults: &FaultEnv, run: impl FnOnce()) -> BTreeSet<(PathBuf, u64)> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = Arc::clone(&seen);
    let note = move |call: &treering_env::Call<'_>| {
        noted.lock().unwrap().insert((call.path.to_path_buf(), call.offset));
        false
    };
    let watch = faults.add(Fault::new(FaultKind::Block).on(Op::Read).path(".sst").matching(note));
    run();
    watch.remove();
    std::mem::take(&mut *seen.lock().unwrap())
}

fn numbers(keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    keys.into_iter().flat_map(u64::to_be_bytes).collect()
}

/// A database of `count` numbers, each with itself as value, in blocks and levels of usual size.
fn numbered(count: u64) -> Db {
    let mut options = Options { background_threads: 0, ..Options::default() };
    options.cf.table_size = 256 << 10;
    let db = Db::open(Arc::new(MemEnv::new()), "db", options).unwrap();
    for i in 0..count {
        db.put(i.to_be_bytes(), i.to_be_bytes().repeat(5)).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    db
}

#[test]
fn a_hot_call_allocates_nothing_for_a_key() {
    let db = numbered(40_000);
    for i in 0..2000_u64 {
        db.put((i * 20 + 1).to_be_bytes(), [7; 40]).unwrap();
    }
    let mut random = StdRng::seed_from_u64(1);
    let mut shuffled = |count: u64| {
        let mut keys: Vec<u64> = (0..count).map(|i| i * 40_000 / count).collect();
        keys.shuffle(&mut random);
        numbers(keys)
    };
    let sets = [shuffled(1000), shuffled(8000)];
    let columns = sets.each_ref().map(|keys| {
        let keys = KeyColumn::fixed(keys, 8).unwrap();
        drop(db.multi_get_columns(keys).unwrap());
        let (count, answers) = allocations(|| db.multi_get_columns(keys).unwrap());
        assert_eq!(answers.0.data.len(), keys.len() * 40);
        count
    });
    let fixed = sets.each_ref().map(|keys| {
        let keys = KeyColumn::fixed(keys, 8).unwrap();
        let mut values = vec![0; keys.len() * 40];
        let mut validity = vec![0; keys.len() / 8];
        let out = FixedColumn { values: &mut values, width: 40, validity: &mut validity };
        let (count, failed) = allocations(|| db.multi_get_fixed(keys, out).unwrap());
        assert!(failed.is_empty() && validity.iter().all(|byte| *byte == 0xff));
        count
    });
    for [few, many] in [columns, fixed] {
        assert!(few <= 64, "{few} allocations for 1000 keys");
        assert!(many <= few + 32, "{few} allocations for 1000 keys, {many} for 8000");
    }
    let keys = sets[0].chunks(8);
    let (each, _answers) = allocations(|| db.multi_get(keys));
    assert!(each >= 900, "{each} allocations for 1000 values: the counter counts");
}

#[test]
fn every_key_that_shares_a_value_gets_it_and_answers_keep_the_order_of_the_keys() {
    let db = numbered(100);
    let asked = [70, 3, 3, 200, 70, 70, 0, 3, 99, 201];
    let keys = numbers(asked);
    let keys = KeyColumn::fixed(&keys, 8).unwrap();
    let (column, failed) = db.multi_get_columns(keys).unwrap();
    failed.into_result().unwrap();
    let mut values = [1; 400];
    let mut validity = [0xff; 2];
    let out = FixedColumn { values: &mut values, width: 40, validity: &mut validity };
    db.multi_get_fixed(keys, out).unwrap().into_result().unwrap();
    assert_eq!(column.validity, [0b1111_0111, 0b01]);
    assert_eq!(validity, [0b1111_0111, 0b01]);
    for (index, number) in asked.into_iter().enumerate() {
        let expected = (number < 100).then(|| number.to_be_bytes().repeat(5));
        assert_eq!(column.get(index), expected.as_deref());
        assert_eq!(values[index * 40..][..40], expected.unwrap_or(vec![0; 40]));
    }
}

#[test]
fn a_value_of_another_length_fails_its_keys_by_name_and_no_others() {
    let db = numbered(10);
    db.put(4_u64.to_be_bytes(), "short").unwrap();
    let keys = numbers([1, 4, 2, 4]);
    let keys = KeyColumn::fixed(&keys, 8).unwrap();
    let (mut values, mut validity) = ([9; 160], [0]);
    let out = FixedColumn { values: &mut values, width: 40, validity: &mut validity };
    let failed = db.multi_get_fixed(keys, out).unwrap();
    let told: Vec<_> = failed.as_slice().iter().map(|(key, e)| (*key, e.to_string())).collect();
    let what = |key| format!("invalid argument: the value of key {key} has 5 bytes, not 40");
    assert_eq!(told, [(1, what(1)), (3, what(3))]);
    assert_eq!(validity, [0b0101]);
    assert!(failed.into_result().is_err());
}

/// A value that many keys ask for is copied for each of them, so a few bytes could ask for more
/// memory than there is.
#[test]
fn values_beyond_the_limit_together_are_refused_before_they_are_copied() {
    let (_env, db) = open_new(small());
    db.put("k", vec![b'v'; 1 << 20]).unwrap();
    db.put("l", "small").unwrap();
    db.flush().unwrap();
    let keys = vec![b'k'; 4096];
    let keys = KeyColumn::fixed(&keys, 1).unwrap();
    let message = db.multi_get_columns(keys).unwrap_err().to_string();
    assert!(message.contains("more than 4294967295 bytes"), "{message}");
    assert!(message.contains("fewer keys"), "{message}");
    let keys = KeyColumn::fixed(b"lkk", 1).unwrap();
    let (column, failed) = db.multi_get_columns(keys).unwrap();
    assert!(failed.is_empty());
    assert_eq!(column.offsets, [0, 5, 5 + (1 << 20), 5 + (2 << 20)]);
}

#[test]
fn closed_databases_dropped_families_and_those_of_others_fail_the_call() {
    let (_env, db) = open_new(small());
    let (_other_env, other) = open_new(small());
    let keys = KeyColumn::fixed(b"ab", 1).unwrap();
    let family = db.create_column_family("family", small().cf).unwrap();
    let snapshot = db.snapshot();
    let foreign = other.column_family("default").unwrap();
    let (mut values, mut validity) = ([0; 2], [0]);
    let mut fixed = |read: &dyn Fn(FixedColumn<'_>) -> Result<FailedKeys>| {
        read(FixedColumn { values: &mut values, width: 1, validity: &mut validity }).unwrap_err()
    };
    let error = snapshot.multi_get_columns_in(&foreign, keys).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    let error = fixed(&|out| snapshot.multi_get_fixed_in(&foreign, keys, out));
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    db.drop_column_family(&family).unwrap();
    let error = family.multi_get_columns(keys).unwrap_err();
    assert!(matches!(error, Error::FamilyDropped { .. }), "{error}");
    let error = fixed(&|out| family.multi_get_fixed(keys, out));
    assert!(matches!(error, Error::FamilyDropped { .. }), "{error}");
    db.close().unwrap();
    assert!(matches!(db.multi_get_columns(keys), Err(Error::Closed)));
    assert!(matches!(fixed(&|out| snapshot.multi_get_fixed(keys, out)), Error::Closed));
    let options = ReadOptions { fill_cache: false };
    assert!(matches!(snapshot.multi_get_columns_opt(keys, &options), Err(Error::Closed)));
}

#[test]
fn a_hot_get_allocates_once_for_a_value_and_never_for_a_key_that_is_not_there() {
    let db = numbered(4000);
    db.put(7_u64.to_be_bytes(), [1; 40]).unwrap();
    db.delete(8_u64.to_be_bytes()).unwrap();
    db.put([9; 56], [1; 40]).unwrap();
    db.flush().unwrap();
    db.put(9_u64.to_be_bytes(), [1; 40]).unwrap();
    db.delete(10_u64.to_be_bytes()).unwrap();
    let (mut found, mut missing) = (0, 0);
    let keys =
        (0..5000_u64).map(|key| key.to_be_bytes().to_vec()).chain([vec![9; 56], vec![8; 56]]);
    for key in keys {
        drop(db.get(&key).unwrap());
        let (count, value) = allocations(|| db.get(&key).unwrap());
        let there = value.is_some();
        assert!(count <= u64::from(there), "{count} allocations for {key:?}, there: {there}");
        if there { found += 1 } else { missing += 1 }
    }
    assert!(found > 2000 && missing > 1000, "{found} found, {missing} missing");
    // Its key is too long for the stack; where no table can hold it, none is built.
    db.put([9; 57], [1; 40]).unwrap();
    assert_eq!(allocations(|| db.get([255; 300]).unwrap()), (0, None));
}
