//! Processes of their own: under timer signals, at the limit of processes, killed.
//!
//! Each test runs this test binary once more, for itself alone, with a variable that says which
//! part to play; limits and signal handlers then concern nobody else.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, Signal};

use super::writes::{env_with_reactor, write_table};
use super::*;
use crate::sys::filter::{Instead, filter_calls_of_the_process};

/// Says in a child what it works on.
const ROLE: &str = "TREERING_TEST_CHILD";

/// Runs the test called `name` of this module in a process of its own, where [`role`] is `role`.
fn in_child(name: &str, role: &str) -> ExitStatus {
    let test = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..12_000 {
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            // A name that no test has is a success too.
            let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            assert!(ran || !status.success(), "there is no test {test}");
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the child of {name} hangs");
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// From now on `signal` comes each so many microseconds of the timer `which`, and calls are
/// interrupted by it.
fn storm(which: libc::c_int, signal: libc::c_int, micros: libc::suseconds_t) {
    let each = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: each, it_value: each };
    // SAFETY: the structures are plain values that outlive the calls, and the handler only adds to
    // an atomic number, which is safe at any moment.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as *const () as libc::sighandler_t;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
            + libc::setitimer(which, &raw const timer, std::ptr::null_mut())
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// URING-08, URING-16, URING-17: a profiler's timer, then one of 20 microseconds.
#[test]
fn reads_and_writes_survive_a_storm_of_signals() {
    if refused() {
        return;
    }
    let Some(role) = role() else {
        for role in ["profiler", "alarm"] {
            let status = in_child("reads_and_writes_survive_a_storm_of_signals", role);
            assert!(status.success(), "{role}: {status}");
        }
        return;
    };
    match &*role {
        "profiler" => storm(libc::ITIMER_PROF, libc::SIGPROF, 1000),
        _ => storm(libc::ITIMER_REAL, libc::SIGALRM, 20),
    }
    let dir = on_disk();
    let path = cold_file(&dir, "read", 64 * 4096);
    // The ring of its reactor is fresh, and so are its workers.
    let env = env_with_reactor();
    let reading = IoUringEnv::builder().rings(1).nowait(false).write_path(WritePath::Caller);
    let reading = reading.build().unwrap();
    let file = reading.open(&path, Access::Random).unwrap();
    let table = dir.path().join("table");
    for round in 1..=soak() {
        let enough = |report: &EnvReport| {
            report.counter("reactor_writes") >= 64 * round && SIGNALS.load(Ordering::Relaxed) > 100
        };
        until(&env, enough, || {
            write_table(&env, &table, 8);
            std::fs::remove_file(&table).unwrap();
            for batch in 0..100_u64 {
                let ranges: Vec<(u64, usize)> =
                    (0..8).map(|page| ((page * 7 + batch) % 64 * 4096, 4096)).collect();
                assert_right(&read_batch(&reading, requests(&file, &ranges)), &ranges);
            }
        });
    }
    say_figures(&role, &[&env, &reading]);
    let report = reading.report();
    assert!(report.counter("ring_reads") > 0, "{report}");
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
}

/// URING-08: ten thousand batches, most of which find pages that are not in the cache.
#[test]
fn ten_thousand_batches_of_cold_pages_survive_a_storm_of_signals() {
    const NAME: &str = "ten_thousand_batches_of_cold_pages_survive_a_storm_of_signals";
    const PAGES: u64 = 64;
    const DEEP: u64 = 4;
    if refused() {
        return;
    }
    if role().is_none() {
        let status = in_child(NAME, "alarm");
        assert!(status.success(), "{status}");
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "read", usize::try_from(PAGES).unwrap() * 4096);
    let cache = std::fs::File::open(&path).unwrap();
    let env = IoUringEnv::builder().rings(1).merge_limit(0).write_path(WritePath::Caller);
    let env = env.build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    storm(libc::ITIMER_REAL, libc::SIGALRM, 20);
    let mut batches = 0;
    // A batch that finds its first page has no use for a ring. How many do is the kernel's affair.
    let enough = |report: &EnvReport| report.counter("ring_reads") >= 10_000 * DEEP / 2 * soak();
    until(&env, enough, || {
        for _ in 0..10_000 / 16 * soak() {
            rustix::fs::fadvise(cache.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
            for first in 0..PAGES / DEEP {
                let page = |n: u64| ((first + n * PAGES / DEEP) * 4096, 4096);
                let ranges: Vec<(u64, usize)> = (0..DEEP).map(page).collect();
                assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
                batches += 1;
            }
        }
    });
    say_figures("batches", &[&env]);
    let report = env.report();
    assert!(batches >= 10_000 && SIGNALS.load(Ordering::Relaxed) > 100);
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    assert_eq!(report.counter("ring_retired") + report.counter("ring_stale"), 0, "{report}");
    assert!(report.counter("nowait_miss") >= 5_000, "cold batches begin with a miss: {report}");
}

/// URING-16: a signal that waits for the reactor's thread would keep workers from starting. In a
/// process of its own, where no thread of that name has only just begun.
#[test]
fn the_reactors_thread_blocks_every_signal() {
    if refused() {
        return;
    }
    if role().is_none() {
        let status = in_child("the_reactors_thread_blocks_every_signal", "look");
        assert!(status.success(), "{status}");
        return;
    }
    let env = env_with_reactor();
    let mut reactors = 0;
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        // One that has ended meanwhile has no status.
        let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        if line("Name:").trim() != reactor::THREAD_NAME {
            continue;
        }
        reactors += 1;
        let blocked = u64::from_str_radix(line("SigBlk:").trim(), 16).unwrap();
        // Those from 32 to 34 are the C library's own.
        let open: Vec<i32> = (1..32)
            .chain(35..65)
            .filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
            .filter(|signal| blocked >> (signal - 1) & 1 == 0)
            .collect();
        assert!(open.is_empty(), "signals {open:?} are not blocked: {status}");
    }
    assert!(reactors > 0 && env.report().counter("reactor_alive") == 1);
}

/// In a long run, what happened and how often.
fn say_figures(what: &str, envs: &[&IoUringEnv]) {
    if soak() == 1 {
        return;
    }
    let names = [
        "reactor_writes",
        "ring_writes",
        "ring_reads",
        "retried_canceled",
        "retried_eintr",
        "retried_eagain",
        "fallback_pwrites",
        "fallback_preads",
        "breaker_opened",
    ];
    let mut said = format!("{what}: signals = {}", SIGNALS.load(Ordering::Relaxed));
    for name in names {
        let sum: u64 = envs.iter().map(|env| env.report().counter(name)).sum();
        write!(said, ", {name} = {sum}").unwrap();
    }
    writeln!(std::io::stderr(), "{said}").unwrap();
}

/// Gives up privileges, and with them the right to more processes than this one.
fn no_more_processes() {
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(Resource::Nproc, limit).unwrap();
    // SAFETY: the call takes a number and touches no memory of ours.
    let dropped = unsafe { libc::setuid(65534) };
    assert_eq!(dropped, 0, "{}", std::io::Error::last_os_error());
}

/// URING-17: work that no worker can be made for is cancelled by the kernel. The limit comes
/// before the environment is made, or after.
#[test]
fn writes_succeed_at_the_limit_of_processes() {
    const NAME: &str = "writes_succeed_at_the_limit_of_processes";
    if refused() {
        return;
    }
    let Some(role) = role() else {
        if !rustix::process::geteuid().is_root() {
            // The limit counts all processes of a user: only one that has no others can be tested.
            let why = "SKIPPED: only root can become a user without other processes";
            writeln!(std::io::stderr(), "{why}").unwrap();
            return;
        }
        for role in ["before", "after", "queue"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
            let status = in_child(NAME, &format!("{role}={}", dir.path().display()));
            assert!(status.success(), "{role}: {status}");
        }
        return;
    };
    let (when, dir) = role.split_once('=').unwrap();
    let dir = Path::new(dir);
    if when == "before" {
        no_more_processes();
        let refused = IoUringEnv::builder().rings(1).write_path(WritePath::Reactor).build();
        let refused = refused.unwrap_err();
        assert_eq!(refused, Unavailable::Thread(libc::EAGAIN));
        assert!(refused.to_string().contains("ulimit -u"), "{refused}");
        let env = IoUringEnv::builder().rings(1).build().unwrap();
        write_table(&env, &dir.join("t"), 8);
        let report = env.report();
        assert_eq!(report.counter("reactor_alive"), 0, "{report}");
        assert_eq!(report.counter("reactor_writes"), 0, "{report}");
        return;
    }
    let env = IoUringEnv::builder().rings(1).write_path(WritePath::Reactor).build().unwrap();
    no_more_processes();
    if when == "queue" {
        queued_writes_without_workers(&env, dir);
        return;
    }
    let mut n = 0;
    let enough = |report: &EnvReport| report.counter("reactor_writes") >= 32;
    until(&env, enough, || {
        n += 1;
        write_table(&env, &dir.join(n.to_string()), 8);
    });
    // Whatever was cancelled was written all the same, and is in the report.
    let report = env.report();
    let again = report.counter("retried_canceled") + report.counter("taken_back");
    assert!(report.counter("fallback_pwrites") >= again, "{report}");
    say_figures("after", &[&env]);
}

/// The level of an open breaker; none if it is closed.
fn open_level(env: &IoUringEnv) -> Option<u64> {
    let level = env.shared.breaker.level();
    env.shared.breaker.is_open().then_some(level)
}

/// Writes in place that a queue gives to a ring need workers of the thread that does, and none can
/// be made: what the kernel cancels is written all the same, each cancelled write having held its
/// thread up for a while; so after a few of them no write may meet a ring for a long time.
fn queued_writes_without_workers(env: &IoUringEnv, dir: &Path) {
    const WRITES: u64 = 16;
    let path = dir.join("in place");
    let file = env.open_rw(&path).unwrap();
    let mut while_open = 0;
    for round in 0..400 * soak() {
        let open_before = open_level(env);
        let before = env.report();
        let write = |n: u64| Request::Write {
            file: Arc::clone(&file),
            offset: n * 4096,
            data: Buffer::from(&bytes(round + n, 4096)[..]),
        };
        for result in read_batch(env, (0..WRITES).map(write).collect()) {
            result.unwrap();
        }
        let there = std::fs::read(&path).unwrap();
        for n in 0..WRITES {
            let at = usize::try_from(n).unwrap() * 4096;
            assert!(there[at..at + 4096] == bytes(round + n, 4096)[..], "write {n} of {round}");
        }
        // Each of these writes worked off one step of the level, so it was open all the time.
        if open_before.is_some_and(|level| level > WRITES) {
            let since = env.report().since(&before);
            assert_eq!(
                since.counter("ring_writes"),
                0,
                "a ring while the breaker is open: {since}"
            );
            while_open += 1;
        }
    }
    let report = env.report();
    let canceled = report.counter("retried_canceled");
    assert!(canceled == 0 || report.counter("fallback_pwrites") >= canceled, "{report}");
    // A kernel or file system that needs no worker cancels nothing. A few may be cancelled in the
    // last round or far from each other; more open the breaker, and a round finds it so.
    assert!(canceled < 2 * WRITES * soak() || while_open > 0, "{report}");
    say_figures("queue", &[env]);
}

/// URING-24: of reads `denied` has the same.
#[test]
fn writes_go_on_when_entering_is_denied_in_mid_run() {
    const NAME: &str = "writes_go_on_when_entering_is_denied_in_mid_run";
    if refused() {
        return;
    }
    let Some(role) = role() else {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            let status = in_child(NAME, &errno.to_string());
            assert!(status.success(), "{errno}: {status}");
        }
        return;
    };
    let dir = on_disk();
    let env = IoUringEnv::builder().rings(2).write_path(WritePath::Reactor).build().unwrap();
    let (table, log) = (dir.path().join("table"), dir.path().join("log"));
    let (blocks, records) = (bytes(0, 12 << 18), bytes(9, 40 * 100));
    let mut writing = env.create(&table, FileKind::Table).unwrap();
    let mut logging = env.create(&log, FileKind::Log).unwrap();
    let in_place = env.open_rw(&dir.path().join("in place")).unwrap();
    let mut queue = env.queue();
    for n in 0..64 {
        let data = Buffer::from(&bytes(n * 7, 4096)[..]);
        queue.push(n, Request::Write { file: Arc::clone(&in_place), offset: n * 4096, data });
    }
    queue.pop().unwrap().result.unwrap();
    logging.append(&records[..2000]).unwrap();
    writing.append(&blocks[..3 << 18]).unwrap();
    let before = env.report();
    assert!(before.counter("ring_writes") > 0 && before.counter("reactor_writes") > 0, "{before}");

    let enter = [libc::SYS_io_uring_enter];
    filter_calls_of_the_process(&enter, Instead::Errno(role.parse().unwrap()));
    for part in blocks[3 << 18..].chunks(100_000) {
        writing.append(part).unwrap();
    }
    for record in records[2000..].chunks(100) {
        logging.append(record).unwrap();
    }
    while let Some(completion) = queue.pop() {
        completion.result.unwrap();
    }
    drop(queue);
    writing.finish().unwrap();
    logging.finish().unwrap();
    assert!(std::fs::read(&table).unwrap() == blocks && std::fs::read(&log).unwrap() == records);
    let there = std::fs::read(dir.path().join("in place")).unwrap();
    for (n, page) in there.chunks(4096).enumerate() {
        assert!(*page == bytes(n as u64 * 7, 4096)[..], "write {n}");
    }
    assert_eq!(there.len(), 64 * 4096);

    // No other ring can be made, so the reactor has ended, and the report tells of all that.
    let mut n = 0;
    let ended = |report: &EnvReport| report.counter("reactor_alive") == 0;
    until(&env, ended, || {
        n += 1;
        write_table(&env, &dir.path().join(n.to_string()), 4);
    });
    write_table(&env, &dir.path().join("last"), 4);
    let since = env.report().since(&before);
    assert!(since.counter("fallback_pwrites") > 0 && since.counter("ring_retired") >= 1, "{since}");
}

/// ENV-13: what was flushed survives the process, by every way of writing.
#[test]
fn flushed_bytes_survive_the_death_of_the_process() {
    const NAME: &str = "flushed_bytes_survive_the_death_of_the_process";
    if refused() {
        return;
    }
    let data = bytes(0, (2 << 20) + 333);
    let Some(role) = role() else {
        for path in ["auto", "reactor", "caller"] {
            for kind in ["log", "table"] {
                let dir = on_disk();
                let file = dir.path().join(kind);
                let status = in_child(NAME, &format!("{path}={kind}={}", file.display()));
                assert_eq!(status.signal(), Some(libc::SIGKILL), "{path} {kind}: {status}");
                assert!(std::fs::read(&file).unwrap() == data, "{path} {kind}");
            }
        }
        return;
    };
    let mut parts = role.splitn(3, '=');
    let mut part = || parts.next().unwrap();
    let path = match part() {
        "auto" => WritePath::Auto,
        "reactor" => WritePath::Reactor,
        _ => WritePath::Caller,
    };
    let kind = if part() == "log" { FileKind::Log } else { FileKind::Table };
    let env = writes::env(path);
    let mut file = env.create(Path::new(part()), kind).unwrap();
    for part in data.chunks(100_000) {
        file.append(part).unwrap();
    }
    file.flush().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
}
