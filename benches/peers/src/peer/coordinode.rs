//! coordinode-lsm-tree, a library below a database: it has no log, so nothing is durable before
//! the flush, and flushes and compactions are the caller's to start.

use std::sync::Arc;

use lsm_tree::compaction::Leveled;
use lsm_tree::config::{CompressionPolicy, PinningPolicy};
use lsm_tree::fs::IoUringFs;
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, Guard, SeqNo, SequenceNumberCounter};

use super::{MEMTABLE, Name, Open, Peer, See, SeeEntry, in_batches};
use crate::data::{Data, Key};
use crate::failure::Result;

pub struct Coordinode {
    tree: AnyTree,
    sequence: SequenceNumberCounter,
}

impl Coordinode {
    pub fn open(name: Name, how: Open<'_>) -> Result<Self> {
        let sequence = SequenceNumberCounter::default();
        let mut config = Config::new(how.dir, sequence.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(how.cache as u64)))
            .data_block_compression_policy(CompressionPolicy::disabled())
            .index_block_compression_policy(CompressionPolicy::disabled())
            .filter_block_partitioning_policy(PinningPolicy::all(false))
            .index_block_partitioning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(true));
        if name == Name::CoordinodeIoUring {
            config = config.with_fs(IoUringFs::new()?);
        }
        Ok(Self { tree: config.open()?, sequence })
    }
}

impl Peer for Coordinode {
    fn load(&self, data: &Data, order: &[u32]) -> Result<()> {
        let strategy = Arc::new(Leveled::default());
        in_batches(data, order, |entries| {
            let mut size = 0;
            for (key, value) in entries {
                size = self.tree.insert(key, value, self.sequence.next()).1;
            }
            if size >= MEMTABLE as u64 {
                self.tree.flush_active_memtable(0)?;
                self.tree.compact(Arc::clone(&strategy) as _, self.sequence.get())?;
            }
            Ok(())
        })?;
        self.tree.flush_active_memtable(0)?;
        self.tree.major_compact(MEMTABLE as u64, self.sequence.get())?;
        Ok(())
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        see(0, self.tree.get(key, SeqNo::MAX)?.as_deref());
        Ok(())
    }

    fn multi_get(&self, keys: &[Key], see: See<'_>) -> Result<()> {
        for (number, value) in self.tree.multi_get(keys, SeqNo::MAX)?.into_iter().enumerate() {
            see(number, value.as_deref());
        }
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        for entry in self.tree.iter(SeqNo::MAX, None) {
            let (key, value) = entry.into_inner()?;
            if !see(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
