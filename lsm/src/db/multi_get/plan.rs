//! Plans: which blocks may hold a key, by memtables, filters and indexes, for several keys at once.
//!
//! A filter or an index is a place in memory that no one has looked at for long, so what a plan
//! costs is waiting for memory. Each stage asks the processor for what the next one looks at, for
//! all keys of the batch, before the next one begins.

use std::sync::Arc;

use super::answers::Found;
use super::{Call, Step};
use crate::Result;
use crate::batch::FamilyId;
use crate::db::Shared;
use crate::key;
use crate::table::{Table, filter_hash};
use crate::version::{FileMeta, KeyRange, LEVELS, Version};

/// Keys that are planned together: enough to wait for memory together, and few enough for the
/// first reads to start soon.
const BATCH: usize = 32;

/// A table that may hold a key, until that is ruled out.
struct Probe {
    item: usize,
    level: usize,
    number: u64,
    hash: u64,
    /// Where the index is to be searched, and then the number of the block.
    at: usize,
    table: Result<Arc<Table>>,
}

/// The table that was looked into last in a level, or one of the tables of level 0.
struct Opened {
    level: usize,
    number: u64,
    table: Arc<Table>,
}

/// The block that was planned last in a level, or in a table of level 0: the next key in order may
/// need it again.
struct Lane {
    level: usize,
    number: u64,
    block: usize,
    slot: usize,
}

/// What planning keeps from one batch of keys to the next. Keys come in ascending order, one
/// family after another.
#[derive(Default)]
pub(super) struct Planner {
    family: FamilyId,
    /// For each level, where the last key led.
    from: [usize; LEVELS],
    opened: Vec<Opened>,
    lanes: Vec<Lane>,
    probes: Vec<Probe>,
}

impl Call<'_, '_> {
    /// Takes keys into work, from `first` on as many as are planned together: memtables, then
    /// their plans, then as far as they go without waiting. Returns the next key.
    pub(super) fn start(&mut self, first: usize) -> usize {
        let family = self.items[first].family;
        let same = self.items[first..].iter().take(BATCH).take_while(|item| item.family == family);
        let end = first + same.count();
        let view = match self.view.family(family) {
            Ok(view) => view,
            Err(error) => {
                for item in first..end {
                    self.answers.put(item, &self.items[item], Err(error.clone()));
                }
                return end;
            }
        };
        self.enter_family(family);
        let mut probes = std::mem::take(&mut self.planner.probes);
        for item in first..end {
            let key = self.items[item].key;
            let in_memory = view.memtables().find_map(|table| table.get(key, self.sequence));
            if let Some(found) = in_memory {
                self.items[item].in_memory = true;
                self.answers.put(item, &self.items[item], Ok(Found::in_memory(found)));
            } else {
                self.active += 1;
                self.find_tables(item, &view.version, &mut probes);
            }
        }
        probes.retain_mut(|probe| self.passes_filter(probe));
        probes.retain_mut(|probe| self.finds_block(probe));
        for probe in probes.drain(..) {
            self.add_step(probe);
        }
        self.planner.probes = probes;
        for item in first..end {
            if !self.items[item].in_memory {
                self.advance(item);
            }
        }
        end
    }

    /// Forgets what is known of the tables of another family.
    fn enter_family(&mut self, family: FamilyId) {
        if self.planner.family == family {
            return;
        }
        self.planner.family = family;
        self.planner.from = [0; LEVELS];
        self.planner.opened.clear();
        for lane in std::mem::take(&mut self.planner.lanes) {
            self.release(lane.slot);
        }
    }

    /// Adds a probe for each table that may hold the key, newest first, up to one that cannot be
    /// opened.
    fn find_tables(&mut self, item: usize, version: &Version, probes: &mut Vec<Probe>) {
        let key = self.items[item].key;
        let hash = filter_hash(key);
        let only = KeyRange { begin: Some(key), end: Some(key) };
        for level in 0..LEVELS {
            let files = if level == 0 {
                version.files(0)
            } else {
                let from = &mut self.planner.from[level];
                version.candidate_from(level, from, key).map_or(&[][..], std::slice::from_ref)
            };
            for file in files.iter().filter(|file| file.overlaps(only)) {
                let table = self.planner.open(level, file, self.shared);
                let failed = table.is_err();
                if let Ok(table) = &table {
                    table.prefetch_filter(hash);
                }
                probes.push(Probe { item, level, number: file.number, hash, at: 0, table });
                if failed {
                    return;
                }
            }
        }
    }

    /// Whether the filter lets the key through; if so, the search of the index begins.
    fn passes_filter(&self, probe: &mut Probe) -> bool {
        let Ok(table) = &probe.table else { return true };
        let passes = table.may_contain_hash(probe.hash);
        if passes {
            probe.at = table.approach(self.items[probe.item].key);
        }
        passes
    }

    /// Whether the table has a block that may hold the key.
    fn finds_block(&mut self, probe: &mut Probe) -> bool {
        let Ok(table) = &probe.table else { return true };
        self.seek.clear();
        key::append(&mut self.seek, self.items[probe.item].key, key::seek_trailer(self.sequence));
        let block = table.find_from(probe.at, &self.seek);
        probe.at = block.unwrap_or_default();
        block.is_some()
    }

    /// Makes what is left of a probe a step of its key's plan. The probes of a key come one after
    /// another.
    fn add_step(&mut self, probe: Probe) {
        let step = match probe.table {
            Ok(table) => Step::Block(self.planned(probe.level, probe.number, table, probe.at)),
            Err(error) => Step::Fail(Some(Box::new(error))),
        };
        let plan = &mut self.items[probe.item].plan;
        if plan.start == plan.end {
            *plan = self.steps.len()..self.steps.len();
        }
        self.steps.push(step);
        plan.end = self.steps.len();
    }

    /// The slot of a block that is to be looked into, with one use for that.
    fn planned(&mut self, level: usize, number: u64, table: Arc<Table>, block: usize) -> usize {
        let lanes = &self.planner.lanes;
        let at = lanes.iter().position(|lane| same_place(lane.level, lane.number, level, number));
        if let Some(lane) = at.map(|at| &lanes[at])
            && (lane.number, lane.block) == (number, block)
        {
            let slot = lane.slot;
            self.hold(slot);
            return slot;
        }
        let handle = table.handle(block).expect("the search gave a block of the table");
        let slot = self.slot(table, handle);
        self.hold(slot);
        self.hold(slot);
        let lane = Lane { level, number, block, slot };
        if let Some(at) = at {
            let before = std::mem::replace(&mut self.planner.lanes[at], lane);
            self.release(before.slot);
        } else {
            self.planner.lanes.push(lane);
        }
        slot
    }
}

impl Planner {
    /// The table of a file, for a key in order: mostly the one that the key before led to.
    fn open(&mut self, level: usize, file: &FileMeta, shared: &Shared) -> Result<Arc<Table>> {
        let place = |opened: &Opened| same_place(opened.level, opened.number, level, file.number);
        let at = self.opened.iter().position(place);
        if let Some(opened) = at.map(|at| &self.opened[at])
            && opened.number == file.number
        {
            return Ok(Arc::clone(&opened.table));
        }
        let table = file.open(&shared.tables)?;
        let opened = Opened { level, number: file.number, table: Arc::clone(&table) };
        match at {
            Some(at) => self.opened[at] = opened,
            None => self.opened.push(opened),
        }
        Ok(table)
    }
}

/// Whether two tables follow one another for keys in order: those of a level below 0 do, a table
/// of level 0 only itself.
fn same_place(level: usize, number: u64, other_level: usize, other_number: u64) -> bool {
    level == other_level && (level > 0 || number == other_number)
}
