//! Files go when nobody needs them any more, and not before.

use std::sync::Arc;

use treering_env::{CrashPolicy, Env, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Db, Error, Options};

use crate::support::{
    DIR, all, count, fill_device, get, is_manifest, names, open, open_new, roomy, try_open,
    with_suffix,
};

/// Two tables, and a compaction of them that leaves one.
fn two_tables(db: &Db) {
    for value in ["old", "new"] {
        db.put("k", value).unwrap();
        db.flush().unwrap();
    }
}

fn patient(background_threads: usize) -> Options {
    let mut options = Options { background_threads, ..roomy() };
    options.cf.level0_compaction_trigger = 8;
    options
}

/// They once stayed until the next change of the state, which may never come.
#[test]
fn tables_go_with_the_last_iterator_that_reads_them() {
    for threads in [0, 1] {
        let (env, db) = open_new(patient(threads));
        two_tables(&db);
        let mut started = db.iter();
        assert_eq!(started.next().unwrap().unwrap().1, "new");
        let (fresh, cursor) = (db.iter(), db.cursor().unwrap());
        db.compact_range::<&str>(..).unwrap();
        assert_eq!(count(&env, ".sst"), 3, "{threads} threads: the iterators still read two");
        let writes = db.stats().batches;
        drop(fresh);
        drop(started);
        assert_eq!(count(&env, ".sst"), 3, "{threads} threads: a cursor still reads two");
        drop(cursor);
        // With threads, the log thread removes them.
        while threads > 0 && count(&env, ".sst") > 1 {
            std::thread::yield_now();
        }
        assert_eq!(count(&env, ".sst"), 1, "{threads} threads");
        assert_eq!(db.stats().batches, writes);
        assert_eq!(get(&db, "k").as_deref(), Some("new"));
    }
}

/// An iterator may outlive the close; the directory is somebody else's by then.
#[test]
fn an_iterator_dropped_after_the_close_removes_nothing() {
    let (env, db) = open_new(patient(0));
    two_tables(&db);
    let iterator = db.iter();
    db.compact_range::<&str>(..).unwrap();
    db.close().unwrap();
    let left = names(&env);
    drop(iterator);
    drop(db);
    assert_eq!(names(&env), left);
    open(&env, patient(0));
    assert_eq!(count(&env, ".sst"), 1, "left-overs go at the next open");
}

/// BG-08. The sync of an edit failed, and one after it says Ok and does nothing: what the edit
/// replaced must stay, since the edit may be gone after a power loss.
#[test]
fn an_open_on_a_full_device_does_not_believe_a_sync_after_a_failed_one() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), patient(0)).unwrap();
    let other = db.create_column_family("other", patient(0).cf).unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    // Something to replay, for which there will be no room.
    for i in 0..40 {
        other.put(format!("key{i:02}"), "v".repeat(500)).unwrap();
    }
    db.put("b", "2").unwrap();
    // The first is that of the flush, the second that of the compaction.
    let failing = Fault::new(FaultKind::Error(5)).on(Op::Sync).matching(is_manifest).skip(1);
    faults.add(failing.times(1));
    db.compact_range::<&str>(..).unwrap_err();
    assert!(matches!(db.put("c", "3"), Err(Error::Poisoned(_))));
    let killed = env.kill();
    drop(db);
    let tables = with_suffix(&killed, ".sst");
    assert_eq!(tables.len(), 3, "two inputs and an output: {tables:?}");

    fill_device(&killed);
    let lying = FaultEnv::new(Arc::new(killed.clone()));
    lying.add(Fault::new(FaultKind::Drop).on(Op::Sync).matching(is_manifest));
    let error = try_open(Arc::new(lying), patient(0)).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(with_suffix(&killed, ".sst"), tables);
    // A file system may make names durable on its own at any time.
    killed.sync_dir(DIR.as_ref()).unwrap();
    let after = killed.crash(CrashPolicy::DropAll);
    after.set_capacity(u64::MAX);
    let db = open(&after, patient(0));
    assert_eq!(all(&db).len(), 2);
    assert_eq!(db.column_family("other").unwrap().iter().count(), 40);
}

/// BG-08. What a crash left of a flush, and of an open that came no further than its manifest's
/// first bytes, makes room.
#[test]
fn an_open_on_a_full_device_removes_what_no_manifest_names() {
    let (env, db) = open_new(roomy());
    for i in 0..200 {
        db.put(format!("key{i:04}"), "v".repeat(30)).unwrap();
    }
    drop(db);
    let stray = [("000900.sst", vec![1; 1 << 20]), ("MANIFEST-000901", b"half".to_vec())];
    for (name, bytes) in stray {
        let path = std::path::Path::new(DIR).join(name);
        let mut file = env.create(&path, treering_env::FileKind::Other).unwrap();
        file.append(&bytes).unwrap();
        file.finish().unwrap();
    }
    fill_device(&env);
    let db = open(&env, roomy());
    assert_eq!(all(&db).len(), 200);
    let left = names(&env);
    for name in ["000900.sst", "MANIFEST-000901"] {
        assert!(!left.contains(&name.to_owned()), "{name} is left: {left:?}");
    }
}

#[test]
fn a_number_that_no_counter_reaches_is_no_proof_of_a_lost_database() {
    let env = MemEnv::new();
    env.create_dir_all(DIR.as_ref()).unwrap();
    let foreign = [(1_u64 << 55) + 1, u64::MAX];
    for number in foreign {
        let path = std::path::Path::new(DIR).join(format!("{number}.sst"));
        env.create(&path, treering_env::FileKind::Other).unwrap();
    }
    let db = open(&env, roomy());
    assert!(db.recovery_report().created);
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    drop(db);
    assert_eq!(with_suffix(&env, ".sst").len(), 3, "two foreign ones, untouched");
    let env = MemEnv::new();
    env.create_dir_all(DIR.as_ref()).unwrap();
    let path = std::path::Path::new(DIR).join(format!("{}.sst", 1_u64 << 55));
    env.create(&path, treering_env::FileKind::Other).unwrap();
    let error = try_open(Arc::new(env), roomy()).unwrap_err();
    assert!(matches!(error, Error::Corruption { .. }), "{error}");
}
