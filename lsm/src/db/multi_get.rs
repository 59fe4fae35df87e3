//! `multi_get`: many look-ups as one pipeline of block reads.
//!
//! Keys are sorted and freed of duplicates. Each key gets its plan before anything is read for it:
//! the blocks, newest first, that may hold it, by the filters and indexes of its candidate tables.
//! Plans are made for several keys at once ([`plan`]), so that they wait for memory together. A
//! missing block goes into the one queue of the call as soon as a key stands in front of it, and
//! a block that arrives moves every key that waits for it on, which may push further blocks at
//! once. So the queue stays full, across files, levels and families. Where the answers go, one by
//! one or into a column, is nothing that this depends on ([`answers`]).
//!
//! Invariants:
//! * A key looks into its blocks strictly in the order of its plan; a step that fails ends it with
//!   that error. So no older version is ever shown in place of one that could not be read.
//! * No block is read twice in a call: it is kept while a plan in work names it, and the last one
//!   of each table is kept for the key that comes next in order, which alone may need it again.
//! * At most [`MAX_ACTIVE`] keys, and a few, are in work and about [`MAX_BYTES`] in flight,
//!   whatever the call.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use treering_env::{Completion, IoQueue};

use super::columns::{FailedKeys, FixedColumn, KeyColumn, ValueColumn};
use super::view::ReadView;
use super::{ColumnFamily, Handle, Shared};
use crate::batch::FamilyId;
use crate::key;
use crate::table::{Block, BlockHandle, Table};
use crate::{Error, ReadOptions, Result};
use answers::{Answers, Each, Fixed, Found, Packed};

mod answers;
mod plan;

/// Keys in work at once.
const MAX_ACTIVE: usize = 4096;
/// Bytes of blocks in flight beyond which no further key is taken into work.
const MAX_BYTES: usize = 32 << 20;

type Answer = Result<Option<Bytes>>;

impl Shared {
    /// The values of many keys at one moment; answer *i* is for key *i*.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        at: Option<u64>,
        keys: &[(FamilyId, K)],
        options: &ReadOptions,
    ) -> Vec<Answer> {
        if let Err(error) = self.check_open() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        self.at(at, |view, sequence| {
            let keys = keys.iter().map(|(family, key)| (*family, key.as_ref()));
            let mut each = Each::default();
            let item_of =
                Call::new(self, view, sequence, options, Answers::Each(&mut each)).run(keys);
            each.finish(&item_of)
        })
    }

    /// The values of many keys of a family at one moment, as one column.
    pub(crate) fn multi_get_columns(
        &self,
        at: Option<u64>,
        family: FamilyId,
        keys: KeyColumn<'_>,
        options: &ReadOptions,
    ) -> Result<(ValueColumn, FailedKeys)> {
        self.check_open()?;
        self.at(at, |view, sequence| {
            view.family(family)?;
            let keys = keys.iter().map(|key| (family, key));
            let mut packed = Packed::default();
            let answers = Answers::Packed(&mut packed);
            let item_of = Call::new(self, view, sequence, options, answers).run(keys);
            packed.finish(&item_of)
        })
    }

    /// The values of many keys of a family at one moment, in the caller's memory.
    pub(crate) fn multi_get_fixed(
        &self,
        at: Option<u64>,
        family: FamilyId,
        keys: KeyColumn<'_>,
        out: FixedColumn<'_>,
        options: &ReadOptions,
    ) -> Result<FailedKeys> {
        self.check_open()?;
        out.check(keys.len())?;
        self.at(at, |view, sequence| {
            view.family(family)?;
            let keys = keys.iter().map(|key| (family, key));
            let mut fixed = Fixed::new(out);
            let answers = Answers::Fixed(&mut fixed);
            let item_of = Call::new(self, view, sequence, options, answers).run(keys);
            Ok(fixed.finish(&item_of))
        })
    }
}

impl Handle {
    /// [`Shared::multi_get`] over several families. The answer for a family of another open
    /// database is an error, which disturbs no other answer.
    pub(crate) fn multi_get_in<'a, K: AsRef<[u8]>>(
        self: &Arc<Self>,
        at: Option<u64>,
        keys: impl IntoIterator<Item = (&'a ColumnFamily, K)>,
    ) -> Vec<Answer> {
        let (mut own, mut foreign) = (Vec::new(), Vec::new());
        for (index, (family, key)) in keys.into_iter().enumerate() {
            match family.id_in(self) {
                Ok(id) => own.push((id, key)),
                Err(error) => foreign.push((index, error)),
            }
        }
        let answers = self.shared.multi_get(at, &own, &ReadOptions::default());
        if foreign.is_empty() {
            return answers;
        }
        let (mut answers, mut foreign) = (answers.into_iter(), foreign.into_iter().peekable());
        let answer_at = |index| match foreign.next_if(|(at, _)| *at == index) {
            Some((_, error)) => Some(Err(error)),
            None => answers.next(),
        };
        (0..).map_while(answer_at).collect()
    }
}

/// One key to find.
struct Item<'a> {
    family: FamilyId,
    /// A memtable had the answer.
    in_memory: bool,
    key: &'a [u8],
    /// One of the caller's keys that it answers.
    first: usize,
    /// How many of them it answers.
    asked: usize,
    /// The steps still to be taken, newest first, among those of the call.
    plan: Range<usize>,
    /// The next item that waits for the same block.
    next_waiting: Option<usize>,
}

#[derive(Debug)]
enum Step {
    /// Look into the block in this slot.
    Block(usize),
    /// The table after the ones before could not be opened or searched. Taken once.
    Fail(Option<Box<Error>>),
}

/// A block that plans name.
struct Slot {
    table: Arc<Table>,
    handle: BlockHandle,
    /// Plans and lanes that name it.
    users: usize,
    state: SlotState,
}

enum SlotState {
    /// Nobody stood in front of it yet.
    Idle,
    /// In flight; this item waits, and those it leads to.
    Reading(Option<usize>),
    Ready(Arc<Block>),
    Failed(Error),
}

struct Call<'a, 'out> {
    shared: &'a Shared,
    view: &'a ReadView,
    sequence: u64,
    options: &'a ReadOptions,
    answers: Answers<'a, 'out>,
    items: Vec<Item<'a>>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    steps: Vec<Step>,
    planner: plan::Planner,
    queue: Option<Box<dyn IoQueue>>,
    active: usize,
    bytes: usize,
    seek: Vec<u8>,
}

impl<'a, 'out> Call<'a, 'out> {
    fn new(
        shared: &'a Shared,
        view: &'a ReadView,
        sequence: u64,
        options: &'a ReadOptions,
        answers: Answers<'a, 'out>,
    ) -> Self {
        Self {
            shared,
            view,
            sequence,
            options,
            answers,
            items: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            steps: Vec::new(),
            planner: plan::Planner::default(),
            queue: None,
            active: 0,
            bytes: 0,
            seek: Vec::new(),
        }
    }

    /// Makes the items, in order. For each of the caller's keys: its item.
    fn sort(&mut self, keys: impl ExactSizeIterator<Item = (FamilyId, &'a [u8])>) -> Vec<usize> {
        let mut item_of = vec![0; keys.len()];
        let mut order: Vec<(FamilyId, &'a [u8], usize)> = Vec::with_capacity(keys.len());
        order.extend(keys.enumerate().map(|(index, (family, key))| (family, key, index)));
        order.sort_unstable();
        self.items.reserve_exact(order.len());
        for (family, key, first) in order {
            if let Some(last) = self.items.last_mut()
                && (last.family, last.key) == (family, key)
            {
                last.asked += 1;
            } else {
                let (in_memory, asked, plan, next_waiting) = (false, 1, 0..0, None);
                self.items.push(Item { family, in_memory, key, first, asked, plan, next_waiting });
            }
            item_of[first] = self.items.len() - 1;
        }
        item_of
    }

    /// Answers all keys. For each of them: the item whose answer is its own.
    fn run(mut self, keys: impl ExactSizeIterator<Item = (FamilyId, &'a [u8])>) -> Vec<usize> {
        let item_of = self.sort(keys);
        self.answers.expect(self.items.len());
        let mut next = 0;
        loop {
            if self.answers.overflowed() {
                next = self.items.len();
            }
            while next < self.items.len() && self.active < MAX_ACTIVE && self.bytes < MAX_BYTES {
                next = self.start(next);
            }
            match self.queue.as_mut().and_then(|queue| queue.pop()) {
                Some(completion) => self.complete(completion),
                None if next == self.items.len() => break,
                None => assert_eq!(self.active, 0, "a key in work waits for a block in flight"),
            }
        }
        item_of
    }

    fn slot(&mut self, table: Arc<Table>, handle: BlockHandle) -> usize {
        let slot = Some(Slot { table, handle, users: 0, state: SlotState::Idle });
        if let Some(index) = self.free.pop() {
            self.slots[index] = slot;
            index
        } else {
            self.slots.push(slot);
            self.slots.len() - 1
        }
    }

    /// Begins one more use of a slot.
    fn hold(&mut self, index: usize) {
        self.slots[index].as_mut().expect("the slot is filled").users += 1;
    }

    /// Ends one use of a slot.
    fn release(&mut self, index: usize) {
        let slot = self.slots[index].as_mut().expect("a slot in use is filled");
        slot.users -= 1;
        if slot.users == 0 {
            self.slots[index] = None;
            self.free.push(index);
        }
    }

    /// Follows a key's plan until it has its answer or must wait for a block.
    fn advance(&mut self, item: usize) {
        loop {
            let Some(at) = self.items[item].plan.next() else {
                self.answers.put(item, &self.items[item], Ok(None));
                break;
            };
            let slot = match &mut self.steps[at] {
                Step::Block(slot) => *slot,
                Step::Fail(error) => {
                    let error = *error.take().expect("a failure is met once");
                    self.answers.put(item, &self.items[item], Err(error));
                    break;
                }
            };
            match self.look_into(slot, item) {
                Looked::Waiting => return self.items[item].plan.start = at,
                Looked::Answered => {
                    self.release(slot);
                    break;
                }
                Looked::Absent => self.release(slot),
            }
        }
        for at in std::mem::take(&mut self.items[item].plan) {
            if let Step::Block(slot) = self.steps[at] {
                self.release(slot);
            }
        }
        self.active -= 1;
    }

    fn look_into(&mut self, index: usize, item: usize) -> Looked {
        let slot = self.slots[index].as_mut().expect("a planned slot is filled");
        if matches!(slot.state, SlotState::Idle) {
            slot.state = if let Some(block) = slot.table.cached(slot.handle) {
                SlotState::Ready(block)
            } else {
                let queue = self.queue.get_or_insert_with(|| self.shared.env.queue());
                queue.push(index as u64, slot.table.request(slot.handle));
                self.bytes += slot.handle.size as usize;
                SlotState::Reading(None)
            };
        }
        match &mut slot.state {
            SlotState::Idle => unreachable!("an idle slot was just left behind"),
            SlotState::Reading(waiting) => {
                self.items[item].next_waiting = waiting.replace(item);
                Looked::Waiting
            }
            SlotState::Failed(error) => {
                self.answers.put(item, &self.items[item], Err(error.clone()));
                Looked::Answered
            }
            SlotState::Ready(block) => {
                self.seek.clear();
                let trailer = key::seek_trailer(self.sequence);
                key::append(&mut self.seek, self.items[item].key, trailer);
                let found = match slot.table.search(slot.handle, block, &self.seek) {
                    Ok(None) => return Looked::Absent,
                    Ok(Some(entry)) => Ok(Found::in_block(block, entry)),
                    Err(error) => Err(error),
                };
                self.answers.put(item, &self.items[item], found);
                Looked::Answered
            }
        }
    }

    fn complete(&mut self, completion: Completion) {
        let index = usize::try_from(completion.tag).expect("tags are slots");
        let fill_cache = self.options.fill_cache;
        let slot = self.slots[index].as_mut().expect("a slot in flight stays filled");
        self.bytes -= slot.handle.size as usize;
        let block = completion
            .result
            .map_err(Error::from_read)
            .and_then(|buffer| slot.table.decode(slot.handle, buffer, fill_cache));
        let state = match block {
            Ok(block) => SlotState::Ready(block),
            Err(error) => SlotState::Failed(error),
        };
        let SlotState::Reading(mut waiting) = std::mem::replace(&mut slot.state, state) else {
            unreachable!("a completion is for a slot in flight");
        };
        while let Some(item) = waiting {
            waiting = self.items[item].next_waiting.take();
            self.advance(item);
        }
    }
}

/// What looking into one block gave.
enum Looked {
    Waiting,
    Absent,
    Answered,
}
