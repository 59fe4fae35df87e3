//! Segments from spare to close, without faults.

use super::*;

#[test]
fn records_of_many_segments_come_back_in_order() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..200 {
        log.append().unwrap();
    }
    assert!(log.wal.number() > 5);
    let found = replayed(&env.kill(), &log.facts).unwrap();
    assert_eq!(found.prefix(), 200);
    assert_eq!(found.report.cuts, []);
    assert_eq!(found.report.highest_file_number, log.wal.number());
    let numbers: Vec<u64> = found.report.segments.iter().map(|segment| segment.number).collect();
    assert_eq!(numbers, (1..=log.wal.number()).collect::<Vec<_>>());
    let predecessor = found.report.predecessor.unwrap();
    assert_eq!((predecessor.number, predecessor.end), (log.wal.number(), log.wal.end()));
    assert_eq!(found.report.next_wal_seq, predecessor.last_wal_seq + 1);
}

#[test]
fn replay_starts_at_the_oldest_segment_that_is_needed() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..100 {
        log.append().unwrap();
    }
    let mut first = None;
    let plan = ReplayPlan { from_number: 3, facts: log.facts.clone(), ..plan() };
    env.remove(&path_of(1)).unwrap();
    env.remove(&path_of(2)).unwrap();
    replay(&env, dir(), &plan, &mut |path, offset, number, payload| {
        first.get_or_insert_with(|| (path.to_path_buf(), offset, number, payload.to_vec()));
        Ok(())
    })
    .unwrap();
    let (path, offset, number, bytes) = first.unwrap();
    assert_eq!((path, offset, number), (path_of(3), BEGIN_RECORD, 3));
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, payload(number));
}

fn plan() -> ReplayPlan {
    let tail_policy = TailPolicy::TruncateUnwitnessed;
    ReplayPlan { from_number: 1, facts: Vec::new(), tail_policy }
}

#[test]
fn an_error_of_the_receiver_ends_the_replay() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(3);
    let mut calls = 0;
    let result = replay(&env, dir(), &plan(), &mut |_, _, _, _| {
        calls += 1;
        Err(Error::Closed)
    });
    assert!(matches!(result, Err(Error::Closed)));
    assert_eq!(calls, 1);
}

#[test]
fn a_synced_append_changes_no_size_while_its_step_lasts() {
    let env = new_env();
    let mut log = Log::new(&env);
    let size = |log: &Log| env.metadata(&path_of(log.wal.number())).unwrap().unwrap().size;
    assert_eq!(size(&log), 4096);
    log.append_synced(9);
    assert!(log.wal.end() < 4096);
    assert_eq!(size(&log), 4096);
    let before = env.operations();
    log.wal.append(&[b"x"]).unwrap();
    assert_eq!(env.operations() - before, 1, "one record is one write");
}

#[test]
fn steps_are_prepared_ahead_and_the_append_finds_them_there() {
    let env = new_env();
    let mut log = Log::new(&env);
    assert!(log.wal.prepare_ahead().is_some(), "less than a step is left");
    let job = log.wal.prepare_ahead().unwrap();
    assert_eq!(job.target(), 8192);
    log.wal.note_prepared(&job, job.run()).unwrap();
    assert!(log.wal.prepare_ahead().is_none(), "a whole step is left");
    while log.wal.end() < 5000 {
        let before = env.operations();
        log.append().unwrap();
        assert_eq!(env.operations() - before, 1, "nothing is prepared inline");
    }
    let job = log.wal.prepare_ahead().unwrap();
    assert_eq!(job.target(), 12288);
    log.rotate().unwrap();
    log.wal.note_prepared(&job, job.run()).unwrap();
    let job = log.wal.prepare_ahead().unwrap();
    assert_eq!(job.target(), 8192, "the new segment is prepared for itself");
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), log.next);
}

#[test]
fn a_batch_larger_than_a_segment_grows_one_that_holds_nothing_yet() {
    let env = new_env();
    let mut log = Log::new(&env);
    let large = vec![7; 100_000];
    assert!(log.wal.fits(large.len() as u64), "nothing is in the first segment yet");
    log.append_synced(1);
    assert!(!log.wal.fits(large.len() as u64));
    log.rotate().unwrap();
    assert!(log.wal.fits(large.len() as u64));
    log.wal.append(&[&large]).unwrap();
    assert!(!log.wal.fits(1));
    log.append_synced(1);
    assert_eq!(log.wal.number(), 3);
    let found = replayed(&env, &log.facts).unwrap();
    assert_eq!(found.payloads, [payload(0), large, payload(1)]);
}

#[test]
fn a_spare_is_wanted_when_a_segment_is_half_full() {
    let env = new_env();
    let mut log = Log::new(&env);
    while log.wal.end() < OPTIONS.segment_size / 2 {
        assert!(!log.wal.wants_spare());
        log.append().unwrap();
    }
    assert!(log.wal.wants_spare());
}

/// A clean close leaves an end record whose watermark covers all, and gives prepared space back.
#[test]
fn a_closed_log_ends_in_order_and_holds_no_prepared_space() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..30 {
        log.append().unwrap();
    }
    let number = log.wal.number();
    let facts = log.facts.clone();
    let closed = log.wal.close().unwrap();
    let end = closed.end.unwrap().end;
    assert_eq!(env.metadata(&path_of(number)).unwrap().unwrap().size, end);
    let image = env.crash(treering_env::CrashPolicy::DropAll);
    let found = replayed(&image, &facts).unwrap();
    assert_eq!(found.prefix(), 30);
    assert!(found.report.segments.last().unwrap().ended);
    assert_eq!(found.report.predecessor.unwrap().end, end);
    // Any damage to what stands before the end record is proved by it.
    let bytes = bytes_of(&env, &path_of(number));
    for offset in (0..bytes.len() - 80).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[offset] ^= 0x10;
        let image = with_bytes(&env, &path_of(number), &damaged);
        let found = corruption_at(replayed(&image, &facts), &path_of(number));
        assert!(found <= offset as u64);
    }
}

#[test]
fn a_log_goes_on_after_each_close() {
    let env = new_env();
    let mut log = Log::new(&env);
    for round in 1..6 {
        log.append_synced(round);
        let (facts, next) = (log.facts.clone(), log.next);
        log.wal.close().unwrap();
        let found = replayed(&env, &facts).unwrap();
        assert_eq!(found.prefix(), next);
        log = Log::go_on(&env, &found, &facts).unwrap();
    }
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), 15);
}

/// O11: numbers go beyond any that is in use, stray and foreign kinds of files included.
#[test]
fn numbers_go_beyond_every_file_of_the_directory() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(1);
    env.create(&dir().join("000123.sst"), treering_env::FileKind::Table).unwrap();
    env.create(&dir().join("MANIFEST-000077"), treering_env::FileKind::Manifest).unwrap();
    env.create(&dir().join("999999.sst.bak"), treering_env::FileKind::Other).unwrap();
    assert_eq!(replayed(&env, &log.facts).unwrap().report.highest_file_number, 123);
    Spare::create(&env, dir(), 200, &OPTIONS).unwrap();
    assert_eq!(replayed(&env, &log.facts).unwrap().report.highest_file_number, 200);
}

/// P7: what a rotation returns, recorded in the manifest, is checked at the next replay.
#[test]
fn recorded_ends_are_met_exactly() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..3 {
        log.append_synced(4);
        let rotation = log.rotate().unwrap();
        assert_eq!(rotation.begun.first_wal_seq, rotation.closed.end.unwrap().last_wal_seq + 1);
        log.record(rotation);
    }
    assert_eq!(replayed(&env, &log.facts).unwrap().prefix(), 12);
    let mut wrong = log.facts.clone();
    let end = wrong[0].end.as_mut().unwrap();
    end.last_crc ^= 1;
    corruption_at(replayed(&env, &wrong), &path_of(1));
    let mut wrong = log.facts.clone();
    wrong[1].epoch ^= 1;
    assert_eq!(corruption_at(replayed(&env, &wrong), &path_of(2)), 0);
}
