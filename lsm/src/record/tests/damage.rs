//! Damage to real files: flipped bits, spliced, deleted, repeated and swapped records, zeroed
//! pages, torn ends.

use super::*;

/// The number of data records in the files here.
const COUNT: u8 = 12;

/// Only whole records of the original, in order from the first, may come back.
fn assert_prefix(scan: &Scan, what: &str) {
    for (number, found) in scan.data().iter().enumerate() {
        assert_eq!(*found, payload(u8::try_from(number).unwrap()), "{what}");
    }
}

/// P1, WAL-05: a flip of any bit of a synced record, its header, payload or padding, is damage
/// there, proved by the records that follow.
#[test]
fn every_flipped_bit_of_a_synced_record_is_corruption_at_that_record() {
    let bytes = synced_records(EPOCH, COUNT);
    let offsets = scan(&bytes).offsets;
    // The first record, one in the middle (with padding), and the last but one, whose only
    // witness is the last.
    for index in [0, 5, usize::from(COUNT) - 1] {
        let (start, end) = (offsets[index], offsets[index + 1]);
        for byte in at(start)..at(end) {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[byte] ^= 1 << bit;
                let scan = scan(&damaged);
                assert_prefix(&scan, "flip");
                assert_eq!(scan.evidence.offset, start, "byte {byte} bit {bit}");
                let found = scan.verdict();
                assert!(
                    matches!(found, Verdict::Corruption(Damage::Witnessed(_))),
                    "byte {byte} bit {bit}: {found:?}"
                );
            }
        }
    }
}

/// P2, WAL-12: a record of another file is not valid here, and a copy of an own record is not
/// valid elsewhere in the file.
#[test]
fn a_record_is_valid_only_in_its_file_and_at_its_offset() {
    let bytes = unsynced_records(EPOCH, COUNT);
    let other = unsynced_records(EPOCH + 1, COUNT);
    let offsets = scan(&bytes).offsets;
    for index in 1..offsets.len() - 1 {
        let range = at(offsets[index])..at(offsets[index + 1]);
        let mut spliced = bytes.clone();
        spliced[range.clone()].copy_from_slice(&other[range.clone()]);
        assert_eq!(scan(&spliced).evidence.offset, offsets[index], "record {index}");
        let end = offsets[offsets.len() - 1];
        let mut repeated = bytes.clone();
        repeated.extend_from_slice(&bytes[range]);
        let scan = scan(&repeated);
        assert_eq!(scan.evidence.offset, end);
        assert_eq!(scan.evidence.later_records, 0);
        assert_eq!(scan.verdict(), Verdict::TornTail);
    }
}

/// WAL-12: whole records of an older segment in the rest of a prepared one, at the very offsets
/// they were written for, are neither replayed nor witnesses.
#[test]
fn old_records_in_the_unwritten_rest_of_a_segment_mean_nothing() {
    let old = synced_records(EPOCH + 1, COUNT);
    let new = synced_records(EPOCH, 4);
    let mut mixed = old.clone();
    mixed[..new.len()].copy_from_slice(&new);
    let scan = scan(&mixed);
    assert_eq!(scan.data().len(), 4);
    assert_eq!(scan.evidence.later_records, 0);
    assert_eq!(scan.verdict(), Verdict::TornTail);
}

/// P4: with one record taken out and the rest moved up, nothing behind the gap is valid.
#[test]
fn deleted_and_swapped_records_end_the_file_there() {
    let bytes = written(EPOCH, |writer| {
        for number in 0..COUNT {
            writer.append(RecordType::Data, &[&[number | 0x80; 40]]).unwrap();
        }
    });
    let offsets = scan(&bytes).offsets;
    for index in 1..usize::from(COUNT) - 1 {
        let (start, middle, end) =
            (at(offsets[index]), at(offsets[index + 1]), at(offsets[index + 2]));
        let mut deleted = bytes.clone();
        deleted.drain(start..middle);
        assert_eq!(scan(&deleted).evidence.offset, start as u64);
        let mut swapped = bytes.clone();
        swapped[start..end].rotate_left(middle - start);
        assert_eq!(scan(&swapped).evidence.offset, start as u64);
    }
}

/// P5, WAL-15: the same damage is corruption below what a later record proves durable, and an
/// unsynced reorder above it.
#[test]
fn the_watermark_separates_damage_from_writes_that_were_never_synced() {
    let bytes = written(EPOCH, |writer| {
        for number in 0..COUNT {
            writer.append(RecordType::Data, &[&payload(number)]).unwrap();
            if number == 5 {
                writer.sync().unwrap();
            }
        }
    });
    let offsets = scan(&bytes).offsets;
    for index in 0..offsets.len() - 1 {
        let mut damaged = bytes.clone();
        damaged[at(offsets[index])..at(offsets[index + 1])].fill(0);
        let scan = scan(&damaged);
        assert_eq!(scan.evidence.offset, offsets[index]);
        let found = scan.verdict();
        // Record 0 begins the file, so number 5 is the record of index 6.
        match index {
            0..=6 => assert!(matches!(found, Verdict::Corruption(Damage::Witnessed(_)))),
            12 => assert_eq!(found, Verdict::CleanEnd, "the last record, lost without a trace"),
            _ => assert_eq!(found, Verdict::UnsyncedReorder, "record {index}"),
        }
    }
}

/// P8, WAL-07: a zeroed page inside synced records is corruption; zeros are an end only if
/// nothing valid follows.
#[test]
fn a_zeroed_page_among_synced_records_is_corruption() {
    let bytes = written(EPOCH, |writer| {
        for number in 0..200_u8 {
            writer.append(RecordType::Data, &[&vec![number | 1; 300]]).unwrap();
            writer.sync().unwrap();
        }
    });
    let pages = bytes.len() / 4096;
    assert!(pages > 10);
    for page in 0..pages {
        let mut damaged = bytes.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0);
        let found = scan(&damaged).verdict();
        assert!(matches!(found, Verdict::Corruption(Damage::Witnessed(_))), "page {page}");
    }
    let mut all_but_the_last = bytes.clone();
    all_but_the_last[..pages * 4096].fill(0);
    let found = scan(&all_but_the_last).verdict();
    assert!(matches!(found, Verdict::Corruption(Damage::Witnessed(_))));
}

/// P8: zeros alone are never a record, at any offset, whatever their checksum.
#[test]
fn zeros_are_a_clean_end() {
    let bytes = synced_records(EPOCH, 3);
    let mut prepared = bytes.clone();
    prepared.resize(1 << 20, 0);
    let scan = scan(&prepared);
    assert_eq!(scan.data().len(), 3);
    assert_eq!(scan.evidence.offset, bytes.len() as u64);
    assert_eq!(scan.verdict(), Verdict::CleanEnd);
    for length in 0..200 {
        let zeros = super::scan(&vec![0; length]);
        assert_eq!(zeros.evidence.tail_end, 0);
        assert_eq!(zeros.verdict(), Verdict::CleanEnd);
    }
}

/// WAL-01, WAL-08, WAL-16: a last record cut or zeroed at any byte is a torn tail or absent, and
/// what stands before it is there.
#[test]
fn a_last_record_torn_at_any_byte_is_left_out_whole() {
    let bytes = unsynced_records(EPOCH, 4);
    let offsets = scan(&bytes).offsets;
    let start = at(offsets[offsets.len() - 2]);
    for cut in start..=bytes.len() {
        let mut zeroed = bytes.clone();
        zeroed[cut..].fill(0);
        zeroed.resize(bytes.len() + 4096, 0);
        for torn in [&bytes[..cut], &zeroed] {
            let scan = scan(torn);
            assert_prefix(&scan, "torn");
            let found = scan.verdict();
            // Zeroing the padding, or what is zero anyway, changes nothing.
            let whole = torn.len() >= bytes.len() && torn[..bytes.len()] == bytes[..];
            if whole {
                assert_eq!((scan.data().len(), found), (4, Verdict::CleanEnd));
            } else {
                assert_eq!(scan.data().len(), 3, "cut at {cut}");
                let expected = if cut == start { Verdict::CleanEnd } else { Verdict::TornTail };
                assert_eq!(found, expected, "cut at {cut}");
            }
        }
    }
}

/// WAL-09: a batch of which only some sectors arrived is not there at all.
#[test]
fn a_large_record_with_any_sector_missing_is_absent() {
    let bytes = written(EPOCH, |writer| {
        writer.append(RecordType::Data, &[&vec![7; 64 << 10]]).unwrap();
    });
    for sector in 0..bytes.len() / 512 {
        let mut torn = bytes.clone();
        torn[sector * 512..(sector + 1) * 512].fill(0);
        assert_eq!(scan(&torn).data().len(), 0, "sector {sector}");
    }
}

/// A witness is found wherever it stands relative to the reader's windows, and counted once.
#[test]
fn a_witness_is_found_across_window_seams() {
    const WINDOW: usize = 256 << 10;
    for shift in (0..200).step_by(8) {
        // Damage in the first data record; the witness starts around the end of a window.
        let length = WINDOW - 48 - 100 + shift;
        let bytes = written(EPOCH, |writer| {
            writer.append(RecordType::Data, &[&vec![1; length]]).unwrap();
            writer.sync().unwrap();
            writer.append(RecordType::Data, &[b"witness"]).unwrap();
        });
        let mut damaged = bytes.clone();
        damaged[200] ^= 1;
        let scan = scan(&damaged);
        assert_eq!(scan.evidence.later_records, 1, "shift {shift}");
        assert!(matches!(scan.verdict(), Verdict::Corruption(Damage::Witnessed(_))));
    }
}
