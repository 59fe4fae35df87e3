//! The payloads that the record layer itself understands, and what a manifest records about log
//! segments.

use crate::coding::{get_u8, get_u32, get_u64, get_varint64, put_varint64, take};

use super::FORMAT_VERSION;

/// What a file of records is; a manifest under a log's name does not pass for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FileRole {
    /// A write-ahead log segment.
    Log = 1,
    /// A manifest.
    Manifest = 2,
}

/// Where the segment before this one ended, as the first record of this one says. It settles
/// that end for good: nothing behind it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predecessor {
    /// The segment's number.
    pub(crate) number: u64,
    /// Where it ends; zero if it never began.
    pub(crate) end: u64,
    /// The number of the last record before this segment.
    pub(crate) last_wal_seq: u64,
    /// The header checksum of that record.
    pub(crate) last_crc: u32,
}

/// The payload of the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// What the file is.
    pub(crate) role: FileRole,
    /// The format version of the file's content.
    pub(crate) format: u16,
    /// The number in the file's name.
    pub(crate) number: u64,
    /// Logs: the segment before; `None` in the first of a database, and in manifests.
    pub(crate) predecessor: Option<Predecessor>,
}

impl Begin {
    /// Bytes of the payload.
    pub(crate) const SIZE: usize = 48;

    /// The first record of file `number` in this build's format.
    pub(crate) fn new(role: FileRole, number: u64, predecessor: Option<Predecessor>) -> Self {
        Self { role, format: u16::from(FORMAT_VERSION), number, predecessor }
    }

    /// The payload's bytes.
    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = self.role as u8;
        bytes[2..4].copy_from_slice(&self.format.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        if let Some(predecessor) = &self.predecessor {
            bytes[1] = 1;
            bytes[16..24].copy_from_slice(&predecessor.number.to_le_bytes());
            bytes[24..32].copy_from_slice(&predecessor.end.to_le_bytes());
            bytes[32..40].copy_from_slice(&predecessor.last_wal_seq.to_le_bytes());
            bytes[40..44].copy_from_slice(&predecessor.last_crc.to_le_bytes());
        }
        bytes
    }

    /// The payload that `bytes` hold; `None` if they hold none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input: &[u8] = bytes.try_into().ok().map(|exact: &[u8; Self::SIZE]| &exact[..])?;
        let role = match get_u8(&mut input)? {
            1 => FileRole::Log,
            2 => FileRole::Manifest,
            _ => return None,
        };
        let has_predecessor = get_u8(&mut input)?;
        let format = u16::from_le_bytes(take(&mut input, 2)?.try_into().ok()?);
        let reserved = get_u32(&mut input)?;
        let number = get_u64(&mut input)?;
        let predecessor = Predecessor {
            number: get_u64(&mut input)?,
            end: get_u64(&mut input)?,
            last_wal_seq: get_u64(&mut input)?,
            last_crc: get_u32(&mut input)?,
        };
        let reserved_too = get_u32(&mut input)?;
        let predecessor = match has_predecessor {
            0 => None,
            1 => Some(predecessor),
            _ => return None,
        };
        (reserved == 0 && reserved_too == 0).then_some(Self { role, format, number, predecessor })
    }
}

/// The payload of the record that ends a segment in order: by a switch, or by a clean close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The segment that follows, already prepared; `None` after a clean close.
    pub(crate) successor: Option<Successor>,
}

/// The next segment as an end record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Successor {
    /// Its number.
    pub(crate) number: u64,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Its size when it was named, in bytes; it never gets shorter before it ends.
    pub(crate) prepared: u64,
}

impl End {
    /// Bytes of the payload.
    pub(crate) const SIZE: usize = 32;

    /// The payload's bytes.
    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = 1;
        if let Some(successor) = &self.successor {
            bytes[0] = 2;
            bytes[8..16].copy_from_slice(&successor.number.to_le_bytes());
            bytes[16..24].copy_from_slice(&successor.epoch.to_le_bytes());
            bytes[24..32].copy_from_slice(&successor.prepared.to_le_bytes());
        }
        bytes
    }

    /// The payload that `bytes` hold; `None` if they hold none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input: &[u8] = bytes.try_into().ok().map(|exact: &[u8; Self::SIZE]| &exact[..])?;
        let kind = get_u64(&mut input)?;
        let successor = Successor {
            number: get_u64(&mut input)?,
            epoch: get_u64(&mut input)?,
            prepared: get_u64(&mut input)?,
        };
        match kind {
            1 => Some(Self { successor: None }),
            2 => Some(Self { successor: Some(successor) }),
            _ => None,
        }
    }
}

/// Where a segment ended, recorded only once that much of it was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    /// The end of its last record.
    pub(crate) end: u64,
    /// The number of that record.
    pub(crate) last_wal_seq: u64,
    /// The header checksum of that record.
    pub(crate) last_crc: u32,
}

/// What a manifest knows about one log segment: that it was prepared and named, and, once it is
/// closed, where it ended. A later fact about the same number replaces the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFact {
    /// Its number.
    pub(crate) number: u64,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Its size in bytes when it was named: it was never shorter after that, until it ended.
    pub(crate) prepared: u64,
    /// The number of its first record.
    pub(crate) first_wal_seq: u64,
    /// Where it ended; `None` while it is the newest.
    pub(crate) end: Option<SegmentEnd>,
}

impl SegmentFact {
    /// Appends the fact to a version edit.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint64(out, self.number);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        put_varint64(out, self.prepared);
        put_varint64(out, self.first_wal_seq);
        out.push(u8::from(self.end.is_some()));
        if let Some(end) = &self.end {
            put_varint64(out, end.end);
            put_varint64(out, end.last_wal_seq);
            out.extend_from_slice(&end.last_crc.to_le_bytes());
        }
    }

    /// Cuts a fact off the front of `input`; `None` if there is none.
    pub(crate) fn decode(input: &mut &[u8]) -> Option<Self> {
        let number = get_varint64(input)?;
        let epoch = get_u64(input)?;
        let prepared = get_varint64(input)?;
        let first_wal_seq = get_varint64(input)?;
        let end = match get_u8(input)? {
            0 => None,
            1 => Some(SegmentEnd {
                end: get_varint64(input)?,
                last_wal_seq: get_varint64(input)?,
                last_crc: get_u32(input)?,
            }),
            _ => return None,
        };
        Some(Self { number, epoch, prepared, first_wal_seq, end })
    }
}
