//! Completions that come late, or never: what the kernel may still use is nobody else's for ever.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::writes::{data, open_rw};
use super::*;
use crate::uring::scripted::{Entered, Owed, assert_leaked};

/// Requests of which one has no answer.
const REQUESTS: u64 = 32;
/// The one, by the count of entries of the ring.
const NEVER: usize = 7;
/// Enters after which the ring says that something is lost. Everything else has come by then.
const TOLD_AT: usize = 9;

/// A ring that answers all entries but one, and says so a while later.
fn losing(ring: ScriptedRing) -> ScriptedRing {
    ring.answering(|n, _| if n == NEVER { Answer::Never } else { Answer::Whole })
        .entering(|n| if n < TOLD_AT { Entered::All } else { Entered::Fail(libc::EBADR) })
}

/// More pages than these tests ever use, from the memory that nobody has.
fn pages_of(bench: &Bench) -> Vec<Buffer> {
    (0..1200).map(|_| bench.os.pool.take(4096)).collect()
}

/// Asserts that the memory is kept from everybody, and that a kernel may use it.
fn assert_left_alone(bench: &Bench, owed: &[Owed]) {
    assert_leaked(owed, &pages_of(bench));
    for late in owed {
        late.read_late().unwrap();
    }
}

fn owed(bench: &Bench) -> Vec<Owed> {
    bench.seen.lock().owed.clone()
}

/// The pool makes another ring for the one that is gone.
fn assert_replaced(bench: &Bench, shared: &Arc<Shared>, file: &Arc<dyn RandomAccessFile>) {
    assert_eq!((bench.count(Count::RingRetired), bench.seen.lock().rings_dropped), (1, 1));
    let before = bench.count(Count::RingReads);
    bench.seen.lock().enters = 0;
    let ranges = [(0, 4096), (8 * 4096, 4096), (16 * 4096, 4096), (24 * 4096, 4096)];
    assert_right(&read_all(shared, file, &ranges), &ranges);
    assert_eq!((bench.count(Count::RingReads), shared.pool.replaced()), (before + 4, 1));
}

/// URING-32
#[test]
fn a_completion_that_never_comes_costs_its_memory_and_its_ring_and_no_read() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, losing);
    let ranges = pages(REQUESTS);
    let mut queue = RingQueue::new(&shared);
    for (tag, (offset, len)) in ranges.iter().enumerate() {
        queue.push(tag as u64, read(&file, *offset, *len));
    }
    let mut popped: Vec<_> = (1..REQUESTS).map(|_| queue.pop().unwrap()).collect();
    assert!(popped.iter().all(|done| done.tag != NEVER as u64), "the others come first");
    assert_eq!((bench.count(Count::RingRetired), queue.lane.in_flight()), (0, 1));
    popped.push(queue.pop().unwrap());
    assert!(queue.pop().is_none());
    assert_eq!(bench.count(Count::FallbackPreads), 1);
    assert_eq!(bench.seen.lock().enters, TOLD_AT + 1, "it waited until the ring told");

    let owed = owed(&bench);
    let places: Vec<u64> = owed.iter().map(|late| late.offset).collect();
    assert_eq!(places, [NEVER as u64 * 4096]);
    assert_left_alone(&bench, &owed);
    for done in popped {
        let range = ranges[usize::try_from(done.tag).unwrap()];
        assert_right(&[done.result], &[range]);
    }
    assert_replaced(&bench, &shared, &file);
}

/// URING-32: a run of neighbours is one entry, to the memory of all of them.
#[test]
fn a_run_that_is_never_answered_costs_the_memory_of_each_of_its_reads() {
    let bench = Bench::new();
    let file = bench.latched("t", 200 * 4096);
    let mut shared = bench.shared(1, |ring| {
        ring.answering(|n, _| if n == 1 { Answer::Never } else { Answer::Whole })
            .entering(|n| if n < TOLD_AT { Entered::All } else { Entered::Fail(libc::EBADR) })
    });
    let merging = Merging { gap: 4096, limit: 64 << 10 };
    Arc::get_mut(&mut shared).unwrap().merging = merging;
    // Four runs of four pages each, with a page that nobody wants in the middle.
    let places = (0..16).map(|n| n / 4 * 40 + [0, 1, 3, 4][n % 4]);
    let ranges: Vec<(u64, usize)> = places.map(|page| (page as u64 * 4096, 4096)).collect();
    let results = read_all(&shared, &file, &ranges);
    assert_eq!(bench.seen.lock().vectored, 4);
    let owed = owed(&bench);
    assert_eq!(owed.len(), 5, "four reads, and what lies between them: {owed:?}");
    assert_left_alone(&bench, &owed);
    assert_right(&results, &ranges);
    assert_eq!(bench.count(Count::FallbackPreads), 4);
    assert_replaced(&bench, &shared, &file);
}

/// URING-11, URING-32: nobody waits for the answers any more, but for what the kernel does.
#[test]
fn a_queue_that_is_dropped_over_a_lost_completion_leaks_what_it_was_for() {
    let bench = Bench::new();
    let file = bench.latched("t", 64 * 4096);
    let shared = bench.shared(1, losing);
    let mut queue = RingQueue::new(&shared);
    for (tag, (offset, len)) in pages(REQUESTS).into_iter().enumerate() {
        queue.push(tag as u64, read(&file, offset, len));
    }
    drop(queue);
    let owed = owed(&bench);
    assert_eq!(owed.len(), 1);
    assert_left_alone(&bench, &owed);
    assert_replaced(&bench, &shared, &file);
}

/// URING-32: of writes the outcome is unknown, and their memory still the kernel's.
#[test]
fn a_write_that_is_never_answered_keeps_its_bytes_for_the_kernel() {
    for dropped in [false, true] {
        let bench = Bench::new();
        let reads = bench.latched("t", 64 * 4096);
        let shared = bench.shared(1, losing);
        let file = open_rw(&bench);
        let mut queue = RingQueue::new(&shared);
        for n in 0..REQUESTS {
            let data = bench_data(&bench, n);
            queue.push(n, Request::Write { file: Arc::clone(&file), offset: n * 4096, data });
        }
        if dropped {
            queue.pop().unwrap().result.unwrap();
            drop(queue);
        } else {
            let results = pop_all(&mut queue, usize::try_from(REQUESTS).unwrap());
            for (n, result) in results.into_iter().enumerate() {
                match result {
                    Ok(back) => assert!(n != NEVER && *back == *data(n as u64)),
                    Err(error) => {
                        assert_eq!((n, error.outcome()), (NEVER, crate::Outcome::MaybeApplied));
                    }
                }
            }
        }
        let owed = owed(&bench);
        assert_eq!((owed.len(), owed[0].offset), (1, NEVER as u64 * 4096));
        assert_leaked(&owed, &pages_of(&bench));
        assert!(owed[0].write_late().unwrap() == *data(NEVER as u64));
        assert_replaced(&bench, &shared, &reads);
    }
}

/// The bytes of write `n`, in memory of the pool.
fn bench_data(bench: &Bench, n: u64) -> Buffer {
    let mut buffer = bench.os.pool.take(4096);
    buffer.as_mut_slice().copy_from_slice(&data(n));
    buffer
}

/// URING-08: the kernel shows what has completed only to who enters, and less than was waited for.
#[test]
fn waits_that_bring_less_than_was_asked_for_go_on_until_all_is_there() {
    for per_enter in [1, 3] {
        for empty in [0, 1, 40] {
            for interrupted in [false, true] {
                let bench = Bench::new();
                let file = bench.latched("t", 64 * 4096);
                let shared = bench.shared(1, move |ring| {
                    let shown = AtomicUsize::new(0);
                    let opens =
                        move || shown.fetch_add(1, Ordering::Relaxed) % (empty + 1) == empty;
                    ring.completing(per_enter).while_open(opens).entering(move |n| {
                        let fails = interrupted && n % 2 == 1;
                        if fails { Entered::Fail(libc::EINTR) } else { Entered::All }
                    })
                });
                let ranges = pages(64);
                assert_right(&read_all(&shared, &file, &ranges), &ranges);
                assert_eq!(bench.count(Count::RingReads), 64);
                assert_eq!(bench.count(Count::RingCqes), 64);
                assert_eq!(bench.count(Count::FallbackPreads), 0);
                let seen = bench.seen.lock().clone();
                assert!(seen.waits.iter().any(|wait| *wait > per_enter), "{:?}", seen.waits);
                // Each entering but those that gave the reads, and those that were interrupted,
                // was made for something that was still to come.
                let needed = 64_usize.div_ceil(per_enter) * (empty + 1);
                assert!(seen.enters >= needed.min(64), "{} enters", seen.enters);
                assert!(seen.enters <= 2 * (needed + 8), "{} enters", seen.enters);

                let mut queue = RingQueue::new(&shared);
                for (tag, (offset, len)) in ranges.iter().enumerate() {
                    queue.push(tag as u64, read(&file, *offset, *len));
                }
                queue.pop().unwrap();
                drop(queue);
                assert_eq!(bench.count(Count::RingReads), bench.count(Count::RingCqes));
                assert_eq!(bench.seen.lock().rings_dropped, 0);
            }
        }
    }
}

/// URING-24: what the kernel took before still comes, and nothing of it is given up.
#[test]
fn where_entering_is_denied_in_mid_run_only_what_was_not_taken_is_read_plainly() {
    for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
        for from in [0, 1, 2, 3, 9] {
            let bench = Bench::new();
            let file = bench.latched("t", 64 * 4096);
            let shared = bench.shared(1, move |ring| {
                ring.completing(2)
                    .entering(move |n| if n < from { Entered::All } else { Entered::Fail(errno) })
            });
            let ranges = pages(64);
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
            let [came, plain] = [Count::RingCqes, Count::FallbackPreads].map(|c| bench.count(c));
            assert_eq!(came + plain, 64, "from {from} on");
            assert!(came >= 16 * from.min(4) as u64, "{came} of those that were taken");
            assert!(bench.count(Count::RingRetired) >= 1);
            assert!(owed(&bench).is_empty(), "nothing is leaked");
        }
    }
}

/// URING-24: a poll thread that sleeps takes nothing any more, and who waits learns it soon.
#[test]
fn where_a_poll_thread_sleeps_and_entering_is_denied_the_ring_is_given_up_soon() {
    for (asleep, looks) in [(true, 250..400), (false, 1900..2200)] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared(1, move |ring| {
            ring.polled(move |_| asleep)
                .completing(0)
                .entering(|n| if n == 0 { Entered::All } else { Entered::Fail(libc::EPERM) })
        });
        let ranges = pages(8);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert_eq!((bench.count(Count::RingRetired), bench.count(Count::FallbackPreads)), (1, 8));
        assert_eq!(owed(&bench).len(), 8, "the thread may wake for another ring");
        let looked = bench.seen.lock().looks;
        assert!(looks.contains(&looked), "{looked} looks");
    }
}

/// URING-33: in a table of few slots, where the next request is in the place of the old one.
#[test]
fn a_completion_that_comes_again_is_not_taken_for_the_request_in_its_place() {
    for doubled in [0, 1, 5, 20] {
        let bench = Bench::new();
        let file = bench.latched("t", 64 * 4096);
        let shared = bench.shared_of(2, 4, move |ring| {
            ring.completing(1)
                .answering(move |n, _| if n == doubled { Answer::Again } else { Answer::Whole })
        });
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert!(bench.count(Count::RingStale) >= 1, "the one at {doubled}");
        assert!(bench.count(Count::RingRetired) >= 1, "the one at {doubled}");
        let known = bench.count(Count::RingCqes) - bench.count(Count::RingStale);
        assert_eq!(known, bench.count(Count::RingReads), "each is answered once");
    }
}
