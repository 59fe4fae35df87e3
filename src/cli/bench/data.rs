//! The benchmark's keys and values, all derived from an index and a seed, so that every answer
//! can be checked without keeping anything.
//!
//! Key `i` is a 64-bit bijection of `i`, in hexadecimal: distinct, spread evenly over the key
//! space, in an order that has nothing to do with `i`. Its value is a stream of the same mixer
//! started from the key: it cannot be compressed, and no two keys share one.

/// Bytes of a key.
pub(crate) const KEY_SIZE: usize = 16;

/// A key.
pub(crate) type Key = [u8; KEY_SIZE];

/// A set of keys and their values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    salt: u64,
    keys: u64,
    value_size: usize,
}

impl Data {
    /// `keys` keys with values of `value_size` bytes.
    pub(crate) fn new(seed: u64, keys: u64, value_size: usize) -> Self {
        Self { salt: mix(seed.wrapping_add(GOLDEN)), keys, value_size }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> u64 {
        self.keys
    }

    /// Key number `index`.
    pub(crate) fn key(&self, index: u64) -> Key {
        hex(self.position(index))
    }

    /// The number of a key of this set.
    pub(crate) fn index(&self, key: &[u8]) -> Option<u64> {
        let index = unmix(unhex(key.try_into().ok()?)?) ^ self.salt;
        (index < self.keys).then_some(index)
    }

    /// Puts the value of key number `index` into `value`.
    pub(crate) fn value(&self, index: u64, value: &mut Vec<u8>) {
        value.clear();
        let mut stream = Stream::new(self.position(index));
        while value.len() < self.value_size {
            let left = (self.value_size - value.len()).min(8);
            value.extend_from_slice(&stream.next().to_le_bytes()[..left]);
        }
    }

    /// Whether `value` is the value of key number `index`, every byte of it.
    pub(crate) fn is_value(&self, index: u64, value: &[u8]) -> bool {
        let mut stream = Stream::new(self.position(index));
        value.len() == self.value_size
            && value.chunks(8).all(|chunk| chunk == &stream.next().to_le_bytes()[..chunk.len()])
    }

    /// The bounds of part `part` of `parts` equal parts of the key space, and how many keys of
    /// the set are in it. The last part has no end. Walks over all keys.
    pub(crate) fn part(&self, part: u32, parts: u32) -> (Key, Option<Key>, u64) {
        let width = u64::MAX / u64::from(parts);
        let begin = width * u64::from(part);
        let end = (part + 1 < parts).then(|| begin + width);
        let inside = |position: u64| position >= begin && end.is_none_or(|end| position < end);
        let count = (0..self.keys).filter(|&index| inside(self.position(index))).count() as u64;
        (hex(begin), end.map(hex), count)
    }

    fn position(&self, index: u64) -> u64 {
        mix(index ^ self.salt)
    }
}

/// A stream of 64-bit numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ GOLDEN) }
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// The next number below `bound`, which is not 0. Biased by less than `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        (product >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The inverse of [`mix`]: its steps undone in reverse order.
fn unmix(x: u64) -> u64 {
    let x = x ^ (x >> 31) ^ (x >> 62);
    let x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
    let x = x ^ (x >> 27) ^ (x >> 54);
    let x = x.wrapping_mul(0x96de_1b17_3f11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

fn hex(position: u64) -> Key {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut key = [0; KEY_SIZE];
    for (place, digit) in key.iter_mut().enumerate() {
        *digit = DIGITS[(position >> (60 - 4 * place) & 15) as usize];
    }
    key
}

fn unhex(key: Key) -> Option<u64> {
    key.iter().try_fold(0, |position, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(position << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_are_distinct_scattered_and_lead_back_to_their_index() {
        let data = Data::new(7, 5000, 10);
        let keys: BTreeSet<Key> = (0..5000).map(|index| data.key(index)).collect();
        assert_eq!(keys.len(), 5000);
        for index in 0..5000 {
            assert_eq!(data.index(&data.key(index)), Some(index));
        }
        assert_eq!(data.index(&data.key(5000)), None);
        assert_eq!(data.index(b"0123"), None);
        assert_eq!(data.index(b"000000000000000G"), None);
        let ascending = (1..5000).filter(|&i| data.key(i - 1) < data.key(i)).count();
        assert!((2000..3000).contains(&ascending), "{ascending}");
        assert_ne!(data.key(0), Data::new(8, 5000, 10).key(0));
    }

    #[test]
    fn a_value_belongs_to_its_key_and_every_byte_counts() {
        let data = Data::new(7, 100, 13);
        let mut value = Vec::new();
        data.value(42, &mut value);
        assert_eq!(value.len(), 13);
        assert!(data.is_value(42, &value));
        assert!(!data.is_value(41, &value));
        assert!(!data.is_value(42, &value[..12]));
        for at in 0..13 {
            value[at] ^= 1;
            assert!(!data.is_value(42, &value), "byte {at}");
            value[at] ^= 1;
        }
    }

    #[test]
    fn the_parts_of_the_key_space_hold_every_key_once() {
        let data = Data::new(7, 1000, 8);
        for parts in [1, 2, 3, 8] {
            let mut total = 0;
            for part in 0..parts {
                let (begin, end, count) = data.part(part, parts);
                let inside = |key: Key| key >= begin && end.is_none_or(|end| key < end);
                let found = (0..1000).filter(|&index| inside(data.key(index))).count();
                assert_eq!(found as u64, count);
                total += count;
            }
            assert_eq!(total, 1000);
        }
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut stream = Stream::new(1);
        let seen: BTreeSet<u64> = (0..1000).map(|_| stream.below(10)).collect();
        assert_eq!(seen, (0..10).collect());
    }
}
