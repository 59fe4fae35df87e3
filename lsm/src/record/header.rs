//! The fixed header of a record, as bytes.

use crate::checksum::crc;
use crate::coding::{get_u8, get_u32, get_u64, take};

use super::FORMAT_VERSION;

/// Bytes of a header.
pub(crate) const HEADER_SIZE: usize = 48;

/// Where the epoch stands in a header: the search for witnesses looks there first.
pub(super) const EPOCH_OFFSET: usize = 16;

/// What a record holds. Zero is never a type: zeros are an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordType {
    /// The first record of a file, and only that: [`Begin`](super::Begin).
    Begin = 1,
    /// A write batch of the log.
    Data = 2,
    /// The last record of a segment that ended in order: [`End`](super::End).
    End = 3,
    /// Carries a watermark and no data.
    Marker = 4,
    /// A version edit of the manifest.
    Edit = 5,
}

impl RecordType {
    /// The type that `byte` stands for.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Begin,
            2 => Self::Data,
            3 => Self::End,
            4 => Self::Marker,
            5 => Self::Edit,
            _ => return None,
        })
    }
}

/// A record's header, its own checksum aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of payload, padding not counted; never zero.
    pub(crate) length: u32,
    /// The type's byte, not necessarily one this build knows.
    pub(crate) kind: u8,
    /// The format version.
    pub(crate) version: u8,
    /// Bits reserved for later; zero.
    pub(crate) reserved: u64,
    /// Checksum of payload and padding.
    pub(crate) payload_crc: u32,
    /// The file's random id; never zero.
    pub(crate) epoch: u64,
    /// The record's number: dense within a file.
    pub(crate) wal_seq: u64,
    /// Everything below this offset of the file was durable when the record was built.
    pub(crate) watermark: u64,
    /// The header checksum of the record before; zero in the first.
    pub(crate) chain: u32,
}

impl Header {
    /// A header of this version with no reserved bit set.
    pub(crate) fn new(kind: RecordType, length: u32, epoch: u64) -> Self {
        Self {
            length,
            kind: kind as u8,
            version: FORMAT_VERSION,
            reserved: 0,
            payload_crc: 0,
            epoch,
            wal_seq: 0,
            watermark: 0,
            chain: 0,
        }
    }

    /// The header's bytes at `offset`, and the checksum they start with.
    pub(crate) fn encode(&self, offset: u64) -> ([u8; HEADER_SIZE], u32) {
        let (reserved_low, reserved_high) = split(self.reserved);
        let mut bytes = [0; HEADER_SIZE];
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8] = self.kind;
        bytes[9] = self.version;
        bytes[10..12].copy_from_slice(&reserved_low.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.wal_seq.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.watermark.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.chain.to_le_bytes());
        bytes[44..48].copy_from_slice(&reserved_high.to_le_bytes());
        let checksum = crc(self.epoch, offset, &[&bytes[4..]]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// The header at `offset` with its checksum; `None` if these bytes are no header that was
    /// written for that offset. What the fields say is the caller's to judge.
    pub(crate) fn decode(bytes: &[u8], offset: u64) -> Option<(Self, u32)> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        let mut input = bytes;
        let stored = get_u32(&mut input)?;
        let length = get_u32(&mut input)?;
        let kind = get_u8(&mut input)?;
        let version = get_u8(&mut input)?;
        let reserved_low = take(&mut input, 2)?;
        let payload_crc = get_u32(&mut input)?;
        let epoch = get_u64(&mut input)?;
        let wal_seq = get_u64(&mut input)?;
        let watermark = get_u64(&mut input)?;
        let chain = get_u32(&mut input)?;
        let reserved_high = get_u32(&mut input)?;
        // Zeros are an end whatever their checksum happens to be.
        if length == 0 || kind == 0 || epoch == 0 {
            return None;
        }
        if crc(epoch, offset, &[bytes.get(4..)?]) != stored {
            return None;
        }
        let low = u16::from_le_bytes(reserved_low.try_into().ok()?);
        let reserved = u64::from(reserved_high) << 16 | u64::from(low);
        let header =
            Self { length, kind, version, reserved, payload_crc, epoch, wal_seq, watermark, chain };
        Some((header, stored))
    }
}

/// The two reserved fields that the 48 bits of `reserved` stand for.
fn split(reserved: u64) -> (u16, u32) {
    let bytes = reserved.to_le_bytes();
    let low = u16::from_le_bytes([bytes[0], bytes[1]]);
    let high = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
    (low, high)
}
