//! Cases of readers: beside flushes and compactions, over damage, and with other settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use treering_env::{Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{CfOptions, Compression, Db, Options};

use crate::support::{all, count, get, open, open_new, roomy, small, text, try_open};

fn threaded() -> Options {
    Options { background_threads: 2, max_open_tables: 16, block_cache_size: 0, ..small() }
}

/// The number at the front of a value.
fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(&value[..8]).unwrap().parse().unwrap()
}

/// ITER-01, SNAP-11: one key is overwritten while flushes and compactions run as fast as they can;
/// no reader misses it, sees a value older than what was acknowledged before it asked, or meets a
/// file that is gone.
#[test]
fn a_key_that_is_overwritten_all_the_time_is_never_missing_or_old() {
    let (_env, db) = open_new(threaded());
    let value = |i: u64| format!("{i:08}{}", "v".repeat(60));
    // Other keys, spread over many tables, so that open tables are evicted all the time.
    for i in 0..2500 {
        db.put(format!("other{i:05}"), value(0)).unwrap();
    }
    db.put("k", value(0)).unwrap();
    let written = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1..3000 {
                db.put("k", value(i)).unwrap();
                db.put(format!("other{:05}", i * 7 % 2500), value(i)).unwrap();
                written.store(i, Ordering::SeqCst);
                if i % 40 == 0 {
                    db.flush().unwrap();
                }
                if i % 200 == 0 {
                    db.compact_range("a".."z").unwrap();
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
        for reader in 0..2 {
            let (db, written, stop) = (&db, &written, &stop);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let least = written.load(Ordering::SeqCst);
                    let found = match (round + reader) % 4 {
                        0 => db.get("k").unwrap(),
                        1 => db.multi_get(["a", "k", "other00001"])[1].as_ref().unwrap().clone(),
                        2 => db.range("b".."l").next().map(|entry| entry.unwrap().1),
                        _ => db.iter().rev().last().map(|entry| entry.unwrap().1),
                    };
                    let found = number(&found.expect("the key is always there"));
                    assert!(found >= least, "{found} after {least} was acknowledged");
                }
            });
        }
    });
    db.wait_for_compact().unwrap();
    let stats = db.stats();
    // Each of the calls but the first finds the key both above and below, whoever merges it.
    assert!(stats.flushes > 20 && stats.compactions >= 13, "{stats}");
}

/// A database with an older version of every key in a deep level and a newer one above it.
fn two_levels(faults: &FaultEnv) -> Db {
    let options = Options { block_cache_size: 0, ..small() };
    let db = try_open(Arc::new(faults.clone()), options).unwrap();
    for (round, fill) in ["old", "new"].into_iter().enumerate() {
        for i in 0..64 {
            db.put(format!("key{i:02}"), format!("{fill}{}", "f".repeat(60))).unwrap();
        }
        if round == 0 {
            db.compact_range::<&str>(..).unwrap();
        } else {
            db.flush().unwrap();
        }
    }
    db
}

/// ITER-07: whichever block read fails, a scan in either direction ends there with the error, and
/// all it showed before is the newest and without a gap; the next seek starts clean.
#[test]
fn a_scan_over_an_unreadable_block_ends_with_the_error_and_never_shows_what_is_below() {
    for kind in [FaultKind::Error(5), FaultKind::FlipBit(100)] {
        let faults = FaultEnv::new(Arc::new(MemEnv::new()));
        let db = two_levels(&faults);
        assert!(all(&db).iter().all(|(_, value)| value.starts_with("new")));
        for backward in [false, true] {
            let mut broken = 0;
            for nth in 1.. {
                let fault = faults.add(Fault::new(kind).on(Op::Read).path(".sst").nth(nth));
                let context = format!("{kind:?}, read {nth}, backward: {backward}");
                let entries: Vec<_> =
                    if backward { db.iter().rev().collect() } else { db.iter().collect() };
                let fired = fault.fired();
                fault.remove();
                if fired == 0 {
                    assert_eq!(entries.len(), 64, "{context}");
                    break;
                }
                broken += 1;
                let (last, shown) = entries.split_last().unwrap();
                let error = last.as_ref().unwrap_err().to_string();
                assert!(error.contains(".sst"), "{context}: {error}");
                assert!(shown.len() < 64, "{context}");
                for (i, entry) in shown.iter().enumerate() {
                    let (key, value) = entry.as_ref().unwrap();
                    let at = if backward { 63 - i } else { i };
                    assert_eq!(&key[..], format!("key{at:02}").as_bytes(), "{context}");
                    assert!(value.starts_with(b"new"), "{context}");
                }
            }
            assert!(broken > 20, "{kind:?}: only {broken} reads");
        }
        let mut cursor = db.cursor().unwrap();
        let rule = faults.add(Fault::new(kind).on(Op::Read).path(".sst"));
        cursor.seek("key30").unwrap_err();
        assert!(!cursor.valid());
        cursor.next().unwrap_err();
        rule.remove();
        cursor.seek("key40").unwrap();
        assert_eq!(cursor.key(), Some(&b"key40"[..]));
    }
}

/// ITER-13
#[test]
fn an_iterator_goes_on_in_another_thread_and_ends_in_a_third() {
    let (_env, db) = open_new(small());
    for i in 0..2000 {
        db.put(format!("key{i:04}"), "v".repeat(40)).unwrap();
    }
    let mut range = db.iter();
    let mut seen: Vec<String> = (&mut range).take(500).map(|e| text(e.unwrap()).0).collect();
    let (more, range) = std::thread::spawn(move || {
        let more: Vec<String> = (&mut range).take(700).map(|e| text(e.unwrap()).0).collect();
        (more, range)
    })
    .join()
    .unwrap();
    seen.extend(more);
    let rest: Vec<String> =
        std::thread::spawn(move || range.map(|e| text(e.unwrap()).0).collect()).join().unwrap();
    seen.extend(rest);
    let expected: Vec<String> = (0..2000).map(|i| format!("key{i:04}")).collect();
    assert_eq!(seen, expected);
}

/// SNAP-02, for the lowest sequence numbers.
#[test]
fn the_first_write_of_all_survives_compactions_with_and_without_a_snapshot_before_it() {
    let (env, db) = open_new(roomy());
    let before = db.snapshot();
    db.put("first", "1").unwrap();
    let after = db.snapshot();
    for round in 0..3 {
        db.compact_range::<&str>(..).unwrap();
        assert_eq!(get(&db, "first").as_deref(), Some("1"), "round {round}");
        assert_eq!(before.iter().count(), 0, "round {round}");
        assert_eq!(after.iter().count(), 1, "round {round}");
        db.put(format!("more{round}"), "2").unwrap();
    }
    drop((before, after));
    db.compact_range::<&str>(..).unwrap();
    drop(db);
    assert_eq!(get(&open(&env, roomy()), "first").as_deref(), Some("1"));
}

/// SNAP-05: snapshots are released while a compaction stands before writing its output.
#[test]
fn snapshots_released_in_the_middle_of_a_compaction_change_nothing_for_others() {
    for released in [&[0][..], &[1], &[2], &[0, 2], &[0, 1, 2], &[]] {
        let faults = FaultEnv::new(Arc::new(MemEnv::new()));
        let mut options = Options { background_threads: 1, ..roomy() };
        // No compaction but the one that is asked for.
        options.cf.level0_compaction_trigger = 12;
        let db = try_open(Arc::new(faults.clone()), options).unwrap();
        let mut snapshots = Vec::new();
        // put, delete, put; put, delete, and a snapshot between each.
        for step in 0..4 {
            for i in 0..50 {
                let (one, other) = (format!("a{i:02}"), format!("b{i:02}"));
                if step % 2 == 0 {
                    db.put(one, step.to_string()).unwrap();
                    db.delete(other).unwrap();
                } else {
                    db.delete(one).unwrap();
                    db.put(other, step.to_string()).unwrap();
                }
            }
            db.flush().unwrap();
            if step < 3 {
                snapshots.push(Some(db.snapshot()));
            }
        }
        let hold = faults.add(Fault::new(FaultKind::Block).on(Op::Append).path(".sst"));
        std::thread::scope(|scope| {
            let compaction = scope.spawn(|| db.compact_range::<&str>(..));
            hold.wait_until_blocked(1);
            for index in released {
                snapshots[*index] = None;
            }
            hold.remove();
            compaction.join().unwrap().unwrap();
        });
        for round in 0..2 {
            for (step, snapshot) in snapshots.iter().enumerate() {
                let Some(snapshot) = snapshot else { continue };
                let first = if step % 2 == 0 { "a00" } else { "b00" };
                let entries: Vec<_> = snapshot.iter().map(|entry| text(entry.unwrap())).collect();
                assert_eq!(entries.len(), 50, "{released:?}, snapshot {step}, round {round}");
                assert_eq!(entries[0], (first.into(), step.to_string()), "{released:?}");
            }
            let entries = all(&db);
            assert_eq!((entries.len(), entries[0].0.as_str()), (50, "b00"), "{released:?}");
            db.compact_range::<&str>(..).unwrap();
        }
    }
}

/// SNAP-09
#[test]
fn a_database_whose_compaction_left_nothing_opens_after_a_crash() {
    let (env, db) = open_new(roomy());
    for round in 0..3 {
        for i in 0..100 {
            let key = format!("key{i:02}");
            if round == 2 { db.delete(key).unwrap() } else { db.put(key, "v").unwrap() }
        }
        db.flush().unwrap();
    }
    db.compact_range::<&str>(..).unwrap();
    assert_eq!(count(&env, ".sst"), 0);
    for image in [env.kill(), env.crash(treering_env::CrashPolicy::DropAll)] {
        let db = open(&image, roomy());
        assert!(all(&db).is_empty());
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        assert_eq!(all(&db).len(), 1);
    }
    drop(db);
}

/// MRG-06: tables written under one setting are read under every other, beside new ones.
#[test]
fn tables_of_other_settings_are_read_as_they_were_written() {
    let with = |block_size, restart_interval, bloom_bits_per_key, compression, cache| {
        let cf = CfOptions {
            block_size,
            restart_interval,
            bloom_bits_per_key,
            compression,
            memtable_size: 16 << 20,
            ..small().cf
        };
        Options { block_cache_size: cache, cf, ..small() }
    };
    let mut settings = vec![
        with(64, 1, 0, Compression::None, 0),
        with(4096, 16, 10, Compression::None, 1 << 20),
        with(1000, 128, 30, Compression::None, 4096),
    ];
    if CfOptions::default().compression == Compression::Lz4 {
        settings.push(with(512, 3, 5, Compression::Lz4, 1 << 16));
    }
    for first in &settings {
        for second in &settings {
            let (env, db) = open_new(first.clone());
            for i in 0..400 {
                db.put(format!("key{i:03}"), format!("one {i} {}", "x".repeat(50))).unwrap();
            }
            db.flush().unwrap();
            db.close().unwrap();
            drop(db);
            let db = open(&env, second.clone());
            for i in (0..400).step_by(3) {
                db.put(format!("key{i:03}"), format!("two {i}")).unwrap();
            }
            db.flush().unwrap();
            for compacted in [false, true] {
                let keys: Vec<String> = (0..800)
                    .map(|i| format!("key{:03}{}", i / 2, if i % 2 == 0 { "" } else { "absent" }))
                    .collect();
                for ((i, key), many) in keys.iter().enumerate().zip(db.multi_get(&keys)) {
                    let found = get(&db, key);
                    let many = many.unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap());
                    assert_eq!(found, many, "{key}");
                    let start = if i / 2 % 3 == 0 { "two" } else { "one" };
                    assert_eq!(found.is_some(), i % 2 == 0, "{key}, {first:?}, {second:?}");
                    assert!(found.is_none_or(|value| value.starts_with(start)), "{key}");
                }
                assert_eq!(all(&db).len(), 400);
                if !compacted {
                    db.compact_range("key100".."key200").unwrap();
                }
            }
        }
    }
}
