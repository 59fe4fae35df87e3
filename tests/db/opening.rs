//! What an open refuses, and that a refused open changes nothing.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Env, Fault, FaultEnv, FaultKind, FileKind, MemEnv, Op};
use treering_lsm::{Error, Options};

use crate::support::{
    DIR, all, count, fill_device, names, open, open_new, read_file, roomy, small, try_open,
    with_suffix,
};

fn shared(env: &MemEnv) -> Arc<dyn Env> {
    Arc::new(env.clone())
}

fn write_file(env: &dyn Env, name: &str, bytes: &[u8]) {
    let mut file = env.create(&Path::new(DIR).join(name), FileKind::Other).unwrap();
    file.append(bytes).unwrap();
    file.finish().unwrap();
}

/// A closed database with tables and a log.
fn filled() -> MemEnv {
    let (env, db) = open_new(small());
    for i in 0..1000 {
        db.put(format!("key{i:04}"), "v".repeat(30)).unwrap();
    }
    db.flush().unwrap();
    db.put("last", "1").unwrap();
    db.close().unwrap();
    env
}

/// MAN-03
#[test]
fn a_damaged_current_is_refused_and_the_right_one_opens_with_all_keys() {
    let env = filled();
    let good = read_file(&env, &Path::new(DIR).join("CURRENT"));
    let garbage = vec![b'g'; 1 << 20];
    let bad: [&[u8]; 6] = [
        b"",
        &good[..good.len() - 1],
        b"MANIFEST-999999 00000000\n",
        b"../../etc/passwd\n",
        &garbage,
        b"\0\0\0\0",
    ];
    for bytes in bad {
        env.remove(&Path::new(DIR).join("CURRENT")).unwrap();
        write_file(&env, "CURRENT", bytes);
        let before = names(&env);
        let error = try_open(shared(&env), small()).unwrap_err();
        assert!(matches!(error, Error::Corruption { .. }), "{error}");
        assert!(error.to_string().contains("CURRENT"), "{error}");
        assert_eq!(names(&env), before);
    }
    env.remove(&Path::new(DIR).join("CURRENT")).unwrap();
    let before = names(&env);
    for create_if_missing in [true, false] {
        let options = Options { create_if_missing, ..small() };
        let error = try_open(shared(&env), options).unwrap_err();
        assert!(matches!(error, Error::Corruption { .. }), "{error}");
        assert!(error.to_string().contains("CURRENT is missing"), "{error}");
        assert_eq!(names(&env), before);
    }
    write_file(&env, "CURRENT", &good);
    let faults = FaultEnv::new(shared(&env));
    let denied = faults.add(Fault::new(FaultKind::Error(13)).on(Op::Open).path("CURRENT"));
    let error = try_open(Arc::new(faults), small()).unwrap_err();
    assert!(matches!(&error, Error::Io(_)) && error.to_string().contains("CURRENT"), "{error}");
    assert!(denied.fired() > 0);
    assert_eq!(all(&open(&env, small())).len(), 1001);
}

#[test]
fn a_begun_log_without_current_is_a_lost_database_and_not_a_new_one() {
    let (env, db) = open_new(roomy());
    db.put("a", "1").unwrap();
    drop(db);
    for name in names(&env).iter().filter(|n| n.starts_with("MANIFEST") || *n == "CURRENT") {
        env.remove(&Path::new(DIR).join(name)).unwrap();
    }
    let error = try_open(shared(&env), roomy()).unwrap_err().to_string();
    assert!(error.contains("CURRENT is missing, but 00") && error.contains(".log"), "{error}");
}

/// MAN-12
#[test]
fn a_missing_table_is_named_every_time_and_nothing_changes() {
    let env = filled();
    let table = with_suffix(&env, ".sst").remove(0);
    let bytes = read_file(&env, &Path::new(DIR).join(&table));
    env.remove(&Path::new(DIR).join(&table)).unwrap();
    let before = names(&env);
    for _ in 0..2 {
        let error = try_open(shared(&env), small()).unwrap_err();
        assert!(matches!(&error, Error::MissingFile(path) if path.ends_with(&table)), "{error}");
        assert_eq!(names(&env), before);
    }
    write_file(&env, &table, &bytes[..bytes.len() - 1]);
    let error = try_open(shared(&env), small()).unwrap_err();
    assert!(matches!(&error, Error::Corruption { path, .. } if path.ends_with(&table)), "{error}");
    env.remove(&Path::new(DIR).join(&table)).unwrap();
    write_file(&env, &table, &bytes);
    assert_eq!(all(&open(&env, small())).len(), 1001);
}

/// MAN-14
#[test]
fn a_lock_that_cannot_be_made_leaves_nothing_behind() {
    for errno in [28, 13] {
        let env = MemEnv::new();
        let faults = FaultEnv::new(shared(&env));
        let fault = faults.add(Fault::new(FaultKind::Error(errno)).on(Op::Lock));
        let error = try_open(Arc::new(faults.clone()), small()).unwrap_err();
        assert!(error.to_string().contains("LOCK"), "{error}");
        fault.remove();
        let db = try_open(Arc::new(faults), small()).unwrap();
        db.put("a", "1").unwrap();
    }
}

/// MAN-15
#[test]
fn a_second_open_is_refused_and_does_not_release_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let env: Arc<dyn Env> = Arc::new(treering_env::PosixEnv::new());
    let db = treering_lsm::Db::open(env.clone(), &path, roomy()).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for other in [path.clone(), path.join("../db"), link.clone(), path.clone()] {
        let error = treering_lsm::Db::open(env.clone(), &other, roomy()).unwrap_err();
        assert!(matches!(error, Error::Locked(_)), "{}: {error}", other.display());
    }
    db.put("a", "1").unwrap();
    drop(db);
    let db = treering_lsm::Db::open(env, &link, roomy()).unwrap();
    assert_eq!(all(&db).len(), 1);
}

/// MAN-23
#[test]
fn own_left_overs_go_in_the_same_open_and_foreign_names_never() {
    let env = filled();
    let foreign = ["._000012.sst", "notes.txt", "000012.sst.bak", "12.sst", "MANIFEST-x"];
    for name in foreign {
        write_file(&env, name, b"mine");
    }
    env.create_dir_all(&Path::new(DIR).join("subdirectory")).unwrap();
    env.create_dir_all(&Path::new(DIR).join("000777.sst")).unwrap();
    let own = ["CURRENT.tmp", "000900.sst", "MANIFEST-000901", "000001.log"];
    for name in own {
        if !names(&env).contains(&name.to_owned()) {
            write_file(&env, name, b"half");
        }
    }
    let db = open(&env, small());
    assert!(db.recovery_report().removed_files >= own.len(), "{}", db.recovery_report());
    db.compact_range::<&str>(..).unwrap();
    db.close().unwrap();
    let db = open(&env, small());
    let left = names(&env);
    for name in foreign.iter().chain(&["subdirectory", "000777.sst"]) {
        assert!(left.contains(&(*name).to_owned()), "{name} was removed: {left:?}");
    }
    for name in own {
        assert!(!left.contains(&name.to_owned()), "{name} is left: {left:?}");
    }
    assert_eq!(all(&db).len(), 1001);
    db.put("new", "1").unwrap();
    db.flush().unwrap();
    let used = with_suffix(&env, ".sst").into_iter();
    let newest = used.filter_map(|name| name.strip_suffix(".sst")?.parse::<u64>().ok()).max();
    assert!(newest > Some(901), "the numbers of stray files are not used again: {newest:?}");
}

#[test]
fn what_is_not_a_database_is_said_with_what_to_do() {
    let env = MemEnv::new();
    let never = Options { create_if_missing: false, ..small() };
    let error = try_open(shared(&env), never.clone()).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    assert!(error.to_string().contains("set create_if_missing"), "{error}");
    assert_eq!(env.operations(), 0);

    env.create_dir_all(DIR.as_ref()).unwrap();
    write_file(&env, "notes.txt", b"mine");
    let error = try_open(shared(&env), never).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    assert_eq!(names(&env), ["notes.txt"], "not even a LOCK");

    let file = Path::new(DIR).join("notes.txt");
    let error = treering_lsm::Db::open(shared(&env), &file, small()).unwrap_err();
    assert!(error.to_string().contains("is not a directory"), "{error}");

    let db = open(&env, small());
    assert!(db.recovery_report().created);
    db.put("a", "1").unwrap();
    drop(db);
    assert!(names(&env).contains(&"notes.txt".to_owned()));
    let fresh = Options { error_if_exists: true, ..small() };
    let error = try_open(shared(&env), fresh).unwrap_err();
    assert!(error.to_string().contains("error_if_exists"), "{error}");
    assert_eq!(all(&open(&env, small())).len(), 1);
}

/// MAN-16, WAL-04: every operation of an open fails once, of a database with a log to replay.
#[test]
fn an_open_that_fails_anywhere_leaves_a_database_that_opens() {
    let (source, db) = open_new(small());
    for i in 0..300 {
        db.put(format!("key{i:04}"), "v".repeat(30)).unwrap();
    }
    db.flush().unwrap();
    for i in 300..600 {
        db.put(format!("key{i:04}"), "v".repeat(30)).unwrap();
    }
    let mut failed = 0;
    for nth in 1.. {
        let env = source.kill();
        let faults = FaultEnv::new(shared(&env));
        let fault = faults.add(Fault::new(FaultKind::Error(5)).nth(nth));
        let result = try_open(Arc::new(faults), small());
        let fired = fault.fired();
        fault.remove();
        if fired == 0 {
            assert_eq!(all(&result.unwrap()).len(), 600);
            break;
        }
        // A fault in the removal of left-overs is no error.
        failed += usize::from(result.is_err());
        drop(result);
        let db = open(&env, small());
        assert_eq!(all(&db).len(), 600, "after a fault in operation {nth}");
        assert!(count(&env, ".log") <= 2, "{:?}", names(&env));
        db.put("more", "1").unwrap();
    }
    assert!(failed > 20, "{failed} operations of an open were failed only");
}

/// MAN-01
#[test]
fn creating_a_database_that_fails_anywhere_can_be_tried_again() {
    for nth in 1.. {
        let env = MemEnv::new();
        let faults = FaultEnv::new(shared(&env));
        let fault = faults.add(Fault::new(FaultKind::Error(28)).nth(nth));
        let result = try_open(Arc::new(faults), small());
        if fault.fired() == 0 {
            assert!(nth > 10);
            break;
        }
        drop(result);
        let db = open(&env, small());
        db.put("a", "1").unwrap();
        drop(db);
        assert_eq!(all(&open(&env, small())).len(), 1, "after a fault in operation {nth}");
    }
}

/// BG-08
#[test]
fn a_full_disk_is_opened_by_removing_left_overs_or_refused_without_a_change() {
    let (env, db) = open_new(roomy());
    for i in 0..200 {
        db.put(format!("key{i:04}"), "v".repeat(30)).unwrap();
    }
    drop(db);
    fill_device(&env);
    let before = env.fingerprint();
    let error = try_open(shared(&env), roomy()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(env.fingerprint(), before);
    // Numbers that no database reaches: somebody else's, like any other name.
    let foreign = [format!("{}.sst", u64::MAX), format!("MANIFEST-{}", (1_u64 << 55) + 1)];
    env.set_capacity(u64::MAX);
    write_file(&env, &foreign[0], &vec![1; 1 << 20]);
    fill_device(&env);
    let before = env.fingerprint();
    let error = try_open(shared(&env), roomy()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(env.fingerprint(), before);
    env.set_capacity(u64::MAX);
    write_file(&env, &foreign[1], b"mine");
    write_file(&env, "000900.sst", &vec![1; 1 << 20]);
    fill_device(&env);
    let db = try_open(shared(&env), roomy()).unwrap();
    assert_eq!(all(&db).len(), 200);
    let left = names(&env);
    assert!(!left.contains(&"000900.sst".to_owned()));
    for name in foreign {
        assert!(left.contains(&name), "{name} was removed: {left:?}");
    }
}
