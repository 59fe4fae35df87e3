//! Keys and values, all derived from a number and a seed, so that every answer can be checked
//! byte by byte without keeping anything.
//!
//! Key `i` is the `i`-th in order: the key space is cut into as many equal parts as there are
//! keys, and each key is a random place in its part, in hexadecimal. A value is a slice of random
//! bytes made once, at a place that depends on the key, with the key's own number written over its
//! beginning: nothing compresses, no two keys share a value, and a comparison costs one `memcmp`.

use std::fmt;
use std::str::FromStr;

/// Bytes of a key.
pub const KEY_SIZE: usize = 16;

/// A key.
pub type Key = [u8; KEY_SIZE];

/// Random bytes that values are cut from; small enough to stay in a processor's own cache.
const POOL: usize = 128 << 10;

/// The sizes that values have, spread evenly from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The smallest value.
    pub least: usize,
    /// The largest value.
    pub most: usize,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
        let sizes = Self { least: number(least)?, most: number(most)? };
        if sizes.least < 8 || sizes.most < sizes.least || sizes.most > POOL / 2 {
            return Err(format!("sizes must rise, from 8 to {}", POOL / 2));
        }
        Ok(sizes)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.least),
            false => write!(f, "{}..{}", self.least, self.most),
        }
    }
}

/// A set of keys and their values.
#[derive(Clone)]
pub struct Data {
    seed: u64,
    keys: u64,
    sizes: Sizes,
    pool: Vec<u8>,
}

impl Data {
    /// `keys` keys, at least one, with values of `sizes`.
    pub fn new(seed: u64, keys: u64, sizes: Sizes) -> Self {
        let mut stream = Stream::new(seed);
        let pool = (0..POOL / 8).flat_map(|_| stream.next().to_le_bytes()).collect();
        Self { seed: mix(seed ^ GOLDEN), keys, sizes, pool }
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.keys
    }

    /// The bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.keys * self.entry_bytes()
    }

    /// The bytes of a key and its value, on average.
    pub fn entry_bytes(&self) -> u64 {
        (KEY_SIZE + self.sizes.least.midpoint(self.sizes.most)) as u64
    }

    /// Key number `index` in order.
    pub fn key(&self, index: u64) -> Key {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let part = u64::MAX / self.keys;
        let position = part * index + mix(index ^ self.seed) % part;
        let mut key = [0; KEY_SIZE];
        for (place, digit) in key.iter_mut().enumerate() {
            *digit = DIGITS[(position >> (60 - 4 * place) & 15) as usize];
        }
        key
    }

    /// The number of a key of this set.
    pub fn index(&self, key: &Key) -> u64 {
        let digit = |digit: u8| u64::from(digit & 15) + 9 * u64::from(digit >> 6);
        key.iter().fold(0, |position, &byte| position << 4 | digit(byte)) / (u64::MAX / self.keys)
    }

    /// The bytes of the value of key number `index`.
    pub fn value_size(&self, index: u64) -> usize {
        self.parts(index).1.len() + 8
    }

    /// The bytes that no value exceeds.
    pub fn largest_value(&self) -> usize {
        self.sizes.most
    }

    /// Puts the value of key number `index` into `value`.
    pub fn value(&self, index: u64, value: &mut Vec<u8>) {
        let (own, rest) = self.parts(index);
        value.clear();
        value.extend_from_slice(&own);
        value.extend_from_slice(rest);
    }

    /// Whether `value` is the value of key number `index`, every byte of it.
    pub fn is_value(&self, index: u64, value: &[u8]) -> bool {
        let (own, rest) = self.parts(index);
        value.split_first_chunk::<8>().is_some_and(|(a, b)| *a == own && b == rest)
    }

    fn parts(&self, index: u64) -> ([u8; 8], &[u8]) {
        let own = mix(self.seed.wrapping_add(index));
        let spread = (self.sizes.most - self.sizes.least + 1) as u64;
        let rest = self.sizes.least + (own % spread) as usize - 8;
        let at = (own >> 32) as usize % (POOL - rest);
        (own.to_le_bytes(), &self.pool[at..at + rest])
    }
}

/// A stream of 64-bit numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ GOLDEN) }
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// The next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The numbers below `count` in random order.
pub fn shuffled(count: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::try_from(count).expect("keys fit 32 bits")).collect();
    let mut stream = Stream::new(seed);
    for last in (1..order.len()).rev() {
        order.swap(last, stream.below(last as u64 + 1) as usize);
    }
    order
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        Data::new(7, 1000, Sizes { least: 20, most: 50 })
    }

    #[test]
    fn keys_rise_with_their_number_and_lead_back_to_it() {
        let data = data();
        assert!((0..1000).all(|index| data.index(&data.key(index)) == index));
        assert!((1..1000).all(|index| data.key(index - 1) < data.key(index)));
    }

    #[test]
    fn a_value_belongs_to_its_key_and_every_byte_counts() {
        let (data, mut value) = (data(), Vec::new());
        data.value(42, &mut value);
        assert!((20..=50).contains(&value.len()) && data.is_value(42, &value));
        assert!(!data.is_value(41, &value) && !data.is_value(42, &value[1..]));
        for at in 0..value.len() {
            value[at] ^= 1;
            assert!(!data.is_value(42, &value), "byte {at}");
            value[at] ^= 1;
        }
    }

    #[test]
    fn a_shuffle_has_every_number_once() {
        let mut order = shuffled(1000, 3);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }

    #[test]
    fn sizes_are_one_number_or_two() {
        assert_eq!("400".parse(), Ok(Sizes { least: 400, most: 400 }));
        assert_eq!("100..1000".parse(), Ok(Sizes { least: 100, most: 1000 }));
        assert!("7".parse::<Sizes>().is_err() && "9..8".parse::<Sizes>().is_err());
    }
}
