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
