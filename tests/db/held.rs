//! What is asked of a database while one operation of the device is held, or after it failed.

use std::sync::atomic::{AtomicUsize, Ordering};

use treering_env::{CrashPolicy, Fault, FaultKind, Op};
use treering_lsm::{ColumnFamily, Db, Durability, Error, Options, WriteBatch, WriteOptions};

use crate::support::{all, count, faulty, get, is_manifest, open, roomy, small};

const EIO: i32 = 5;

fn threaded() -> Options {
    Options { background_threads: 2, ..small() }
}

fn write_both(
    db: &Db,
    families: [&ColumnFamily; 2],
    value: &str,
    durability: Durability,
) -> Result<(), Error> {
    let mut batch = WriteBatch::new();
    for family in families {
        batch.put_in(family, "k", value);
    }
    db.write_opt(batch, &WriteOptions { durability: Some(durability) })
}

/// WR-05: the append is cut anywhere, or done and reported as failed, while a flush of what was
/// there before waits; the flush goes on, and the process is killed.
#[test]
fn a_failed_batch_over_two_families_is_in_both_or_in_neither_whatever_is_flushed() {
    let cut = |bytes| (Op::Append, FaultKind::Short { bytes, errno: EIO });
    let reported = [Op::Append, Op::Flush].map(|op| (op, FaultKind::ErrorAfter(EIO)));
    let mut outcomes = [0, 0];
    for (op, kind) in [0, 1, 30, 60, 100, 400].map(cut).into_iter().chain(reported) {
        let (env, faults, db) = faulty(roomy());
        let [one, two] =
            ["one", "two"].map(|name| db.create_column_family(name, roomy().cf).unwrap());
        write_both(&db, [&one, &two], "old", Durability::Synced).unwrap();
        let new = "new".repeat(40);
        let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Create).path(".sst"));
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| db.flush());
            hold.wait_until_blocked(1);
            faults.add(Fault::new(kind).on(op).path(".log").times(1));
            write_both(&db, [&one, &two], &new, Durability::Flushed).unwrap_err();
            hold.remove();
            // Whether it may still end well is the database's affair.
            drop(flush.join().unwrap());
        });
        assert_eq!(two.get("k").unwrap().as_deref(), Some(&b"old"[..]), "{op:?}, {kind:?}");
        assert!(matches!(db.flush(), Err(Error::Poisoned(_))), "{op:?}, {kind:?}");
        let db = open(&env.kill(), roomy());
        let values = ["one", "two"].map(|name| db.column_family(name).unwrap().get("k").unwrap());
        assert_eq!(values[0], values[1], "{op:?}, {kind:?}: half a batch");
        let is_new = values[0].as_deref() == Some(new.as_bytes());
        assert!(is_new || values[0].as_deref() == Some(&b"old"[..]), "{kind:?}: {values:?}");
        outcomes[usize::from(is_new)] += 1;
    }
    assert!(outcomes[0] > 1 && outcomes[1] > 0, "both outcomes were met: {outcomes:?}");
}

/// WR-05: the memtables have a buffered batch that the log then fails to take.
#[test]
fn a_buffered_batch_that_the_log_refuses_later_is_in_both_families_or_in_neither() {
    let (env, faults, db) = faulty(roomy());
    let [one, two] = ["one", "two"].map(|name| db.create_column_family(name, roomy().cf).unwrap());
    write_both(&db, [&one, &two], "old", Durability::Synced).unwrap();
    write_both(&db, [&one, &two], "new", Durability::Buffered).unwrap();
    let fault = Fault::new(FaultKind::Error(EIO)).on(Op::Sync).path(".log").times(1);
    let fault = faults.add(fault);
    db.flush().unwrap_err();
    assert_eq!(fault.fired(), 1);
    assert_eq!(count(&env, ".sst"), 0, "a table of what the log has not");
    db.flush().unwrap_err();
    for env in [env.kill(), env.crash(CrashPolicy::DropAll), env.crash(CrashPolicy::KeepAll)] {
        let db = open(&env, roomy());
        let [one, two] =
            ["one", "two"].map(|name| db.column_family(name).unwrap().get("k").unwrap());
        assert!(one.is_some() && one == two, "{one:?} and {two:?}");
    }
}

/// WR-07, as far as one thread for flushes can meet it: the first of two families' flushes fails at
/// each of its steps, the second succeeds; nothing of either is lost or left over.
#[test]
fn a_flush_that_fails_takes_nothing_from_one_that_succeeds() {
    for background_threads in [0, 2] {
        for op in [Op::Create, Op::Append, Op::Finish] {
            let (env, faults, db) = faulty(Options { background_threads, ..roomy() });
            let two = db.create_column_family("two", roomy().cf).unwrap();
            for i in 0..100 {
                db.put(format!("a{i:02}"), "v".repeat(50)).unwrap();
                two.put(format!("b{i:02}"), "v".repeat(50)).unwrap();
            }
            let fault = Fault::new(FaultKind::Error(EIO)).on(op).path(".sst").times(1);
            let fault = faults.add(fault);
            let first = db.flush();
            // On a background thread it may have been tried again before anyone asked.
            let reported = first.is_err() || background_threads > 0;
            assert!(reported, "{op:?}: nobody heard of it");
            db.flush().unwrap();
            assert_eq!(fault.fired(), 1, "{op:?}");
            let check = |db: &Db| {
                let two = db.column_family("two").unwrap();
                assert_eq!((all(db).len(), two.iter().count()), (100, 100), "{op:?}");
                let families = db.stats().families;
                let levels = families.iter().flat_map(|family| &family.levels);
                let tables: usize = levels.map(|level| level.files).sum();
                assert_eq!((tables, count(&env, ".sst")), (2, 2), "{op:?}");
            };
            check(&db);
            db.close().unwrap();
            drop(db);
            check(&open(&env, roomy()));
        }
    }
}

/// BG-05: the flush that would end the stall stands in a manifest write, or the compaction that
/// would has failed once.
#[test]
fn writers_stalled_behind_the_manifest_or_a_failed_compaction_go_on() {
    for held in [true, false] {
        let mut options = threaded();
        options.cf.level0_slowdown_trigger = 3;
        options.cf.level0_stop_trigger = 4;
        let (env, faults, db) = faulty(options);
        let fault = if held {
            Fault::new(FaultKind::Block).on(Op::Sync).matching(is_manifest)
        } else {
            Fault::new(FaultKind::Error(EIO)).on(Op::Read).path(".sst").times(1)
        };
        let fault = faults.add(fault);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|thread| {
                    let db = &db;
                    scope.spawn(move || {
                        for i in 0..1500 {
                            let key = format!("t{thread}-{i:04}");
                            // A compaction that failed may refuse a write before it is tried again.
                            while db.put(&key, "v".repeat(40)).is_err() {
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            if held {
                while db.stats().stopped_writes == 0 {
                    std::thread::yield_now();
                }
                assert!(!writers.iter().any(std::thread::ScopedJoinHandle::is_finished));
                fault.remove();
            }
        });
        assert!(fault.fired() > 0);
        assert_eq!(all(&db).len(), 3000);
        db.wait_for_compact().unwrap();
        assert_eq!(db.stats().poisoned, None);
        db.close().unwrap();
        drop(db);
        assert_eq!(all(&open(&env, small())).len(), 3000);
    }
}

/// LIFE-05: the close begins while a flush, a compaction, a switch of segments or the removal of
/// what is obsolete stands in one of its operations.
#[test]
fn a_close_at_any_held_operation_ends_and_keeps_what_was_acknowledged() {
    let held: [(Op, &str, u64); 13] = [
        (Op::Create, ".log", 1),
        (Op::Prepare, ".log", 2),
        (Op::Append, ".log", 50),
        (Op::Finish, ".log", 1),
        (Op::Remove, ".log", 1),
        (Op::Create, ".sst", 1),
        (Op::Append, ".sst", 3),
        (Op::Finish, ".sst", 3),
        (Op::Read, ".sst", 1),
        (Op::Remove, ".sst", 1),
        (Op::Append, "MANIFEST", 2),
        (Op::Sync, "MANIFEST", 3),
        (Op::SyncDir, "db", 2),
    ];
    let mut met = 0;
    for (op, part, nth) in held {
        let (env, faults, db) = faulty(threaded());
        let fault = Fault::new(FaultKind::Block).on(op).nth(nth);
        let hold =
            faults.add(fault.matching(move |call| call.path.to_string_lossy().contains(part)));
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (db, written, met) = (&db, &written, &mut met);
            scope.spawn(move || {
                for i in 0.. {
                    match db.put(format!("key{i:06}"), "v".repeat(60)) {
                        Ok(()) => written.store(i + 1, Ordering::SeqCst),
                        Err(Error::Closed) => break,
                        Err(error) => panic!("{op:?} of {part}: {error}"),
                    }
                }
            });
            while hold.fired() == 0 && written.load(Ordering::SeqCst) < 5000 {
                std::thread::yield_now();
            }
            *met += hold.fired().min(1);
            let close = scope.spawn(|| db.close());
            for _ in 0..100 {
                std::thread::yield_now();
            }
            hold.remove();
            close.join().unwrap().unwrap();
        });
        assert!(matches!(db.put("more", "1"), Err(Error::Closed)));
        drop(db);
        let db = open(&env, small());
        let written = written.load(Ordering::SeqCst);
        assert_eq!(all(&db).len(), written, "{op:?} of {part}");
        assert!(written == 0 || get(&db, &format!("key{:06}", written - 1)).is_some());
    }
    assert!(met >= 11, "only {met} of the operations were met");
}
