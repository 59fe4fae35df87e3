//! The bytes common to all parts of a table: block handles, block trailers and the footer.
//!
//! `docs/format/table.md` describes the format; every constant of it that has no better place is
//! here. Decoders take bytes that anyone may have written: they bound every length before use,
//! check checksums before they look at what is covered, and say what is wrong in [`Malformed`].
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::panic
    )
)]

use crate::checksum;
use crate::coding::{get_u32, get_u64, take};

/// The last eight bytes of every table, in every version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"treertab");
/// The version this build writes, and the newest it reads. Version 0 may change without notice.
pub(crate) const VERSION: u32 = 0;
/// Bytes of the footer: the end of the file.
pub(crate) const FOOTER_SIZE: usize = 64;
/// Where data blocks start in a table with aligned blocks: multiples of this.
pub(crate) const PAGE_SIZE: u32 = 4096;
/// Bytes of the trailer of a block that is not compressed: codec and checksum.
pub(crate) const PLAIN_TRAILER: usize = 5;
/// Bytes of the trailer of a compressed block: length, codec and checksum.
pub(crate) const COMPRESSED_TRAILER: usize = 9;
/// The most that a block of more than one entry may hold, so that restart points fit 16 bits.
pub(crate) const MAX_SHARED_BLOCK: usize = 65_535;
/// Longer payloads are never compressed, and so no longer value is.
pub(crate) const MAX_COMPRESSED_PAYLOAD: usize = 1 << 20;
/// No LZ4 block decompresses to more than this many times its size.
const MAX_LZ4_RATIO: usize = 255;

const CODEC_NONE: u8 = 1;
const CODEC_LZ4: u8 = 2;

/// Bytes that do not follow the format, and in what respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The result of a decoder that does not know path and offset; its caller adds them.
pub(crate) type Parsed<T> = Result<T, Malformed>;

/// Where a block is: `size` bytes from `offset`, its trailer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockHandle {
    /// Where the block starts in the file.
    pub(crate) offset: u64,
    /// Its length in bytes, trailer included.
    pub(crate) size: u32,
}

impl BlockHandle {
    /// Where the block ends; `None` beyond 64 bits.
    pub(crate) fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.size))
    }
}

/// How the payload of a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// As it is.
    None,
    /// As an LZ4 block that decompresses to this many bytes.
    Lz4 {
        /// Bytes after decompression.
        len: u32,
    },
}

/// Appends the trailer of the block whose payload is `out[start..]` and which will be at `offset`
/// of the table `table_id`.
pub(crate) fn seal(out: &mut Vec<u8>, start: usize, codec: Codec, table_id: u64, offset: u64) {
    match codec {
        Codec::None => out.push(CODEC_NONE),
        Codec::Lz4 { len } => {
            out.extend_from_slice(&len.to_le_bytes());
            out.push(CODEC_LZ4);
        }
    }
    let covered = out.get(start..).unwrap_or_default();
    let crc = checksum::crc(table_id, offset, &[covered]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Checks the trailer of the block that was read from `offset` of the table `table_id`; returns
/// how its payload is stored and how long that is, as stored.
pub(crate) fn unseal(block: &[u8], table_id: u64, offset: u64) -> Parsed<(Codec, usize)> {
    let (covered, crc) =
        block.split_last_chunk::<4>().ok_or(Malformed("a block shorter than its trailer"))?;
    if checksum::crc(table_id, offset, &[covered]) != u32::from_le_bytes(*crc) {
        return Err(Malformed("a block does not match its checksum"));
    }
    let (codec, rest) =
        covered.split_last().ok_or(Malformed("a block shorter than its trailer"))?;
    match *codec {
        CODEC_NONE => Ok((Codec::None, rest.len())),
        CODEC_LZ4 => {
            let (payload, len) = rest
                .split_last_chunk::<4>()
                .ok_or(Malformed("a compressed block shorter than its trailer"))?;
            let len = u32::from_le_bytes(*len);
            Ok((Codec::Lz4 { len }, payload.len()))
        }
        _ => Err(Malformed("a block with an unknown codec")),
    }
}

/// The length to decompress to, once it is known to be possible: an LZ4 block of `stored` bytes
/// that claims `declared`, in a table whose largest block is `cap`.
pub(crate) fn decompressed_len(declared: u32, stored: usize, cap: u32) -> Parsed<usize> {
    if declared > cap {
        return Err(Malformed("a block claims to be larger than the largest of its table"));
    }
    let len = usize::try_from(declared).map_err(|_| Malformed("a block beyond memory"))?;
    if len > MAX_COMPRESSED_PAYLOAD || len > stored.saturating_mul(MAX_LZ4_RATIO) {
        return Err(Malformed("a block claims more than its bytes can decompress to"));
    }
    Ok(len)
}

/// What the last [`FOOTER_SIZE`] bytes of a table say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    /// The table's random identity: context of its checksums and key of its cached blocks.
    pub(crate) table_id: u64,
    /// The filter block; its size is 0 in a table without a filter.
    pub(crate) filter: BlockHandle,
    /// The index block.
    pub(crate) index: BlockHandle,
    /// The properties block.
    pub(crate) properties: BlockHandle,
    /// Data blocks start at multiples of this: [`PAGE_SIZE`], or 1 for packed blocks.
    pub(crate) alignment: u32,
}

/// Why a footer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FooterError {
    /// Its version is newer than this build.
    Version(u32),
    /// It is damaged, or the file is no table.
    Malformed(Malformed),
}

impl From<Malformed> for FooterError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl Footer {
    /// The footer's bytes at `offset` of its file.
    pub(crate) fn encode(&self, offset: u64) -> [u8; FOOTER_SIZE] {
        self.encode_version(offset, VERSION)
    }

    fn encode_version(&self, offset: u64, version: u32) -> [u8; FOOTER_SIZE] {
        let mut out = Vec::with_capacity(FOOTER_SIZE);
        out.extend_from_slice(&self.table_id.to_le_bytes());
        for handle in [self.filter, self.index, self.properties] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&handle.size.to_le_bytes());
        }
        out.extend_from_slice(&self.alignment.to_le_bytes());
        let (version, magic) = (version.to_le_bytes(), MAGIC.to_le_bytes());
        let crc = checksum::crc(self.table_id, offset, &[&out, &version, &magic]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&version);
        out.extend_from_slice(&magic);
        let mut bytes = [0; FOOTER_SIZE];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// The footer in `bytes`, which end their file and start at `offset`. The three blocks it
    /// names follow one another and end where it starts.
    pub(crate) fn decode(bytes: &[u8; FOOTER_SIZE], offset: u64) -> Result<Self, FooterError> {
        let too_short = Malformed("a footer too short");
        let (rest, magic) = bytes.split_last_chunk::<8>().ok_or(too_short)?;
        if u64::from_le_bytes(*magic) != MAGIC {
            return Err(Malformed("the file does not end like a table").into());
        }
        let (rest, version) = rest.split_last_chunk::<4>().ok_or(too_short)?;
        let (mut input, crc) = rest.split_last_chunk::<4>().ok_or(too_short)?;
        let table_id = get_u64(&mut &*input).ok_or(too_short)?;
        if checksum::crc(table_id, offset, &[input, version, magic]) != u32::from_le_bytes(*crc) {
            return Err(Malformed("the footer does not match its checksum").into());
        }
        // Only now is the version more than bytes that a fault may have changed.
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(FooterError::Version(found));
        }
        let footer = Self::parse(&mut input).ok_or(too_short)?;
        footer.check(offset)?;
        Ok(footer)
    }

    fn parse(input: &mut &[u8]) -> Option<Self> {
        let table_id = get_u64(input)?;
        let mut handle = || Some(BlockHandle { offset: get_u64(input)?, size: get_u32(input)? });
        let (filter, index, properties) = (handle()?, handle()?, handle()?);
        let alignment = get_u32(input)?;
        Some(Self { table_id, filter, index, properties, alignment })
    }

    fn check(&self, offset: u64) -> Parsed<()> {
        if self.alignment != PAGE_SIZE && self.alignment != 1 {
            return Err(Malformed("the footer names an unknown alignment"));
        }
        let adjacent = self.filter.end() == Some(self.index.offset)
            && self.index.end() == Some(self.properties.offset)
            && self.properties.end() == Some(offset);
        if !adjacent {
            return Err(Malformed("the footer names blocks that are not where they must be"));
        }
        Ok(())
    }
}

/// The first multiple of `alignment` (a power of two) at or after `offset`.
pub(crate) fn align_up(offset: u64, alignment: u32) -> Option<u64> {
    let mask = u64::from(alignment.checked_sub(1)?);
    Some(offset.checked_add(mask)? & !mask)
}

/// Cuts a varint of at most 32 bits off the front of `input`: one byte is the common case.
#[inline]
pub(crate) fn short_varint(input: &mut &[u8]) -> Option<usize> {
    let (&first, rest) = input.split_first()?;
    if first < 0x80 {
        *input = rest;
        return Some(usize::from(first));
    }
    usize::try_from(crate::coding::get_varint32(input)?).ok()
}

/// Cuts `len` bytes off the front of `input`.
#[inline]
pub(crate) fn cut<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    take(input, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> Footer {
        Footer {
            table_id: 0x0123_4567_89ab_cdef,
            filter: BlockHandle { offset: 8192, size: 70 },
            index: BlockHandle { offset: 8262, size: 40 },
            properties: BlockHandle { offset: 8302, size: 98 },
            alignment: PAGE_SIZE,
        }
    }

    #[test]
    fn a_footer_comes_back_and_each_flipped_bit_is_noticed() {
        let bytes = footer().encode(8400);
        assert_eq!(Footer::decode(&bytes, 8400), Ok(footer()));
        assert!(Footer::decode(&bytes, 8401).is_err());
        for bit in 0..FOOTER_SIZE * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&damaged, 8400).is_err(), "bit {bit}");
        }
    }

    /// A newer version is one whose footer holds; a flipped bit in the version is damage like any
    /// other.
    #[test]
    fn a_newer_version_is_told_apart_from_a_damaged_one() {
        let newer = footer().encode_version(8400, 7);
        assert_eq!(Footer::decode(&newer, 8400), Err(FooterError::Version(7)));
        let good = footer().encode(8400);
        for bit in 0..32 {
            let mut damaged = good;
            damaged[52 + bit / 8] ^= 1 << (bit % 8);
            let found = Footer::decode(&damaged, 8400);
            assert!(matches!(found, Err(FooterError::Malformed(_))), "bit {bit}: {found:?}");
        }
    }

    /// HOST-01
    #[test]
    fn wild_offsets_and_sizes_in_a_footer_with_a_valid_checksum_are_refused() {
        let wild = [0, 1, 1 << 31, 1 << 63, u64::MAX, 8400, 8401];
        for offset in wild {
            for size in [0, 1, 1 << 31, u32::MAX] {
                let handle = BlockHandle { offset, size };
                for forged in [
                    Footer { filter: handle, ..footer() },
                    Footer { index: handle, ..footer() },
                    Footer { properties: handle, ..footer() },
                ] {
                    assert!(Footer::decode(&forged.encode(8400), 8400).is_err(), "{forged:?}");
                }
            }
        }
        for alignment in [0, 2, 512, 8192, u32::MAX] {
            let forged = Footer { alignment, ..footer() };
            assert!(Footer::decode(&forged.encode(8400), 8400).is_err());
        }
    }

    #[test]
    fn a_sealed_block_opens_only_at_its_place_in_its_table() {
        for codec in [Codec::None, Codec::Lz4 { len: 700 }] {
            let mut block = b"payload".to_vec();
            seal(&mut block, 0, codec, 7, 4096);
            assert_eq!(unseal(&block, 7, 4096), Ok((codec, 7)));
            assert!(unseal(&block, 8, 4096).is_err());
            assert!(unseal(&block, 7, 8192).is_err());
            for bit in 0..block.len() * 8 {
                let mut damaged = block.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(unseal(&damaged, 7, 4096).is_err(), "bit {bit}");
            }
            for len in 0..block.len() {
                assert!(unseal(&block[..len], 7, 4096).is_err(), "length {len}");
            }
        }
    }

    #[test]
    fn zeros_are_no_block() {
        for len in 0..64 {
            assert!(unseal(&vec![0; len], 7, 4096).is_err());
        }
    }

    /// HOST-02
    #[test]
    fn a_block_that_claims_too_much_is_refused_before_memory_is_allocated() {
        assert!(decompressed_len(u32::MAX, 5, u32::MAX).is_err());
        assert!(decompressed_len(5 * 255 + 1, 5, u32::MAX).is_err());
        assert_eq!(decompressed_len(5 * 255, 5, u32::MAX), Ok(5 * 255));
        assert!(decompressed_len(5 * 255, 5, 1000).is_err());
        assert_eq!(decompressed_len(1 << 20, 1 << 20, u32::MAX), Ok(1 << 20));
        assert!(decompressed_len((1 << 20) + 1, 1 << 20, u32::MAX).is_err());
    }
}
