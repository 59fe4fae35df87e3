//! A child made by `fork` while its parent's queue has reads in flight.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;
use crate::process::Process;

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

/// Bytes of each read: long enough for the device to be busy with some of them for a while.
const LEN: usize = 64 << 10;

/// A hundred reads that no page cache answers, far from each other.
fn long_ranges() -> Vec<(u64, usize)> {
    (0..100).map(|n| (n * 37 % 100 * LEN as u64, LEN)).collect()
}

/// A queue that was asked for all of `ranges`, has given none of them, and has reads in flight now.
/// Nothing is popped: a wait takes whatever has completed, which may be all. On a busy machine that
/// may happen to a push too, and then another queue is asked.
fn queue_in_flight(
    env: &IoUringEnv,
    file: &Arc<dyn RandomAccessFile>,
    ranges: &[(u64, usize)],
) -> Box<dyn IoQueue> {
    let mut queue = env.queue();
    let in_flight = |report: &EnvReport| report.counter("ring_reads") > report.counter("ring_cqes");
    until(env, in_flight, || {
        queue = env.queue();
        for (tag, request) in requests(file, ranges).into_iter().enumerate() {
            queue.push(tag as u64, request);
        }
    });
    queue
}

/// LIFE-01
#[test]
fn a_child_reads_by_plain_calls_and_leaves_the_parents_ring_alone() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 100 * LEN);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = long_ranges();
    let mut queue = queue_in_flight(&env, &file, &ranges);
    let before = env.report();
    let finish = |queue: &mut Box<dyn IoQueue>| {
        let mut popped = 0;
        while let Some(completion) = queue.pop() {
            let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
            assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
            popped += 1;
        }
        assert_eq!(popped, ranges.len());
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

/// LIFE-01: neither the reactor nor what it reads is in the child.
#[test]
fn a_child_of_a_queue_with_reads_at_the_reactor_makes_them_again() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 100 * LEN);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = long_ranges();
    let holder = env.shared.pool.take().unwrap();
    let mut queue = env.queue();
    for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
        queue.push(tag as u64, request);
    }
    let finish = |queue: &mut Box<dyn IoQueue>| {
        let mut popped = 0;
        while let Some(completion) = queue.pop() {
            let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
            assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
            popped += 1;
        }
        assert_eq!(popped, ranges.len());
    };
    let child = fork(|| {
        let before = env.report();
        finish(&mut queue);
        let since = env.report().since(&before);
        assert_eq!((since.counter("ring_enters"), since.counter("reactor_reads")), (0, 0));
        assert!(since.counter("fallback_preads") >= ranges.len() as u64 / 2, "{since}");
    });
    finish(&mut queue);
    assert_ends_well(child);
    env.shared.pool.give_back(holder);
    let report = env.report();
    let reads = report.counter("reactor_reads");
    // One or two that are left alone, when all others have come back, are no errand.
    assert!(reads > 50 && report.counter("fallback_preads") * 10 < reads, "{report}");
}

/// LIFE-01, URING-37: the pages that the kernel knows stay the parent's.
#[test]
fn a_child_has_a_copy_of_registered_memory_and_the_parent_goes_on_with_its_own() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 100 * LEN);
    let builder = IoUringEnv::builder().rings(1).direct_reads(true);
    let env = builder.fixed_buffers(16 << 20).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = long_ranges();
    let mut kept = Some(read_batch(&env, requests(&file, &ranges)));
    assert!(env.report().counter("fixed_used") > 0);
    let mut environment = Some((env.clone(), Arc::clone(&file)));
    let child = fork(|| {
        let kept = kept.take().unwrap();
        assert_right(&kept, &ranges);
        let (env, file) = environment.take().unwrap();
        let fixed = env.report().counter("fixed_used");
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        assert_right(&kept, &ranges);
        assert_eq!(env.report().counter("fixed_used"), fixed);
    });
    for _ in 0..10 {
        let before = env.report();
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        assert!(env.report().since(&before).counter("fixed_used") > 0);
        assert_right(kept.as_ref().unwrap(), &ranges);
    }
    assert_ends_well(child);
}

/// LIFE-01
#[test]
fn a_queue_dropped_in_a_child_waits_for_nothing() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 100 * LEN);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = long_ranges();
    let mut queue = Some(queue_in_flight(&env, &file, &ranges));
    let mut environment = Some(env.clone());
    let child = fork(|| {
        queue.take();
        environment.take();
    });
    assert_ends_well(child);
    queue.take();
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
}

/// LIFE-01: blocks that are with the parent's reactor are not the child's; its other files are.
#[test]
fn a_child_writes_by_plain_calls_and_leaves_the_parents_reactor_alone() {
    use crate::uring::reactor::HANDED as BLOCK;
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = writes::env_with_reactor();
    let create = |name: &str| env.create(&dir.path().join(name), FileKind::Table).unwrap();
    let data = bytes(0, 4 * BLOCK);
    let (mut settled, mut unsettled) = (create("settled"), create("unsettled"));
    settled.append(&data).unwrap();
    settled.flush().unwrap();
    unsettled.append(&data).unwrap();
    let mut files = Some((settled, unsettled));
    // The child could not take a lock that the reactor holds, as of any other thread.
    let idle = |report: &EnvReport| report.to_string().contains("write budget: 0 of");
    until(&env, idle, || std::thread::sleep(Duration::from_millis(20)));
    let before = env.report();
    let mut environment = Some(env.clone());
    let child = fork(|| {
        let (mut settled, mut unsettled) = files.take().unwrap();
        settled.append(&data).unwrap();
        settled.sync().unwrap();
        let error = unsettled.flush().unwrap_err();
        assert!(error.to_string().contains("a child made by fork"), "{error}");
        assert!(unsettled.append(&data).is_err() && unsettled.sync().is_err());
        drop((settled, unsettled));
        let mut own = create("own");
        own.append(&data).unwrap();
        assert_eq!(own.finish().unwrap(), data.len() as u64);
        assert!(std::fs::read(dir.path().join("own")).unwrap() == data);
        let since = env.report().since(&before);
        assert_eq!(since.counter("reactor_stalls"), 0, "{since}");
        environment.take().unwrap().shutdown(Duration::ZERO).unwrap();
    });
    assert_ends_well(child);
    let (settled, mut unsettled) = files.take().unwrap();
    unsettled.append(&data).unwrap();
    assert_eq!(unsettled.finish().unwrap(), 8 * BLOCK as u64);
    let there = std::fs::read(dir.path().join("unsettled")).unwrap();
    assert!(there == [&data[..], &data].concat());
    drop(settled);
    environment.take();
    writes::write_table(&env, &dir.path().join("later"), 6);
    assert_eq!(env.report().counter("reactor_alive"), 1);
}

/// LIFE-01
#[test]
fn a_child_and_its_child_are_processes_of_their_own() {
    let parent = Process::current();
    let child = fork(|| {
        let child = Process::current();
        assert!(!parent.is_current() && child.is_current());
        assert_ends_well(fork(|| {
            assert!(!parent.is_current() && !child.is_current());
        }));
        assert!(child.is_current());
    });
    assert_ends_well(child);
    assert!(parent.is_current());
}

/// Children of this thread are in a process namespace of their own from now on, where the first has
/// the number 1; false if that is not allowed.
fn number_children_anew() -> bool {
    // SAFETY: it concerns processes that are yet to be made.
    unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
}

/// LIFE-01: as where one container starts another.
#[test]
fn a_child_with_the_process_id_of_its_parent_leaves_the_parents_ring_alone() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let ranges = scattered(64);
    // A thread that has done this can make no more threads.
    let done = std::thread::spawn(move || {
        if !number_children_anew() {
            let why = "process namespaces are for root";
            return writeln!(std::io::stderr(), "SKIPPED: {why}").unwrap();
        }
        assert_ends_well(fork(|| {
            assert_eq!(std::process::id(), 1);
            let env = IoUringEnv::builder().rings(1).write_path(WritePath::Caller).nowait(false);
            let env = env.build().unwrap();
            let file = env.open(&path, Access::Random).unwrap();
            assert!(number_children_anew());
            let mut environment = Some(env.clone());
            assert_ends_well(fork(|| {
                assert_eq!(std::process::id(), 1);
                assert!(!env.shared.pool.is_ours());
                assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
                assert_eq!(env.report().counter("ring_enters"), 0);
                environment.take();
            }));
            assert!(env.shared.pool.is_ours());
        }));
    });
    done.join().unwrap();
}

/// Starts a program, which must find no ring among its descriptors.
fn start_a_program() {
    let mut command = Command::new("ls");
    command.args(["-l", "/proc/self/fd"]);
    // SAFETY: nothing is done between the fork, which this asks for in place of a cheaper call,
    // and the start of the program.
    unsafe { command.pre_exec(|| Ok(())) };
    let output = command.output().unwrap();
    let open = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && open.contains("->"), "{open}");
    assert!(!open.contains("io_uring"), "a ring was inherited: {open}");
}

/// LIFE-01: a program that is started while reads and writes go on gets no ring, and what goes on
/// stays right.
#[test]
fn programs_started_during_io_inherit_no_ring_and_change_no_byte() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 100 * LEN);
    let env = IoUringEnv::builder().rings(4).direct_reads(true).write_path(WritePath::Reactor);
    let env = env.build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let (ranges, enough) = (long_ranges(), AtomicBool::new(false));
    let (env, dir, enough) = (&env, &dir, &enough);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    assert_right(&read_batch(env, requests(&file, &ranges)), &ranges);
                }
            });
        }
        let write = |name: &str| {
            let path = dir.path().join(name);
            writes::write_table(env, &path, 4);
            std::fs::remove_file(&path).unwrap();
        };
        scope.spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                write("there");
            }
        });
        let started = catch_unwind(AssertUnwindSafe(|| {
            (0..30 * soak()).for_each(|_| start_a_program());
            // The other threads may not have had their turn yet.
            let both = |report: &EnvReport| {
                report.counter("ring_reads") > 64 && report.counter("reactor_writes") > 0
            };
            until(env, both, || {
                start_a_program();
                assert_right(&read_batch(env, requests(&file, &ranges)), &ranges);
                write("here");
            });
        }));
        enough.store(true, Ordering::Relaxed);
        started.unwrap();
    });
    let report = env.report();
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
}
