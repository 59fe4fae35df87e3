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

    /// Forgets the table; readers that have it keep it. Call it when no version names the table
    /// any more, so that nobody opens it again, and before its file is removed.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use treering_env::{CountEnv, Fault, FaultEnv, FaultKind, FileKind, MemEnv, Op};

    use super::*;
    use crate::cursor::Cursor;
    use crate::key::{ValueKind, encode, trailer};
    use crate::options::CfOptions;
    use crate::table::{TableOptions, TableWriter};

    const DIR: &str = "db";
    const EMFILE: i32 = 24;

    /// Writes table `number`, whose one key is the number; returns the file's size.
    fn write(env: &dyn Env, number: u64) -> u64 {
        env.create_dir_all(Path::new(DIR)).unwrap();
        let path = FileName::Table(number).path(Path::new(DIR));
        let file = env.create(&path, FileKind::Table).unwrap();
        let options = TableOptions::from(&CfOptions::default());
        let mut writer = TableWriter::new(file, &path, &options, number + 1000);
        writer.add(&key_of(number), b"value").unwrap();
        writer.finish().unwrap().size
    }

    fn key_of(number: u64) -> Vec<u8> {
        encode(&number.to_be_bytes(), trailer(1, ValueKind::Put))
    }

    fn cache(env: &Arc<impl Env + 'static>, capacity: usize) -> TableCache {
        let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
        TableCache::new(env, PathBuf::from(DIR), capacity, Arc::new(BlockCache::new(1 << 20)))
    }

    #[test]
    fn a_table_is_opened_once_and_again_only_after_it_was_evicted() {
        let env = Arc::new(CountEnv::new(Arc::new(MemEnv::new())));
        let size = write(&*env, 7);
        let cache = cache(&env, 16);
        for opens in 1..4 {
            for _ in 0..3 {
                assert!(cache.get(7, size).unwrap().get(&key_of(7), true).unwrap().is_some());
            }
            assert_eq!(env.counts().of(Op::Open).calls, opens);
            cache.evict(7);
        }
    }

    #[test]
    fn no_more_tables_stay_open_than_the_capacity() {
        let env = Arc::new(MemEnv::new());
        let sizes: Vec<u64> = (0..100).map(|number| write(&*env, number)).collect();
        let cache = cache(&env, 16);
        for (number, size) in (0..).zip(&sizes) {
            assert!(
                cache.get(number, *size).unwrap().get(&key_of(number), true).unwrap().is_some()
            );
            assert!(cache.open_tables() <= 16);
        }
        assert!(cache.open_tables() >= 8);
    }

    #[test]
    fn a_missing_table_is_told_apart_from_one_that_cannot_be_opened() {
        let env = Arc::new(FaultEnv::new(Arc::new(MemEnv::new())));
        let size = write(&*env, 7);
        let cache = cache(&env, 16);
        let missing = cache.get(8, size).unwrap_err();
        assert!(matches!(&missing, Error::MissingFile(path) if path.ends_with("000008.sst")));
        let fault = env.add(Fault::new(FaultKind::Error(EMFILE)).on(Op::Open));
        assert!(matches!(cache.get(7, size).unwrap_err(), Error::Io(_)));
        assert_eq!(cache.open_tables(), 0);
        fault.remove();
        cache.get(7, size).unwrap();
    }

    #[test]
    fn a_scan_has_a_descriptor_of_its_own_and_leaves_the_block_cache_alone() {
        let env = Arc::new(CountEnv::new(Arc::new(MemEnv::new())));
        let size = write(&*env, 7);
        let cache = cache(&env, 16);
        let mut scan = cache.scan(7, size).unwrap();
        assert_eq!(env.counts().of(Op::Open).calls, 2);
        scan.seek_to_first().unwrap();
        assert_eq!(scan.key(), key_of(7));
        scan.next().unwrap();
        assert!(!scan.valid());
        assert_eq!(cache.blocks().bytes(), 0);
    }

    /// LIFE-08
    #[test]
    fn a_table_whose_file_hangs_holds_up_no_reader_of_others() {
        for op in [Op::Open, Op::Read] {
            let env = Arc::new(FaultEnv::new(Arc::new(MemEnv::new())));
            let sizes: Vec<u64> = (0..40).map(|number| write(&*env, number)).collect();
            let cache = cache(&env, 16);
            cache.get(1, sizes[1]).unwrap();
            let hang = env.add(Fault::new(FaultKind::Block).on(op).path("000000.sst"));
            std::thread::scope(|scope| {
                let blocked = scope.spawn(|| cache.get(0, sizes[0]).map(|table| table.table_id()));
                hang.wait_until_blocked(1);
                for number in (1..40).chain(1..40) {
                    let size = sizes[usize::try_from(number).unwrap()];
                    let table = cache.get(number, size).unwrap();
                    assert!(table.get(&key_of(number), true).unwrap().is_some());
                }
                cache.evict(1);
                hang.release();
                assert_eq!(blocked.join().unwrap().unwrap(), 1000);
            });
        }
    }
}
