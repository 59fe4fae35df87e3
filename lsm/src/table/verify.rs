//! Reads a whole table and reports everything that is wrong with it.

use treering_env::Buffer;

use super::format::{BlockHandle, Malformed};
use super::properties::Properties;
use super::reader::Table;
use crate::key::{self, ValueKind};
use crate::{Error, Result};

/// What a verification went over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableCheck {
    /// Data blocks read, damaged ones included.
    pub(crate) blocks: u64,
    /// Bytes read.
    pub(crate) bytes: u64,
    /// Versions in the blocks that are sound.
    pub(crate) entries: u64,
}

/// What the properties claim about all versions together, or what the blocks were seen to hold.
struct Totals {
    entries: u64,
    deletions: u64,
    smallest_sequence: u64,
    largest_sequence: u64,
    key_bytes: u64,
    value_bytes: u64,
    largest_block: usize,
}

impl Totals {
    fn claimed(properties: &Properties) -> Self {
        Self {
            entries: properties.entries,
            deletions: properties.deletions,
            smallest_sequence: properties.smallest_sequence,
            largest_sequence: properties.largest_sequence,
            key_bytes: properties.key_bytes,
            value_bytes: properties.value_bytes,
            largest_block: properties.largest_block as usize,
        }
    }

    /// By name, in the order in which a difference is reported.
    fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("entries", self.entries),
            ("deletions", self.deletions),
            ("smallest sequence number", self.smallest_sequence),
            ("largest sequence number", self.largest_sequence),
            ("bytes of keys", self.key_bytes),
            ("bytes of values", self.value_bytes),
            ("bytes of the largest block", self.largest_block as u64),
        ]
    }

    fn add(&mut self, user_key: &[u8], trailer: u64, value_len: usize) {
        let sequence = trailer >> 8;
        self.entries += 1;
        self.deletions += u64::from(trailer & 0xff == ValueKind::Deletion as u64);
        self.smallest_sequence = self.smallest_sequence.min(sequence);
        self.largest_sequence = self.largest_sequence.max(sequence);
        self.key_bytes += user_key.len() as u64;
        self.value_bytes += value_len as u64;
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            entries: 0,
            deletions: 0,
            smallest_sequence: u64::MAX,
            largest_sequence: 0,
            key_bytes: 0,
            value_bytes: 0,
            largest_block: 0,
        }
    }
}

/// What is carried from block to block.
#[derive(Default)]
struct Seen {
    last: Vec<u8>,
    /// Whether the block before was damaged, so that nothing is known of its keys.
    gap: bool,
    unsorted: bool,
    filtered_out: bool,
    key: Vec<u8>,
    totals: Totals,
}

impl Table {
    /// Reads every data block from the file, past the cache, and gives every damage to
    /// `on_damage`: blocks that do not match their checksum or hold malformed or unsorted
    /// entries, keys outside the table's bounds or hidden by its filter, bytes between blocks
    /// that are not zero, properties that count something else than what is there. A failed read
    /// is a damage of its block.
    pub(crate) fn verify(&self, on_damage: &mut dyn FnMut(Error)) -> TableCheck {
        let (mut check, mut seen, mut end) = (TableCheck::default(), Seen::default(), 0);
        let mut damaged = false;
        for number in 0..self.index().len() {
            let Some(handle) = self.index().handle(number) else { break };
            check.blocks += 1;
            check.bytes += u64::from(handle.size);
            let result = self.verify_padding(end, handle).and_then(|()| {
                let block = self.read(&**self.file(), handle, false)?;
                self.verify_block(handle, number, &block, &mut seen)
            });
            seen.gap = result.is_err();
            if let Err(error) = result {
                damaged = true;
                on_damage(error);
            }
            end = handle.offset + u64::from(handle.size);
        }
        check.entries = seen.totals.entries;
        let claims = Totals::claimed(self.properties()).named();
        let mut compared = seen.totals.named().into_iter().zip(claims);
        if !damaged && let Some(((name, held), (_, claimed))) = compared.find(|(a, b)| a != b) {
            let what = format!("{name} of the table: {held} found, {claimed} claimed");
            on_damage(Error::corruption(self.path(), None, what));
        }
        if !damaged && seen.last != self.properties().largest {
            let what = "the table does not end with the largest key it claims";
            on_damage(Error::corruption(self.path(), None, what));
        }
        check
    }

    /// The least and the greatest user key that a damage at `offset` can concern; `None` if it is
    /// not in a data block.
    pub(crate) fn keys_at(&self, offset: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        let (index, properties) = (self.index(), self.properties());
        if offset >= properties.data_end {
            return None;
        }
        let block = index.block_at(offset);
        let edge = |internal_key: &[u8]| key::user_key(internal_key).to_vec();
        let least = index.lower_bound(block).unwrap_or_else(|| edge(&properties.smallest));
        let next = index.lower_bound(block.saturating_add(1));
        Some((least, next.unwrap_or_else(|| edge(&properties.largest))))
    }

    fn verify_padding(&self, end: u64, handle: BlockHandle) -> Result<()> {
        let len = usize::try_from(handle.offset - end).expect("blocks are less than a page apart");
        let mut padding = Buffer::zeroed(len);
        self.file().read_exact_at(padding.as_mut_slice(), end).map_err(Error::from_read)?;
        match padding.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(at) => {
                let what = "bytes between blocks that are not zero";
                Err(Error::corruption(self.path(), end + at as u64, what))
            }
        }
    }

    fn verify_block(
        &self,
        handle: BlockHandle,
        number: usize,
        block: &super::Block,
        seen: &mut Seen,
    ) -> Result<()> {
        let properties = self.properties();
        let walked = block.walk(|user_key, trailer, value_len| {
            seen.key.clear();
            key::append(&mut seen.key, user_key, trailer);
            let first = seen.last.is_empty() && !seen.gap;
            let in_order = seen.gap
                || if first {
                    seen.key == properties.smallest
                } else {
                    key::compare(&seen.last, &seen.key).is_lt()
                };
            // Found by the index where it is, and below the end that look-ups respect.
            seen.unsorted |= !in_order
                || self.index().find(user_key, trailer) != number
                || key::compare(&seen.key, &properties.largest).is_gt();
            seen.filtered_out |= !self.may_contain(user_key);
            seen.gap = false;
            seen.last.clone_from(&seen.key);
            seen.totals.add(user_key, trailer, value_len);
        });
        seen.totals.largest_block = seen.totals.largest_block.max(block.payload_len());
        walked.map_err(|malformed| self.damaged(handle, malformed))?;
        if std::mem::take(&mut seen.unsorted) {
            return Err(self.damaged(handle, Malformed("keys outside the bounds of their block")));
        }
        if std::mem::take(&mut seen.filtered_out) {
            return Err(self.damaged(handle, Malformed("keys that the table's filter denies")));
        }
        Ok(())
    }
}
