//! The kernel's poll thread, on the real kernel.

use super::*;

fn builder(idle_ms: u64) -> IoUringEnvBuilder {
    let builder = IoUringEnv::builder().rings(2).allow_few_cores(true).nowait(false);
    builder.sqpoll(Duration::from_millis(idle_ms)).write_path(WritePath::Caller)
}

/// How many poll threads there are of rings that a thread of this number made.
fn poll_threads(maker: i32) -> usize {
    let wanted = format!("iou-sqp-{maker}");
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == wanted).count()
}

/// URING-37
#[test]
fn a_poll_thread_takes_every_read_and_few_calls_are_made_while_it_is_awake() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    let ranges = scattered(256);
    for (direct, fixed) in [(false, false), (true, false), (true, true)] {
        let builder = builder(1000).direct_reads(direct);
        let builder = if fixed { builder.fixed_buffers(4 << 20) } else { builder };
        let env = builder.build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        for _ in 0..20 {
            assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        }
        let report = env.report();
        let count = |name| report.counter(name);
        assert!(count("ring_reads") > 20 * 200, "{report}");
        assert_eq!(count("sqpoll_sqes"), count("ring_reads"), "{report}");
        assert_eq!(count("ring_cqes"), count("ring_reads"), "{report}");
        assert!(count("ring_enters") < count("ring_reads") / 4, "{report}");
        assert_eq!(count("ring_retired") + count("fallback_preads"), 0, "{report}");
        assert_eq!(count("fixed_used"), if fixed { count("ring_reads") } else { 0 }, "{report}");
        assert!(report.to_string().contains("submission: by a thread of the kernel"), "{report}");
    }
}

/// URING-37
#[test]
fn a_poll_thread_that_sleeps_is_woken() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = builder(1).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    let woken = |report: &EnvReport| report.counter("sqpoll_wakeups") > 2;
    until(&env, woken, || {
        std::thread::sleep(Duration::from_millis(20));
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    });
    let report = env.report();
    assert_eq!(report.counter("sqpoll_sqes"), report.counter("ring_reads"), "{report}");
}

/// URING-37
#[test]
fn the_poll_thread_serves_on_when_the_thread_that_built_the_environment_is_gone() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    let env =
        std::thread::spawn(|| builder(50).direct_reads(true).build().unwrap()).join().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (env, file) = (&env, &file);
            scope.spawn(move || {
                for round in 0..10 {
                    let page = |n: u64| ((n * 7 + thread * 4 + round) % 256 * 4 * 4096, 4096);
                    let ranges: Vec<(u64, usize)> = (0..60).map(page).collect();
                    assert_right(&read_batch(env, requests(file, &ranges)), &ranges);
                }
            });
        }
    });
    let report = env.report();
    assert!(report.counter("sqpoll_sqes") > 0, "{report}");
    assert_eq!(report.counter("sqpoll_sqes"), report.counter("ring_reads"), "{report}");
    assert_eq!(report.counter("ring_retired"), 0, "{report}");
}

/// URING-37
#[test]
fn all_rings_share_one_poll_thread_which_goes_with_the_environment() {
    if refused() {
        return;
    }
    let make = || {
        let envs: Vec<_> = (0..3).map(|_| builder(1).rings(8).build().unwrap()).collect();
        (rustix::thread::gettid().as_raw_nonzero().get(), envs)
    };
    let (maker, envs) = std::thread::spawn(make).join().unwrap();
    assert_eq!(poll_threads(maker), envs.len());
    drop(envs);
    // The kernel closes a ring some time after it was dropped.
    let gone = (0..600).any(|_| {
        let gone = poll_threads(maker) == 0;
        if !gone {
            std::thread::sleep(Duration::from_millis(100));
        }
        gone
    });
    assert!(gone, "{} threads are left", poll_threads(maker));
}

#[test]
fn a_poll_thread_needs_processors_to_spare_unless_it_is_allowed_without() {
    let few = std::thread::available_parallelism().unwrap().get() < 8;
    let made = IoUringEnv::builder().rings(1).sqpoll(Duration::from_secs(1)).build();
    match made {
        Err(Unavailable::TooFewCores { found, needs: 8 }) => assert!(few && found < 8),
        other => assert!(!few, "{other:?}"),
    }
    let text = Unavailable::TooFewCores { found: 2, needs: 8 }.to_string();
    assert!(text.contains("option sqpoll needs 8 processors, and this process has 2"), "{text}");
    assert!(text.contains("allow_few_cores(true)"), "{text}");
}
