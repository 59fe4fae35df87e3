//! A cursor over one level: its tables one after another, each opened when the cursor comes to it.
//!
//! The cursor holds the level's [`FileMeta`]s, so no table of it is removed while it lives. An
//! error leaves it invalid: it never goes on with the next table, which would show older data in
//! place of what could not be read.

use std::sync::Arc;

use crate::cursor::Cursor;
use crate::key;
use crate::table::TableCursor;
use crate::table_cache::TableCache;
use crate::version::FileMeta;
use crate::{ReadOptions, Result};

/// See the module. The tables must be in ascending order and disjoint; a single table of level 0
/// is a level of its own.
pub(crate) struct LevelCursor {
    files: Arc<[Arc<FileMeta>]>,
    tables: Arc<TableCache>,
    options: ReadOptions,
    /// The open table and its index in `files`.
    open: Option<(usize, TableCursor)>,
    positioned: bool,
}

/// Which end of a table to enter it by.
#[derive(Clone, Copy)]
enum Enter {
    First,
    Last,
}

impl LevelCursor {
    /// An unpositioned cursor over `files`.
    pub(crate) fn new(
        files: Arc<[Arc<FileMeta>]>,
        tables: &Arc<TableCache>,
        options: &ReadOptions,
    ) -> Self {
        let (tables, options) = (Arc::clone(tables), options.clone());
        Self { files, tables, options, open: None, positioned: false }
    }

    /// Opens the first table, to find a missing or damaged file early.
    pub(crate) fn open_first(&mut self) -> Result<()> {
        if self.files.is_empty() { Ok(()) } else { self.table(0).map(|_| ()) }
    }

    /// The cursor of table `index`, opened if it is not the open one.
    fn table(&mut self, index: usize) -> Result<&mut TableCursor> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            let file = &self.files[index];
            // The old table is let go first: one open table a level.
            self.open = None;
            let table = file.open(&self.tables)?;
            self.open = Some((index, table.cursor(&self.options)));
        }
        let (_, cursor) = self.open.as_mut().expect("opened above");
        Ok(cursor)
    }

    /// Enters table `index` and, if it has no entry, its neighbours in the same direction.
    fn enter(&mut self, mut index: usize, by: Enter) -> Result<()> {
        self.positioned = false;
        loop {
            let table = self.table(index)?;
            match by {
                Enter::First => table.seek_to_first()?,
                Enter::Last => table.seek_to_last()?,
            }
            if table.valid() {
                self.positioned = true;
                return Ok(());
            }
            index = match by {
                Enter::First if index + 1 < self.files.len() => index + 1,
                Enter::Last if index > 0 => index - 1,
                _ => return Ok(()),
            };
        }
    }

    /// After a step inside the open table: stays there, or goes on to the neighbour.
    fn settle(&mut self, by: Enter) -> Result<()> {
        let (index, cursor) = self.open.as_ref().expect("a step was made in an open table");
        if cursor.valid() {
            self.positioned = true;
            return Ok(());
        }
        let index = *index;
        match by {
            Enter::First if index + 1 < self.files.len() => self.enter(index + 1, by),
            Enter::Last if index > 0 => self.enter(index - 1, by),
            _ => Ok(()),
        }
    }

    fn current(&self) -> &TableCursor {
        assert!(self.positioned, "only a valid cursor has a key and a value");
        &self.open.as_ref().expect("a positioned cursor has an open table").1
    }
}

impl Cursor for LevelCursor {
    fn valid(&self) -> bool {
        self.positioned
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.positioned = false;
        if self.files.is_empty() { Ok(()) } else { self.enter(0, Enter::First) }
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.positioned = false;
        match self.files.len() {
            0 => Ok(()),
            length => self.enter(length - 1, Enter::Last),
        }
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.positioned = false;
        let index = self.files.partition_point(|file| key::compare(&file.largest, target).is_lt());
        if index == self.files.len() {
            return Ok(());
        }
        self.table(index)?.seek(target)?;
        self.settle(Enter::First)
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.positioned = false;
        let after = self.files.partition_point(|file| key::compare(&file.smallest, target).is_le());
        if after == 0 {
            return Ok(());
        }
        self.table(after - 1)?.seek_for_prev(target)?;
        self.settle(Enter::Last)
    }

    fn next(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.positioned, false) {
            return Ok(());
        }
        let (_, cursor) = self.open.as_mut().expect("a positioned cursor has an open table");
        cursor.next()?;
        self.settle(Enter::First)
    }

    fn prev(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.positioned, false) {
            return Ok(());
        }
        let (_, cursor) = self.open.as_mut().expect("a positioned cursor has an open table");
        cursor.prev()?;
        self.settle(Enter::Last)
    }
}

#[cfg(test)]
mod tests {
    use treering_env::{Env, Fault, FaultEnv, FaultKind, MemEnv, Op};

    use super::*;
    use crate::Error;
    use crate::key::{encode, seek_trailer};
    use crate::version::testing::{dir, put, table_cache, value_of, write_table};

    /// Three tables of even keys, several versions each, and the keys in them.
    fn level(env: &dyn Env) -> (Arc<[Arc<FileMeta>]>, Vec<Vec<u8>>) {
        env.create_dir_all(dir()).unwrap();
        let keys: Vec<Vec<Vec<u8>>> = (0..3)
            .map(|table| {
                let users = (0..20).map(|index| format!("k{:03}", 2 * (20 * table + index)));
                users.flat_map(|user| [9, 7, 2].map(|sequence| put(&user, sequence))).collect()
            })
            .collect();
        let files = keys.iter().enumerate();
        let files = files.map(|(index, keys)| write_table(env, index as u64 + 1, keys)).collect();
        (files, keys.concat())
    }

    fn at(cursor: &LevelCursor) -> Option<Vec<u8>> {
        cursor.valid().then(|| {
            assert_eq!(cursor.value(), value_of(cursor.key()));
            cursor.key().to_vec()
        })
    }

    /// ITER-04
    #[test]
    fn every_seek_and_step_agrees_with_the_sorted_list() {
        let env: Arc<dyn Env> = Arc::new(MemEnv::new());
        let (files, keys) = level(&*env);
        let mut cursor = LevelCursor::new(files, &table_cache(&env), &ReadOptions::default());
        assert_eq!(at(&cursor), None);
        cursor.seek_to_first().unwrap();
        for key in &keys {
            assert_eq!(at(&cursor).as_ref(), Some(key));
            cursor.next().unwrap();
        }
        assert_eq!(at(&cursor), None);
        cursor.next().unwrap();
        cursor.prev().unwrap();
        assert_eq!(at(&cursor), None, "an invalid cursor stays where it is");
        cursor.seek_to_last().unwrap();
        for key in keys.iter().rev() {
            assert_eq!(at(&cursor).as_ref(), Some(key));
            cursor.prev().unwrap();
        }
        assert_eq!(at(&cursor), None);
        for user in 0..=121 {
            for sequence in [10, 7, 1] {
                let target = encode(format!("k{user:03}").as_bytes(), seek_trailer(sequence));
                let after = keys.partition_point(|key| key::compare(key, &target).is_lt());
                cursor.seek(&target).unwrap();
                assert_eq!(at(&cursor).as_ref(), keys.get(after));
                cursor.prev().unwrap();
                let before = after.checked_sub(1).and_then(|index| keys.get(index));
                let turned = if after < keys.len() { before } else { None };
                assert_eq!(at(&cursor).as_ref(), turned);
                cursor.seek_for_prev(&target).unwrap();
                assert_eq!(at(&cursor).as_ref(), before);
                cursor.next().unwrap();
                let turned = before.and_then(|_| keys.get(after));
                assert_eq!(at(&cursor).as_ref(), turned);
            }
        }
    }

    /// ITER-07, ITER-08
    #[test]
    fn a_table_that_cannot_be_read_stops_the_cursor_until_the_next_seek() {
        let faults = FaultEnv::new(Arc::new(MemEnv::new()));
        let env: Arc<dyn Env> = Arc::new(faults.clone());
        let (files, keys) = level(&*env);
        for (op, is_back) in
            [(Op::Open, false), (Op::Read, false), (Op::Open, true), (Op::Read, true)]
        {
            let mut cursor =
                LevelCursor::new(Arc::clone(&files), &table_cache(&env), &ReadOptions::default());
            let rule = faults.add(Fault::new(FaultKind::Error(5)).on(op).path("000002.sst"));
            let mut seen = 0;
            let start = if is_back { cursor.seek_to_last() } else { cursor.seek_to_first() };
            start.unwrap();
            let error = loop {
                assert!(cursor.valid());
                seen += 1;
                let step = if is_back { cursor.prev() } else { cursor.next() };
                if let Err(error) = step {
                    break error;
                }
            };
            assert!(matches!(error, Error::Io(_)), "{error}");
            assert_eq!(seen, 60, "all of the readable neighbour");
            assert_eq!(at(&cursor), None);
            cursor.next().unwrap();
            cursor.prev().unwrap();
            assert_eq!(at(&cursor), None, "nothing is shown beyond the bad table");
            assert!(cursor.seek(&keys[70]).is_err());
            assert_eq!(at(&cursor), None);
            cursor.seek(&keys[130]).unwrap();
            assert_eq!(at(&cursor).as_ref(), Some(&keys[130]));
            rule.remove();
            cursor.seek(&keys[70]).unwrap();
            assert_eq!(at(&cursor).as_ref(), Some(&keys[70]));
        }
    }

    #[test]
    fn a_level_without_tables_has_no_entries() {
        let env: Arc<dyn Env> = Arc::new(MemEnv::new());
        let mut cursor =
            LevelCursor::new(Arc::from([]), &table_cache(&env), &ReadOptions::default());
        cursor.open_first().unwrap();
        cursor.seek_to_first().unwrap();
        cursor.seek_to_last().unwrap();
        cursor.seek(&put("k", 1)).unwrap();
        cursor.seek_for_prev(&put("k", 1)).unwrap();
        assert_eq!(at(&cursor), None);
    }

    /// HOST-08
    #[test]
    fn another_table_in_the_place_of_one_is_corruption() {
        let env: Arc<dyn Env> = Arc::new(MemEnv::new());
        let (files, _) = level(&*env);
        let (number, size) = (files[0].number, files[0].size);
        let mut other =
            FileMeta::new(number, size, files[0].smallest.clone(), files[0].largest.clone());
        other.table_id = files[0].table_id + 1;
        let tables = table_cache(&env);
        let files: Arc<[Arc<FileMeta>]> = Arc::from([Arc::new(other)]);
        for _ in 0..2 {
            let mut cursor = LevelCursor::new(Arc::clone(&files), &tables, &ReadOptions::default());
            assert!(matches!(cursor.open_first(), Err(Error::Corruption { .. })));
        }
    }
}
