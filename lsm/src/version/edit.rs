//! A version edit: one change of the database's files, families and logs, and its bytes in the
//! manifest (`docs/format/manifest.md`).
//!
//! An edit is a sequence of fields, each a tag and its body, in ascending order of tags; a field
//! that stands for one value occurs at most once. So an edit has exactly one encoding, and no
//! count or length in it is trusted before it was compared with the bytes that are there.

use std::sync::Arc;

use super::{FamilyId, FileMeta, LEVELS};
use crate::coding::{
    get_slice, get_u8, get_u64, get_varint32, get_varint64, put_slice, put_varint32, put_varint64,
};
use crate::key;
use crate::record::SegmentFact;

/// The manifest format this build writes, and the newest it reads.
pub(crate) const FORMAT_VERSION: u32 = 0;
/// The longest name of a column family in bytes.
pub(crate) const MAX_FAMILY_NAME: usize = 255;
/// No file number on disk is larger: what remains above it cannot be used up by counting.
pub(crate) const MAX_FILE_NUMBER: u64 = 1 << 56;
/// No table on disk is larger, in bytes.
const MAX_TABLE_SIZE: u64 = 1 << 48;

const FORMAT: u32 = 1;
const NEXT_FILE_NUMBER: u32 = 2;
const LAST_SEQUENCE: u32 = 3;
const NEXT_FAMILY_ID: u32 = 4;
const LOG: u32 = 5;
const DROP_FAMILY: u32 = 6;
const ADD_FAMILY: u32 = 7;
const FAMILY_LOG: u32 = 8;
const REMOVE_TABLE: u32 = 9;
const ADD_TABLE: u32 = 10;

/// How far a family's data has left the log for tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilyLog {
    /// The family.
    pub(crate) family: FamilyId,
    /// The oldest segment that may hold records of the family that no table holds.
    pub(crate) log_number: u64,
    /// Every operation of the family up to this sequence number is in its tables.
    pub(crate) flushed_sequence: u64,
}

/// A change to the database. Fields left at their default change nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VersionEdit {
    /// Present in the first edit of a manifest only, which holds the whole state.
    pub(crate) format: Option<u32>,
    /// All file numbers in use are below this one. The version set fills it in.
    pub(crate) next_file_number: Option<u64>,
    /// No table holds a newer sequence number. The version set raises it as needed.
    pub(crate) last_sequence: Option<u64>,
    /// Family ids below this one were given out, and are never given out again.
    pub(crate) next_family_id: Option<FamilyId>,
    /// Log segments that were prepared and named, or that ended.
    pub(crate) logs: Vec<SegmentFact>,
    /// Families that cease to exist, with all their tables.
    pub(crate) dropped_families: Vec<FamilyId>,
    /// Families that come to exist.
    pub(crate) added_families: Vec<(FamilyId, String)>,
    /// Families that moved forward in the log.
    pub(crate) family_logs: Vec<FamilyLog>,
    /// Tables that leave a level; applied before `added`.
    pub(crate) removed: Vec<(FamilyId, usize, u64)>,
    /// Tables that enter a level. A table that only changes its level is in both lists, with the
    /// same [`FileMeta`].
    pub(crate) added: Vec<(FamilyId, usize, Arc<FileMeta>)>,
}

/// Why bytes are not an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EditError {
    /// They are damaged or were never an edit.
    Malformed(&'static str),
    /// They are of a newer format version.
    Unsupported(u32),
}

impl VersionEdit {
    /// Appends the edit's bytes to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, tag: u32, value: Option<u64>| {
            if let Some(value) = value {
                put_varint32(out, tag);
                put_varint64(out, value);
            }
        };
        number(out, FORMAT, self.format.map(u64::from));
        number(out, NEXT_FILE_NUMBER, self.next_file_number);
        number(out, LAST_SEQUENCE, self.last_sequence);
        number(out, NEXT_FAMILY_ID, self.next_family_id.map(u64::from));
        for log in &self.logs {
            put_varint32(out, LOG);
            log.encode(out);
        }
        for family in &self.dropped_families {
            put_varint32(out, DROP_FAMILY);
            put_varint32(out, *family);
        }
        for (family, name) in &self.added_families {
            put_varint32(out, ADD_FAMILY);
            put_varint32(out, *family);
            put_slice(out, name.as_bytes());
        }
        for log in &self.family_logs {
            put_varint32(out, FAMILY_LOG);
            put_varint32(out, log.family);
            put_varint64(out, log.log_number);
            put_varint64(out, log.flushed_sequence);
        }
        for (family, level, number) in &self.removed {
            put_varint32(out, REMOVE_TABLE);
            put_varint32(out, *family);
            put_level(out, *level);
            put_varint64(out, *number);
        }
        for (family, level, file) in &self.added {
            put_varint32(out, ADD_TABLE);
            put_varint32(out, *family);
            put_level(out, *level);
            put_file(out, file);
        }
    }

    /// Reads an edit that is all of `input`. Checks each field by itself; whether the edit fits
    /// what came before it is the caller's to check.
    pub(crate) fn decode(mut input: &[u8]) -> Result<Self, EditError> {
        let mut edit = Self::default();
        let mut last_tag = 0;
        while !input.is_empty() {
            let tag = get_varint32(&mut input).ok_or(EditError::Malformed("a cut tag"))?;
            let repeats = tag == last_tag && tag >= LOG;
            if tag <= last_tag && !repeats {
                return Err(EditError::Malformed("a field repeated or out of order"));
            }
            if tag > ADD_TABLE {
                return Err(EditError::Malformed("an unknown field"));
            }
            last_tag = tag;
            edit.decode_field(tag, &mut input)
                .ok_or(EditError::Malformed("a field with a bad value"))?;
            if let Some(found) = edit.format.filter(|found| *found > FORMAT_VERSION) {
                return Err(EditError::Unsupported(found));
            }
        }
        Ok(edit)
    }

    fn decode_field(&mut self, tag: u32, input: &mut &[u8]) -> Option<()> {
        match tag {
            FORMAT => self.format = Some(get_varint32(input)?),
            NEXT_FILE_NUMBER => self.next_file_number = Some(get_number(input)?),
            LAST_SEQUENCE => self.last_sequence = Some(get_sequence(input)?),
            NEXT_FAMILY_ID => self.next_family_id = Some(get_varint32(input)?),
            LOG => {
                let fact = SegmentFact::decode(input)?;
                let numbered = (1..=MAX_FILE_NUMBER).contains(&fact.number);
                self.logs.push(numbered.then_some(fact)?);
            }
            ADD_FAMILY => {
                let family = get_varint32(input)?;
                let name = std::str::from_utf8(get_slice(input)?).ok()?;
                if name.is_empty() || name.len() > MAX_FAMILY_NAME {
                    return None;
                }
                self.added_families.push((family, name.to_owned()));
            }
            DROP_FAMILY => self.dropped_families.push(get_varint32(input)?),
            FAMILY_LOG => self.family_logs.push(FamilyLog {
                family: get_varint32(input)?,
                log_number: get_varint64(input).filter(|number| *number <= MAX_FILE_NUMBER)?,
                flushed_sequence: get_sequence(input)?,
            }),
            REMOVE_TABLE => {
                self.removed.push((get_varint32(input)?, get_level(input)?, get_number(input)?));
            }
            ADD_TABLE => {
                let (family, level) = (get_varint32(input)?, get_level(input)?);
                self.added.push((family, level, Arc::new(get_file(input)?)));
            }
            _ => return None,
        }
        Some(())
    }
}

fn put_level(out: &mut Vec<u8>, level: usize) {
    out.push(u8::try_from(level).expect("there are seven levels"));
}

fn put_file(out: &mut Vec<u8>, file: &FileMeta) {
    put_varint64(out, file.number);
    put_varint64(out, file.size);
    out.extend_from_slice(&file.table_id.to_le_bytes());
    put_varint64(out, file.entries);
    put_varint64(out, file.smallest_sequence);
    put_varint64(out, file.largest_sequence);
    put_slice(out, &file.smallest);
    put_slice(out, &file.largest);
}

fn get_number(input: &mut &[u8]) -> Option<u64> {
    get_varint64(input).filter(|number| (1..=MAX_FILE_NUMBER).contains(number))
}

fn get_sequence(input: &mut &[u8]) -> Option<u64> {
    get_varint64(input).filter(|sequence| *sequence <= key::MAX_SEQUENCE)
}

fn get_level(input: &mut &[u8]) -> Option<usize> {
    get_u8(input).map(usize::from).filter(|level| *level < LEVELS)
}

fn get_internal_key(input: &mut &[u8]) -> Option<Vec<u8>> {
    let bytes = get_slice(input)?;
    let user_key = key::parse(bytes)?.user_key;
    (user_key.len() <= key::MAX_KEY_SIZE).then(|| bytes.to_vec())
}

fn get_file(input: &mut &[u8]) -> Option<FileMeta> {
    let number = get_number(input)?;
    let size = get_varint64(input).filter(|size| (1..=MAX_TABLE_SIZE).contains(size))?;
    let table_id = get_u64(input)?;
    let entries = get_varint64(input).filter(|entries| *entries > 0)?;
    let smallest_sequence = get_sequence(input)?;
    let largest_sequence = get_sequence(input).filter(|last| *last >= smallest_sequence)?;
    let smallest = get_internal_key(input)?;
    let largest = get_internal_key(input)?;
    if key::compare(&smallest, &largest).is_gt() {
        return None;
    }
    Some(FileMeta {
        table_id,
        entries,
        smallest_sequence,
        largest_sequence,
        ..FileMeta::new(number, size, smallest, largest)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::key::{ValueKind, encode, trailer};
    use crate::record::SegmentEnd;

    /// The edit whose bytes `docs/format/manifest.md` works out.
    pub(in crate::version) fn worked_edit() -> VersionEdit {
        let file = FileMeta {
            table_id: 0x0123_4567_89ab_cdef,
            entries: 2,
            smallest_sequence: 5,
            largest_sequence: 7,
            ..FileMeta::new(
                9,
                4242,
                encode(b"a", trailer(7, ValueKind::Put)),
                encode(b"b", trailer(5, ValueKind::Deletion)),
            )
        };
        VersionEdit {
            next_file_number: Some(10),
            last_sequence: Some(7),
            family_logs: vec![FamilyLog { family: 0, log_number: 8, flushed_sequence: 7 }],
            added: vec![(0, 0, Arc::new(file))],
            ..VersionEdit::default()
        }
    }

    pub(in crate::version) const WORKED_BYTES: &str = "02 0a 03 07 08 00 08 07 \
        0a 00 00 09 92 21 ef cd ab 89 67 45 23 01 02 05 07 \
        09 61 02 07 00 00 00 00 00 00 09 62 01 05 00 00 00 00 00 00";

    pub(in crate::version) fn from_hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    fn full_edit() -> VersionEdit {
        let end = SegmentEnd { end: 4096, last_wal_seq: 77, last_crc: 0xdead_beef };
        let fact =
            SegmentFact { number: 3, epoch: 9, prepared: 65_536, first_wal_seq: 1, end: Some(end) };
        VersionEdit {
            format: Some(FORMAT_VERSION),
            next_family_id: Some(300),
            logs: vec![fact, SegmentFact { number: 6, end: None, ..fact }],
            dropped_families: vec![4, 200],
            added_families: vec![(0, "default".to_owned()), (299, "users".to_owned())],
            removed: vec![(0, 1, 1), (299, 6, MAX_FILE_NUMBER)],
            ..worked_edit()
        }
    }

    fn bytes_of(edit: &VersionEdit) -> Vec<u8> {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        bytes
    }

    #[test]
    fn an_edit_has_the_worked_bytes_of_the_format_page() {
        assert_eq!(bytes_of(&worked_edit()), from_hex(WORKED_BYTES));
        assert_eq!(VersionEdit::decode(&from_hex(WORKED_BYTES)), Ok(worked_edit()));
        let page = include_str!("../../../docs/format/manifest.md");
        let worked = page.split("### Worked bytes").nth(1).unwrap();
        // The bytes are what each indented line begins with.
        let is_byte = |word: &&str| word.len() == 2 && u8::from_str_radix(word, 16).is_ok();
        let lines = worked.lines().filter(|line| line.starts_with("    "));
        let bytes = lines.flat_map(|line| line.split_whitespace().take_while(is_byte));
        let bytes: Vec<&str> = bytes.collect();
        assert_eq!(from_hex(&bytes.join(" ")), from_hex(WORKED_BYTES));
    }

    #[test]
    fn every_field_comes_back() {
        for edit in [VersionEdit::default(), worked_edit(), full_edit()] {
            assert_eq!(VersionEdit::decode(&bytes_of(&edit)), Ok(edit));
        }
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes_and_nothing_panics() {
        let good = bytes_of(&full_edit());
        for cut in 0..good.len() {
            // A cut at the end of a field is a shorter edit; anything else is malformed.
            if let Ok(edit) = VersionEdit::decode(&good[..cut]) {
                assert_eq!(bytes_of(&edit), good[..cut]);
            }
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(edit) = VersionEdit::decode(&bad) {
                assert_eq!(bytes_of(&edit), bad, "bit {bit}");
            }
        }
    }

    fn malformed(edit: &VersionEdit) {
        let result = VersionEdit::decode(&bytes_of(edit));
        assert_eq!(result, Err(EditError::Malformed("a field with a bad value")));
    }

    /// HOST-03
    #[test]
    fn numbers_levels_and_names_out_of_range_are_refused() {
        let with_file = |change: &dyn Fn(&mut FileMeta)| {
            let mut file = Arc::try_unwrap(worked_edit().added.remove(0).2).unwrap();
            change(&mut file);
            VersionEdit { added: vec![(0, 0, Arc::new(file))], ..VersionEdit::default() }
        };
        malformed(&VersionEdit { next_file_number: Some(u64::MAX), ..VersionEdit::default() });
        malformed(&VersionEdit { next_file_number: Some(0), ..VersionEdit::default() });
        malformed(&VersionEdit { last_sequence: Some(1 << 56), ..VersionEdit::default() });
        malformed(&VersionEdit { removed: vec![(0, 7, 1)], ..VersionEdit::default() });
        malformed(&VersionEdit { removed: vec![(0, 255, 1)], ..VersionEdit::default() });
        malformed(&with_file(&|file| file.number = MAX_FILE_NUMBER + 1));
        malformed(&with_file(&|file| file.size = 0));
        malformed(&with_file(&|file| file.size = u64::MAX));
        malformed(&with_file(&|file| file.entries = 0));
        malformed(&with_file(&|file| file.smallest_sequence = 8));
        malformed(&with_file(&|file| file.smallest.clone_from(&vec![1; 7])));
        malformed(&with_file(&|file| std::mem::swap(&mut file.smallest, &mut file.largest)));
        malformed(&with_file(&|file| {
            file.largest = encode(&vec![b'x'; key::MAX_KEY_SIZE + 1], trailer(5, ValueKind::Put));
        }));
        for name in [String::new(), "n".repeat(MAX_FAMILY_NAME + 1)] {
            malformed(&VersionEdit { added_families: vec![(1, name)], ..VersionEdit::default() });
        }
    }

    #[test]
    fn unknown_repeated_and_disordered_fields_are_refused() {
        let malformed = |bytes: &[u8], what| {
            assert_eq!(VersionEdit::decode(bytes), Err(EditError::Malformed(what)));
        };
        malformed(&[11, 0], "an unknown field");
        malformed(&[0, 0], "a field repeated or out of order");
        malformed(&[2, 10, 2, 10], "a field repeated or out of order");
        malformed(&[3, 7, 2, 10], "a field repeated or out of order");
        malformed(&[0x80], "a cut tag");
        // A name's length far beyond the edit.
        malformed(&[7, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, b'a'], "a field with a bad value");
        malformed(&[7, 1, 2, 0xc3, 0x28], "a field with a bad value");
    }

    #[test]
    fn a_newer_format_is_named_even_if_its_fields_are_unknown() {
        assert_eq!(VersionEdit::decode(&[1, 1, 99, 99]), Err(EditError::Unsupported(1)));
    }
}
