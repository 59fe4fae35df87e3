//! Cases of the manifest, the directory and the operations over several files.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use treering_env::{CrashPolicy, Env, Fault, FaultEnv, FaultKind, FileKind, MemEnv, Op, When};
use treering_lsm::{Db, Error};

use crate::support::{
    DIR, all, count, get, names, open, open_new, put_synced, read_file, roomy, small, try_open,
    with_suffix,
};

/// Every file of the directory with its content.
fn contents(env: &dyn Env, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in env.list(dir).unwrap() {
        let bytes = read_file(env, &dir.join(&entry.name));
        files.insert(entry.name.into_string().unwrap(), bytes);
    }
    files
}

fn manifest_of(env: &dyn Env) -> String {
    let current = read_file(env, &Path::new(DIR).join("CURRENT"));
    let text = String::from_utf8(current).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

/// ENV-10, what the engine makes of it: an error is not an absence, and nothing is created.
#[test]
fn a_current_or_manifest_that_cannot_be_reached_is_an_error_and_no_new_database() {
    let (env, db) = open_new(small());
    put_synced(&db, "a", "1").unwrap();
    db.close().unwrap();
    drop(db);
    let manifest = manifest_of(&env);
    for name in ["CURRENT", &manifest] {
        for errno in [13, 20, 5] {
            let mut fired = 0;
            for op in [Op::Metadata, Op::Open, Op::Read] {
                let env = env.kill();
                let faults = FaultEnv::new(Arc::new(env.clone()));
                let rule = faults.add(Fault::new(FaultKind::Error(errno)).on(op).path(name));
                let before = env.fingerprint();
                let result = try_open(Arc::new(faults), small());
                if rule.fired() == 0 {
                    continue;
                }
                fired += 1;
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Io(_)), "{op:?} {name}: {error}");
                assert!(error.to_string().contains(name), "{op:?} {name}: {error}");
                assert_eq!(env.fingerprint(), before, "{op:?} {name} {errno}");
            }
            assert!(fired >= 2, "{name}: {fired}");
        }
    }
    assert_eq!(all(&open(&env, small())).len(), 1);
}

/// MAN-10: the edit that names a table is lost in one recovery and is back in the next, which
/// follows a power loss at any operation of the first.
#[test]
fn an_edit_that_surfaces_late_finds_its_table_untouched() {
    let (env, db) = open_new(roomy());
    for i in 0..50 {
        put_synced(&db, &format!("key{i:02}"), "v").unwrap();
    }
    let path = Path::new(DIR).join(manifest_of(&env));
    let before = read_file(&env, &path);
    db.flush().unwrap();
    let after = read_file(&env, &path);
    let image = env.kill();
    drop(db);
    assert!(after.len() >= before.len() && after != before);
    let with_manifest = |env: &MemEnv, bytes: &[u8]| {
        let file = env.open_rw(&path).unwrap();
        file.set_size(0).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync().unwrap();
    };
    let hidden = image.kill();
    with_manifest(&hidden, &before);
    let measured = hidden.kill();
    let start = measured.operations();
    assert_eq!(all(&open(&measured, roomy())).len(), 50, "from the log");
    for operation in 0..measured.operations() - start {
        for policy in CrashPolicy::all(operation) {
            let env = hidden.kill();
            env.cut_power_at(env.operations() + operation, When::Inside);
            drop(try_open(Arc::new(env.clone()), roomy()));
            let env = env.crash(policy);
            if env.metadata(&path).unwrap().is_some() {
                with_manifest(&env, &after);
            }
            let context = format!("operation {operation}, {policy:?}");
            for _ in 0..2 {
                let db = try_open(Arc::new(env.clone()), roomy())
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(all(&db).len(), 50, "{context}");
                put_synced(&db, "more", "1").unwrap();
                db.delete("more").unwrap();
                db.flush().unwrap();
            }
        }
    }
}

/// MAN-11
#[test]
fn after_a_family_is_dropped_names_are_made_durable_as_before() {
    let (env, db) = open_new(roomy());
    let one = db.create_column_family("one", roomy().cf).unwrap();
    let two = db.create_column_family("two", roomy().cf).unwrap();
    one.put("k", "1").unwrap();
    two.put("k", "2").unwrap();
    db.drop_column_family(&one).unwrap();
    drop(one);
    two.put("l", "3").unwrap();
    db.flush().unwrap();
    for round in 0..3 {
        for policy in CrashPolicy::all(round) {
            let image = env.crash(policy);
            let db = open(&image, roomy());
            assert_eq!(db.column_family_names(), ["default", "two"], "{policy:?}");
            assert_eq!(db.column_family("two").unwrap().iter().count(), 2, "{policy:?}");
        }
        if round == 1 {
            // Past this point the manifest is another one.
            drop(two.clone());
            db.close().unwrap();
            drop(open(&env, roomy()));
        }
    }
}

/// MAN-17
#[test]
fn a_first_synced_write_survives_in_a_directory_whose_parents_were_made_too() {
    let env = MemEnv::new();
    let path = "new/deeper/db";
    let db = Db::open(Arc::new(env.clone()), path, roomy()).unwrap();
    put_synced(&db, "a", "1").unwrap();
    for policy in CrashPolicy::all(1) {
        let image = env.crash(policy);
        let never = treering_lsm::Options { create_if_missing: false, ..roomy() };
        let db = Db::open(Arc::new(image), path, never).unwrap();
        assert_eq!(all(&db).len(), 1, "{policy:?}");
    }
}

/// MAN-21: over a loop of recoveries that the power cuts, no durable name of a file is ever given
/// to another file, and sequence numbers only grow.
#[test]
fn numbers_only_grow_over_failed_and_finished_recoveries() {
    let (mut env, db) = open_new(small());
    put_synced(&db, "a", "1").unwrap();
    drop(db);
    let number = |name: &str| -> Option<u64> {
        let digits = name.strip_prefix("MANIFEST-").unwrap_or(name);
        digits.split('.').next().unwrap().parse().ok()
    };
    let (mut highest, mut sequence, mut failed) = (0, 0, 0);
    let mut known = Vec::new();
    for round in 0..120_u64 {
        env = env.kill();
        env.cut_power_at(env.operations() + round * 7 % 45, When::Inside);
        let work = || -> Result<(), Error> {
            let db = try_open(Arc::new(env.clone()), small())?;
            put_synced(&db, &format!("key{round}"), "v")?;
            db.flush()
        };
        failed += u64::from(work().is_err());
        let policy = CrashPolicy::all(round)[usize::try_from(round % 10).unwrap()];
        env = env.crash(policy);
        let mut now = names(&env);
        now.retain(|name| number(name).is_some());
        for name in &now {
            let fresh = number(name).unwrap() > highest;
            assert!(fresh || known.contains(name), "round {round}: {name} after {highest}");
        }
        highest = now.iter().filter_map(|name| number(name)).fold(highest, u64::max);
        known.extend(now);
        let image = env.kill();
        let db = open(&image, small());
        assert!(db.stats().last_sequence >= sequence, "round {round}");
        sequence = db.stats().last_sequence;
    }
    assert!(failed > 20 && highest > 40, "{failed} failed, {highest}");
}

/// MAN-24
#[test]
fn a_database_that_was_moved_touches_nothing_at_its_old_place() {
    let (env, db) = open_new(small());
    let fill = |db: &Db, value: &str| {
        for i in 0..600 {
            db.put(format!("key{i:04}"), format!("{value}{}", "v".repeat(40))).unwrap();
        }
    };
    fill(&db, "moved");
    db.close().unwrap();
    drop(db);
    let moved = Path::new("/data/moved");
    env.rename(DIR.as_ref(), moved).unwrap();
    let other = open(&env, small());
    fill(&other, "other");
    other.close().unwrap();
    drop(other);
    let before = contents(&env, DIR.as_ref());
    let db = Db::open(Arc::new(env.clone()), moved, small()).unwrap();
    assert!(all(&db).iter().all(|(_, value)| value.starts_with("moved")));
    fill(&db, "again");
    db.compact_range::<&str>(..).unwrap();
    db.close().unwrap();
    drop(db);
    assert!(contents(&env, DIR.as_ref()) == before, "the old place was touched");
    assert!(all(&open(&env, small())).iter().all(|(_, value)| value.starts_with("other")));
}

/// MAN-25
#[test]
fn a_handle_dropped_by_a_panic_or_closed_after_an_error_leaves_everything_to_recovery() {
    let env = MemEnv::new();
    let files = |env: &MemEnv| names(env).len();
    let mut counts = Vec::new();
    for round in 0..12 {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let db = open(&env, roomy());
            let _cursor = db.cursor().unwrap();
            db.put(format!("panic{round:02}"), "1").unwrap();
            panic!("the caller's");
        }));
        assert!(unwound.is_err());
        let faults = FaultEnv::new(Arc::new(env.clone()));
        let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
        assert_eq!(db.recovery_report().records, 1, "{}", db.recovery_report());
        db.put(format!("error{round:02}"), "1").unwrap();
        faults.add(Fault::new(FaultKind::Error(5)).on(Op::Sync).path(".log").times(1));
        put_synced(&db, "unknown", "1").unwrap_err();
        db.close().unwrap_err();
        drop(db);
        let db = open(&env, roomy());
        assert!(db.recovery_report().records >= 1, "{}", db.recovery_report());
        let entries = all(&db);
        let kept = entries.iter().filter(|(key, _)| key != "unknown").count();
        assert_eq!(kept, 2 * (round + 1), "{entries:?}");
        drop(db);
        counts.push(files(&env));
    }
    let tables = count(&env, ".sst");
    assert!(counts[11] - tables <= counts[1] + 2, "files pile up: {counts:?}");
}

/// WR-11: creating and dropping a family with each operation failing once; what was refused stays
/// refused, or stays done, whatever is committed after it.
#[test]
fn a_family_whose_creation_or_drop_failed_is_there_whole_or_not_at_all() {
    for drops in [false, true] {
        let mut failed = 0;
        for nth in 1.. {
            let env = MemEnv::new();
            let faults = FaultEnv::new(Arc::new(env.clone()));
            let db = try_open(Arc::new(faults.clone()), roomy()).unwrap();
            let old = db.create_column_family("old", roomy().cf).unwrap();
            old.put("k", "old").unwrap();
            let fault = faults.add(Fault::new(FaultKind::Error(5)).nth(nth));
            let result = if drops {
                db.drop_column_family(&old)
            } else {
                db.create_column_family("new", roomy().cf).map(drop)
            };
            let fired = fault.fired();
            fault.remove();
            if fired == 0 {
                break;
            }
            failed += u32::from(result.is_err());
            let acknowledged = put_synced(&db, "after", "1").is_ok();
            drop((old, db));
            let db = open(&env, roomy());
            let names = db.column_family_names();
            let context = format!("drops: {drops}, operation {nth}, {result:?}: {names:?}");
            assert!(!acknowledged || get(&db, "after").is_some(), "{context}");
            match (drops, result) {
                (true, Ok(())) => assert_eq!(names, ["default"], "{context}"),
                (false, Ok(())) => assert_eq!(names, ["default", "old", "new"], "{context}"),
                (_, Err(_)) => {}
            }
            if let Some(old) = db.column_family("old") {
                assert_eq!(old.iter().count(), 1, "{context}");
            } else {
                assert!(drops, "{context}");
            }
            if let Some(new) = db.column_family("new") {
                assert_eq!(new.iter().count(), 0, "{context}");
                new.put("k", "v").unwrap();
            }
        }
        assert!(failed >= 1, "drops: {drops}: no operation was failed");
    }
}

/// HOST-07, for a directory or a text in the place of each file.
#[test]
fn what_stands_in_the_place_of_a_file_of_ours_is_refused_and_left_alone() {
    let (env, db) = open_new(small());
    for i in 0..300 {
        db.put(format!("key{i:04}"), "v".repeat(40)).unwrap();
    }
    db.flush().unwrap();
    db.put("last", "1").unwrap();
    let image = env.kill();
    drop(db);
    let mut refused = 0;
    for name in names(&image) {
        for is_dir in [true, false] {
            let path = Path::new(DIR).join(&name);
            if name == "LOCK" && !is_dir {
                continue;
            }
            let env = image.kill();
            env.remove(&path).unwrap();
            if is_dir {
                env.create_dir_all(&path).unwrap();
            } else {
                let mut file = env.create(&path, FileKind::Other).unwrap();
                file.append(b"../../etc/passwd and more text than a header has, by far\n").unwrap();
                file.finish().unwrap();
            }
            let before = names(&env);
            let is_log = with_suffix(&image, ".log").contains(&name);
            match try_open(Arc::new(env.clone()), small()) {
                Err(_) => {
                    refused += 1;
                    assert_eq!(names(&env), before, "{name}");
                }
                // A spare segment is nobody's.
                Ok(db) => {
                    assert!(is_log, "{name} was not missed");
                    assert_eq!(all(&db).len(), 301, "{name}");
                }
            }
        }
    }
    assert!(refused > 6, "{refused}");
}
