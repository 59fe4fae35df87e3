//! Real tables and levels for the tests of what stands on versions.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Env, FileKind};

use super::{FileMeta, Version};
use crate::filename::FileName;
use crate::key::{ValueKind, encode, trailer};
use crate::table::{BlockCache, TableOptions, TableWriter};
use crate::table_cache::TableCache;
use crate::{CfOptions, Compression};

/// The database's directory.
pub(crate) fn dir() -> &'static Path {
    Path::new("db")
}

/// Options that make everything happen with few bytes.
pub(crate) fn tiny_options() -> CfOptions {
    CfOptions {
        level0_compaction_trigger: 2,
        level_base_size: 2_000,
        level_multiplier: 2,
        table_size: 700,
        block_size: 128,
        restart_interval: 3,
        compression: Compression::None,
        ..CfOptions::default()
    }
}

/// A table cache without a block cache, so that reads reach the environment.
pub(crate) fn table_cache(env: &Arc<dyn Env>) -> Arc<TableCache> {
    let blocks = Arc::new(BlockCache::new(0));
    Arc::new(TableCache::new(Arc::clone(env), dir().to_path_buf(), 100, blocks))
}

/// The internal key of a put of `user_key`.
pub(crate) fn put(user_key: &str, sequence: u64) -> Vec<u8> {
    encode(user_key.as_bytes(), trailer(sequence, ValueKind::Put))
}

/// The internal key of a tombstone of `user_key`.
pub(crate) fn tombstone(user_key: &str, sequence: u64) -> Vec<u8> {
    encode(user_key.as_bytes(), trailer(sequence, ValueKind::Deletion))
}

/// Writes a table of internal keys, which are in order, with values made from them.
pub(crate) fn write_table(env: &dyn Env, number: u64, keys: &[Vec<u8>]) -> Arc<FileMeta> {
    let path = FileName::Table(number).path(dir());
    let file = env.create(&path, FileKind::Table).unwrap();
    let options = TableOptions::from(&tiny_options());
    let mut writer = TableWriter::new(file, &path, &options, number + 1_000_000);
    for key in keys {
        writer.add(key, &value_of(key)).unwrap();
    }
    let table = writer.finish().unwrap();
    env.sync_dir(dir()).unwrap();
    Arc::new(FileMeta::of_table(number, table))
}

/// The value that goes with `internal_key` in these tests; tombstones have none.
pub(crate) fn value_of(internal_key: &[u8]) -> Vec<u8> {
    let parsed = crate::key::parse(internal_key).unwrap();
    match parsed.kind {
        ValueKind::Deletion => Vec::new(),
        ValueKind::Put => [parsed.user_key, b"@", parsed.sequence.to_string().as_bytes()].concat(),
    }
}

/// A version with these tables in these levels, in the order of the level.
pub(crate) fn version(levels: &[(usize, &[Arc<FileMeta>])]) -> Arc<Version> {
    let mut version = Version::default();
    for (level, files) in levels {
        version.levels[*level] = files.to_vec().into();
    }
    Arc::new(version)
}
