//! The index block: where each data block is, and which keys it may hold.
//!
//! Each data block but the first has a lower bound: a key that is after everything before the
//! block and at or before everything in it and behind it, as short as possible. A key is in the
//! last block whose lower bound is at or before it, or nowhere. Handles are not stored: data
//! blocks follow one another, so sizes and the alignment give the offsets, and no index can make
//! blocks overlap, repeat or point backwards.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::panic
    )
)]

use std::cmp::Ordering;

use super::block::{common_prefix, compare};
use super::format::{BlockHandle, Malformed, Parsed, align_up, cut, short_varint};
use super::words::Words;
use crate::coding::{get_u64, put_slice, put_varint32};
use crate::key::{self, MAX_KEY_SIZE};

const BAD: Malformed = Malformed("a malformed index block");
const TOO_SHORT: Malformed = Malformed("an index too short for the blocks it counts");

/// The smallest data block: one entry of an empty key, one restart point, a trailer.
const MIN_BLOCK: u32 = 13;

/// Heads from one sample to the next: 128 bytes, at most three cache lines, so few that all of
/// them can be asked for before they are needed.
const SAMPLE: usize = 16;
/// Heads in a cache line.
const LINE: usize = 8;

/// The index of a table in memory.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Offset and size of each block, one after another.
    handles: Words,
    /// What all lower bounds begin with.
    prefix: Vec<u8>,
    /// The eight bytes after the prefix of each lower bound, as a number that sorts like them.
    heads: Words,
    /// Every [`SAMPLE`]th of the heads: so few that they mostly stay in the processor's cache.
    samples: Vec<u64>,
    /// The lower bounds without their prefix, one after another.
    bounds: Vec<u8>,
    /// Where each lower bound ends in `bounds`.
    ends: Vec<u32>,
    /// (bound, trailer) of the few bounds that lie between two versions of one key, in order; all
    /// others sort before every version of their user key.
    trailers: Vec<(u32, u64)>,
}

impl Index {
    /// The index in `payload`, of a table whose data blocks end at `data_end`.
    pub(crate) fn decode(payload: &[u8], alignment: u32, data_end: u64) -> Parsed<Self> {
        let mut input = payload;
        let mut index = Self::default();
        let count = short_varint(&mut input).ok_or(BAD)?;
        let prefix_len = short_varint(&mut input).ok_or(BAD)?;
        index.prefix = cut(&mut input, prefix_len).ok_or(BAD)?.to_vec();
        // Each block takes at least a byte here and its room among the data, which bounds what is
        // reserved by what was read, not by what is claimed.
        if count > input.len() {
            return Err(TOO_SHORT);
        }
        let least = (count as u64).saturating_mul(u64::from(MIN_BLOCK));
        if count == 0 || least > data_end || prefix_len > MAX_KEY_SIZE {
            return Err(BAD);
        }
        index.handles = Words::zeroed(count.saturating_mul(2));
        index.heads = Words::zeroed(count.saturating_sub(1));
        let mut end = 0;
        for block in 0..count {
            let size = u32::try_from(short_varint(&mut input).ok_or(BAD)?).map_err(|_| BAD)?;
            let offset = align_up(end, alignment).ok_or(BAD)?;
            end = offset.checked_add(u64::from(size)).ok_or(BAD)?;
            if size < MIN_BLOCK || end > data_end {
                return Err(Malformed("the index names a block beyond the data blocks"));
            }
            index.handles.set(block.saturating_mul(2), offset);
            index.handles.set(block.saturating_mul(2).saturating_add(1), u64::from(size));
            if block > 0 {
                index.push_bound(&mut input)?;
            }
        }
        if end != data_end || !input.is_empty() {
            return Err(BAD);
        }
        index.check_order()?;
        let sampled = (0..index.heads.len()).step_by(SAMPLE);
        index.samples = sampled.filter_map(|at| index.heads.get(at)).collect();
        Ok(index)
    }

    fn push_bound(&mut self, input: &mut &[u8]) -> Parsed<()> {
        let tag = short_varint(input).ok_or(BAD)?;
        let suffix = cut(input, tag >> 1).ok_or(BAD)?;
        if tag & 1 == 1 {
            let bound = u32::try_from(self.ends.len()).map_err(|_| BAD)?;
            self.trailers.push((bound, get_u64(input).ok_or(BAD)?));
        }
        self.heads.set(self.ends.len(), head(suffix));
        self.bounds.extend_from_slice(suffix);
        self.ends.push(u32::try_from(self.bounds.len()).map_err(|_| BAD)?);
        Ok(())
    }

    fn check_order(&self) -> Parsed<()> {
        for bound in 1..self.ends.len() {
            let (a, a_trailer) = self.bound(bound.saturating_sub(1));
            let (b, b_trailer) = self.bound(bound);
            if compare(a, a_trailer, b, b_trailer) != Ordering::Less {
                return Err(Malformed("an index out of order"));
            }
        }
        Ok(())
    }

    /// The lower bound of block `bound + 1` without the prefix, and its trailer.
    fn bound(&self, bound: usize) -> (&[u8], u64) {
        let end = |bound: usize| self.ends.get(bound).map_or(0, |end| *end as usize);
        let start = bound.checked_sub(1).map_or(0, end);
        let suffix = self.bounds.get(start..end(bound)).unwrap_or_default();
        let trailer = if self.trailers.is_empty() {
            u64::MAX
        } else {
            let found = self.trailers.binary_search_by(|(of, _)| (*of as usize).cmp(&bound));
            found.ok().and_then(|at| self.trailers.get(at)).map_or(u64::MAX, |(_, t)| *t)
        };
        (suffix, trailer)
    }

    /// How many data blocks there are; at least one.
    pub(crate) fn len(&self) -> usize {
        self.handles.len() / 2
    }

    /// The user key below which no key in data block `block` or behind it lies; `None` for the
    /// first block and for blocks that are not there.
    pub(crate) fn lower_bound(&self, block: usize) -> Option<Vec<u8>> {
        let bound = block.checked_sub(1).filter(|bound| *bound < self.ends.len())?;
        Some([&self.prefix[..], self.bound(bound).0].concat())
    }

    /// The data block that `offset` is in or behind.
    pub(crate) fn block_at(&self, offset: u64) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.handle(middle).is_some_and(|handle| handle.offset <= offset) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// The handle of data block `block`.
    pub(crate) fn handle(&self, block: usize) -> Option<BlockHandle> {
        let at = block.checked_mul(2)?;
        let size = self.handles.get(at.checked_add(1)?)?;
        Some(BlockHandle { offset: self.handles.get(at)?, size: u32::try_from(size).ok()? })
    }

    /// Asks the processor for the handle of a block.
    pub(crate) fn prefetch_handle(&self, block: usize) {
        self.handles.prefetch(block.saturating_mul(2));
    }

    /// The number of the only block that can hold (`user_key`, `trailer`), or the first key after
    /// it unless that begins the next block. Allocates nothing.
    pub(crate) fn find(&self, user_key: &[u8], trailer: u64) -> usize {
        self.find_from(self.approach(user_key), user_key, trailer)
    }

    /// The first half of a search: between which samples it ends. The heads there are asked of
    /// memory; so searches for several keys wait for it together, if the first halves of all of
    /// them come before the second ones.
    pub(crate) fn approach(&self, user_key: &[u8]) -> usize {
        let Some(rest) = user_key.strip_prefix(&*self.prefix) else { return 0 };
        let wanted = head(rest);
        // The sample before the first one that is not below begins the stretch it is in.
        let sample = self.samples.partition_point(|head| *head < wanted).saturating_sub(1);
        let start = sample.saturating_mul(SAMPLE);
        for line in (0..=SAMPLE).step_by(LINE) {
            self.heads.prefetch(start.saturating_add(line));
        }
        start
    }

    /// The second half of a search, from where [`Index::approach`] said: what [`Index::find`]
    /// gives.
    pub(crate) fn find_from(&self, start: usize, user_key: &[u8], trailer: u64) -> usize {
        let Some(rest) = user_key.strip_prefix(&*self.prefix) else {
            // Before or after everything that begins with the prefix.
            return if *user_key < *self.prefix { 0 } else { self.heads.len() };
        };
        let wanted = head(rest);
        let end = start.saturating_add(SAMPLE).saturating_add(1).min(self.heads.len());
        let mut low = self.heads.partition_point(start, end, |head| head < wanted);
        // Mostly none is equal, and looking at the first of them tells.
        let mut high = if self.heads.get(low) == Some(wanted) {
            self.heads.partition_point(low, self.heads.len(), |head| head == wanted)
        } else {
            low
        };
        // Equal heads decide nothing: between them whole bounds are compared.
        while low < high {
            let middle = low.midpoint(high);
            let (bound, bound_trailer) = self.bound(middle);
            if compare(bound, bound_trailer, rest, trailer) == Ordering::Greater {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        low
    }

    /// Bytes of memory the index holds.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        let words = self.heads.memory().saturating_add(self.handles.memory());
        let words = words.saturating_add(self.samples.len().saturating_mul(8));
        let halves = self.ends.len().saturating_mul(4);
        let keys = self.bounds.len().saturating_add(self.prefix.len());
        words.saturating_add(halves).saturating_add(keys)
    }
}

/// The first eight bytes of `bytes`, zeros after its end, as a number that sorts like them.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    if let Some(head) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut padded = [0; 8];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(padded)
}

/// Collects the index of a table being written.
#[derive(Debug, Default)]
pub(crate) struct IndexBuilder {
    sizes: Vec<u32>,
    bounds: Vec<u8>,
    /// Where each bound ends in `bounds`, and its trailer if it needs one.
    ends: Vec<(usize, Option<u64>)>,
}

impl IndexBuilder {
    /// Adds a data block of `size` bytes that begins with the internal key `first`; `before` is
    /// the last internal key of the block before it, if there is one.
    pub(crate) fn add(&mut self, before: Option<&[u8]>, first: &[u8], size: u32) {
        self.sizes.push(size);
        let Some(before) = before else { return };
        let ((before_key, before_trailer), (first_key, _)) =
            (key::split(before), key::split(first));
        let trailer = if before_key == first_key {
            // The place right after `before`, so that a version between the two is looked for
            // in this block. Trailers descend, and none is zero.
            self.bounds.extend_from_slice(first_key);
            Some(before_trailer.saturating_sub(1))
        } else {
            // One byte more than both share is enough to be after the one, not after the other.
            let len = common_prefix(before_key, first_key).saturating_add(1);
            self.bounds.extend_from_slice(first_key.get(..len).unwrap_or(first_key));
            None
        };
        self.ends.push((self.bounds.len(), trailer));
    }

    /// About the bytes of the payload as it stands.
    pub(crate) fn size(&self) -> usize {
        self.bounds.len().saturating_add(self.sizes.len().saturating_mul(4))
    }

    /// Appends the payload to `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        let bound = |at: usize| {
            let (end, trailer) = self.ends.get(at).copied().unwrap_or_default();
            let start = at.checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |end| end.0);
            (self.bounds.get(start..end).unwrap_or_default(), trailer)
        };
        // Bounds ascend, so what the first and the last share, all share.
        let (first, last) = (bound(0).0, bound(self.ends.len().saturating_sub(1)).0);
        let prefix = first.get(..common_prefix(first, last)).unwrap_or_default();
        put_length(out, self.sizes.len());
        put_slice(out, prefix);
        for (block, size) in self.sizes.iter().enumerate() {
            put_varint32(out, *size);
            let Some(at) = block.checked_sub(1) else { continue };
            let (bound, trailer) = bound(at);
            let suffix = bound.get(prefix.len()..).unwrap_or_default();
            put_length(out, suffix.len() << 1 | usize::from(trailer.is_some()));
            out.extend_from_slice(suffix);
            if let Some(trailer) = trailer {
                out.extend_from_slice(&trailer.to_le_bytes());
            }
        }
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    crate::coding::put_varint64(out, length as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOST-01
    #[test]
    fn an_index_that_counts_more_blocks_than_it_names_is_refused_before_memory_is_reserved() {
        let payload = |count: u32| {
            let mut payload = Vec::new();
            put_varint32(&mut payload, count);
            payload.extend_from_slice(&[0, 13, 13, 2, b'b', 13, 2, b'c']);
            payload
        };
        let refused = |count| Index::decode(&payload(count), 1, u64::MAX).err();
        // The data may be as long as it claims: a sparse file costs nobody anything.
        assert_eq!(refused(u32::MAX), Some(TOO_SHORT));
        assert_eq!(refused(8), Some(TOO_SHORT));
        assert_eq!(Index::decode(&payload(3), 1, 39).unwrap().len(), 3);
    }
}
