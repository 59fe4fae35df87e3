//! Power cuts at every operation of a run of the log, and again during what follows.
//!
//! A run appends, syncs and rotates. It is cut before, inside and after each of its operations;
//! of each cut many images are taken. Each image must hold a prefix of what was appended, with
//! everything that was synced, twice the same; the log must go on from there, and a second cut
//! must not shorten what the first recovery found.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_env::{CrashPolicy, When};

use super::*;

/// What was promised when a run ended.
struct Promised {
    appended: u64,
    synced: u64,
    facts: Vec<SegmentFact>,
}

/// Runs `steps` random steps from `seed` on `log`, until one fails. `edits`: whether rotations
/// are recorded in a manifest.
fn run(mut log: Log, seed: u64, steps: usize, edits: bool) -> Promised {
    let mut random = StdRng::seed_from_u64(seed);
    let mut promised = Promised { appended: log.next, synced: log.next, facts: Vec::new() };
    for _ in 0..steps {
        let (before, number) = (log.next, log.wal.number());
        let result = match random.random_range(0..10) {
            0..5 => {
                promised.appended = before + 1;
                log.append().map(|_| ())
            }
            5..8 => log.sync().map(|()| promised.synced = before),
            8 => log.wal.prepare_ahead().map_or(Ok(()), |job| {
                let outcome = job.run();
                log.wal.note_prepared(&job, outcome).map(|_| ())
            }),
            _ => log.rotate().map(|rotation| {
                if edits {
                    log.record(rotation);
                }
            }),
        };
        if log.wal.number() != number {
            // What was appended before a switch was synced by it.
            promised.synced = before;
        }
        if result.is_err() {
            break;
        }
    }
    promised.facts = log.facts;
    promised
}

/// Opens an image and checks it against what was promised.
fn check(image: &MemEnv, promised: &Promised, what: &str) -> Found {
    let found = replayed(image, &promised.facts).unwrap_or_else(|error| panic!("{what}: {error}"));
    let count = found.prefix();
    assert!(count >= promised.synced, "{what}: {count} of {} synced", promised.synced);
    assert!(count <= promised.appended, "{what}: {count} of {}", promised.appended);
    let again = replayed(image, &promised.facts).unwrap();
    assert_eq!(again.payloads, found.payloads, "{what}: a second replay");
    found
}

/// Goes on after a crash, cuts again at operation `second`, and checks both.
fn go_on(image: &MemEnv, promised: &Promised, found: &Found, second: u64, what: &str) {
    let base = found.prefix();
    let env = image.kill();
    let at = env.operations() + second;
    env.cut_power_at(at, When::Inside);
    let next = Log::go_on(&env, found, &promised.facts);
    let mut after = match next {
        Ok(log) => run(log, second, 6, second.is_multiple_of(2)),
        Err(_) => Promised { appended: base, synced: base, facts: promised.facts.clone() },
    };
    after.synced = after.synced.max(base);
    for policy in CrashPolicy::all(second) {
        let image = env.crash(policy);
        // The segment is named in the manifest before it is begun, which this harness cannot
        // crash: a spare that did not survive was never named.
        if image.metadata(&path_of(found.report.highest_file_number + 1)).unwrap().is_none() {
            after.facts.clone_from(&promised.facts);
        }
        check(&image, &after, &format!("{what}, then {second} {policy:?}"));
    }
}

/// WAL-09, WAL-14, WAL-15, WAL-16, WAL-21, WAL-26 for the log alone: O2, O3, O4, P6, P7, P10, P12.
#[test]
fn every_cut_leaves_a_prefix_that_holds_what_was_synced() {
    let mut images = HashSet::new();
    let mut cuts = 0;
    for seed in 0..5_u64 {
        let edits = seed % 2 == 0;
        let operations = {
            let env = new_env();
            let log = Log::new(&env);
            let start = env.operations();
            run(log, seed, 40, edits);
            env.operations() - start
        };
        assert!(operations > 20, "seed {seed}: {operations}");
        for operation in 0..operations {
            for when in [When::Before, When::Inside, When::After] {
                let env = new_env();
                let log = Log::new(&env);
                env.cut_power_at(env.operations() + operation, when);
                let promised = run(log, seed, 40, edits);
                cuts += 1;
                for policy in CrashPolicy::all(seed * 1000 + operation) {
                    let image = env.crash(policy);
                    let what = format!(
                        "seed {seed}, {when:?} operation {operation} ({}), {policy:?}",
                        env.cut_operation().unwrap_or_default()
                    );
                    let found = check(&image, &promised, &what);
                    if images.insert(image.fingerprint()) {
                        go_on(&image, &promised, &found, operation % 14, &what);
                    }
                }
            }
        }
    }
    assert!(cuts > 300 && images.len() > 300, "{cuts} cuts, {} images", images.len());
}

/// Promise B for the log: the death of the process loses nothing that was appended.
#[test]
fn a_killed_process_loses_nothing_that_was_appended() {
    for seed in 100..130 {
        let env = new_env();
        let promised = run(Log::new(&env), seed, 60, false);
        let found = replayed(&env.kill(), &promised.facts).unwrap();
        assert_eq!(found.prefix(), promised.appended, "seed {seed}");
    }
}

/// WAL-20: names of removed segments may come back or go early; older ones are not looked at.
#[test]
fn an_obsolete_segment_that_comes_back_is_not_replayed() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..3 {
        log.append_synced(3);
        let rotation = log.rotate().unwrap();
        log.record(rotation);
    }
    log.append_synced(2);
    let tail_policy = TailPolicy::TruncateUnwitnessed;
    let plan = ReplayPlan { from_number: 4, facts: log.facts.clone(), tail_policy };
    env.remove(&path_of(1)).unwrap();
    env.remove(&path_of(3)).unwrap();
    for policy in CrashPolicy::all(7) {
        let image = env.crash(policy);
        let mut count = 0;
        replay(&image, dir(), &plan, &mut |_, _, _, _| {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 2, "{policy:?}");
    }
}
