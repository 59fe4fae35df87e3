//! Builds the payload of a data block: entries with prefix compression, then restart points.

use super::block::common_prefix;
use crate::coding::{get_varint64, put_varint32, put_varint64};
use crate::key;

/// Collects entries of one data block. Memory is kept from block to block.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    restart_interval: usize,
    entries: Vec<u8>,
    restarts: Vec<u16>,
    /// Where each entry ends.
    ends: Vec<usize>,
    /// The user key and trailer of the last entry.
    last_key: Vec<u8>,
    last_trailer: u64,
}

impl BlockBuilder {
    /// An empty block with a restart point every `restart_interval` entries.
    pub(crate) fn new(restart_interval: usize) -> Self {
        Self {
            restart_interval,
            entries: Vec::new(),
            restarts: Vec::new(),
            ends: Vec::new(),
            last_key: Vec::new(),
            last_trailer: 0,
        }
    }

    /// Entries in the block.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the block has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the payload as it stands.
    pub(crate) fn size(&self) -> usize {
        self.prefix_size(self.len())
    }

    /// Bytes of the payload of the first `len` entries alone.
    pub(crate) fn prefix_size(&self, len: usize) -> usize {
        let restarts = len.div_ceil(self.restart_interval);
        self.entries_end(len) + restarts * 2 + 2
    }

    fn entries_end(&self, len: usize) -> usize {
        len.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Bytes of the payload once this entry is added.
    pub(crate) fn size_with(&self, user_key: &[u8], trailer: u64, value: &[u8]) -> usize {
        let (shared, restart) =
            if self.at_restart() { (0, 2) } else { (common_prefix(&self.last_key, user_key), 0) };
        let unshared = user_key.len() - shared;
        let numbers = [shared as u64, unshared as u64, value.len() as u64, trailer];
        let header: usize = numbers.into_iter().map(varint_len).sum();
        // An empty block has no restart point yet, but its count.
        self.size() + restart + header + unshared + value.len()
    }

    fn at_restart(&self) -> bool {
        self.len().is_multiple_of(self.restart_interval)
    }

    /// Adds an entry, whose key is after that of the one before.
    pub(crate) fn add(&mut self, user_key: &[u8], trailer: u64, value: &[u8]) {
        let shared = if self.at_restart() {
            let offset = u16::try_from(self.entries.len());
            self.restarts.push(offset.expect("a block of more than one entry is below 64 KiB"));
            0
        } else {
            common_prefix(&self.last_key, user_key)
        };
        let suffix = &user_key[shared..];
        put_length(&mut self.entries, shared);
        put_length(&mut self.entries, suffix.len());
        put_length(&mut self.entries, value.len());
        put_varint64(&mut self.entries, trailer);
        self.entries.extend_from_slice(suffix);
        self.entries.extend_from_slice(value);
        self.ends.push(self.entries.len());
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(suffix);
        self.last_trailer = trailer;
    }

    #[cfg(test)]
    /// Appends the payload to `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        self.write_prefix_to(self.len(), out);
    }

    /// Appends the payload of the first `len` entries alone to `out`.
    pub(crate) fn write_prefix_to(&self, len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.entries[..self.entries_end(len)]);
        let restarts = &self.restarts[..len.div_ceil(self.restart_interval)];
        for restart in restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        let count = u16::try_from(restarts.len()).expect("restart points are fewer than bytes");
        out.extend_from_slice(&count.to_le_bytes());
    }

    /// How many leading entries fit a payload of `size` bytes; at least one.
    pub(crate) fn entries_within(&self, size: usize) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.prefix_size(middle) <= size {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// The internal key of the first entry.
    pub(crate) fn first_key(&self, out: &mut Vec<u8>) {
        out.clear();
        self.walk(0, out, |_, _, _| {}, 1);
    }

    /// The internal key of the last of the first `len` entries.
    pub(crate) fn last_key(&self, len: usize, out: &mut Vec<u8>) {
        out.clear();
        if len == self.len() {
            key::append(out, &self.last_key, self.last_trailer);
            return;
        }
        let restart = (len - 1) / self.restart_interval * self.restart_interval;
        self.walk(restart, out, |_, _, _| {}, len);
    }

    /// Drops the first `len` entries; those behind them begin a new block in `spare`, which then
    /// takes the place of this one.
    pub(crate) fn drop_prefix(&mut self, len: usize, spare: &mut Self) {
        spare.clear();
        if len < self.len() {
            let restart = len / self.restart_interval * self.restart_interval;
            let mut index = restart;
            let mut key = Vec::new();
            self.walk(
                restart,
                &mut key,
                |user_key, trailer, value| {
                    if index >= len {
                        spare.add(user_key, trailer, value);
                    }
                    index += 1;
                },
                self.len(),
            );
        }
        std::mem::swap(self, spare);
    }

    /// Decodes the entries `from..to`, where a restart point is at `from`; leaves the internal
    /// key of the last one in `key`.
    fn walk(
        &self,
        from: usize,
        key: &mut Vec<u8>,
        mut visit: impl FnMut(&[u8], u64, &[u8]),
        to: usize,
    ) {
        key.clear();
        for index in from..to {
            let (start, end) = (self.entries_end(index), self.ends[index]);
            let mut input = &self.entries[start..end];
            let mut number = || get_varint64(&mut input).expect("the builder's own entry");
            let (shared, unshared, _) = (number(), number(), number());
            let trailer = number();
            let length = |number| usize::try_from(number).expect("lengths of slices in memory");
            let (suffix, value) = input.split_at(length(unshared));
            key.truncate(length(shared));
            key.extend_from_slice(suffix);
            visit(key, trailer, value);
            if index + 1 == to {
                key.extend_from_slice(&trailer.to_le_bytes());
            }
        }
    }

    /// Empties the block and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.restarts.clear();
        self.ends.clear();
        self.last_key.clear();
    }
}

/// Bytes of the varint of `value`.
fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    put_varint32(out, u32::try_from(length).expect("keys and values are below 4 GiB"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u32, interval: usize) -> BlockBuilder {
        let mut builder = BlockBuilder::new(interval);
        for i in 0..count {
            builder.add(format!("key{i:04}").as_bytes(), u64::from(i) << 8 | 2, &i.to_le_bytes());
        }
        builder
    }

    fn payload(builder: &BlockBuilder) -> Vec<u8> {
        let mut out = Vec::new();
        builder.write_to(&mut out);
        assert_eq!(out.len(), builder.size());
        out
    }

    #[test]
    fn a_prefix_of_a_block_is_the_block_of_that_prefix() {
        for interval in [1, 3, 16] {
            let builder = filled(50, interval);
            for len in 1..=50 {
                let mut out = Vec::new();
                builder.write_prefix_to(len, &mut out);
                let alone = filled(u32::try_from(len).unwrap(), interval);
                assert_eq!(out, payload(&alone));
                let (mut a, mut b) = (Vec::new(), Vec::new());
                builder.last_key(len, &mut a);
                alone.last_key(len, &mut b);
                assert_eq!(a, b);
                assert_eq!(builder.entries_within(builder.prefix_size(len)), len);
            }
        }
    }

    #[test]
    fn what_is_left_after_a_prefix_is_dropped_is_a_block_of_its_own() {
        for interval in [1, 3, 16] {
            for len in 1..=50 {
                let mut builder = filled(50, interval);
                builder.drop_prefix(len, &mut BlockBuilder::new(interval));
                let mut alone = BlockBuilder::new(interval);
                for i in len..50 {
                    let value = u32::try_from(i).unwrap().to_le_bytes();
                    alone.add(format!("key{i:04}").as_bytes(), (i as u64) << 8 | 2, &value);
                }
                assert_eq!(payload(&builder), payload(&alone));
            }
        }
    }

    #[test]
    fn the_announced_size_is_the_size() {
        let mut builder = BlockBuilder::new(4);
        for i in 0..60_u32 {
            let (key, value) = (format!("k{i:02}"), vec![7; (i * 13 % 200) as usize]);
            let trailer = u64::MAX >> i & !0xff | 2;
            let announced = builder.size_with(key.as_bytes(), trailer, &value);
            builder.add(key.as_bytes(), trailer, &value);
            assert_eq!(builder.size(), announced);
        }
    }
}
