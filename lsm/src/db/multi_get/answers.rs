//! Where the answers of a call go: one value for each key, or a column of values.
//!
//! Answers come item by item, in any order; at the end they are brought into the order of the
//! caller's keys, of which several may share an item. A column takes a value out of its block at
//! once, so that no block is kept for it and nothing is allocated for a key.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{Answer, Item};
use crate::db::columns::{FailedKeys, FixedColumn, MAX_COLUMN_SIZE, ValueColumn};
use crate::memtable::Lookup;
use crate::table::{Block, Entry};
use crate::{Error, Result};

/// A value where it was found.
pub(super) enum Found<'a> {
    /// In a memtable.
    Shared(Bytes),
    /// In a block.
    InBlock(&'a Arc<Block>, Entry<'a>),
}

impl<'a> Found<'a> {
    /// What a memtable says; `None` if the key was deleted.
    pub(super) fn in_memory(found: Lookup) -> Option<Self> {
        match found {
            Lookup::Found(value) => Some(Self::Shared(value)),
            Lookup::Deleted => None,
        }
    }

    /// What an entry of `block` says; `None` if the key was deleted.
    pub(super) fn in_block(block: &'a Arc<Block>, entry: Entry<'a>) -> Option<Self> {
        (!entry.is_deletion()).then_some(Self::InBlock(block, entry))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(value) => value,
            Self::InBlock(_, entry) => entry.value,
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Shared(value) => value,
            Self::InBlock(block, entry) => block.value(&entry),
        }
    }
}

/// What takes the answers of a call.
pub(super) enum Answers<'a, 'out> {
    Each(&'a mut Each),
    Packed(&'a mut Packed),
    Fixed(&'a mut Fixed<'out>),
}

impl Answers<'_, '_> {
    /// Makes room for the answers of `items`.
    pub(super) fn expect(&mut self, items: usize) {
        match self {
            Self::Each(each) => each.answers.resize_with(items, || (0, None)),
            Self::Packed(packed) => packed.places.resize_with(items, || Place::Absent),
            Self::Fixed(fixed) => fixed.places.resize_with(items, || Place::Absent),
        }
    }

    /// Takes the answer of the item with this index.
    pub(super) fn put(&mut self, index: usize, item: &Item<'_>, found: Result<Option<Found<'_>>>) {
        match self {
            Self::Each(each) => {
                let answer = found.map(|found| found.map(Found::into_bytes));
                each.answers[index] = (item.asked, Some(answer));
            }
            Self::Packed(packed) => packed.put(index, item, found),
            Self::Fixed(fixed) => fixed.put(index, item, found),
        }
    }

    /// Whether there is no room for what was found, so that looking on is in vain.
    pub(super) fn overflowed(&self) -> bool {
        matches!(self, Self::Packed(packed) if packed.promised > MAX_COLUMN_SIZE)
    }
}

/// A value or an error of its own for each key.
#[derive(Default)]
pub(super) struct Each {
    /// Each answer, and how many keys it is still to be given to.
    answers: Vec<(usize, Option<Answer>)>,
}

impl Each {
    /// The answers in the order of the caller's keys.
    pub(super) fn finish(mut self, item_of: &[usize]) -> Vec<Answer> {
        let answer = |item: &usize| {
            let (left, answer) = &mut self.answers[*item];
            *left -= 1;
            let answer = if *left == 0 { answer.take() } else { answer.clone() };
            answer.expect("every key has its answer")
        };
        item_of.iter().map(answer).collect()
    }
}

/// What a column knows of an item.
enum Place {
    Absent,
    /// The value lies there.
    At(Range<usize>),
    /// The value has so many bytes, which is not the width of the column.
    OfLength(usize),
    /// This one of the errors is its answer.
    Failed(usize),
}

/// Values of any length, in the order in which they were found.
#[derive(Default)]
pub(super) struct Packed {
    places: Vec<Place>,
    data: Vec<u8>,
    errors: Vec<Error>,
    /// Bytes that the column will have, with a copy for each key that asks for a value.
    promised: usize,
}

impl Packed {
    fn put(&mut self, index: usize, item: &Item<'_>, found: Result<Option<Found<'_>>>) {
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return self.places[index] = failed(&mut self.errors, error),
        };
        let value = found.bytes();
        self.promised = self.promised.saturating_add(value.len().saturating_mul(item.asked));
        if self.promised <= MAX_COLUMN_SIZE {
            let start = self.data.len();
            self.data.extend_from_slice(value);
            self.places[index] = Place::At(start..self.data.len());
        }
    }

    /// The column, in the order of the caller's keys.
    pub(super) fn finish(self, item_of: &[usize]) -> Result<(ValueColumn, FailedKeys)> {
        if self.promised > MAX_COLUMN_SIZE {
            return Err(Error::invalid(format!(
                "the values have more than {MAX_COLUMN_SIZE} bytes together; ask for fewer keys \
                 in one call"
            )));
        }
        let mut offsets = Vec::with_capacity(item_of.len() + 1);
        let mut validity = vec![0; item_of.len().div_ceil(8)];
        let mut failures = FailedKeys::default();
        let (mut end, mut in_order) = (0, true);
        offsets.push(0);
        for (key, item) in item_of.iter().enumerate() {
            match &self.places[*item] {
                Place::At(range) => {
                    validity[key / 8] |= 1 << (key % 8);
                    in_order &= range.start == end;
                    end += range.len();
                }
                Place::Failed(error) => failures.push(key, self.errors[*error].clone()),
                Place::Absent | Place::OfLength(_) => {}
            }
            offsets.push(i64::try_from(end).expect("the limit of a column fits"));
        }
        // Ascending keys are mostly found in order: then the values lie as they should.
        let data = if in_order {
            self.data
        } else {
            let mut data = Vec::with_capacity(end);
            for item in item_of {
                if let Place::At(range) = &self.places[*item] {
                    data.extend_from_slice(&self.data[range.clone()]);
                }
            }
            data
        };
        Ok((ValueColumn { data, offsets, validity }, failures))
    }
}

/// Values of one length, in the caller's memory.
pub(super) struct Fixed<'a> {
    places: Vec<Place>,
    errors: Vec<Error>,
    out: FixedColumn<'a>,
}

impl<'a> Fixed<'a> {
    /// Answers go into `out`, which has room for them.
    pub(super) fn new(out: FixedColumn<'a>) -> Self {
        Self { places: Vec::new(), errors: Vec::new(), out }
    }

    fn put(&mut self, index: usize, item: &Item<'_>, found: Result<Option<Found<'_>>>) {
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return self.places[index] = failed(&mut self.errors, error),
        };
        let (value, width) = (found.bytes(), self.out.width);
        if value.len() != width {
            self.places[index] = Place::OfLength(value.len());
            return;
        }
        let range = item.first * width..(item.first + 1) * width;
        self.out.values[range.clone()].copy_from_slice(value);
        self.places[index] = Place::At(range);
    }

    /// Fills in the other keys: those that share an item, and those without a value.
    pub(super) fn finish(self, item_of: &[usize]) -> FailedKeys {
        let FixedColumn { values, width, validity } = self.out;
        let mut failures = FailedKeys::default();
        validity[..item_of.len().div_ceil(8)].fill(0);
        for (key, item) in item_of.iter().enumerate() {
            let own = key * width..(key + 1) * width;
            match &self.places[*item] {
                Place::At(range) => {
                    validity[key / 8] |= 1 << (key % 8);
                    if *range != own {
                        values.copy_within(range.clone(), own.start);
                    }
                    continue;
                }
                Place::Absent => {}
                Place::OfLength(len) => failures.push(key, wrong_length(key, *len, width)),
                Place::Failed(error) => failures.push(key, self.errors[*error].clone()),
            }
            values[own].fill(0);
        }
        failures
    }
}

fn failed(errors: &mut Vec<Error>, error: Error) -> Place {
    errors.push(error);
    Place::Failed(errors.len() - 1)
}

fn wrong_length(key: usize, len: usize, width: usize) -> Error {
    Error::invalid(format!("the value of key {key} has {len} bytes, not {width}"))
}
