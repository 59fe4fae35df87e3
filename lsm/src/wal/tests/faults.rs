//! Full devices and failing syncs.

use super::*;

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
    let point = log.wal.sync_point();
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
    let point = log.wal.sync_point();
    log.rotate().unwrap();
    point.sync().unwrap();
    log.wal.note_synced(&point);
    log.wal.marker().unwrap();
    let bytes = bytes_of(&env, &path_of(2));
    let marker = usize::try_from(log.wal.end()).unwrap() - 56;
    assert_eq!(bytes[marker + 32..marker + 40], [0; 8], "the watermark is still zero");
}
