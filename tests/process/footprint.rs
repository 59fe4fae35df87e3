//! What a process holds while it works, and what it uses while it does nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use tempfile::TempDir;
use treering::env::{Access, Env, IoUringEnv, RandomAccessFile, Request, WritePath, read_batch};
use treering::{Db, Options};

use crate::child::{Child, command, role, say, skipped};
use crate::{database, environment, key, scratch, small};

/// Ends the test unless the child ended well.
fn assert_ends_well(child: Child, what: &str) {
    let (status, other) = child.end();
    assert!(status.success(), "{what}: {status}: {other}");
}

fn entries(dir: &str) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// Descriptors, threads, mappings, and kibibytes of locked and of used memory of this process.
fn held() -> [usize; 5] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
    };
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let [descriptors, threads] = ["/proc/self/fd", "/proc/self/task"].map(entries);
    [descriptors, threads, mappings, kib("VmLck:"), kib("RssAnon:")]
}

/// Whether `holds` comes true within half a minute: a thread that was joined is listed for a
/// moment more, and so is one of the kernel's that has nothing to do.
fn until(mut holds: impl FnMut() -> bool) -> bool {
    (0..3000).any(|_| {
        holds() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

/// So many threads, four at a time, each of which reads in every way, `keys` at once, and ends.
fn short_lived_threads(db: &Db, count: usize, keys: u64) {
    for _ in 0..count / 4 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    assert!(db.get(key(thread)).unwrap().is_some());
                    let keys: Vec<String> = (0..keys).map(|n| key(n * 29 + thread)).collect();
                    assert!(db.multi_get(&keys).iter().all(Result::is_ok));
                    assert_eq!(db.iter().take(keys.len()).map(Result::unwrap).count(), keys.len());
                });
            }
        });
    }
}

/// An environment whose reads all go to the device, by its own type: where `env` says `direct` and
/// the disk can.
fn reading_direct(env: &str, dir: &Path) -> Option<IoUringEnv> {
    let direct = IoUringEnv::builder().direct_reads(true).build();
    let direct = direct.ok().filter(|_| env == "direct")?;
    let probe = dir.with_extension("probe");
    fs::write(&probe, b"x").unwrap();
    direct.open(&probe, Access::Random).is_ok().then_some(direct)
}

/// LIFE-02: with nothing cached, and by direct reads, which go to rings.
#[test]
fn threads_that_read_and_end_leave_nothing_behind() {
    const TEST: &str = "footprint::threads_that_read_and_end_leave_nothing_behind";
    if let Some((env, dir)) = role() {
        let direct = reading_direct(&env, &dir);
        let used = direct.clone().map(|env| Arc::new(env) as Arc<dyn Env>);
        let used = used.or_else(|| environment(&env)).unwrap();
        let options = Options { block_cache_size: 0, ..small(0) };
        let db = Db::open(used, dir, options).unwrap();
        (0..2000).for_each(|number| db.put(key(number), "v".repeat(100)).unwrap());
        db.flush().unwrap();
        // Opens every table, and lets the allocator make what it keeps for threads to come.
        assert_eq!(db.iter().count(), 2000);
        // The device answers each read past the cache anew.
        let keys = if direct.is_some() { 8 } else { 64 };
        short_lived_threads(&db, 200, keys);
        let before = held();
        short_lived_threads(&db, 1000, keys);
        // The allocator may keep a few mappings and pages more or less, but no page for each
        // thread.
        let slack = [0, 0, 40, 0, 3000];
        let mut after = [0; 5];
        let settled = until(|| {
            after = held();
            (0..5).all(|at| after[at] <= before[at] + slack[at])
        });
        assert!(settled, "{before:?} before, {after:?} after");
        if let Some(env) = direct {
            let report = env.report();
            assert!(report.counter("ring_reads") > 0, "{report}");
            assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
        }
        return;
    }
    for env in ["posix", "io_uring", "direct"] {
        if environment(env).is_none() {
            skipped("io_uring cannot be used here");
            continue;
        }
        let scratch = scratch();
        assert_ends_well(Child::start(TEST, env, &database(&scratch)), env);
    }
}

/// Hundredths of a second of processor time that this process has used.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name in parentheses may hold spaces; the two times are the 12th and 13th word after it.
    let words: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap()
}

/// The number of `io_uring_enter`, on every architecture.
const IO_URING_ENTER: i64 = 426;

/// Hundredths of a second that the machine's processors had nothing to do but wait for I/O.
fn iowait_of_the_machine() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines().next().unwrap().split_whitespace().nth(5).unwrap().parse().unwrap()
}

/// What threads of this process called `name`, and workers of the kernel's, are doing: the letter
/// of their state, and the number of the system call they are in, where that is told. Of a worker
/// it is not: it never made one.
fn doings(name: &str) -> Vec<(char, Option<i64>)> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // One that has ended meanwhile says nothing.
        let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
        let comm = read("comm");
        let worker = comm.starts_with("iou-wrk");
        if !worker && !comm.starts_with(name) {
            continue;
        }
        let state = read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let call = read("syscall").split_whitespace().next().and_then(|word| word.parse().ok());
        let call = call.filter(|_| !worker);
        found.extend(state.map(|state| (state, call)));
    }
    found
}

/// Nothing of an idle environment waits for I/O: its threads sleep, none of them in a ring, where
/// kernels from 6.5 on count a sleeper as waiting for I/O; and the machine's count stands still but
/// for what other programs do, so it is compared until it does.
#[expect(clippy::print_stderr, reason = "what a test skips, it says")]
fn assert_waits_for_nothing(env: &IoUringEnv) {
    let reactors = env.report().counter("reactor_alive") > 0;
    let mut shares = Vec::new();
    for _ in 0..20 {
        let (before, begun) = (iowait_of_the_machine(), std::time::Instant::now());
        while begun.elapsed() < Duration::from_millis(400) {
            let doings = doings("treering-react");
            assert_eq!(doings.is_empty(), !reactors, "the reactor and its worker");
            for (state, call) in doings {
                assert_ne!(call, Some(IO_URING_ENTER), "a thread waits in a ring");
                assert_ne!(state, 'D', "a thread waits for a device");
            }
            std::thread::sleep(Duration::from_millis(40));
        }
        let waited = iowait_of_the_machine() - before;
        shares.push(waited);
        // One that waits in a ring all the time would show as 40 on an idle processor.
        if waited <= 10 {
            return;
        }
    }
    // No thread of ours did, in any of these rounds.
    eprintln!("SKIPPED the machine's own count: other programs wait for I/O, {shares:?} of 40");
}

/// URING-35: no thread waits at a ring that has nothing to do, so none counts as waiting for I/O.
/// The one that writes tables sleeps, and so does the worker that the kernel keeps for it.
#[test]
fn an_idle_environment_uses_no_processor_and_has_one_thread_that_sleeps() {
    const TEST: &str =
        "footprint::an_idle_environment_uses_no_processor_and_has_one_thread_that_sleeps";
    if let Some((_, dir)) = role() {
        let threads = entries("/proc/self/task");
        let env = IoUringEnv::builder().nowait(false).build().unwrap();
        let path = dir.join("t");
        fs::write(&path, vec![7; 64 * 4096]).unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        read_pages(&env, &file);
        let report = env.report();
        let through_rings = report.counter("ring_reads") + report.counter("merged_reads");
        assert!(through_rings > 32, "{report}");
        let before = ticks();
        std::thread::sleep(Duration::from_secs(2));
        let used = ticks() - before;
        assert!(used <= 10, "{used} hundredths of a second in two idle seconds");
        assert_waits_for_nothing(&env);
        let names = ["reactor_alive", "reactor_worker_threads_alive"];
        // Where the file system cannot read without waiting, rings have workers for a while.
        let settled = until(|| {
            let report = env.report();
            let own = names.map(|name| report.counter(name));
            assert!(own.iter().all(|count| *count <= 1), "{report}");
            let own = own.iter().sum::<u64>() + report.counter("worker_threads_alive");
            entries("/proc/self/task") == threads + usize::try_from(own).unwrap()
        });
        assert!(settled, "{threads} threads before: {}", env.report());
        drop(env);
        let without = IoUringEnv::builder().write_path(WritePath::Caller).build().unwrap();
        read_pages(&without, &file);
        let settled = until(|| entries("/proc/self/task") == threads);
        assert!(settled, "without a reactor there is no thread of its own");
        return;
    }
    if environment("io_uring").is_none() {
        return skipped("io_uring cannot be used here");
    }
    let scratch = scratch();
    assert_ends_well(Child::start(TEST, "idle", scratch.path()), "idle");
}

/// Reads 64 pages of sevens at once.
fn read_pages(env: &IoUringEnv, file: &Arc<dyn RandomAccessFile>) {
    let read = |page: u64| Request::Read { file: Arc::clone(file), offset: page * 4096, len: 4096 };
    for result in read_batch(env, (0..64).map(read).collect()) {
        assert_eq!(result.unwrap()[..], [7; 4096]);
    }
}

/// An environment with two rings, or none for the reason that is given.
fn environment_or_reason() -> Option<IoUringEnv> {
    match IoUringEnv::builder().rings(2).nowait(false).build() {
        Ok(env) => Some(env),
        Err(cause) => {
            let text = cause.to_string();
            assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
            None
        }
    }
}

/// A hundred environments of a user who may lock next to no memory, and reads in 64 threads.
fn be_poor(limit: u64, file: &Path) {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Memlock, limit).unwrap();
    have_memory_registered(file);
    let envs: Vec<IoUringEnv> = (0..100).filter_map(|_| environment_or_reason()).collect();
    std::thread::scope(|scope| {
        for env in envs.iter().cycle().take(64) {
            scope.spawn(move || {
                let file = env.open(file, Access::Random).unwrap();
                (0..3).for_each(|_| read_pages(env, &file));
            });
        }
    });
    let through_rings: u64 = envs.iter().map(|env| env.report().counter("ring_reads")).sum();
    assert!(envs.is_empty() || through_rings > 0);
    say(&format!("{} environments", envs.len()));
}

/// What may not be locked is not registered, which is no error and stays visible.
fn have_memory_registered(file: &Path) {
    let builder = IoUringEnv::builder().rings(1).direct_reads(true).write_path(WritePath::Caller);
    let builder = builder.fixed_buffers(64 << 20).merge_limit(0);
    let Ok(env) = builder.build() else { return };
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let text = env.report().to_string();
    assert!(text.contains("of 65536 KiB (the limit of locked memory)"), "{text}");
    assert_eq!(text.contains("registered buffers: 0 of"), limit < 8 << 20, "{text}");
    match env.open(file, Access::Random) {
        Ok(file) => (0..3).for_each(|_| read_pages(&env, &file)),
        Err(error) => return say(&format!("no direct reads: {error}")),
    }
    let report = env.report();
    let [fixed, refused] = ["fixed_used", "fixed_refused"].map(|name| report.counter(name));
    assert!(report.counter("ring_reads") > 100, "{report}");
    assert_eq!(fixed + refused, report.counter("ring_reads"), "{report}");
    assert_eq!(fixed == 0, limit < 8 << 20, "{report}");
}

/// URING-25, URING-37
#[test]
fn a_user_who_may_lock_little_memory_gets_small_rings_or_a_reason_and_right_bytes() {
    const TEST: &str =
        "footprint::a_user_who_may_lock_little_memory_gets_small_rings_or_a_reason_and_right_bytes";
    if let Some((limit, dir)) = role() {
        return be_poor(limit.parse().unwrap(), &dir.join("t"));
    }
    if !getuid().is_root() {
        return skipped("only root can become another user");
    }
    // A place that any user can reach, with a copy of this program that any user can run.
    let place = TempDir::new().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.path().join("t"), vec![7; 64 * 4096]).unwrap();
    for limit in ["0", "65536", "1048576", "8388608"] {
        let mut command = command(&program, TEST, limit, place.path());
        command.uid(65_534).gid(65_534).current_dir(place.path());
        assert_ends_well(Child::spawn(command), limit);
    }
}
