//! Work that is cut short: by a close, by a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use treering_env::{Call, CrashPolicy, Env, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Error, Options};

use crate::support::{DIR, all, fill_device, is_manifest, open, roomy, try_open, with_suffix};

const EIO: i32 = 5;

fn threaded() -> Options {
    Options { background_threads: 1, ..roomy() }
}

/// A job that panicked stayed counted as running: `flush` then returned Ok with nothing flushed, or
/// waited for ever, and so did `close`.
#[test]
fn a_flush_or_compaction_that_panics_poisons_and_the_database_still_closes() {
    for (options, compaction) in
        [(roomy(), false), (roomy(), true), (threaded(), false), (threaded(), true)]
    {
        let what = format!("{} threads, {compaction}", options.background_threads);
        let env = MemEnv::new();
        let faults = FaultEnv::new(Arc::new(env.clone()));
        let db = try_open(Arc::new(faults.clone()), options).unwrap();
        db.put("a", "1").unwrap();
        if compaction {
            db.flush().unwrap();
        }
        let planted = |_: &Call<'_>| -> bool { panic!("planted") };
        faults.add(Fault::new(FaultKind::Error(EIO)).on(Op::Create).path(".sst").matching(planted));
        let work = || if compaction { db.compact_range::<&str>(..) } else { db.flush() };
        // On the calling thread it goes on as a panic, on a background thread as poison.
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            assert!(matches!(result.unwrap_err(), Error::Poisoned(_)), "{what}");
        }
        faults.clear();
        for result in [db.flush(), db.put("b", "2"), db.compact_range::<&str>(..), db.close()] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("panicked"), "{what}: {error}");
        }
        drop(db);
        assert_eq!(all(&open(&env, roomy())), [("a".into(), "1".into())], "{what}");
    }
}

/// A call that waited for the manifest lock could write to the manifest after a close had given the
/// directory to the next opener.
#[test]
fn what_waits_for_the_manifest_when_a_close_begins_is_refused() {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), threaded()).unwrap();
    db.put("a", "1").unwrap();
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Sync).matching(is_manifest));
    std::thread::scope(|scope| {
        scope.spawn(|| db.flush());
        hold.wait_until_blocked(1);
        let create = scope.spawn(|| db.create_column_family("f", roomy().cf));
        std::thread::sleep(Duration::from_millis(50));
        let close = scope.spawn(|| db.close());
        while !matches!(db.put("b", "2"), Err(Error::Closed)) {
            std::thread::yield_now();
        }
        hold.remove();
        assert!(matches!(create.join().unwrap(), Err(Error::Closed)));
        close.join().unwrap().unwrap();
    });
    drop(db);
    let db = open(&env, roomy());
    assert_eq!(db.column_family_names(), ["default"]);
    assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// An open on a full disk removed what an edit does not need that a killed process had written and
/// not synced. A power loss took the edit back, and the tables it had replaced were gone.
#[test]
fn a_full_disk_loses_nothing_that_an_unsynced_edit_replaced() {
    let options = Options { log_segment_size: 1 << 20, log_prepare_step: 64 << 10, ..roomy() };
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), options.clone()).unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.put("b", "2").unwrap();
    // The first is that of the flush, the second that of the compaction.
    let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Sync).matching(is_manifest).skip(1));
    let killed = std::thread::scope(|scope| {
        let flush = scope.spawn(|| db.flush());
        hold.wait_until_blocked(1);
        for i in 0..20 {
            db.put(format!("c{i:02}"), "v".repeat(500)).unwrap();
        }
        let killed = env.kill();
        hold.remove();
        flush.join().unwrap().unwrap();
        killed
    });
    fill_device(&killed);
    let error = try_open(Arc::new(killed.clone()), options.clone()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    // A file system may make names durable on its own at any time.
    killed.sync_dir(DIR.as_ref()).unwrap();
    let after = killed.crash(CrashPolicy::DropAll);
    after.set_capacity(u64::MAX);
    let db = open(&after, options);
    assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"2"[..]));
}

/// `get` and `multi_get` took any valid table in the place of the recorded one, and answered with
/// its data.
#[test]
fn a_table_in_the_place_of_another_is_corruption_for_every_read() {
    let mut options = roomy();
    options.cf.level0_compaction_trigger = 8;
    let env = MemEnv::new();
    let db = open(&env, options.clone());
    for value in ["old", "new"] {
        db.put("k", value).unwrap();
        db.flush().unwrap();
    }
    drop(db);
    let tables = with_suffix(&env, ".sst");
    let paths: Vec<PathBuf> = tables.iter().map(|name| Path::new(DIR).join(name)).collect();
    let [older, newer] = &paths[..] else { panic!("two tables: {tables:?}") };
    let size = |path| env.metadata(path).unwrap().unwrap().size;
    assert_eq!(size(older), size(newer));
    env.remove(newer).unwrap();
    env.link(older, newer).unwrap();
    let db = open(&env, options);
    let results = [
        db.get("k"),
        db.multi_get(["k"]).remove(0),
        db.iter().next().unwrap().map(|(_, value)| Some(value)),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Corruption { path, .. } if path == newer), "{error}");
    }
}
