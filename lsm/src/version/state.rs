//! The state that a manifest's edits add up to, and the rules that each edit must keep.
//!
//! The same code checks edits that are read back and edits about to be written: a broken rule is
//! corruption in the first case and a bug of ours in the second. Memory is bounded by what the
//! state names, not by the number of edits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::edit::FORMAT_VERSION;
use super::{FamilyId, FamilyLog, FileMeta, LEVELS, Version, VersionEdit};
use crate::record::SegmentFact;

/// Where a table is, and the table.
type Place = (FamilyId, usize, Arc<FileMeta>);

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) next_file_number: u64,
    pub(crate) last_sequence: u64,
    pub(crate) next_family_id: FamilyId,
    /// Segments that some family still needs, by number.
    pub(crate) logs: BTreeMap<u64, SegmentFact>,
    pub(crate) families: BTreeMap<FamilyId, FamilyState>,
    places: HashMap<u64, Place>,
}

/// One family of the state.
#[derive(Debug)]
pub(crate) struct FamilyState {
    pub(crate) name: String,
    pub(crate) log_number: u64,
    pub(crate) flushed_sequence: u64,
    /// Level 0 by (largest sequence, file number): what is written later comes later.
    newest: BTreeMap<(u64, u64), Arc<FileMeta>>,
    /// Levels 1 and deeper by their first user key.
    deeper: [BTreeMap<Vec<u8>, Arc<FileMeta>>; LEVELS - 1],
}

/// The rule that an edit breaks.
type Broken = &'static str;

const NO_FAMILY: Broken = "a column family that does not exist";

impl State {
    /// What there is before the first edit.
    pub(crate) fn empty() -> Self {
        Self {
            next_file_number: 1,
            last_sequence: 0,
            next_family_id: 0,
            logs: BTreeMap::new(),
            families: BTreeMap::new(),
            places: HashMap::new(),
        }
    }

    /// Applies one edit. Returns the tables that the state named before and does not name any
    /// more. After an error the state is of no more use.
    pub(crate) fn apply(&mut self, edit: &VersionEdit) -> Result<Vec<Arc<FileMeta>>, Broken> {
        let mut gone = Vec::new();
        self.apply_numbers(edit)?;
        for family in &edit.dropped_families {
            self.drop_family(*family, &mut gone)?;
        }
        for (family, name) in &edit.added_families {
            self.add_family(*family, name)?;
        }
        for log in &edit.family_logs {
            self.advance_family(log)?;
        }
        for (family, level, number) in &edit.removed {
            gone.push(self.remove_table(*family, *level, *number)?);
        }
        for (family, level, file) in &edit.added {
            self.add_table(*family, *level, file)?;
        }
        self.apply_logs(edit)?;
        gone.retain(|file| !self.places.contains_key(&file.number));
        Ok(gone)
    }

    fn apply_numbers(&mut self, edit: &VersionEdit) -> Result<(), Broken> {
        if let Some(next) = edit.next_file_number {
            rises(self.next_file_number, next, "the file numbers go back")?;
            self.next_file_number = next;
        }
        if let Some(last) = edit.last_sequence {
            rises(self.last_sequence, last, "the sequence numbers go back")?;
            self.last_sequence = last;
        }
        if let Some(next) = edit.next_family_id {
            rises(self.next_family_id, next, "the family ids go back")?;
            self.next_family_id = next;
        }
        Ok(())
    }

    fn apply_logs(&mut self, edit: &VersionEdit) -> Result<(), Broken> {
        for fact in &edit.logs {
            self.check_number(fact.number)?;
            let before = self.logs.insert(fact.number, *fact);
            if before.is_some_and(|before| before.epoch != fact.epoch || before.end.is_some()) {
                return Err("a log that ended goes on");
            }
        }
        let floor = self.log_floor();
        self.logs = self.logs.split_off(&floor);
        Ok(())
    }

    /// The oldest segment that some family still needs.
    pub(crate) fn log_floor(&self) -> u64 {
        self.families.values().map(|family| family.log_number).min().unwrap_or(0)
    }

    fn check_number(&self, number: u64) -> Result<(), Broken> {
        if number < self.next_file_number { Ok(()) } else { Err("a file number from the future") }
    }

    fn family(&mut self, id: FamilyId) -> Result<&mut FamilyState, Broken> {
        self.families.get_mut(&id).ok_or(NO_FAMILY)
    }

    fn add_family(&mut self, id: FamilyId, name: &str) -> Result<(), Broken> {
        if id >= self.next_family_id {
            return Err("a column family from the future");
        }
        if self.families.values().any(|family| family.name == name) {
            return Err("two column families with one name");
        }
        let family = FamilyState {
            name: name.to_owned(),
            log_number: 0,
            flushed_sequence: 0,
            newest: BTreeMap::new(),
            deeper: Default::default(),
        };
        match self.families.insert(id, family) {
            None => Ok(()),
            Some(_) => Err("two column families with one id"),
        }
    }

    fn drop_family(&mut self, id: FamilyId, gone: &mut Vec<Arc<FileMeta>>) -> Result<(), Broken> {
        if id == 0 {
            return Err("the default column family is dropped");
        }
        let family = self.families.remove(&id).ok_or(NO_FAMILY)?;
        family.for_each(|_, file| {
            self.places.remove(&file.number);
            gone.push(Arc::clone(file));
        });
        Ok(())
    }

    fn advance_family(&mut self, log: &FamilyLog) -> Result<(), Broken> {
        self.check_number(log.log_number)?;
        if log.flushed_sequence > self.last_sequence {
            return Err("a flushed sequence number from the future");
        }
        let family = self.family(log.family)?;
        rises(family.log_number, log.log_number, "a column family goes back in the log")?;
        let sequence = "a column family goes back in the sequence numbers";
        rises(family.flushed_sequence, log.flushed_sequence, sequence)?;
        family.log_number = log.log_number;
        family.flushed_sequence = log.flushed_sequence;
        Ok(())
    }

    fn remove_table(
        &mut self,
        family: FamilyId,
        level: usize,
        number: u64,
    ) -> Result<Arc<FileMeta>, Broken> {
        match self.places.remove(&number) {
            Some((f, l, file)) if (f, l) == (family, level) => {
                self.family(family)?.remove(level, &file);
                Ok(file)
            }
            _ => Err("a table is removed from where it is not"),
        }
    }

    fn add_table(
        &mut self,
        family: FamilyId,
        level: usize,
        file: &Arc<FileMeta>,
    ) -> Result<(), Broken> {
        self.check_number(file.number)?;
        if file.largest_sequence > self.last_sequence {
            return Err("a table with sequence numbers from the future");
        }
        if self.places.insert(file.number, (family, level, Arc::clone(file))).is_some() {
            return Err("a table is added twice");
        }
        self.family(family)?.add(level, file)
    }

    /// Whether some family has table `number`.
    pub(crate) fn has_table(&self, number: u64) -> bool {
        self.places.contains_key(&number)
    }

    /// All tables, in no order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.places.values().map(|(_, _, file)| file)
    }

    /// The whole state as one edit, for the start of a manifest.
    pub(crate) fn snapshot(&self) -> VersionEdit {
        let mut edit = VersionEdit {
            format: Some(FORMAT_VERSION),
            next_file_number: Some(self.next_file_number),
            last_sequence: Some(self.last_sequence),
            next_family_id: Some(self.next_family_id),
            logs: self.logs.values().copied().collect(),
            ..VersionEdit::default()
        };
        for (&id, family) in &self.families {
            edit.added_families.push((id, family.name.clone()));
            edit.family_logs.push(FamilyLog {
                family: id,
                log_number: family.log_number,
                flushed_sequence: family.flushed_sequence,
            });
            family.for_each(|level, file| edit.added.push((id, level, Arc::clone(file))));
        }
        edit
    }
}

impl FamilyState {
    fn add(&mut self, level: usize, file: &Arc<FileMeta>) -> Result<(), Broken> {
        let Some(files) = level.checked_sub(1).and_then(|index| self.deeper.get_mut(index)) else {
            self.newest.insert((file.largest_sequence, file.number), Arc::clone(file));
            return Ok(());
        };
        // The tables are disjoint, so the last one that starts at or before the new one's end is
        // the only one that can reach into it.
        let before = files.range::<[u8], _>((
            std::ops::Bound::Unbounded,
            std::ops::Bound::Included(file.largest_user_key()),
        ));
        let neighbour = before.map(|(_, neighbour)| neighbour).next_back();
        if neighbour.is_some_and(|other| other.largest_user_key() >= file.smallest_user_key()) {
            return Err("two tables of a level overlap");
        }
        files.insert(file.smallest_user_key().to_vec(), Arc::clone(file));
        Ok(())
    }

    fn remove(&mut self, level: usize, file: &FileMeta) {
        match level.checked_sub(1).and_then(|index| self.deeper.get_mut(index)) {
            None => self.newest.remove(&(file.largest_sequence, file.number)),
            Some(files) => files.remove(file.smallest_user_key()),
        };
    }

    /// Visits the tables in the order of a version.
    fn for_each(&self, mut visit: impl FnMut(usize, &Arc<FileMeta>)) {
        for file in self.newest.values().rev() {
            visit(0, file);
        }
        for (index, files) in self.deeper.iter().enumerate() {
            for file in files.values() {
                visit(index + 1, file);
            }
        }
    }

    /// The family's tables as an immutable version.
    pub(crate) fn version(&self) -> Version {
        let mut levels: [Vec<Arc<FileMeta>>; LEVELS] = Default::default();
        self.for_each(|level, file| levels[level].push(Arc::clone(file)));
        Version { levels: levels.map(Arc::from) }
    }
}

fn rises<T: PartialOrd + Copy>(before: T, after: T, broken: Broken) -> Result<(), Broken> {
    if after >= before { Ok(()) } else { Err(broken) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::key::{ValueKind, encode, trailer};

    /// A table with keys from `first` to `last` and sequence numbers up to `newest`.
    pub(in crate::version) fn table(
        number: u64,
        first: &str,
        last: &str,
        newest: u64,
    ) -> Arc<FileMeta> {
        let smallest = encode(first.as_bytes(), trailer(newest, ValueKind::Put));
        let largest = encode(last.as_bytes(), trailer(newest, ValueKind::Put));
        Arc::new(FileMeta {
            entries: 2,
            smallest_sequence: newest,
            largest_sequence: newest,
            ..FileMeta::new(number, 1000, smallest, largest)
        })
    }

    fn start() -> State {
        let mut state = State::empty();
        let edit = VersionEdit {
            next_file_number: Some(100),
            last_sequence: Some(1000),
            next_family_id: Some(2),
            added_families: vec![(0, "default".to_owned()), (1, "users".to_owned())],
            ..VersionEdit::default()
        };
        state.apply(&edit).unwrap();
        state
    }

    fn add(family: FamilyId, level: usize, file: Arc<FileMeta>) -> VersionEdit {
        VersionEdit { added: vec![(family, level, file)], ..VersionEdit::default() }
    }

    fn remove(family: FamilyId, level: usize, number: u64) -> VersionEdit {
        VersionEdit { removed: vec![(family, level, number)], ..VersionEdit::default() }
    }

    fn numbers(version: &Version, level: usize) -> Vec<u64> {
        version.files(level).iter().map(|file| file.number).collect()
    }

    #[test]
    fn levels_are_in_order_whatever_order_the_tables_came_in() {
        let mut state = start();
        for (level, number, first, last, newest) in [
            (0, 7, "a", "z", 20),
            (0, 9, "a", "z", 10),
            (0, 8, "b", "c", 30),
            (1, 3, "m", "p", 1),
            (1, 2, "a", "c", 2),
            (1, 4, "d", "l", 3),
            (6, 5, "a", "z", 1),
        ] {
            state.apply(&add(0, level, table(number, first, last, newest))).unwrap();
        }
        let version = state.families[&0].version();
        assert_eq!(numbers(&version, 0), [8, 7, 9]);
        assert_eq!(numbers(&version, 1), [2, 4, 3]);
        let found = |key: &str| {
            version.candidates(key.as_bytes()).map(|(_, file)| file.number).collect::<Vec<_>>()
        };
        assert_eq!(found("c"), [8, 7, 9, 2, 5]);
        assert_eq!(found("cc"), [7, 9, 5]);
        assert_eq!(found("m"), [7, 9, 3, 5]);
        assert_eq!(found("zz"), [0_u64; 0]);
        let range = |begin: &'static str, end: &'static str| {
            let range =
                super::super::KeyRange { begin: Some(begin.as_bytes()), end: Some(end.as_bytes()) };
            let files = version.overlapping(1, range);
            files.iter().map(|file| file.number).collect::<Vec<_>>()
        };
        assert_eq!(range("c", "d"), [2, 4]);
        assert_eq!(range("cc", "cd"), [0_u64; 0]);
        assert_eq!(range("", "zzz"), [2, 4, 3]);
        assert_eq!(range("lm", "m"), [3]);
        let all = version.overlapping(1, super::super::KeyRange::default());
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn tables_of_a_deeper_level_never_share_a_user_key() {
        for (first, last) in [("c", "e"), ("e", "g"), ("f", "f"), ("a", "z"), ("g", "z")] {
            let mut state = start();
            state.apply(&add(0, 1, table(1, "e", "g", 5))).unwrap();
            let error = state.apply(&add(0, 1, table(2, first, last, 4))).unwrap_err();
            assert_eq!(error, "two tables of a level overlap", "{first} to {last}");
        }
        let mut state = start();
        state.apply(&add(0, 1, table(1, "e", "g", 5))).unwrap();
        state.apply(&add(0, 1, table(2, "a", "d", 5))).unwrap();
        state.apply(&add(0, 1, table(3, "h", "z", 5))).unwrap();
        state.apply(&add(0, 2, table(4, "a", "z", 5))).unwrap();
        state.apply(&add(1, 1, table(5, "a", "z", 5))).unwrap();
    }

    /// HOST-03
    #[test]
    fn a_table_is_in_one_place_and_leaves_it_once() {
        let mut state = start();
        state.apply(&add(0, 0, table(1, "a", "b", 5))).unwrap();
        for (family, level) in [(0, 0), (0, 3), (1, 0)] {
            let mut state = start();
            state.apply(&add(0, 0, table(1, "a", "b", 5))).unwrap();
            let again = add(family, level, table(1, "a", "b", 5));
            assert_eq!(state.apply(&again).unwrap_err(), "a table is added twice");
        }
        for wrong in [remove(0, 1, 1), remove(1, 0, 1), remove(0, 0, 2)] {
            let mut state = start();
            state.apply(&add(0, 0, table(1, "a", "b", 5))).unwrap();
            let error = state.apply(&wrong).unwrap_err();
            assert_eq!(error, "a table is removed from where it is not");
        }
        let gone = state.apply(&remove(0, 0, 1)).unwrap();
        assert_eq!(gone.len(), 1);
        assert!(state.apply(&remove(0, 0, 1)).is_err());
    }

    #[test]
    fn a_table_that_moves_down_is_not_gone() {
        let mut state = start();
        let file = table(1, "a", "b", 5);
        state.apply(&add(0, 0, Arc::clone(&file))).unwrap();
        let edit = VersionEdit { removed: vec![(0, 0, 1)], ..add(0, 1, file) };
        assert_eq!(state.apply(&edit).unwrap(), Vec::<Arc<FileMeta>>::new());
        assert_eq!(numbers(&state.families[&0].version(), 1), [1]);
    }

    #[test]
    fn nothing_goes_back_and_nothing_is_from_the_future() {
        let log = |log_number, flushed_sequence| {
            let log = FamilyLog { family: 0, log_number, flushed_sequence };
            VersionEdit { family_logs: vec![log], ..VersionEdit::default() }
        };
        let fact = SegmentFact { number: 9, epoch: 1, prepared: 1, first_wal_seq: 1, end: None };
        let logs = |fact| VersionEdit { logs: vec![fact], ..VersionEdit::default() };
        let family = |id, name: &str| VersionEdit {
            added_families: vec![(id, name.to_owned())],
            ..VersionEdit::default()
        };
        let dropped = |id| VersionEdit { dropped_families: vec![id], ..VersionEdit::default() };
        for (edit, what) in [
            (VersionEdit { next_file_number: Some(99), ..VersionEdit::default() }, "the file"),
            (VersionEdit { last_sequence: Some(999), ..VersionEdit::default() }, "the sequence"),
            (VersionEdit { next_family_id: Some(1), ..VersionEdit::default() }, "the family ids"),
            (log(4, 500), "a column family goes back in the log"),
            (log(5, 499), "a column family goes back in the sequence"),
            (log(5, 1001), "a flushed sequence number from"),
            (log(100, 500), "a file number from"),
            (logs(SegmentFact { number: 100, ..fact }), "a file number from"),
            (logs(SegmentFact { epoch: 2, ..fact }), "a log that ended"),
            (add(0, 0, table(100, "a", "b", 5)), "a file number from"),
            (add(0, 0, table(9, "a", "b", 1001)), "a table with sequence"),
            (add(7, 0, table(9, "a", "b", 5)), "a column family that does not"),
            (family(2, "new"), "a column family from the future"),
            (family(1, "new"), "two column families with one id"),
            (family(1, "users"), "two column families with one name"),
            (dropped(0), "the default column family"),
            (dropped(2), "a column family that does not"),
        ] {
            let mut state = start();
            state.apply(&log(5, 500)).unwrap();
            state.apply(&logs(fact)).unwrap();
            let error = state.apply(&edit).unwrap_err();
            assert!(error.starts_with(what), "{error:?} is not {what:?}");
        }
    }

    #[test]
    fn logs_that_every_family_has_passed_are_forgotten() {
        let mut state = start();
        let fact =
            |number| SegmentFact { number, epoch: 1, prepared: 1, first_wal_seq: 1, end: None };
        let logs = VersionEdit { logs: vec![fact(5), fact(9)], ..VersionEdit::default() };
        state.apply(&logs).unwrap();
        let advance = |family| {
            let log = FamilyLog { family, log_number: 9, flushed_sequence: 3 };
            VersionEdit { family_logs: vec![log], ..VersionEdit::default() }
        };
        state.apply(&advance(0)).unwrap();
        assert_eq!((state.log_floor(), state.logs.len()), (0, 2));
        state.apply(&advance(1)).unwrap();
        assert_eq!((state.log_floor(), state.logs.len()), (9, 1));
    }

    #[test]
    fn the_snapshot_of_a_state_makes_the_same_state() {
        let mut state = start();
        state.apply(&add(0, 0, table(1, "a", "b", 5))).unwrap();
        state.apply(&add(1, 2, table(2, "a", "b", 5))).unwrap();
        let drop_users = VersionEdit { dropped_families: vec![1], ..VersionEdit::default() };
        let mut again = State::empty();
        again.apply(&state.snapshot()).unwrap();
        assert_eq!(again.snapshot(), state.snapshot());
        let gone = again.apply(&drop_users).unwrap();
        assert_eq!(gone.iter().map(|file| file.number).collect::<Vec<_>>(), [2]);
        assert_eq!(again.snapshot().next_family_id, Some(2));
    }
}
