//! Headers with valid checksums and impossible fields, and reads that fail.

use super::*;

/// A file of a first record and one more made from `header` and `payload`, with zeros behind.
fn crafted(edit: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut bytes = unsynced_records(EPOCH, 2);
    let offsets = scan(&bytes).offsets;
    let start = offsets[2];
    let (mut header, _) = Header::decode(&bytes[at(start)..], start).unwrap();
    edit(&mut header);
    let (encoded, _) = header.encode(start);
    bytes[at(start)..at(start) + HEADER_SIZE].copy_from_slice(&encoded);
    bytes
}

fn stop_of(bytes: &[u8]) -> Stop {
    scan(bytes).evidence.stop
}

/// P4: a record that is intact but does not follow the one before it is corruption whatever
/// comes after: a crash cannot leave it.
#[test]
fn an_intact_header_that_breaks_a_rule_is_corruption() {
    type Edit = fn(&mut Header);
    let edits: [Edit; 10] = [
        |header| header.chain ^= 1,
        |header| header.wal_seq += 1,
        |header| header.wal_seq -= 1,
        |header| header.wal_seq = 0,
        |header| header.watermark = 1 << 40,
        |header| header.kind = 6,
        |header| header.kind = 255,
        |header| header.kind = RecordType::Begin as u8,
        |header| header.reserved = 1,
        |header| header.reserved = 1 << 47,
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let bytes = crafted(edit);
        assert!(matches!(stop_of(&bytes), Stop::Broken(_)), "edit {number}");
        let found = scan(&bytes).verdict();
        assert!(matches!(found, Verdict::Corruption(Damage::Broken(_))), "edit {number}");
    }
    assert_eq!(scan(&crafted(|_| {})).verdict(), Verdict::CleanEnd);
}

#[test]
fn a_watermark_that_falls_is_corruption() {
    let bytes = synced_records(EPOCH, 3);
    let start = scan(&bytes).offsets[3];
    let (mut header, _) = Header::decode(&bytes[at(start)..], start).unwrap();
    header.watermark -= 8;
    header.watermark = header.watermark.min(96);
    let mut damaged = bytes.clone();
    damaged[at(start)..at(start) + HEADER_SIZE].copy_from_slice(&header.encode(start).0);
    assert!(matches!(stop_of(&damaged), Stop::Broken(_)));
}

#[test]
fn a_newer_version_is_named_and_refused() {
    let bytes = crafted(|header| header.version = 9);
    let error = scan_file(Arc::new(Bytes::new(bytes)), u32::MAX).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 9, supported: 0, .. }), "{error}");
}

/// P9, WAL-06: every length at a boundary is refused before anything is allocated for it.
#[test]
fn a_length_is_bounded_before_it_is_used() {
    let limit = 500;
    let original = unsynced_records(EPOCH, 2);
    let start = scan(&original).offsets[2];
    let rest = u32::try_from(original.len() as u64 - start).unwrap() - 48;
    let actual = u32::try_from(payload(1).len()).unwrap();
    assert_eq!(rest, actual.next_multiple_of(8));
    // (Lengths from `rest - 7` to `rest` cover the same padded bytes, as only a forger could.)
    let lengths = [0, 1, rest - 8, rest + 1, rest + 8, limit, limit + 1, u32::MAX - 7, u32::MAX];
    for length in lengths {
        let bytes = crafted(|header| header.length = length);
        let size = bytes.len();
        let file = Arc::new(Bytes::new(bytes));
        let scan = scan_file(Arc::clone(&file), limit).unwrap();
        assert_eq!(scan.evidence.offset, start, "length {length}");
        assert!(file.largest_read.load(Ordering::Relaxed) <= size, "length {length}");
        let broken = matches!(scan.evidence.stop, Stop::Broken(_));
        assert_eq!(broken, length > limit, "length {length}: {:?}", scan.evidence.stop);
    }
}

/// P11, WAL-04: a failed or short read, whichever it is, is an error with file and offset, never
/// an end.
#[test]
fn a_failed_read_is_an_error_and_never_an_end() {
    let bytes = written(EPOCH, |writer| {
        for size in [100, 300_000, 5, 700_000, 100_000, 200_000, 1] {
            writer.append(RecordType::Data, &[&vec![9; size]]).unwrap();
        }
    });
    let mut bytes = bytes;
    bytes.resize(bytes.len() + (1 << 20), 0);
    let whole = Arc::new(Bytes::new(bytes.clone()));
    assert_eq!(scan_file(Arc::clone(&whole), u32::MAX).unwrap().data().len(), 7);
    let reads = whole.reads.load(Ordering::Relaxed);
    assert!(reads > 8, "{reads}");
    for read in 0..reads {
        for kind in [ErrorKind::Other, ErrorKind::UnexpectedEof] {
            let file = Bytes::failing(bytes.clone(), read, kind);
            let error = scan_file(Arc::new(file), u32::MAX).unwrap_err();
            let Error::Io(error) = error else { panic!("read {read}: {error}") };
            assert_eq!(error.kind(), kind);
            assert_eq!(error.path(), Path::new("db/000007.log"));
            assert!(error.offset().is_some());
        }
    }
    let file = Bytes::failing(bytes, reads, ErrorKind::Other);
    assert_eq!(scan_file(Arc::new(file), u32::MAX).unwrap().data().len(), 7);
}

/// R8: whatever the bytes are, reading them ends, and in bounded memory.
#[test]
fn random_bytes_are_read_without_a_record() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..200_u64 {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut bytes = vec![0_u8; random.random_range(0..5000)];
        random.fill(&mut bytes[..]);
        let scan = scan(&bytes);
        assert_eq!(scan.records.len(), 0, "seed {seed}");
        assert_eq!(scan.evidence.later_records, 0, "seed {seed}");
    }
}

#[test]
fn payloads_of_the_record_layer_refuse_what_they_do_not_know() {
    let predecessor = Predecessor { number: 6, end: 4096, last_wal_seq: 40, last_crc: 7 };
    for begin in
        [Begin::new(FileRole::Log, 7, Some(predecessor)), Begin::new(FileRole::Manifest, 7, None)]
    {
        let bytes = begin.encode();
        assert_eq!(Begin::decode(&bytes), Some(begin));
        assert_eq!(Begin::decode(&bytes[..47]), None);
        for (byte, value) in [(0, 3), (0, 0), (1, 2), (4, 1), (44, 1)] {
            let mut damaged = bytes;
            damaged[byte] = value;
            assert_eq!(Begin::decode(&damaged), None, "byte {byte} = {value}");
        }
    }
    let successor = Successor { number: 8, epoch: EPOCH, prepared: 4096 };
    for end in [End { successor: None }, End { successor: Some(successor) }] {
        let bytes = end.encode();
        assert_eq!(End::decode(&bytes), Some(end));
        assert_eq!(End::decode(&bytes[..31]), None);
        let mut damaged = bytes;
        damaged[0] = 3;
        assert_eq!(End::decode(&damaged), None);
    }
}
