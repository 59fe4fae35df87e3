//! Tests of whole tables: what the other test modules here share.

mod costs;
mod damage;
mod reading;

use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_env::{Access, Env, FileKind, MemEnv};

use super::{BlockCache, Table, TableOptions, TableSummary, TableWriter};
use crate::cursor::Cursor;
use crate::key::{self, ValueKind, encode, trailer};
use crate::options::Compression;
use crate::{Error, Result};

/// The identity of tables in tests.
const ID: u64 = 0x1234_5678_9abc_def0;

/// An internal key and its value.
type Version = (Vec<u8>, Vec<u8>);

fn options() -> TableOptions {
    TableOptions {
        block_size: 4096,
        restart_interval: 16,
        bloom_bits_per_key: 10,
        compression: Compression::None,
    }
}

fn lz4() -> TableOptions {
    TableOptions { compression: Compression::Lz4, ..options() }
}

fn put(user_key: &[u8], sequence: u64, value: &[u8]) -> Version {
    (encode(user_key, trailer(sequence, ValueKind::Put)), value.to_vec())
}

/// A writer of the new file `path`, so that tests see how it was written.
fn writer(env: &dyn Env, path: &str, options: &TableOptions) -> TableWriter {
    let path = Path::new(path);
    TableWriter::new(env.create(path, FileKind::Table).unwrap(), path, options, ID)
}

fn write(env: &dyn Env, path: &str, versions: &[Version], o: &TableOptions) -> TableSummary {
    let mut writer = writer(env, path, o);
    for (key, value) in versions {
        writer.add(key, value).unwrap();
    }
    writer.finish().unwrap()
}

fn open(env: &dyn Env, path: &str, cache: &Arc<BlockCache>) -> Result<Arc<Table>> {
    let file = env.open(Path::new(path), Access::Random)?;
    let size = file.size();
    Table::open(file, size, cache).map(Arc::new)
}

fn no_cache() -> Arc<BlockCache> {
    Arc::new(BlockCache::new(0))
}

/// The bytes of a table of `versions`.
fn bytes_of(versions: &[Version], options: &TableOptions) -> Vec<u8> {
    let env = MemEnv::new();
    write(&env, "t.sst", versions, options);
    let file = env.open(Path::new("t.sst"), Access::Random).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The table whose file holds `bytes`.
fn table_of(bytes: &[u8]) -> Result<Arc<Table>> {
    let env = MemEnv::new();
    let mut file = env.create(Path::new("t.sst"), FileKind::Table).unwrap();
    file.append(bytes).unwrap();
    file.finish().unwrap();
    open(&env, "t.sst", &no_cache())
}

/// `count` versions of random keys that are often prefixes of one another, in order.
fn random_versions(rng: &mut StdRng, count: usize, longest_value: usize) -> Vec<Version> {
    let mut versions: Vec<Version> = (0..count)
        .map(|_| {
            let key: Vec<u8> = (0..rng.random_range(0..8)).map(|_| random_byte(rng)).collect();
            let deleted = rng.random_range(0..5) == 0;
            let kind = if deleted { ValueKind::Deletion } else { ValueKind::Put };
            let len = if deleted { 0 } else { rng.random_range(0..=longest_value) };
            let compressible = rng.random_range(0..3) > 0;
            let byte = |rng: &mut StdRng| if compressible { b'v' } else { rng.random() };
            let value = (0..len).map(|_| byte(rng)).collect();
            (encode(&key, trailer(rng.random_range(1..40), kind)), value)
        })
        .collect();
    versions.sort_by(|a, b| key::compare(&a.0, &b.0));
    versions.dedup_by(|a, b| key::compare(&a.0, &b.0).is_eq());
    versions
}

/// Few bytes, the extremes among them, so that keys share prefixes and whole keys.
fn random_byte(rng: &mut StdRng) -> u8 {
    *[0, 1, b'a', b'b', 0xff].get(rng.random_range(0..5)).unwrap()
}

fn entry(cursor: &impl Cursor) -> Option<Version> {
    cursor.valid().then(|| (cursor.key().to_vec(), cursor.value().to_vec()))
}

fn scanned(table: &Arc<Table>) -> Result<Vec<Version>> {
    let mut cursor = table.cursor(&crate::options::ReadOptions::default());
    let mut versions = Vec::new();
    cursor.seek_to_first()?;
    while let Some(version) = entry(&cursor) {
        versions.push(version);
        cursor.next()?;
    }
    Ok(versions)
}

fn damages(table: &Table) -> Vec<Error> {
    let mut damages = Vec::new();
    table.verify(&mut |error| damages.push(error));
    damages
}

fn seeded(seed: u64) -> StdRng {
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}
