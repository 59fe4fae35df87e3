//! Direct reads that find no free ring: the reactor reads them, or a ring is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::uring::reactor::{EventBell, Reactor};
use crate::uring::scripted::Entered;

const PAGES: usize = 32;
const PAGE: usize = 4096;

/// A direct file of known bytes, which is known to do NOWAIT reads.
fn direct(bench: &Bench) -> Option<Arc<dyn RandomAccessFile>> {
    std::fs::write(bench.path("t"), bytes(0, PAGES * PAGE)).unwrap();
    let file = match OsFile::open(&bench.os, &bench.path("t"), Access::Random, true) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.kind(), crate::ErrorKind::Unsupported, "{error}");
            return None;
        }
    };
    let mut page = bench.os.take_direct(PAGE);
    file.read_nowait(page.as_mut_slice(), 0, &bench.os.counters);
    assert_eq!(file.nowait_latch(), Latch::Works);
    Some(Arc::new(file))
}

fn pages() -> Vec<(u64, usize)> {
    (0..PAGES).map(|page| ((page * PAGE) as u64, PAGE)).collect()
}

/// An environment of one ring, and a reactor whose rings `make` gives.
fn with_reactor(
    bench: &Bench,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static,
) -> Arc<Shared> {
    with_reactor_of(bench, 64, make)
}

fn with_reactor_of(
    bench: &Bench,
    entries: usize,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static,
) -> Arc<Shared> {
    let mut shared = bench.shared_values(WritePath::Auto, 1, 64, |ring| ring);
    let seen = Arc::clone(&bench.seen);
    let make = move |bell: &EventBell| {
        let bell = bell.fd().try_clone_to_owned().unwrap();
        let ring = ScriptedRing::new(entries).seen_by(&seen).ringing(move || {
            rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        });
        Ok(make(ring))
    };
    let reactor = Reactor::start(&shared.os, &shared.breaker, 1 << 20, make).unwrap();
    shared.reactor = Some(reactor);
    Arc::new(shared)
}

/// Reads all pages while somebody else has the only ring, and checks the bytes.
fn read_all_without_ring(shared: &Arc<Shared>, file: &Arc<dyn RandomAccessFile>) {
    let taken = shared.pool.take().unwrap();
    let ranges = pages();
    assert_right(&read_all(shared, file, &ranges), &ranges);
    shared.pool.give_back(taken);
}

/// URING-27
#[test]
fn direct_reads_that_find_no_ring_are_in_the_reactors_together() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    // Nothing completes before all are in flight, so one after another would never end.
    let seen = Arc::clone(&bench.seen);
    let shared = with_reactor(&bench, move |ring| {
        let seen = Arc::clone(&seen);
        ring.while_open(move || seen.lock().entries.len() >= PAGES)
    });
    read_all_without_ring(&shared, &file);
    assert_eq!(bench.count(Count::ReactorReads), PAGES as u64);
    assert_eq!(bench.count(Count::ReactorInFlightPeak), PAGES as u64);
    assert_eq!((bench.count(Count::RingReads), bench.count(Count::FallbackPreads)), (0, 0));
    assert!(bench.count(Count::PoolEmpty) > 0);
    // With a ring of its own the queue leaves the reactor alone.
    let ranges = pages();
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::ReactorReads), PAGES as u64);
    assert_eq!(bench.count(Count::RingReads), PAGES as u64);
}

/// URING-27: through the page cache plain calls find what the kernel was told of.
#[test]
fn reads_through_the_page_cache_that_find_no_ring_leave_the_reactor_alone() {
    let bench = Bench::new();
    let file = bench.latched("t", PAGES * PAGE);
    let shared = with_reactor(&bench, |ring| ring);
    read_all_without_ring(&shared, &file);
    assert_eq!(bench.count(Count::ReactorReads), 0);
    assert_eq!(bench.count(Count::FallbackPreads), PAGES as u64);
}

/// URING-27: for so few the way there and back takes longer than plain calls.
#[test]
fn less_than_three_direct_reads_without_a_ring_are_read_by_plain_calls() {
    for (reads, by_reactor) in [(2, 0), (3, 3)] {
        let bench = Bench::new();
        let Some(file) = direct(&bench) else { return };
        let shared = with_reactor(&bench, |ring| ring);
        let taken = shared.pool.take().unwrap();
        let ranges = &pages()[..reads];
        assert_right(&read_all(&shared, &file, ranges), ranges);
        assert_eq!(bench.count(Count::ReactorReads), by_reactor);
        assert_eq!(bench.count(Count::FallbackPreads), reads as u64 - by_reactor);
        shared.pool.give_back(taken);
    }
}

#[test]
fn a_single_direct_read_follows_those_that_are_with_the_reactor() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    let shared = with_reactor(&bench, |ring| ring);
    let taken = shared.pool.take().unwrap();
    let mut queue = RingQueue::new(&shared);
    let ranges = &pages()[..4];
    for (tag, (offset, len)) in ranges.iter().enumerate() {
        queue.push(tag as u64, read(&file, *offset, *len));
        if tag >= 2 {
            queue.turn(false);
        }
    }
    assert_right(&pop_all(&mut queue, 4), ranges);
    let counts = [Count::ReactorReads, Count::FallbackPreads].map(|count| bench.count(count));
    assert_eq!(counts, [4, 0]);
    shared.pool.give_back(taken);
}

/// URING-01, URING-02
#[test]
fn what_the_reactor_fails_to_read_is_decided_by_a_plain_read() {
    for (answer, left) in [
        (Answer::Fail(libc::ECANCELED), 1),
        (Answer::Fail(libc::EIO), 1),
        (Answer::Fail(libc::EBADF), 1),
        (Answer::Bytes(0), 1),
        (Answer::Bytes(1000), 0),
        (Answer::StaleFirst, 0),
    ] {
        let bench = Bench::new();
        let Some(file) = direct(&bench) else { return };
        let shared = with_reactor(&bench, move |ring| {
            ring.answering(move |nth, _| if nth == 17 { answer } else { Answer::Whole })
        });
        read_all_without_ring(&shared, &file);
        assert_eq!(bench.count(Count::FallbackPreads), left, "{answer:?}");
        let again = u64::from(answer == Answer::Bytes(1000));
        assert_eq!(bench.count(Count::ReactorReads), PAGES as u64 + again, "{answer:?}");
    }
}

#[test]
fn more_bytes_than_asked_for_fail_one_read_of_the_reactor() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    let shared = with_reactor(&bench, |ring| {
        ring.answering(|nth, _| if nth == 17 { Answer::Over } else { Answer::Whole })
    });
    let taken = shared.pool.take().unwrap();
    let results = read_all(&shared, &file, &pages());
    shared.pool.give_back(taken);
    let failed: Vec<usize> = (0..PAGES).filter(|n| results[*n].is_err()).collect();
    assert_eq!(failed, [17]);
    // It gives the ring up when it has sent the answers.
    assert!(shared.reactor.as_ref().unwrap().shut_down(Duration::MAX));
    assert_eq!(bench.count(Count::RingRetired), 1);
}

/// URING-14
#[test]
fn reads_with_a_reactor_that_panics_are_made_again_in_other_memory() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    // It panics with all of them in its ring.
    let seen = Arc::clone(&bench.seen);
    let shared = with_reactor(&bench, move |ring| {
        let seen = Arc::clone(&seen);
        ring.while_open(|| false).entering(move |_| {
            if seen.lock().entries.len() >= PAGES { Entered::Panic } else { Entered::All }
        })
    });
    read_all_without_ring(&shared, &file);
    assert_eq!(bench.count(Count::FallbackPreads), PAGES as u64);
    assert!(!shared.reactor.as_ref().unwrap().is_alive());
    // From now on a ring is waited for.
    read_all_without_ring(&shared, &file);
    assert_eq!(bench.count(Count::RingWaitsInVain), 1);
}

/// URING-14: what was never in its ring has nothing of the file in its memory.
#[test]
fn reads_that_a_reactor_had_not_begun_when_it_ended_are_made_by_plain_calls() {
    for panics in [true, false] {
        let bench = Bench::new();
        let Some(file) = direct(&bench) else { return };
        // Eight of them fill its ring, and then it panics, or loses it for good.
        let seen = Arc::clone(&bench.seen);
        let ends = if panics { Entered::Panic } else { Entered::Fail(libc::EBADR) };
        let made = AtomicBool::new(false);
        let shared = with_reactor_of(&bench, 8, move |ring| {
            assert!(!made.swap(true, Ordering::SeqCst), "no other ring is to be had");
            let seen = Arc::clone(&seen);
            ring.while_open(|| false)
                .entering(move |_| if seen.lock().entries.len() >= 8 { ends } else { Entered::All })
        });
        read_all_without_ring(&shared, &file);
        assert!(bench.count(Count::FallbackPreads) >= PAGES as u64 - 8);
        assert!(!shared.reactor.as_ref().unwrap().is_alive());
    }
}

/// URING-14: of a read that has nothing in the ring when that is lost, what was read stays.
#[test]
fn a_reactor_that_ends_between_the_parts_of_a_read_gives_back_its_memory_and_what_is_in_it() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    OsFile::of(&*file).unwrap().device().pretend_chunk(PAGE);
    // The first four parts are answered, and then its ring is given up for good.
    let made = AtomicBool::new(false);
    let shared = with_reactor_of(&bench, 4, move |ring| {
        assert!(!made.swap(true, Ordering::SeqCst), "no other ring is to be had");
        ring.answering(|nth, _| if nth == 3 { Answer::StaleFirst } else { Answer::Whole })
    });
    let taken = shared.pool.take().unwrap();
    bench.sys.take_transfers();
    let ranges = [(0, 8 * PAGE)];
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    let there = 4 * PAGE;
    let plain = bench
        .sys
        .take_transfers()
        .iter()
        .map(|(_, at, len)| (*at, *len))
        .fold((u64::MAX, 0), |(first, sum), (at, len)| (first.min(at), sum + len));
    assert_eq!(plain, (there as u64, 4 * PAGE), "the other four parts");
    assert_eq!(bench.count(Count::ReactorReads), 4);
    shared.pool.give_back(taken);
}

/// URING-13
#[test]
fn a_queue_that_is_dropped_waits_for_its_reads_with_the_reactor() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    let door = Arc::new(AtomicBool::new(false));
    let (inner, seen) = (Arc::clone(&door), Arc::clone(&bench.seen));
    let shared = with_reactor(&bench, move |ring| {
        let door = Arc::clone(&inner);
        ring.while_open(move || door.load(Ordering::SeqCst))
    });
    let taken = shared.pool.take().unwrap();
    let mut queue = RingQueue::new(&shared);
    for (tag, (offset, len)) in pages().into_iter().enumerate() {
        queue.push(tag as u64, read(&file, offset, len));
    }
    let dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while seen.lock().entries.len() < PAGES {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!dropped.load(Ordering::SeqCst), "it went before its reads were done");
            door.store(true, Ordering::SeqCst);
            // The ring is asked again whenever something is handed over.
            let reactor = shared.reactor.as_ref().unwrap();
            while !dropped.load(Ordering::SeqCst) {
                reactor.nudge();
                std::thread::yield_now();
            }
        });
        drop(queue);
        dropped.store(true, Ordering::SeqCst);
    });
    assert_eq!(Arc::strong_count(&file), 1, "nothing is held by anybody");
    shared.pool.give_back(taken);
}

/// URING-34: whether the queue asks for its reads or goes away.
#[test]
fn no_queue_waits_for_a_reactor_that_a_shutdown_gave_up() {
    for pops in [true, false] {
        let bench = Bench::new();
        let Some(file) = direct(&bench) else { return };
        let shared = with_reactor(&bench, |ring| ring.while_open(|| false));
        let taken = shared.pool.take().unwrap();
        let mut queue = RingQueue::new(&shared);
        for (tag, (offset, len)) in pages().into_iter().enumerate() {
            queue.push(tag as u64, read(&file, offset, len));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while bench.seen.lock().entries.len() < PAGES {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                assert!(!shared.reactor.as_ref().unwrap().shut_down(Duration::ZERO));
            });
            if pops {
                assert_right(&pop_all(&mut queue, PAGES), &pages());
            }
            drop(queue);
        });
        let plain = if pops { PAGES as u64 } else { 0 };
        assert_eq!(bench.count(Count::FallbackPreads), plain);
        assert!(Arc::strong_count(&file) > PAGES, "what is in the kernel keeps its file");
        shared.pool.give_back(taken);
    }
}

/// URING-27
#[test]
fn without_a_reactor_a_ring_that_comes_back_in_time_is_waited_for() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    let shared = bench.shared(1, |ring| ring);
    let ranges = pages();
    let mut rounds = 0;
    while bench.count(Count::RingWaits) == 0 {
        rounds += 1;
        assert!(rounds <= 100, "no wait was ever in time");
        let taken = shared.pool.take().unwrap();
        let read = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while shared.pool.waiting() == 0 && !read.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                shared.pool.give_back(taken);
            });
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
            read.store(true, Ordering::SeqCst);
        });
    }
    assert!(bench.count(Count::RingReads) >= PAGES as u64);
}

/// URING-27: who has all the rings himself waits once in a batch, and reads all the same.
#[test]
fn without_a_reactor_the_wait_for_a_ring_has_an_end() {
    let bench = Bench::new();
    let Some(file) = direct(&bench) else { return };
    let shared = bench.shared(1, |ring| ring);
    read_all_without_ring(&shared, &file);
    assert_eq!((bench.count(Count::RingWaits), bench.count(Count::RingWaitsInVain)), (0, 1));
    assert_eq!(bench.count(Count::FallbackPreads), PAGES as u64);
    assert_eq!(shared.pool.waiting(), 0);
}
