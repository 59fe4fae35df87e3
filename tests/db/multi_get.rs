//! `multi_get`: the same answers as single reads, from fewer and parallel block reads.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use treering_env::{Count, CountEnv, Fault, FaultEnv, FaultKind, MemEnv, Op, PosixEnv};
use treering_lsm::{Db, Error, FailedKeys, FixedColumn, KeyColumn, Options, ReadOptions, Snapshot};

use crate::columns::blocks_read;
use crate::support::{faulty, open_new, small, try_open};

fn found(answer: &Result<Option<Bytes>, Error>) -> Option<String> {
    answer.as_ref().unwrap().as_ref().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Options under which nothing is cached, so that every block is read.
fn uncached() -> Options {
    Options { block_cache_size: 0, ..small() }
}

/// MGET-01, MGET-07, MGET-08
#[test]
fn answers_equal_those_of_single_reads_and_iterators_in_any_state() {
    for seed in [21, 22, 23] {
        let mut random = StdRng::seed_from_u64(seed);
        let options = if seed == 22 { uncached() } else { small() };
        let (_env, db) = open_new(options);
        let mut snapshots = Vec::new();
        for step in 0..4000 {
            let key = format!("key{:04}", random.random_range(0..1000));
            match random.random_range(0..5) {
                0 => db.delete(&key).unwrap(),
                _ => db.put(&key, format!("{step}{}", "m".repeat(25))).unwrap(),
            }
            match random.random_range(0..500) {
                0 => db.flush().unwrap(),
                1 => snapshots.push(db.snapshot()),
                _ => {}
            }
        }
        for size in [0, 1, 2, 31, 32, 33, 64, 257, 1000, 5000] {
            let key = |random: &mut StdRng| match random.random_range(0..20) {
                0 => String::new(),
                1 => "zzz".to_owned(),
                2 => "key0999".to_owned(),
                _ => format!("key{:04}", random.random_range(0..1100)),
            };
            let keys: Vec<String> = (0..size).map(|_| key(&mut random)).collect();
            let answers = db.multi_get(&keys);
            assert_eq!(answers.len(), size);
            for (key, answer) in keys.iter().zip(&answers) {
                assert_eq!(found(answer), found(&db.get(key)), "seed {seed}, {key}");
            }
            for snapshot in &snapshots {
                let mut cursor = snapshot.cursor().unwrap();
                for (key, answer) in keys.iter().zip(snapshot.multi_get(&keys)) {
                    assert_eq!(found(&answer), found(&snapshot.get(key)), "seed {seed}, {key}");
                    cursor.seek(key).unwrap();
                    let at_key = cursor.key() == Some(key.as_bytes());
                    assert_eq!(found(&answer).is_some(), at_key, "seed {seed}, {key}");
                }
            }
        }
    }
}

/// MGET-01
#[test]
fn duplicates_get_one_answer_and_one_read_also_at_the_ends_of_tables() {
    let count = CountEnv::new(Arc::new(MemEnv::new()));
    let db = try_open(Arc::new(count.clone()), uncached()).unwrap();
    for i in 0..300 {
        db.put(format!("key{i:04}"), format!("value {i}")).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    for i in [0, 150, 299] {
        let key = format!("key{i:04}");
        db.get(&key).unwrap();
        let before = count.counts();
        let answers = db.multi_get(vec![&key; 64]);
        assert_eq!(answers.len(), 64);
        assert!(answers.iter().all(|a| found(a).as_deref() == Some(&*format!("value {i}"))));
        assert_eq!(count.counts().since(&before).of(Op::Read).calls, 1);
    }
}

/// MGET-08, MGET-10
#[test]
fn an_empty_call_does_no_io_and_others_read_each_block_once_through_the_queue() {
    let count = CountEnv::new(Arc::new(MemEnv::new()));
    let db = try_open(Arc::new(count.clone()), uncached()).unwrap();
    let mut order: Vec<u32> = (0..3000).collect();
    order.shuffle(&mut StdRng::seed_from_u64(5));
    for i in &order {
        db.put(format!("key{i:05}"), format!("value {i}")).unwrap();
    }
    let keys: Vec<String> = (0..3000).map(|i| format!("key{i:05}")).collect();
    // The tables are open after this, so only data blocks are read below.
    assert!(db.multi_get(&keys).iter().all(Result::is_ok));
    let reads = |call: &dyn Fn()| -> Count {
        let before = count.counts();
        call();
        count.counts().since(&before).of(Op::Read)
    };
    let none = reads(&|| {
        assert!(db.multi_get::<&str>([]).is_empty());
    });
    assert_eq!(none.calls, 0);
    let all = reads(&|| {
        let options = ReadOptions { fill_cache: false };
        assert!(db.multi_get_opt(&keys, &options).iter().all(|answer| found(answer).is_some()));
    });
    assert_eq!(all.queued, all.calls, "every block is read through the queue");
    let stats = db.stats();
    let bytes: u64 = stats.families[0].levels.iter().map(|level| level.bytes).sum();
    assert!(all.bytes <= bytes, "{} bytes read of {bytes}: a block was read twice", all.bytes);
    assert!(all.calls > 100, "{all:?}");
    let few = reads(&|| {
        let some: Vec<&String> = keys.iter().step_by(100).collect();
        assert_eq!(db.multi_get(&some).len(), 30);
        let snapshot = db.snapshot();
        assert_eq!(snapshot.multi_get(&some).len(), 30);
        let family = db.column_family("default").unwrap();
        assert_eq!(db.multi_get_in(some.iter().map(|key| (&family, key))).len(), 30);
        assert_eq!(family.multi_get(&some).len(), 30);
        let packed: String = some.iter().map(|key| key.as_str()).collect();
        let keys = KeyColumn::fixed(packed.as_bytes(), 8).unwrap();
        assert_eq!(db.multi_get_columns(keys).unwrap().0.len(), 30);
        assert_eq!(family.multi_get_columns(keys).unwrap().0.len(), 30);
        assert_eq!(snapshot.multi_get_columns(keys).unwrap().0.len(), 30);
        assert_eq!(snapshot.multi_get_columns_in(&family, keys).unwrap().0.len(), 30);
        assert_eq!(snapshot.multi_get_in(some.iter().map(|key| (&family, key))).len(), 30);
        let options = ReadOptions::default();
        assert_eq!(snapshot.multi_get_opt(&some, &options).len(), 30);
        assert_eq!(family.multi_get_opt(&some, &options).len(), 30);
        let (mut values, mut validity) = ([0; 30 * 10], [0; 4]);
        let mut fixed = |call: &dyn Fn(FixedColumn<'_>) -> treering_lsm::Result<FailedKeys>| {
            let out = FixedColumn { values: &mut values, width: 10, validity: &mut validity };
            assert!(!call(out).unwrap().is_empty(), "values of other lengths");
        };
        fixed(&|out| db.multi_get_fixed(keys, out));
        fixed(&|out| family.multi_get_fixed(keys, out));
        fixed(&|out| snapshot.multi_get_fixed(keys, out));
        fixed(&|out| snapshot.multi_get_fixed_in(&family, keys, out));
    });
    assert_eq!(few.queued, few.calls, "no way to look up many keys is a loop of single reads");
    assert_eq!(few.calls, 15 * 30, "each of them reads a block for each key");
}

/// MGET-08: keys spread over all tables, and keys of one or two blocks.
#[test]
fn calls_of_every_size_read_what_the_cache_has_not_and_nothing_else() {
    let options = Options { block_cache_size: 4 << 20, ..small() };
    for size in [1, 2, 31, 32, 33, 64, 257, 1000] {
        let spread: Vec<usize> = (0..size).map(|i| i * 1000 / size).collect();
        let dense: Vec<usize> = (0..size).map(|i| i % 5).collect();
        for numbers in [spread, dense] {
            let count = CountEnv::new(Arc::new(MemEnv::new()));
            let db = try_open(Arc::new(count.clone()), options.clone()).unwrap();
            for i in 0..1000 {
                db.put(format!("key{i:05}"), format!("value {i:010}")).unwrap();
            }
            db.compact_range::<&str>(..).unwrap();
            let reads = |step: usize, fill_cache| {
                let numbers: Vec<usize> = numbers.iter().step_by(step).copied().collect();
                let keys: Vec<String> = numbers.iter().map(|i| format!("key{i:05}")).collect();
                let (packed, options) = (keys.concat(), ReadOptions { fill_cache });
                let packed = KeyColumn::fixed(packed.as_bytes(), 8).unwrap();
                let before = count.counts();
                let (column, failed) = db.multi_get_columns_opt(packed, &options).unwrap();
                let reads = count.counts().since(&before).of(Op::Read).calls;
                assert!(failed.is_empty());
                let each = db.multi_get_opt(&keys, &options);
                for (index, (i, answer)) in numbers.iter().zip(&each).enumerate() {
                    let expected = format!("value {i:010}");
                    assert_eq!(found(answer).as_ref(), Some(&expected), "{size} keys");
                    assert_eq!(column.get(index), Some(expected.as_bytes()), "{size} keys");
                }
                reads
            };
            // Opens the tables.
            reads(1, false);
            let cold = reads(1, false);
            assert!((1..=size as u64).contains(&cold), "{cold} reads of {size} keys");
            let half = reads(2, true);
            assert_eq!(reads(1, false), cold - half, "{size} keys, every other one cached");
            reads(1, true);
            assert_eq!(reads(1, false), 0, "{size} keys, all cached");
        }
    }
}

#[test]
fn a_call_far_larger_than_what_is_in_work_at_once_is_answered_in_full() {
    let (_env, db) = open_new(small());
    for i in 0..500 {
        db.put(format!("key{i:04}"), i.to_string()).unwrap();
    }
    db.flush().unwrap();
    let keys: Vec<String> = (0..100_000).map(|i| format!("key{:04}", (i * 7) % 600)).collect();
    for (key, answer) in keys.iter().zip(db.multi_get(&keys)) {
        let number: u32 = key[3..].parse().unwrap();
        let expected = (number < 500).then(|| number.to_string());
        assert_eq!(found(&answer), expected, "{key}");
    }
}

/// A database with an older version of every key in a deep level and a newer one above it.
fn two_levels(env: Arc<FaultEnv>) -> Db {
    let db = try_open(env, uncached()).unwrap();
    for i in 0..64 {
        db.put(format!("key{i:02}"), format!("old {i}{}", "o".repeat(60))).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    for i in 0..64 {
        db.put(format!("key{i:02}"), format!("new {i}{}", "n".repeat(60))).unwrap();
    }
    db.flush().unwrap();
    db
}

/// MGET-01, MGET-02: the key is the largest of a table in level 1, its versions, kept by
/// snapshots, lie in several blocks, and level 2 holds an older one.
#[test]
fn equal_keys_whose_second_block_fails_all_get_the_error_and_never_the_version_below() {
    let (_env, faults, db) = faulty(uncached());
    let value = |name: &str| format!("{name}{}", "v".repeat(70));
    for i in 0..400 {
        db.put(format!("a{i:03}"), value("a")).unwrap();
    }
    db.put("k", value("oldest")).unwrap();
    db.compact_range::<&str>(..).unwrap();
    let oldest = db.snapshot();
    let version = |i: usize| {
        db.put("k", value(&format!("version {i}"))).unwrap();
        (db.snapshot(), format!("version {i}"))
    };
    let versions: Vec<(Snapshot, String)> = (0..12).map(version).collect();
    for key in ["b", "c"] {
        db.flush().unwrap();
        db.put(key, value("b")).unwrap();
    }
    let levels: Vec<usize> = db.stats().families[0].levels.iter().map(|l| l.files).collect();
    assert!(levels[0] == 0 && levels[1] > 0 && levels[2] > 0, "{levels:?}");
    // All tables are open after this, so that only blocks of data are read.
    assert!(oldest.multi_get(["a000", "a399", "k"]).iter().all(Result::is_ok));
    let block = |snapshot: &Snapshot| {
        let mut read = blocks_read(&faults, || drop(snapshot.multi_get(["k"])));
        let block = read.pop_last().unwrap();
        assert!(read.is_empty(), "one read");
        block
    };
    let below = block(&oldest);
    let blocks: Vec<_> = versions.iter().map(|(snapshot, _)| block(snapshot)).collect();
    assert!(blocks.iter().all(|(table, _)| *table == blocks[0].0 && *table != below.0));
    let bad: BTreeSet<_> = blocks.iter().cloned().collect();
    assert!(bad.len() > 2, "the versions of the key lie in several blocks");
    let asked = ["k", "a000", "k", "k", "a399", "k", "none", "k"];
    for (table, offset) in bad {
        for ((snapshot, name), (_, needed)) in versions.iter().zip(&blocks) {
            let fault = Fault::new(FaultKind::Error(5)).on(Op::Read).nth(1);
            let fault = faults.add(
                fault.path(&table.to_string_lossy()).matching(move |call| call.offset == offset),
            );
            let answers = snapshot.multi_get(asked);
            fault.remove();
            let again = snapshot.multi_get(asked);
            assert_eq!(fault.fired(), u64::from(*needed == offset));
            for ((key, answer), again) in asked.iter().zip(&answers).zip(&again) {
                let right = match *key {
                    "k" => Some(value(name)),
                    "none" => None,
                    _ => Some(value("a")),
                };
                assert_eq!(found(again), right, "{key}");
                if *key == "k" && *needed == offset {
                    let error = answer.as_ref().unwrap_err().to_string();
                    assert!(error.contains(&*table.to_string_lossy()), "{error}");
                } else {
                    assert_eq!(found(answer), right, "{key}");
                }
            }
        }
    }
}

/// MGET-03, MGET-04
#[test]
fn a_block_that_fails_fails_its_keys_and_never_shows_an_older_version() {
    for kind in [FaultKind::Error(5), FaultKind::FlipBit(100)] {
        let faults = Arc::new(FaultEnv::new(Arc::new(MemEnv::new())));
        let db = two_levels(Arc::clone(&faults));
        let keys: Vec<String> = (0..64).map(|i| format!("key{i:02}")).collect();
        let right: Vec<Option<String>> = db.multi_get(&keys).iter().map(found).collect();
        assert!(right.iter().all(|value| value.as_ref().unwrap().starts_with("new ")));
        let mut failed = BTreeSet::new();
        for nth in 1.. {
            let fault = faults.add(Fault::new(kind).on(Op::Read).path(".sst").nth(nth));
            let answers = db.multi_get(&keys);
            let fired = fault.fired();
            fault.remove();
            if fired == 0 {
                break;
            }
            let mut broken = 0;
            for (index, answer) in answers.iter().enumerate() {
                match answer {
                    Ok(_) => assert_eq!(found(answer), right[index], "{kind:?}, read {nth}"),
                    Err(error) => {
                        broken += 1;
                        failed.insert(index);
                        assert!(error.to_string().contains(".sst"), "{error}");
                    }
                }
            }
            assert!((1..32).contains(&broken), "{kind:?}, read {nth}: {broken} keys failed");
        }
        assert_eq!(failed.len(), 64, "{kind:?}: every key's block failed once");
    }
}

/// MGET-03: the table above cannot be opened at all.
#[test]
fn a_table_that_cannot_be_opened_fails_its_keys_and_no_others() {
    let faults = Arc::new(FaultEnv::new(Arc::new(MemEnv::new())));
    let db = two_levels(Arc::clone(&faults));
    for i in 0..8 {
        db.put(format!("other{i}"), "x".repeat(60)).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    let opens = Fault::new(FaultKind::Error(24)).on(Op::Open).path(".sst");
    let env: Arc<dyn treering_env::Env> = faults.clone();
    let db = try_open(env, uncached()).unwrap();
    let keys: Vec<String> = (0..64).map(|i| format!("key{i:02}")).collect();
    let fault = faults.add(opens.times(1));
    let answers = db.multi_get(&keys);
    assert_eq!(fault.fired(), 1);
    let broken = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(broken >= 1, "the first key needed the table that could not be opened");
    for answer in answers.iter().filter(|answer| answer.is_ok()) {
        assert!(found(answer).unwrap().starts_with("new "));
    }
    assert!(db.multi_get(&keys).iter().all(|a| found(a).unwrap().starts_with("new ")));
}

/// How many files of a directory this process has open.
#[cfg(target_os = "linux")]
fn open_files_in(dir: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    // One that was closed meanwhile leads nowhere.
    let target =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    links.filter_map(target).filter(|path| path.starts_with(dir)).count()
}

/// MGET-03: whatever of a table fails while it is opened (footer, index, filter or the file
/// itself), no descriptor is kept for it, and the next call opens it.
#[cfg(target_os = "linux")]
#[test]
fn a_table_whose_opening_fails_anywhere_leaves_no_descriptor_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(scratch.path()).unwrap().join("db");
    let faults = FaultEnv::new(Arc::new(PosixEnv::new()));
    let options = Options { max_open_tables: 16, ..uncached() };
    let open = || Db::open(Arc::new(faults.clone()), &dir, options.clone()).unwrap();
    let keys: Vec<String> = (0..400).map(|i| format!("key{i:04}")).collect();
    let db = open();
    for round in ["old", "new"] {
        for key in &keys {
            db.put(key, round.repeat(30)).unwrap();
        }
        db.compact_range::<&str>(..).unwrap();
    }
    drop(db);
    assert_eq!(open_files_in(&dir), 0);
    let tables = std::fs::read_dir(&dir).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "sst")
    });
    let tables = tables.count();
    assert!((2..16).contains(&tables), "{tables} tables, all of which may be open");
    let mut failed = [0; 3];
    let kinds = [
        (Op::Open, FaultKind::Error(24)),
        (Op::Read, FaultKind::Error(5)),
        (Op::Read, FaultKind::FlipBit(9)),
    ];
    for (at, (op, kind)) in kinds.into_iter().enumerate() {
        for nth in 1.. {
            let db = open();
            let before = open_files_in(&dir);
            let fault = faults.add(Fault::new(kind).on(op).path(".sst").nth(nth));
            let answers = db.multi_get(&keys);
            let fired = fault.fired();
            fault.remove();
            let broken = answers.iter().filter(|answer| answer.is_err()).count();
            let more = open_files_in(&dir) - before;
            // Later keys of the call may have opened the table that failed.
            assert!(more <= tables, "{op:?} {nth}: {more} for {tables} tables");
            for answer in answers.iter().filter(|answer| answer.is_ok()) {
                assert_eq!(found(answer), Some("new".repeat(30)), "{op:?} {nth}");
            }
            failed[at] += usize::from(broken > 0);
            let again = db.multi_get(&keys);
            assert!(again.iter().all(|answer| found(answer) == Some("new".repeat(30))));
            assert_eq!(open_files_in(&dir) - before, tables, "{op:?} {nth}: each is open once");
            drop(db);
            assert_eq!(open_files_in(&dir), 0, "{op:?} {nth}");
            if fired == 0 {
                break;
            }
        }
    }
    // The file, and of what is read of it at least its footer, index and filter.
    assert!(
        failed[0] >= tables && failed[1..].iter().all(|count| *count >= 3 * tables),
        "{failed:?}"
    );
}

/// MGET-05
#[test]
fn keys_of_several_families_in_any_order_get_their_own_answers() {
    let (_env, db) = open_new(uncached());
    let names = ["a", "b", "empty"];
    let families: Vec<_> =
        names.iter().map(|name| db.create_column_family(name, small().cf).unwrap()).collect();
    for i in 0..400 {
        families[0].put(format!("key{i:03}"), format!("a{i}")).unwrap();
        families[1].put(format!("key{i:03}"), format!("b{i}")).unwrap();
    }
    db.flush().unwrap();
    let mut asked: Vec<(usize, usize)> =
        (0..3).flat_map(|f| (0..400).map(move |i| (f, i))).collect();
    asked.shuffle(&mut StdRng::seed_from_u64(3));
    let dropped = db.create_column_family("dropped", small().cf).unwrap();
    db.drop_column_family(&dropped).unwrap();
    let mut keys: Vec<_> =
        asked.iter().map(|(f, i)| (&families[*f], format!("key{i:03}"))).collect();
    keys.insert(17, (&dropped, "key001".to_owned()));
    let mut answers = db.multi_get_in(keys);
    assert!(matches!(answers.remove(17), Err(Error::FamilyDropped { .. })));
    for ((family, i), answer) in asked.iter().zip(&answers) {
        let expected = ["a", "b"].get(*family).map(|name| format!("{name}{i}"));
        assert_eq!(found(answer), expected);
    }
}
