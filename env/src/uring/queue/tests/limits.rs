//! Windows, depths, chunks, dropping, leaking and sharing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::uring::scripted::Entered;

/// URING-06
#[test]
fn any_number_of_requests_fits_through_a_ring_of_four_entries() {
    for count in [64, 257, 1000] {
        let bench = Bench::new();
        let file = bench.latched("t", 1000 * 4096);
        let shared = bench.shared_of(1, 4, |ring| ring.completing(1));
        let ranges = pages(count);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        // The scripted ring also checks that the completion side never overflows.
        assert_eq!(bench.count(Count::InFlightPeak), 4);
        assert_eq!(bench.count(Count::RingReads), count);
        assert_eq!(bench.count(Count::FallbackPreads), 0);
    }
}

/// URING-06
#[test]
fn eight_threads_share_two_small_rings() {
    let bench = Bench::new();
    let file = bench.latched("t", 256 * 4096);
    let shared = bench.shared_of(2, 4, |ring| ring.completing(2));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let ranges = pages(80);
                assert_right(&read_all(&shared, &file, &ranges), &ranges);
            });
        }
    });
    let plain = bench.count(Count::FallbackPreads);
    assert_eq!(bench.count(Count::RingReads) + plain, 8 * 80);
    assert_eq!(bench.count(Count::RingReads), bench.count(Count::RingCqes));
}

#[test]
fn memory_is_bounded_by_the_window_whatever_is_pushed() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 << 10);
    let shared = bench.shared(1, |ring| ring);
    let mut queue = RingQueue::new(&shared);
    let count = 100_000;
    for tag in 0..count {
        queue.push(tag, read(&file, (tag % 16) * 4096, 4096));
    }
    let most = 64 + READY_ASIDE;
    assert_eq!((queue.ops.keys().len() + queue.ready.len(), queue.reads.held), (most, most));
    let mut seen = vec![false; 100_000];
    while let Some(completion) = queue.pop() {
        let tag = completion.tag;
        assert!(!std::mem::replace(&mut seen[usize::try_from(tag).unwrap()], true));
        assert!(*completion.result.unwrap() == bytes((tag % 16) * 4096, 4096)[..]);
        assert!(queue.reads.held <= most);
    }
    assert!(seen.into_iter().all(|seen| seen));
    assert_eq!((queue.reads.held, queue.held_bytes), (0, 0));
}

#[test]
fn the_device_has_a_whole_window_to_do_while_results_are_worked_on() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 << 10);
    let shared = bench.shared(1, |ring| ring.completing(4));
    let mut queue = RingQueue::new(&shared);
    for tag in 0..400 {
        queue.push(tag, read(&file, (tag % 16) * 4096, 4096));
    }
    for popped in 1..=400 {
        queue.pop().unwrap().result.unwrap();
        let to_do = queue.lane.in_flight() + queue.staged.len();
        assert!(to_do <= 64 && (to_do == 64 || popped > 300), "{to_do} after {popped}");
        assert!(queue.staged.len() < ENTER_BATCH);
    }
    assert_eq!(bench.count(Count::InFlightPeak), 64);
}

/// URING-29
#[test]
fn a_long_request_is_read_in_chunks_and_completes_once() {
    let len = 4 * 1024 * 1024 + 17;
    let bench = Bench::new();
    let file = bench.latched("t", len);
    let shared = bench.shared(1, |ring| ring.reversed().completing(2));
    let chunk = OsFile::of(&*file).unwrap().device().chunk().bytes;
    let ranges = [(0, len), (5, len - 10), (100, chunk + 1), (7, chunk)];
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    let seen = bench.seen.lock();
    assert!(seen.entries.iter().all(|(_, len)| *len as usize <= chunk));
    assert!(seen.entries.len() >= 17, "a chunk is one entry: {}", seen.entries.len());
}

/// URING-29
#[test]
fn one_bad_chunk_fails_its_request_and_no_other() {
    let len = 4 * 1024 * 1024;
    let bench = Bench::new();
    let file = bench.latched("t", len);
    let shared = bench.shared(1, |ring| {
        ring.answering(|nth, _| if nth == 3 { Answer::Fail(libc::ENXIO) } else { Answer::Whole })
    });
    let ranges = [(0, len), (1, len - 1)];
    let results = read_all(&shared, &file, &ranges);
    assert_eq!(results[0].as_ref().unwrap_err().errno(), Some(libc::ENXIO));
    assert_right(&results[1..], &ranges[1..]);
}

/// URING-09
#[test]
fn a_dropped_queue_leaves_nothing_behind_for_the_next() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| {
        ring.completing(3).answering(|nth, _| match nth {
            5 => Answer::Fail(libc::EIO),
            6 => Answer::Bytes(100),
            _ => Answer::Whole,
        })
    });
    for popped in [0, 1, 7] {
        let mut queue = RingQueue::new(&shared);
        for tag in 0..40 {
            queue.push(tag, read(&file, tag * 4096, 4096));
        }
        for _ in 0..popped {
            queue.pop().unwrap();
        }
        assert!(queue.lane.in_flight() > 0);
        drop(queue);
        assert_eq!(bench.count(Count::RingReads), bench.count(Count::RingCqes));
        let ranges = pages(33);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
    }
    assert_eq!(bench.count(Count::RingStale), 0);
    assert_eq!(bench.count(Count::RingRetired), 0);
}

#[test]
fn dropping_a_queue_whose_ring_refuses_or_breaks_ends_and_spoils_no_memory() {
    for failing in [libc::EAGAIN, libc::EBADR, libc::EINVAL] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(1, move |ring| {
            ring.completing(1).entering(move |nth| {
                if nth == 0 { Entered::AtMost(9) } else { Entered::Fail(failing) }
            })
        });
        let mut queue = RingQueue::new(&shared);
        for tag in 0..15 {
            queue.push(tag, read(&file, tag * 4096, 4096));
        }
        assert!(*queue.pop().unwrap().result.unwrap() == bytes(0, 4096)[..]);
        drop(queue);
        assert_eq!(bench.seen.lock().rings_dropped, 1, "errno {failing}");
    }
}

/// URING-10
#[test]
fn two_queues_of_one_thread_see_their_own_completions_only() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(2, |ring| ring.completing(1));
    let (mut first, mut second) = (RingQueue::new(&shared), RingQueue::new(&shared));
    for page in 0..32 {
        first.push(page, read(&file, page * 4096, 4096));
        second.push(1000 + page, read(&file, (page + 32) * 4096, 4096));
    }
    for _ in 0..10 {
        let (one, two) = (first.pop().unwrap(), second.pop().unwrap());
        assert!(*one.result.unwrap() == bytes(one.tag * 4096, 4096)[..]);
        assert!(*two.result.unwrap() == bytes((two.tag - 1000 + 32) * 4096, 4096)[..]);
    }
    assert!(first.lane.in_flight() > 0 && second.lane.in_flight() > 0);
    drop(first);
    for _ in 10..32 {
        let two = second.pop().unwrap();
        assert!(*two.result.unwrap() == bytes((two.tag - 1000 + 32) * 4096, 4096)[..]);
    }
    assert!(second.pop().is_none());
    assert_eq!(bench.count(Count::PoolEmpty), 0);
}

/// URING-12
#[test]
fn a_forgotten_queue_only_leaks() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(2, |ring| ring.completing(1));
    let mut queue = RingQueue::new(&shared);
    for tag in 0..32 {
        queue.push(tag, read(&file, tag * 4096, 4096));
    }
    queue.pop().unwrap();
    assert!(queue.lane.in_flight() > 0);
    std::mem::forget(queue);
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingStale), 0);
}

/// URING-13
#[test]
fn a_panic_between_push_and_pop_leaves_ring_and_pool_usable() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.completing(1));
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut queue = RingQueue::new(&shared);
        for tag in 0..31 {
            queue.push(tag, read(&file, tag * 4096, 4096));
        }
        let first = queue.pop().unwrap();
        assert_eq!(queue.lane.in_flight(), 15);
        panic!("decoding {} failed", first.tag);
    }));
    assert!(unwound.is_err());
    assert_eq!(bench.count(Count::RingReads), bench.count(Count::RingCqes));
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingReads), 16 + 64);
    assert_eq!(bench.seen.lock().rings_dropped, 0);
}

/// URING-27
#[test]
fn a_queue_that_finds_no_ring_reads_without_one_and_says_so() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.completing(1));
    let mut holder = RingQueue::new(&shared);
    for tag in 0..32 {
        holder.push(tag, read(&file, tag * 4096, 4096));
    }
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::PoolEmpty), 1);
    assert_eq!(bench.count(Count::FallbackPreads), 64);
    pop_all(&mut holder, 32);
    // Its batch is done: the ring is free for others though the queue lives on.
    let before = bench.count(Count::RingReads);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingReads), before + 64);
}

/// URING-27: once for each batch, not for each of its reads.
#[cfg(feature = "tracing")]
#[test]
fn that_no_ring_is_free_is_told_with_how_many_reads_go_without() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring);
    let holder = shared.pool.take().unwrap();
    let ranges = pages(64);
    let told = crate::trace::told_by(|| {
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
    });
    assert_eq!(told, ["DEBUG message=no ring is free reads=16"]);
    shared.pool.give_back(holder);
    let told = crate::trace::told_by(|| {
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
    });
    assert_eq!(told, [""; 0]);
}

/// URING-26
#[test]
fn a_ring_that_cannot_be_replaced_costs_depth_and_no_reads() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let seen = Arc::clone(&bench.seen);
    let made = std::sync::atomic::AtomicUsize::new(0);
    let make = move || {
        if made.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
            return Err(crate::uring::kernel::SetupError::Setup(libc::EMFILE));
        }
        let ring = ScriptedRing::new(64).seen_by(&seen).entering(|_| Entered::Fail(libc::EBADR));
        Ok(Box::new(ring) as Box<dyn Ring>)
    };
    let pool = Pool::new(1, None, Box::new(make)).unwrap();
    let os = Arc::clone(&bench.os);
    let shared = Arc::new(Shared {
        os,
        pool,
        asking: None,
        breaker: Breaker::default(),
        max_in_flight: 64,
        nowait: false,
        write_path: WritePath::Auto,
        registered: None,
        merging: UNMERGED,
        reactor: None,
    });
    for _ in 0..3 {
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
    }
    assert_eq!((shared.pool.size(), shared.pool.lost()), (0, 1));
    assert!(bench.count(Count::PoolEmpty) >= 3);
}

#[test]
fn a_single_miss_is_read_by_a_plain_call() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring);
    assert_right(&read_all(&shared, &file, &pages(1)), &pages(1));
    assert_eq!(bench.count(Count::RingReads), 0);
    assert_eq!(bench.count(Count::FallbackPreads), 0);
    assert_eq!(bench.count(Count::WillNeed), 0);
    assert_right(&read_all(&shared, &file, &pages(2)), &pages(2));
    assert_eq!(bench.count(Count::RingReads), 2);
}

#[test]
fn a_wait_asks_for_half_of_what_is_in_flight_and_at_most_sixteen() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring.completing(1));
    for count in [2, 3, 10, 40, 64] {
        bench.seen.lock().waits.clear();
        assert_right(&read_all(&shared, &file, &pages(count)), &pages(count));
        let waits = bench.seen.lock().waits.clone();
        let first = waits.first().copied().expect("something was waited for");
        assert_eq!(first, usize::try_from(count / 2).unwrap().clamp(1, 16), "of {count}");
    }
}

#[test]
fn reads_are_given_to_the_ring_sixteen_at_a_time() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, |ring| ring);
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::RingEnters), 4);
    assert_eq!(bench.count(Count::SqesPerEnterPeak), 16);
}

#[test]
fn files_of_another_kind_and_writes_are_served_through_their_own_methods() {
    #[derive(Debug)]
    struct Foreign(PathBuf);
    impl RandomAccessFile for Foreign {
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            buf.copy_from_slice(&bytes(offset, buf.len()));
            Ok(())
        }
        fn size(&self) -> u64 {
            1 << 20
        }
        fn path(&self) -> &std::path::Path {
            &self.0
        }
    }
    let bench = Bench::new();
    let ours = bench.latched("t", 64 * 4096);
    let foreign: Arc<dyn RandomAccessFile> = Arc::new(Foreign("foreign".into()));
    let shared = bench.shared(1, |ring| ring.completing(1));
    let mut queue = RingQueue::new(&shared);
    for page in 0..64 {
        let file = if page % 2 == 0 { &ours } else { &foreign };
        queue.push(page, read(file, page * 4096, 4096));
    }
    assert_right(&pop_all(&mut queue, 64), &pages(64));
    assert_eq!(bench.count(Count::RingReads), 32);
}
