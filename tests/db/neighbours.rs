//! Keys whose blocks lie next to each other, on the kernel's own rings: what one call of
//! `multi_get` gives to a ring, by the counters.
//!
//! Direct reads make sure that no block is in a page cache. Where io_uring or direct reads cannot
//! be had the tests say so on standard error; with `TREERING_REQUIRE_IO_URING` set they fail
//! instead.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, CountEnv, Env, EnvReport, ErrorKind, IoUringEnv, Op};
use treering_lsm::{Compression, Db, Durability, Options};

pub(crate) fn options() -> Options {
    let mut options = Options { background_threads: 0, block_cache_size: 0, ..Options::default() };
    options.cf.compression = Compression::None;
    options.cf.level0_compaction_trigger = 8;
    options
}

pub(crate) fn key(n: u64) -> String {
    format!("key{n:06}")
}

pub(crate) fn value(n: u64) -> String {
    format!("{n:0400}")
}

/// Says that nothing was tested here, and gives nothing.
fn skipped<T>(why: &str) -> Option<T> {
    assert!(std::env::var_os("TREERING_REQUIRE_IO_URING").is_none(), "required here: {why}");
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("standard error can be written");
    None
}

/// The environment that merges neighbours up to `limit` bytes; `None` where it cannot be had.
pub(crate) fn direct(dir: &Path, limit: usize) -> Option<Arc<IoUringEnv>> {
    let env = match IoUringEnv::builder().direct_reads(true).merge_limit(limit).build() {
        Ok(env) => env,
        Err(cause) => return skipped(&cause.to_string()),
    };
    let probe = dir.join("probe");
    std::fs::write(&probe, b"x").unwrap();
    match env.open(&probe, Access::Random) {
        Err(error) if error.kind() == ErrorKind::Unsupported => skipped(&error.to_string()),
        _ => Some(Arc::new(env)),
    }
}

fn open(env: &Arc<IoUringEnv>, path: &Path) -> Db {
    Db::open(Arc::clone(env) as _, path, options()).unwrap()
}

/// Entries for reads, and reads that rode on another's, of a call for 128 keys that follow one
/// another.
fn look_up(env: &IoUringEnv, db: &Db) -> EnvReport {
    let keys: Vec<String> = (300..428).map(key).collect();
    // The first read of a file also tells what its file system can.
    db.multi_get(&keys);
    let before = env.report();
    for (n, found) in (300..428).zip(db.multi_get(&keys)) {
        assert_eq!(found.unwrap().unwrap(), value(n).as_bytes());
    }
    env.report().since(&before)
}

/// MGET-09
#[test]
fn neighbouring_blocks_are_one_entry_for_each_table_and_none_is_read_twice() {
    for tables in [1, 2] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("db");
        let (Some(env), Some(merging)) = (direct(dir.path(), 0), direct(dir.path(), 128 << 10))
        else {
            return;
        };
        let db = open(&env, &path);
        for table in 0..tables {
            (0..1000).filter(|n| n % tables == table).for_each(|n| {
                db.put(key(n), value(n)).unwrap();
            });
            db.flush().unwrap();
        }
        let single = look_up(&env, &db);
        let blocks = single.counter("ring_reads");
        assert!((13..20).contains(&blocks), "of 128 keys in blocks of 9: {single}");
        assert_eq!(single.counter("merged_reads"), 0, "{single}");
        drop(db);
        let db = open(&merging, &path);
        let merged = look_up(&merging, &db);
        // What is staged goes out when there are 16.
        let most = if blocks < 16 { tables } else { 2 * tables };
        assert!((1..=most).contains(&merged.counter("ring_reads")), "{merged}");
        assert_eq!(
            merged.counter("ring_reads") + merged.counter("merged_reads"),
            blocks,
            "{merged}"
        );
        // Of whole pages: no block was read twice, and none that nobody asked for.
        assert!(merged.counter("merged_waste_bytes") < blocks * 4096, "{merged}");
        assert_eq!(merged.counter("merged_copy_bytes"), 0, "{merged}");
    }
}

/// MGET-09: bytes are counted above the rings, and what they read for nobody beside.
#[test]
fn keys_far_apart_cost_a_block_each_and_keys_of_one_block_one_read() {
    const KEYS: u64 = 26_000;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(env) = direct(dir.path(), 128 << 10) else { return };
    let counting = CountEnv::new(Arc::clone(&env) as _);
    let mut options = options();
    options.durability = Durability::Buffered;
    options.cf.memtable_size = 256 << 20;
    options.cf.table_size = 256 << 20;
    let db = Db::open(Arc::new(counting.clone()), dir.path().join("db"), options).unwrap();
    // Thirty short values, evenly among others that fill a block each: 100 MiB in one table.
    let far: Vec<u64> = (0..30).map(|n| n * KEYS / 30 + 7).collect();
    let filler = "f".repeat(3900);
    for n in 0..KEYS {
        let short = far.contains(&n);
        let value = if short { format!("{n:0100}") } else { filler.clone() };
        db.put(key(n), value).unwrap();
    }
    db.flush().unwrap();
    // The first read of a file also tells what its file system can.
    db.multi_get([key(0), key(9)]);

    let look_up = |keys: &[u64]| {
        let (before, counted) = (env.report(), counting.counts());
        let names: Vec<String> = keys.iter().map(|n| key(*n)).collect();
        for (n, found) in keys.iter().zip(db.multi_get(&names)) {
            let value = if far.contains(n) { format!("{n:0100}") } else { filler.clone() };
            assert_eq!(found.unwrap().unwrap(), value.as_bytes());
        }
        let reads = counting.counts().since(&counted).of(Op::Read);
        let since = env.report().since(&before);
        let wasted = since.counter("merged_waste_bytes") + since.counter("merged_copy_bytes");
        ((reads.calls, reads.bytes), since.counter("merged_reads"), wasted)
    };
    // A block each, and not a byte beside.
    let ((calls, bytes), merged, wasted) = look_up(&far);
    assert_eq!((calls, merged, wasted), (30, 0, 0));
    assert!((30 * 100..=30 * 4096).contains(&bytes), "{bytes} bytes for thirty short values");
    // Two keys that share a block, and one of them twice.
    let ((calls, bytes), merged, wasted) = look_up(&[far[3], far[3] + 1, far[3]]);
    assert!(calls <= 2 && bytes <= calls * 4096, "{calls} reads of {bytes} bytes");
    assert_eq!((merged, wasted), (calls - 1, 0));
}

/// MGET-08: calls of every size through rings of few and of many entries, each of which is full.
#[test]
fn calls_of_every_size_fill_rings_of_every_depth_and_are_answered_in_full() {
    const KEYS: u64 = 3000;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("db");
    let Some(env) = direct(dir.path(), 0) else { return };
    let db = open(&env, &path);
    (0..KEYS).for_each(|n| db.put(key(n), value(n)).unwrap());
    db.flush().unwrap();
    drop(db);
    for depth in [8, 128] {
        let builder = IoUringEnv::builder().direct_reads(true).merge_limit(0).rings(1);
        let env = builder.ring_entries(depth).max_in_flight(depth as usize).build().unwrap();
        let env = Arc::new(env);
        let db = open(&env, &path);
        for size in [0, 1, 2, 31, 32, 33, 64, 257, 1000, 100_000] {
            // All over the table, and within a block or two.
            for (step, within) in [(1117, KEYS + 9), (1, 9)] {
                let numbers: Vec<u64> = (0..size).map(|n| n * step % within).collect();
                let keys: Vec<String> = numbers.iter().map(|n| key(*n)).collect();
                let answers = db.multi_get(&keys);
                assert_eq!(answers.len(), keys.len());
                for (n, answer) in numbers.iter().zip(answers) {
                    let expected = (*n < KEYS).then(|| value(*n));
                    let found = answer.unwrap();
                    assert_eq!(found.as_deref(), expected.as_deref().map(str::as_bytes), "{n}");
                }
            }
        }
        let report = env.report();
        assert_eq!(report.counter("in_flight_peak"), u64::from(depth), "{report}");
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
        assert_eq!(report.counter("fallback_preads"), 0, "{report}");
        assert!(report.counter("ring_reads") > 600, "{report}");
    }
}
