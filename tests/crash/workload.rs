//! Workloads: a list of steps run against a database until the power goes.

use std::sync::Arc;

use treering::env::{Env, MemEnv};
use treering::{
    CfOptions, ColumnFamily, Db, Durability, Options, Result, WriteBatch, WriteOptions,
};

use crate::oracle::History;
use crate::variants::VariantEnv;

/// The directory every workload uses.
pub(crate) const DIR: &str = "data/db";
/// The second family of every workload.
pub(crate) const SECOND: &str = "second";

/// One step. Numbers are keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Put(u32, Durability),
    Delete(u32, Durability),
    /// Puts into both families and a delete in one of them, in one batch.
    Batch(u32, Durability),
    SyncWal,
    FlushWal,
    Flush,
    Compact,
    Reopen,
}

/// Steps and the shape of the database they run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload<'a> {
    pub(crate) steps: &'a [Step],
    pub(crate) value_size: usize,
}

/// Small values, no steps.
pub(crate) fn small<'a>() -> Workload<'a> {
    Workload { steps: &[], value_size: 20 }
}

/// The smallest limits, so that few writes reach every part of the engine; inline, so that a run
/// is the same every time.
pub(crate) fn options() -> Options {
    Options {
        background_threads: 0,
        log_segment_size: 64 << 10,
        log_prepare_step: 16 << 10,
        block_cache_size: 0,
        cf: CfOptions {
            memtable_size: 32 << 10,
            level0_compaction_trigger: 2,
            table_size: 16 << 10,
            level_base_size: 64 << 10,
            ..CfOptions::default()
        },
        ..Options::default()
    }
}

/// Where a workload runs.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Plain(MemEnv),
    Variant(VariantEnv),
}

/// Opens the database.
pub(crate) fn open(place: &Place) -> Result<Db> {
    let env: Arc<dyn Env> = match place.clone() {
        Place::Plain(env) => Arc::new(env),
        Place::Variant(env) => Arc::new(env),
    };
    Db::open(env, DIR, options())
}

/// The second family, which exists from right after the first open that succeeded.
pub(crate) fn second(db: &Db) -> Result<ColumnFamily> {
    match db.column_family(SECOND) {
        Some(family) => Ok(family),
        None => db.create_column_family(SECOND, options().cf),
    }
}

impl Workload<'_> {
    /// Runs the steps until one fails (or all are done) and records in `history` what was issued
    /// and what was acknowledged.
    pub(crate) fn run(&self, place: &Place, history: &mut History) -> Result<()> {
        let mut db = open(place)?;
        let mut family = second(&db)?;
        for (number, step) in self.steps.iter().enumerate() {
            match *step {
                Step::Put(key, durability) => {
                    let mut batch = WriteBatch::new();
                    batch.put(name(key), self.value(number));
                    history.issue(|state| state.put(0, &name(key), &self.value(number)));
                    history.outcome(durability, write(&db, batch, durability))?;
                }
                Step::Delete(key, durability) => {
                    let mut batch = WriteBatch::new();
                    batch.delete(name(key));
                    history.issue(|state| state.delete(0, &name(key)));
                    history.outcome(durability, write(&db, batch, durability))?;
                }
                Step::Batch(key, durability) => {
                    let batch = self.batch(key, number, &family);
                    history.issue(|state| {
                        state.put(0, &name(key), &self.value(number));
                        state.put(1, &name(key), &self.value(number));
                        state.put(1, &name(key + 100), b"also");
                        state.delete(0, &name(key + 1));
                    });
                    history.outcome(durability, write(&db, batch, durability))?;
                }
                Step::SyncWal => {
                    db.sync_wal()?;
                    history.everything_is_synced();
                }
                Step::FlushWal => {
                    db.flush_wal()?;
                    history.everything_is_flushed();
                }
                Step::Flush => {
                    db.flush()?;
                    history.everything_is_synced();
                }
                Step::Compact => {
                    db.compact_range::<&[u8]>(..)?;
                    history.everything_is_flushed();
                }
                Step::Reopen => {
                    db.close()?;
                    history.everything_is_synced();
                    drop(family);
                    drop(db);
                    db = open(place)?;
                    family = second(&db)?;
                }
            }
        }
        db.close()?;
        history.everything_is_synced();
        Ok(())
    }

    fn batch(&self, key: u32, number: usize, family: &ColumnFamily) -> WriteBatch {
        let mut batch = WriteBatch::new();
        batch.put(name(key), self.value(number));
        batch.put_in(family, name(key), self.value(number));
        batch.put_in(family, name(key + 100), b"also");
        batch.delete(name(key + 1));
        batch
    }

    /// A value that says which step wrote it.
    fn value(&self, number: usize) -> Vec<u8> {
        let mut value = format!("step {number} ").into_bytes();
        // Not compressible, so that sizes on disk are what they look like.
        let mut word = number as u64 + 1;
        while value.len() < self.value_size {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            value.push(word.to_le_bytes()[5]);
        }
        value
    }
}

fn write(db: &Db, batch: WriteBatch, durability: Durability) -> Result<()> {
    let options = WriteOptions { durability: Some(durability) };
    db.write_opt(batch, &options)
}

fn name(key: u32) -> Vec<u8> {
    format!("key {key:04}").into_bytes()
}
