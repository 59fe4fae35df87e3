//! A child made by `fork` while its parent's queue has reads in flight.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;

/// Forks; runs `child` in the child, which ends there, and gives its process id to the parent.
fn fork(child: impl FnOnce()) -> Pid {
    // SAFETY: the child runs on the one thread it has and ends by `_exit`, so it never returns
    // into the test runner; the allocator is usable after a fork, and the locks of the
    // environment under test are held by nobody but this thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the process at once; nothing is touched after it.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    Pid::from_raw(pid).expect("a child was made")
}

/// Waits for a child, which must end well before a minute is over.
fn assert_ends_well(child: Pid) {
    let patience = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            assert_eq!(status.exit_status(), Some(0), "the child failed");
            return;
        }
        if Instant::now() > patience {
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// LIFE-01
#[test]
fn a_child_reads_by_plain_calls_and_leaves_the_parents_ring_alone() {
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(1).nowait(false).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    file.read_exact_at(&mut [0], 0).unwrap();
    let mut queue = env.queue();
    for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
        queue.push(tag as u64, request);
    }
    queue.pop().unwrap().result.unwrap();
    let before = env.report();
    assert!(before.counter("ring_reads") > before.counter("ring_cqes"), "{before}");
    let finish = |queue: &mut Box<dyn IoQueue>| {
        let mut popped = 0;
        while let Some(completion) = queue.pop() {
            let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
            assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
            popped += 1;
        }
        assert_eq!(popped, 63);
    };
    let child = fork(|| {
        finish(&mut queue);
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        let since = env.report().since(&before);
        assert_eq!(since.counter("ring_enters"), 0, "{since}");
        assert!(since.counter("pool_empty") > 0, "{since}");
    });
    finish(&mut queue);
    assert_ends_well(child);
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    let report = env.report();
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    assert_eq!(report.counter("ring_retired"), 0, "{report}");
}

/// LIFE-01
#[test]
fn a_queue_dropped_in_a_child_waits_for_nothing() {
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(1).nowait(false).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    let mut queue = Some(env.queue());
    for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
        queue.as_mut().unwrap().push(tag as u64, request);
    }
    let mut environment = Some(env.clone());
    let child = fork(|| {
        queue.take();
        environment.take();
    });
    assert_ends_well(child);
    queue.take();
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
}
