//! The filter block: a Bloom filter whose bits for one key all lie in one cache line.
//!
//! The filter answers "may be there" or "is not there". It is written from the hashes of the user
//! keys; a damaged filter is noticed by its block's checksum before it is ever asked.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

use treering_env::{Buffer, prefetch_cache_line};

use super::format::{Malformed, Parsed};

const LINE_BYTES: usize = 64;
const LINE_BITS: u64 = 512;
const MAX_PROBES: u8 = 30;
/// Odd, and with well spread bits: the golden ratio in 32 bits.
const STEP: u32 = 0x9e37_79b9;

/// A filter in memory.
#[derive(Debug)]
pub(crate) struct Filter {
    /// The lines; each is a cache line if there is more than one page of them.
    bytes: Buffer,
    probes: u8,
}

/// The hash of a user key that filters store.
pub(crate) fn hash(user_key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(user_key)
}

/// The bits of a key within its line, as byte and mask: each probe takes the top nine bits of a
/// number that is multiplied on from probe to probe.
fn bits(hash: u64, probes: u8) -> impl Iterator<Item = (usize, u8)> {
    let mut state = (hash & 0xffff_ffff) as u32;
    (0..probes).map(move |_| {
        let bit = state >> 23;
        state = state.wrapping_mul(STEP).rotate_left(7);
        ((bit >> 3) as usize, 1_u8 << (bit & 7))
    })
}

impl Filter {
    /// The filter in the payload of a filter block.
    pub(crate) fn decode(payload: &[u8]) -> Parsed<Self> {
        const BAD: Malformed = Malformed("a malformed filter block");
        let (&probes, lines) = payload.split_last().ok_or(BAD)?;
        if lines.is_empty() || lines.len() % LINE_BYTES != 0 || !(1..=MAX_PROBES).contains(&probes)
        {
            return Err(BAD);
        }
        Ok(Self { bytes: Buffer::from(lines), probes })
    }

    fn lines(&self) -> &[[u8; LINE_BYTES]] {
        self.bytes.as_chunks().0
    }

    /// The number of the line of a key with this hash: the upper half of the hash picks the line,
    /// the lower half the bits in it.
    fn line_number(&self, hash: u64) -> usize {
        let line = (u128::from(hash >> 32) * self.lines().len() as u128) >> 32;
        usize::try_from(line).unwrap_or(usize::MAX)
    }

    /// Whether a key with this hash may be in the table. `false` is certain.
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        self.lines().get(self.line_number(hash)).is_none_or(|bytes| {
            bits(hash, self.probes)
                .all(|(byte, mask)| bytes.get(byte).is_none_or(|byte| byte & mask != 0))
        })
    }

    /// Asks the processor for the line of a key with this hash.
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_cache_line(self.lines(), self.line_number(hash));
    }

    #[cfg(test)]
    /// Bytes of memory the filter holds.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Collects the keys of a table and writes its filter block.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    bits_per_key: u32,
    hashes: Vec<u64>,
}

impl FilterBuilder {
    /// A filter with this many bits per key; with zero bits there is none.
    pub(crate) fn new(bits_per_key: u32) -> Self {
        Self { bits_per_key, hashes: Vec::new() }
    }

    /// Adds a user key; versions of one key come one after another and count once.
    pub(crate) fn add(&mut self, user_key: &[u8]) {
        if self.bits_per_key == 0 {
            return;
        }
        let hash = hash(user_key);
        if self.hashes.last() != Some(&hash) {
            self.hashes.push(hash);
        }
    }

    /// Bytes of the payload as it stands.
    pub(crate) fn size(&self) -> usize {
        if self.bits_per_key == 0 { 0 } else { self.lines() * LINE_BYTES + 1 }
    }

    fn lines(&self) -> usize {
        let bits = self.hashes.len() as u64 * u64::from(self.bits_per_key);
        usize::try_from(bits.div_ceil(LINE_BITS).max(1)).unwrap_or(usize::MAX)
    }

    /// Appends the payload to `out`, and nothing if there is no filter.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        if self.bits_per_key == 0 {
            return;
        }
        // 0.6 instead of ln 2 probes a bit: lines differ in how full they are, and fewer probes
        // suit the full ones.
        let probes = u8::try_from((self.bits_per_key * 6 + 5) / 10).unwrap_or(MAX_PROBES);
        let probes = probes.clamp(1, MAX_PROBES);
        let mut filter = Filter { bytes: Buffer::zeroed(self.lines() * LINE_BYTES), probes };
        for &hash in &self.hashes {
            let line = filter.line_number(hash);
            let lines = filter.bytes.as_mut_slice().as_chunks_mut::<LINE_BYTES>().0;
            let Some(line) = lines.get_mut(line) else { continue };
            for (byte, mask) in bits(hash, probes) {
                if let Some(byte) = line.get_mut(byte) {
                    *byte |= mask;
                }
            }
        }
        out.extend_from_slice(&filter.bytes);
        out.push(probes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(keys: u32, bits_per_key: u32) -> Filter {
        let mut builder = FilterBuilder::new(bits_per_key);
        for key in 0..keys {
            builder.add(&key.to_be_bytes());
        }
        let mut payload = Vec::new();
        builder.write_to(&mut payload);
        assert_eq!(payload.len(), builder.size());
        Filter::decode(&payload).unwrap()
    }

    #[test]
    fn every_key_that_was_added_may_be_there() {
        for bits in 1..=30 {
            for keys in [1, 2, 50, 1000] {
                let filter = filter(keys, bits);
                assert!((0..keys).all(|key| filter.may_contain(hash(&key.to_be_bytes()))));
            }
        }
    }

    #[test]
    fn ten_bits_a_key_let_about_one_absent_key_in_a_hundred_through() {
        let filter = filter(100_000, 10);
        let probes = 100_000..200_000_u32;
        let passed = probes.filter(|key| filter.may_contain(hash(&key.to_be_bytes()))).count();
        assert!((600..1_300).contains(&passed), "{passed} of 100,000");
    }

    #[test]
    fn twenty_bits_a_key_let_about_one_absent_key_in_ten_thousand_through() {
        let filter = filter(100_000, 20);
        let probes = 100_000..200_000_u32;
        let passed = probes.filter(|key| filter.may_contain(hash(&key.to_be_bytes()))).count();
        assert!(passed < 40, "{passed} of 100,000");
    }

    /// The filter's bytes on disk depend on this hash for ever.
    #[test]
    fn the_hash_is_xxh3_of_64_bits_without_a_seed() {
        assert_eq!(hash(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn malformed_payloads_are_refused() {
        assert!(Filter::decode(&[]).is_err());
        assert!(Filter::decode(&[6]).is_err());
        assert!(Filter::decode(&[6; 64]).is_err());
        assert!(Filter::decode(&[6; 66]).is_err());
        assert!(Filter::decode(&[0; 65]).is_err());
        assert!(Filter::decode(&[31; 65]).is_err());
        assert!(Filter::decode(&[6; 65]).is_ok());
    }
}
