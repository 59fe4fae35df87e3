//! The tables that a compaction reads, each from its first entry to its last, and checked: what a
//! damaged table shows is not written onward as if it were valid.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cursor::Cursor;
use crate::filename::FileName;
use crate::key;
use crate::table::TableCursor;
use crate::table_cache::TableCache;
use crate::version::FileMeta;
use crate::{Error, Result};

/// A forward cursor over tables in ascending order. Each must hold exactly what the manifest says:
/// the first and the last key, the number of entries, and the keys in order.
pub(super) struct InputRun {
    files: Vec<Arc<FileMeta>>,
    dir: PathBuf,
    tables: Arc<TableCache>,
    /// The index of the open table.
    index: usize,
    cursor: Option<TableCursor>,
    entries: u64,
    last_key: Vec<u8>,
}

impl InputRun {
    /// A cursor over `files`, the tables of one level in its order, or one table of level 0.
    pub(super) fn new(files: Vec<Arc<FileMeta>>, dir: &Path, tables: &Arc<TableCache>) -> Self {
        Self {
            files,
            dir: dir.to_path_buf(),
            tables: Arc::clone(tables),
            index: 0,
            cursor: None,
            entries: 0,
            last_key: Vec::new(),
        }
    }

    /// Opens the table at `index` and goes to its first entry.
    fn open(&mut self) -> Result<()> {
        let Some(file) = self.files.get(self.index) else { return Ok(()) };
        let mut cursor = file.scan(&self.tables)?;
        cursor.seek_to_first()?;
        self.entries = 0;
        self.last_key.clear();
        self.check(&cursor)?;
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Checks the entry that `cursor` came to, or that it has come to its end with everything.
    fn check(&mut self, cursor: &TableCursor) -> Result<()> {
        let file = &self.files[self.index];
        if !cursor.valid() {
            if self.entries != file.entries || self.last_key != file.largest {
                return Err(self.damaged("it does not hold all entries that were written to it"));
            }
            return Ok(());
        }
        let key = cursor.key();
        if key::parse(key).is_none() {
            return Err(self.damaged("an entry of unknown kind"));
        }
        if self.entries == 0 {
            if key != file.smallest {
                return Err(self.damaged("its first key is not the recorded one"));
            }
        } else if !key::compare(&self.last_key, key).is_lt() {
            return Err(self.damaged("its keys are out of order"));
        }
        self.entries += 1;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> Error {
        let number = self.files[self.index].number;
        Error::corruption(&FileName::Table(number).path(&self.dir), None, what)
    }

    fn current(&self) -> &TableCursor {
        self.cursor.as_ref().expect("key() and value() are called on a valid cursor only")
    }
}

const FORWARD_ONLY: &str = "a compaction reads its inputs from start to end";

impl Cursor for InputRun {
    fn valid(&self) -> bool {
        self.cursor.as_ref().is_some_and(Cursor::valid)
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.cursor = None;
        self.index = 0;
        self.open()
    }

    fn next(&mut self) -> Result<()> {
        // Taken out while it moves: an error leaves no cursor.
        let Some(mut cursor) = self.cursor.take() else { return Ok(()) };
        cursor.next()?;
        self.check(&cursor)?;
        if cursor.valid() {
            self.cursor = Some(cursor);
            return Ok(());
        }
        drop(cursor);
        self.index += 1;
        self.open()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        panic!("{FORWARD_ONLY}")
    }

    fn seek(&mut self, _target: &[u8]) -> Result<()> {
        panic!("{FORWARD_ONLY}")
    }

    fn seek_for_prev(&mut self, _target: &[u8]) -> Result<()> {
        panic!("{FORWARD_ONLY}")
    }

    fn prev(&mut self) -> Result<()> {
        panic!("{FORWARD_ONLY}")
    }
}
