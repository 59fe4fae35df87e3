//! A short life of a database, compared with a sorted map, and one whose reads are cold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering::env::{Env, IoUringEnv};
use treering::{
    CfOptions, Compression, Db, Durability, Options, WriteBatch, WriteOptions, inspect,
};

use crate::{bytes, evict};

/// Small tables, so that there are many.
pub(crate) fn small(background_threads: usize) -> Options {
    let cf = CfOptions {
        memtable_size: 256 << 10,
        table_size: 256 << 10,
        level_base_size: 512 << 10,
        ..CfOptions::default()
    };
    Options {
        log_segment_size: 1 << 20,
        log_prepare_step: 64 << 10,
        block_cache_size: 64 << 10,
        background_threads,
        cf,
        ..Options::default()
    }
}

fn contents(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entries = db.iter().map(Result::unwrap);
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Nothing that the database needs is damaged.
pub(crate) fn assert_sound(env: &Arc<dyn Env>, dir: &Path) {
    let found = inspect::verify(Arc::clone(env), dir).unwrap();
    assert!(found.damages.is_empty() && found.blocks > 0, "{found:?}");
}

/// Writes, flushes, compacts, opens again, reads: every answer is the map's.
pub(crate) fn model_run(env: &Arc<dyn Env>, dir: &Path) {
    let mut random = StdRng::seed_from_u64(1);
    let mut model = BTreeMap::new();
    let db = Db::open(Arc::clone(env), dir, small(1)).unwrap();
    for step in 0..1500_u64 {
        let mut batch = WriteBatch::new();
        for _ in 0..3 {
            let key = format!("{:04}", random.random_range(0..2000)).into_bytes();
            if random.random_range(0..5) == 0 {
                batch.delete(&key);
                model.remove(&key);
            } else {
                let value = bytes(step, random.random_range(0..900));
                batch.put(&key, &value);
                model.insert(key, value);
            }
        }
        let durability = if step % 300 == 0 { Durability::Synced } else { Durability::Flushed };
        db.write_opt(batch, &WriteOptions { durability: Some(durability) }).unwrap();
        if step == 700 {
            db.flush().unwrap();
            db.compact_range::<&[u8]>(..).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_for_compact().unwrap();
    let compare = |db: &Db| {
        assert_eq!(contents(db), model);
        let keys: Vec<Vec<u8>> = (0..2000).map(|n| format!("{n:04}").into_bytes()).collect();
        for (key, answer) in keys.iter().zip(db.multi_get(&keys)) {
            assert_eq!(answer.unwrap().as_deref(), model.get(key).map(|value| &value[..]));
        }
    };
    compare(&db);
    db.close().unwrap();
    drop(db);
    assert_sound(env, dir);
    compare(&Db::open(Arc::clone(env), dir, small(1)).unwrap());
}

/// A database of which each value is a block, with nothing of them in memory.
pub(crate) struct ColdDb {
    db: Db,
    dir: PathBuf,
}

impl ColdDb {
    const KEYS: u64 = 1024;

    pub(crate) fn new(env: &IoUringEnv, dir: &Path) -> Self {
        let cf = CfOptions { compression: Compression::None, ..CfOptions::default() };
        let options =
            Options { block_cache_size: 0, background_threads: 0, cf, ..Options::default() };
        let db = Db::open(Arc::new(env.clone()), dir, options).unwrap();
        for key in 0..Self::KEYS {
            db.put(key.to_be_bytes(), bytes(key, 4000)).unwrap();
        }
        db.flush().unwrap();
        Self { db, dir: dir.to_path_buf() }
    }

    /// Drops its tables from the page cache.
    pub(crate) fn evict(&self) {
        let paths = std::fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        let tables: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect();
        assert!(!tables.is_empty());
        for table in tables {
            evict(&table);
        }
    }

    /// Reads 64 blocks far from each other, and checks what they hold.
    pub(crate) fn multi_get(&self) {
        let keys: Vec<u64> = (0..64).map(|step| step * 37 % 64 * 16).collect();
        let answers = self.db.multi_get(keys.iter().map(|key| key.to_be_bytes()));
        for (key, answer) in keys.iter().zip(answers) {
            assert!(answer.unwrap().unwrap()[..] == bytes(*key, 4000)[..], "key {key}");
        }
    }
}
