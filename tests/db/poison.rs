//! What happens when a write to the device fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use treering_env::{CountEnv, Env, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Db, Error, WriteBatch};

use crate::support::{all, faulty, fill_device, get, open, put_synced, roomy, small, try_open};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Every kind of write is refused, and each names the first cause.
pub(crate) fn assert_poisoned(db: &Db, cause: &str) {
    let family = db.column_family("default").unwrap();
    let mut batch = WriteBatch::new();
    batch.put("x", "y");
    let results = [
        db.put("x", "y"),
        db.delete("x"),
        db.write(batch),
        put_synced(db, "x", "y"),
        db.flush(),
        db.flush_wal(),
        db.sync_wal(),
        db.compact_range::<&str>(..),
        db.wait_for_compact(),
        db.create_column_family("f", small().cf).map(|_| ()),
        db.drop_column_family(&family),
    ];
    for (index, result) in results.into_iter().enumerate().take(10) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "call {index}: {error}");
        let message = error.to_string();
        assert!(message.starts_with("writes stopped by an earlier error: "), "{message}");
        assert!(message.contains(cause), "call {index}: {message}");
    }
    assert!(db.stats().poisoned.unwrap().contains(cause));
}

/// WR-01
#[test]
fn a_group_whose_append_or_sync_fails_fails_whole_and_is_never_seen() {
    for op in [Op::Append, Op::Sync] {
        let (env, faults, db) = faulty(roomy());
        put_synced(&db, "before", "1").unwrap();
        // The first writer waits inside its append; the others gather behind it.
        let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Append).path(".log"));
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let first = scope.spawn(|| db.put("first", "1"));
            hold.wait_until_blocked(1);
            let spawn = |i: usize| {
                let db = &db;
                scope.spawn(move || put_synced(db, &format!("member{i}"), "1"))
            };
            let members: Vec<_> = (0..4).map(spawn).collect();
            std::thread::sleep(std::time::Duration::from_millis(50));
            // The append that is held has met its rules already; this is for the group's.
            faults.add(Fault::new(FaultKind::Error(EIO)).on(op).path(".log"));
            hold.remove();
            first.join().unwrap().unwrap();
            members.into_iter().map(|member| member.join().unwrap()).collect()
        });
        for result in results {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(".log") && error.contains("os error 5"), "{op:?}: {error}");
        }
        let keys: Vec<String> = all(&db).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["before", "first"], "{op:?}");
        drop(db);
        let db = open(&env, roomy());
        let keys: Vec<String> = all(&db).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys[..2], ["before", "first"], "{op:?}");
    }
}

/// WR-03, BG-03
#[test]
fn after_a_failed_append_nothing_reaches_the_log_and_everything_names_the_first_cause() {
    let env = MemEnv::new();
    let count = CountEnv::new(Arc::new(env.clone()));
    let faults = FaultEnv::new(Arc::new(count.clone()));
    let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
    db.put("a", "1").unwrap();
    faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Append).path(".log").times(1));
    let first = db.put("b", "2").unwrap_err();
    assert!(matches!(first, Error::Io(_)), "{first}");
    let before = count.counts();
    assert_poisoned(&db, &first.to_string());
    let since = count.counts().since(&before);
    for op in [Op::Append, Op::Sync, Op::Create, Op::Remove, Op::Rename, Op::Prepare] {
        assert_eq!(since.of(op).calls, 0, "{op:?}");
    }
    assert_eq!(all(&db), [("a".into(), "1".into())]);
    let closed = db.close().unwrap_err();
    assert!(closed.to_string().contains(&first.to_string()), "{closed}");
    let db = open(&env, roomy());
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    db.put("b", "3").unwrap();
}

/// WR-04, O2: a write is published only after its sync.
#[test]
fn readers_never_see_a_write_whose_sync_failed() {
    let (env, faults, db) = faulty(roomy());
    put_synced(&db, "k", "old").unwrap();
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Sync).path(".log"));
    faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Sync).path(".log"));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put_synced(&db, "k", "new"));
        hold.wait_until_blocked(1);
        assert_eq!(get(&db, "k").as_deref(), Some("old"), "while the sync runs");
        hold.remove();
        writer.join().unwrap().unwrap_err();
    });
    assert_eq!(get(&db, "k").as_deref(), Some("old"));
    assert_eq!(db.snapshot().get("k").unwrap().as_deref(), Some(&b"old"[..]));
    assert_poisoned(&db, "sync");
    drop(db);
    let value = get(&open(&env, roomy()), "k").unwrap();
    assert!(["old", "new"].contains(&&*value), "{value}");
}

/// O2: a flushed write behind an unfinished synced one is published and acknowledged after it.
#[test]
fn groups_are_published_in_the_order_of_the_log() {
    let (_env, faults, db) = faulty(roomy());
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Sync).path(".log"));
    let second_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| put_synced(&db, "first", "1"));
        hold.wait_until_blocked(1);
        let second = scope.spawn(|| {
            let result = db.put("second", "2");
            second_done.store(true, Ordering::SeqCst);
            result
        });
        while db.stats().groups < 2 {
            std::thread::yield_now();
        }
        assert_eq!(get(&db, "second"), None);
        assert!(!second_done.load(Ordering::SeqCst), "acknowledged before the sync it is behind");
        hold.remove();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(all(&db).len(), 2);
}

/// WR-06, BG-02
#[test]
fn a_failed_flush_is_reported_keeps_everything_and_the_next_one_writes_a_new_file() {
    let ops = [Op::Create, Op::Append, Op::Flush, Op::Sync, Op::Finish, Op::SyncDir];
    let mut hit = 0;
    for op in ops {
        for errno in [EIO, ENOSPC] {
            let (env, faults, db) = faulty(roomy());
            for i in 0..200 {
                db.put(format!("key{i:03}"), "v".repeat(50)).unwrap();
            }
            let suffix = if op == Op::SyncDir { "" } else { ".sst" };
            let fault = Fault::new(FaultKind::Error(errno)).on(op).path(suffix);
            let fault = faults.add(fault);
            let result = db.flush();
            if fault.fired() == 0 {
                result.unwrap();
                continue;
            }
            hit += 1;
            let error = result.unwrap_err();
            assert_eq!(matches!(error, Error::NoSpace(_)), errno == ENOSPC, "{op:?}: {error}");
            assert!(db.stats().flush_error.is_some());
            assert_eq!(crate::support::count(&env, ".sst"), 0, "{op:?}: a partial table is left");
            assert_eq!(all(&db).len(), 200, "{op:?}");
            db.put("more", "1").unwrap();
            db.flush().unwrap_err();
            fault.remove();
            db.flush().unwrap();
            let stats = db.stats();
            assert_eq!(stats.flush_error, None, "{op:?}");
            assert_eq!(stats.families[0].memtable_entries, 0, "{op:?}");
            assert_eq!(all(&db).len(), 201, "{op:?}");
            drop(db);
            let db = open(&env, roomy());
            assert_eq!(all(&db).len(), 201, "{op:?}");
        }
    }
    assert!(hit >= 8, "the faults were met {hit} times only");
}

/// BG-02
#[test]
fn a_failed_compaction_keeps_its_inputs_and_the_next_one_succeeds() {
    for op in [Op::Create, Op::Read, Op::Finish, Op::Append] {
        let (env, faults, db) = faulty(roomy());
        for round in 0..2 {
            for i in 0..100 {
                db.put(format!("key{i:03}"), format!("{round}{}", "v".repeat(50))).unwrap();
            }
            if round == 0 {
                db.flush().unwrap();
            }
        }
        // The flush of the call goes first and must succeed.
        db.flush().unwrap();
        let fault = faults.add(Fault::new(FaultKind::Error(EIO)).on(op).path(".sst"));
        let files = crate::support::count(&env, ".sst");
        db.put("x", "1").unwrap();
        if fault.fired() == 0 {
            // No compaction was due: ask for one.
            db.compact_range::<&str>(..).unwrap_err();
        }
        assert!(fault.fired() > 0, "{op:?}");
        assert!(crate::support::count(&env, ".sst") <= files + 1, "{op:?}");
        fault.remove();
        db.compact_range::<&str>(..).unwrap();
        db.wait_for_compact().unwrap();
        assert_eq!(db.stats().compaction_error, None, "{op:?}");
        assert_eq!(all(&db).len(), 101, "{op:?}");
        assert!(get(&db, "key007").unwrap().starts_with('1'), "{op:?}");
        db.put("y", "2").unwrap();
    }
}

/// WR-08
#[test]
fn a_failed_manifest_write_poisons_and_the_data_is_there_once_after_a_reopen() {
    for op in [Op::Append, Op::Flush, Op::Sync] {
        let (env, faults, db) = faulty(roomy());
        for i in 0..200 {
            db.put(format!("key{i:03}"), i.to_string()).unwrap();
        }
        let manifest =
            |call: &treering_env::Call<'_>| call.path.to_string_lossy().contains("MANIFEST");
        faults.add(Fault::new(FaultKind::Error(EIO)).on(op).matching(manifest).times(1));
        let error = db.flush().unwrap_err();
        assert!(error.to_string().contains("MANIFEST"), "{op:?}: {error}");
        assert_poisoned(&db, "MANIFEST");
        assert_eq!(all(&db).len(), 200, "{op:?}");
        let killed = env.kill();
        drop(db);
        for env in [env, killed] {
            let db = open(&env, roomy());
            assert_eq!(all(&db).len(), 200, "{op:?}");
            db.put("more", "1").unwrap();
            db.flush().unwrap();
            assert_eq!(all(&db).len(), 201, "{op:?}");
        }
    }
}

/// A full device met while the log prepares space is not applied, not fatal, and ends by itself.
#[test]
fn a_full_device_before_the_append_refuses_the_write_and_nothing_else() {
    let env = MemEnv::new();
    let db = open(&env, roomy());
    fill_device(&env);
    let mut written = 0;
    let error = loop {
        match db.put(format!("key{written:05}"), "v".repeat(100)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the log never needed space");
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(db.stats().poisoned, None);
    assert_eq!(all(&db).len(), written);
    assert!(written > 0, "the first step was prepared at the open");
    let large = db.put("large", "v".repeat(5000)).unwrap_err();
    assert!(matches!(large, Error::NoSpace(_)), "{large}");
    env.set_capacity(1 << 40);
    db.put("after", "1").unwrap();
    assert_eq!(get(&db, "after").as_deref(), Some("1"));
    let before = all(&db);
    drop(db);
    assert_eq!(all(&open(&env, roomy())), before);
}

/// The same, injected, for the zeros that the log prepares in all three places: ahead of time, in
/// the append, and in a new segment.
#[test]
fn a_prepare_that_finds_the_device_full_leaves_the_database_healthy() {
    let (env, faults, db) = faulty(roomy());
    let full = faults.add(Fault::new(FaultKind::Error(ENOSPC)).on(Op::Prepare).path(".log"));
    let (mut written, mut refused) = (0, 0);
    for i in 0..2000 {
        match db.put(format!("key{i:05}"), "v".repeat(100)) {
            Ok(()) => written += 1,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace(_)), "{error}");
                refused += 1;
                assert_eq!(db.stats().poisoned, None);
                full.remove();
            }
        }
        if i % 50 == 0 {
            faults.add(Fault::new(FaultKind::Error(ENOSPC)).on(Op::Prepare).times(2));
        }
    }
    assert!(refused > 1 && db.stats().log_switches > 1, "{refused} refused; {}", db.stats());
    assert_eq!(all(&db).len(), written);
    assert_eq!(db.stats().poisoned, None);
    drop(db);
    assert_eq!(all(&open(&env, roomy())).len(), written);
}

/// BG-01, LIFE-11
#[test]
fn a_disk_that_fills_up_refuses_writes_and_works_again_when_there_is_room() {
    let env = MemEnv::with_capacity(300 << 10);
    let db = open(&env, small());
    let mut written = 0;
    let error = loop {
        match db.put(format!("key{written:06}"), "v".repeat(100)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 20_000, "the disk never filled up");
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(all(&db).len(), written, "reads go on");
    env.set_capacity(64 << 20);
    if db.stats().poisoned.is_none() {
        for i in 0..2000 {
            db.put(format!("more{i:06}"), "v".repeat(100)).unwrap();
        }
        db.flush().unwrap();
        assert_eq!(all(&db).len(), written + 2000);
    }
    let before = all(&db);
    drop(db);
    assert_eq!(all(&open(&env, small())), before);
}

#[test]
fn reads_from_memory_go_on_while_the_log_and_the_manifest_are_stuck() {
    let (_env, faults, db) = faulty(roomy());
    db.put("a", "1").unwrap();
    let log = faults.add(Fault::new(FaultKind::Block).on(Op::Append).path(".log"));
    let manifest = faults.add(
        Fault::new(FaultKind::Block)
            .on(Op::Append)
            .matching(|call| call.path.to_string_lossy().contains("MANIFEST")),
    );
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| db.put("b", "2"));
        log.wait_until_blocked(1);
        let creator = scope.spawn(|| db.create_column_family("f", small().cf));
        assert_eq!(get(&db, "a").as_deref(), Some("1"));
        assert_eq!(db.multi_get(["a", "b"])[1].as_ref().unwrap(), &None);
        assert_eq!(all(&db).len(), 1);
        log.remove();
        writer.join().unwrap().unwrap();
        manifest.wait_until_blocked(1);
        db.put("c", "3").unwrap();
        assert_eq!(db.snapshot().get("c").unwrap().as_deref(), Some(&b"3"[..]));
        assert!(db.stats().poisoned.is_none());
        manifest.remove();
        creator.join().unwrap().unwrap();
    });
    let env: Arc<dyn Env> = Arc::clone(db.env());
    assert_eq!(env.report().env, "mem", "wrappers say what is below: {}", env.report());
}
