//! Neighbouring reads through real rings, whose kernel reads to several pieces of memory at once.

use super::*;
use crate::os_file::OsFile;

/// Ranges that touch, overlap, repeat, leave gaps, and now and then end behind the file.
fn ranges(next: &mut impl FnMut(u64) -> u64, size: u64) -> Vec<(u64, usize)> {
    let mut ranges: Vec<(u64, usize)> = Vec::new();
    for _ in 0..100 {
        let len = match next(3) {
            0 => 4096,
            1 => 3000 + next(1200),
            _ => next(20_000),
        };
        let (last, last_len) = ranges.last().copied().unwrap_or_default();
        let end = last + last_len as u64;
        let start = match next(9) {
            0..3 => end,
            3 => end.next_multiple_of(4096),
            4 => end + next(9000),
            5 => last + next(last_len as u64 + 1),
            6 => last,
            7 => size.saturating_sub(next(9000)),
            _ => next(size),
        };
        ranges.push((start, usize::try_from(len).unwrap()));
    }
    ranges
}

/// MGET-09
#[test]
fn any_ranges_through_a_real_ring_are_as_read_one_by_one() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let len = 800 * 1024 + 123;
    let path = cold_file(&dir, "t", len);
    let mut state = 1u64;
    let mut next = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % bound
    };
    for (direct, gap) in [(false, 0), (false, 16 << 10), (true, 0), (true, 16 << 10)] {
        let builder = IoUringEnv::builder().direct_reads(direct).merge_gap(gap);
        let env = builder.nowait(false).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let plain = PosixEnv::new().open(&path, Access::Random).unwrap();
        for round in 0..40 {
            if round % 2 == 0 {
                evict(&path);
            }
            let ranges = ranges(&mut next, len as u64);
            let results = read_batch(&env, requests(&file, &ranges));
            for (result, (offset, len)) in results.iter().zip(&ranges) {
                let mut expected = vec![0; *len];
                match (plain.read_exact_at(&mut expected, *offset), result) {
                    (Ok(()), Ok(got)) => assert!(**got == expected[..], "{round}: at {offset}"),
                    (Err(expected), Err(error)) => {
                        assert_eq!(error.to_string(), expected.to_string());
                    }
                    (expected, got) => panic!("{round}: {offset}: {expected:?} and {got:?}"),
                }
            }
        }
        let report = env.report();
        assert!(report.counter("merged_reads") > 1000, "{report}");
        assert!(report.counter("merged_copy_bytes") > 0, "{report}");
        assert!(report.counter("merged_waste_bytes") > 0, "{report}");
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    }
}

/// MGET-09
#[test]
fn neighbouring_direct_reads_are_one_entry_unless_merging_is_off() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4096);
    // Blocks that fill their pages nearly.
    let blocks: Vec<(u64, usize)> = (0..256).map(|n| (n * 4096, 3900)).collect();
    for (limit, entries) in [(0, 255), (128 << 10, 16), (16 << 10, 64)] {
        let env = IoUringEnv::builder().direct_reads(true).merge_limit(limit).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        OsFile::of(&*file).unwrap().device().pretend_chunk(512 << 10);
        assert_right(&read_batch(&env, requests(&file, &blocks)), &blocks);
        let report = env.report();
        // The first read of a file tells what its file system can, and seldom needs the ring.
        let given = report.counter("ring_reads");
        assert!((entries..=entries + 4).contains(&given), "{given} instead of {entries}: {report}");
        assert!((255..=256).contains(&(given + report.counter("merged_reads"))), "{report}");
    }
}
