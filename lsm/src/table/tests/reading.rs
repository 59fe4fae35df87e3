//! What is written is read back, by every way of reading and under every setting.

use std::fmt::Write;

use super::*;
use crate::key::{MAX_KEY_SIZE, MAX_SEQUENCE, seek_trailer};
use crate::memtable::Lookup;
use crate::options::ReadOptions;

fn settings() -> Vec<TableOptions> {
    let mut settings = Vec::new();
    for block_size in [64, 200, 4096] {
        for restart_interval in [1, 3, 16] {
            for bloom_bits_per_key in [0, 10] {
                for compression in [Compression::None, Compression::Lz4] {
                    settings.push(TableOptions {
                        block_size,
                        restart_interval,
                        bloom_bits_per_key,
                        compression,
                    });
                }
            }
        }
    }
    settings.retain(|o| o.compression == Compression::None || cfg!(feature = "lz4"));
    settings
}

fn expected_get(versions: &[Version], seek: &[u8]) -> Option<(u64, Lookup)> {
    let at = versions.partition_point(|(key, _)| key::compare(key, seek).is_lt());
    let (found, value) = versions.get(at)?;
    let (user_key, trailer) = key::split(found);
    (user_key == key::user_key(seek)).then(|| {
        let deleted = trailer & 0xff == ValueKind::Deletion as u64;
        let found = Lookup::Found(value.clone().into());
        (trailer, if deleted { Lookup::Deleted } else { found })
    })
}

/// MRG-06
#[test]
fn look_ups_agree_with_a_sorted_list_under_every_setting() {
    for (seed, options) in settings().into_iter().enumerate() {
        let mut rng = seeded(seed as u64);
        let versions = random_versions(&mut rng, 600, 60);
        let env = MemEnv::new();
        let summary = write(&env, "t.sst", &versions, &options);
        let table = open(&env, "t.sst", &Arc::new(BlockCache::new(1 << 20))).unwrap();
        assert_eq!(summary.entries, versions.len() as u64);
        assert_eq!(summary.smallest, versions.first().unwrap().0);
        assert_eq!(summary.largest, versions.last().unwrap().0);
        assert_eq!(summary.size, table.size());
        let sequences = versions.iter().map(|(key, _)| key::split(key).1 >> 8);
        assert_eq!(summary.smallest_sequence, sequences.clone().min().unwrap());
        assert_eq!(summary.largest_sequence, sequences.max().unwrap());
        for _ in 0..1500 {
            let user_key: Vec<u8> =
                (0..rng.random_range(0..9)).map(|_| random_byte(&mut rng)).collect();
            let seek = encode(&user_key, seek_trailer(rng.random_range(0..42)));
            let found = table.get(&seek, true).unwrap();
            assert_eq!(found, expected_get(&versions, &seek), "{options:?} {seek:?}");
        }
        assert_eq!(scanned(&table).unwrap(), versions);
        assert!(damages(&table).is_empty());
    }
}

/// ITER-04
#[test]
fn a_cursor_agrees_with_a_sorted_list_at_every_turn() {
    for (seed, options) in settings().into_iter().enumerate() {
        let mut rng = seeded(1000 + seed as u64);
        let versions = random_versions(&mut rng, 200, 30);
        let table = table_of(&bytes_of(&versions, &options)).unwrap();
        let mut cursor = table.cursor(&ReadOptions::default());
        // Where the list's cursor is; `None` when it is on nothing.
        let mut at: Option<usize> = None;
        for step in 0..3000 {
            let target = if rng.random_range(0..2) == 0 {
                versions[rng.random_range(0..versions.len())].0.clone()
            } else {
                let key: Vec<u8> =
                    (0..rng.random_range(0..8)).map(|_| random_byte(&mut rng)).collect();
                encode(&key, seek_trailer(rng.random_range(0..42)))
            };
            let before = versions.partition_point(|(key, _)| key::compare(key, &target).is_lt());
            let upto = versions.partition_point(|(key, _)| key::compare(key, &target).is_le());
            let len = versions.len();
            match rng.random_range(0..12) {
                0 => {
                    cursor.seek_to_first().unwrap();
                    at = Some(0);
                }
                1 => {
                    cursor.seek_to_last().unwrap();
                    at = Some(len - 1);
                }
                2 => {
                    cursor.seek(&target).unwrap();
                    at = (before < len).then_some(before);
                }
                3 => {
                    cursor.seek_for_prev(&target).unwrap();
                    at = upto.checked_sub(1);
                }
                4..8 => {
                    cursor.next().unwrap();
                    at = at.map(|at| at + 1).filter(|at| *at < len);
                }
                _ => {
                    cursor.prev().unwrap();
                    at = at.and_then(|at| at.checked_sub(1));
                }
            }
            let want = at.map(|at| versions[at].clone());
            assert_eq!(entry(&cursor), want, "{options:?} step {step}");
        }
    }
}

#[test]
fn one_look_up_needs_one_block_even_among_versions_of_one_key() {
    let versions: Vec<Version> = (1..400).rev().map(|s| put(b"key", s * 2, &[7; 40])).collect();
    let table = table_of(&bytes_of(&versions, &options())).unwrap();
    assert!(table.index().len() > 3);
    for sequence in 0..802 {
        let seek = encode(b"key", seek_trailer(sequence));
        let want = (sequence >= 2).then(|| trailer(sequence.min(798) & !1, ValueKind::Put));
        assert_eq!(table.get(&seek, false).unwrap().map(|found| found.0), want);
    }
}

#[test]
fn blocks_of_whole_pages_start_at_pages_and_entries_that_fit_take_one() {
    let mut rng = seeded(7);
    for options in [options(), lz4()] {
        if options.compression == Compression::Lz4 && !cfg!(feature = "lz4") {
            continue;
        }
        for longest in [10, 400, 3000, 9000] {
            let versions: Vec<Version> = (0..500_u32)
                .map(|i| {
                    let value: Vec<u8> =
                        (0..rng.random_range(0..=longest)).map(|_| rng.random()).collect();
                    put(&i.to_be_bytes(), 1, &value)
                })
                .collect();
            let table = table_of(&bytes_of(&versions, &options)).unwrap();
            for number in 0..table.index().len() {
                let handle = table.index().handle(number).unwrap();
                assert_eq!(handle.offset % 4096, 0);
                let entries = table.load(handle, false).unwrap();
                let mut count = 0;
                entries.walk(|_, _, _| count += 1).unwrap();
                assert!(handle.size <= 4096 || count == 1, "{count} in {handle:?}");
            }
            assert_eq!(scanned(&table).unwrap(), versions);
        }
    }
}

#[test]
fn empty_keys_longest_keys_and_longest_sequences_come_back() {
    let long = vec![0xff; MAX_KEY_SIZE];
    let versions = [
        put(b"", MAX_SEQUENCE, b"newest"),
        put(b"", 0, b"oldest"),
        put(&long[..MAX_KEY_SIZE - 1], 1, b"long"),
        put(&long, 1, b"longest"),
    ];
    for options in settings() {
        let table = table_of(&bytes_of(&versions, &options)).unwrap();
        assert_eq!(scanned(&table).unwrap(), versions);
        assert!(damages(&table).is_empty());
        for (key, value) in &versions {
            let found = table.get(key, false).unwrap().unwrap();
            assert_eq!(found.1, Lookup::Found(value.clone().into()));
        }
    }
}

#[test]
#[cfg(feature = "lz4")]
fn values_above_a_mebibyte_are_stored_as_they_are_and_others_shrink() {
    for (len, stored_whole) in [(300_000, false), ((1 << 20) + 1, true)] {
        let versions = [put(b"a", 1, b"small"), put(b"k", 1, &vec![b'v'; len])];
        let bytes = bytes_of(&versions, &lz4());
        assert_eq!(bytes.len() > len, stored_whole, "{}", bytes.len());
        assert_eq!(scanned(&table_of(&bytes).unwrap()).unwrap(), versions);
    }
}

#[test]
#[cfg(feature = "lz4")]
fn compressed_blocks_fill_their_pages() {
    let mut rng = seeded(3);
    let versions: Vec<Version> = (0..20_000_u32)
        .map(|i| {
            // Half of each value is noise: it compresses to little more than the half.
            let mut value = vec![b'v'; 100];
            value[..50].iter_mut().for_each(|byte| *byte = rng.random());
            put(format!("user{i:08}").as_bytes(), 1, &value)
        })
        .collect();
    let table = table_of(&bytes_of(&versions, &lz4())).unwrap();
    let blocks = table.index().len() as u64;
    let stored: u64 =
        (0..table.index().len()).map(|n| u64::from(table.index().handle(n).unwrap().size)).sum();
    let fill = stored * 100 / (blocks * 4096);
    assert!(fill >= 85, "pages are filled to {fill} %");
    let plain = table_of(&bytes_of(&versions, &options())).unwrap().index().len() as u64;
    assert!(blocks * 100 < plain * 75, "{blocks} blocks against {plain} uncompressed");
}

#[test]
#[cfg(feature = "lz4")]
fn data_that_does_not_compress_is_stored_as_it_is() {
    let mut rng = seeded(4);
    let versions: Vec<Version> = (0..3000_u32)
        .map(|i| {
            let value: Vec<u8> = (0..200).map(|_| rng.random()).collect();
            put(&i.to_be_bytes(), 1, &value)
        })
        .collect();
    let compressed = table_of(&bytes_of(&versions, &lz4())).unwrap().index().len();
    let plain = table_of(&bytes_of(&versions, &options())).unwrap().index().len();
    assert!(compressed <= plain + plain / 20, "{compressed} blocks against {plain}");
}

#[test]
fn the_estimated_size_is_close_to_the_size() {
    let env = MemEnv::new();
    let mut writer = writer(&env, "t.sst", &options());
    for i in 0..5000_u32 {
        let (key, value) = put(&i.to_be_bytes(), 1, &[7; 100]);
        writer.add(&key, &value).unwrap();
    }
    let estimate = writer.estimated_size();
    let size = writer.finish().unwrap().size;
    assert!(estimate.abs_diff(size) < size / 50, "{estimate} for {size}");
}

#[test]
fn approximate_offsets_ascend_with_the_keys() {
    let versions: Vec<Version> =
        (0..2000_u32).map(|i| put(&i.to_be_bytes(), 1, &[7; 100])).collect();
    let table = table_of(&bytes_of(&versions, &options())).unwrap();
    let offsets: Vec<u64> = versions.iter().map(|(key, _)| table.approximate_offset(key)).collect();
    assert!(offsets.is_sorted());
    assert!(offsets[1000] > table.size() * 2 / 5 && offsets[1000] < table.size() * 3 / 5);
    assert_eq!(table.approximate_offset(&encode(b"\xff", 0)), table.size());
}

#[test]
#[should_panic(expected = "strictly ascending")]
fn keys_out_of_order_are_our_own_fault() {
    let env = MemEnv::new();
    let mut writer = writer(&env, "t.sst", &options());
    for (key, value) in [put(b"b", 1, b""), put(b"a", 1, b"")] {
        writer.add(&key, &value).unwrap();
    }
}

/// The bytes of a table never change but with the format's version. `docs/format/table.md` works
/// the same ones out: each line holds some, then two spaces and what they mean.
#[test]
fn the_bytes_of_a_table_are_those_of_version_0_and_of_the_format_page() {
    let versions = [
        put(b"apple", 7, b"red"),
        put(b"apply", 8, b""),
        (encode(b"banana", trailer(9, ValueKind::Deletion)), Vec::new()),
        put(b"banquet", 3, &[b'x'; 20]),
        put(b"banquet", 2, &[b'y'; 20]),
        put(b"banquet", 1, &[b'z'; 20]),
    ];
    let packed = TableOptions { block_size: 64, ..options() };
    let mut hex = String::new();
    for byte in bytes_of(&versions, &packed) {
        write!(hex, "{byte:02x}").unwrap();
    }
    assert_eq!(hex, include_str!("golden_v0.hex").replace(char::is_whitespace, ""));
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format/table.md"));
    let (_, after) = page.split_once("```worked\n").unwrap();
    let (worked, _) = after.split_once("```").unwrap();
    let bytes = worked.lines().filter_map(|line| line.split("  ").next());
    assert_eq!(bytes.collect::<String>().replace(' ', ""), hex);
}
