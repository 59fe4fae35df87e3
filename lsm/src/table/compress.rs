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
    /// What the last compression of the current block came out at.
    seen: Option<usize>,
}

impl Compressor {
    /// A compressor that expects blocks to shrink to the half.
    pub(crate) fn new() -> Self {
        let ratio = INCOMPRESSIBLE / 2;
        Self { raw: Vec::new(), stored: Vec::new(), stored_len: 0, ratio, seen: None }
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
        let ratio = self.stored_len * INCOMPRESSIBLE / self.raw.len();
        self.seen = Some(ratio.clamp(1, INCOMPRESSIBLE));
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

    /// Takes what the last compression of the block just written came out at into account for
    /// the next ones. A block that was not compressed says nothing.
    pub(crate) fn learn(&mut self) {
        if let Some(ratio) = self.seen.take() {
            self.ratio = ((self.ratio * 3 + ratio) / 4).max(1);
        }
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

#[cfg(all(test, feature = "lz4"))]
mod tests {
    use super::*;

    fn block(value: &[u8]) -> BlockBuilder {
        let mut block = BlockBuilder::new(16);
        block.add(b"key", 1 << 8 | 2, value);
        block
    }

    #[test]
    fn the_promise_follows_what_blocks_come_out_at() {
        let mut compressor = Compressor::new();
        assert_eq!(compressor.raw_size_for(1000), 2000);
        for _ in 0..40 {
            compressor.compress(&block(&[7; 10_000]), 1);
            compressor.learn();
        }
        assert!(compressor.raw_size_for(1000) > 100_000);
        let promised = compressor.raw_size_for(1000);
        compressor.learn();
        assert_eq!(compressor.raw_size_for(1000), promised, "nothing was compressed");
        let noise: Vec<u8> = (0..4000_u32)
            .flat_map(|i| crate::table::filter_hash(&i.to_le_bytes()).to_le_bytes())
            .collect();
        for _ in 0..40 {
            compressor.compress(&block(&noise), 1);
            compressor.learn();
        }
        assert!(compressor.raw_size_for(1000) < 1010);
    }

    #[test]
    fn only_the_exact_length_decompresses() {
        let mut compressor = Compressor::new();
        let len = compressor.compress(&block(&[7; 1000]), 1);
        for wrong in [0, 1, len - 1, len + 1, len * 2] {
            assert!(!decompress_into(compressor.stored(), &mut vec![0; wrong]), "{wrong}");
        }
        let mut plain = vec![0; len];
        assert!(decompress_into(compressor.stored(), &mut plain));
        assert!(!decompress_into(&compressor.stored()[1..], &mut plain));
    }
}
