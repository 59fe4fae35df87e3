//! Damaged and forged tables: the right answer or an error that names the file, and nothing else.

use std::collections::BTreeSet;

use treering_env::{Fault, FaultEnv, FaultKind, Op};

use super::*;
use crate::checksum;
use crate::key::seek_trailer;
use crate::memtable::Lookup;
use crate::options::ReadOptions;
use crate::table::format::{FOOTER_SIZE, PLAIN_TRAILER};
use crate::table::{BlockHandle, Properties};

/// Small tables of each shape.
fn shapes() -> Vec<TableOptions> {
    let packed = |compression| TableOptions {
        block_size: 120,
        restart_interval: 3,
        bloom_bits_per_key: 10,
        compression,
    };
    let mut shapes = vec![packed(Compression::None), options()];
    if cfg!(feature = "lz4") {
        shapes.push(packed(Compression::Lz4));
    }
    shapes
}

fn versions_for(options: &TableOptions) -> Vec<Version> {
    let value = if options.block_size == 4096 { 260 } else { 20 };
    let mut versions: Vec<Version> = (0..20_u32)
        .map(|i| put(format!("key{i:02}").as_bytes(), 5, &vec![b'a' + (i % 3) as u8; value]))
        .collect();
    versions.insert(7, put(b"key06", 3, b"older"));
    versions.push((encode(b"zz", trailer(1, ValueKind::Deletion)), Vec::new()));
    versions
}

fn names_the_file(error: &Error) -> bool {
    match error {
        Error::Corruption { path, .. } | Error::UnsupportedVersion { path, .. } => {
            path == Path::new("t.sst")
        }
        _ => false,
    }
}

/// What a look-up of each version itself must give.
fn answer(version: &Version) -> (u64, Lookup) {
    let (_, trailer) = key::split(&version.0);
    let deleted = trailer & 0xff == ValueKind::Deletion as u64;
    let value = Lookup::Found(version.1.clone().into());
    (trailer, if deleted { Lookup::Deleted } else { value })
}

/// Reads everything there is in every way. Returns the versions whose look-up failed.
fn check_reads(table: &Arc<Table>, versions: &[Version], what: &str) -> Vec<usize> {
    let mut failed = Vec::new();
    for (at, version) in versions.iter().enumerate() {
        match table.get(&version.0, false) {
            Ok(found) => assert_eq!(found, Some(answer(version)), "{what}"),
            Err(error) => {
                assert!(names_the_file(&error), "{what}: {error}");
                failed.push(at);
            }
        }
    }
    for absent in [&b""[..], b"key", b"key055", b"zzz"] {
        match table.get(&encode(absent, seek_trailer(9)), false) {
            Ok(found) => assert_eq!(found, None, "{what}"),
            Err(error) => assert!(names_the_file(&error), "{what}: {error}"),
        }
    }
    for backward in [false, true] {
        let mut cursor = table.cursor(&ReadOptions::default());
        let mut seen = Vec::new();
        let mut result = if backward { cursor.seek_to_last() } else { cursor.seek_to_first() };
        while result.is_ok() && cursor.valid() {
            seen.extend(entry(&cursor));
            result = if backward { cursor.prev() } else { cursor.next() };
        }
        if backward {
            seen.reverse();
        }
        match result {
            Ok(()) => assert_eq!(seen, versions, "{what}"),
            Err(error) => {
                assert!(names_the_file(&error), "{what}: {error}");
                assert!(!cursor.valid());
                let whole =
                    if backward { versions.ends_with(&seen) } else { versions.starts_with(&seen) };
                assert!(whole, "{what}");
            }
        }
    }
    failed
}

/// HOST-05, MRG-07
#[test]
fn each_flipped_bit_is_noticed_and_costs_at_most_the_keys_of_one_block() {
    for options in shapes() {
        let versions = versions_for(&options);
        let bytes = bytes_of(&versions, &options);
        let sound = table_of(&bytes).unwrap();
        assert!(sound.index().len() > 1, "several blocks, so that others can go on");
        assert!(check_reads(&sound, &versions, "sound").is_empty());
        // The table of whole pages is mostly one value after another: there a bit of each byte
        // will do, another one from byte to byte.
        let step = if options.block_size == 4096 { 9 } else { 1 };
        for bit in (0..bytes.len() * 8).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let what = format!("{options:?} bit {bit}");
            match table_of(&damaged) {
                Err(error) => assert!(names_the_file(&error), "{what}: {error}"),
                Ok(table) => {
                    let failed = check_reads(&table, &versions, &what);
                    let block = |at: usize| sound.find_block(&versions[at].0).unwrap().offset;
                    let blocks: BTreeSet<_> = failed.iter().map(|at| block(*at)).collect();
                    assert!(blocks.len() <= 1, "{what}");
                    let damages = damages(&table);
                    assert_eq!(damages.len(), 1, "{what}: {damages:?}");
                    assert!(names_the_file(&damages[0]));
                }
            }
        }
    }
}

#[test]
fn each_cut_of_a_table_is_refused() {
    for options in shapes() {
        let bytes = bytes_of(&versions_for(&options), &options);
        for len in 0..bytes.len() {
            let error = table_of(&bytes[..len]).unwrap_err();
            assert!(names_the_file(&error), "{len}: {error}");
        }
    }
}

#[test]
fn a_file_of_another_size_than_recorded_is_refused() {
    let env = MemEnv::new();
    let summary = write(&env, "t.sst", &versions_for(&options()), &options());
    for size in [0, summary.size - 1, summary.size + 1, u64::MAX] {
        let file = env.open(Path::new("t.sst"), Access::Random).unwrap();
        let error = Table::open(file, size, &no_cache()).unwrap_err();
        assert!(names_the_file(&error), "{error}");
    }
}

/// Every block of the table: data, filter, index, properties.
fn handles(table: &Table) -> Vec<BlockHandle> {
    let footer = table.footer();
    let data = (0..table.index().len()).map(|number| table.index().handle(number).unwrap());
    data.chain([footer.filter, footer.index, footer.properties]).collect()
}

fn range(handle: BlockHandle) -> std::ops::Range<usize> {
    let start = usize::try_from(handle.offset).unwrap();
    start..start + handle.size as usize
}

/// Gives the block at `handle` the checksum that its bytes need.
fn reseal(bytes: &mut [u8], handle: BlockHandle) {
    let block = &mut bytes[range(handle)];
    let covered = block.len() - 4;
    let crc = checksum::crc(ID, handle.offset, &[&block[..covered]]);
    block[covered..].copy_from_slice(&crc.to_le_bytes());
}

/// The table with other properties, whose encoding is as long.
fn with_properties(bytes: &[u8], properties: &Properties) -> Vec<u8> {
    let handle = table_of(bytes).unwrap().footer().properties;
    let mut payload = Vec::new();
    properties.write_to(&mut payload);
    assert_eq!(payload.len() + PLAIN_TRAILER, handle.size as usize);
    let mut forged = bytes.to_vec();
    forged[range(handle)][..payload.len()].copy_from_slice(&payload);
    reseal(&mut forged, handle);
    forged
}

/// Uses a forged table in every way. Nothing can be said about the answers, but it must end.
fn use_up(table: &Arc<Table>) {
    for key in [&b""[..], b"key", b"key03", b"key06", b"key19", b"zz", b"\xff"] {
        let _ = table.get(&encode(key, seek_trailer(9)), false);
        let mut cursor = table.cursor(&ReadOptions::default());
        let _ = cursor.seek(&encode(key, seek_trailer(4)));
        let _ = cursor.prev();
        let _ = cursor.seek_for_prev(&encode(key, seek_trailer(4)));
        let _ = cursor.next();
    }
    let size = usize::try_from(table.size()).unwrap();
    for backward in [false, true] {
        let mut cursor = table.cursor(&ReadOptions::default());
        let mut result = if backward { cursor.seek_to_last() } else { cursor.seek_to_first() };
        let mut steps = 0;
        while result.is_ok() && cursor.valid() {
            steps += 1;
            // An LZ4 block of a byte yields at most 255, and an entry takes four.
            assert!(steps <= size * 64, "a scan longer than the file");
            result = if backward { cursor.prev() } else { cursor.next() };
        }
    }
    table.verify(&mut |error| assert!(names_the_file(&error), "{error}"));
}

/// HOST-06, HOST-01, HOST-03
#[test]
fn forged_blocks_with_valid_checksums_never_panic_and_end_in_bounded_work() {
    let mut rng = seeded(6);
    let mut opened = 0;
    for options in shapes() {
        let bytes = bytes_of(&versions_for(&options), &options);
        let handles = handles(&table_of(&bytes).unwrap());
        for round in 0..6000 {
            let mut forged = bytes.clone();
            let handle = handles[rng.random_range(0..handles.len())];
            let within = range(handle);
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(within.start..within.end - 4);
                forged[at] = match rng.random_range(0..4) {
                    0 => rng.random(),
                    1 => 0xff,
                    2 => forged[at].wrapping_add(1),
                    _ => forged[at] ^ 1 << rng.random_range(0..8),
                };
            }
            reseal(&mut forged, handle);
            match table_of(&forged) {
                Ok(table) => {
                    opened += 1;
                    use_up(&table);
                }
                Err(error) => {
                    let lacks_lz4 = matches!(error, Error::InvalidArgument(_));
                    let refused = names_the_file(&error) || (lacks_lz4 && !cfg!(feature = "lz4"));
                    assert!(refused, "round {round}: {error}");
                }
            }
        }
    }
    assert!(opened > 1000, "{opened} forged tables reached the reads");
}

/// HOST-01
#[test]
fn forged_footers_with_valid_checksums_are_refused() {
    let mut rng = seeded(8);
    let versions = versions_for(&options());
    let bytes = bytes_of(&versions, &options());
    let start = bytes.len() - FOOTER_SIZE;
    for _ in 0..5000 {
        let mut forged = bytes.clone();
        let at = start + rng.random_range(8..48);
        let wild = [0, 0xff, 0x80, rng.random(), forged[at].wrapping_add(1)];
        forged[at] = wild[rng.random_range(0..wild.len())];
        let (front, end) = (&forged[start..start + 48], &forged[start + 52..]);
        let crc = checksum::crc(ID, start as u64, &[front, end]);
        forged[start + 48..start + 52].copy_from_slice(&crc.to_le_bytes());
        match table_of(&forged) {
            Ok(table) => assert_eq!(forged, bytes, "{:?}", table.footer()),
            Err(error) => assert!(names_the_file(&error), "{error}"),
        }
    }
}

/// HOST-02
#[test]
#[cfg(feature = "lz4")]
fn a_compressed_block_that_claims_another_length_is_refused() {
    let options = shapes().pop().unwrap();
    let bytes = bytes_of(&versions_for(&options), &options);
    let table = table_of(&bytes).unwrap();
    let handle = handles(&table)[0];
    let at = range(handle).end - 9;
    let honest = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    for claim in [0, 1, honest - 1, honest + 1, 10_000, 1 << 31, u32::MAX] {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&claim.to_le_bytes());
        reseal(&mut forged, handle);
        let error = table_of(&forged).unwrap().load(handle, false).unwrap_err();
        assert!(names_the_file(&error), "{error}");
    }
}

/// MGET-11
#[test]
fn a_block_of_zeros_or_of_another_place_or_table_fails_its_own_keys_only() {
    let options = TableOptions { block_size: 120, restart_interval: 3, ..options() };
    let versions = versions_for(&options);
    let bytes = bytes_of(&versions, &options);
    let sound = table_of(&bytes).unwrap();
    let [first, second] = [handles(&sound)[1], handles(&sound)[2]];
    let foreign: Vec<u8> = {
        let env = MemEnv::new();
        let path = Path::new("t.sst");
        let file = env.create(path, FileKind::Table).unwrap();
        let mut writer = TableWriter::new(file, path, &options, ID + 1);
        for (key, value) in &versions {
            writer.add(key, value).unwrap();
        }
        writer.finish().unwrap();
        let file = env.open(path, Access::Random).unwrap();
        let mut block = vec![0; first.size as usize];
        file.read_exact_at(&mut block, first.offset).unwrap();
        block
    };
    let mut misplaced = bytes[range(second)].to_vec();
    misplaced.resize(first.size as usize, 0);
    for replaced in [vec![0; first.size as usize], misplaced, foreign] {
        let mut damaged = bytes.clone();
        damaged[range(first)].copy_from_slice(&replaced);
        let table = table_of(&damaged).unwrap();
        for version in &versions {
            let found = table.get(&version.0, false);
            if sound.find_block(&version.0) == Some(first) {
                let error = found.unwrap_err();
                let Error::Corruption { path, offset, .. } = &error else { panic!("{error}") };
                assert_eq!((path.as_path(), *offset), (Path::new("t.sst"), Some(first.offset)));
            } else {
                assert_eq!(found.unwrap(), Some(answer(version)));
            }
        }
    }
}

/// MRG-07
#[test]
fn a_filter_of_another_table_is_refused_and_one_that_denies_keys_is_found_by_verify() {
    let versions = versions_for(&options());
    let bytes = bytes_of(&versions, &options());
    let filter = table_of(&bytes).unwrap().footer().filter;
    let others: Vec<Version> = (0..22_u32).map(|i| put(&i.to_be_bytes(), 1, &[7; 260])).collect();
    let other = bytes_of(&others, &options());
    let others = table_of(&other).unwrap().footer().filter;
    assert_eq!(others.size, filter.size);
    let mut forged = bytes.clone();
    forged[range(filter)].copy_from_slice(&other[range(others)]);
    assert!(names_the_file(&table_of(&forged).unwrap_err()));
    reseal(&mut forged, filter);
    assert!(!damages(&table_of(&forged).unwrap()).is_empty());
}

/// HOST-08
#[test]
fn keys_out_of_order_are_reported_by_a_scan_for_compaction_and_by_verify() {
    let options = TableOptions { restart_interval: 1, bloom_bits_per_key: 0, ..options() };
    let versions: Vec<Version> =
        (0..9_u32).map(|i| put(format!("key{i}").as_bytes(), 1, b"v")).collect();
    let mut bytes = bytes_of(&versions, &options);
    let table = table_of(&bytes).unwrap();
    let handle = handles(&table)[0];
    let at = bytes.windows(4).position(|window| window == b"key5").unwrap();
    bytes[at + 3] = b'2';
    reseal(&mut bytes, handle);
    let table = table_of(&bytes).unwrap();
    let mut scan = table.scan(Arc::clone(table.file()));
    let mut result = scan.seek_to_first();
    let mut count = 0;
    while result.is_ok() && scan.valid() {
        count += 1;
        result = scan.next();
    }
    let error = result.unwrap_err();
    assert!(names_the_file(&error) && !scan.valid(), "{error}");
    assert_eq!(count, 5);
    assert_eq!(damages(&table).len(), 1);
}

/// MGET-03
#[test]
fn a_failed_read_is_its_own_error_and_not_an_absent_key() {
    const EIO: i32 = 5;
    let options = TableOptions { block_size: 120, restart_interval: 3, ..options() };
    let versions = versions_for(&options);
    let env = FaultEnv::new(Arc::new(MemEnv::new()));
    write(&env, "t.sst", &versions, &options);
    for nth in 1..=4 {
        let fault = env.add(Fault::new(FaultKind::Error(EIO)).on(Op::Read).nth(nth));
        let error = open(&env, "t.sst", &no_cache()).unwrap_err();
        assert!(matches!(&error, Error::Io(io) if io.errno() == Some(EIO)), "{error}");
        assert_eq!(fault.fired(), 1);
        fault.remove();
    }
    let table = open(&env, "t.sst", &no_cache()).unwrap();
    let damaged = table.find_block(&versions[9].0).unwrap();
    let bad = move |call: &treering_env::Call<'_>| call.offset == damaged.offset;
    let fault = env.add(Fault::new(FaultKind::Error(EIO)).on(Op::Read).matching(bad));
    for version in &versions {
        let found = table.get(&version.0, true);
        if table.find_block(&version.0) == Some(damaged) {
            assert!(matches!(found, Err(Error::Io(_))));
        } else {
            assert_eq!(found.unwrap(), Some(answer(version)));
        }
    }
    let error = scanned(&table).unwrap_err().to_string();
    assert!(error.starts_with("read t.sst"), "{error}");
    assert!(fault.fired() > 1);
    fault.remove();
    assert_eq!(scanned(&table).unwrap(), versions);
}

#[test]
fn a_table_that_may_hold_lz4_is_refused_by_name_where_the_feature_is_missing() {
    let bytes = bytes_of(&versions_for(&options()), &options());
    let table = table_of(&bytes).unwrap();
    let properties = Properties { compression: Compression::Lz4, ..table.properties().clone() };
    let opened = table_of(&with_properties(&bytes, &properties));
    assert_eq!(opened.is_ok(), cfg!(feature = "lz4"));
    match opened {
        Ok(table) => assert_eq!(scanned(&table).unwrap(), versions_for(&options())),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("t.sst") && message.contains("feature `lz4`"), "{message}");
        }
    }
}

/// HOST-06
#[test]
fn properties_that_count_something_else_than_the_blocks_hold_are_found_by_verify() {
    type Lie = fn(&mut Properties);
    let bytes = bytes_of(&versions_for(&options()), &options());
    let table = table_of(&bytes).unwrap();
    assert!(damages(&table).is_empty());
    let lies: [(&str, Lie); 7] = [
        ("entries", |claims| claims.entries += 1),
        ("deletions", |claims| claims.deletions += 1),
        ("smallest", |claims| claims.smallest_sequence -= 1),
        ("largest sequence", |claims| claims.largest_sequence += 1),
        ("bytes of keys", |claims| claims.key_bytes -= 1),
        ("bytes of values", |claims| claims.value_bytes += 1),
        ("bytes of the largest", |claims| claims.largest_block += 1),
    ];
    for (name, lie) in lies {
        let mut claims = table.properties().clone();
        lie(&mut claims);
        let damages = damages(&table_of(&with_properties(&bytes, &claims)).unwrap());
        let [damage] = &damages[..] else { panic!("{name}: {damages:?}") };
        assert!(names_the_file(damage) && damage.to_string().contains(name), "{damage}");
    }
}

/// HOST-06
#[test]
#[cfg(feature = "lz4")]
fn a_compressed_block_in_a_table_that_says_it_has_none_is_damage() {
    let options = shapes().pop().unwrap();
    let versions = versions_for(&options);
    let bytes = bytes_of(&versions, &options);
    let sound = table_of(&bytes).unwrap();
    let claims = Properties { compression: Compression::None, ..sound.properties().clone() };
    let table = table_of(&with_properties(&bytes, &claims)).unwrap();
    let failed = check_reads(&table, &versions, "compressed after all");
    assert!(!failed.is_empty());
    assert!(check_reads(&sound, &versions, "sound").is_empty());
}

/// HOST-04
#[test]
fn noise_and_spliced_tables_are_refused_or_read() {
    let mut rng = seeded(9);
    let sources: Vec<Vec<u8>> =
        shapes().iter().map(|options| bytes_of(&versions_for(options), options)).collect();
    for _ in 0..2000 {
        let a = &sources[rng.random_range(0..sources.len())];
        let b = &sources[rng.random_range(0..sources.len())];
        let mut spliced = a[..rng.random_range(0..=a.len())].to_vec();
        match rng.random_range(0..3) {
            0 => spliced.extend_from_slice(&b[rng.random_range(0..=b.len())..]),
            1 => spliced.extend((0..rng.random_range(0..300)).map(|_| rng.random::<u8>())),
            _ => spliced.resize(rng.random_range(0..=a.len()), 0),
        }
        match table_of(&spliced) {
            Ok(table) => use_up(&table),
            Err(error) => assert!(names_the_file(&error), "{error}"),
        }
    }
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let mut bytes = bytes_of(&versions_for(&options()), &options());
    let start = bytes.len() - FOOTER_SIZE;
    bytes[start + 52] = 9;
    // Without its checksum it is a flipped bit.
    let error = table_of(&bytes).unwrap_err();
    assert!(matches!(error, Error::Corruption { .. }), "{error}");
    let (front, end) = (&bytes[start..start + 48], &bytes[start + 52..]);
    let crc = checksum::crc(ID, start as u64, &[front, end]);
    bytes[start + 48..start + 52].copy_from_slice(&crc.to_le_bytes());
    let error = table_of(&bytes).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 9, supported: 0, .. }), "{error}");
}
