//! Column families.

use std::sync::Arc;

use treering_env::MemEnv;
use treering_lsm::{CfOptions, ColumnFamily, Db, Error, WriteBatch};

use crate::support::{DIR, all, get, open, open_new, roomy, small, text};

fn in_family(family: &ColumnFamily, key: &str) -> Option<String> {
    family.get(key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn families_keep_their_keys_apart_and_survive_a_reopen() {
    let (env, db) = open_new(roomy());
    let users = db.create_column_family("users", roomy().cf).unwrap();
    let mut batch = WriteBatch::new();
    batch.put("k", "default");
    batch.put_in(&users, "k", "users");
    batch.delete_in(&users, "gone");
    db.write(batch).unwrap();
    users.put("only", "here").unwrap();
    assert_eq!(get(&db, "k").as_deref(), Some("default"));
    assert_eq!(in_family(&users, "k").as_deref(), Some("users"));
    assert_eq!(get(&db, "only"), None);
    users.delete("only").unwrap();
    drop((users, db));
    for _ in 0..2 {
        let db = open(&env, roomy());
        assert_eq!(db.column_family_names(), ["default", "users"]);
        let users = db.column_family("users").unwrap();
        assert_eq!(users.name(), "users");
        assert_eq!(in_family(&users, "k").as_deref(), Some("users"));
        assert_eq!(all(&db).len(), 1);
        assert_eq!(users.iter().count(), 1);
        assert!(db.column_family("nobody").is_none());
        db.flush().unwrap();
    }
}

#[test]
fn the_builder_creates_families_that_are_missing_and_gives_options_to_those_there() {
    let env = MemEnv::new();
    let open = || {
        let builder = Db::builder(Arc::new(env.clone()), DIR).options(small());
        builder.family("a", small().cf).family("b", roomy().cf).open().unwrap()
    };
    let db = open();
    assert_eq!(db.column_family_names(), ["default", "a", "b"]);
    db.column_family("a").unwrap().put("k", "v").unwrap();
    drop(db);
    let db = open();
    assert_eq!(in_family(&db.column_family("a").unwrap(), "k").as_deref(), Some("v"));
    let twice = Db::builder(Arc::new(env.clone()), DIR).family("a", small().cf);
    let error = twice.family("a", small().cf).open().unwrap_err();
    assert!(error.to_string().contains("given twice"), "{error}");
}

/// WR-02
#[test]
fn a_batch_with_a_dropped_family_is_refused_whole_before_it_reaches_the_log() {
    let (env, db) = open_new(roomy());
    let dropped = db.create_column_family("dropped", roomy().cf).unwrap();
    db.drop_column_family(&dropped).unwrap();
    let log_size = db.stats().log_size;
    let mut batch = WriteBatch::new();
    batch.put("a", "1");
    batch.put_in(&dropped, "k", "2");
    batch.put("b", "3");
    assert!(matches!(db.write(batch), Err(Error::FamilyDropped { .. })));
    assert!(all(&db).is_empty());
    assert_eq!(db.stats().log_size, log_size);
    db.put("c", "4").unwrap();
    drop((dropped, db));
    let db = open(&env, roomy());
    assert_eq!(all(&db), [("c".into(), "4".into())]);
}

/// CKPT-15
#[test]
fn handles_of_a_dropped_family_say_so_and_reads_that_run_finish() {
    let (env, db) = open_new(small());
    let family = db.create_column_family("f", small().cf).unwrap();
    for i in 0..500 {
        family.put(format!("key{i:04}"), "x".repeat(40)).unwrap();
    }
    let snapshot = db.snapshot();
    let mut running = family.iter();
    let first = text(running.next().unwrap().unwrap());
    assert_eq!(first.0, "key0000");
    db.drop_column_family(&family).unwrap();
    assert_eq!(running.count(), 499);
    let error = family.get("key0000").unwrap_err();
    assert!(matches!(error, Error::FamilyDropped { id: 1 }), "{error}");
    assert_eq!(error.to_string(), "the column family with id 1 was dropped");
    assert!(matches!(family.put("k", "v"), Err(Error::FamilyDropped { .. })));
    assert!(matches!(family.multi_get(["k"])[0], Err(Error::FamilyDropped { .. })));
    assert!(matches!(family.cursor(), Err(Error::FamilyDropped { .. })));
    assert!(matches!(family.iter().next(), Some(Err(Error::FamilyDropped { .. }))));
    assert!(matches!(snapshot.get_in(&family, "key0000"), Err(Error::FamilyDropped { .. })));
    assert!(matches!(db.drop_column_family(&family), Err(Error::FamilyDropped { .. })));
    assert!(matches!(family.compact_range::<&str>(..), Err(Error::FamilyDropped { .. })));
    drop(snapshot);
    db.put("a", "1").unwrap();
    assert_eq!(crate::support::count(&env, ".sst"), 0, "its tables go with the last reader");
}

/// WAL-38, WAL-39
#[test]
fn records_of_a_dropped_family_do_not_come_back_in_a_new_one_of_the_same_name() {
    let (env, db) = open_new(roomy());
    let family = db.create_column_family("f", roomy().cf).unwrap();
    family.put("old", "1").unwrap();
    db.put("kept", "2").unwrap();
    db.drop_column_family(&family).unwrap();
    let family = db.create_column_family("f", roomy().cf).unwrap();
    family.put("new", "3").unwrap();
    let db = open(&env.kill(), roomy());
    let family = db.column_family("f").unwrap();
    let entries: Vec<_> = family.iter().map(|entry| text(entry.unwrap())).collect();
    assert_eq!(entries, [("new".into(), "3".into())]);
    assert_eq!(all(&db), [("kept".into(), "2".into())]);
}

/// CKPT-14
#[test]
fn names_of_any_text_up_to_the_limit_are_kept_and_others_are_refused_at_creation() {
    let (env, db) = open_new(roomy());
    let longest = "n".repeat(255);
    let good = ["a/b", "..", "zero\0byte", "gr\u{fc}n", "CURRENT", &longest];
    for name in good {
        db.create_column_family(name, CfOptions::default()).unwrap().put("k", name).unwrap();
    }
    let before = crate::support::names(&env);
    for name in ["", &"n".repeat(256), &"x".repeat(10 << 10), "..", "default"] {
        let error = db.create_column_family(name, CfOptions::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    assert_eq!(crate::support::names(&env), before);
    drop(db);
    let db = open(&env, roomy());
    for name in good {
        let family = db.column_family(name).unwrap();
        assert_eq!(in_family(&family, "k").as_deref(), Some(name));
    }
}

#[test]
fn default_and_the_families_of_other_databases_cannot_be_dropped() {
    let (_env, db) = open_new(roomy());
    let (_other_env, other) = open_new(roomy());
    let default = db.column_family("default").unwrap();
    assert!(matches!(db.drop_column_family(&default), Err(Error::InvalidArgument(_))));
    let foreign = other.create_column_family("f", roomy().cf).unwrap();
    assert!(matches!(db.drop_column_family(&foreign), Err(Error::InvalidArgument(_))));
    foreign.put("k", "v").unwrap();
}

/// Families of different databases have the same numbers: a handle in the wrong place once read
/// and wrote the family that happened to have its number there.
#[test]
fn handles_of_another_open_database_neither_read_nor_write_the_family_of_their_number() {
    let (env, db) = open_new(roomy());
    let (_other_env, other) = open_new(roomy());
    let own = db.create_column_family("own", roomy().cf).unwrap();
    let foreign = other.create_column_family("foreign", roomy().cf).unwrap();
    own.put("k", "own").unwrap();
    foreign.put("k", "foreign").unwrap();
    let refused = |result: Result<(), Error>| match result {
        Err(Error::InvalidArgument(what)) => what.contains("another open database"),
        _ => false,
    };

    let mut batch = WriteBatch::new();
    batch.put("a", "1");
    batch.put_in(&foreign, "k", "2");
    assert!(refused(db.write(batch)));
    let mut batch = WriteBatch::new();
    batch.delete_in(&own, "k");
    batch.delete_in(&foreign, "k");
    assert!(refused(db.write(batch.clone())));
    assert!(refused(other.write(batch)));

    let answers = db.multi_get_in([(&foreign, "k"), (&own, "k"), (&foreign, "k"), (&own, "x")]);
    let texts: Vec<_> =
        answers.into_iter().map(|answer| answer.map_err(|e| e.to_string())).collect();
    let wrong = "invalid argument: the column family belongs to another open database";
    let found = Some(bytes::Bytes::from("own"));
    assert_eq!(texts, [Err(wrong.into()), Ok(found), Err(wrong.into()), Ok(None)]);

    let snapshot = db.snapshot();
    assert!(refused(snapshot.multi_get_in([(&foreign, "k")]).remove(0).map(drop)));
    assert!(refused(snapshot.get_in(&foreign, "k").map(drop)));
    assert!(refused(snapshot.cursor_in(&foreign).map(drop)));
    for mut range in [
        snapshot.iter_in(&foreign),
        snapshot.prefix_in(&foreign, "k"),
        snapshot.range_in(&foreign, "a".."z"),
    ] {
        assert!(refused(range.next().unwrap().map(drop)));
        assert!(range.next().is_none());
    }
    assert_eq!(in_family(&own, "k").as_deref(), Some("own"));
    assert_eq!(in_family(&foreign, "k").as_deref(), Some("foreign"));
    assert!(all(&db).is_empty());

    db.close().unwrap();
    let reopened = open(&env, roomy());
    let mut batch = WriteBatch::new();
    batch.put_in(&own, "k", "stale");
    assert!(refused(reopened.write(batch)), "a handle does not outlive the open it is of");
}

#[test]
fn a_family_with_one_old_key_does_not_keep_the_log_for_ever() {
    let (env, db) = open_new(small());
    let idle = db.create_column_family("idle", small().cf).unwrap();
    let empty = db.create_column_family("empty", small().cf).unwrap();
    idle.put("old", "1").unwrap();
    for i in 0..6000 {
        db.put(format!("key{:04}", i % 700), "x".repeat(50)).unwrap();
    }
    let stats = db.stats();
    assert!(stats.log_switches > 4, "{stats}");
    assert!(stats.log_segments <= 2, "{stats}");
    drop((idle, empty, db));
    let db = open(&env, small());
    assert_eq!(in_family(&db.column_family("idle").unwrap(), "old").as_deref(), Some("1"));
    assert_eq!(all(&db).len(), 700);
}
