//! A thread whose system calls are denied by a real seccomp filter, as in a container.
//!
//! A filter holds for the thread that installs it and for good, so each test makes a thread.

use super::*;
use crate::sys::filter::{Instead, filter_calls};

/// Runs `body` on a thread of its own.
fn on_a_thread(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body).join().unwrap();
}

/// Lets the kernel answer system call `number` of this thread with `errno` from now on.
fn deny(number: libc::c_long, errno: i32) {
    filter_calls(&[number], Instead::Errno(errno));
}

/// URING-23
#[test]
fn a_filter_on_setup_is_named_as_the_cause() {
    if refused() {
        return;
    }
    for errno in [libc::EPERM, libc::ENOSYS] {
        on_a_thread(move || {
            deny(libc::SYS_io_uring_setup, errno);
            let cause = IoUringEnv::new().unwrap_err();
            assert_eq!(cause, Unavailable::Denied { seccomp: true, errno });
            let text = cause.to_string();
            assert!(text.contains("seccomp filter on this thread: yes"), "{text}");
            assert!(text.contains("--security-opt seccomp="), "{text}");
            let (env, choice) = crate::auto();
            assert_eq!((env.report().env, choice.env()), ("posix", "posix"));
            assert_eq!(choice.unavailable(), Some(&cause));
        });
    }
}

/// URING-23: what runs out is named, not taken for a denial.
#[test]
fn a_setup_that_finds_no_descriptor_or_no_memory_is_named_as_the_cause() {
    if refused() {
        return;
    }
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
        on_a_thread(move || {
            deny(libc::SYS_io_uring_setup, errno);
            let cause = IoUringEnv::new().unwrap_err();
            let named = match errno {
                libc::ENOMEM => matches!(cause, Unavailable::LockedMemory { .. }),
                _ => cause == Unavailable::Descriptors,
            };
            assert!(named, "errno {errno}: {cause}");
            let (env, choice) = crate::auto();
            assert_eq!((env.report().env, choice.env()), ("posix", "posix"));
            assert_eq!(choice.unavailable(), Some(&cause));
        });
    }
}

/// URING-24
#[test]
fn a_filter_on_entering_is_found_by_the_self_test() {
    if refused() {
        return;
    }
    on_a_thread(|| {
        deny(libc::SYS_io_uring_enter, libc::EPERM);
        let cause = IoUringEnv::new().unwrap_err();
        let expected = Unavailable::SelfTest { step: SelfTestStep::Nop, errno: libc::EPERM };
        assert_eq!(cause, expected);
        assert!(cause.to_string().contains("seccomp=unconfined"), "{cause}");
    });
}

/// URING-24
#[test]
fn a_filter_on_registering_is_named_with_the_step_that_failed() {
    if refused() {
        return;
    }
    on_a_thread(|| {
        deny(libc::SYS_io_uring_register, libc::EPERM);
        // A ring that starts disabled cannot be enabled without registering.
        let cause = IoUringEnv::new().unwrap_err();
        let expected = Unavailable::SelfTest { step: SelfTestStep::Enable, errno: libc::EPERM };
        assert_eq!(cause, expected);
    });
}

/// URING-24
#[test]
fn reads_go_on_when_entering_is_denied_in_mid_run() {
    if refused() {
        return;
    }
    on_a_thread(|| {
        let dir = on_disk();
        let path = cold_file(&dir, "t", 64 * 4 * 4096);
        let env = IoUringEnv::builder().rings(2).nowait(false).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let ranges = scattered(64);
        let mut queue = env.queue();
        until(
            &env,
            |report| report.counter("ring_reads") > report.counter("ring_cqes"),
            || {
                queue = env.queue();
                evict(&path);
                for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
                    queue.push(tag as u64, request);
                }
            },
        );
        deny(libc::SYS_io_uring_enter, libc::EPERM);
        while let Some(completion) = queue.pop() {
            let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
            assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
        }
        drop(queue);
        let done_without = |report: &EnvReport| {
            report.counter("ring_retired") > 0 && report.counter("fallback_preads") > 0
        };
        until(&env, done_without, || {
            evict(&path);
            assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        });
    });
}

/// URING-24, URING-37: what is pushed then for a thread that sleeps nobody takes.
#[test]
fn reads_go_on_when_entering_is_denied_and_the_poll_thread_sleeps() {
    if refused() {
        return;
    }
    on_a_thread(|| {
        let dir = on_disk();
        let path = cold_file(&dir, "t", 64 * 4 * 4096);
        let builder = IoUringEnv::builder().rings(1).nowait(false).allow_few_cores(true);
        let builder = builder.sqpoll(Duration::from_millis(1)).write_path(WritePath::Caller);
        let env = builder.build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let ranges = scattered(64);
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        deny(libc::SYS_io_uring_enter, libc::EPERM);
        let given_up = |report: &EnvReport| report.counter("ring_retired") > 0;
        until(&env, given_up, || {
            std::thread::sleep(Duration::from_millis(20));
            evict(&path);
            assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        });
    });
}

/// What an environment that is built where something is denied tells, and what it then reports.
#[cfg(feature = "tracing")]
fn told_of_building() -> (Vec<String>, EnvReport) {
    let mut report = None;
    let told = crate::trace::told_by(|| {
        report = Some(IoUringEnv::builder().rings(1).build().unwrap().report());
    });
    (told, report.unwrap())
}

/// URING-28
#[cfg(feature = "tracing")]
#[test]
fn where_setup_is_denied_the_program_is_told_that_plain_calls_are_used() {
    if refused() {
        return;
    }
    on_a_thread(|| {
        let told = crate::trace::told_by(|| assert_eq!(crate::auto().1.env(), "io_uring"));
        assert!(!told.iter().any(|line| line.contains("plain calls are used")), "{told:?}");
        deny(libc::SYS_io_uring_setup, libc::EPERM);
        let told = crate::trace::told_by(|| assert_eq!(crate::auto().1.env(), "posix"));
        let cause = IoUringEnv::new().unwrap_err();
        let message = "WARN message=io_uring is not available: plain calls are used cause=";
        assert_eq!(told, [format!("{message}{cause}")]);
    });
}

/// URING-36
#[cfg(feature = "tracing")]
#[test]
fn an_environment_without_a_reactor_tells_why() {
    const MESSAGE: &str =
        "WARN message=no reactor: tables are written on the calling thread cause=";
    if refused() {
        return;
    }
    on_a_thread(|| {
        // As in a container with its processes used up.
        filter_calls(&[libc::SYS_clone, libc::SYS_clone3], Instead::Errno(libc::EAGAIN));
        let (told, report) = told_of_building();
        let one_core = std::thread::available_parallelism().unwrap().get() == 1;
        let why = if one_core { "one processor" } else { "thread" };
        assert!(told.len() == 1 && told[0].starts_with(MESSAGE), "{told:?}");
        assert!(told[0].contains(why), "{told:?}");
        assert_eq!(report.counter("reactor_alive"), 0, "{report}");
    });
    on_a_thread(|| {
        let mut one = rustix::thread::CpuSet::new();
        let may = rustix::thread::sched_getaffinity(None).unwrap();
        one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| may.is_set(cpu)).unwrap());
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        let (told, report) = told_of_building();
        assert_eq!(told, [format!("{MESSAGE}there is one processor only")]);
        assert_eq!(report.counter("reactor_alive"), 0, "{report}");
    });
    on_a_thread(|| {
        // Who rules it out is not told that there is none.
        let told = crate::trace::told_by(|| {
            IoUringEnv::builder().rings(1).write_path(WritePath::Caller).build().unwrap();
        });
        assert!(!told.iter().any(|line| line.starts_with(MESSAGE)), "{told:?}");
    });
}
