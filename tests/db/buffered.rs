//! Buffered writes: many in one call to the environment, in order with all others, and gone only
//! with the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use treering_env::{CountEnv, Env, Fault, FaultEnv, FaultKind, MemEnv, Op, PosixEnv};
use treering_lsm::{Db, Durability, Error, Options, WriteBatch, WriteOptions};

use crate::support::{DIR, all, get, open, open_new, roomy, try_open};

const EIO: i32 = 5;

/// What stays in memory at most.
const LIMIT: u64 = 256 << 10;

fn put(db: &Db, key: &str, durability: Durability) -> Result<(), Error> {
    let mut batch = WriteBatch::new();
    batch.put(key, "value");
    db.write_opt(batch, &WriteOptions { durability: Some(durability) })
}

fn buffered(db: &Db, key: &str) -> Result<(), Error> {
    put(db, key, Durability::Buffered)
}

/// Segments that no test fills.
fn wide() -> Options {
    Options { log_segment_size: 64 << 20, log_prepare_step: 8 << 20, ..roomy() }
}

/// The keys that are left when the process dies now.
fn after_a_kill(env: &MemEnv) -> Vec<String> {
    all(&open(&env.kill(), roomy())).into_iter().map(|(key, _)| key).collect()
}

#[test]
fn many_buffered_puts_cost_few_appends_and_never_hold_more_than_the_limit() {
    let count = CountEnv::new(Arc::new(MemEnv::new()));
    let db = Db::open(Arc::new(count.clone()), DIR, wide()).unwrap();
    let before = count.counts();
    let start = db.stats().log_size;
    let appends = || count.counts().since(&before).of(Op::Append);
    for i in 0..20_000 {
        buffered(&db, &format!("key{i:05}")).unwrap();
        let held = db.stats().log_size - start - appends().bytes;
        assert_eq!(held, db.stats().log_buffered as u64);
        assert!(held <= LIMIT, "{held} bytes in memory after {i} puts");
    }
    let total = db.stats().log_size - start;
    assert!(total > 4 * LIMIT, "{total} bytes say nothing about the limit");
    assert_eq!(appends().calls, total / LIMIT, "{total} bytes");
    assert_eq!(count.counts().since(&before).of(Op::Sync).calls, 0);
    db.flush_wal().unwrap();
    assert_eq!((appends().calls, appends().bytes), (total / LIMIT + 1, total));
    assert_eq!(db.stats().log_buffered, 0);
}

#[test]
fn a_thousand_buffered_puts_on_a_disk_are_no_pwrite_and_the_flushed_one_behind_them_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let env: Arc<dyn Env> = Arc::new(PosixEnv::new());
    let db = Db::open(Arc::clone(&env), dir.path().join("db"), wide()).unwrap();
    db.put("warm", "up").unwrap();
    let before = env.report();
    for i in 0..1000 {
        buffered(&db, &format!("key{i:04}")).unwrap();
    }
    assert_eq!(env.report().since(&before).counter("pwrites"), 0);
    assert_eq!(get(&db, "key0999").as_deref(), Some("value"), "visible all the same");
    db.put("last", "value").unwrap();
    let since = env.report().since(&before);
    assert_eq!(since.counter("pwrites"), 1, "{since}");
    assert_eq!(since.counter("syncs"), 0, "{since}");
}

#[test]
fn a_killed_process_loses_the_latest_buffered_writes_and_none_before_a_flushed_one() {
    let (env, db) = open_new(roomy());
    put(&db, "a", Durability::Synced).unwrap();
    buffered(&db, "b").unwrap();
    buffered(&db, "c").unwrap();
    assert_eq!(after_a_kill(&env), ["a"]);
    db.put("d", "value").unwrap();
    buffered(&db, "e").unwrap();
    assert_eq!(all(&db).len(), 5);
    assert_eq!(after_a_kill(&env), ["a", "b", "c", "d"]);
    put(&db, "f", Durability::Synced).unwrap();
    let image = env.crash(treering_env::CrashPolicy::DropAll);
    assert_eq!(all(&open(&image, roomy())).len(), 6);
}

#[test]
fn whatever_hands_the_log_over_takes_the_buffered_writes_along() {
    type Act = (&'static str, fn(&Db));
    let acts: [Act; 6] = [
        ("flush_wal", |db| db.flush_wal().unwrap()),
        ("sync_wal", |db| db.sync_wal().unwrap()),
        ("flush", |db| db.flush().unwrap()),
        ("close", |db| db.close().unwrap()),
        ("a switch of segments", |db| {
            let switches = db.stats().log_switches;
            for i in 0.. {
                let mut batch = WriteBatch::new();
                batch.put("filler", vec![b'f'; 10_000]);
                let durability = Some(Durability::Buffered);
                db.write_opt(batch, &WriteOptions { durability }).unwrap();
                if db.stats().log_switches > switches {
                    break;
                }
                assert!(i < 100, "the segment never filled up");
            }
        }),
        ("a flushed write to another family", |db| {
            let other = db.create_column_family("other", roomy().cf).unwrap();
            other.put("x", "y").unwrap();
        }),
    ];
    for (what, act) in acts {
        let (env, db) = open_new(roomy());
        buffered(&db, "a").unwrap();
        assert_eq!(after_a_kill(&env).len(), 0, "{what}");
        act(&db);
        assert!(after_a_kill(&env).contains(&"a".to_owned()), "{what}");
    }
    let (env, db) = open_new(roomy());
    buffered(&db, "a").unwrap();
    drop(db);
    assert_eq!(after_a_kill(&env), ["a"], "the last handle dropped");
}

#[test]
fn when_buffered_writes_cannot_be_written_the_error_says_how_many_may_be_lost() {
    for op in [Op::Append, Op::Flush] {
        let env = MemEnv::new();
        let faults = FaultEnv::new(Arc::new(env.clone()));
        let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
        db.put("a", "value").unwrap();
        for key in ["b", "c", "d"] {
            buffered(&db, key).unwrap();
        }
        faults.add(Fault::new(FaultKind::Error(EIO)).on(op).path(".log").times(1));
        let error = db.put("e", "value").unwrap_err();
        assert!(matches!(error, Error::BufferedLost { writes: 3, .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(".log") && message.contains("os error 5"), "{message}");
        assert!(message.contains("3 earlier writes"), "{message}");
        for later in [db.put("f", "1"), buffered(&db, "f"), db.flush_wal(), db.flush(), db.close()]
        {
            let later = later.unwrap_err();
            assert!(matches!(later, Error::Poisoned(_)), "{later}");
            assert!(later.to_string().contains(&message), "{later}");
        }
        let db = open(&env, roomy());
        let keys: Vec<String> = all(&db).into_iter().map(|(key, _)| key).collect();
        let written = ["a", "b", "c", "d", "e"];
        assert!(keys.iter().eq(written.iter().take(keys.len())), "{keys:?}");
        assert!(keys.contains(&"a".to_owned()));
    }
}

/// A sync that fails takes the log with it, and what is in memory by then goes too.
#[test]
fn a_sync_that_fails_over_buffered_writes_says_that_they_may_be_lost() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
    buffered(&db, "a").unwrap();
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Sync).path(".log"));
    faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Sync).path(".log"));
    std::thread::scope(|scope| {
        let syncer = scope.spawn(|| db.sync_wal());
        hold.wait_until_blocked(1);
        buffered(&db, "b").unwrap();
        hold.remove();
        let error = syncer.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::BufferedLost { writes: 1, .. }), "{error}");
    });
    assert_eq!(all(&db).len(), 2, "reads go on");
    drop(db);
    assert_eq!(after_a_kill(&env), ["a"]);
}

/// The log is whole when it is the manifest that failed.
#[test]
fn buffered_writes_outlive_a_failure_of_the_manifest() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
    let manifest = |call: &treering_env::Call<'_>| call.path.to_string_lossy().contains("MANIFEST");
    faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Append).matching(manifest));
    buffered(&db, "a").unwrap();
    db.create_column_family("f", roomy().cf).unwrap_err();
    assert!(matches!(buffered(&db, "b"), Err(Error::Poisoned(_))));
    assert!(matches!(db.close(), Err(Error::Poisoned(_))));
    assert_eq!(after_a_kill(&env), ["a"]);
}

#[test]
fn what_a_kill_leaves_of_many_writers_is_a_prefix_of_each_with_all_that_was_flushed() {
    let (env, db) = open_new(wide());
    let flushed: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    let image = std::thread::scope(|scope| {
        for (thread, flushed) in flushed.iter().enumerate() {
            let db = &db;
            scope.spawn(move || {
                for i in 1..=600 {
                    let durability = match i % (7 + thread) {
                        0 => Durability::Flushed,
                        1 if i % 100 == 1 => Durability::Synced,
                        _ => Durability::Buffered,
                    };
                    put(db, &format!("t{thread}-{i:04}"), durability).unwrap();
                    if durability != Durability::Buffered {
                        flushed.store(i, Ordering::SeqCst);
                    }
                }
            });
        }
        while flushed.iter().any(|flushed| flushed.load(Ordering::SeqCst) < 100) {
            std::thread::yield_now();
        }
        let least: Vec<usize> =
            flushed.iter().map(|flushed| flushed.load(Ordering::SeqCst)).collect();
        (env.kill(), least)
    });
    let (killed, least) = image;
    let keys: Vec<String> = all(&open(&killed, wide())).into_iter().map(|(key, _)| key).collect();
    for (thread, least) in least.into_iter().enumerate() {
        let mine: Vec<&String> =
            keys.iter().filter(|key| key.starts_with(&format!("t{thread}-"))).collect();
        let expected: Vec<String> = (1..=mine.len()).map(|i| format!("t{thread}-{i:04}")).collect();
        assert!(mine.iter().copied().eq(&expected), "thread {thread}: a gap");
        assert!(mine.len() >= least, "thread {thread}: {} of {least} flushed", mine.len());
    }
    drop(db);
    assert_eq!(all(&open(&env, wide())).len(), 2400);
}
