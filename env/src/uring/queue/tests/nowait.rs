//! The look into the page cache that comes before a ring: it may only succeed or defer.

use super::*;

/// Queues that make NOWAIT reads, over rings that answer right.
fn looking(bench: &Bench) -> Arc<Shared> {
    let shared = bench.shared(1, |ring| ring);
    let mut shared = Arc::into_inner(shared).unwrap();
    shared.nowait = true;
    Arc::new(shared)
}

/// ENV-16
#[test]
fn zero_from_the_page_cache_is_a_miss_and_never_an_end_of_file() {
    let bench = Bench::new();
    bench.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Short(0));
    let file = bench.open("t", 64 * 4096 + 100, false);
    let shared = looking(&bench);
    let mut ranges = pages(32);
    ranges.push((64 * 4096, 100));
    ranges.push((64 * 4096 - 1, 101));
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert!(bench.count(Count::RingReads) > 0);
}

/// ENV-17
#[test]
fn every_short_prefix_is_kept_and_only_the_rest_is_fetched() {
    for n in (1..16_384).step_by(511) {
        for start in [0, 1, 4095] {
            let bench = Bench::new();
            bench.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Short(n));
            let file = bench.open("t", 8 * 16_384, false);
            let shared = looking(&bench);
            let ranges: Vec<(u64, usize)> =
                (0..4).map(|block| (start + block * 16_384, 16_384)).collect();
            assert_right(&read_all(&shared, &file, &ranges), &ranges);
            let seen = bench.seen.lock();
            assert_eq!(seen.entries.len(), 4);
            for (offset, len) in &seen.entries {
                assert_eq!(*len as usize, 16_384 - n);
                assert_eq!((offset - start) % 16_384, n as u64);
            }
        }
    }
}

/// ENV-18
#[test]
fn a_file_that_refuses_nowait_is_latched_alone_and_kept_off_the_ring() {
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL] {
        let bench = Bench::new();
        bench.sys.rule(Call::ReadNowait, "refusing", When::Always, Fault::Errno(errno));
        bench.sys.rule(Call::ReadNowait, "missing", When::Always, Fault::Errno(libc::EAGAIN));
        let refusing = bench.open("refusing", 64 * 4096, false);
        let missing = bench.open("missing", 64 * 4096, false);
        let shared = looking(&bench);
        let mut queue = RingQueue::new(&shared);
        for page in 0..64 {
            let file = if page % 2 == 0 { &refusing } else { &missing };
            queue.push(page, read(file, page * 4096, 4096));
        }
        assert_right(&pop_all(&mut queue, 64), &pages(64));
        assert_eq!(bench.count(Count::NowaitUnsupported), 1);
        assert!((31..=32).contains(&bench.count(Count::RingReads)));
        assert_eq!(OsFile::of(&*refusing).unwrap().nowait_latch(), Latch::Unsupported);
        assert_eq!(OsFile::of(&*missing).unwrap().nowait_latch(), Latch::Works);
    }
}

/// ENV-19
#[test]
fn a_look_that_misses_is_the_last_one_of_its_batch() {
    let bench = Bench::new();
    bench.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Errno(libc::EAGAIN));
    let file = bench.open("t", 64 * 4096, false);
    let shared = looking(&bench);
    for batch in 1..=157 {
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
        assert_eq!(bench.sys.calls(Call::ReadNowait), batch);
        assert_eq!(bench.count(Count::NowaitSkipped), batch * 63);
    }
}

/// ENV-19
#[test]
fn a_queue_that_never_runs_dry_looks_again_every_64_reads() {
    let bench = Bench::new();
    bench.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Errno(libc::EAGAIN));
    let file = bench.open("t", 64 * 4096, false);
    let shared = looking(&bench);
    let ranges: Vec<(u64, usize)> = (0..650).map(|n| (n % 64 * 4096, 4096)).collect();
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.sys.calls(Call::ReadNowait), 10);
    assert_eq!(bench.count(Count::NowaitSkipped), 640);
}

/// ENV-17
#[test]
fn other_failures_of_the_look_are_left_to_the_read_that_follows() {
    for errno in [libc::EIO, libc::EPERM, libc::EINTR, libc::ENOMEM] {
        let bench = Bench::new();
        let when = if errno == libc::EINTR { When::EveryOther } else { When::Always };
        bench.sys.rule(Call::ReadNowait, "t", when, Fault::Errno(errno));
        let file = bench.open("t", 64 * 4096, false);
        let shared = looking(&bench);
        let ranges = pages(64);
        assert_right(&read_all(&shared, &file, &ranges), &ranges);
    }
}

#[test]
fn cached_pages_never_reach_a_ring() {
    let bench = Bench::new();
    let file = bench.open("t", 64 * 4096, false);
    let shared = looking(&bench);
    let ranges = pages(64);
    assert_right(&read_all(&shared, &file, &ranges), &ranges);
    assert_eq!(bench.count(Count::NowaitHit), 64);
    assert_eq!(bench.count(Count::RingEnters), 0);
}
