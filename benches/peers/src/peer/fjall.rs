//! fjall. It has no call for many keys, so a batch is a loop of look-ups.

use fjall::config::{CompressionPolicy, PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{MEMTABLE, Open, Peer, See, SeeEntry, in_batches};
use crate::data::{Data, Key};
use crate::failure::Result;

pub struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

impl Fjall {
    pub fn open(how: Open<'_>) -> Result<Self> {
        let db = Database::builder(how.dir).cache_size(how.cache as u64).open()?;
        // Whole filters and indexes, kept in memory outside the block cache: the other peers do.
        let options = || {
            KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::disabled())
                .index_block_compression_policy(CompressionPolicy::disabled())
                .filter_block_partitioning_policy(PartitioningPolicy::all(false))
                .index_block_partitioning_policy(PartitioningPolicy::all(false))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .index_block_pinning_policy(PinningPolicy::all(true))
                .max_memtable_size(MEMTABLE as u64)
        };
        let keyspace = db.keyspace("default", options)?;
        Ok(Self { db, keyspace })
    }
}

impl Peer for Fjall {
    fn load(&self, data: &Data, order: &[u32]) -> Result<()> {
        in_batches(data, order, |entries| {
            let mut batch = self.db.batch();
            entries.for_each(|(key, value)| batch.insert(&self.keyspace, key, value));
            Ok(batch.commit()?)
        })?;
        self.keyspace.rotate_memtable_and_wait()?;
        self.keyspace.major_compact()?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        see(0, self.keyspace.get(key)?.as_deref());
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        for entry in self.keyspace.iter() {
            let (key, value) = entry.into_inner()?;
            if !see(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
