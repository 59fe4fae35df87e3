//! Verification finds every damage, goes on after it, and changes nothing.

use super::*;
use crate::{Error, checksum};

fn verified(env: &MemEnv) -> VerifyReport {
    let (before, operations) = (env.fingerprint(), env.operations());
    let report = verify(Arc::new(env.clone()), dir()).unwrap();
    assert_eq!((env.fingerprint(), env.operations()), (before, operations), "nothing changes");
    report
}

fn damaged_paths(report: &VerifyReport) -> Vec<&Path> {
    let mut paths: Vec<&Path> = report.damages.iter().map(|damage| &*damage.path).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[test]
fn a_sound_database_has_no_damage() {
    let sample = sample();
    let report = verified(&sample.env);
    assert_eq!(report.damages, []);
    assert_eq!(report.tails, []);
    assert_eq!(report.files, 7, "CURRENT, a manifest, two tables, three logs");
    // Six write records, a first record and two edits, and the blocks of the tables.
    assert!(report.blocks >= 6 + 3 + 4, "{report:?}");
    assert!(report.bytes > 10_000, "{report:?}");
}

/// HOST-09: a flipped bit anywhere in a table is a damage of that table.
#[test]
fn a_flipped_bit_of_a_table_is_found() {
    let sample = sample();
    for path in &sample.tables {
        let size = bytes_of(&sample.env, path).len();
        // Footer, properties and index are dense at the end.
        for offset in (0..size - 600).step_by(37).chain(size - 600..size) {
            let report = verified(&flipped(&sample.env, path, offset));
            assert_eq!(damaged_paths(&report), [path], "offset {offset}: {report:?}");
        }
    }
}

/// HOST-09: a flipped bit anywhere in the records of a log is a damage of that log; in the last
/// record of the newest it may be taken for a write that never finished.
#[test]
fn a_flipped_bit_of_a_log_is_found() {
    let sample = sample();
    for (path, end) in sample.logs.iter().zip(sample.log_ends) {
        for offset in (0..usize::try_from(end).unwrap()).step_by(3) {
            let report = verified(&flipped(&sample.env, path, offset));
            if path == &sample.logs[2] && report.damages.is_empty() {
                assert_eq!(report.tails.len(), 1, "offset {offset}");
                assert_eq!(report.tails[0].path, *path);
            } else {
                assert_eq!(damaged_paths(&report), [path], "offset {offset}: {report:?}");
                assert!(report.damages[0].offset.unwrap() <= offset as u64);
            }
        }
    }
}

/// HOST-09, MAN-05: a flipped bit in the manifest or in `CURRENT` is found, and the files are
/// then read by themselves.
#[test]
fn a_flipped_bit_of_the_manifest_or_current_is_found() {
    let sample = sample();
    let blocks = verified(&sample.env).blocks;
    for path in [&sample.manifest, &sample.current] {
        for offset in 0..bytes_of(&sample.env, path).len() {
            let report = verified(&flipped(&sample.env, path, offset));
            if report.damages.is_empty() {
                assert_eq!(path, &sample.manifest, "offset {offset}");
                assert_eq!(report.tails.len(), 1, "the last edit may be a torn one");
            } else {
                assert!(damaged_paths(&report).contains(&&**path), "offset {offset}: {report:?}");
                assert!(report.blocks + 8 > blocks, "everything else was read: {report:?}");
            }
        }
    }
}

#[test]
fn verification_goes_on_after_each_damage() {
    let sample = sample();
    let mut env = flipped(&sample.env, &sample.tables[0], 100);
    env = flipped(&env, &sample.tables[0], 5000);
    env = flipped(&env, &sample.tables[1], 100);
    env = flipped(&env, &sample.logs[0], 100);
    env = flipped(&env, &sample.logs[2], 100);
    let report = verified(&env);
    let mut expected: Vec<&Path> =
        [&sample.tables[0], &sample.tables[1], &sample.logs[0], &sample.logs[2]]
            .map(|path| &**path)
            .to_vec();
    expected.sort_unstable();
    assert_eq!(damaged_paths(&report), expected);
    assert_eq!(report.damages.len(), 5, "two blocks of the first table: {report:?}");
}

/// A table of a newer format is no damage, unless there is damage too.
#[test]
fn a_newer_format_is_told_apart_from_damage() {
    let sample = sample();
    let mut bytes = bytes_of(&sample.env, &sample.tables[0]);
    let start = bytes.len() - 64;
    let id = u64::from_le_bytes(bytes[start..start + 8].try_into().unwrap());
    bytes[start + 52] = 9;
    let crc = checksum::crc(id, start as u64, &[&bytes[start..start + 48], &bytes[start + 52..]]);
    bytes[start + 48..start + 52].copy_from_slice(&crc.to_le_bytes());
    let newer = with_bytes(&sample.env, &sample.tables[0], &bytes);
    let error = verify(Arc::new(newer.clone()), dir()).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 9, .. }), "{error}");
    let report = verified(&flipped(&newer, &sample.tables[1], 100));
    assert_eq!(report.damages.len(), 2, "{report:?}");
}

#[test]
fn a_damaged_block_is_reported_with_the_keys_it_may_cost() {
    let sample = sample();
    let report = verified(&flipped(&sample.env, &sample.tables[0], 100));
    let (least, greatest) = report.damages[0].keys.clone().unwrap();
    assert_eq!(least, b"key00001");
    assert!(greatest > least && greatest < b"key00400".to_vec(), "{greatest:?}");
    // Without its footer nothing of the table can be read, and what was in it the manifest knows.
    let size = bytes_of(&sample.env, &sample.tables[0]).len();
    let report = verified(&flipped(&sample.env, &sample.tables[0], size - 1));
    let (least, greatest) = report.damages[0].keys.clone().unwrap();
    assert_eq!(least, b"key00001");
    assert!(greatest > b"key00300".to_vec(), "{greatest:?}");
}

/// MAN-12, WAL-19: what the manifest names and is not there.
#[test]
fn missing_files_are_named() {
    let sample = sample();
    let current = [sample.current.clone()];
    for path in sample.tables.iter().chain(&sample.logs).chain(&current) {
        let env = sample.env.kill();
        env.remove(path).unwrap();
        let report = verified(&env);
        assert_eq!(damaged_paths(&report), [path], "{report:?}");
        assert_eq!(report.damages[0].what, "the file is missing");
        let is_table = sample.tables.contains(path);
        assert_eq!(report.damages[0].keys.is_some(), is_table, "{report:?}");
    }
    let env = sample.env.kill();
    env.remove(&sample.manifest).unwrap();
    assert_eq!(damaged_paths(&verified(&env)), [&sample.current]);
}

/// F13: a sound table in the place of another.
#[test]
fn exchanged_tables_are_found() {
    let sample = sample();
    let other = bytes_of(&sample.env, &sample.tables[1]);
    let report = verified(&with_bytes(&sample.env, &sample.tables[0], &other));
    assert_eq!(damaged_paths(&report), [&sample.tables[0]]);
}

#[test]
fn a_torn_tail_is_a_tail_and_no_damage() {
    let sample = sample();
    let last = usize::try_from(sample.log_ends[2]).unwrap() - 10;
    let report = verified(&flipped(&sample.env, &sample.logs[2], last));
    assert_eq!(report.damages, []);
    assert_eq!(report.tails.len(), 1);
    assert_eq!(report.tails[0].path, sample.logs[2]);
}

/// A record whose checksums hold and whose operations are none.
#[test]
fn a_record_that_is_no_batch_is_damage() {
    let env = sample().env;
    let path = FileName::Log(50).path(dir());
    let mut reader_of = sample();
    reader_of.env = env;
    let file = reader_of.env.create(&path, FileKind::Log).unwrap();
    let begin = crate::record::Begin::new(crate::record::FileRole::Log, 50, None);
    let mut writer = crate::record::RecordWriter::begin(file, random_id(), 90, &begin).unwrap();
    let place = writer.append(crate::record::RecordType::Data, &[b"no batch"]).unwrap();
    // Without CURRENT every file is read by itself.
    reader_of.env.remove(&FileName::Current.path(dir())).unwrap();
    let report = verified(&reader_of.env);
    let found = report.damages.iter().find(|damage| damage.path == path).unwrap();
    assert_eq!(found.offset, Some(place.offset));
    assert_eq!(found.what, "a write record without a header");
}

#[test]
fn left_overs_and_foreign_files_are_passed_over() {
    let sample = sample();
    for name in ["000777.sst", "notes.txt", "CURRENT.tmp", "MANIFEST-000778", "000779.log"] {
        let mut file = sample.env.create(&dir().join(name), FileKind::Other).unwrap();
        file.append(b"half of something").unwrap();
        file.finish().unwrap();
    }
    assert_eq!(verified(&sample.env).damages, []);
}

#[test]
fn a_database_in_use_is_refused() {
    let sample = sample();
    let held = sample.env.lock(&FileName::Lock.path(dir())).unwrap();
    let result = verify(Arc::new(sample.env.clone()), dir());
    assert!(matches!(result, Err(Error::Locked(_))), "{result:?}");
    drop(held);
    assert_eq!(verified(&sample.env).damages, []);
}

#[test]
fn what_is_no_database_is_said_to_be_none() {
    let env = MemEnv::new();
    env.create_dir_all(Path::new("empty")).unwrap();
    env.create_dir_all(Path::new("begun")).unwrap();
    Spare::create(&env, Path::new("begun"), 1, &LOG_OPTIONS).unwrap();
    env.create(Path::new("notes.txt"), FileKind::Other).unwrap();
    for path in ["empty", "begun", "notes.txt", "missing"] {
        let result = verify(Arc::new(env.clone()), path);
        assert!(matches!(result, Err(Error::NotADatabase { .. })), "{path}: {result:?}");
    }
}
