//! What is there after the database was closed, dropped or killed.

use treering_env::{CrashPolicy, Env, MemEnv};
use treering_lsm::{Error, Options, TailPolicy};

use crate::support::{
    all, count, get, names, open, open_new, put_synced, roomy, small, with_suffix,
};

#[test]
fn writes_are_there_after_close_after_drop_and_after_a_kill() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    db.close().unwrap();
    drop(db);
    let db = open(&env, roomy());
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    assert_eq!(db.recovery_report().records, 1);
    db.put("b", "2").unwrap();
    drop(db);
    let db = open(&env, roomy());
    db.put("c", "3").unwrap();
    let killed = env.kill();
    drop(db);
    let db = open(&killed, roomy());
    let expected = [("a", "1"), ("b", "2"), ("c", "3")].map(|(k, v)| (k.into(), v.into()));
    assert_eq!(all(&db), expected);
}

#[test]
fn a_synced_write_survives_a_power_loss_and_later_flushed_ones_are_lost_from_the_end() {
    let (env, db) = open_new(roomy());
    put_synced(&db, "a", "1").unwrap();
    db.put("b", "2").unwrap();
    db.put("c", "3").unwrap();
    for policy in CrashPolicy::all(5) {
        let image = env.crash(policy);
        let db = open(&image, roomy());
        let keys: Vec<String> = all(&db).into_iter().map(|(key, _)| key).collect();
        let prefixes = [vec!["a"], vec!["a", "b"], vec!["a", "b", "c"]];
        assert!(prefixes.iter().any(|prefix| keys == *prefix), "{policy:?}: {keys:?}");
    }
}

/// WAL-11
#[test]
fn opening_and_dying_again_and_again_leaves_a_bounded_number_of_files() {
    let (mut env, db) = open_new(roomy());
    put_synced(&db, "a", "1").unwrap();
    let mut counts = Vec::new();
    for round in 0..20 {
        env = env.kill();
        let db = open(&env, roomy());
        if round >= 10 {
            db.put("b", round.to_string()).unwrap();
        }
        counts.push((count(&env, ".log"), names(&env).len()));
        std::mem::forget(db);
    }
    assert!(counts.iter().all(|(logs, all)| *logs <= 2 && *all < 12), "{counts:?}");
}

#[test]
fn sequence_numbers_go_on_after_a_reopen() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    db.put("a", "2").unwrap();
    drop(db);
    let db = open(&env, roomy());
    assert_eq!(db.stats().last_sequence, 2);
    db.put("a", "3").unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("3"));
    assert_eq!(db.stats().last_sequence, 3);
}

/// WAL-24, WAL-36
#[test]
fn a_log_larger_than_a_memtable_is_recovered_into_several_tables_and_old_logs_go() {
    let (env, db) = open_new(roomy());
    for i in 0..3000 {
        db.put(format!("key{:04}", i % 1500), format!("value {i}")).unwrap();
    }
    assert!(db.stats().log_segments > 1);
    drop(db);
    let db = open(&env, small());
    let report = db.recovery_report();
    assert!(report.tables > 1, "{report}");
    assert_eq!(report.operations, 3000);
    assert_eq!(all(&db).len(), 1500);
    assert_eq!(get(&db, "key0007").as_deref(), Some("value 1507"));
    assert_eq!(count(&env, ".log"), 1, "{:?}", names(&env));
    assert_eq!(count(&env, ".sst"), {
        let stats = db.stats();
        stats.families[0].levels.iter().map(|level| level.files).sum::<usize>()
    });
}

#[test]
fn flushed_data_is_not_replayed_and_its_logs_are_removed() {
    let (env, db) = open_new(roomy());
    for i in 0..2000 {
        db.put(format!("key{i:04}"), "x".repeat(50)).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(db.stats().log_segments, 1);
    assert!(count(&env, ".log") <= 2, "the newest and a spare: {:?}", names(&env));
    db.put("last", "1").unwrap();
    db.close().unwrap();
    let db = open(&env, roomy());
    let report = db.recovery_report();
    assert_eq!(report.operations, 1, "{report}");
    assert_eq!(all(&db).len(), 2001);
}

#[test]
fn a_database_works_on_a_disk_as_it_does_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nested/db");
    let env: std::sync::Arc<dyn Env> = std::sync::Arc::new(treering_env::PosixEnv::new());
    let db = treering_lsm::Db::open(env.clone(), &path, small()).unwrap();
    for i in 0..3000 {
        db.put(format!("key{i:05}"), format!("value {i}")).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let db = treering_lsm::Db::open(env, &path, small()).unwrap();
    assert_eq!(all(&db).len(), 3000);
    let keys: Vec<String> = (0..3000).map(|i| format!("key{i:05}")).collect();
    assert!(db.multi_get(keys).into_iter().all(|answer| answer.unwrap().is_some()));
}

#[test]
fn a_power_loss_right_after_the_first_open_leaves_nothing_or_an_empty_database() {
    let env = MemEnv::new();
    let db = open(&env, roomy());
    for policy in CrashPolicy::all(3) {
        let image = env.crash(policy);
        let again = open(&image, roomy());
        assert!(all(&again).is_empty(), "{policy:?}");
        again.put("a", "1").unwrap();
    }
    drop(db);
}

/// A write that never finished is cut, reported, and stays cut; or refused, if the options say so.
#[test]
fn a_torn_tail_is_cut_and_reported_once_or_refused() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    let torn = env.kill();
    drop(db);
    let log = with_suffix(&torn, ".log").remove(0);
    let path = std::path::Path::new(crate::support::DIR).join(&log);
    let file = torn.open_rw(&path).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let end = (end as u64).next_multiple_of(8);
    file.write_all_at(&[0xab; 21], end).unwrap();
    drop(file);

    let refuse = Options { tail_policy: TailPolicy::RefuseOnAny, ..roomy() };
    let shared = std::sync::Arc::new(torn.clone());
    let error = crate::support::try_open(shared, refuse).unwrap_err();
    let Error::Corruption { path: named, offset, .. } = &error else { panic!("{error}") };
    assert_eq!((named, offset), (&path, &Some(end)));

    let db = open(&torn, roomy());
    let report = db.recovery_report();
    let [cut] = &report.cuts[..] else { panic!("one cut: {report}") };
    assert_eq!((&cut.path, cut.offset, cut.dropped_bytes), (&path, end, 21));
    assert_eq!(db.stats().recovery, report);
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    drop(db);
    let db = open(&torn, roomy());
    assert!(db.recovery_report().cuts.is_empty(), "{}", db.recovery_report());
    assert_eq!(all(&db).len(), 1);
}
