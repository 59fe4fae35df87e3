//! An environment that panics, on whatever thread: the database is poisoned, and nobody waits for
//! what the thread was about to do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use treering_env::{Call, Fault, FaultEnv, FaultKind, Op};
use treering_lsm::{Db, Error, Options};

use crate::poison::assert_poisoned;
use crate::support::{faulty, get, open, put_synced, roomy};

/// From now on every such operation panics.
fn plant(faults: &FaultEnv, op: Op, path: &'static str) {
    let panicking = move |call: &Call<'_>| -> bool {
        let hit = call.op == op && call.path.to_string_lossy().contains(path);
        assert!(!hit, "planted");
        false
    };
    faults.add(Fault::new(FaultKind::Error(5)).matching(panicking));
}

/// WR-03
#[test]
fn a_leader_that_panics_poisons_and_leaves_nobody_waiting() {
    let large = "v".repeat(20_000);
    // What panics, and the value that makes a leader come there.
    let cases = [(Op::Append, "1"), (Op::Flush, "1"), (Op::Sync, "1"), (Op::Prepare, &large)];
    for (op, value) in cases {
        let (env, faults, db) = faulty(roomy());
        db.put("a", "1").unwrap();
        let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Append).path(".log").times(1));
        std::thread::scope(|scope| {
            // Its own append has met its rules by the time that the panic is planted.
            let first = scope.spawn(|| db.put("b", "1"));
            hold.wait_until_blocked(1);
            let spawn = |i: usize| {
                let db = &db;
                scope.spawn(move || put_synced(db, &format!("c{i}"), value))
            };
            let followers: Vec<_> = (0..4).map(spawn).collect();
            plant(&faults, op, ".log");
            hold.remove();
            // After its append the first one only waits for its turn, or flushes.
            let first = first.join();
            assert_eq!(first.is_err(), op == Op::Flush, "{op:?}");
            let mut panicked = usize::from(first.is_err());
            for follower in followers {
                match follower.join() {
                    Ok(result) => {
                        let error = result.unwrap_err().to_string();
                        assert!(error.contains("panicked"), "{op:?}: {error}");
                    }
                    Err(_) => panicked += 1,
                }
            }
            // The next group may be appended while the first one syncs, and then syncs itself.
            let most = if op == Op::Sync { 2 } else { 1 };
            let refused = "whoever comes after the first is refused";
            assert!((1..=most).contains(&panicked), "{op:?}: {panicked} panicked; {refused}");
        });
        faults.clear();
        assert_poisoned(&db, "panicked");
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "{op:?}");
        drop(db);
        let db = open(&env, roomy());
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "{op:?}");
    }
}

/// WR-03. Every other call that changes the log or the manifest on its caller's thread.
#[test]
fn a_call_that_panics_in_the_log_or_the_manifest_poisons() {
    type Act = (&'static str, Op, &'static str, fn(&Db));
    let acts: [Act; 11] = [
        ("a marker", Op::Append, ".log", |db| {
            db.sync_wal().unwrap();
            db.flush_wal().unwrap();
        }),
        ("sync_wal", Op::Sync, ".log", |db| db.sync_wal().unwrap()),
        ("flush syncs the log", Op::Sync, ".log", |db| db.flush().unwrap()),
        ("flush writes a table", Op::Append, ".sst", |db| db.flush().unwrap()),
        ("flush writes an edit", Op::Append, "MANIFEST", |db| db.flush().unwrap()),
        ("flush syncs an edit", Op::Sync, "MANIFEST", |db| db.flush().unwrap()),
        ("a new family", Op::Append, "MANIFEST", |db| {
            db.create_column_family("f", roomy().cf).unwrap();
        }),
        ("a dropped family", Op::Sync, "MANIFEST", |db| {
            db.drop_column_family(&db.column_family("old").unwrap()).unwrap();
        }),
        ("the end of a segment", Op::Sync, ".log", |db| {
            for _ in 0..20 {
                db.put("filler", "v".repeat(5000)).unwrap();
            }
        }),
        ("space for the log", Op::Prepare, ".log", |db| db.put("c", "v".repeat(9000)).unwrap()),
        ("compaction", Op::Finish, ".sst", |db| db.compact_range::<&str>(..).unwrap()),
    ];
    for (what, op, path, act) in acts {
        let (env, faults, db) = faulty(roomy());
        db.create_column_family("old", roomy().cf).unwrap();
        db.put("a", "1").unwrap();
        plant(&faults, op, path);
        catch_unwind(AssertUnwindSafe(|| act(&db))).expect_err(what);
        faults.clear();
        assert_poisoned(&db, "panicked");
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "{what}");
        assert!(matches!(db.close(), Err(Error::Poisoned(_))), "{what}");
        drop(db);
        let db = open(&env, roomy());
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "{what}");
        db.put("b", "2").unwrap();
        db.flush().unwrap();
    }
}

/// WR-03
#[test]
fn a_background_thread_that_panics_poisons_and_wakes_those_who_wait_for_it() {
    for (op, path) in [(Op::Append, ".sst"), (Op::Sync, "MANIFEST"), (Op::Prepare, ".log")] {
        let options = Options { background_threads: 2, ..roomy() };
        let (env, faults, db) = faulty(options);
        db.put("a", "1").unwrap();
        plant(&faults, op, path);
        let write = || -> Result<(), Error> {
            for _ in 0..40 {
                db.put("filler", "v".repeat(3000))?;
            }
            db.flush()
        };
        // The writer itself may come to the log's panic first.
        let result = catch_unwind(AssertUnwindSafe(write));
        assert!(result.is_err() || result.is_ok_and(|result| result.is_err()), "{op:?} {path}");
        faults.clear();
        assert_poisoned(&db, "panicked");
        assert_eq!(get(&db, "a").as_deref(), Some("1"));
        drop(db);
        assert_eq!(get(&open(&env, roomy()), "a").as_deref(), Some("1"));
    }
}
