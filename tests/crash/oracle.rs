//! The model: what a database may hold after a crash.

use std::collections::BTreeMap;

use treering::{Db, Durability, Result};

use crate::workload::SECOND;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The contents of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    families: [Map; 2],
}

impl State {
    pub(crate) fn put(&mut self, family: usize, key: &[u8], value: &[u8]) {
        self.families[family].insert(key.to_vec(), value.to_vec());
    }

    pub(crate) fn delete(&mut self, family: usize, key: &[u8]) {
        self.families[family].remove(key);
    }

    /// Everything in `db`, read by scans both ways, by get and by `multi_get`, which must agree.
    pub(crate) fn read(db: &Db) -> Result<Self> {
        let mut state = Self::default();
        let second = db.column_family(SECOND);
        for (index, map) in state.families.iter_mut().enumerate() {
            let (forward, backward) = match (index, &second) {
                (0, _) => (db.iter(), db.iter()),
                (_, Some(family)) => (family.iter(), family.iter()),
                (_, None) => continue,
            };
            for item in forward {
                let (key, value) = item?;
                map.insert(key.to_vec(), value.to_vec());
            }
            let mut back = Map::new();
            for item in backward.rev() {
                let (key, value) = item?;
                back.insert(key.to_vec(), value.to_vec());
            }
            assert_eq!(*map, back, "the two directions of a scan disagree");
            for (key, value) in &*map {
                let found = match (index, &second) {
                    (0, _) => db.get(key)?,
                    (_, family) => family.as_ref().unwrap().get(key)?,
                };
                assert_eq!(found.as_deref(), Some(&value[..]), "get and scan disagree");
            }
            if index == 0 {
                let found: Result<Vec<_>> = db.multi_get(map.keys()).into_iter().collect();
                let values: Vec<_> = map.values().cloned().map(Some).collect();
                let found: Vec<_> =
                    found?.into_iter().map(|value| value.map(|v| v.to_vec())).collect();
                assert_eq!(found, values, "multi_get and scan disagree");
            }
        }
        Ok(state)
    }
}

/// What was issued, and how much of it must still be there.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// State `i` is what the first `i` writes make.
    states: Vec<State>,
    synced: usize,
    flushed: usize,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { states: vec![State::default()], synced: 0, flushed: 0 }
    }

    /// A write is about to be made.
    pub(crate) fn issue(&mut self, change: impl FnOnce(&mut State)) {
        let mut state = self.states.last().unwrap().clone();
        change(&mut state);
        self.states.push(state);
    }

    /// The write that was issued last returned. One that failed may be there, whole, or not.
    pub(crate) fn outcome(&mut self, durability: Durability, result: Result<()>) -> Result<()> {
        if result.is_ok() {
            match durability {
                Durability::Synced => self.everything_is_synced(),
                Durability::Flushed => self.everything_is_flushed(),
                Durability::Buffered => {}
            }
        }
        result
    }

    pub(crate) fn everything_is_synced(&mut self) {
        self.synced = self.states.len() - 1;
        self.flushed = self.synced;
    }

    pub(crate) fn everything_is_flushed(&mut self) {
        self.flushed = self.states.len() - 1;
    }

    /// How many writes `state` holds, if it is one that a power loss (or else a kill) may leave.
    pub(crate) fn prefix_of(&self, state: &State, power_loss: bool) -> Result<usize, String> {
        let least = if power_loss { self.synced } else { self.flushed };
        let position = (least..self.states.len()).rev().find(|&k| self.states[k] == *state);
        position.ok_or_else(|| {
            let older = (0..least).rev().find(|&k| self.states[k] == *state);
            match older {
                Some(k) => format!("lost: holds {k} writes; {least} were acknowledged"),
                None => format!("no prefix of the {} writes:\n{state:?}", self.states.len() - 1),
            }
        })
    }
}
