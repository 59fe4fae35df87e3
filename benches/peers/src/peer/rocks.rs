//! RocksDB with io_uring, buffered and direct.

use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, CompactOptions, DB, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, DataBlockIndexType, Options, ReadOptions, WaitForCompactOptions,
    WriteBatch,
};

use super::{MEMTABLE, Name, Open, Peer, See, SeeEntry, in_batches};
use crate::data::{Data, Key};
use crate::failure::Result;

/// All in one table: the blocks of a batch are read together only within one file.
const TABLE_SIZE: u64 = 16 << 30;

pub struct Rocks {
    db: DB,
}

impl Rocks {
    pub fn open(name: Name, how: Open<'_>) -> Result<Self> {
        let mut table = BlockBasedOptions::default();
        table.set_block_size(4096);
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&Cache::new_hyper_clock_cache(how.cache, 0));
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(MEMTABLE);
        options.set_max_write_buffer_number(4);
        options.increase_parallelism(2);
        options.set_target_file_size_base(TABLE_SIZE);
        options.set_use_direct_reads(name == Name::RocksdbDirect);
        // Named, because batches are asked of a family that was opened by name.
        let family = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        Ok(Self { db: DB::open_cf_with_opts(&options, how.dir, family)? })
    }
}

fn reads() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_async_io(true);
    options
}

impl Peer for Rocks {
    fn load(&self, data: &Data, order: &[u32]) -> Result<()> {
        in_batches(data, order, |entries| {
            let mut batch = WriteBatch::default();
            entries.for_each(|(key, value)| batch.put(key, value));
            Ok(self.db.write(batch)?)
        })?;
        self.db.flush()?;
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        see(0, self.db.get_pinned(key)?.as_deref());
        Ok(())
    }

    fn multi_get(&self, keys: &[Key], see: See<'_>) -> Result<()> {
        let family =
            self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("RocksDB has no default family")?;
        let values = self.db.batched_multi_get_cf_opt(family, keys, false, &reads());
        for (number, value) in values.into_iter().enumerate() {
            see(number, value?.as_deref());
        }
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        let mut cursor = self.db.raw_iterator_opt(reads());
        cursor.seek_to_first();
        while let Some((key, value)) = cursor.item() {
            if !see(key, value) {
                break;
            }
            cursor.next();
        }
        Ok(cursor.status()?)
    }

    fn facts(&self) -> Vec<String> {
        let property = |name: &str| self.db.property_value(name).ok().flatten().unwrap_or_default();
        vec![format!("sst files: {} bytes", property("rocksdb.total-sst-files-size"))]
    }
}
