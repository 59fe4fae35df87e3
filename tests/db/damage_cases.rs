//! Cases of damage and failing devices that need a whole database.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_env::{Env, ErrorKind, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Db, Error, Options, inspect};

use crate::support::{
    DIR, all, count, fill_device, get, names, open, open_new, read_file, roomy, small, text,
    try_open, with_suffix,
};

type Map = BTreeMap<String, String>;

/// Puts bytes in the place of a file's content.
fn rewrite(env: &MemEnv, path: &Path, bytes: &[u8]) {
    let file = env.open_rw(path).unwrap();
    file.set_size(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

fn uncached() -> Options {
    Options { block_cache_size: 0, ..small() }
}

/// Nobody should put back from a copy what is whole.
#[test]
fn a_file_that_may_not_be_read_is_no_damage_to_verify() {
    for suffix in [".sst", ".log", "CURRENT"] {
        let (env, db) = open_new(small());
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        db.put("b", "2").unwrap();
        drop(db);
        let faults = FaultEnv::new(Arc::new(env.clone()));
        let denied = faults.add(Fault::new(FaultKind::Error(13)).on(Op::Open).path(suffix));
        let error = inspect::verify(Arc::new(faults.clone()), DIR).unwrap_err();
        assert!(matches!(&error, Error::Io(io) if io.kind() == ErrorKind::Denied), "{error}");
        assert!(error.to_string().contains(suffix) && denied.fired() > 0, "{error}");
        denied.remove();
        let found = inspect::verify(Arc::new(faults), DIR).unwrap();
        assert!(found.damages.is_empty() && found.files > 2, "{found:?}");
    }
}

fn tables(env: &MemEnv) -> Vec<PathBuf> {
    with_suffix(env, ".sst").iter().map(|name| Path::new(DIR).join(name)).collect()
}

/// BG-04, MGET-11: one block of a table is zeroed while the database is open.
#[test]
fn a_damaged_block_fails_its_keys_and_every_compaction_and_nothing_else() {
    let (env, db) = open_new(Options { block_cache_size: 0, ..roomy() });
    for i in 0..400 {
        db.put(format!("key{i:03}"), "v".repeat(40)).unwrap();
    }
    db.flush().unwrap();
    let [table] = &tables(&env)[..] else { panic!("one table") };
    let good = read_file(&env, table);
    let mut bad = good.clone();
    bad[1024..1024 + 256].fill(0);
    rewrite(&env, table, &bad);
    for i in (0..400).step_by(2) {
        db.put(format!("key{i:03}"), "w").unwrap();
    }
    db.flush().unwrap();
    let before = names(&env);
    for _ in 0..2 {
        let error = db.compact_range::<&str>(..).unwrap_err();
        let Error::Corruption { path, offset: Some(offset), .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(path, table);
        assert!((768..1280).contains(offset), "{error}");
        assert_eq!(names(&env), before, "inputs stay and nothing is added");
        assert!(db.stats().compaction_error.unwrap().contains("corruption"));
    }
    let keys: Vec<String> = (0..400).map(|i| format!("key{i:03}")).collect();
    let mut damaged = 0;
    for (i, answer) in db.multi_get(&keys).into_iter().enumerate() {
        let single = db.get(&keys[i]);
        match (answer, single) {
            (Ok(one), Ok(other)) => {
                assert_eq!(one, other);
                assert_eq!(one.unwrap().len(), if i % 2 == 0 { 1 } else { 40 });
            }
            (Err(Error::Corruption { path, offset, .. }), Err(_)) => {
                assert_eq!(&path, table);
                assert!(offset.is_some());
                damaged += 1;
            }
            (answer, single) => panic!("{}: {answer:?}, {single:?}", keys[i]),
        }
    }
    assert!((1..15).contains(&damaged), "{damaged} keys of one or two blocks");
    db.put("more", "1").unwrap();
    drop(db);
    let db = open(&env, Options { block_cache_size: 0, ..roomy() });
    assert!(db.compact_range::<&str>(..).is_err(), "the damage does not vanish");
    rewrite(&env, table, &good);
    drop(db);
    let db = open(&env, roomy());
    db.compact_range::<&str>(..).unwrap();
    assert_eq!(all(&db).len(), 401);
}

/// BG-07: each open and each read of a compaction over several tables of a level fails once; so
/// does each read of a scan.
#[test]
fn no_table_is_left_out_of_a_compaction_or_scan_because_it_cannot_be_read() {
    for op in [Op::Read, Op::Open] {
        let mut failed = 0;
        for nth in 1.. {
            let faults = FaultEnv::new(Arc::new(MemEnv::new()));
            let options = Options { max_open_tables: 16, ..uncached() };
            let db = try_open(Arc::new(faults.clone()), options).unwrap();
            for round in 0..2 {
                for i in 0..300 {
                    db.put(format!("key{i:03}"), format!("{round}{}", "v".repeat(60))).unwrap();
                }
                if round == 0 {
                    db.compact_range::<&str>(..).unwrap();
                }
            }
            db.flush().unwrap();
            let fault = faults.add(Fault::new(FaultKind::Error(5)).on(op).path(".sst").nth(nth));
            let result = db.compact_range::<&str>(..);
            let fired = fault.fired();
            fault.remove();
            if fired == 0 {
                result.unwrap();
                break;
            }
            failed += 1;
            assert!(result.is_err(), "{op:?} {nth}: done without what it could not read");
            let check = |when: &str| {
                let entries = all(&db);
                assert_eq!(entries.len(), 300, "{op:?} {nth}, {when}");
                assert!(entries.iter().all(|(_, value)| value.starts_with('1')), "{op:?} {nth}");
            };
            check("after the failure");
            if nth % 4 == 0 {
                db.compact_range::<&str>(..).unwrap();
                check("after the next compaction");
            }
            let fault = faults.add(Fault::new(FaultKind::Error(5)).on(op).path(".sst").nth(nth));
            let entries: Vec<_> = db.iter().collect();
            assert_eq!(entries.last().unwrap().is_err(), fault.fired() > 0, "{op:?} {nth}");
        }
        assert!(failed > 3, "{op:?}: {failed}");
    }
}

/// BG-01, for devices that are full by quota, or turn read-only.
#[test]
fn a_quota_or_a_read_only_medium_refuses_writes_and_loses_nothing() {
    for errno in [122, 30] {
        for op in [Op::Append, Op::Create, Op::Prepare] {
            let env = MemEnv::new();
            let faults = FaultEnv::new(Arc::new(env.clone()));
            let db = try_open(Arc::new(faults.clone()), small()).unwrap();
            for i in 0..50 {
                db.put(format!("before{i:03}"), "v".repeat(40)).unwrap();
            }
            let fault = faults.add(Fault::new(FaultKind::Error(errno)).on(op));
            let mut acknowledged = 50;
            let mut refused = 0;
            for i in 0..3000 {
                match db.put(format!("during{i:04}"), "v".repeat(40)) {
                    Ok(()) if refused > 0 && db.stats().poisoned.is_some() => {
                        panic!("{errno} {op:?}: acknowledged after the log was given up")
                    }
                    Ok(()) => acknowledged += 1,
                    Err(_) => refused += 1,
                }
                if refused == 20 {
                    break;
                }
            }
            assert!(refused > 0, "{errno} {op:?}: the fault was never met");
            assert_eq!(all(&db).len(), acknowledged, "{errno} {op:?}: reads go on");
            fault.remove();
            let works = db.put("after", "1").is_ok();
            assert_eq!(works, db.stats().poisoned.is_none(), "{errno} {op:?}");
            acknowledged += usize::from(works);
            let before = all(&db);
            drop(db);
            let db = open(&env, small());
            let after = all(&db);
            assert!(before.iter().all(|entry| after.contains(entry)), "{errno} {op:?}");
            // Of the first write that failed nobody knows.
            assert!(after.len() - acknowledged <= 1, "{errno} {op:?}");
            db.put("works", "1").unwrap();
        }
    }
}

/// A small database with tables in two levels and a log, and what is in it.
fn sample() -> (MemEnv, Map) {
    let (env, db) = open_new(small());
    for i in 0..90 {
        db.put(format!("key{i:02}"), format!("{i} {}", "v".repeat(20))).unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    for i in (0..90).step_by(3) {
        db.put(format!("key{i:02}"), format!("{i} new")).unwrap();
    }
    db.flush().unwrap();
    for i in (0..90).step_by(9) {
        db.put(format!("key{i:02}"), format!("{i} newest")).unwrap();
    }
    let map = all(&db).into_iter().collect();
    db.close().unwrap();
    (env, map)
}

/// Whether a damaged database answers rightly or not at all; how many reads failed.
fn use_up(db: &Db, map: &Map, context: &str) -> usize {
    let mut failed = 0;
    for (key, value) in map {
        match db.get(key) {
            Ok(found) => {
                let found = found.map(|v| String::from_utf8(v.to_vec()).unwrap());
                assert_eq!(found.as_ref(), Some(value), "{context}: {key}");
            }
            Err(error) => {
                assert!(names_a_file(&error), "{context}: {error}");
                failed += 1;
            }
        }
    }
    let entries: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    for backward in [false, true] {
        let mut shown = Vec::new();
        let scan: Vec<_> = if backward { db.iter().rev().collect() } else { db.iter().collect() };
        let mut whole = true;
        for item in scan {
            match item {
                Ok(entry) => shown.push(text(entry)),
                Err(error) => {
                    assert!(names_a_file(&error), "{context}: {error}");
                    whole = false;
                    failed += 1;
                }
            }
        }
        if backward {
            shown.reverse();
        }
        let part = if backward { entries.ends_with(&shown) } else { entries.starts_with(&shown) };
        assert!(part, "{context}: backward: {backward}");
        assert!(!whole || shown.len() == entries.len(), "{context}: backward: {backward}");
    }
    if let Err(error) = db.compact_range::<&str>(..) {
        assert!(names_a_file(&error), "{context}: {error}");
        failed += 1;
    }
    failed
}

fn names_a_file(error: &Error) -> bool {
    matches!(error, Error::Corruption { .. } | Error::MissingFile(_))
        || matches!(error, Error::UnsupportedVersion { .. })
}

/// HOST-05: a bit of each byte of each file of a database that was closed (of long files, of every
/// fifth byte), another bit from byte to byte: every answer is right or an error that names a file.
#[test]
fn a_flipped_bit_in_any_file_gives_right_answers_or_an_error() {
    let (env, map) = sample();
    let (mut refused, mut failed) = (0, 0);
    for name in names(&env) {
        let path = Path::new(DIR).join(&name);
        let bytes = read_file(&env, &path);
        for at in (0..bytes.len()).step_by(if bytes.len() > 1000 { 5 } else { 1 }) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let image = env.kill();
            rewrite(&image, &path, &damaged);
            let context = format!("{name} byte {at}");
            match try_open(Arc::new(image.clone()), uncached()) {
                Ok(db) => failed += use_up(&db, &map, &context),
                Err(error) => {
                    assert!(names_a_file(&error), "{context}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 200 && failed > 200, "{refused} refused, {failed} failed");
}

/// HOST-04: files flipped, cut, spliced, doubled, exchanged or removed at random: the database
/// answers or says what is wrong, within the time of the test, and never panics.
#[test]
fn random_damage_to_the_whole_directory_never_panics() {
    let (env, _) = sample();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..600_u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let image = env.kill();
        let all_names = names(&env);
        let any = |random: &mut StdRng| {
            Path::new(DIR).join(&all_names[random.random_range(0..all_names.len())])
        };
        for _ in 0..random.random_range(1..4) {
            let (path, other) = (any(&mut random), any(&mut random));
            if image.metadata(&path).unwrap().is_none() {
                continue;
            }
            let mut bytes = read_file(&image, &path);
            let length = bytes.len();
            let at = random.random_range(0..length.max(1));
            match random.random_range(0..7) {
                0 if length > 0 => bytes[at] ^= 1 << random.random_range(0..8),
                1 => bytes.truncate(at),
                2 => random.fill(&mut bytes[at..]),
                3 => bytes.extend_from_within(at..),
                4 => {
                    bytes.truncate(at);
                    bytes.extend(read_file(&env, &other));
                }
                5 => bytes = read_file(&env, &other),
                _ => {
                    image.remove(&path).unwrap();
                    continue;
                }
            }
            rewrite(&image, &path, &bytes);
        }
        match try_open(Arc::new(image), uncached()) {
            Ok(db) => {
                opened += 1;
                let (forward, backward) = (db.iter().count(), db.iter().rev().count());
                assert!(forward <= 200 && backward <= 200, "seed {seed}");
                let _either = (db.compact_range::<&str>(..), db.close());
            }
            Err(error) => {
                assert!(!error.to_string().is_empty(), "seed {seed}");
                refused += 1;
            }
        }
    }
    assert!(opened > 50 && refused > 100, "{opened} opened, {refused} refused");
}

/// BG-08, with a torn tail: a full disk is opened by removing left-overs or refused unchanged.
#[test]
fn a_full_disk_with_a_torn_log_is_refused_without_a_change_and_opens_when_there_is_room() {
    let (env, db) = open_new(roomy());
    for i in 0..50 {
        db.put(format!("key{i:02}"), "v".repeat(50)).unwrap();
    }
    let env = {
        let killed = env.kill();
        drop(db);
        killed
    };
    let log = with_suffix(&env, ".log").remove(0);
    let path = Path::new(DIR).join(log);
    let mut bytes = read_file(&env, &path);
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 30..end].fill(0);
    rewrite(&env, &path, &bytes);
    fill_device(&env);
    let before = env.fingerprint();
    let error = try_open(Arc::new(env.clone()), roomy()).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(env.fingerprint(), before);
    env.set_capacity(1 << 40);
    let db = open(&env, roomy());
    assert_eq!(all(&db).len(), 49);
    assert_eq!(get(&db, "key49"), None);
    assert_eq!(db.recovery_report().cuts.len(), 1);
    assert!(count(&env, ".log") <= 2);
}
