//! Treering, on each of its environments.

use std::ops::RangeFull;
use std::sync::Arc;

use treering::env::BatchReads;
use treering::{CfOptions, Compression, Db, Env, IoUringEnv, Options, PosixEnv, WriteBatch};

use super::{Name, Open, Peer, See, SeeEntry, in_batches};
use crate::data::{Data, Key};
use crate::failure::Result;

pub struct Treering {
    db: Db,
    env: Arc<dyn Env>,
}

impl Treering {
    pub fn open(name: Name, how: Open<'_>) -> Result<Self> {
        let env: Arc<dyn Env> = match name {
            Name::PosixSerial => {
                Arc::new(PosixEnv::builder().batch_reads(BatchReads::Serial).build()?)
            }
            Name::Posix => Arc::new(PosixEnv::new()),
            Name::IoUring => Arc::new(IoUringEnv::new()?),
            _ => {
                let builder = IoUringEnv::builder().direct_reads(true);
                Arc::new(builder.build()?)
            }
        };
        let options = Options {
            block_cache_size: how.cache,
            cf: CfOptions { compression: Compression::None, ..CfOptions::default() },
            ..Options::default()
        };
        Ok(Self { db: Db::open(Arc::clone(&env), how.dir, options)?, env })
    }
}

impl Peer for Treering {
    fn load(&self, data: &Data, order: &[u32]) -> Result<()> {
        in_batches(data, order, |entries| {
            let mut batch = WriteBatch::new();
            entries.for_each(|(key, value)| batch.put(key, value));
            Ok(self.db.write(batch)?)
        })?;
        self.db.flush()?;
        self.db.compact_range::<Vec<u8>>(RangeFull)?;
        Ok(self.db.wait_for_compact()?)
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        see(0, self.db.get(key)?.as_deref());
        Ok(())
    }

    fn multi_get(&self, keys: &[Key], see: See<'_>) -> Result<()> {
        for (number, value) in self.db.multi_get(keys).into_iter().enumerate() {
            see(number, value?.as_deref());
        }
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        let mut cursor = self.db.cursor()?;
        cursor.seek_to_first()?;
        while let (Some(key), Some(value)) = (cursor.key(), cursor.value()) {
            if !see(key, value) {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }

    fn facts(&self) -> Vec<String> {
        let report = self.env.report();
        let facts = report.facts.iter().map(|fact| match &fact.why {
            Some(why) => format!("{}: {} ({why})", fact.name, fact.value),
            None => format!("{}: {}", fact.name, fact.value),
        });
        let counters = report.counters.iter().filter(|(_, value)| **value > 0);
        facts.chain(counters.map(|(name, value)| format!("{name}={value}"))).collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}
