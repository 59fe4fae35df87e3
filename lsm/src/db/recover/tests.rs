//! Records that are whole, with right checksums, and say what cannot be.

use treering_env::{CrashPolicy, MemEnv};

use super::*;
use crate::batch::{FamilyRef, WriteBatch, encode_header};
use crate::{Db, Durability, Options};

/// A family of some number.
struct Numbered(u32);

impl FamilyRef for Numbered {
    fn family_id(&self) -> u32 {
        self.0
    }

    fn database_id(&self) -> u64 {
        0
    }
}

fn options() -> Options {
    Options { background_threads: 0, ..Options::default() }
}

fn put_in(family: u32) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.put_in(&Numbered(family), "key", "value");
    batch
}

/// Opens a database whose log ends with this payload in a whole record, synced. Before it, two
/// operations were written: sequence 1 in the default family and 2 in a family, number 1, that was
/// dropped. Gives the outcome, the record's path and its offset.
fn replayed(header: &[u8], ops: &[u8]) -> (Result<Db>, PathBuf, u64) {
    let env = MemEnv::new();
    let db = Db::open(Arc::new(env.clone()), "db", options()).unwrap();
    db.put("before", "1").unwrap();
    let family = db.create_column_family("dropped", CfOptions::default()).unwrap();
    family.put("key", "2").unwrap();
    db.drop_column_family(&family).unwrap();
    let shared = &db.handle.shared;
    let (number, offset) = {
        let mut log = shared.log.lock();
        let at = (log.number().unwrap(), log.size());
        log.append(&[header, ops], Durability::Synced, 1).unwrap();
        at
    };
    shared.sync_wal().unwrap();
    let image = env.crash(CrashPolicy::DropAll);
    let path = FileName::Log(number).path("db".as_ref());
    (Db::open(Arc::new(image), "db", options()), path, offset)
}

/// WAL-38
#[test]
fn a_whole_record_that_says_the_impossible_is_corruption_at_its_offset() {
    let good = put_in(0);
    let ops = good.encoded_ops();
    let mut unknown_kind = ops.to_vec();
    unknown_kind[0] = 0xEE;
    let mut twice = ops.to_vec();
    twice.extend_from_slice(ops);
    let foreign = put_in(99);
    let cases: [(&str, [u8; 12], &[u8]); 9] = [
        ("sequence 0", encode_header(0, 1), ops),
        ("the last sequence number there is", encode_header(u64::MAX, 1), ops),
        ("beyond the last sequence number", encode_header(MAX_SEQUENCE, 2), &twice),
        ("a sequence number before the last", encode_header(1, 1), ops),
        ("no operation", encode_header(3, 0), &[]),
        ("more operations than there are", encode_header(3, 2), ops),
        ("fewer operations than there are", encode_header(3, 1), &twice),
        ("a family that never was", encode_header(3, 1), foreign.encoded_ops()),
        ("an unknown operation", encode_header(3, 1), &unknown_kind),
    ];
    for (what, header, ops) in cases {
        let (result, path, offset) = replayed(&header, ops);
        match result.unwrap_err() {
            Error::Corruption { path: named, offset: Some(at), .. } => {
                assert_eq!((named, at), (path, offset), "{what}");
            }
            error => panic!("{what}: {error}"),
        }
    }
    let (result, ..) = replayed(&[1, 2, 3], &[]);
    assert!(matches!(result, Err(Error::Corruption { .. })), "a header cut short");
}

/// WAL-38: the other side of it.
#[test]
fn a_record_of_a_dropped_family_is_passed_over_and_one_of_a_living_is_applied() {
    for (family, count) in [(0, 2), (1, 1)] {
        let (db, ..) = replayed(&encode_header(3, 1), put_in(family).encoded_ops());
        assert_eq!(db.unwrap().iter().count(), count, "family {family}");
    }
}
