//! Reads that go to the ring as one entry: which do, and what each gets when that goes wrong.

use super::*;
use crate::ErrorKind;
use crate::uring::ring::{Entry, Work};
use crate::uring::scripted::{Entered, bytes_of};

const KIB: usize = 1024;

/// Queues that merge, over one ring.
fn merging(
    bench: &Bench,
    merging: Merging,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
) -> Arc<Shared> {
    merging_of(bench, 256, merging, make)
}

fn merging_of(
    bench: &Bench,
    entries: usize,
    merging: Merging,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
) -> Arc<Shared> {
    let mut shared = Arc::into_inner(bench.shared_of(1, entries, make)).unwrap();
    shared.merging = merging;
    Arc::new(shared)
}

const DEFAULT: Merging = Merging { gap: 0, limit: 128 * KIB };

/// An answer for runs, and another for reads that are alone.
fn for_runs(answer: Answer) -> impl FnMut(usize, &Entry) -> Answer + Send + 'static {
    move |_, entry| if entry.work == Work::ReadVectored { answer } else { Answer::Whole }
}

/// What the ring was given: offset and length of each entry.
fn entries(bench: &Bench) -> Vec<(u64, u32)> {
    std::mem::take(&mut bench.seen.lock().entries)
}

#[test]
fn neighbours_are_one_entry_and_each_has_a_buffer_of_its_own() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = merging(&bench, DEFAULT, |ring| ring);
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    let each = 16 * 4096;
    assert_eq!(entries(&bench), [0, 1, 2, 3].map(|n| (u64::from(n * each), each)));
    assert_eq!(bench.seen.lock().vectored, 4);
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::RingCqes)), (4, 4));
    assert_eq!((bench.count(Count::MergedReads), bench.count(Count::MergedWasteBytes)), (60, 0));
    assert_eq!(bench.count(Count::FallbackPreads), 0);
}

/// MGET-09
#[test]
fn blocks_that_do_not_fill_their_pages_are_neighbours_and_the_rest_is_wasted() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = merging(&bench, DEFAULT, |ring| ring);
    let blocks: Vec<(u64, usize)> = (0..16).map(|n| (n * 4096, 3900)).collect();
    assert_right(&read_all(&shared, &file, &blocks), &blocks);
    assert_eq!(entries(&bench), [(0, 15 * 4096 + 3900)]);
    assert_eq!(bench.count(Count::MergedWasteBytes), 15 * 196);
}

/// MGET-09
#[test]
fn gaps_up_to_the_option_are_read_over_and_longer_ones_are_not() {
    for (gap, count) in [(0, 16), (4095, 16), (4096, 1), (5000, 1)] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        OsFile::of(&*file).unwrap().device().pretend_chunk(512 * KIB);
        let shared = merging(&bench, Merging { gap, ..DEFAULT }, |ring| ring);
        let every_other: Vec<(u64, usize)> = (0..16).map(|n| (n * 8192, 4096)).collect();
        assert_right(&read_all(&shared, &file, &every_other), &every_other);
        assert_eq!(entries(&bench).len(), count, "gap {gap}");
        let wasted = if count == 1 { 15 * 4096 } else { 0 };
        assert_eq!(bench.count(Count::MergedWasteBytes), wasted);
    }
}

/// MGET-09
#[test]
fn no_entry_is_longer_than_the_limit_nor_than_the_device_takes() {
    for (limit, each) in [(4096, 4), (16 * KIB, 4), (20 * KIB, 5), (512 * KIB, 16)] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = merging(&bench, Merging { limit, ..DEFAULT }, |ring| ring);
        let pages = pages(16);
        assert_right(&read_all(&shared, &file, &pages), &pages);
        let lengths: Vec<usize> = entries(&bench).iter().map(|(_, len)| *len as usize).collect();
        let longest = *lengths.iter().max().unwrap();
        assert_eq!(longest, if limit == 4096 { 4096 } else { each * 4096 });
        assert_eq!(lengths.iter().sum::<usize>(), 16 * 4096);
    }
    let bench = Bench::new();
    let file = bench.latched("t", 2048 * KIB);
    let chunk = 256 * KIB;
    OsFile::of(&*file).unwrap().device().pretend_chunk(chunk);
    let shared = merging(&bench, Merging { limit: 4096 * KIB, ..DEFAULT }, |ring| ring);
    let long: Vec<(u64, usize)> = (0..16).map(|n| (n * 128 * KIB as u64, 128 * KIB)).collect();
    assert_right(&read_all(&shared, &file, &long), &long);
    let entries = entries(&bench);
    assert_eq!(entries.len(), 8);
    assert!(entries.iter().all(|(_, len)| *len as usize == chunk), "{entries:?}");
}

/// MGET-09
#[test]
fn what_reads_have_in_common_is_read_once_and_copied() {
    for direct in [false, true] {
        let bench = Bench::new();
        bench.latched("t", 64 * 4096);
        let file = bench.open("t", 64 * 4096, direct);
        OsFile::of(&*file).unwrap().read_nowait(
            Buffer::zeroed(4096).as_mut_slice(),
            0,
            &bench.os.counters,
        );
        let shared = merging(&bench, DEFAULT, |ring| ring);
        // Packed blocks, some of them twice, and one inside of another.
        let mut ranges: Vec<(u64, usize)> = (0..12).map(|n| (n * 4100, 4100)).collect();
        ranges.insert(5, ranges[4]);
        ranges.insert(6, (ranges[4].0 + 10, 100));
        ranges.insert(9, ranges[8]);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        let entries = entries(&bench);
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert!(entries[0].1 as usize <= (12 * 4100usize).next_multiple_of(4096));
        let copied = bench.count(Count::MergedCopyBytes);
        assert!(copied >= 2 * 4100 + 100, "{copied}");
        assert_eq!((bench.count(Count::RingReads), bench.count(Count::FallbackPreads)), (1, 0));
    }
}

#[test]
fn the_order_of_pushes_is_no_matter_and_parts_of_long_reads_are_not_merged() {
    let bench = Bench::new();
    let (one, two) = (bench.latched("one", 64 * 4096), bench.latched("two", 64 * 4096));
    let shared = merging(&bench, DEFAULT, |ring| ring);
    let mut queue = RingQueue::new(&shared);
    for page in 0..16 {
        queue.push(page, read(if page % 2 == 0 { &one } else { &two }, page / 2 * 4096, 4096));
    }
    for (page, result) in pop_all(&mut queue, 16).iter().enumerate() {
        assert_right(std::slice::from_ref(result), &[(page as u64 / 2 * 4096, 4096)]);
    }
    assert_eq!(entries(&bench), [(0, 8 * 4096); 2], "one for each file");
    let descending: Vec<(u64, usize)> = pages(16).into_iter().rev().collect();
    assert_right(&read_all(&shared, &one, &descending), &descending);
    assert_eq!(entries(&bench), [(0, 16 * 4096)]);
    let before = bench.count(Count::MergedReads);
    let long = bench.latched("long", 2048 * KIB);
    let ranges = [(0, 1024 * KIB + 4096), (1024 * KIB as u64 + 4096, 4096)];
    assert_right(&read_all(&shared, &long, &ranges), &ranges);
    assert_eq!(bench.count(Count::MergedReads), before);
}

/// URING-01
#[test]
fn a_run_that_comes_short_is_dealt_out_and_the_others_go_on_alone() {
    for step in [1, 4095, 4096, 4097, 20_000] {
        for got in (1..16 * 4096).step_by(1931) {
            let bench = Bench::new();
            let file = bench.latched("t", 64 * 4096);
            let shared = merging(&bench, DEFAULT, move |ring| {
                ring.answering(move |_, entry| {
                    let run = entry.work == Work::ReadVectored;
                    Answer::Bytes(if run { got } else { step.max(bytes_of(entry) / 3) })
                })
            });
            assert_right(&read_all(&shared, &file, &pages(16)), &pages(16));
            let seen = bench.seen.lock();
            assert_eq!((seen.vectored, seen.entries[0]), (1, (0, 16 * 4096)));
            let missing = 16 - got / 4096;
            if missing == 1 {
                // A single read is no matter for a ring.
                assert_eq!(seen.entries.len(), 1);
                continue;
            }
            assert!(seen.entries[1..].len() >= missing, "of {got} bytes, in steps of {step}");
            assert_eq!(seen.entries[1].0, got as u64, "goes on where the run ended");
            assert_eq!(bench.count(Count::FallbackPreads), 0);
        }
    }
}

/// URING-02, URING-03, URING-04, URING-17
#[test]
fn a_run_that_fails_in_passing_costs_plain_reads_and_no_result() {
    let answers = [
        (Answer::Bytes(0), Count::ShortReads),
        (Answer::Fail(libc::EINTR), Count::RetriedEintr),
        (Answer::Fail(libc::EAGAIN), Count::RetriedEagain),
        (Answer::Fail(libc::ECANCELED), Count::RetriedCanceled),
        (Answer::Fail(libc::EFAULT), Count::RetriedEfault),
        (Answer::Fail(libc::ENOMEM), Count::RetriedOther),
        (Answer::Over, Count::RingRetired),
    ];
    for (answer, count) in answers {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = merging(&bench, DEFAULT, move |ring| ring.answering(for_runs(answer)));
        assert_right(&read_all(&shared, &file, &pages(16)), &pages(16));
        assert_eq!(bench.count(Count::FallbackPreads), 16, "{answer:?}");
        assert!(bench.count(count) > 0, "{answer:?} is counted");
    }
}

/// URING-04
#[test]
fn a_run_that_fails_for_good_is_read_again_on_the_ring_one_by_one() {
    for errno in [libc::EIO, libc::ENODATA, libc::ETIMEDOUT, libc::ENXIO, libc::ESTALE] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared =
            merging(&bench, DEFAULT, move |ring| ring.answering(for_runs(Answer::Fail(errno))));
        assert_right(&read_all(&shared, &file, &pages(16)), &pages(16));
        assert_eq!((entries(&bench).len(), bench.count(Count::FallbackPreads)), (17, 0), "{errno}");
    }
}

/// URING-04
#[test]
fn of_a_run_with_an_unreadable_page_only_that_page_is_read_by_a_plain_call() {
    const BAD: u64 = 5 * 4096;
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let bad = bench.sys.rule(Call::Pread, "t", When::Nth(0), Fault::Errno(libc::EIO));
    let shared = merging(&bench, DEFAULT, |ring| {
        ring.answering(|_, entry| {
            let hit = (entry.offset..entry.offset + bytes_of(entry) as u64).contains(&BAD);
            if hit { Answer::Fail(libc::EIO) } else { Answer::Whole }
        })
    });
    let results = read_all(&shared, &file, &pages(16));
    let error = results[5].as_ref().unwrap_err();
    assert_eq!((error.errno(), error.offset()), (Some(libc::EIO), Some(BAD)));
    assert_right(&results[..5], &pages(16)[..5]);
    assert_right(&results[6..], &pages(16)[6..]);
    let plain = (bad.fired(), bench.sys.calls(Call::Pread), bench.count(Count::FallbackPreads));
    assert_eq!(plain, (1, 1, 1), "one block is bad, and it alone is asked about again");
    let entries = entries(&bench);
    assert_eq!(entries.len(), 1 + 16);
    assert!(entries[1..].iter().all(|(_, len)| *len == 4096));
    let continues = |pair: &[(u64, u32)]| pair[0].0 + 4096 == pair[1].0;
    assert!(!entries[1..].windows(2).any(continues), "no two would be joined: {entries:?}");
}

/// URING-04: wherever in a run the bad page lies, and in whatever order its reads were pushed.
#[test]
fn of_a_failed_run_of_any_length_every_read_has_its_own_result() {
    // What the ring says of the run, whether a lone read of the bad page is read once more by a
    // plain call, and whether it is then good.
    let kinds = [(libc::EIO, true), (libc::ENODATA, true), (libc::ESTALE, false)];
    let shapes = (2..=4_usize).flat_map(|parts| (0..parts).map(move |bad| (parts, bad)));
    for ((parts, bad), (errno, plain)) in shapes.flat_map(|shape| kinds.map(|kind| (shape, kind))) {
        for (backwards, short) in [(false, 0), (true, 0), (false, 4096), (true, 4096)] {
            let what = format!("{bad} of {parts}, {errno}, {backwards}, {short}");
            let bench = Bench::new();
            let file = bench.latched("t", 64 * 4096);
            let preads = bench.sys.rule(Call::Pread, "t", When::Nth(0), Fault::Errno(errno));
            let at = 4096 * (10 + bad as u64);
            let shared = merging(&bench, DEFAULT, move |ring| {
                let ring = if backwards { ring.reversed() } else { ring };
                ring.answering(move |_, entry| {
                    let hit = (entry.offset..entry.offset + bytes_of(entry) as u64).contains(&at);
                    if hit { Answer::FailAfter(short, errno) } else { Answer::Whole }
                })
            });
            let mut ranges: Vec<_> = pages(64)[10..10 + parts].to_vec();
            if backwards {
                ranges.reverse();
            }
            let results = read_all(&shared, &file, &ranges);
            for (result, range) in results.iter().zip(&ranges) {
                match result {
                    Err(error) => {
                        assert_eq!((error.errno(), error.offset()), (Some(errno), Some(at)));
                        assert_eq!(range.0, at, "{what}: a good read failed");
                    }
                    Ok(data) => {
                        assert!(range.0 != at, "{what}: the bad page was read");
                        assert!(**data == bytes(range.0, range.1)[..], "{what}: wrong bytes");
                    }
                }
            }
            let told = (preads.fired(), bench.sys.calls(Call::Pread));
            let plain = u64::from(plain);
            assert_eq!(
                (told, bench.count(Count::FallbackPreads)),
                ((plain, plain), plain),
                "{what}"
            );
            let mut given = entries(&bench);
            assert_eq!(given.remove(0), (10 * 4096, u32::try_from(parts * 4096).unwrap()));
            given.sort_unstable();
            let alone: Vec<_> = (10..10 + parts as u64).map(|page| (page * 4096, 4096)).collect();
            assert_eq!(given, alone, "{what}: each is read once more, alone");
        }
    }
}

/// URING-04: a scheduler may join the single entries all the same.
#[test]
fn of_a_run_whose_reads_all_fail_alone_too_plain_reads_decide() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    // The sixth of the plain reads: pages 0, 2, 4 and so on come first.
    bench.sys.rule(Call::Pread, "t", When::Nth(5), Fault::Errno(libc::EIO));
    let shared = merging(&bench, DEFAULT, |ring| ring.answering(|_, _| Answer::Fail(libc::EIO)));
    let results = read_all(&shared, &file, &pages(16));
    let error = results[10].as_ref().unwrap_err();
    assert_eq!((error.errno(), error.offset()), (Some(libc::EIO), Some(10 * 4096)));
    assert_right(&results[..10], &pages(16)[..10]);
    assert_right(&results[11..], &pages(16)[11..]);
}

#[test]
fn a_file_that_refuses_runs_is_read_through_the_ring_one_by_one_from_then_on() {
    let bench = Bench::new();
    let (refusing, other) = (bench.latched("t", 64 * 4096), bench.latched("other", 64 * 4096));
    let refuse = Arc::new(Mutex::new(true));
    let refuses = Arc::clone(&refuse);
    let shared = merging(&bench, DEFAULT, move |ring| {
        let refuses = Arc::clone(&refuses);
        ring.answering(move |_, entry| {
            let run = entry.work == Work::ReadVectored && *refuses.lock();
            if run { Answer::Fail(libc::EINVAL) } else { Answer::Whole }
        })
    });
    assert_right(&read_all(&shared, &refusing, &pages(16)), &pages(16));
    *refuse.lock() = false;
    assert_eq!((entries(&bench).len(), bench.count(Count::FallbackPreads)), (17, 0));
    assert_eq!(bench.count(Count::MergeRefused), 1);
    assert_right(&read_all(&shared, &refusing, &pages(16)), &pages(16));
    assert_eq!(entries(&bench).len(), 16);
    assert_right(&read_all(&shared, &other, &pages(16)), &pages(16));
    assert_eq!(entries(&bench).len(), 1, "another file is another matter");
}

/// URING-05, URING-07, URING-32, URING-33
#[test]
fn runs_survive_rings_that_refuse_lose_repeat_and_break() {
    type Make = fn(ScriptedRing) -> ScriptedRing;
    let rings: [(&str, Make); 7] = [
        ("refuses for ever", |ring| ring.entering(|_| Entered::Fail(libc::EAGAIN))),
        ("takes nothing", |ring| ring.entering(|_| Entered::AtMost(0))),
        ("takes one at a time", |ring| ring.entering(|_| Entered::AtMost(1))),
        ("breaks", |ring| ring.completing(0).entering(|_| Entered::Fail(libc::EBADR))),
        ("loses one", |ring| {
            ring.answering(|nth, _| if nth == 1 { Answer::Lost } else { Answer::Whole })
                .entering(|nth| if nth >= 3 { Entered::Fail(libc::EBADR) } else { Entered::All })
        }),
        ("repeats one", |ring| {
            ring.answering(|nth, _| if nth == 1 { Answer::Twice } else { Answer::Whole })
        }),
        ("knows another", |ring| {
            ring.answering(|nth, _| if nth == 1 { Answer::StaleFirst } else { Answer::Whole })
        }),
    ];
    for (name, make) in rings {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = merging(&bench, Merging { gap: 0, limit: 16 * KIB }, make);
        let blocks: Vec<(u64, usize)> = (0..60).map(|n| (n * 4096, 3000)).collect();
        assert_right(&read_all(&shared, &file, &blocks), &blocks);
        assert!(bench.seen.lock().vectored > 0, "{name}");
    }
}

/// URING-09, URING-11, URING-12
#[test]
fn a_queue_with_runs_in_flight_can_be_dropped_and_forgotten() {
    for forget in [false, true] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let limit = Merging { gap: 0, limit: 16 * KIB };
        let shared = merging(&bench, limit, |ring| ring.completing(1));
        let mut queue = RingQueue::new(&shared);
        for tag in 0..32 {
            queue.push(tag, read(&file, tag * 4096, 3000));
        }
        queue.pop().unwrap().result.unwrap();
        assert!(queue.lane.in_flight() > 1);
        if forget {
            std::mem::forget(queue);
        } else {
            drop(queue);
        }
        let done = bench.count(Count::RingReads) == bench.count(Count::RingCqes);
        assert_eq!(done, !forget);
        assert_right(&read_all(&shared, &file, &pages(16)), &pages(16));
        assert_eq!(bench.count(Count::RingStale), 0);
    }
}

/// Numbers that look random, the same for one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Ranges that touch, overlap, repeat, leave gaps, and now and then end behind the file.
    fn ranges(&mut self, size: u64) -> Vec<(u64, usize)> {
        let mut ranges: Vec<(u64, usize)> = Vec::new();
        for _ in 0..=self.below(90) {
            let len = match self.below(4) {
                0 => self.below(4200),
                1 => 4096,
                2 => 3000 + self.below(1200),
                _ => self.below(20_000),
            };
            let (last, last_len) = ranges.last().copied().unwrap_or_default();
            let end = last + last_len as u64;
            let start = match self.below(9) {
                0..3 => end,
                3 => end.next_multiple_of(4096),
                4 => end + self.below(9000),
                5 => last + self.below(last_len as u64 + 1),
                6 => last,
                7 => size.saturating_sub(self.below(9000)),
                _ => self.below(size),
            };
            ranges.push((start, usize::try_from(len).unwrap()));
        }
        ranges
    }

    fn answer(&mut self, entry: &Entry) -> Answer {
        let short = usize::try_from(self.below(bytes_of(entry) as u64 + 1)).unwrap();
        let passing = [libc::EINTR, libc::EAGAIN, libc::ENOMEM, libc::ECANCELED, libc::EFAULT];
        let run = entry.work == Work::ReadVectored;
        match self.below(if run { 12 } else { 20 }) {
            0 | 1 => Answer::Bytes(short),
            2 => Answer::Fail(passing[usize::try_from(self.below(5)).unwrap()]),
            3 => Answer::FailAfter(short, libc::EINTR),
            4 if run => Answer::Fail(libc::EIO),
            5 if run => Answer::FailAfter(short, libc::ENODATA),
            6 if run && self.below(20) == 0 => Answer::Fail(libc::EINVAL),
            7 if run && self.below(10) == 0 => Answer::Over,
            _ => Answer::Whole,
        }
    }
}

/// MGET-09
///
/// Whatever a ring does with runs, every read has the result of a plain read of its range.
#[test]
fn any_ranges_through_any_ring_are_as_read_one_by_one() {
    let mut merged = 0;
    for seed in 0..240 {
        let mut dice = Dice(seed);
        let bench = Bench::new();
        let size = 100_000 + dice.below(100_000);
        let len = usize::try_from(size).unwrap();
        let direct = seed % 2 == 1;
        let plain = bench.open("t", len, false);
        let file = bench.open("t", len, direct);
        let rule = Merging {
            gap: usize::try_from(dice.below(3) * 4096).unwrap(),
            limit: usize::try_from(4096 + dice.below(40) * 4096).unwrap(),
        };
        let (small, calm) = (dice.below(2) == 0, dice.below(3) == 0);
        let shared = merging_of(&bench, if small { 4 } else { 64 }, rule, move |ring| {
            let mut script = Dice(seed + 1000);
            let ring = if small { ring.reversed().completing(2) } else { ring };
            ring.answering(move |_, entry| if calm { Answer::Whole } else { script.answer(entry) })
        });
        let ranges = dice.ranges(size);
        let results = read_all(&shared, &file, &ranges);
        for (result, (offset, len)) in results.iter().zip(&ranges) {
            let mut expected = vec![0; *len];
            match (plain.read_exact_at(&mut expected, *offset), result) {
                (Ok(()), Ok(got)) => assert!(**got == expected[..], "seed {seed}, at {offset}"),
                (Err(expected), Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                    assert_eq!(error.to_string(), expected.to_string(), "seed {seed}");
                }
                (expected, got) => panic!("seed {seed}, at {offset}: {expected:?} and {got:?}"),
            }
        }
        merged += bench.count(Count::MergedReads);
    }
    assert!(merged > 1000, "{merged}");
}
