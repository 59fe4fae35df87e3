//! Snapshots and iterators see one moment, whatever happens after it.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_lsm::{Error, Snapshot};

use crate::support::{all, count, get, open, open_new, roomy, small, text};

type Model = BTreeMap<String, String>;

fn check(snapshot: &Snapshot, model: &Model, context: &str) {
    let found: Model = snapshot.iter().map(|entry| text(entry.unwrap())).collect();
    assert_eq!(&found, model, "{context}: forward");
    let back: Model = snapshot.iter().rev().map(|entry| text(entry.unwrap())).collect();
    assert_eq!(&back, model, "{context}: backward");
    let keys: Vec<String> = (0..60).map(|i| format!("key{i:02}")).collect();
    for (key, answer) in keys.iter().zip(snapshot.multi_get(&keys)) {
        let answer = answer.unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap());
        assert_eq!(answer.as_ref(), model.get(key), "{context}: multi_get {key}");
        let single = snapshot.get(key).unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap());
        assert_eq!(single, answer, "{context}: get {key}");
    }
}

/// SNAP-01, SNAP-05
#[test]
fn every_snapshot_reads_its_own_state_over_flushes_and_compactions() {
    for seed in [11, 12] {
        let mut random = StdRng::seed_from_u64(seed);
        let (_env, db) = open_new(small());
        let mut model = Model::new();
        let mut alive: Vec<(Snapshot, Model)> = Vec::new();
        for step in 0..2500 {
            let key = format!("key{:02}", random.random_range(0..60));
            if random.random_range(0..3) == 0 {
                db.delete(&key).unwrap();
                model.remove(&key);
            } else {
                let value = format!("{step}{}", "y".repeat(40));
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            match random.random_range(0..100) {
                0..4 => alive.push((db.snapshot(), model.clone())),
                4..7 if !alive.is_empty() => {
                    let (snapshot, seen) = alive.swap_remove(random.random_range(0..alive.len()));
                    check(&snapshot, &seen, &format!("seed {seed}, step {step}"));
                }
                7 => db.flush().unwrap(),
                8 => db.compact_range::<&str>(..).unwrap(),
                _ => {}
            }
        }
        for (snapshot, seen) in &alive {
            check(snapshot, seen, &format!("seed {seed}, at the end"));
        }
        check(&db.snapshot(), &model, "the newest");
        assert_eq!(db.stats().snapshots, alive.len());
    }
}

#[test]
fn versions_that_no_snapshot_sees_any_more_leave_at_the_next_compaction_of_their_range() {
    let (_env, db) = open_new(roomy());
    let bytes = |db: &treering_lsm::Db| -> u64 {
        db.stats().families[0].levels.iter().map(|level| level.bytes).sum()
    };
    db.put("a", "1".repeat(5000)).unwrap();
    let snapshot = db.snapshot();
    db.put("a", "2").unwrap();
    db.put("b", "3".repeat(5000)).unwrap();
    db.delete("b").unwrap();
    db.compact_range::<&str>(..).unwrap();
    assert_eq!(snapshot.get("a").unwrap().unwrap().len(), 5000);
    assert!(bytes(&db) > 5000);
    drop(snapshot);
    db.compact_range::<&str>(..).unwrap();
    assert!(bytes(&db) < 3000, "{}", db.stats());
    assert_eq!(all(&db), [("a".into(), "2".into())]);
}

/// SNAP-03
#[test]
fn a_snapshot_between_a_put_and_its_deletion_keeps_the_put_down_to_the_last_level() {
    let (env, db) = open_new(roomy());
    db.put("k", "30").unwrap();
    let between = db.snapshot();
    db.delete("k").unwrap();
    let after = db.snapshot();
    for _ in 0..3 {
        db.compact_range::<&str>(..).unwrap();
        assert_eq!(between.get("k").unwrap().as_deref(), Some(&b"30"[..]));
        assert_eq!(after.get("k").unwrap(), None);
        assert_eq!(get(&db, "k"), None);
    }
    drop(between);
    db.compact_range::<&str>(..).unwrap();
    drop(after);
    assert_eq!(get(&db, "k"), None);
    db.put("other", "1").unwrap();
    assert_eq!(count(&env, ".sst"), 0, "nothing is left to keep");
}

/// LIFE-06
#[test]
fn snapshots_and_iterators_keep_the_database_open_when_its_handle_is_dropped() {
    let (env, db) = open_new(small());
    for i in 0..1000 {
        db.put(format!("key{i:04}"), "z".repeat(30)).unwrap();
    }
    let snapshot = db.snapshot();
    let mut range = db.range("key0100".."key0200");
    range.next().unwrap().unwrap();
    drop(db);
    let shared = std::sync::Arc::new(env.clone());
    let refused = crate::support::try_open(shared, small()).unwrap_err();
    assert!(matches!(refused, Error::Locked(_)), "{refused}");
    assert_eq!(snapshot.iter().count(), 1000);
    drop(snapshot);
    assert_eq!(range.count(), 99);
    let db = open(&env, small());
    assert_eq!(all(&db).len(), 1000);
}

#[test]
fn after_close_every_handle_says_closed() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    let other = db.clone();
    db.close().unwrap();
    db.close().unwrap();
    assert!(matches!(other.get("a"), Err(Error::Closed)));
    assert!(matches!(other.put("a", "2"), Err(Error::Closed)));
    assert!(matches!(other.multi_get(["a"])[0], Err(Error::Closed)));
    assert!(matches!(snapshot.get("a"), Err(Error::Closed)));
    assert!(matches!(snapshot.iter().next(), Some(Err(Error::Closed))));
    assert!(matches!(other.flush(), Err(Error::Closed)));
    assert!(matches!(other.sync_wal(), Err(Error::Closed)));
    assert!(matches!(other.compact_range::<&str>(..), Err(Error::Closed)));
    assert!(matches!(other.create_column_family("f", roomy().cf), Err(Error::Closed)));
    let again = open(&env, roomy());
    drop((snapshot, other, db));
    assert_eq!(get(&again, "a").as_deref(), Some("1"), "late drops do not disturb the new owner");
    again.put("b", "2").unwrap();
}
