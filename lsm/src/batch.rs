//! Batches: operations that are applied together or not at all.
//!
//! A batch keeps its operations encoded, in the form in which they go to the log
//! (`docs/format/wal.md`, "Data records"):
//!
//! ```text
//! operation := kind u8 | family varint32 | key slice | [value slice, only for Put]
//! slice     := length varint64 | bytes
//! ```

use crate::coding::{get_slice, get_u8, get_u32, get_u64, get_varint32, put_slice, put_varint32};
use crate::key::{MAX_KEY_SIZE, MAX_VALUE_SIZE, ValueKind};
use crate::{Error, Result};

/// The number of a column family. Zero is `default`; numbers are never reused.
pub(crate) type FamilyId = u32;

/// The family `default`, which every database has.
pub(crate) const DEFAULT_FAMILY: FamilyId = 0;

/// The largest batch in bytes: the length field of a log record has 32 bits.
const MAX_BATCH_SIZE: u64 = u32::MAX as u64 - RECORD_OVERHEAD;

/// What a log record adds to a batch's operations, with room to spare.
const RECORD_OVERHEAD: u64 = 4096;

/// Bytes of the header that precedes the operations in a log record's payload.
pub(crate) const HEADER_SIZE: usize = 12;

/// Whatever names a column family: a handle to one.
pub trait FamilyRef {
    /// The family's number in its database.
    fn family_id(&self) -> u32;

    /// The open database that the handle is of: a number that no other open of this process has.
    fn database_id(&self) -> u64;
}

impl<T: FamilyRef + ?Sized> FamilyRef for &T {
    fn family_id(&self) -> u32 {
        (**self).family_id()
    }

    fn database_id(&self) -> u64 {
        (**self).database_id()
    }
}

/// A group of writes, over any column families, that is applied whole or not at all.
///
/// Later operations of a batch win over earlier ones on the same key. Building a batch never
/// fails; limits (keys 65,535 bytes, values 1 GiB, the batch just under 4 GiB) are checked when
/// it is written, before anything reaches the log. So is that all families named by handles are
/// of the database that it is written to: the same database opened again is another one.
///
/// A batch is kept in memory whole, and while it is written three times: as it was built, as the
/// log record, and in the memtables, where each operation takes its key, its value and about 100
/// bytes. A batch never spans memtables: one larger than
/// [`CfOptions::memtable_size`](crate::CfOptions::memtable_size) makes a memtable that large, which
/// is flushed right after it. Whoever loads more than memory holds writes it in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    ops: Vec<u8>,
    count: u32,
    /// The open database whose families are named, from the first handle on.
    database: Option<u64>,
    /// The first operation that breaks a limit, kept so that a length is never cut short.
    invalid: Option<String>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds: set `key` to `value` in the family `default`.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.add(ValueKind::Put, DEFAULT_FAMILY, key.as_ref(), value.as_ref());
    }

    /// Adds: delete `key` from the family `default`. Deleting an absent key is no error.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.add(ValueKind::Deletion, DEFAULT_FAMILY, key.as_ref(), &[]);
    }

    /// Adds: set `key` to `value` in `family`.
    pub fn put_in(
        &mut self,
        family: &(impl FamilyRef + ?Sized),
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) {
        self.note_database(family.database_id());
        self.add(ValueKind::Put, family.family_id(), key.as_ref(), value.as_ref());
    }

    /// Adds: delete `key` from `family`.
    pub fn delete_in(&mut self, family: &(impl FamilyRef + ?Sized), key: impl AsRef<[u8]>) {
        self.note_database(family.database_id());
        self.add(ValueKind::Deletion, family.family_id(), key.as_ref(), &[]);
    }

    /// Removes all operations; keeps the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.count = 0;
        self.database = None;
        self.invalid = None;
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether the batch has no operation. Writing an empty batch does nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes that the operations take in the log.
    pub fn size_in_bytes(&self) -> usize {
        self.ops.len()
    }

    /// The operations as they go to the log.
    pub(crate) fn encoded_ops(&self) -> &[u8] {
        &self.ops
    }

    /// The number of operations, as the log's header has it.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Checks the limits of keys, values and the whole, and that all families named by handles
    /// are of the open database `database`.
    pub(crate) fn validate(&self, database: u64) -> Result<()> {
        if let Some(what) = &self.invalid {
            return Err(Error::invalid(what.clone()));
        }
        if self.database.is_some_and(|named| named != database) {
            return Err(Error::foreign_family());
        }
        Ok(())
    }

    fn note_database(&mut self, database: u64) {
        if *self.database.get_or_insert(database) != database && self.invalid.is_none() {
            let what = "a column family of another open database than those before";
            self.invalid = Some(format!("operation {} of the batch: {what}", self.count));
        }
    }

    fn add(&mut self, kind: ValueKind, family: FamilyId, key: &[u8], value: &[u8]) {
        if self.invalid.is_some() {
            return;
        }
        let grown = self.ops.len() as u64 + key.len() as u64 + value.len() as u64 + 32;
        if let Some(what) = broken_limit(key.len(), value.len(), grown) {
            self.invalid = Some(format!("operation {} of the batch: {what}", self.count));
            return;
        }
        let count = self.count.checked_add(1);
        self.count = count.expect("a batch under 4 GiB has fewer than 2^32 operations");
        self.ops.push(kind as u8);
        put_varint32(&mut self.ops, family);
        put_slice(&mut self.ops, key);
        if kind == ValueKind::Put {
            put_slice(&mut self.ops, value);
        }
    }
}

fn broken_limit(key: usize, value: usize, batch: u64) -> Option<String> {
    if key > MAX_KEY_SIZE {
        return Some(format!("a key of {key} bytes; the limit is {MAX_KEY_SIZE}"));
    }
    if value > MAX_VALUE_SIZE {
        return Some(format!("a value of {value} bytes; the limit is {MAX_VALUE_SIZE}"));
    }
    if batch > MAX_BATCH_SIZE {
        return Some(format!("the batch exceeds {MAX_BATCH_SIZE} bytes; write it in parts"));
    }
    None
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    /// What it does.
    pub(crate) kind: ValueKind,
    /// The family it is for.
    pub(crate) family: FamilyId,
    /// The user key.
    pub(crate) key: &'a [u8],
    /// The value; empty for a deletion.
    pub(crate) value: &'a [u8],
}

/// The header of a data record's payload: the sequence of its first operation and their count.
pub(crate) fn encode_header(first_sequence: u64, count: u32) -> [u8; HEADER_SIZE] {
    let mut header = [0; HEADER_SIZE];
    header[..8].copy_from_slice(&first_sequence.to_le_bytes());
    header[8..].copy_from_slice(&count.to_le_bytes());
    header
}

/// Cuts the header off a data record's payload: first sequence, count, operations.
pub(crate) fn decode_header(mut payload: &[u8]) -> Option<(u64, u32, &[u8])> {
    let first_sequence = get_u64(&mut payload)?;
    let count = get_u32(&mut payload)?;
    Some((first_sequence, count, payload))
}

/// The `count` operations encoded in `bytes`. A `None` item says that the bytes are malformed, or
/// that some are left over after the last operation; the iterator ends there.
pub(crate) fn ops(bytes: &[u8], count: u32) -> Ops<'_> {
    Ops { rest: bytes, left: count, failed: false }
}

/// See [`ops`].
#[derive(Debug)]
pub(crate) struct Ops<'a> {
    rest: &'a [u8],
    left: u32,
    failed: bool,
}

impl<'a> Iterator for Ops<'a> {
    type Item = Option<Op<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || (self.left == 0 && self.rest.is_empty()) {
            return None;
        }
        let op = if self.left == 0 { None } else { decode_op(&mut self.rest) };
        self.left = self.left.saturating_sub(1);
        self.failed = op.is_none();
        Some(op)
    }
}

fn decode_op<'a>(input: &mut &'a [u8]) -> Option<Op<'a>> {
    let kind = ValueKind::from_byte(get_u8(input)?)?;
    let family = get_varint32(input)?;
    let key = get_slice(input)?;
    let value = match kind {
        ValueKind::Put => get_slice(input)?,
        ValueKind::Deletion => &[],
    };
    (key.len() <= MAX_KEY_SIZE && value.len() <= MAX_VALUE_SIZE).then_some(())?;
    Some(Op { kind, family, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Users;

    impl FamilyRef for Users {
        fn family_id(&self) -> u32 {
            300
        }

        fn database_id(&self) -> u64 {
            7
        }
    }

    struct Elsewhere;

    impl FamilyRef for Elsewhere {
        fn family_id(&self) -> u32 {
            300
        }

        fn database_id(&self) -> u64 {
            8
        }
    }

    fn sample() -> WriteBatch {
        let mut batch = WriteBatch::new();
        batch.put("k", "v");
        batch.delete_in(&Users, "gone");
        batch.put_in(&Users, "", "");
        batch
    }

    #[test]
    fn operations_come_back_in_order() {
        let batch = sample();
        let all: Vec<_> = ops(batch.encoded_ops(), batch.count()).map(Option::unwrap).collect();
        let op = |kind, family, key, value| Op { kind, family, key, value };
        assert_eq!(
            all,
            [
                op(ValueKind::Put, 0, &b"k"[..], &b"v"[..]),
                op(ValueKind::Deletion, 300, b"gone", b""),
                op(ValueKind::Put, 300, b"", b""),
            ]
        );
    }

    #[test]
    fn cut_or_miscounted_operations_are_noticed() {
        let batch = sample();
        let bytes = batch.encoded_ops();
        for cut in 0..bytes.len() {
            assert!(ops(&bytes[..cut], 3).any(|op| op.is_none()), "cut at {cut}");
        }
        assert!(ops(bytes, 2).any(|op| op.is_none()), "left-over bytes");
        assert!(ops(bytes, 4).any(|op| op.is_none()), "too few operations");
        assert!(ops(&[9, 0, 0], 1).any(|op| op.is_none()), "unknown kind");
        assert_eq!(ops(&[], 0).count(), 0);
    }

    #[test]
    fn a_key_above_the_limit_is_refused_by_number_and_later_operations_do_not_hide_it() {
        let mut batch = sample();
        batch.put(vec![0; MAX_KEY_SIZE + 1], "v");
        batch.put("fine", "v");
        let message = batch.validate(7).unwrap_err().to_string();
        assert_eq!(
            message,
            "invalid argument: operation 3 of the batch: a key of 65536 bytes; the limit is 65535"
        );
        batch.clear();
        batch.put(vec![0; MAX_KEY_SIZE], "v");
        batch.validate(7).unwrap();
    }

    /// Nobody builds 4 GiB in a test: the limit is asked what it says.
    #[test]
    fn values_and_batches_above_the_limits_are_refused_with_the_limit_and_what_to_do() {
        let most = u64::from(u32::MAX) - 4096;
        assert_eq!(broken_limit(MAX_KEY_SIZE, MAX_VALUE_SIZE, most), None);
        let value = broken_limit(1, MAX_VALUE_SIZE + 1, most).unwrap();
        assert_eq!(value, "a value of 1073741825 bytes; the limit is 1073741824");
        let batch = broken_limit(1, 1, most + 1).unwrap();
        assert_eq!(batch, "the batch exceeds 4294963199 bytes; write it in parts");
    }

    #[test]
    fn a_batch_belongs_to_the_one_database_whose_families_it_names() {
        let mut batch = sample();
        batch.validate(7).unwrap();
        assert!(matches!(batch.validate(8), Err(Error::InvalidArgument(_))));
        batch.delete_in(&Elsewhere, "k");
        batch.put_in(&Users, "k", "v");
        let message = batch.validate(7).unwrap_err().to_string();
        assert!(message.contains("operation 3 of the batch: a column family of another"));
        batch.clear();
        batch.put("k", "v");
        batch.validate(7).unwrap();
        batch.validate(8).unwrap();
        batch.put_in(&Elsewhere, "k", "v");
        batch.validate(8).unwrap();
    }

    /// Each line of the page holds some of the bytes, then two spaces and what they mean.
    #[test]
    fn a_data_record_has_the_worked_bytes_of_the_format_page() {
        let mut batch = WriteBatch::new();
        batch.put("k", "v");
        batch.delete_in(&Users, "gone");
        let payload = [&encode_header(7, batch.count())[..], batch.encoded_ops()].concat();
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format/wal.md"));
        let (_, after) = page.split_once("```worked\n").unwrap();
        let (worked, _) = after.split_once("```").unwrap();
        let bytes = worked.lines().filter_map(|line| line.split("  ").next());
        let bytes = bytes.flat_map(|line| line.split(' '));
        let bytes: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        assert_eq!(bytes, payload);
    }

    #[test]
    fn the_header_comes_back() {
        let mut payload = encode_header(7, 3).to_vec();
        payload.push(1);
        assert_eq!(decode_header(&payload), Some((7, 3, &[1][..])));
        assert_eq!(decode_header(&payload[..11]), None);
    }
}
