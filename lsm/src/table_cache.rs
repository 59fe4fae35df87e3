//! The table cache: a bounded number of tables kept open, by file number.
//!
//! No lock is held while a file is opened or read: two threads that miss the same table both open
//! it, and one of the two is dropped.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use quick_cache::sync::Cache;
use treering_env::{Access, Env, ErrorKind, RandomAccessFile};

use crate::filename::FileName;
use crate::table::{BlockCache, Table, TableCursor};
use crate::{Error, Result};

/// Opens tables of one directory and keeps a bounded number of them open. All methods may be
/// called by any number of threads.
pub(crate) struct TableCache {
    env: Arc<dyn Env>,
    dir: PathBuf,
    tables: Cache<u64, Arc<Table>>,
    blocks: Arc<BlockCache>,
}

impl fmt::Debug for TableCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableCache({}, {} open)", self.dir.display(), self.tables.len())
    }
}

impl TableCache {
    /// A cache over the tables in `dir` that keeps up to `capacity` open.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        dir: PathBuf,
        capacity: usize,
        blocks: Arc<BlockCache>,
    ) -> Self {
        Self { env, dir, tables: Cache::new(capacity), blocks }
    }

    /// The table with this file number, whose file the manifest says has `size` bytes.
    /// [`Error::MissingFile`] if it is not there.
    pub(crate) fn get(&self, number: u64, size: u64) -> Result<Arc<Table>> {
        if let Some(table) = self.tables.get(&number) {
            return Ok(table);
        }
        let table = Table::open(self.open(number, Access::Random)?, size, &self.blocks)?;
        let table = Arc::new(table);
        self.tables.insert(number, Arc::clone(&table));
        Ok(table)
    }

    /// A cursor that reads the whole table once, for a compaction: through a descriptor of its
    /// own for sequential access, past the block cache, reporting keys out of order.
    pub(crate) fn scan(&self, number: u64, size: u64) -> Result<TableCursor> {
        let table = self.get(number, size)?;
        Ok(table.scan(self.open(number, Access::Sequential)?))
    }

    /// Forgets the table; readers that have it keep it. Call it before the file is removed.
    pub(crate) fn evict(&self, number: u64) {
        self.tables.remove(&number);
    }

    /// How many tables are kept open.
    pub(crate) fn open_tables(&self) -> usize {
        self.tables.len()
    }

    /// The cache of data blocks that the tables share.
    pub(crate) fn blocks(&self) -> &Arc<BlockCache> {
        &self.blocks
    }

    fn open(&self, number: u64, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let path = FileName::Table(number).path(&self.dir);
        self.env.open(&path, access).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::MissingFile(path),
            _ => Error::from(error),
        })
    }
}
