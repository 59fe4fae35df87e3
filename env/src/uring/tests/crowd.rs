//! More threads than rings, and threads that come and go.

use super::*;

/// URING-06, URING-27
#[test]
fn sixty_four_threads_over_two_rings_of_eight_entries_all_read_right() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    for nowait in [true, false] {
        let builder = IoUringEnv::builder().rings(2).ring_entries(8).nowait(nowait);
        let env = builder.build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        // Without looks at the page cache even what is in it goes to a ring, if there is one.
        let used_up = |report: &EnvReport| {
            let [peak, empty] = ["in_flight_peak", "pool_empty"].map(|name| report.counter(name));
            nowait || peak == 8 && empty > 0
        };
        until(&env, used_up, || {
            evict(&path);
            std::thread::scope(|scope| {
                for thread in 0..64u64 {
                    let (env, file) = (&env, &file);
                    scope.spawn(move || {
                        let page = |n: u64| ((n * 7 + thread * 4) % 256 * 4 * 4096, 4096);
                        let ranges: Vec<(u64, usize)> = (0..40).map(page).collect();
                        assert_right(&read_batch(env, requests(file, &ranges)), &ranges);
                    });
                }
            });
        });
        let report = env.report();
        assert!(report.counter("in_flight_peak") <= 8, "{report}");
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
        assert_eq!(report.counter("rings_alive"), 2, "{report}");
    }
}

/// URING-27
#[test]
fn two_hundred_threads_over_four_rings_read_right_while_some_hold_theirs() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    for direct in [true, false] {
        let builder = IoUringEnv::builder().rings(4).ring_entries(8).direct_reads(direct);
        let env = builder.build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let read_right = |thread: u64, holds: bool| {
            let page = |n: u64| ((n * 7 + thread * 4) % 256 * 4 * 4096, 4096);
            let ranges: Vec<(u64, usize)> = (0..40).map(page).collect();
            let mut queue = env.queue();
            for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
                queue.push(tag as u64, request);
            }
            let mut popped = 0;
            while let Some(completion) = queue.pop() {
                let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
                assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
                popped += 1;
                if holds && popped == 20 {
                    std::thread::sleep(Duration::from_millis(300));
                }
            }
            assert_eq!(popped, 40);
        };
        let crowded = |report: &EnvReport| {
            let reads = report.counter("reactor_reads");
            report.counter("pool_empty") > 0 && (reads > 0) == direct
        };
        until(&env, crowded, || {
            evict(&path);
            std::thread::scope(|scope| {
                for thread in 0..200 {
                    scope.spawn(move || read_right(thread, thread % 25 == 0));
                }
            });
        });
        let report = env.report();
        let names = ["ring_reads", "ring_cqes", "rings_alive", "ring_retired", "reactor_alive"];
        let [reads, cqes, rings, retired, reactor] = names.map(|name| report.counter(name));
        assert_eq!((reads, rings, retired, reactor), (cqes, 4, 0, 1), "{report}");
        assert_eq!(report.counter("ring_waits_in_vain"), 0, "{report}");
        let deep = report.counter("reactor_in_flight_peak");
        assert!(!direct || deep > 1, "one at a time: {report}");
        // One or two that are left alone, while nothing is with the reactor, are no errand.
        let together = reads + report.counter("reactor_reads");
        assert!(!direct || report.counter("fallback_preads") * 10 <= together, "{report}");
    }
}

/// URING-15
#[test]
fn threads_that_read_once_and_exit_get_right_bytes() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    for nowait in [true, false] {
        let env = IoUringEnv::builder().rings(4).nowait(nowait).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        for round in 0..20u64 {
            evict(&path);
            std::thread::scope(|scope| {
                for thread in 0..8u64 {
                    let (env, file) = (&env, &file);
                    scope.spawn(move || {
                        let ranges: Vec<(u64, usize)> = (0..32)
                            .map(|n| ((n * 8 + thread + round) % 256 * 4 * 4096, 4096))
                            .collect();
                        assert_right(&read_batch(env, requests(file, &ranges)), &ranges);
                    });
                }
            });
        }
        let report = env.report();
        assert!(nowait || report.counter("ring_reads") > 20 * 16, "{report}");
        assert_eq!(report.counter("retried_efault"), 0, "{report}");
    }
}

/// URING-15: two thousand of them, every other of which asks for nothing of what it pushed.
#[test]
fn two_thousand_threads_that_read_past_the_cache_and_exit_leave_nothing_wrong() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(4).direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(8);
    for _ in 0..250 * soak() {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (env, file, ranges) = (&env, &file, &ranges);
                scope.spawn(move || {
                    if thread % 2 == 0 {
                        assert_right(&read_batch(env, requests(file, ranges)), ranges);
                        return;
                    }
                    let mut queue = env.queue();
                    for (tag, request) in requests(file, ranges).into_iter().enumerate() {
                        queue.push(tag as u64, request);
                    }
                });
            }
        });
    }
    let report = env.report();
    // A ring that is just being given back may look taken: then the reactor reads.
    let reads = report.counter("ring_reads") + report.counter("reactor_reads");
    assert!(reads >= 1000 * 7, "{report}");
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    assert_eq!(report.counter("ring_retired") + report.counter("retried_efault"), 0, "{report}");
}
