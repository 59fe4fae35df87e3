//! What reading costs, by counting.

use treering_env::{CountEnv, Op};

use super::*;
use crate::key::seek_trailer;
use crate::options::ReadOptions;

fn numbered(count: u32, value: usize) -> Vec<Version> {
    (0..count).map(|i| put(&i.to_be_bytes(), 1, &vec![7; value])).collect()
}

fn counted(versions: &[Version], options: &TableOptions) -> CountEnv {
    let env = CountEnv::new(Arc::new(MemEnv::new()));
    write(&env, "t.sst", versions, options);
    env
}

#[test]
fn a_cold_look_up_is_one_read_of_a_page_and_a_hot_one_none() {
    let versions = numbered(5000, 100);
    let env = counted(&versions, &options());
    let cache = Arc::new(BlockCache::new(8 << 20));
    let table = open(&env, "t.sst", &cache).unwrap();
    let start = env.counts();
    for (key, _) in versions.iter().step_by(500) {
        assert!(table.get(key, true).unwrap().is_some());
    }
    let cold = env.counts().since(&start).of(Op::Read);
    assert_eq!(cold.calls, 10);
    assert!(cold.bytes <= 10 * 4096);
    assert_eq!((cache.hits(), cache.misses()), (0, 10));
    for (key, _) in versions.iter().step_by(500) {
        assert!(table.get(key, true).unwrap().is_some());
    }
    assert_eq!(env.counts().since(&start).of(Op::Read), cold);
    assert_eq!((cache.hits(), cache.misses()), (10, 10));
}

#[test]
fn a_look_up_that_does_not_fill_the_cache_leaves_nothing_in_it() {
    let versions = numbered(100, 100);
    let env = counted(&versions, &options());
    let cache = Arc::new(BlockCache::new(8 << 20));
    let table = open(&env, "t.sst", &cache).unwrap();
    assert!(table.get(&versions[7].0, false).unwrap().is_some());
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn a_scan_that_does_not_fill_the_cache_uses_it_without_a_trace() {
    let versions = numbered(5000, 100);
    let env = counted(&versions, &options());
    let cache = Arc::new(BlockCache::new(8 << 20));
    let table = open(&env, "t.sst", &cache).unwrap();
    assert_eq!(scanned(&table).unwrap(), versions);
    let counted = (cache.hits(), cache.misses(), cache.bytes());
    let start = env.counts();
    let mut cursor = table.cursor(&ReadOptions { fill_cache: false });
    cursor.seek_to_first().unwrap();
    for version in &versions {
        assert_eq!(entry(&cursor).as_ref(), Some(version));
        cursor.next().unwrap();
    }
    assert_eq!(env.counts().since(&start).of(Op::Read).calls, 0);
    assert_eq!((cache.hits(), cache.misses(), cache.bytes()), counted);
}

#[test]
fn absent_keys_are_mostly_answered_by_the_filter() {
    let versions = numbered(5000, 20);
    let env = counted(&versions, &options());
    let table = open(&env, "t.sst", &no_cache()).unwrap();
    let start = env.counts();
    for key in 0..1000_u32 {
        let mut absent = key.to_be_bytes().to_vec();
        absent.push(0);
        assert_eq!(table.get(&encode(&absent, seek_trailer(9)), false).unwrap(), None);
    }
    let reads = env.counts().since(&start).of(Op::Read).calls;
    assert!(reads < 40, "{reads} reads for 1000 absent keys");
}

#[test]
fn a_point_seek_reads_nothing_ahead_and_a_scan_does_in_growing_steps() {
    let versions = numbered(20_000, 100);
    let env = counted(&versions, &options());
    let table = open(&env, "t.sst", &no_cache()).unwrap();
    for backward in [false, true] {
        let start = env.counts();
        let mut cursor = table.cursor(&ReadOptions::default());
        for (key, _) in versions.iter().step_by(1000) {
            cursor.seek(key).unwrap();
        }
        assert_eq!(env.counts().since(&start).of(Op::WillNeed).calls, 0);
        let start = env.counts();
        if backward {
            cursor.seek_to_last().unwrap();
        } else {
            cursor.seek_to_first().unwrap();
        }
        let mut count = 0;
        while cursor.valid() {
            count += 1;
            if backward { cursor.prev().unwrap() } else { cursor.next().unwrap() }
        }
        assert_eq!(count, versions.len());
        let ahead = env.counts().since(&start).of(Op::WillNeed);
        let data = table.properties().data_end;
        // 16, 32, .. 1024 KiB and then 1 MiB each; nothing twice, all but the first blocks.
        assert!(ahead.calls <= 7 + data.div_ceil(1 << 20), "{ahead:?} of {data}");
        assert!(ahead.bytes <= data && ahead.bytes >= data - (16 << 10), "{ahead:?} of {data}");
        let reads = env.counts().since(&start).of(Op::Read);
        assert_eq!(reads.calls, table.index().len() as u64, "each block is read once");
    }
}

#[test]
fn opening_a_table_is_four_reads_of_what_is_behind_the_data() {
    let env = counted(&numbered(5000, 100), &options());
    let start = env.counts();
    let table = open(&env, "t.sst", &no_cache()).unwrap();
    let reads = env.counts().since(&start).of(Op::Read);
    assert_eq!(reads.calls, 4);
    assert_eq!(reads.bytes, table.size() - table.properties().data_end);
    let per_block = table.memory() as u64 / table.index().len() as u64;
    assert!(per_block < 100, "{per_block} bytes of memory for a block of 4096");
}
