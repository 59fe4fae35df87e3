//! A position in a data block.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::{BAD_ENTRY, Block, compare};
use crate::key::TRAILER_SIZE;
use crate::table::format::Parsed;

/// Entries that a walk keeps: as many as there may be between restart points.
const MAX_PASSED: usize = 128;
/// Bytes of their keys, which a few bytes of prefixes can make many. Earlier entries are forgotten
/// for later ones, and another walk finds them.
const MAX_PASSED_KEYS: usize = 256 << 10;

/// A position in a block. The key is kept assembled in one buffer that is used again and again.
///
/// An entry says where the next one starts and not where the one before does, so going backward
/// takes a walk from a restart point. What the walk passes is kept, and given entry by entry.
#[derive(Debug)]
pub(crate) struct BlockCursor {
    block: Arc<Block>,
    /// The key is the internal key of the entry: user key and trailer. What was passed are the
    /// entries before this one, from a restart point on; none, if that is not known.
    scratch: Scratch,
    /// Bytes of the user key in the key.
    user_len: usize,
    /// Where the entry starts; [`Block::end`] when the cursor is on none.
    offset: usize,
    value: Range<usize>,
    /// Where the entry after this one starts.
    next: usize,
}

/// Memory that a cursor needs, to be used again by the cursor over the next block.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    key: Vec<u8>,
    passed: Vec<Passed>,
    /// The internal keys of the entries in `passed`.
    passed_keys: Vec<u8>,
}

/// An entry that a walk passed.
#[derive(Debug)]
struct Passed {
    offset: usize,
    value: Range<usize>,
    /// Where its key starts; it ends where the next one starts.
    key: usize,
}

impl Scratch {
    /// Keeps the entries of `block` from restart point `index` up to `end`, or the last of them.
    fn walk(&mut self, block: &Block, index: usize, end: usize) -> Parsed<()> {
        let Self { passed, passed_keys: keys, .. } = self;
        let mut offset = block.restart(index)?;
        // Where the user key before lies.
        let (mut from, mut to) = (0_usize, 0_usize);
        while offset < end {
            let entry = block.entry(offset)?;
            let shared = from.saturating_add(entry.shared);
            if shared > to {
                return Err(BAD_ENTRY);
            }
            let key = keys.len();
            keys.extend_from_within(from..shared);
            keys.extend_from_slice(entry.suffix);
            (from, to) = (key, keys.len());
            keys.extend_from_slice(&entry.trailer.to_le_bytes());
            if passed.len() >= MAX_PASSED || keys.len() > MAX_PASSED_KEYS {
                passed.clear();
                keys.drain(..from);
                (from, to) = (0, to.saturating_sub(from));
            }
            passed.push(Passed { offset, value: entry.range(), key: from });
            offset = entry.next;
        }
        Ok(())
    }
}

impl BlockCursor {
    /// A cursor on no entry.
    pub(crate) fn new(block: Arc<Block>, scratch: Scratch) -> Self {
        let offset = block.end();
        let mut cursor = Self { block, scratch, user_len: 0, offset, value: 0..0, next: offset };
        cursor.leave();
        cursor
    }

    /// The block, and the memory to be used again.
    pub(crate) fn into_parts(self) -> (Arc<Block>, Scratch) {
        (self.block, self.scratch)
    }

    /// Whether the cursor is on an entry.
    pub(crate) fn valid(&self) -> bool {
        self.offset < self.block.end()
    }

    /// The internal key of the entry; empty if there is none.
    pub(crate) fn key(&self) -> &[u8] {
        &self.scratch.key
    }

    /// The value of the entry; empty if there is none.
    pub(crate) fn value(&self) -> &[u8] {
        self.block.data.get(self.value.clone()).unwrap_or_default()
    }

    /// Goes to the entry at restart point `index`.
    fn go_to_restart(&mut self, index: usize) -> Parsed<()> {
        self.scratch.key.clear();
        self.user_len = 0;
        self.next = self.block.restart(index)?;
        self.forward()
    }

    /// Reads the entry at `self.next`, or leaves the last one.
    pub(crate) fn forward(&mut self) -> Parsed<()> {
        self.forget_passed();
        let offset = self.next;
        if offset >= self.block.end() {
            self.leave();
            return Ok(());
        }
        let entry = match self.block.entry(offset) {
            Ok(entry) if entry.shared <= self.user_len => entry,
            _ => {
                self.leave();
                return Err(BAD_ENTRY);
            }
        };
        let key = &mut self.scratch.key;
        key.truncate(entry.shared);
        key.extend_from_slice(entry.suffix);
        self.user_len = key.len();
        key.extend_from_slice(&entry.trailer.to_le_bytes());
        (self.offset, self.value, self.next) = (offset, entry.range(), entry.next);
        Ok(())
    }

    fn forget_passed(&mut self) {
        self.scratch.passed.clear();
        self.scratch.passed_keys.clear();
    }

    fn leave(&mut self) {
        self.forget_passed();
        self.scratch.key.clear();
        self.user_len = 0;
        self.offset = self.block.end();
        self.next = self.offset;
        self.value = 0..0;
    }

    /// Goes to the first entry.
    pub(crate) fn first(&mut self) -> Parsed<()> {
        self.go_to_restart(0)
    }

    /// Goes to the last entry.
    pub(crate) fn last(&mut self) -> Parsed<()> {
        self.walk_to(self.block.restarts().saturating_sub(1), self.block.end())
    }

    /// Goes to the first entry at or after the internal key (`user_key`, `trailer`).
    pub(crate) fn seek(&mut self, user_key: &[u8], trailer: u64) -> Parsed<()> {
        self.go_to_restart(self.block.restart_before(user_key, trailer)?)?;
        while self.valid() && self.compare(user_key, trailer) == Ordering::Less {
            self.forward()?;
        }
        Ok(())
    }

    /// The order of the entry's key and (`user_key`, `trailer`).
    pub(crate) fn compare(&self, user_key: &[u8], trailer: u64) -> Ordering {
        match self.scratch.key.split_last_chunk::<TRAILER_SIZE>() {
            Some((key, own)) => compare(key, u64::from_le_bytes(*own), user_key, trailer),
            None => Ordering::Less,
        }
    }

    /// Goes to the entry before; off the first one the cursor is on none.
    pub(crate) fn backward(&mut self) -> Parsed<()> {
        if !self.scratch.passed.is_empty() {
            self.step_back();
            return Ok(());
        }
        let before = self.offset;
        // The last restart point before this entry.
        let (mut low, mut high) = (0, self.block.restarts());
        while low < high {
            let middle = low.midpoint(high);
            if self.block.restart(middle)? < before {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        if let Some(restart) = low.checked_sub(1) {
            return self.walk_to(restart, before);
        }
        self.leave();
        Ok(())
    }

    /// Walks from restart point `index` on and goes to the last entry that starts before `end`.
    fn walk_to(&mut self, index: usize, end: usize) -> Parsed<()> {
        self.leave();
        match self.scratch.walk(&self.block, index, end) {
            Ok(()) => self.step_back(),
            Err(malformed) => {
                self.leave();
                return Err(malformed);
            }
        }
        Ok(())
    }

    /// Goes to the last of the entries that were passed.
    fn step_back(&mut self) {
        let Scratch { key, passed, passed_keys } = &mut self.scratch;
        let Some(entry) = passed.pop() else { return self.leave() };
        key.clear();
        key.extend_from_slice(passed_keys.get(entry.key..).unwrap_or_default());
        passed_keys.truncate(entry.key);
        self.user_len = key.len().saturating_sub(TRAILER_SIZE);
        (self.offset, self.next) = (entry.offset, entry.value.end);
        self.value = entry.value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::block::tests::block;

    fn on(cursor: &BlockCursor) -> Option<(&[u8], &[u8])> {
        let key = cursor.key().strip_suffix(&[2, 1, 0, 0, 0, 0, 0, 0])?;
        Some((key, cursor.value()))
    }

    /// Each way back used to walk from the restart point again: eight entries for one.
    #[test]
    fn going_backward_walks_once_for_each_restart_point() {
        let keys: Vec<String> = (0..100).map(|i| format!("key{i:03}")).collect();
        let entries: Vec<(&[u8], u64, &[u8])> =
            keys.iter().map(|key| (key.as_bytes(), 1, key.as_bytes())).collect();
        let mut cursor = BlockCursor::new(block(&entries, 16), Scratch::default());
        cursor.last().unwrap();
        for (index, key) in keys.iter().enumerate().rev() {
            assert_eq!(on(&cursor), Some((key.as_bytes(), key.as_bytes())));
            assert_eq!(cursor.scratch.passed.len(), index % 16, "at entry {index}");
            cursor.backward().unwrap();
        }
        assert!(!cursor.valid());
    }

    #[test]
    fn what_a_walk_keeps_is_bounded_and_the_rest_is_found_again() {
        let prefix = vec![b'p'; 20_000];
        let keys: Vec<Vec<u8>> = (0..128).map(|i| [&prefix[..], &[i]].concat()).collect();
        let entries: Vec<(&[u8], u64, &[u8])> =
            keys.iter().map(|key| (&key[..], 1, &key[20_000..])).collect();
        let mut cursor = BlockCursor::new(block(&entries, 128), Scratch::default());
        cursor.last().unwrap();
        for key in keys.iter().rev() {
            assert_eq!(on(&cursor), Some((&key[..], &key[20_000..])));
            cursor.backward().unwrap();
        }
        assert!(!cursor.valid());
        let kept = cursor.scratch.passed_keys.capacity();
        assert!(kept <= 3 * MAX_PASSED_KEYS, "{kept} bytes of keys were kept");
    }
}
