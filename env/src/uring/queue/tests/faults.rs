//! Completions and submissions that go wrong.

use std::slice;

use super::*;
use crate::os_file::OsRwFile;
use crate::uring::scripted::Entered;
use crate::{ErrorKind, RandomRwFile};

const BLOCK: usize = 16 * 1024;

/// Four blocks: enough outstanding for the ring to be used.
fn blocks() -> Vec<(u64, usize)> {
    (0..4).map(|block| (block * BLOCK as u64, BLOCK)).collect()
}

/// URING-01
#[test]
fn a_short_completion_is_continued_where_it_ended_for_every_length() {
    let bench = Bench::new();
    let file = bench.latched("t", 4 * BLOCK);
    let length = Arc::new(Mutex::new(1));
    let asked = Arc::clone(&length);
    let shared = bench.shared(1, move |ring| {
        let length = Arc::clone(&asked);
        // The first answer to each block is short, the one to its remainder whole.
        ring.answering(move |_, entry| {
            if entry.len as usize == BLOCK { Answer::Bytes(*length.lock()) } else { Answer::Whole }
        })
    });
    for n in 1..BLOCK {
        *length.lock() = n;
        bench.seen.lock().entries.clear();
        let results = read_all(&shared, &file, &blocks());
        if n % 97 == 1 {
            assert_right(&results, &blocks());
        }
        let seen = bench.seen.lock();
        assert_eq!(seen.entries.len(), 8);
        for (offset, len) in &seen.entries[4..] {
            assert_eq!(*len as usize, BLOCK - n);
            assert_eq!(offset % BLOCK as u64, n as u64);
        }
    }
}

/// URING-01
#[test]
fn a_remainder_in_many_pieces_is_put_together_right() {
    let bench = Bench::new();
    let file = bench.latched("t", 4 * BLOCK);
    for step in [1021, 4096, 5000] {
        let shared = bench.shared(1, move |ring| ring.answering(move |_, _| Answer::Bytes(step)));
        assert_right(&read_all(&shared, &file, &blocks()), &blocks());
    }
    assert_eq!(bench.count(Count::FallbackPreads), 0);
}

/// URING-01
#[test]
fn direct_reads_continue_at_an_aligned_offset() {
    let bench = Bench::new();
    let len = 4 * BLOCK - 100;
    std::fs::write(bench.path("t"), bytes(0, len)).unwrap();
    let Ok(file) = OsFile::open(&bench.os, &bench.path("t"), Access::Random, true) else {
        panic!("the directory for temporary files must allow direct reads");
    };
    let file: Arc<dyn RandomAccessFile> = Arc::new(file);
    let ranges = [(0, BLOCK), (4099, 9000), (20_000, 1), (len as u64 - 5, 5)];
    let mut continued = 0;
    for n in (1..BLOCK).step_by(777) {
        let shared = bench.shared(1, move |ring| {
            ring.answering(move |nth, _| if nth < 4 { Answer::Bytes(n) } else { Answer::Whole })
        });
        bench.seen.lock().entries.clear();
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        let entries = &bench.seen.lock().entries;
        // The first read of a file is a look, and may be all that it takes.
        assert!(entries.len() >= 3, "of {n} bytes: {entries:?}");
        continued += usize::from(entries.len() > 4);
        for (offset, len) in entries {
            assert_eq!((offset % 512, len % 512), (0, 0));
        }
    }
    assert!(continued > 0, "no read was continued");
}

/// URING-02
#[test]
fn zero_bytes_in_mid_file_are_read_again_and_never_the_end() {
    let bench = Bench::new();
    let file = bench.latched("t", 4 * BLOCK);
    let always = bench.shared(1, |ring| ring.answering(|_, _| Answer::Bytes(0)));
    assert_right(&read_all(&always, &file, &blocks()), &blocks());
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::FallbackPreads)), (4, 4));
    // After partial progress.
    let later = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth < 4 { Answer::Bytes(5000) } else { Answer::Bytes(0) })
    });
    assert_right(&read_all(&later, &file, &blocks()), &blocks());
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::FallbackPreads)), (12, 8));
}

/// URING-02
#[test]
fn the_true_end_is_an_error_of_its_own_kind() {
    let bench = Bench::new();
    let file = bench.latched("t", 4 * BLOCK);
    let shared = bench.shared(1, |ring| ring);
    let past = [(3 * BLOCK as u64, BLOCK + 1), (1 << 40, 1), (0, usize::MAX), (u64::MAX, 0)];
    let results = read_all(&shared, &file, &past);
    for result in &results[..3] {
        assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    assert_eq!(results[3].as_ref().unwrap().len(), 0);
    // A file cut short under its reader.
    std::fs::OpenOptions::new()
        .write(true)
        .open(bench.path("t"))
        .and_then(|file| file.set_len(BLOCK as u64))
        .unwrap();
    let results = read_all(&shared, &file, &blocks());
    assert!(results[0].is_ok());
    for result in &results[1..] {
        assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

/// URING-03, URING-17
#[test]
fn passing_failures_are_answered_by_a_plain_read_and_counted_by_errno() {
    let errnos = [
        (libc::EINTR, Count::RetriedEintr),
        (libc::EAGAIN, Count::RetriedEagain),
        (libc::ECANCELED, Count::RetriedCanceled),
        (libc::EFAULT, Count::RetriedEfault),
        (libc::ENOMEM, Count::RetriedOther),
    ];
    for (errno, count) in errnos {
        for which in ["first", "last", "every", "endless"] {
            let bench = Bench::new();
            let file = bench.latched("t", 64 * 4096);
            let fails = move |nth: usize| match which {
                "first" => nth == 0,
                "last" => nth == 63,
                "every" => nth < 64,
                _ => true,
            };
            let shared = bench.shared(1, move |ring| {
                ring.answering(
                    move |nth, _| {
                        if fails(nth) { Answer::Fail(errno) } else { Answer::Whole }
                    },
                )
            });
            let ranges = pages(64);
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
            let failed = (0..64).filter(|nth| fails(*nth)).count() as u64;
            // Once the breaker is open, the remaining reads keep off the ring.
            let given = bench.count(Count::RingReads);
            assert!(given >= 16, "{errno} {which}: {given} on the ring");
            assert!(bench.count(count) == failed.min(given), "{errno} {which}");
            assert_eq!(bench.count(Count::FallbackPreads), bench.count(count) + 64 - given);
        }
    }
}

#[test]
fn the_breaker_keeps_reads_off_the_ring_until_it_is_worked_off() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth < 3 { Answer::Fail(libc::ECANCELED) } else { Answer::Whole })
    });
    assert_right(&read_all(&shared, &file, &pages(16)), &pages(16));
    assert_eq!(bench.count(Count::BreakerOpened), 1);
    assert_eq!(bench.count(Count::RingReads), 16);
    let mut batches = 0;
    while shared.breaker.is_open() {
        assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
        assert_eq!(bench.count(Count::RingReads), 16);
        batches += 1;
        assert!(batches < 100, "it closes by counting plain reads");
    }
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::RingReads), 80);
}

/// URING-04
#[test]
fn each_requests_error_is_its_own_and_keeps_its_errno() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let errnos = [libc::ENXIO, libc::ENOSPC, libc::ESTALE, libc::EBADF, libc::EACCES];
    let shared = bench.shared(1, move |ring| {
        ring.answering(move |_, entry| {
            let page = usize::try_from(entry.offset / 4096).unwrap();
            errnos.get(page).map_or(Answer::Whole, |errno| Answer::Fail(*errno))
        })
    });
    let ranges = pages(64);
    let results = read_all(&shared, &file, &ranges);
    for (page, errno) in errnos.iter().enumerate() {
        let error = results[page].as_ref().unwrap_err();
        let plain = crate::Error::from_errno(*errno, "read", &bench.path("t"));
        let plain = plain.at(page as u64 * 4096);
        assert_eq!(error.errno(), Some(*errno));
        assert_eq!((error.kind(), error.to_string()), (plain.kind(), plain.to_string()));
    }
    assert_right(&results[5..], &ranges[5..]);
}

/// URING-04: the kernel fails neighbours together, and which of them is bad a plain read tells.
#[test]
fn a_failure_of_the_medium_is_whose_plain_read_fails_too() {
    for errno in [libc::EIO, libc::ENODATA, libc::EILSEQ] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(1, move |ring| {
            ring.answering(move |_, entry| {
                if entry.offset < 3 * 4096 { Answer::Fail(errno) } else { Answer::Whole }
            })
        });
        let bad = bench.sys.rule(Call::Pread, "t", When::Nth(1), Fault::Errno(errno));
        let ranges = pages(64);
        let results = read_all(&shared, &file, &ranges);
        let failed: Vec<_> = results.iter().filter_map(|read| read.as_ref().err()).collect();
        assert_eq!((failed.len(), bad.fired()), (1, 1), "errno {errno}");
        assert_eq!(failed[0].errno(), Some(errno));
        for (result, range) in results.into_iter().zip(&ranges).filter(|(read, _)| read.is_ok()) {
            assert_right(&[result], slice::from_ref(range));
        }
        assert_eq!(bench.count(Count::FallbackPreads), 3, "errno {errno}");
    }
}

/// URING-04
#[test]
fn a_file_whose_system_refuses_ring_reads_is_read_by_plain_calls_from_then_on() {
    let bench = Bench::new();
    let (refused, other) = (bench.latched("refused", 64 * 4096), bench.latched("other", 64 * 4096));
    let shared = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth < 16 { Answer::Fail(libc::EINVAL) } else { Answer::Whole })
    });
    assert_right(&read_all(&shared, &refused, &pages(16)), &pages(16));
    let given = bench.count(Count::RingReads);
    assert_right(&read_all(&shared, &refused, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::RingReads), given);
    assert_right(&read_all(&shared, &other, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::RingReads), given + 64);
}

/// URING-05
#[test]
fn refused_entering_is_tried_again_and_finally_done_without() {
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::EINTR] {
        for (from, until) in [(0, 1), (1, 2), (0, 5), (2, 40), (0, usize::MAX), (3, usize::MAX)] {
            let bench = Bench::new();
            let file = bench.latched("t", 64 * 4096);
            let shared = bench.shared(1, move |ring| {
                ring.completing(3).entering(move |nth| {
                    if (from..until).contains(&nth) { Entered::Fail(errno) } else { Entered::All }
                })
            });
            let ranges = pages(64);
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
            let seen = bench.seen.lock();
            let offsets: std::collections::HashSet<u64> =
                seen.entries.iter().map(|(offset, _)| *offset).collect();
            assert_eq!(offsets.len(), seen.entries.len(), "no read was given twice");
            assert!((from + 1..2_500).contains(&seen.enters), "{} enters", seen.enters);
        }
    }
}

/// URING-07
#[test]
fn what_the_kernel_did_not_take_is_offered_again_and_not_waited_for() {
    for at_most in [0, 1, 8] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(1, move |ring| {
            ring.completing(2).entering(move |nth| {
                if nth % 3 == 2 { Entered::All } else { Entered::AtMost(at_most) }
            })
        });
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert_eq!(bench.count(Count::RingReads), 64);
        assert_eq!(bench.count(Count::RingCqes), 64);
        assert_eq!(bench.count(Count::FallbackPreads), 0);
    }
}

#[test]
fn a_kernel_that_never_takes_anything_ends_in_plain_reads() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.entering(|_| Entered::AtMost(0)));
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingCqes), 0);
    assert!(bench.count(Count::RingRetired) > 0);
}

/// URING-24: where entering is denied for good, no new ring is any better than the one before.
#[test]
fn rings_that_fail_one_after_another_are_left_alone_for_a_while() {
    for (entered, answer) in [
        (Entered::AtMost(0), Answer::Whole),
        (Entered::Fail(libc::EPERM), Answer::Whole),
        (Entered::Fail(libc::EBADF), Answer::Whole),
        (Entered::All, Answer::Twice),
        (Entered::All, Answer::Over),
    ] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench
            .shared(2, move |ring| ring.entering(move |_| entered).answering(move |_, _| answer));
        let rw = OsRwFile::open(&bench.os, &bench.path("rw"), false).unwrap();
        let rw: Arc<dyn RandomRwFile> = Arc::new(rw);
        for _ in 0..20 {
            read_all(&shared, &file, &pages(4));
            let mut queue = RingQueue::new(&shared);
            for n in 0..4 {
                let (file, data) = (Arc::clone(&rw), Buffer::zeroed(4096));
                queue.push(n, Request::Write { file, offset: n * 4096, data });
            }
            pop_all(&mut queue, 4);
        }
        assert!(bench.count(Count::RingRetired) <= 4, "{entered:?} {answer:?}: {shared:?}");
        assert_eq!(bench.count(Count::BreakerOpened), 1, "{entered:?} {answer:?}");
    }
}

/// URING-32
#[test]
fn a_lost_completion_retires_the_ring_and_its_reads_are_done_again() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth == 7 { Answer::Lost } else { Answer::Whole })
            .entering(|nth| if nth == 2 { Entered::Fail(libc::EBADR) } else { Entered::All })
    });
    let ranges = pages(32);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingRetired), 1);
    assert_eq!(bench.seen.lock().rings_dropped, 1);
    // The pool replaces it.
    let before = bench.count(Count::RingReads);
    assert_right(&read_all(&shared, &file, &pages(4)), &pages(4));
    assert_eq!(bench.count(Count::RingReads), before + 4);
    assert_eq!(shared.pool.replaced(), 1);
}

#[test]
fn a_ring_that_fails_for_good_is_retired_and_all_reads_succeed() {
    for errno in [libc::EBADF, libc::EBADFD, libc::ENXIO, libc::EOPNOTSUPP, libc::EFAULT] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(2, move |ring| ring.entering(move |_| Entered::Fail(errno)));
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert!(bench.count(Count::RingRetired) > 0, "errno {errno}");
    }
}

/// URING-37
#[test]
fn a_poll_thread_that_dies_ends_its_ring_and_no_read() {
    for dies_at in 0..8 {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(2, move |ring| {
            ring.polled(|_| false).completing(3).entering(move |nth| {
                if nth >= dies_at { Entered::Fail(libc::EOWNERDEAD) } else { Entered::All }
            })
        });
        let ranges = pages(64);
        for _ in 0..3 {
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
        }
        assert!(bench.count(Count::RingRetired) > 0, "dies at {dies_at}");
        assert!(bench.count(Count::FallbackPreads) > 0, "dies at {dies_at}");
    }
}

/// URING-37
#[test]
fn what_a_poll_thread_takes_is_counted_and_a_call_only_where_one_is_made() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.polled(|nth| nth == 0));
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::SqpollSqes), 64);
    assert_eq!(bench.count(Count::SqpollWakeups), 1);
    let seen = bench.seen.lock();
    let calls = 1 + seen.waits.len() as u64;
    assert_eq!(bench.count(Count::RingEnters), calls, "of {} enters", seen.enters);
    assert!(calls < seen.enters as u64, "some give entries and wait for nothing");
}

/// URING-33
#[test]
fn stale_and_doubled_completions_are_counted_and_end_their_ring() {
    for answer in [Answer::StaleFirst, Answer::Twice] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(2, move |ring| {
            ring.answering(move |nth, _| if nth == 3 { answer } else { Answer::Whole })
        });
        let ranges = pages(16);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert_eq!(bench.count(Count::RingStale), 1);
        assert_eq!(bench.count(Count::RingRetired), 1);
    }
}

#[test]
fn a_completion_longer_than_asked_fails_its_request_and_ends_the_ring() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth == 3 { Answer::Over } else { Answer::Whole })
    });
    let results = read_all(&shared, &file, &pages(16));
    let error = results[3].as_ref().unwrap_err();
    assert!(error.to_string().contains("claims 4097 bytes for a read of 4096"), "{error}");
    assert_right(&results[4..], &pages(16)[4..]);
    assert_eq!(bench.count(Count::RingRetired), 1);
}

/// A queue that panicked over one answer once waited at its end for those that had come with it.
#[test]
fn a_panic_over_one_answer_leaves_nothing_to_wait_for() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.completing(2));
    let mut queue = RingQueue::new(&shared);
    for (tag, (offset, len)) in pages(8).into_iter().enumerate() {
        queue.push(tag as u64, read(&file, offset, len));
    }
    queue.turn(false);
    assert_eq!(queue.lane.in_flight(), 6);
    // The next to be answered: its memory stays, for the ring will write to it, but nobody finds
    // the operation.
    let next = queue.loads.keys()[0];
    let lost = queue.loads.get_mut(next).unwrap().pieces().next().unwrap().op;
    std::mem::forget(queue.ops.remove(lost).unwrap());
    let pop_all = std::panic::AssertUnwindSafe(|| while queue.pop().is_some() {});
    std::panic::catch_unwind(pop_all).unwrap_err();
    assert_eq!(queue.lane.in_flight(), 4, "two were answered, and the first made it panic");
    drop(queue);
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert_eq!(bench.seen.lock().rings_dropped, 0, "the ring is as good as before");
}

#[test]
fn reordered_completions_find_their_requests() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.reversed().completing(5));
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
}
