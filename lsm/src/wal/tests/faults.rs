//! Full devices and failing syncs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use treering_env::{CrashPolicy, Fault, FaultEnv, FaultKind, Op};

use super::*;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// O3: a device that is full when a step is to be prepared refuses the batch and nothing else.
#[test]
fn a_full_device_refuses_the_batch_that_needs_a_step_and_the_log_goes_on() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(8);
    env.set_capacity(4096);
    let large = vec![1; 3000];
    let error = log.wal.append(&[&large]).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert!(log.wal.failure().is_none());
    // What fits into the prepared step still goes in, and can be synced.
    log.wal.append(&[&payload(8)[..]]).unwrap();
    log.next = 9;
    log.sync().unwrap();
    // A job ahead of time finds the same, and says nothing until an append needs the space.
    let job = log.wal.prepare_ahead().unwrap();
    log.wal.note_prepared(&job, job.run()).unwrap();
    assert!(log.wal.failure().is_none());
    env.set_capacity(u64::MAX);
    log.append_synced(20);
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), 29);
}

/// The end record needs no space that is not there.
#[test]
fn a_segment_is_ended_on_a_full_device() {
    let env = new_env();
    let mut log = Log::new(&env);
    let spare = Spare::create(&env, dir(), 2, &OPTIONS).unwrap();
    env.set_capacity(8192);
    while log.wal.append(&[&payload(log.next)]).is_ok() {
        log.next += 1;
    }
    assert!(log.wal.failure().is_none());
    log.wal.rotate(spare).unwrap();
    log.append_synced(1);
    let count = log.next;
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), count);
    log.wal.close().unwrap();
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), count);
}

#[test]
fn a_spare_that_cannot_be_prepared_leaves_nothing_behind() {
    let env = new_env();
    let mut log = Log::new(&env);
    env.set_capacity(5000);
    let error = log.rotate().unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(env.metadata(&path_of(2)).unwrap(), None);
    assert!(log.wal.failure().is_none());
    log.append_synced(1);
    env.set_capacity(u64::MAX);
    log.rotate().unwrap();
    assert_eq!(log.wal.number(), 3);
}

#[test]
fn a_spare_never_takes_a_name_that_exists() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(1);
    assert!(Spare::create(&env, dir(), 1, &OPTIONS).is_err());
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), 1);
}

/// Section 5: after a failed write or sync every call returns the first error, and nothing is
/// written again.
#[test]
fn the_first_log_failure_stops_the_log() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(2);
    env.cut_power();
    let first = log.append().unwrap_err().to_string();
    assert_eq!(log.wal.failure().unwrap().to_string(), first);
    assert_eq!(log.append().unwrap_err().to_string(), first);
    assert_eq!(log.wal.marker().unwrap_err().to_string(), first);
    assert_eq!(log.wal.fail(Error::Closed).to_string(), first);
    assert!(log.wal.prepare_ahead().is_none());
    assert_eq!(log.wal.close().unwrap_err().to_string(), first);
}

#[test]
fn a_failed_sync_outside_the_log_lock_stops_the_log() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append().unwrap();
    let point = log.wal.sync_point().unwrap();
    env.cut_power();
    let error = point.sync().unwrap_err();
    let first = log.wal.fail(error).to_string();
    assert_eq!(log.append().unwrap_err().to_string(), first);
}

/// P5: a marker carries what was synced, so later damage below it is told from a torn write.
#[test]
fn a_marker_proves_what_was_synced_before_it() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(2);
    let last = log.append().unwrap();
    log.sync().unwrap();
    let mut bytes = bytes_of(&env, &path_of(1));
    let byte = usize::try_from(last.end - 20).unwrap();
    bytes[byte] ^= 1;
    let image = with_bytes(&env, &path_of(1), &bytes);
    assert_eq!(replayed(&image, &log.facts).unwrap().prefix(), 2, "nothing witnesses the last");
    log.wal.marker().unwrap();
    let mut bytes = bytes_of(&env, &path_of(1));
    bytes[byte] ^= 1;
    let image = with_bytes(&env, &path_of(1), &bytes);
    assert_eq!(corruption_at(replayed(&image, &log.facts), &path_of(1)), last.offset);
}

/// A late success of a sync of the segment before says nothing about this one.
#[test]
fn a_sync_point_of_an_older_segment_moves_no_watermark() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..5 {
        log.append().unwrap();
    }
    let point = log.wal.sync_point().unwrap();
    log.rotate().unwrap();
    point.sync().unwrap();
    log.wal.note_synced(&point);
    log.wal.marker().unwrap();
    let bytes = bytes_of(&env, &path_of(2));
    let marker = usize::try_from(log.wal.end()).unwrap() - 56;
    assert_eq!(bytes[marker + 32..marker + 40], [0; 8], "the watermark is still zero");
}

/// WAL-04: whichever read, open or listing of a replay fails, the replay fails with that error and
/// the file's name; the next one without a fault finds everything.
#[test]
fn every_failed_read_of_a_replay_is_an_error() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(60);
    let facts = log.facts.clone();
    let plan = || {
        let tail_policy = TailPolicy::TruncateUnwitnessed;
        ReplayPlan { from_number: 1, facts: facts.clone(), tail_policy }
    };
    let faulty = FaultEnv::new(Arc::new(env.clone()));
    let counter = faulty.add(Fault::new(FaultKind::Error(EIO)).skip(u64::MAX));
    replay(&faulty, dir(), &plan(), &mut |_, _, _, _| Ok(())).unwrap();
    let calls = counter.seen();
    assert!(calls > 10, "{calls}");
    for call in 1..=calls {
        faulty.clear();
        let fault = faulty.add(Fault::new(FaultKind::Error(EIO)).nth(call));
        let error = replay(&faulty, dir(), &plan(), &mut |_, _, _, _| Ok(())).unwrap_err();
        assert_eq!(fault.fired(), 1, "call {call}");
        let Error::Io(error) = error else { panic!("call {call}: {error}") };
        assert_eq!(error.errno(), Some(EIO), "call {call}");
        assert!(error.path().starts_with(dir()), "call {call}");
    }
    assert_eq!(replayed(&env, &facts).unwrap().prefix(), 60);
}

/// WAL-27, WAL-28, WAL-29, WAL-30: an append that fails half-way, after its last byte, or not at
/// all before it, stops the log; the record is there whole or not at all; what is acknowledged
/// after the reopen is there, and no number is used twice.
#[test]
fn a_failed_append_is_whole_or_absent_and_hides_nothing_behind_it() {
    let shorts = [1, 47, 48, 100, 300].map(|bytes| FaultKind::Short { bytes, errno: ENOSPC });
    let others = [FaultKind::Error(EIO), FaultKind::ErrorAfter(EIO)];
    for kind in shorts.into_iter().chain(others) {
        let inner = new_env();
        let faulty = FaultEnv::new(Arc::new(inner.clone()));
        let mut log = Log::new(&inner);
        log.append_synced(3);
        let (facts, found) = (log.facts.clone(), replayed(&inner, &log.facts).unwrap());
        log.wal.close().unwrap();
        // The segment that fails is written through the faulty environment.
        let spare = Spare::create(&faulty, dir(), 2, &OPTIONS).unwrap();
        let mut facts: Vec<_> = facts;
        let closed = replayed(&inner, &facts).unwrap().report;
        facts.push(spare.fact(closed.next_wal_seq));
        let mut wal = Wal::begin(spare, closed.predecessor, closed.next_wal_seq).unwrap();
        faulty.add(Fault::new(kind).on(Op::Append).times(1));
        let first = wal.append(&[&payload(found.prefix())]).unwrap_err().to_string();
        assert_eq!(wal.append(&[b"later"]).unwrap_err().to_string(), first);
        assert_eq!(wal.failure().unwrap().to_string(), first);
        drop(wal);
        // What a killed process left is made durable before the log goes on.
        let image = inner.kill().crash(CrashPolicy::KeepAll);
        let found = replayed(&image, &facts).unwrap();
        assert!((3..=4).contains(&found.prefix()), "{kind:?}");
        let mut log = Log::go_on(&image, &found, &facts).unwrap();
        log.append_synced(3);
        let all = log.next;
        let image = image.crash(CrashPolicy::DropAll);
        assert_eq!(replayed(&image, &log.facts).unwrap().prefix(), all, "{kind:?}");
    }
}

/// Section 5, O3: a failed sync of a begun segment stops the log, whether it is the sync of a
/// commit, of a step, or of a switch; a failed spare does not.
#[test]
fn failures_of_a_switch_stop_the_log_unless_only_the_spare_failed() {
    for call in 1..12 {
        let inner = new_env();
        let faulty = FaultEnv::new(Arc::new(inner.clone()));
        let spare = Spare::create(&faulty, dir(), 1, &OPTIONS).unwrap();
        let facts = vec![spare.fact(1)];
        let mut wal = Wal::begin(spare, None, 1).unwrap();
        wal.append(&[&payload(0)]).unwrap();
        faulty.add(Fault::new(FaultKind::Error(EIO)).nth(call));
        let result = match Spare::create(&faulty, dir(), 2, &OPTIONS) {
            Err(_) => {
                assert!(wal.failure().is_none(), "call {call}: only the spare failed");
                continue;
            }
            Ok(spare) => wal.rotate(spare),
        };
        if let Err(error) = result {
            assert_eq!(wal.failure().unwrap().to_string(), error.to_string(), "call {call}");
            assert!(wal.append(&[b"later"]).is_err());
        } else {
            let _either = wal.append(&[&payload(1)]);
        }
        drop(wal);
        let count = replayed(&inner.kill(), &facts).unwrap().prefix();
        assert!(count >= 1, "call {call}");
    }
}

/// WAL-31: appends, syncs and switches from several threads leave whole records in order, and all
/// that a successful sync covered is there after a power loss.
#[test]
fn threads_that_append_sync_and_switch_leave_a_clean_log() {
    let env = new_env();
    let log = Mutex::new(Log::new(&env));
    let synced = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (log, synced) = (&log, &synced);
            scope.spawn(move || {
                for round in 0..60 {
                    let (point, next) = {
                        let mut log = log.lock();
                        log.append().unwrap();
                        (log.wal.sync_point().unwrap(), log.next)
                    };
                    if round % 3 == thread {
                        point.sync().unwrap();
                        log.lock().wal.note_synced(&point);
                        synced.fetch_max(next, Ordering::SeqCst);
                    }
                    let job = log.lock().wal.prepare_ahead();
                    if let Some(job) = job {
                        let outcome = job.run();
                        log.lock().wal.note_prepared(&job, outcome).unwrap();
                    }
                }
            });
        }
    });
    let log = log.into_inner();
    assert_eq!(replayed(&env.kill(), &log.facts).unwrap().prefix(), 180);
    let image = env.crash(CrashPolicy::DropAll);
    assert!(replayed(&image, &log.facts).unwrap().prefix() >= synced.into_inner());
}
