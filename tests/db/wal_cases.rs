//! Cases of the log that need a whole database.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use treering_env::{CrashPolicy, Env, Fault, FaultKind, MemEnv, Op, When};
use treering_lsm::{ColumnFamily, Db, Error, Options, WriteBatch};

use crate::support::{
    DIR, all, count, faulty_on, get, names, open, open_new, put_synced, roomy, small, try_open,
    with_suffix,
};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn bytes_on_disk(env: &MemEnv) -> u64 {
    let size = |name: &String| env.metadata(&Path::new(DIR).join(name)).unwrap().unwrap().size;
    names(env).iter().map(size).sum()
}

/// WAL-11: with and without a write each time, files and bytes on disk stay bounded.
#[test]
fn a_hundred_opens_that_die_take_no_more_room_than_a_few() {
    for writes in [false, true] {
        let (mut env, db) = open_new(small());
        put_synced(&db, "a", "1").unwrap();
        std::mem::forget(db);
        let mut sizes = Vec::new();
        for round in 0..100 {
            env = env.kill();
            let db = open(&env, small());
            if writes {
                db.put("b", round.to_string()).unwrap();
            }
            sizes.push((names(&env).len(), bytes_on_disk(&env)));
            std::mem::forget(db);
        }
        let most = sizes[..10].iter().map(|(files, _)| *files).max().unwrap();
        let bytes = sizes[..10].iter().map(|(_, bytes)| *bytes).max().unwrap();
        for (files, size) in &sizes {
            assert!(*files <= most + 3 && *size <= bytes + (64 << 10), "{writes}: {sizes:?}");
        }
    }
}

/// What four writers were told, thread by thread: so many of their writes are synced.
fn four_writers(db: &Db, acknowledged: &[AtomicU64; 4]) {
    std::thread::scope(|scope| {
        for (thread, done) in acknowledged.iter().enumerate() {
            scope.spawn(move || {
                for i in 1..=60 {
                    let key = format!("t{thread}-{i:03}");
                    if put_synced(db, &key, &"v".repeat(400)).is_err() {
                        return;
                    }
                    done.store(i, Ordering::SeqCst);
                    if thread == 0 && i % 20 == 0 && db.flush().is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// WAL-18, WAL-35, WAL-37, MAN-18: four threads write synced while flushes, compactions and
/// segment switches run, and the power goes; every write that a thread was told of is there, and of
/// each thread's writes no earlier one is missing.
#[test]
fn with_four_writers_every_acknowledged_write_survives_a_power_cut_anywhere() {
    let options = Options { background_threads: 2, ..small() };
    let mut total = 0;
    for operation in (20..900).step_by(11) {
        let env = MemEnv::new();
        env.cut_power_at(operation, When::Inside);
        let acknowledged = [const { AtomicU64::new(0) }; 4];
        if let Ok(db) = try_open(Arc::new(env.clone()), options.clone()) {
            four_writers(&db, &acknowledged);
            env.cut_power();
            // Without power nothing can be closed in order.
            let _unheard = db.close();
        }
        total += acknowledged.iter().map(|done| done.load(Ordering::SeqCst)).sum::<u64>();
        for policy in CrashPolicy::all(operation) {
            let image = env.crash(policy);
            let db = open(&image, small());
            for (thread, done) in acknowledged.iter().enumerate() {
                let done = done.load(Ordering::SeqCst);
                let there = |i: u64| get(&db, &format!("t{thread}-{i:03}")).is_some();
                let held = (1..=60).take_while(|i| there(*i)).count() as u64;
                let context = format!("operation {operation}, {policy:?}, thread {thread}");
                assert!(held >= done, "{context}: {held} of {done}");
                assert!((held + 1..=60).all(|i| !there(i)), "{context}: a hole after {held}");
            }
            let tables: usize = db.stats().families[0].levels.iter().map(|l| l.files).sum();
            assert_eq!(count(&image, ".sst"), tables, "operation {operation}, {policy:?}");
        }
    }
    assert!(total > 0, "no write was acknowledged before any of the cuts");
}

/// WAL-19
#[test]
fn a_database_without_one_of_its_segments_is_refused_by_name_and_stays_as_it_is() {
    let (env, db) = open_new(roomy());
    for i in 0..600 {
        put_synced(&db, &format!("key{i:04}"), &"v".repeat(400)).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let logs = with_suffix(&env, ".log");
    assert!(logs.len() > 2, "{logs:?}");
    let mut refused = 0;
    for log in &logs {
        let image = env.kill();
        image.remove(&Path::new(DIR).join(log)).unwrap();
        let before = image.fingerprint();
        for _ in 0..2 {
            match try_open(Arc::new(image.clone()), roomy()) {
                Err(Error::MissingFile(path)) => {
                    assert!(path.ends_with(log), "{}", path.display());
                    assert_eq!(image.fingerprint(), before, "{log}");
                    refused += 1;
                }
                // The last file may be a spare, of which nothing is lost.
                Ok(db) => assert_eq!((all(&db).len(), logs.last()), (600, Some(log))),
                Err(error) => panic!("{log}: {error}"),
            }
        }
    }
    assert!(refused / 2 >= logs.len() - 1, "{refused}");
    let alone = MemEnv::new();
    put_synced(&open(&alone, roomy()), "a", "1").unwrap();
    let log = with_suffix(&alone, ".log").remove(0);
    alone.remove(&Path::new(DIR).join(log)).unwrap();
    let error = try_open(Arc::new(alone), roomy()).unwrap_err();
    assert!(matches!(error, Error::MissingFile(_)), "{error}");
}

/// A batch that sets `n` to the same number in both families, with much in the second.
fn both(i: usize, family: &ColumnFamily) -> WriteBatch {
    let mut batch = WriteBatch::new();
    let value = format!("{i:04}");
    batch.put("n", &value);
    batch.put(format!("key{i:04}"), &value);
    batch.put_in(family, "n", &value);
    batch.put_in(family, format!("key{i:04}"), format!("{value}{}", "v".repeat(60)));
    batch
}

/// The number of batches in a database, which must be the same in both families.
fn whole_batches(db: &Db, context: &str) -> usize {
    let family = db.column_family("f").unwrap_or_else(|| panic!("{context}: no family"));
    let number = |value: Option<bytes::Bytes>| -> usize {
        value.map_or(0, |v| std::str::from_utf8(&v).unwrap().parse::<usize>().unwrap() + 1)
    };
    let count = number(db.get("n").unwrap());
    assert_eq!(number(family.get("n").unwrap()), count, "{context}: half a batch");
    let expected = if count == 0 { 0 } else { count + 1 };
    assert_eq!((db.iter().count(), family.iter().count()), (expected, expected), "{context}");
    count
}

/// WAL-24, WAL-25: a log of several memtables over two families, torn at its end, is recovered
/// into several tables; the power goes at each operation of that, and of the next open too.
#[test]
fn a_recovery_of_many_tables_that_is_cut_anywhere_loses_nothing() {
    let (env, db) = open_new(roomy());
    let family = db.create_column_family("f", roomy().cf).unwrap();
    for i in 0..300 {
        db.write(both(i, &family)).unwrap();
    }
    db.sync_wal().unwrap();
    let synced = env.crash(CrashPolicy::DropAll);
    db.write(both(300, &family)).unwrap();
    let torn = env.crash(CrashPolicy::Tear(3));
    drop((family, db));
    let open_small = |env: &MemEnv| {
        let builder = Db::builder(Arc::new(env.clone()), DIR).options(small());
        builder.family("f", small().cf).open()
    };
    for source in [synced, torn] {
        let measured = source.kill();
        let before = measured.operations();
        let db = open_small(&measured).unwrap();
        assert!(db.recovery_report().tables > 4, "{}", db.recovery_report());
        let held = whole_batches(&db, "uncut");
        assert!((300..=301).contains(&held));
        let operations = measured.operations() - before;
        drop(db);
        for operation in 0..operations {
            let env = source.kill();
            env.cut_power_at(env.operations() + operation, When::Inside);
            drop(open_small(&env));
            for policy in [CrashPolicy::DropAll, CrashPolicy::UnlinkEarly, CrashPolicy::KeepAll] {
                let context = format!("operation {operation} of {operations}, {policy:?}");
                let image = env.crash(policy);
                let again = image.kill();
                again.cut_power_at(again.operations() + operation / 2, When::After);
                drop(open_small(&again));
                for image in [image, again.crash(policy)] {
                    let db = open_small(&image).unwrap_or_else(|e| panic!("{context}: {e}"));
                    assert_eq!(whole_batches(&db, &context), held, "{context}");
                }
            }
        }
    }
}

/// WAL-29, WAL-30: appends that fail with nothing, a part or all of the record written.
#[test]
fn a_write_that_failed_never_wins_over_one_acknowledged_later() {
    let shorts = [1, 40, 60].map(|bytes| FaultKind::Short { bytes, errno: ENOSPC });
    let kinds = [FaultKind::Error(EIO), FaultKind::ErrorAfter(EIO)];
    for kind in kinds.into_iter().chain(shorts) {
        let env = MemEnv::new();
        put_synced(&open(&env, roomy()), "k", "first").unwrap();
        // What was appended reaches the file at the flush that follows.
        let op = if kind == FaultKind::ErrorAfter(EIO) { Op::Flush } else { Op::Append };
        let mut last_sequence = 1;
        for attempt in 0..3 {
            let (faults, db) = faulty_on(&env, roomy());
            assert!(db.stats().last_sequence >= last_sequence, "{kind:?}");
            last_sequence = db.stats().last_sequence;
            faults.add(Fault::new(kind).on(op).path(".log").times(1));
            put_synced(&db, "k", &format!("failed {attempt}")).unwrap_err();
        }
        let db = open(&env, roomy());
        let found = get(&db, "k").unwrap();
        let applied = kind == FaultKind::ErrorAfter(EIO);
        assert_eq!(found.starts_with("failed"), applied, "{kind:?}: {found}");
        let before = db.stats().last_sequence;
        put_synced(&db, "k", "acknowledged").unwrap();
        put_synced(&db, "other", "1").unwrap();
        assert_eq!(db.stats().last_sequence, before + 2, "{kind:?}");
        for image in [env.kill(), env.crash(CrashPolicy::DropAll)] {
            let db = open(&image, roomy());
            assert_eq!(get(&db, "k").as_deref(), Some("acknowledged"), "{kind:?}");
            assert_eq!(all(&db).len(), 2, "{kind:?}");
            assert_eq!(db.stats().last_sequence, before + 2, "{kind:?}");
        }
    }
}

/// WAL-32
#[test]
fn a_sync_after_a_failed_write_fails_too() {
    for kind in [FaultKind::Error(EIO), FaultKind::Short { bytes: 30, errno: ENOSPC }] {
        let env = MemEnv::new();
        let (faults, db) = faulty_on(&env, roomy());
        db.put("a", "1").unwrap();
        faults.add(Fault::new(kind).on(Op::Append).path(".log").times(1));
        let first = db.put("b", "2").unwrap_err().to_string();
        for result in [db.sync_wal(), db.flush_wal(), db.sync_wal(), db.flush()] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Poisoned(_)), "{error}");
            assert!(error.to_string().contains(&first), "{error}");
        }
    }
}

/// WAL-34: the second family fills its memtable and is flushed by itself; the first is not.
#[test]
fn a_batch_is_never_half_there_after_one_of_its_families_was_flushed() {
    let env = MemEnv::new();
    let db = open(&env, roomy());
    let family = db.create_column_family("f", small().cf).unwrap();
    let mut flushed = 0;
    for i in 0..260 {
        db.write(both(i, &family)).unwrap();
        let stats = db.stats();
        if stats.flushes == flushed {
            continue;
        }
        flushed = stats.flushes;
        let default = stats.families.iter().find(|f| f.name == "default").unwrap();
        assert!(default.memtable_entries > 2 * i, "only one family is flushed");
        for policy in CrashPolicy::all(i as u64) {
            let context = format!("batch {i}, {policy:?}");
            let image = env.crash(policy);
            whole_batches(&open(&image, roomy()), &context);
        }
    }
    assert!(flushed > 1, "{flushed}");
}

/// WAL-36: five segments over the same keys, without background threads and with four.
#[test]
fn all_unflushed_segments_are_replayed_in_order_with_any_number_of_threads() {
    let (env, db) = open_new(roomy());
    for i in 0..800 {
        db.put(format!("key{:03}", i % 130), format!("{i}{}", "v".repeat(400))).unwrap();
    }
    assert!(db.stats().log_segments >= 5, "{}", db.stats());
    let image = env.kill();
    drop(db);
    let mut contents = Vec::new();
    for background_threads in [0, 4] {
        let image = image.kill();
        let db = open(&image, Options { background_threads, ..small() });
        assert_eq!(db.recovery_report().operations, 800);
        contents.push(all(&db));
    }
    assert_eq!(contents[0], contents[1]);
    for (key, value) in &contents[0] {
        let slot: usize = key[3..].parse().unwrap();
        let newest = (0..800).rev().find(|i| i % 130 == slot).unwrap();
        assert_eq!(value.trim_end_matches('v'), newest.to_string(), "{key}");
    }
    assert_eq!(contents[0].len(), 130);
}

/// WR-09: whatever fails when the next segment is made, named or begun, no acknowledged write is
/// lost and the database opens again.
#[test]
fn a_segment_that_cannot_be_made_costs_no_acknowledged_write() {
    let mut met = 0;
    for op in [Op::Create, Op::Prepare, Op::Append, Op::Sync, Op::SyncDir] {
        for errno in [EIO, ENOSPC, 24] {
            let env = MemEnv::new();
            let (faults, db) = faulty_on(&env, roomy());
            put_synced(&db, "first", "1").unwrap();
            // The segment that is in use goes on; the files made after it fail.
            let first = with_suffix(&env, ".log").remove(0);
            let later = move |call: &treering_env::Call<'_>| {
                let name = call.path.to_string_lossy();
                op == Op::SyncDir || (name.contains(".log") && !name.ends_with(&first))
            };
            let kind = FaultKind::Error(errno);
            let fault = faults.add(Fault::new(kind).on(op).matching(later).times(3));
            let mut acknowledged = Vec::new();
            for i in 0..500 {
                let key = format!("key{i:04}");
                if db.put(&key, "v".repeat(400)).is_ok() {
                    acknowledged.push(key);
                }
            }
            met += u64::from(fault.fired() > 0);
            let there = |db: &Db, when: &str| {
                for key in &acknowledged {
                    assert!(get(db, key).is_some(), "{op:?} {errno}, {when}: {key} is lost");
                }
            };
            there(&db, "now");
            let killed = env.kill();
            drop(db);
            for (env, when) in [(env, "reopened"), (killed, "killed")] {
                let db = open(&env, roomy());
                there(&db, when);
                db.put("after", "1").unwrap();
            }
        }
    }
    assert!(met >= 9, "the faults were met {met} times only");
}

/// WR-10: the device forgets what the failed sync should have written; and a device that reports
/// success and tells of the failure only at the next sync.
#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_a_prefix_is_left() {
    for late in [false, true] {
        let env = MemEnv::new();
        let (faults, db) = faulty_on(&env, roomy());
        put_synced(&db, "a", "1").unwrap();
        if late {
            faults.add(Fault::new(FaultKind::Drop).on(Op::Sync).path(".log").nth(1));
            put_synced(&db, "b", "2").unwrap();
        }
        faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Sync).path(".log").nth(1));
        put_synced(&db, "c", "3").unwrap_err();
        assert_eq!(get(&db, "c"), None, "late: {late}");
        for result in [put_synced(&db, "d", "4"), db.put("d", "4"), db.sync_wal(), db.flush()] {
            assert!(matches!(result, Err(Error::Poisoned(_))), "late: {late}: {result:?}");
        }
        drop(db);
        for policy in CrashPolicy::all(9) {
            let keys: Vec<_> = all(&open(&env.crash(policy), roomy())).into_iter().collect();
            let keys: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
            let whole = if late { &["a", "b", "c"][..] } else { &["a", "c"] };
            assert!(whole.starts_with(&keys) && !keys.is_empty(), "{late} {policy:?}: {keys:?}");
        }
    }
}
