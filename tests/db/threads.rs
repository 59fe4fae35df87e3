//! With background threads, and many threads of callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use treering_env::{Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{
    ColumnFamily, Db, DbCursor, Durability, Error, FailedKeys, KeyColumn, Options, Range, Snapshot,
    ValueColumn, WriteBatch, WriteOptions,
};

use crate::support::{all, count, get, open, open_new, small, try_open};

fn threaded() -> Options {
    Options { background_threads: 2, ..small() }
}

/// ITER-13: what a program may do with handles, iterators and columns is part of their types.
#[test]
fn handles_are_shared_and_iterators_and_columns_sent_between_threads() {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    const fn sent<T: Send + 'static>() {}
    const {
        shared::<Db>();
        shared::<ColumnFamily>();
        shared::<Snapshot>();
        shared::<ValueColumn>();
        shared::<FailedKeys>();
        sent::<Range>();
        sent::<std::iter::Rev<Range>>();
        sent::<DbCursor>();
        sent::<WriteBatch>();
        sent::<KeyColumn<'static>>();
    }
}

#[test]
fn many_writers_with_flushes_and_compactions_lose_nothing() {
    let (env, db) = open_new(threaded());
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let db = &db;
            scope.spawn(move || {
                for i in 0..400 {
                    let mut batch = WriteBatch::new();
                    batch.put(format!("t{thread}-{i:04}"), "v".repeat(40));
                    batch.put(format!("last{thread}"), i.to_string());
                    let synced = (thread + i) % 3 == 0;
                    let durability =
                        Some(if synced { Durability::Synced } else { Durability::Flushed });
                    db.write_opt(batch, &WriteOptions { durability }).unwrap();
                    assert_eq!(get(db, &format!("last{thread}")), Some(i.to_string()));
                    if i % 100 == 50 {
                        db.flush().unwrap();
                    }
                    if i % 200 == 150 {
                        db.compact_range::<&str>(..).unwrap();
                    }
                }
            });
        }
    });
    db.wait_for_compact().unwrap();
    let stats = db.stats();
    assert_eq!(all(&db).len(), 6 * 401, "{stats}");
    assert_eq!(stats.batches, 2400);
    assert!(stats.flushes > 3 && stats.compactions + stats.moves > 0, "{stats}");
    db.close().unwrap();
    drop(db);
    let db = open(&env, small());
    assert_eq!(all(&db).len(), 6 * 401);
    let files: usize = db.stats().families[0].levels.iter().map(|level| level.files).sum();
    assert_eq!(count(&env, ".sst"), files);
}

/// MGET-06
#[test]
fn a_batch_over_two_families_is_seen_whole_by_every_reader() {
    let (_env, db) = open_new(threaded());
    let one = db.create_column_family("one", threaded().cf).unwrap();
    let two = db.create_column_family("two", threaded().cf).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..3000_u32 {
                let mut batch = WriteBatch::new();
                let value = format!("{i:08}{}", "p".repeat(50));
                batch.put_in(&one, "x", &value);
                batch.put_in(&two, "y", &value);
                db.write(batch).unwrap();
                if i % 500 == 0 {
                    db.flush().unwrap();
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let answers = db.multi_get_in([(&one, "x"), (&two, "y")]);
                    let [x, y] = &answers[..] else { panic!("two answers") };
                    assert_eq!(x.as_ref().unwrap(), y.as_ref().unwrap());
                    let snapshot = db.snapshot();
                    let x = snapshot.get_in(&one, "x").unwrap();
                    let y = snapshot.iter_in(&two).next().transpose().unwrap();
                    assert_eq!(x, y.map(|(_, value)| value));
                }
            });
        }
    });
}

/// LIFE-05
#[test]
fn closing_under_load_ends_every_writer_and_keeps_what_was_acknowledged() {
    for round in 0..5 {
        let (env, db) = open_new(threaded());
        let acknowledged = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (db, acknowledged) = (&db, &acknowledged);
                scope.spawn(move || {
                    for i in 0.. {
                        match db.put(format!("t{thread}-{i:06}"), "v".repeat(60)) {
                            Ok(()) => acknowledged.fetch_add(1, Ordering::SeqCst),
                            Err(Error::Closed) => break,
                            Err(error) => panic!("{error}"),
                        };
                    }
                });
            }
            scope.spawn(|| {
                loop {
                    match db.compact_range::<&str>(..) {
                        Ok(()) => {}
                        Err(Error::Closed) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            while acknowledged.load(Ordering::SeqCst) < 100 * (round + 1) {
                std::thread::yield_now();
            }
            db.close().unwrap();
        });
        let db = open(&env, small());
        assert_eq!(all(&db).len(), acknowledged.load(Ordering::SeqCst), "round {round}");
    }
}

/// BG-05
#[test]
fn writers_that_wait_for_a_flush_go_on_when_it_is_done() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), threaded()).unwrap();
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Create).path(".sst"));
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..2000 {
                db.put(format!("key{i:05}"), "v".repeat(40)).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        while db.stats().stopped_writes == 0 {
            std::thread::yield_now();
        }
        let held = written.load(Ordering::SeqCst);
        assert!(held < 2000);
        assert_eq!(all(&db).len(), held, "reads go on");
        hold.remove();
        writer.join().unwrap();
    });
    assert_eq!(all(&db).len(), 2000);
}

/// BG-06
#[test]
fn writers_that_meet_a_full_disk_all_return_and_go_on_when_there_is_room() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), threaded()).unwrap();
    let full = faults.add(Fault::new(FaultKind::Error(28)).on(Op::Append).path(".sst"));
    let acknowledged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (db, acknowledged) = (&db, &acknowledged);
            scope.spawn(move || {
                for i in 0..2000 {
                    match db.put(format!("t{thread}-{i:05}"), "v".repeat(40)) {
                        Ok(()) => acknowledged.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert!(matches!(error, Error::NoSpace(_)), "{error}");
                            break;
                        }
                    };
                }
            });
        }
    });
    assert!(acknowledged.load(Ordering::SeqCst) < 16_000);
    assert!(matches!(db.put("refused", "1"), Err(Error::NoSpace(_))));
    full.remove();
    db.flush().unwrap();
    db.put("after", "1").unwrap();
    assert_eq!(all(&db).len(), acknowledged.load(Ordering::SeqCst) + 1);
    assert_eq!(db.stats().poisoned, None);
}

/// LIFE-07
#[test]
fn waits_for_nothing_return_at_once() {
    let (_env, db) = open_new(threaded());
    for _ in 0..3 {
        db.flush().unwrap();
        db.wait_for_compact().unwrap();
        db.compact_range("a".."b").unwrap();
        db.sync_wal().unwrap();
        db.flush_wal().unwrap();
    }
    db.close().unwrap();
}

/// BG-03 with threads: a poisoned database ends in bounded time.
#[test]
fn poison_wakes_those_who_wait_for_background_work() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), threaded()).unwrap();
    db.put("a", "1").unwrap();
    let manifest = |call: &treering_env::Call<'_>| call.path.to_string_lossy().contains("MANIFEST");
    faults.add(Fault::new(FaultKind::Error(5)).on(Op::Sync).matching(manifest));
    let error = db.flush().unwrap_err();
    assert!(error.to_string().contains("MANIFEST"), "{error}");
    assert!(matches!(db.flush(), Err(Error::Poisoned(_))));
    assert!(matches!(db.wait_for_compact(), Err(Error::Poisoned(_))));
    assert!(matches!(db.put("b", "1"), Err(Error::Poisoned(_))));
    assert!(matches!(db.close(), Err(Error::Poisoned(_))));
    assert_eq!(all(&open(&env, small())), [("a".into(), "1".into())]);
}
