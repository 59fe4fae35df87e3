//! Damage to segments, by hand: cut, zeroed, removed, exchanged.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::record::RecordReader;

/// Ten synced records and an unsynced one in a segment whose first step is full. The last
/// record's start and end.
fn ten_and_one() -> (Log, u64, u64) {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(10);
    let last = log.append().unwrap();
    assert!(last.offset > OPTIONS.prepare_step, "the last record is beyond the first step");
    (log, last.offset, last.end)
}

/// WAL-01: the newest segment cut, and in other copies zeroed, at every byte of its last record.
#[test]
fn a_newest_segment_torn_in_its_last_record_opens_without_that_record() {
    let (log, start, end) = ten_and_one();
    let bytes = bytes_of(&log.env, &path_of(1));
    for cut in start..=end {
        let cut_at = usize::try_from(cut).unwrap();
        let mut zeroed = bytes.clone();
        zeroed[cut_at..].fill(0);
        for copy in [&bytes[..cut_at], &zeroed] {
            let image = with_bytes(&log.env, &path_of(1), copy);
            let found = replayed(&image, &log.facts).unwrap();
            let whole = copy.len() >= usize::try_from(end).unwrap()
                && copy[..usize::try_from(end).unwrap()] == bytes[..usize::try_from(end).unwrap()];
            assert_eq!(found.prefix(), if whole { 11 } else { 10 }, "cut at {cut}");
            let predecessor = found.report.predecessor.unwrap();
            assert_eq!(predecessor.end, if whole { end } else { start });
            // What is left of the record may be zeros alone: then it is a clean end.
            let torn = copy[usize::try_from(start).unwrap()..].iter().any(|byte| *byte != 0);
            let cuts = usize::from(!whole && torn);
            assert_eq!(found.report.cuts.len(), cuts, "cut at {cut}");
        }
    }
}

/// 3.3: the stricter policy refuses what the default cuts, and takes a clean end.
#[test]
fn the_stricter_policy_refuses_a_torn_tail() {
    let (log, start, end) = ten_and_one();
    let mut bytes = bytes_of(&log.env, &path_of(1));
    let strict = |bytes: &[u8]| {
        let image = with_bytes(&log.env, &path_of(1), bytes);
        replay_with(&image, &log.facts, TailPolicy::RefuseOnAny)
    };
    assert_eq!(strict(&bytes).unwrap().prefix(), 11);
    bytes[usize::try_from(end).unwrap() - 30] ^= 1;
    assert_eq!(corruption_at(strict(&bytes), &path_of(1)), start);
    bytes[usize::try_from(start).unwrap()..].fill(0);
    assert_eq!(strict(&bytes).unwrap().prefix(), 10);
}

/// WAL-02, WAL-03, P6: an older segment cut at every byte, at record boundaries too, or zeroed from
/// there, is corruption, and nothing of later segments is applied.
#[test]
fn an_older_segment_that_is_cut_anywhere_is_corruption() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(2);
    log.rotate().unwrap();
    log.append_synced(1);
    let bytes = bytes_of(&env, &path_of(1));
    let end = replayed(&env, &log.facts).unwrap().report.segments[0].end;
    for cut in 0..usize::try_from(end).unwrap() {
        let mut zeroed = bytes.clone();
        zeroed[cut..].fill(0);
        for copy in [&bytes[..cut], &zeroed] {
            // Some bytes behind the cut are zero anyway.
            let same = copy.iter().zip(&bytes).take_while(|(one, other)| one == other).count();
            if same == bytes.len() {
                continue;
            }
            let image = with_bytes(&env, &path_of(1), copy);
            let plan = ReplayPlan {
                from_number: 1,
                facts: Vec::new(),
                tail_policy: TailPolicy::TruncateUnwitnessed,
            };
            // The successor alone proves it; the manifest is not needed.
            let mut applied = Vec::new();
            let result = replay(&image, dir(), &plan, &mut |_, _, number, _| {
                applied.push(number);
                Ok(())
            });
            let Err(Error::Corruption { path, offset: Some(offset), .. }) = result else {
                panic!("cut at {cut}: {result:?}");
            };
            assert_eq!(path, path_of(1));
            assert!(offset <= same as u64, "cut at {cut}");
            assert!(applied.iter().all(|&number| number == 1), "cut at {cut}");
        }
    }
}

/// WAL-03, WAL-05, WAL-07, P7: zeros over any page of a synced newest segment are corruption,
/// also over its first page, whose loss takes the epoch with it.
#[test]
fn a_zeroed_page_of_a_synced_newest_segment_is_corruption() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(5);
    log.rotate().unwrap();
    // The last record starts behind the second page, so that it can witness both.
    while log.append().unwrap().offset < 8192 {
        log.sync().unwrap();
    }
    log.sync().unwrap();
    let bytes = bytes_of(&env, &path_of(2));
    for page in 0..2 {
        let mut damaged = bytes.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0);
        let image = with_bytes(&env, &path_of(2), &damaged);
        let offset = corruption_at(replayed(&image, &log.facts), &path_of(2));
        assert!(offset <= page as u64 * 4096);
    }
}

/// WAL-05: every bit of a record in the middle of a synced segment.
#[test]
fn a_flipped_bit_in_the_middle_of_a_synced_segment_is_corruption() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(4);
    let record = log.append().unwrap();
    log.sync().unwrap();
    log.append_synced(2);
    let bytes = bytes_of(&env, &path_of(1));
    for byte in record.offset..record.end {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[usize::try_from(byte).unwrap()] ^= 1 << bit;
            let image = with_bytes(&env, &path_of(1), &damaged);
            assert_eq!(corruption_at(replayed(&image, &log.facts), &path_of(1)), record.offset);
        }
    }
}

/// WAL-19, P7: a segment that was named and is missing, or cut to nothing, is never an empty log.
#[test]
fn a_missing_or_emptied_segment_is_named() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..4 {
        log.append_synced(3);
        log.rotate().unwrap();
    }
    log.append_synced(1);
    for number in 1..=5 {
        let image = env.kill();
        image.remove(&path_of(number)).unwrap();
        match replayed(&image, &log.facts) {
            Err(Error::MissingFile(path)) => assert_eq!(path, path_of(number)),
            other => panic!("segment {number}: {other:?}"),
        }
        for size in [0, 1, 47, 48, 95, 96, 500] {
            let bytes = bytes_of(&env, &path_of(number));
            let image = with_bytes(&env, &path_of(number), &bytes[..size]);
            corruption_at(replayed(&image, &log.facts), &path_of(number));
        }
    }
    // The only segment of all, known from the manifest alone.
    let alone = new_env();
    let mut log = Log::new(&alone);
    log.append_synced(1);
    alone.remove(&path_of(1)).unwrap();
    assert!(matches!(replayed(&alone, &log.facts), Err(Error::MissingFile(_))));
    assert!(matches!(replayed(&alone, &[]), Err(Error::MissingFile(_))));
}

/// P3: records are numbered without a gap over all segments, first records, end records and markers
/// included, whatever their payloads say of sequence numbers. So a segment that lost whole records
/// and seems to end in order is told from one that never had them.
#[test]
fn records_are_numbered_without_gaps_and_a_lost_end_shows() {
    let env = new_env();
    let mut log = Log::new(&env);
    for _ in 0..3 {
        log.append_synced(3);
        log.wal.marker().unwrap();
        log.rotate().unwrap();
    }
    log.append_synced(1);
    let numbers = |path: &Path| {
        let mut reader = RecordReader::open(&env, path).unwrap();
        let mut numbers = Vec::new();
        while let Some(record) = reader.read_next().unwrap() {
            numbers.push((record.header.wal_seq, record.offset));
        }
        numbers
    };
    let all: Vec<u64> =
        (1..=4).flat_map(|segment| numbers(&path_of(segment))).map(|(number, _)| number).collect();
    assert_eq!(all, (1..=20).collect::<Vec<u64>>(), "three times six records, and two");

    // Without its last records the first segment ends in zeros, as a prepared one does.
    let bytes = bytes_of(&env, &path_of(1));
    for (_, offset) in numbers(&path_of(1)).into_iter().skip(1) {
        let mut cut = bytes.clone();
        cut[usize::try_from(offset).unwrap()..].fill(0);
        let image = with_bytes(&env, &path_of(1), &cut);
        // What follows says so itself; no manifest is asked.
        assert_eq!(corruption_at(replayed(&image, &[]), &path_of(1)), offset);
    }
}

/// WAL-10, WAL-11: a newest file that nobody named is a spare whatever its length and content.
#[test]
fn an_unfinished_spare_is_passed_over() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(3);
    for length in [0, 1, 47, 48, 95, 96, 97, 4096, 12288] {
        for fill in [0, 0xff] {
            let image = with_bytes(&env, &path_of(2), &vec![fill; length]);
            let found = replayed(&image, &log.facts).unwrap();
            assert_eq!(found.prefix(), 3);
            assert_eq!(found.report.predecessor.unwrap().number, 1);
            assert_eq!(found.report.highest_file_number, 2);
        }
    }
    // Blocks of a deleted segment under a spare's name: its first record is of another file.
    let image = with_bytes(&env, &path_of(2), &bytes_of(&env, &path_of(1)));
    assert_eq!(replayed(&image, &log.facts).unwrap().prefix(), 3);
}

/// F13: a valid segment in the place of another is not taken for it.
#[test]
fn exchanged_segments_are_corruption() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(3);
    log.rotate().unwrap();
    log.append_synced(3);
    log.rotate().unwrap();
    log.append_synced(3);
    for (one, other) in [(1, 2), (2, 3), (1, 3)] {
        let image = with_bytes(&env, &path_of(one), &bytes_of(&env, &path_of(other)));
        let image = with_bytes(&image, &path_of(other), &bytes_of(&env, &path_of(one)));
        let error = replayed(&image, &log.facts).unwrap_err();
        let refused = matches!(error, Error::Corruption { .. } | Error::MissingFile(_));
        assert!(refused, "{one} and {other}: {error}");
    }
    // A segment of another log that has the same number.
    let foreign = new_env();
    let mut other = Log::new(&foreign);
    other.append_synced(3);
    let image = with_bytes(&env, &path_of(1), &bytes_of(&foreign, &path_of(1)));
    assert_eq!(corruption_at(replayed(&image, &log.facts), &path_of(1)), 0);
}

/// WAL-12: whole records of a deleted segment in the unwritten rest of the newest one.
#[test]
fn foreign_records_behind_the_end_are_not_replayed() {
    let foreign = new_env();
    let mut other = Log::new(&foreign);
    other.append_synced(9);
    let old = bytes_of(&foreign, &path_of(1));
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(4);
    let end = usize::try_from(log.wal.end()).unwrap();
    let mut mixed = bytes_of(&env, &path_of(1));
    let size = mixed.len();
    mixed[end..].copy_from_slice(&old[end..size]);
    let image = with_bytes(&env, &path_of(1), &mixed);
    let found = replayed(&image, &log.facts).unwrap();
    assert_eq!(found.prefix(), 4);
    assert_eq!(found.report.cuts.len(), 1);
}

/// WAL-22, WAL-23, WAL-27, P10: a torn tail stays one however often recovery is begun anew, and
/// once a new segment has named the cut, what is appended there is found.
#[test]
fn a_torn_tail_stays_a_torn_tail_until_a_new_segment_settles_it() {
    let (log, start, end) = ten_and_one();
    let mut bytes = bytes_of(&log.env, &path_of(1));
    bytes[usize::try_from(end).unwrap() - 9] ^= 1;
    let env = with_bytes(&log.env, &path_of(1), &bytes);
    for attempt in 0..3 {
        let found = replayed(&env, &log.facts).unwrap();
        assert_eq!(found.prefix(), 10);
        assert_eq!(found.report.cuts[0].cut.offset, start);
        // The next segment is prepared, and the process dies before it is named.
        Spare::create(&env, dir(), 20 + attempt, &OPTIONS).unwrap();
    }
    let found = replayed(&env, &log.facts).unwrap();
    let mut log = Log::go_on(&env, &found, &log.facts).unwrap();
    log.append_synced(2);
    let found = replayed(&env, &log.facts).unwrap();
    assert_eq!(found.prefix(), 12);
    assert_eq!(found.report.cuts, [], "the cut is final and no news");
    // The record that was torn comes back whole: it stays cut.
    let whole = bytes_of(&env, &path_of(1));
    let mut whole = whole.clone();
    whole[usize::try_from(end).unwrap() - 9] ^= 1;
    let image = with_bytes(&env, &path_of(1), &whole);
    assert_eq!(replayed(&image, &log.facts).unwrap().prefix(), 12);
}

/// HOST-04 for the log: whatever is flipped, cut, spliced, exchanged, doubled or removed, a replay
/// gives the first records in order, or an error that names a file of the directory.
#[test]
fn random_damage_gives_a_prefix_or_an_error() {
    let env = new_env();
    let mut log = Log::new(&env);
    log.append_synced(70);
    let newest = log.wal.number();
    assert!(newest > 2);
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..1500_u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut image = env.kill();
        for _ in 0..random.random_range(1..4) {
            let path = path_of(random.random_range(1..=newest));
            if image.metadata(&path).unwrap().is_none() {
                continue;
            }
            let mut bytes = bytes_of(&image, &path);
            let length = bytes.len();
            let mut place = || random.random_range(0..length.max(1));
            let (from, to) = (place(), place());
            match random.random_range(0..7) {
                0 if length > 0 => bytes[from] ^= 1 << (to % 8),
                1 => bytes.truncate(from),
                2 if from < to => bytes[from..to].fill(0),
                3 if from < to => bytes.copy_within(from / 8 * 8..to, from / 16 * 8),
                4 => {
                    let other = bytes_of(&env, &path_of(random.random_range(1..=newest)));
                    let end = length.min(other.len());
                    let start = from.min(end);
                    bytes[start..end].copy_from_slice(&other[start..end]);
                }
                5 => bytes.extend_from_within(from..),
                _ => {
                    image.remove(&path).unwrap();
                    continue;
                }
            }
            image = with_bytes(&image, &path, &bytes);
        }
        let facts = if seed % 2 == 0 { &log.facts[..] } else { &[] };
        match replayed(&image, facts) {
            Ok(found) => {
                found.prefix();
                opened += 1;
            }
            Err(Error::Corruption { path, .. } | Error::MissingFile(path)) => {
                assert!(path.starts_with(dir()), "seed {seed}");
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(opened > 50 && refused > 500, "{opened} opened, {refused} refused");
}
