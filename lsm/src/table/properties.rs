//! The properties block: what a table holds and how it was written.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::panic
    )
)]

use super::TableOptions;
use super::format::{MAX_SHARED_BLOCK, Malformed, Parsed};
use crate::coding::{get_slice, get_varint32, get_varint64, put_slice, put_varint32, put_varint64};
use crate::key::{self, MAX_KEY_SIZE, MAX_VALUE_SIZE};
use crate::options::Compression;

/// The most bytes of one decompressed block: one entry of the longest key and value, with its
/// header, restart point and count.
const MAX_BLOCK: usize = MAX_KEY_SIZE + MAX_VALUE_SIZE + 64;

const COMPRESSION_NONE: u32 = 1;
const COMPRESSION_LZ4: u32 = 2;

/// The properties of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    /// Versions in the table; at least one.
    pub(crate) entries: u64,
    /// How many of them are tombstones.
    pub(crate) deletions: u64,
    /// The smallest sequence number.
    pub(crate) smallest_sequence: u64,
    /// The largest sequence number.
    pub(crate) largest_sequence: u64,
    /// Bytes of all user keys.
    pub(crate) key_bytes: u64,
    /// Bytes of all values.
    pub(crate) value_bytes: u64,
    /// Where the last data block ends.
    pub(crate) data_end: u64,
    /// Bytes of the largest decompressed data block.
    pub(crate) largest_block: u32,
    /// The block size the table was written with.
    pub(crate) block_size: u32,
    /// Entries between restart points.
    pub(crate) restart_interval: u32,
    /// Bits of filter per key.
    pub(crate) bloom_bits_per_key: u32,
    /// How data blocks may be compressed.
    pub(crate) compression: Compression,
    /// The first internal key.
    pub(crate) smallest: Vec<u8>,
    /// The last internal key.
    pub(crate) largest: Vec<u8>,
}

impl Properties {
    /// The properties of an empty table to be written with `options`.
    pub(crate) fn new(options: &TableOptions) -> Self {
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            entries: 0,
            deletions: 0,
            smallest_sequence: u64::MAX,
            largest_sequence: 0,
            key_bytes: 0,
            value_bytes: 0,
            data_end: 0,
            largest_block: 0,
            block_size: small(options.block_size),
            restart_interval: small(options.restart_interval),
            bloom_bits_per_key: options.bloom_bits_per_key,
            compression: options.compression,
            smallest: Vec::new(),
            largest: Vec::new(),
        }
    }

    /// Appends the payload to `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        for number in self.large_numbers() {
            put_varint64(out, number);
        }
        let compression = match self.compression {
            Compression::None => COMPRESSION_NONE,
            Compression::Lz4 => COMPRESSION_LZ4,
        };
        for number in [
            self.largest_block,
            self.block_size,
            self.restart_interval,
            self.bloom_bits_per_key,
            compression,
        ] {
            put_varint32(out, number);
        }
        put_slice(out, &self.smallest);
        put_slice(out, &self.largest);
    }

    fn large_numbers(&self) -> [u64; 7] {
        [
            self.entries,
            self.deletions,
            self.smallest_sequence,
            self.largest_sequence,
            self.key_bytes,
            self.value_bytes,
            self.data_end,
        ]
    }

    /// The properties in `payload`, of a table whose filter block starts at `filter_offset`.
    pub(crate) fn decode(payload: &[u8], filter_offset: u64) -> Parsed<Self> {
        let properties = Self::parse(payload).ok_or(Malformed("a malformed properties block"))?;
        let sensible = properties.entries > 0
            && properties.deletions <= properties.entries
            && properties.smallest_sequence <= properties.largest_sequence
            && properties.data_end == filter_offset
            && usize::try_from(properties.largest_block).is_ok_and(|size| size <= MAX_BLOCK)
            && properties.largest_block > 0
            && is_sorted(&properties.smallest, &properties.largest);
        if sensible {
            Ok(properties)
        } else {
            Err(Malformed("properties that contradict themselves or the footer"))
        }
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        let mut input = payload;
        let mut large = || get_varint64(&mut input);
        let [entries, deletions] = [large()?, large()?];
        let [smallest_sequence, largest_sequence] = [large()?, large()?];
        let [key_bytes, value_bytes, data_end] = [large()?, large()?, large()?];
        let mut small = || get_varint32(&mut input);
        let [largest_block, block_size, restart_interval] = [small()?, small()?, small()?];
        let bloom_bits_per_key = small()?;
        let compression = match small()? {
            COMPRESSION_NONE => Compression::None,
            COMPRESSION_LZ4 => Compression::Lz4,
            _ => return None,
        };
        let smallest = get_slice(&mut input)?.to_vec();
        let largest = get_slice(&mut input)?.to_vec();
        input.is_empty().then_some(Self {
            entries,
            deletions,
            smallest_sequence,
            largest_sequence,
            key_bytes,
            value_bytes,
            data_end,
            largest_block,
            block_size,
            restart_interval,
            bloom_bits_per_key,
            compression,
            smallest,
            largest,
        })
    }

    /// Whether the properties name the compression that is needed to read the table, and this
    /// build has it.
    pub(crate) fn readable(&self) -> bool {
        self.compression == Compression::None || cfg!(feature = "lz4")
    }
}

fn is_sorted(smallest: &[u8], largest: &[u8]) -> bool {
    let valid = |internal_key| key::parse(internal_key).is_some();
    valid(smallest) && valid(largest) && key::compare(smallest, largest).is_le()
}

/// The bound that ties [`MAX_SHARED_BLOCK`] to restart points of 16 bits.
const _: () = assert!(MAX_SHARED_BLOCK == 0xffff, "restart points have 16 bits");
