//! Processes that are killed: at a held operation, with their unsynced bytes lost, and by signals
//! in the middle of work.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use treering::env::{Env, Fault, FaultEnv, FaultKind, Op, PosixEnv};
use treering::{Db, Durability, WriteBatch, WriteOptions};

use crate::child::{Child, role, say};
use crate::{database, environment, key, numbers, open, scratch, small};

/// The operations at which a child is killed, by a part of their paths.
const HELD: [(Op, &str); 12] = [
    (Op::Create, ".log"),
    (Op::Prepare, ".log"),
    (Op::Append, ".log"),
    (Op::Sync, ".log"),
    (Op::Create, ".sst"),
    (Op::Append, ".sst"),
    (Op::Finish, ".sst"),
    (Op::Append, "MANIFEST"),
    (Op::Sync, "MANIFEST"),
    (Op::Rename, "CURRENT"),
    (Op::SyncDir, "db"),
    (Op::Remove, ".log"),
];

fn put(db: &Db, number: u64, durability: Durability) {
    let mut batch = WriteBatch::new();
    batch.put(key(number), "v".repeat(300));
    db.write_opt(batch, &WriteOptions { durability: Some(durability) }).unwrap();
}

/// Writes 300 numbers, every fourth synced, and says which ones are.
fn write_until_held(role: &str, dir: &Path) {
    let [at, nth] = [0, 1].map(|i| role.split(' ').nth(i).unwrap().parse::<u64>().unwrap());
    let (op, part) = HELD[usize::try_from(at).unwrap()];
    let faults = FaultEnv::holding(Arc::new(PosixEnv::new()));
    let rule = Fault::new(FaultKind::Block).on(op).nth(nth);
    let hold = faults.add(rule.matching(move |call| call.path.to_string_lossy().contains(part)));
    std::thread::spawn(move || {
        hold.wait_until_blocked(1);
        say("held");
    });
    let db = Db::open(Arc::new(faults) as Arc<dyn Env>, dir, small(0)).unwrap();
    for number in 0..300 {
        let synced = number % 4 == 3;
        put(&db, number, if synced { Durability::Synced } else { Durability::Flushed });
        if synced {
            say(&number.to_string());
        }
    }
    say("through");
}

/// Whatever was being done when the process died, and though all that was not synced died with it:
/// a prefix is there that holds what was synced.
#[test]
fn a_process_killed_at_a_held_operation_leaves_a_prefix_with_all_that_was_synced() {
    const TEST: &str =
        "killed::a_process_killed_at_a_held_operation_leaves_a_prefix_with_all_that_was_synced";
    if let Some((role, dir)) = role() {
        return write_until_held(&role, &dir);
    }
    let mut kills = 0;
    for (at, (op, part)) in HELD.into_iter().enumerate() {
        for nth in [1, 2, 4, 40] {
            let scratch = scratch();
            let dir = database(&scratch);
            let mut child = Child::start(TEST, &format!("{at} {nth}"), &dir);
            let mut synced = None;
            let held = loop {
                match child.hears().expect("it says how it ends").as_str() {
                    "held" => break true,
                    "through" => break false,
                    number => synced = Some(number.parse::<u64>().unwrap()),
                }
            };
            child.kill(Signal::KILL);
            // What it said before it died counts, though it was heard after the kill.
            while let Some(said) = child.hears() {
                synced = said.parse().ok().or(synced);
            }
            let (_, other) = child.end();
            assert!(!other.contains("panicked"), "{other}");
            kills += u32::from(held);
            let context = format!("{op:?} of {part}, number {nth}, synced {synced:?}");
            let db = open(&dir);
            let found = numbers(&db);
            let count = found.len() as u64;
            assert_eq!(found, (0..count).collect::<Vec<_>>(), "{context}");
            assert!(synced.is_none_or(|synced| synced < count), "{context}: {count} are there");
            put(&db, count, Durability::Synced);
            drop(db);
            assert_eq!(numbers(&open(&dir)).len() as u64, count + 1, "{context}");
        }
    }
    assert!(kills >= 24, "only {kills} were killed at a held operation");
}

/// Reads and writes from four threads, and says what was acknowledged.
fn work(env: &str, dir: &Path) {
    let env = environment(env).expect("the parent has it too");
    let db = Db::open(env, dir, small(2)).unwrap();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (db, next) = (&db, &next);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number > 1_000_000 {
                        break;
                    }
                    let synced = number % 50 == 0;
                    put(db, number, if synced { Durability::Synced } else { Durability::Flushed });
                    say(&number.to_string());
                    let keys = (0..32).map(|step| key(number * (step + thread) / 37));
                    db.multi_get(keys).into_iter().for_each(|answer| drop(answer.unwrap()));
                }
            });
        }
    });
}

/// LIFE-13: signals that end the process, on every environment of the machine.
#[test]
fn a_process_ended_by_signals_in_the_middle_of_work_keeps_what_it_acknowledged() {
    const TEST: &str =
        "killed::a_process_ended_by_signals_in_the_middle_of_work_keeps_what_it_acknowledged";
    if let Some((role, dir)) = role() {
        return work(&role, &dir);
    }
    let names = ["posix", "io_uring"].into_iter().filter(|name| environment(name).is_some());
    for name in names {
        for round in 0..10_usize {
            let scratch = scratch();
            let dir = database(&scratch);
            let mut child = Child::start(TEST, name, &dir);
            let mut acknowledged: Vec<u64> = Vec::new();
            while acknowledged.len() < 30 + round * 97 {
                acknowledged.push(child.hears().expect("it works").parse().unwrap());
            }
            // The first may be ignored, as in a job of a shell; the second is not.
            for signal in [Signal::INT, Signal::TERM] {
                child.kill(signal);
            }
            while let Some(said) = child.hears() {
                acknowledged.push(said.parse().unwrap());
            }
            let (status, other) = child.end();
            assert!(status.signal().is_some(), "{name}: {status}: {other}");
            assert!(!other.contains("panicked"), "{name}: {other}");
            let db = Db::open(environment(name).unwrap(), &dir, small(0)).unwrap();
            let found = numbers(&db);
            acknowledged.sort_unstable();
            let is_lost = |number: &&u64| found.binary_search(number).is_err();
            let lost: Vec<_> = acknowledged.iter().filter(is_lost).collect();
            assert!(lost.is_empty(), "{name}, round {round}: {lost:?} of {}", acknowledged.len());
        }
    }
}
