//! Compression of data blocks, and what the last blocks promise for the next one.

use super::block_builder::BlockBuilder;
use super::format::Codec;

/// The ratio, in 1/1024 of the original, that nothing is known to be better than.
const INCOMPRESSIBLE: usize = 1024;

/// Compresses blocks one after another with the same memory.
#[derive(Debug)]
pub(crate) struct Compressor {
    raw: Vec<u8>,
    stored: Vec<u8>,
    stored_len: usize,
    /// What compressed blocks came out at, in 1/1024 of their original: a moving average.
    ratio: usize,
}

impl Compressor {
    /// A compressor that expects blocks to shrink to the half.
    pub(crate) fn new() -> Self {
        Self { raw: Vec::new(), stored: Vec::new(), stored_len: 0, ratio: INCOMPRESSIBLE / 2 }
    }

    /// The size of a payload that is expected to compress to `size` bytes.
    pub(crate) fn raw_size_for(&self, size: usize) -> usize {
        size * INCOMPRESSIBLE / self.ratio
    }

    /// Compresses the first `count` entries of `block` and notes the ratio; returns how long
    /// their payload is.
    pub(crate) fn compress(&mut self, block: &BlockBuilder, count: usize) -> usize {
        self.raw.clear();
        block.write_prefix_to(count, &mut self.raw);
        self.stored_len = compress_into(&self.raw, &mut self.stored);
        self.raw.len()
    }

    /// Bytes the last block compressed to.
    pub(crate) fn stored_size(&self) -> usize {
        self.stored_len
    }

    /// What the last block compressed to.
    pub(crate) fn stored(&self) -> &[u8] {
        &self.stored[..self.stored_len]
    }

    /// How the last block is stored.
    pub(crate) fn codec(&self) -> Codec {
        Codec::Lz4 { len: u32::try_from(self.raw.len()).expect("values are at most 1 GiB") }
    }

    /// Takes a block of `raw` bytes, just written as `codec`, into account for the next ones.
    pub(crate) fn learn(&mut self, raw: u32, codec: Codec) {
        let ratio = match codec {
            Codec::None => INCOMPRESSIBLE,
            Codec::Lz4 { .. } => {
                let raw = usize::try_from(raw).unwrap_or(usize::MAX).max(1);
                (self.stored_len * INCOMPRESSIBLE / raw).clamp(1, INCOMPRESSIBLE)
            }
        };
        self.ratio = ((self.ratio * 3 + ratio) / 4).max(1);
    }
}

/// Compresses `raw` into `out`, which grows as needed; returns the compressed length.
#[cfg(feature = "lz4")]
fn compress_into(raw: &[u8], out: &mut Vec<u8>) -> usize {
    let most = lz4_flex::block::get_maximum_output_size(raw.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    lz4_flex::block::compress_into(raw, out).expect("the output has the size that always suffices")
}

#[cfg(not(feature = "lz4"))]
fn compress_into(_raw: &[u8], _out: &mut Vec<u8>) -> usize {
    unreachable!("options that ask for LZ4 are refused without the feature `lz4`")
}

/// Decompresses the LZ4 block `stored` into `out`; whether it is one of exactly that length.
#[cfg(feature = "lz4")]
pub(crate) fn decompress_into(stored: &[u8], out: &mut [u8]) -> bool {
    lz4_flex::block::decompress_into(stored, out).is_ok_and(|len| len == out.len())
}

#[cfg(not(feature = "lz4"))]
pub(crate) fn decompress_into(_stored: &[u8], _out: &mut [u8]) -> bool {
    unreachable!("compressed blocks are refused without the feature `lz4`")
}
