//! A data block in memory: sorted entries with prefix compression, searched in place.
//!
//! Nothing in here trusts the bytes beyond the block's checksum: every length is checked against
//! what is left, and a block that does not follow the format is reported, whatever it holds.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::panic
    )
)]

mod cursor;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use treering_env::Buffer;

pub(crate) use cursor::{BlockCursor, Scratch};

use super::format::{Malformed, Parsed, cut, short_varint};
use crate::coding::get_varint64;
use crate::key::{MAX_KEY_SIZE, MAX_VALUE_SIZE, ValueKind};
use crate::memtable::Lookup;

const BAD_ENTRY: Malformed = Malformed("a block with a malformed entry");
const BAD_RESTARTS: Malformed = Malformed("a block with malformed restart points");
const UNSORTED: Malformed = Malformed("a block with entries out of order");

/// A decompressed data block whose checksum and restart points were checked.
#[derive(Debug)]
pub(crate) struct Block {
    data: Buffer,
    /// Where the entries end and the restart points begin.
    entries_end: usize,
    /// Where the restart points end.
    restarts_end: usize,
}

/// An entry as it lies in the block: the key's first `shared` bytes are those of the key before.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// User key bytes taken over from the entry before.
    pub(crate) shared: usize,
    /// The rest of the user key.
    pub(crate) suffix: &'a [u8],
    /// Sequence number and kind.
    pub(crate) trailer: u64,
    /// The value.
    pub(crate) value: &'a [u8],
    /// Where the next entry starts.
    pub(crate) next: usize,
}

impl Entry<'_> {
    /// Where its value lies in the block: an entry ends with it.
    fn range(&self) -> Range<usize> {
        self.next.saturating_sub(self.value.len())..self.next
    }

    /// Whether it says that its key was deleted.
    pub(crate) fn is_deletion(&self) -> bool {
        self.trailer & 0xff == ValueKind::Deletion as u64
    }
}

/// What a block owner shares with the values sliced from it.
struct Owner(Arc<Block>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0.data
    }
}

impl Block {
    /// The block whose payload is the first `len` bytes of `data`.
    pub(crate) fn new(data: Buffer, len: usize) -> Parsed<Self> {
        let payload = data.get(..len).ok_or(BAD_RESTARTS)?;
        let (rest, count) = payload.split_last_chunk::<2>().ok_or(BAD_RESTARTS)?;
        let bytes = usize::from(u16::from_le_bytes(*count)).checked_mul(2).ok_or(BAD_RESTARTS)?;
        let restarts_end = rest.len();
        let entries_end = restarts_end.checked_sub(bytes).ok_or(BAD_RESTARTS)?;
        let block = Self { data, entries_end, restarts_end };
        // The first restart point is 0, the others follow in order, all are before the end.
        let mut least = 0;
        for index in 0..block.restarts() {
            let restart = block.restart(index)?;
            let in_order = if index == 0 { restart == 0 } else { restart >= least };
            if !in_order || restart >= entries_end {
                return Err(BAD_RESTARTS);
            }
            least = restart.saturating_add(1);
        }
        if block.restarts() == 0 {
            return Err(BAD_RESTARTS);
        }
        Ok(block)
    }

    /// Bytes of memory the block holds.
    pub(crate) fn memory(&self) -> usize {
        self.data.capacity().saturating_add(size_of::<Self>())
    }

    /// Bytes of the payload: entries, restart points and their count.
    pub(crate) fn payload_len(&self) -> usize {
        self.restarts_end.saturating_add(size_of::<u16>())
    }

    /// How many restart points there are; at least one.
    pub(crate) fn restarts(&self) -> usize {
        self.restarts_end.saturating_sub(self.entries_end) / 2
    }

    /// Where the entry at restart point `index` starts.
    pub(crate) fn restart(&self, index: usize) -> Parsed<usize> {
        let at = index.checked_mul(2).and_then(|at| at.checked_add(self.entries_end));
        let at = at.ok_or(BAD_RESTARTS)?;
        let bytes = self.data.get(at..self.restarts_end).and_then(<[u8]>::first_chunk::<2>);
        bytes.map(|bytes| usize::from(u16::from_le_bytes(*bytes))).ok_or(BAD_RESTARTS)
    }

    /// Where the last entry ends.
    pub(crate) fn end(&self) -> usize {
        self.entries_end
    }

    /// The entry that starts at `offset`, which is before [`Block::end`].
    #[inline]
    pub(crate) fn entry(&self, offset: usize) -> Parsed<Entry<'_>> {
        self.parse(offset).ok_or(BAD_ENTRY)
    }

    #[inline]
    fn parse(&self, offset: usize) -> Option<Entry<'_>> {
        let mut input = self.data.get(offset..self.entries_end)?;
        let shared = short_varint(&mut input)?;
        let unshared = short_varint(&mut input)?;
        let value_len = short_varint(&mut input)?;
        let trailer = get_varint64(&mut input)?;
        ValueKind::from_byte((trailer & 0xff) as u8)?;
        if shared.checked_add(unshared)? > MAX_KEY_SIZE || value_len > MAX_VALUE_SIZE {
            return None;
        }
        let suffix = cut(&mut input, unshared)?;
        let value = cut(&mut input, value_len)?;
        let next = self.entries_end.checked_sub(input.len())?;
        Some(Entry { shared, suffix, trailer, value, next })
    }

    /// The entry at restart point `index`, which shares nothing.
    pub(crate) fn restart_entry(&self, index: usize) -> Parsed<Entry<'_>> {
        let entry = self.entry(self.restart(index)?)?;
        if entry.shared != 0 {
            return Err(BAD_RESTARTS);
        }
        Ok(entry)
    }

    /// The last restart point whose key is at or before (`user_key`, `trailer`); the first one if
    /// there is none.
    pub(crate) fn restart_before(&self, user_key: &[u8], trailer: u64) -> Parsed<usize> {
        let (mut low, mut high) = (0, self.restarts());
        // Invariant: the answer is in low..high; restart `low` is before the target or the first.
        while high.saturating_sub(low) > 1 {
            let middle = low.midpoint(high);
            let entry = self.restart_entry(middle)?;
            if compare(entry.suffix, entry.trailer, user_key, trailer) == Ordering::Greater {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(low)
    }

    /// The newest version of `user_key` whose trailer is at most `trailer`: the first entry at or
    /// after that key, if it has the same user key. Allocates nothing.
    pub(crate) fn search(&self, user_key: &[u8], trailer: u64) -> Parsed<Option<Entry<'_>>> {
        let mut offset = self.restart(self.restart_before(user_key, trailer)?)?;
        // The length of the key before, and how many bytes of it equal those of `user_key`. All
        // keys passed so far are smaller than the target, so a key that shares more than
        // `matched` bytes with the one before is smaller too.
        let (mut length, mut matched) = (0, 0);
        while offset < self.entries_end {
            let entry = self.entry(offset)?;
            if entry.shared > length {
                return Err(BAD_ENTRY);
            }
            length = entry.shared.saturating_add(entry.suffix.len());
            offset = entry.next;
            if entry.shared > matched {
                continue;
            }
            let rest = user_key.get(entry.shared..).ok_or(BAD_ENTRY)?;
            let common = common_prefix(entry.suffix, rest);
            matched = entry.shared.saturating_add(common);
            match entry.suffix.get(common..).cmp(&rest.get(common..)) {
                Ordering::Less => {}
                Ordering::Equal if entry.trailer > trailer => {}
                Ordering::Equal => return Ok(Some(entry)),
                Ordering::Greater => return Ok(None),
            }
        }
        Ok(None)
    }

    /// What [`Block::search`] finds, as an answer: the version's trailer and its value. A value
    /// under a quarter of the block is copied, a larger one shares the block's memory.
    pub(crate) fn get(
        self: &Arc<Self>,
        user_key: &[u8],
        trailer: u64,
    ) -> Parsed<Option<(u64, Lookup)>> {
        let Some(entry) = self.search(user_key, trailer)? else { return Ok(None) };
        if entry.is_deletion() {
            return Ok(Some((entry.trailer, Lookup::Deleted)));
        }
        Ok(Some((entry.trailer, Lookup::Found(self.value(&entry)))))
    }

    /// The value of an entry of this block, to be kept.
    pub(crate) fn value(self: &Arc<Self>, entry: &Entry<'_>) -> Bytes {
        if entry.value.len() < self.data.len() / 4 {
            return Bytes::copy_from_slice(entry.value);
        }
        Bytes::from_owner(Owner(Arc::clone(self))).slice(entry.range())
    }

    /// Walks over all entries in order, checks that keys ascend strictly, and gives each to
    /// `visit` as (user key, trailer, value length).
    pub(crate) fn walk(&self, mut visit: impl FnMut(&[u8], u64, usize)) -> Parsed<()> {
        let (mut key, mut last_trailer, mut offset) = (Vec::new(), None, 0);
        let mut previous = Vec::new();
        let mut next_restart = 0;
        while offset < self.entries_end {
            let entry = self.entry(offset)?;
            let at_restart =
                next_restart < self.restarts() && self.restart(next_restart)? == offset;
            if entry.shared > key.len() || (at_restart && entry.shared != 0) {
                return Err(BAD_ENTRY);
            }
            next_restart = next_restart.saturating_add(usize::from(at_restart));
            previous.clone_from(&key);
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            if let Some(last) = last_trailer
                && compare(&previous, last, &key, entry.trailer) != Ordering::Less
            {
                return Err(UNSORTED);
            }
            visit(&key, entry.trailer, entry.value.len());
            last_trailer = Some(entry.trailer);
            offset = entry.next;
        }
        // A restart point that no entry starts at would send a look-up into the middle of one.
        if next_restart == self.restarts() { Ok(()) } else { Err(BAD_RESTARTS) }
    }
}

/// The order of two versions given by user key and trailer.
#[inline]
pub(crate) fn compare(a: &[u8], a_trailer: u64, b: &[u8], b_trailer: u64) -> Ordering {
    a.cmp(b).then(b_trailer.cmp(&a_trailer))
}

/// How many leading bytes two slices have in common.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (a_words, b_words) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let mut common = 0_usize;
    for (a, b) in a_words.iter().zip(b_words) {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            // The lowest bit that differs is in the first byte that does.
            return common.saturating_add(difference.trailing_zeros() as usize / 8);
        }
        common = common.saturating_add(8);
    }
    let rest = |bytes: &[u8]| bytes.get(common..).map_or(0, <[u8]>::len);
    let len = rest(a).min(rest(b));
    let tail = a.iter().zip(b).skip(common).take(len).take_while(|(a, b)| a == b);
    common.saturating_add(tail.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::block_builder::BlockBuilder;

    pub(super) fn block(entries: &[(&[u8], u64, &[u8])], interval: usize) -> Arc<Block> {
        let mut builder = BlockBuilder::new(interval);
        for (key, sequence, value) in entries {
            builder.add(key, sequence << 8 | 2, value);
        }
        let mut out = Vec::new();
        builder.write_to(&mut out);
        let len = out.len();
        Arc::new(Block::new(Buffer::from(&out[..]), len).unwrap())
    }

    #[test]
    fn every_version_is_found_by_every_key_that_sees_it() {
        let entries: Vec<(&[u8], u64, &[u8])> = vec![
            (b"", 9, b"empty"),
            (b"a", 8, b"1"),
            (b"a", 5, b"2"),
            (b"a\0", 7, b"3"),
            (b"aa", 3, b""),
            (b"aab", 3, b"4"),
            (b"b", 1, b"5"),
            (b"ba", 1, b"6"),
        ];
        for interval in 1..9 {
            let block = block(&entries, interval);
            for probe in
                [&b""[..], b"a", b"a\0", b"a\0\0", b"aa", b"aaa", b"aab", b"b", b"ba", b"c"]
            {
                for sequence in 0..11 {
                    let found = block.search(probe, sequence << 8 | 0xff).unwrap();
                    let want = entries.iter().find(|e| e.0 == probe && e.1 <= sequence);
                    let got = found.map(|e| (e.trailer >> 8, e.value));
                    assert_eq!(got, want.map(|e| (e.1, e.2)), "{probe:?} at {sequence}");
                }
            }
        }
    }

    #[test]
    fn common_prefixes_are_counted_to_the_byte() {
        let bytes: Vec<u8> = (0..40).collect();
        for a_len in 0..40 {
            for b_len in 0..40 {
                assert_eq!(common_prefix(&bytes[..a_len], &bytes[..b_len]), a_len.min(b_len));
            }
            for at in 0..a_len {
                let mut other = bytes.clone();
                other[at] ^= 0x80;
                assert_eq!(common_prefix(&bytes[..a_len], &other), at);
                assert_eq!(common_prefix(&other, &bytes[..a_len]), at);
            }
        }
    }

    #[test]
    fn zeros_and_short_payloads_are_no_block() {
        for len in 0..40 {
            assert!(Block::new(Buffer::zeroed(len), len).is_err());
        }
    }

    #[test]
    fn large_values_share_the_block_and_small_ones_do_not() {
        let large = vec![7; 3000];
        let block = block(&[(b"a", 1, b"small"), (b"b", 1, &large)], 16);
        let get = |key: &[u8]| match block.get(key, 0xffff).unwrap() {
            Some((_, Lookup::Found(value))) => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(&get(b"a")[..], b"small");
        assert_eq!(Arc::strong_count(&block), 1);
        let value = get(b"b");
        assert_eq!(&value[..], &large[..]);
        assert_eq!(Arc::strong_count(&block), 2);
    }
}
