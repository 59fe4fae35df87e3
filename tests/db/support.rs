//! What the tests share: small options, environments that fail, and short ways to write and to read
//! everything.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, Call, Env, FaultEnv, MemEnv};
use treering_lsm::{
    CfOptions, Compression, Db, Durability, Error, Options, WriteBatch, WriteOptions,
};

/// Where the tests keep their database.
pub(crate) const DIR: &str = "/data/db";

/// Options so small that a few hundred writes fill memtables and levels, and no threads.
pub(crate) fn small() -> Options {
    let cf = CfOptions {
        memtable_size: 8 << 10,
        level0_compaction_trigger: 2,
        level_base_size: 16 << 10,
        level_multiplier: 4,
        table_size: 8 << 10,
        block_size: 256,
        compression: Compression::None,
        ..CfOptions::default()
    };
    Options {
        log_segment_size: 64 << 10,
        log_prepare_step: 4 << 10,
        background_threads: 0,
        block_cache_size: 64 << 10,
        cf,
        ..Options::default()
    }
}

/// Options with memtables that no test fills.
pub(crate) fn roomy() -> Options {
    let mut options = small();
    options.cf.memtable_size = 16 << 20;
    options
}

/// A database in a fresh `MemEnv`, and the environment.
pub(crate) fn open_new(options: Options) -> (MemEnv, Db) {
    let env = MemEnv::new();
    let db = open(&env, options);
    (env, db)
}

/// Opens the database of an environment.
pub(crate) fn open(env: &MemEnv, options: Options) -> Db {
    try_open(Arc::new(env.clone()), options).unwrap()
}

/// Opens the database, or says why not.
pub(crate) fn try_open(env: Arc<dyn Env>, options: Options) -> Result<Db, Error> {
    Db::open(env, DIR, options)
}

/// A database in a fresh `MemEnv` whose operations can be made to fail.
pub(crate) fn faulty(options: Options) -> (MemEnv, FaultEnv, Db) {
    let env = MemEnv::new();
    let (faults, db) = faulty_on(&env, options);
    (env, faults, db)
}

/// The same in an environment that is there.
pub(crate) fn faulty_on(env: &MemEnv, options: Options) -> (FaultEnv, Db) {
    let faults = FaultEnv::new(Arc::new(env.clone()));
    let db = try_open(Arc::new(faults.clone()), options).unwrap();
    (faults, db)
}

/// Whether a call is for a manifest.
pub(crate) fn is_manifest(call: &Call<'_>) -> bool {
    call.path.to_string_lossy().contains("MANIFEST")
}

/// Leaves no room for another byte.
pub(crate) fn fill_device(env: &MemEnv) {
    env.set_capacity(1 << 40);
    let free = env.free_space(DIR.as_ref()).unwrap();
    env.set_capacity((1 << 40) - free);
}

/// A put that outlives a power loss.
pub(crate) fn put_synced(db: &Db, key: &str, value: &str) -> Result<(), Error> {
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    db.write_opt(batch, &WriteOptions { durability: Some(Durability::Synced) })
}

/// The bytes of a file.
pub(crate) fn read_file(env: &dyn Env, path: &Path) -> Vec<u8> {
    let file = env.open(path, Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Everything in the family `default`, in order.
pub(crate) fn all(db: &Db) -> Vec<(String, String)> {
    db.iter().map(|entry| text(entry.unwrap())).collect()
}

/// A key and value as text.
pub(crate) fn text((key, value): (bytes::Bytes, bytes::Bytes)) -> (String, String) {
    let text = |bytes: bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    (text(key), text(value))
}

/// The value of a key as text.
pub(crate) fn get(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The names in the database's directory, sorted.
pub(crate) fn names(env: &dyn Env) -> Vec<String> {
    let entries = env.list(DIR.as_ref()).unwrap();
    let mut names: Vec<String> =
        entries.into_iter().map(|entry| entry.name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Those of the names that end like this, sorted.
pub(crate) fn with_suffix(env: &dyn Env, suffix: &str) -> Vec<String> {
    names(env).into_iter().filter(|name| name.ends_with(suffix)).collect()
}

/// How many of the names end like this.
pub(crate) fn count(env: &dyn Env, suffix: &str) -> usize {
    with_suffix(env, suffix).len()
}
