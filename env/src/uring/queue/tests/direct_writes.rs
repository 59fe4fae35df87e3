//! Writes in place past the page cache, through the queue of an environment with default options.

use super::*;
use crate::os_file::OsRwFile;
use crate::{ErrorKind, Outcome, RandomRwFile};

const LEN: usize = 4096;

/// A direct file of `pages` zeros that asks for whole pages; `None` where there is no direct I/O.
fn open_rw(bench: &Bench, pages: usize) -> Option<Arc<dyn RandomRwFile>> {
    bench.sys.rule(Call::StatFd, "rw", When::Always, Fault::Aligned(512, 4096));
    match OsRwFile::open(&bench.os, &bench.path("rw"), true) {
        Ok(file) => {
            file.set_size((pages * LEN) as u64).unwrap();
            Some(Arc::new(file))
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            None
        }
    }
}

fn data(n: usize, len: usize) -> Buffer {
    Buffer::from(&bytes(n as u64 * 7, len)[..])
}

fn write(file: &Arc<dyn RandomRwFile>, offset: usize, data: Buffer) -> Request {
    Request::Write { file: Arc::clone(file), offset: offset as u64, data }
}

/// Pushes a write of each page and pops all.
fn write_pages(
    shared: &Arc<Shared>,
    file: &Arc<dyn RandomRwFile>,
    pages: usize,
) -> Vec<Result<Buffer>> {
    let mut queue = RingQueue::new(shared);
    for n in 0..pages {
        queue.push(n as u64, write(file, n * LEN, data(n, LEN)));
    }
    pop_all(&mut queue, pages)
}

fn content(bench: &Bench) -> Vec<u8> {
    std::fs::read(bench.path("rw")).unwrap()
}

#[test]
fn direct_writes_are_one_submission_by_default_and_buffered_ones_are_plain() {
    for (path, direct) in
        [(WritePath::Auto, true), (WritePath::Auto, false), (WritePath::Caller, true)]
    {
        let bench = Bench::new();
        let shared = bench.shared_by(path, 1, 256, |ring| ring);
        let Some(file) = open_rw(&bench, 64) else { return };
        let buffered = OsRwFile::open(&bench.os, &bench.path("rw"), false).unwrap();
        let file = if direct { file } else { Arc::new(buffered) };
        let results = write_pages(&shared, &file, 64);
        let there = content(&bench);
        for (n, result) in results.iter().enumerate() {
            assert!(**result.as_ref().unwrap() == *data(n, LEN), "given back: {n}");
            assert!(there[n * LEN..(n + 1) * LEN] == *data(n, LEN), "in the file: {n}");
        }
        let on_ring = [Count::RingWrites, Count::SqesPerEnterPeak, Count::InFlightPeak];
        let on_ring = on_ring.map(|count| bench.count(count));
        let enters = bench.seen.lock().enters;
        let plain = bench.sys.calls(Call::Pwrite);
        if path == WritePath::Auto && direct {
            assert_eq!((on_ring, enters, plain), ([64; 3], 1, 0));
        } else {
            assert_eq!((on_ring, enters, plain), ([0; 3], 0, 64), "{path:?} {direct}");
        }
    }
}

/// A hundred writes are one submission too, and a thousand keep the device as busy as that; reads
/// keep to their own window.
#[test]
fn writes_have_a_window_of_their_own() {
    for (writes, at_once) in [(100, 100), (1000, super::super::WRITE_WINDOW)] {
        let bench = Bench::new();
        let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| ring.completing(16));
        let Some(file) = open_rw(&bench, writes) else { return };
        let results = write_pages(&shared, &file, writes);
        assert!(results.iter().all(Result::is_ok));
        let there = content(&bench);
        assert!((0..writes).all(|n| there[n * LEN..(n + 1) * LEN] == *data(n, LEN)));
        assert_eq!(bench.seen.lock().in_flight_peak, at_once);
        assert_eq!(bench.count(Count::SqesPerEnterPeak), at_once as u64);
        let most_enters = writes.div_ceil(16) + 4;
        let enters = bench.seen.lock().enters;
        assert!(enters <= most_enters, "{enters} for {writes} writes");
        let reads = bench.latched("t", 100 * LEN);
        let ranges = pages(100);
        bench.seen.lock().in_flight_peak = 0;
        assert_right(&read_all(&shared, &reads, &ranges), &ranges);
        assert!(bench.seen.lock().in_flight_peak <= 64);
    }
}

/// ENV-20, URING-04
#[test]
fn a_misaligned_write_fails_alone_and_never_reaches_the_ring() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| ring);
    let Some(file) = open_rw(&bench, 8) else { return };
    let mut queue = RingQueue::new(&shared);
    queue.push(0, write(&file, 0, data(0, LEN)));
    queue.push(1, write(&file, LEN + 8, data(1, LEN)));
    queue.push(2, write(&file, LEN, data(2, LEN + 8)));
    queue.push(3, write(&file, LEN, data(3, 2 * LEN + 8).narrowed(8, 2 * LEN)));
    queue.push(4, write(&file, LEN, data(4, LEN)));
    queue.push(5, write(&file, 0, data(5, 0)));
    for (n, result) in pop_all(&mut queue, 6).into_iter().enumerate() {
        match (n, result) {
            (0 | 4 | 5, result) => drop(result.unwrap()),
            (_, result) => {
                let error = result.unwrap_err();
                let told = (error.kind(), error.outcome(), error.op());
                assert_eq!(told, (ErrorKind::Misaligned, Outcome::NotApplied, "write"), "{n}");
                assert_eq!(error.path(), bench.path("rw"));
            }
        }
    }
    assert_eq!(bench.seen.lock().entries, [(0, 4096), (4096, 4096)]);
    assert_eq!(bench.sys.calls(Call::Pwrite), 0);
    let mut expected = vec![0; 8 * LEN];
    expected[..LEN].copy_from_slice(&data(0, LEN));
    expected[LEN..2 * LEN].copy_from_slice(&data(4, LEN));
    assert!(content(&bench) == expected);
}

/// ENV-15: the block layer fails all writes that it joined for the sake of one.
#[test]
fn a_bad_block_fails_the_write_to_it_and_none_of_those_that_were_with_it() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| {
        ring.answering(|_, entry| match entry.offset / LEN as u64 {
            6..10 => Answer::Fail(libc::EIO),
            _ => Answer::Whole,
        })
    });
    let Some(file) = open_rw(&bench, 32) else { return };
    let bad = bench.sys.rule(Call::Pwrite, "rw", When::Nth(1), Fault::Errno(libc::EIO));
    let results = write_pages(&shared, &file, 32);
    let there = content(&bench);
    for (n, result) in results.iter().enumerate() {
        if n == 7 {
            let error = result.as_ref().unwrap_err();
            let told = (error.errno(), error.offset(), error.outcome());
            let place = (n * LEN) as u64;
            assert_eq!(told, (Some(libc::EIO), Some(place), Outcome::MaybeApplied));
        } else {
            assert!(**result.as_ref().unwrap() == *data(n, LEN), "given back: {n}");
            assert!(there[n * LEN..(n + 1) * LEN] == *data(n, LEN), "in the file: {n}");
        }
    }
    assert_eq!((bad.fired(), bench.count(Count::FallbackPwrites)), (1, 4));
    assert_eq!(bench.seen.lock().enters, 1);
}

/// URING-18
#[test]
fn a_short_direct_write_on_a_ring_goes_on_at_a_whole_block() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| {
        ring.answering(|nth, _| match nth {
            0 => Answer::Bytes(LEN + 512),
            1 => Answer::Bytes(512),
            _ => Answer::Whole,
        })
    });
    let Some(file) = open_rw(&bench, 12) else { return };
    bench.sys.take_transfers();
    let mut queue = RingQueue::new(&shared);
    for n in 0..3 {
        queue.push(n as u64, write(&file, n * 4 * LEN, data(n, 4 * LEN)));
    }
    for (n, result) in pop_all(&mut queue, 3).into_iter().enumerate() {
        assert!(*result.unwrap() == *data(n, 4 * LEN));
        assert!(content(&bench)[n * 4 * LEN..][..4 * LEN] == *data(n, 4 * LEN), "{n}");
    }
    let at = LEN as u64;
    let expected = [(Call::Pwrite, at, 3 * LEN), (Call::Pwrite, 4 * at, 4 * LEN)];
    assert_eq!(bench.sys.take_transfers(), expected);
    assert_eq!((bench.count(Count::ShortWrites), bench.count(Count::RingWrites)), (2, 3));
}

/// A kernel that finds a write misaligned all the same is asked by a plain call, whose refusal is
/// put in words.
#[test]
fn a_write_that_the_ring_calls_invalid_has_an_error_that_says_more() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| {
        ring.answering(|_, _| Answer::Fail(libc::EINVAL))
    });
    let Some(file) = open_rw(&bench, 4) else { return };
    bench.sys.rule(Call::Pwrite, "rw", When::Nth(1), Fault::Errno(libc::EINVAL));
    for (n, result) in write_pages(&shared, &file, 4).into_iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(n, 1),
            Err(error) => {
                assert_eq!((n, error.kind()), (1, ErrorKind::Unsupported));
                assert!(error.to_string().contains("refused a direct write"), "{error}");
            }
        }
    }
}

#[test]
fn writes_are_submitted_before_reads_are_waited_for() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 2, 256, |ring| ring.completing(4));
    let Some(file) = open_rw(&bench, 32) else { return };
    let reads = bench.latched("t", 32 * LEN);
    let mut queue = RingQueue::new(&shared);
    for n in 0..15 {
        queue.push(n as u64, read(&reads, (n * LEN) as u64, LEN));
        queue.push(15 + n as u64, write(&file, n * LEN, data(n, LEN)));
    }
    queue.pop().unwrap().result.unwrap();
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::RingWrites)), (15, 15));
    let mut rest = 0;
    while let Some(completion) = queue.pop() {
        completion.result.unwrap();
        rest += 1;
    }
    assert_eq!(rest, 29);
    assert!((0..15).all(|n| content(&bench)[n * LEN..(n + 1) * LEN] == *data(n, LEN)));
}

/// Whichever is pushed first, neither kind takes the other's room.
#[test]
fn reads_and_writes_of_one_queue_are_each_as_deep_as_they_may_be() {
    for (writes, reads, writes_first) in
        [(128, 16, true), (128, 16, false), (300, 200, true), (300, 200, false)]
    {
        let bench = Bench::new();
        let shared = bench.shared_by(WritePath::Auto, 2, 256, |ring| ring.completing(1));
        let Some(file) = open_rw(&bench, writes) else { return };
        let source = bench.latched("t", reads * LEN);
        let mut queue = RingQueue::new(&shared);
        for n in 0..reads + writes {
            // Of whichever kind is pushed first, and then of the other.
            let first = if writes_first { writes } else { reads };
            let place = if n < first { n } else { n - first };
            let request = if (n < first) == writes_first {
                write(&file, place * LEN, data(place, LEN))
            } else {
                read(&source, (place * LEN) as u64, LEN)
            };
            queue.push(n as u64, request);
        }
        let most = 64 + queue.ready_reads;
        assert_eq!((queue.reads.held, queue.puts.held), (reads.min(most), 128));
        let (mut popped, mut deepest) = (0, queue.lane.in_flight());
        while let Some(completion) = queue.pop() {
            completion.result.unwrap();
            assert!(queue.reads.held <= 64 + READY_ASIDE && queue.puts.held <= 128);
            deepest = deepest.max(queue.lane.in_flight());
            popped += 1;
        }
        assert!(deepest + 4 >= reads.min(64), "{deepest} reads at once");
        let at_once = [Count::SqesPerEnterPeak, Count::InFlightPeak].map(|c| bench.count(c));
        assert_eq!(at_once, [128, 128], "writes");
        assert_eq!(popped, reads + writes);
        assert!((0..writes).all(|n| content(&bench)[n * LEN..(n + 1) * LEN] == *data(n, LEN)));
        let plain = [Count::FallbackPreads, Count::FallbackPwrites].map(|c| bench.count(c));
        assert_eq!(plain, [0, 0]);
    }
}

/// A queue of 20 reads and 64 writes; the writes were pushed first.
fn mixed(bench: &Bench, shared: &Arc<Shared>, file: &Arc<dyn RandomRwFile>) -> RingQueue {
    let source = bench.latched("t", 20 * LEN);
    let mut queue = RingQueue::new(shared);
    for n in 0..64 {
        queue.push(100 + n as u64, write(file, n * LEN, data(n, LEN)));
    }
    for n in 0..20 {
        queue.push(n as u64, read(&source, (n * LEN) as u64, LEN));
    }
    queue
}

/// Pops what is left, and gives the tags in their order.
fn tags(queue: &mut RingQueue) -> Vec<u64> {
    let mut tags = Vec::new();
    while let Some(completion) = queue.pop() {
        completion.result.unwrap();
        tags.push(completion.tag);
    }
    tags
}

#[test]
fn one_ring_serves_the_reads_of_a_queue_and_then_its_writes() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| ring);
    let Some(file) = open_rw(&bench, 64) else { return };
    let tags = tags(&mut mixed(&bench, &shared, &file));
    assert!(tags[..20].iter().all(|tag| *tag < 20) && tags.len() == 84, "{tags:?}");
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::RingWrites)), (20, 64));
    let plain = [Count::FallbackPreads, Count::FallbackPwrites].map(|c| bench.count(c));
    assert_eq!((plain, bench.seen.lock().enters), ([0, 0], 3));
    assert!((0..64).all(|n| content(&bench)[n * LEN..(n + 1) * LEN] == *data(n, LEN)));
}

/// Reads that are long on their way hold nobody up: the thread writes where it would else wait.
#[test]
fn while_reads_have_the_only_ring_writes_are_made_one_at_a_time() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| {
        let asked = std::cell::Cell::new(0);
        ring.while_open(move || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        })
    });
    let Some(file) = open_rw(&bench, 64) else { return };
    let mut queue = mixed(&bench, &shared, &file);
    for written in 1..=3 {
        assert!(queue.pop().unwrap().tag >= 100);
        assert_eq!(bench.count(Count::RingReads), 20, "all of them went first");
        assert_eq!(bench.count(Count::FallbackPwrites), written);
    }
    assert_eq!(tags(&mut queue).len(), 81);
    assert_eq!(bench.count(Count::FallbackPreads), 0);
}

#[test]
fn without_a_ring_the_reads_of_a_queue_come_before_its_writes() {
    let bench = Bench::new();
    let shared = bench.shared_by(WritePath::Auto, 1, 256, |ring| ring);
    let Some(file) = open_rw(&bench, 64) else { return };
    let taken = shared.pool.take().unwrap();
    let tags = tags(&mut mixed(&bench, &shared, &file));
    assert!(tags[..20].iter().all(|tag| *tag < 20) && tags.len() == 84, "{tags:?}");
    let plain = [Count::FallbackPreads, Count::FallbackPwrites].map(|c| bench.count(c));
    assert_eq!(plain, [20, 64]);
    shared.pool.give_back(taken);
}
