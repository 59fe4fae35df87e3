//! The record format that the write-ahead log and the manifest share: `docs/format/record.md`.
//!
//! A file of records is written once, from start to end, by a [`RecordWriter`], and read from its
//! start by a [`RecordReader`] up to the first offset that holds no valid record. What that
//! offset means (a clean end, a write that never finished, damage) is for [`verdict`] to say, from
//! the [`Evidence`] that the reader collects behind it.
//!
//! Invariants:
//! * each offset of a file is written at most once, so a valid record is what was written there;
//! * a record's watermark is at most its own offset and never falls from record to record;
//! * nothing is appended after the first failure.

mod header;
mod payload;
mod reader;
mod verdict;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use header::{HEADER_SIZE, Header, RecordType};
pub(crate) use payload::{Begin, End, FileRole, Predecessor, SegmentEnd, SegmentFact, Successor};
pub(crate) use reader::{Evidence, Record, RecordReader, Stop, Tail, Witness};
#[cfg(test)]
use verdict::Damage;
pub(crate) use verdict::{Bounds, Cut, CutReason, Verdict, settle, verdict};
pub(crate) use writer::{Appended, RecordWriter};

/// The version of the record format and of everything built on it that this build writes and
/// the newest it reads. Version 0 may change without notice.
pub(crate) const FORMAT_VERSION: u8 = 0;

/// Records start at multiples of this many bytes.
pub(crate) const ALIGNMENT: u64 = 8;

/// Bytes that a record with a payload of `length` bytes takes: header, payload, padding.
pub(crate) fn record_size(length: u64) -> u64 {
    (HEADER_SIZE as u64 + length).next_multiple_of(ALIGNMENT)
}
