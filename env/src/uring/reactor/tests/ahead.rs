//! Direct files that are read ahead.

use super::*;
use crate::os_file::OsFile;
use crate::uring::ahead::Ahead;
use crate::{Access, RandomAccessFile};

const KIB: usize = 1 << 10;
const RANGE: usize = 64 * KIB;

/// A file of known bytes that is read past the page cache and ahead, through rings made by `make`.
struct Scan {
    bench: Bench,
    ahead: Arc<Ahead>,
    bytes: Vec<u8>,
}

impl Scan {
    fn new(limit: usize, make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static) -> Self {
        let mut bench = Bench::new(make);
        let direct = PosixEnv::builder().direct_reads(true);
        bench.stage.env = PosixEnv::with_os(Arc::clone(&bench.os), direct).unwrap();
        let bytes = pattern(16 * RANGE + 1234);
        std::fs::write(bench.path("t"), &bytes).unwrap();
        let ahead = Ahead::new(&bench.os, &bench.reactor, limit);
        Self { bench, ahead, bytes }
    }

    /// The file, unless the file system does no direct I/O.
    fn open(&self) -> Option<Arc<OsFile>> {
        match self.bench.env.open_file(&self.bench.path("t"), Access::Random) {
            Ok(file) => {
                self.ahead.attend(&file);
                Some(file)
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                None
            }
        }
    }

    /// Reads a range, which must have the right bytes; how many plain reads that took.
    fn read(&self, file: &OsFile, offset: usize, len: usize) -> u64 {
        let before = self.count(Count::Preads);
        let mut got = vec![0; len];
        file.read_exact_at(&mut got, offset as u64).unwrap();
        assert!(got == self.bytes[offset..offset + len], "{len} bytes at {offset}");
        self.count(Count::Preads) - before
    }

    fn count(&self, count: Count) -> u64 {
        self.bench.count(count)
    }

    fn kept(&self) -> usize {
        self.ahead.bytes().0
    }

    /// Bytes that a ring was asked for.
    fn asked(&self) -> usize {
        self.bench.seen.lock().entries.iter().map(|(_, len)| *len as usize).sum()
    }
}

#[test]
fn what_was_announced_is_read_by_the_reactor_and_kept_until_it_was_read() {
    let mut scan = Scan::new(1 << 20, |ring| ring);
    let Some(file) = scan.open() else { return };
    let begin = RANGE;
    file.will_need(begin as u64, RANGE as u64);
    file.will_need((begin + RANGE) as u64, RANGE as u64);
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRanges)), (2 * RANGE, 2));
    scan.bench.turn();
    // Backward, pieces of an odd length, one of which lies in both ranges.
    let (mut end, mut reads) = (begin + 2 * RANGE, 0);
    while end > begin {
        let from = end.saturating_sub(5000).max(begin);
        assert_eq!(scan.read(&file, from, end - from), 0, "up to {end}");
        (end, reads) = (from, reads + 1);
    }
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadHits)), (0, reads));
    assert_eq!(scan.read(&file, begin, 100), 1, "it was kept no longer");
    // Before it and behind it nothing was announced.
    file.will_need(begin as u64, RANGE as u64);
    scan.bench.turn();
    assert_eq!(scan.read(&file, begin - 1, 2), 1);
    assert_eq!(scan.read(&file, begin + RANGE - 1, 2), 1);
}

#[test]
fn a_byte_costs_its_block_and_little_room_makes_short_ranges() {
    let mut scan = Scan::new(RANGE, |ring| ring);
    let Some(file) = scan.open() else { return };
    for n in 0..100_u64 {
        file.will_need(n * 8192 + 5000, 1);
    }
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRanges)), (RANGE, 16));
    scan.bench.turn();
    drop(file);
    let file = scan.open().unwrap();
    (0..8).for_each(|_| file.will_need(0, 1 << 20));
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRanges)), (RANGE, 20));
}

/// What is read from now and then does not keep what was left behind.
#[test]
fn one_range_that_is_read_from_does_not_keep_the_others() {
    let mut scan = Scan::new(4 * RANGE, |ring| ring);
    let (Some(file), Some(other)) = (scan.open(), scan.open()) else { return };
    (0..4).for_each(|n| file.will_need((n * RANGE) as u64, RANGE as u64));
    scan.bench.turn();
    for _ in 0..16 {
        other.will_need(0, RANGE as u64);
        assert_eq!(scan.read(&file, 100, 100), 0);
    }
    assert_eq!(scan.count(Count::ReadAheadRefused), 16);
    other.will_need(0, RANGE as u64);
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRanges)), (4 * RANGE, 5));
    assert_eq!(scan.read(&file, 100, 100), 0);
    assert_eq!(scan.read(&file, RANGE, 100), 1, "the oldest that was left behind went");
}

/// ITER-11: blocks lie anywhere, or are padded to pages.
#[test]
fn a_range_is_kept_until_the_scan_is_in_the_next_one() {
    for (block, step) in [(4000, 4096), (3000, 3000), (5000, 8192)] {
        for backward in [false, true] {
            let mut scan = Scan::new(1 << 20, |ring| ring);
            let Some(file) = scan.open() else { return };
            for n in 0..4 {
                file.will_need((n * RANGE) as u64, RANGE as u64);
            }
            scan.bench.turn();
            let mut places: Vec<usize> = (0..4 * RANGE - block).step_by(step).collect();
            if backward {
                places.reverse();
            }
            for (n, &place) in places.iter().enumerate() {
                assert_eq!(scan.read(&file, place, block), 0, "{block} at {place}");
                let left = if backward { place + block } else { 4 * RANGE - place };
                assert!(scan.kept() <= left + RANGE + 8192, "{n}: {} of {left}", scan.kept());
            }
            assert!(scan.kept() <= RANGE);
        }
    }
}

#[test]
fn nothing_is_read_ahead_twice_and_nothing_beyond_the_end() {
    let mut scan = Scan::new(4 << 20, |ring| ring);
    let Some(file) = scan.open() else { return };
    let size = scan.bytes.len();
    for (offset, len) in [(RANGE, RANGE), (RANGE, RANGE), (RANGE + 500, 100), (0, 3 * RANGE)] {
        file.will_need(offset as u64, len as u64);
    }
    // What is announced across a range that is there is read up to it, and then behind it.
    assert_eq!(scan.kept(), 2 * RANGE);
    file.will_need(0, 3 * RANGE as u64);
    assert_eq!(scan.kept(), 3 * RANGE);
    file.will_need(size as u64 - 10, u64::MAX);
    file.will_need(size as u64, 1);
    file.will_need(u64::MAX, u64::MAX);
    file.will_need(0, 0);
    // The last block is what is left of the file.
    let last = size % 4096;
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRanges)), (3 * RANGE + last, 4));
    scan.bench.turn();
    assert!(scan.asked() <= 3 * RANGE + 4096);
    assert_eq!(scan.read(&file, 0, 3 * RANGE) + scan.read(&file, size - 10, 10), 0);
    assert_eq!(scan.kept(), last);
    drop(file);
    // One announcement is for a bounded range, however long it is.
    let file = scan.open().unwrap();
    file.will_need(0, u64::MAX);
    assert_eq!(scan.kept(), 1 << 20);
}

/// ITER-12
#[test]
fn what_the_ring_does_not_read_whole_is_left_to_a_plain_read() {
    let answers = [
        Answer::Fail(libc::EIO),
        Answer::Fail(libc::ECANCELED),
        Answer::Fail(libc::EOPNOTSUPP),
        Answer::Bytes(0),
    ];
    for answer in answers {
        let mut scan = Scan::new(1 << 20, move |ring| ring.answering(move |_, _| answer));
        let Some(file) = scan.open() else { return };
        file.will_need(0, RANGE as u64);
        for _ in 0..4 {
            scan.bench.turn();
        }
        assert_eq!(scan.kept(), 0, "{answer:?}");
        assert_eq!(scan.read(&file, 0, RANGE), 1, "{answer:?}");
        assert_eq!(scan.count(Count::ReadAheadHits), 0);
    }
}

#[test]
fn what_finds_no_room_is_refused_until_what_is_kept_was_left_behind() {
    let mut scan = Scan::new(4 * RANGE, |ring| ring);
    let Some(file) = scan.open() else { return };
    let announce = |n: usize| file.will_need((n * RANGE) as u64, RANGE as u64);
    (0..5).for_each(announce);
    assert_eq!((scan.kept(), scan.count(Count::ReadAheadRefused)), (4 * RANGE, 1));
    // Neither what is on its way goes, nor what is read from.
    (0..100).for_each(|_| announce(4));
    scan.bench.turn();
    for n in 0..15 {
        assert_eq!(scan.read(&file, n * 4096, 4096), 0);
        (0..15).for_each(|_| announce(4));
        if n == 0 {
            let others = (1..4).map(|n| scan.read(&file, n * RANGE, 4096));
            assert_eq!(others.sum::<u64>(), 0);
        }
    }
    assert_eq!(scan.count(Count::ReadAheadRanges), 5, "one of the others was left behind");
    assert_eq!(scan.read(&file, 15 * 4096, 4096), 0, "all of the first is read");
    scan.bench.turn();
    let plain: Vec<u64> = (0..5).map(|n| scan.read(&file, n * RANGE, RANGE)).collect();
    assert_eq!(plain, [1, 1, 0, 0, 0]);
    assert_eq!(scan.kept(), 0);
}

#[test]
fn a_file_that_is_closed_leaves_nothing_kept() {
    let mut scan = Scan::new(1 << 20, |ring| ring);
    for turn_first in [false, true] {
        let Some(file) = scan.open() else { return };
        let other = scan.open().unwrap();
        file.will_need(0, RANGE as u64);
        other.will_need(0, RANGE as u64);
        if turn_first {
            scan.bench.turn();
        }
        drop(file);
        scan.bench.turn();
        assert_eq!(scan.kept(), RANGE);
        assert_eq!(scan.read(&other, 0, RANGE), 0, "that of the other is kept");
        assert_eq!(scan.kept(), 0);
    }
}

#[test]
fn a_reader_waits_neither_for_a_dead_reactor_nor_for_one_that_was_given_up() {
    let scan = Scan::new(1 << 20, |ring| ring.answering(|_, _| Answer::Never));
    let Some(file) = scan.open() else { return };
    let Scan { mut bench, ahead, bytes } = scan;
    file.will_need(0, RANGE as u64);
    bench.turn();
    bench.reactor.gave_up.store(true, Ordering::Release);
    let mut got = vec![0; 100];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes[..100]);
    assert_eq!(ahead.bytes().0, RANGE, "the kernel may still write there");
    bench.reactor.gave_up.store(false, Ordering::Release);
    file.will_need(RANGE as u64, RANGE as u64);
    bench.turn();
    drop(bench.machine);
    assert_eq!(ahead.bytes().0, 0);
    file.read_exact_at(&mut got, RANGE as u64).unwrap();
    assert!(got == bytes[RANGE..RANGE + 100]);
    assert_eq!(bench.stage.count(Count::ReadAheadHits), 0);
    // A reactor that takes nothing is sent for nothing.
    bench.reactor.life.alive.store(false, Ordering::Release);
    file.will_need(RANGE as u64, RANGE as u64);
    assert_eq!(ahead.bytes().0, 0);
}
