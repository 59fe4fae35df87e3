//! What operations cost, in calls to the environment.

use std::path::Path;
use std::sync::Arc;

use treering_env::{CountEnv, Env, MemEnv, Op, PosixEnv};
use treering_lsm::{Db, Durability, WriteBatch, WriteOptions};

use crate::support::{DIR, all, open, open_new, roomy, small, with_suffix};

#[test]
fn a_flushed_put_is_one_append_and_a_synced_one_adds_one_sync() {
    let count = CountEnv::new(Arc::new(MemEnv::new()));
    let db = Db::open(Arc::new(count.clone()), DIR, roomy()).unwrap();
    db.put("warm", "up").unwrap();
    let calls = |run: &dyn Fn()| {
        let before = count.counts();
        run();
        let since = count.counts().since(&before);
        let all = [Op::Append, Op::Flush, Op::Sync, Op::Prepare, Op::Create, Op::Read, Op::SyncDir];
        all.map(|op| since.of(op).calls)
    };
    assert_eq!(calls(&|| db.put("k", "v").unwrap()), [1, 1, 0, 0, 0, 0, 0]);
    let synced = || {
        let mut batch = WriteBatch::new();
        batch.put("k", "w");
        db.write_opt(batch, &WriteOptions { durability: Some(Durability::Synced) }).unwrap();
    };
    assert_eq!(calls(&synced), [1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(calls(&|| assert!(db.get("k").unwrap().is_some())), [0; 7]);
}

#[test]
fn a_flushed_put_on_a_disk_is_one_pwrite() {
    let dir = tempfile::tempdir().unwrap();
    let env: Arc<dyn Env> = Arc::new(PosixEnv::new());
    let db = Db::open(Arc::clone(&env), dir.path().join("db"), roomy()).unwrap();
    db.put("warm", "up").unwrap();
    let before = env.report();
    for i in 0..10 {
        db.put(format!("key{i}"), "value").unwrap();
    }
    let since = env.report().since(&before);
    assert_eq!(since.counter("pwrites"), 10, "{since}");
    assert_eq!(since.counter("fdatasyncs") + since.counter("fsyncs"), 0, "{since}");
}

#[test]
fn a_cold_get_reads_one_block_and_a_hot_one_nothing() {
    let count = CountEnv::new(Arc::new(MemEnv::new()));
    let db = Db::open(Arc::new(count.clone()), DIR, small()).unwrap();
    for i in 0..2000 {
        db.put(format!("key{i:05}"), "v".repeat(20)).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    // Opens the table.
    db.get("key00100").unwrap();
    let reads = |key: &str| {
        let before = count.counts();
        assert!(db.get(key).unwrap().is_some());
        count.counts().since(&before).of(Op::Read)
    };
    let cold = reads("key00110");
    assert!(cold.calls <= 1 && cold.bytes <= 4096, "{cold:?}");
    assert_eq!(reads("key00110").calls, 0);
}

/// A marker tells recovery how much was on the device. One that says nothing new would only fill
/// the segment, which a loop of them once did without end.
#[test]
fn markers_are_written_for_news_only_and_never_beyond_the_size_of_a_segment() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    let flush_and_sync = || {
        db.flush_wal().unwrap();
        let before = db.stats().log_size;
        db.sync_wal().unwrap();
        before
    };
    flush_and_sync();
    let told = flush_and_sync();
    for _ in 0..2000 {
        assert_eq!(flush_and_sync(), told);
    }
    db.put("b", "2").unwrap();
    db.sync_wal().unwrap();
    let written = db.stats().log_size;
    db.flush_wal().unwrap();
    assert!(db.stats().log_size > written, "a marker for the write that was synced");

    for i in 0..2000 {
        db.put(format!("key{i:04}"), "value").unwrap();
        db.sync_wal().unwrap();
        db.flush_wal().unwrap();
        for name in with_suffix(&env, ".log") {
            let size = env.metadata(&Path::new(DIR).join(&name)).unwrap().unwrap().size;
            assert!(size <= roomy().log_segment_size, "{name} has {size} bytes after {i} writes");
        }
    }
    assert!(db.stats().log_switches > 2, "{}", db.stats());
    drop(db);
    assert_eq!(all(&open(&env, roomy())).len(), 2002);
}
