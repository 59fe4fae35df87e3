//! Writes in place through the queue: one submission, a result for each.

use super::*;
use crate::os_file::OsRwFile;
use crate::uring::scripted::Entered;
use crate::{Env, ErrorKind, MemEnv, Outcome, RandomRwFile};

const LEN: usize = 4096;

pub(super) fn open_rw(bench: &Bench) -> Arc<dyn RandomRwFile> {
    Arc::new(OsRwFile::open(&bench.os, &bench.path("rw"), false).unwrap())
}

pub(super) fn data(n: u64) -> Buffer {
    Buffer::from(&bytes(n * 7, LEN)[..])
}

/// Pushes `count` writes of a page each and pops all.
fn write_all(
    shared: &Arc<Shared>,
    file: &Arc<dyn RandomRwFile>,
    count: u64,
) -> Vec<Result<Buffer>> {
    let mut queue = RingQueue::new(shared);
    for n in 0..count {
        let request =
            Request::Write { file: Arc::clone(file), offset: n * LEN as u64, data: data(n) };
        queue.push(n, request);
    }
    pop_all(&mut queue, usize::try_from(count).unwrap())
}

/// Asserts that the write `n` succeeded, gave its bytes back, and is in the file.
fn assert_written(result: &Result<Buffer>, content: &[u8], n: usize) {
    let expected = bytes(n as u64 * 7, LEN);
    assert!(**result.as_ref().unwrap() == expected[..], "write {n}");
    assert!(content[n * LEN..(n + 1) * LEN] == expected, "write {n}");
}

#[test]
fn writes_go_out_in_one_submission_and_come_back_with_their_bytes() {
    let bench = Bench::new();
    let shared = bench.shared(1, ScriptedRing::reversed);
    let file = open_rw(&bench);
    let results = write_all(&shared, &file, 64);
    let content = std::fs::read(bench.path("rw")).unwrap();
    results.iter().enumerate().for_each(|(n, result)| assert_written(result, &content, n));
    assert_eq!(bench.seen.lock().enters, 1, "one submission");
    assert_eq!(bench.count(Count::RingWrites), 64);
    assert_eq!(bench.count(Count::SqesPerEnterPeak), 64);
    assert_eq!(bench.sys.calls(Call::Pwrite), 0);
    assert_eq!(file.size(), 64 * LEN as u64);
    file.sync().unwrap();
    assert_eq!(bench.sys.calls(Call::Fsync), 1, "the file grew");
}

/// URING-04, URING-18
#[test]
fn each_write_has_its_own_result_and_what_passes_is_written_again() {
    let bench = Bench::new();
    let shared = bench.shared(1, |ring| {
        ring.answering(|_, entry| match entry.offset / LEN as u64 {
            3 => Answer::Bytes(1000),
            5 => Answer::FailAfter(77, libc::ECANCELED),
            7 => Answer::Fail(libc::EIO),
            9 => Answer::Fail(libc::ENOSPC),
            11 => Answer::Bytes(0),
            _ => Answer::Whole,
        })
    });
    let file = open_rw(&bench);
    let results = write_all(&shared, &file, 20);
    let content = std::fs::read(bench.path("rw")).unwrap();
    for (n, result) in results.iter().enumerate() {
        match n {
            7 | 9 => {
                let error = result.as_ref().unwrap_err();
                let errno = if n == 7 { libc::EIO } else { libc::ENOSPC };
                let place = (n * LEN) as u64;
                assert_eq!((error.errno(), error.offset()), (Some(errno), Some(place)));
                assert_eq!((error.op(), error.path()), ("write", &*bench.path("rw")));
            }
            _ => assert_written(result, &content, n),
        }
    }
    assert_eq!(bench.count(Count::RetriedCanceled), 1);
    assert_eq!((bench.count(Count::ShortWrites), bench.count(Count::FallbackPwrites)), (2, 3));
}

/// URING-05, URING-06
#[test]
fn writes_outnumber_a_small_ring_and_outlive_one_that_refuses() {
    let bench = Bench::new();
    let shared = bench.shared_of(1, 4, |ring| ring.completing(1));
    let file = open_rw(&bench);
    let results = write_all(&shared, &file, 100);
    let content = std::fs::read(bench.path("rw")).unwrap();
    results.iter().enumerate().for_each(|(n, result)| assert_written(result, &content, n));
    assert_eq!((bench.count(Count::RingWrites), bench.seen.lock().in_flight_peak), (100, 4));

    let refusing = bench.shared(1, |ring| ring.entering(|_| Entered::Fail(libc::EAGAIN)));
    let results = write_all(&refusing, &file, 20);
    results.iter().enumerate().for_each(|(n, result)| assert_written(result, &content, n));
    assert_eq!(bench.count(Count::FallbackPwrites), 20);
}

/// URING-32
#[test]
fn writes_in_a_ring_that_breaks_fail_with_an_unknown_outcome() {
    // Of what is offered to a ring whose poll thread has died nobody knows whether it took it.
    for (breaks_at, errno) in [(1, libc::EBADR), (0, libc::EOWNERDEAD), (1, libc::EOWNERDEAD)] {
        let bench = Bench::new();
        let shared = bench.shared(1, move |ring| {
            ring.completing(0)
                .entering(move |n| if n == breaks_at { Entered::Fail(errno) } else { Entered::All })
        });
        let file = open_rw(&bench);
        for result in write_all(&shared, &file, 10) {
            let error = result.unwrap_err();
            assert_eq!((error.outcome(), error.kind()), (Outcome::MaybeApplied, ErrorKind::Other));
            assert!(error.to_string().contains("broke"), "{error}");
        }
        assert_eq!((bench.count(Count::RingRetired), bench.count(Count::FallbackPwrites)), (1, 0));
    }
}

/// URING-32
#[test]
fn writes_that_a_ring_never_took_before_it_broke_are_made_by_plain_calls() {
    for dropped in [false, true] {
        let bench = Bench::new();
        // Four are taken, and four are offered when it breaks.
        let shared = bench.shared_of(1, 8, |ring| {
            ring.completing(0).entering(|n| match n {
                0 => Entered::AtMost(4),
                _ => Entered::Fail(libc::EBADR),
            })
        });
        let file = open_rw(&bench);
        let mut queue = RingQueue::new(&shared);
        for n in 0..8 {
            let request =
                Request::Write { file: Arc::clone(&file), offset: n * LEN as u64, data: data(n) };
            queue.push(n, request);
        }
        if dropped {
            queue.pop().unwrap();
            drop(queue);
        } else {
            let results = pop_all(&mut queue, 8);
            let content = std::fs::read(bench.path("rw")).unwrap();
            for (n, result) in results.iter().enumerate() {
                match result {
                    Err(error) => {
                        assert_eq!((n < 4, error.outcome()), (true, Outcome::MaybeApplied));
                    }
                    Ok(_) => assert_written(result, &content, n),
                }
            }
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
        }
        let owed = bench.seen.lock().owed.clone();
        let offsets: Vec<u64> = owed.iter().map(|late| late.offset).collect();
        assert_eq!(offsets, [0, 1, 2, 3].map(|n| n * LEN as u64));
        assert_eq!(bench.count(Count::FallbackPwrites), 4);
    }
}

#[test]
fn long_empty_and_foreign_writes_are_made_on_the_calling_thread() {
    let bench = Bench::new();
    let shared = bench.shared(1, |ring| ring);
    let file = open_rw(&bench);
    let mut queue = RingQueue::new(&shared);
    let long = Buffer::zeroed((512 << 10) + 1);
    let len = long.len() as u64;
    queue.push(0, Request::Write { file: Arc::clone(&file), offset: 0, data: long });
    queue.push(1, Request::Write { file: Arc::clone(&file), offset: 9, data: Buffer::zeroed(0) });
    let foreign = MemEnv::new().open_rw("foreign".as_ref()).unwrap();
    queue.push(2, Request::Write { file: Arc::clone(&foreign), offset: 0, data: data(2) });
    assert!(pop_all(&mut queue, 3).iter().all(Result::is_ok));
    assert_eq!((file.size(), bench.count(Count::RingWrites)), (len, 0));
    let mut there = [0; LEN];
    foreign.read_exact_at(&mut there, 0).unwrap();
    assert!(there == *data(2));
}

#[test]
fn dropping_a_queue_waits_for_its_writes_and_drops_those_it_has_not_begun() {
    let bench = Bench::new();
    let shared = bench.shared_of(1, 8, |ring| ring.completing(1));
    let file = open_rw(&bench);
    let mut queue = RingQueue::new(&shared);
    for n in 0..20 {
        let request =
            Request::Write { file: Arc::clone(&file), offset: n * LEN as u64, data: data(n) };
        queue.push(n, request);
    }
    queue.pop().unwrap().result.unwrap();
    drop(queue);
    assert_eq!(bench.count(Count::RingWrites), bench.count(Count::RingCqes));
    assert_eq!(bench.count(Count::RingWrites), 8);
    assert_eq!(file.size(), 8 * LEN as u64);
    let next = write_all(&shared, &file, 3);
    assert!(next.iter().all(Result::is_ok));
    assert_eq!(bench.count(Count::RingRetired), 0);
}
