//! `multi_get`: many look-ups as one pipeline of block reads.
//!
//! Keys are sorted and freed of duplicates. Each key gets its plan before anything is read: the
//! blocks, newest first, that may hold it, by the filters and indexes of its candidate tables. A
//! missing block goes into the one queue of the call as soon as a key stands in front of it, and
//! a block that arrives moves every key that waits for it on, which may push further blocks at
//! once. So the queue stays full, across files, levels and families.
//!
//! Invariants:
//! * A key looks into its blocks strictly in the order of its plan; a step that fails ends it with
//!   that error. So no older version is ever shown in place of one that could not be read.
//! * No block is read twice in a call: it is kept while a plan in work names it, and the last one
//!   of each table or level is kept for the key that comes next in order.
//! * At most [`MAX_ACTIVE`] keys are in work and about [`MAX_BYTES`] in flight, whatever the call.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use treering_env::{Completion, IoQueue};

use super::view::{FamilyView, ReadView};
use super::{ColumnFamily, Handle, Shared};
use crate::batch::FamilyId;
use crate::key;
use crate::memtable::Lookup;
use crate::table::{Block, BlockHandle, Table, filter_hash};
use crate::version::FileMeta;
use crate::{Error, ReadOptions, Result};

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
        self.at(at, |view, sequence| Call::new(self, view, sequence, keys, options).run())
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
    key: &'a [u8],
    /// What is left to look into, in reverse order: the next step is the last.
    plan: Vec<Step>,
    answer: Option<Answer>,
}

enum Step {
    /// Look into the block in this slot.
    Block(usize),
    /// The table after the ones before could not be opened or searched.
    Fail(Error),
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
    /// In flight; these items wait.
    Reading(Vec<usize>),
    Ready(Arc<Block>),
    Failed(Error),
}

struct Call<'a> {
    shared: &'a Shared,
    view: &'a ReadView,
    sequence: u64,
    options: &'a ReadOptions,
    items: Vec<Item<'a>>,
    /// For each key of the caller, its item.
    item_of: Vec<usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    slot_of: HashMap<(u64, u64), usize>,
    /// The block last planned in each level (in each table of level 0): the next key in order may
    /// need it again.
    lanes: HashMap<(usize, u64), usize>,
    lanes_family: FamilyId,
    queue: Option<Box<dyn IoQueue>>,
    active: usize,
    bytes: usize,
    seek: Vec<u8>,
}

impl<'a> Call<'a> {
    fn new<K: AsRef<[u8]>>(
        shared: &'a Shared,
        view: &'a ReadView,
        sequence: u64,
        keys: &'a [(FamilyId, K)],
        options: &'a ReadOptions,
    ) -> Self {
        let key_at = |index: usize| (keys[index].0, keys[index].1.as_ref());
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by(|a, b| key_at(*a).cmp(&key_at(*b)));
        let mut items: Vec<Item<'a>> = Vec::with_capacity(keys.len());
        let mut item_of = vec![0; keys.len()];
        for index in order {
            let (family, key) = key_at(index);
            if items.last().is_none_or(|last| (last.family, last.key) != (family, key)) {
                items.push(Item { family, key, plan: Vec::new(), answer: None });
            }
            item_of[index] = items.len() - 1;
        }
        Self {
            shared,
            view,
            sequence,
            options,
            items,
            item_of,
            slots: Vec::new(),
            free: Vec::new(),
            slot_of: HashMap::new(),
            lanes: HashMap::new(),
            lanes_family: 0,
            queue: None,
            active: 0,
            bytes: 0,
            seek: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Answer> {
        let mut next = 0;
        loop {
            while next < self.items.len() && self.active < MAX_ACTIVE && self.bytes < MAX_BYTES {
                self.start(next);
                next += 1;
            }
            match self.queue.as_mut().and_then(|queue| queue.pop()) {
                Some(completion) => self.complete(completion),
                None if next == self.items.len() => break,
                None => assert_eq!(self.active, 0, "a key in work waits for a block in flight"),
            }
        }
        let items = &self.items;
        let answer = |item: &usize| items[*item].answer.clone().expect("every key has its answer");
        self.item_of.iter().map(answer).collect()
    }

    /// Takes a key into work: memtables, then its plan, then as far as it goes without waiting.
    fn start(&mut self, index: usize) {
        let Item { family, key, .. } = self.items[index];
        let family = match self.view.family(family) {
            Ok(family) => Arc::clone(family),
            Err(error) => return self.items[index].answer = Some(Err(error)),
        };
        let in_memory = family.memtables().find_map(|table| table.get(key, self.sequence));
        if let Some(found) = in_memory {
            self.items[index].answer = Some(Ok(value_of(found)));
            return;
        }
        self.active += 1;
        self.items[index].plan = self.plan(&family, key);
        self.advance(index);
    }

    fn plan(&mut self, family: &FamilyView, user_key: &[u8]) -> Vec<Step> {
        if self.lanes_family != family.id {
            self.lanes_family = family.id;
            for (_, slot) in std::mem::take(&mut self.lanes) {
                self.release(slot);
            }
        }
        self.seek.clear();
        key::append(&mut self.seek, user_key, key::seek_trailer(self.sequence));
        let hash = filter_hash(user_key);
        let mut plan = Vec::new();
        for (level, file) in family.version.candidates(user_key) {
            match self.step(level, file, hash) {
                Ok(Some(slot)) => plan.push(Step::Block(slot)),
                Ok(None) => {}
                Err(error) => {
                    plan.push(Step::Fail(error));
                    break;
                }
            }
        }
        plan.reverse();
        plan
    }

    /// The slot of the block of `file` that may hold the key.
    fn step(&mut self, level: usize, file: &FileMeta, hash: u64) -> Result<Option<usize>> {
        let table = file.open(&self.shared.tables)?;
        if !table.may_contain_hash(hash) {
            return Ok(None);
        }
        let Some(handle) = table.find_block(&self.seek) else { return Ok(None) };
        let slot = self.slot(table, handle);
        // One use for the plan, one for the lane; before the lane's last block is given up, which
        // may be this one.
        self.slots[slot].as_mut().expect("the slot was just filled").users += 2;
        let lane = (level, if level == 0 { file.number } else { 0 });
        if let Some(previous) = self.lanes.insert(lane, slot) {
            self.release(previous);
        }
        Ok(Some(slot))
    }

    fn slot(&mut self, table: Arc<Table>, handle: BlockHandle) -> usize {
        let place = (table.table_id(), handle.offset);
        if let Some(slot) = self.slot_of.get(&place) {
            return *slot;
        }
        let slot = Some(Slot { table, handle, users: 0, state: SlotState::Idle });
        let index = if let Some(index) = self.free.pop() {
            self.slots[index] = slot;
            index
        } else {
            self.slots.push(slot);
            self.slots.len() - 1
        };
        self.slot_of.insert(place, index);
        index
    }

    /// Ends one use of a slot.
    fn release(&mut self, index: usize) {
        let slot = self.slots[index].as_mut().expect("a slot in use is filled");
        slot.users -= 1;
        if slot.users == 0 {
            self.slot_of.remove(&(slot.table.table_id(), slot.handle.offset));
            self.slots[index] = None;
            self.free.push(index);
        }
    }

    /// Follows a key's plan until it has its answer or must wait for a block.
    fn advance(&mut self, item: usize) {
        let answer = loop {
            let Some(step) = self.items[item].plan.pop() else { break Ok(None) };
            let slot = match step {
                Step::Block(slot) => slot,
                Step::Fail(error) => break Err(error),
            };
            match self.look_into(slot, item) {
                Looked::Waiting => return self.items[item].plan.push(step),
                Looked::Answered(answer) => {
                    self.release(slot);
                    break answer;
                }
                Looked::Absent => self.release(slot),
            }
        };
        for step in std::mem::take(&mut self.items[item].plan) {
            if let Step::Block(slot) = step {
                self.release(slot);
            }
        }
        self.items[item].answer = Some(answer);
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
                SlotState::Reading(Vec::new())
            };
        }
        match &mut slot.state {
            SlotState::Idle => unreachable!("an idle slot was just left behind"),
            SlotState::Reading(waiting) => {
                waiting.push(item);
                Looked::Waiting
            }
            SlotState::Failed(error) => Looked::Answered(Err(error.clone())),
            SlotState::Ready(block) => {
                self.seek.clear();
                let trailer = key::seek_trailer(self.sequence);
                key::append(&mut self.seek, self.items[item].key, trailer);
                match slot.table.search(slot.handle, block, &self.seek) {
                    Ok(Some((_, found))) => Looked::Answered(Ok(value_of(found))),
                    Ok(None) => Looked::Absent,
                    Err(error) => Looked::Answered(Err(error)),
                }
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
        let SlotState::Reading(waiting) = std::mem::replace(&mut slot.state, state) else {
            unreachable!("a completion is for a slot in flight");
        };
        for item in waiting {
            self.advance(item);
        }
    }
}

/// What looking into one block gave.
enum Looked {
    Waiting,
    Absent,
    Answered(Answer),
}

fn value_of(found: Lookup) -> Option<Bytes> {
    match found {
        Lookup::Found(value) => Some(value),
        Lookup::Deleted => None,
    }
}
