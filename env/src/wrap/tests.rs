//! Wrappers over memory under a real seccomp filter: no call to the operating system for a file.
//!
//! The test binary is run again for one test, in a process whose test thread, and every thread
//! that it starts, is killed for the first system call that has to do with files.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use crate::conformance::{CASES, Site};
use crate::sys::filter::{Instead, filter_calls};
use crate::{
    Access, CountEnv, Env, Fault, FaultEnv, FaultKind, FileKind, MemEnv, MirrorEnv, Op, PosixEnv,
};

/// Names what the process that this runs in has to do.
const ROLE: &str = "TREERING_TEST_ROLE";

/// Every system call by which a file or a ring could be reached, written, named or removed.
const FILE_CALLS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_readv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_flock,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_memfd_create,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
];

/// Those that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const OLD_FILE_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mkdir,
    libc::SYS_getdents,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FILE_CALLS: &[libc::c_long] = &[];

/// From now on the first of these calls by this thread, or by one that it starts, is the end of the
/// process.
fn no_file_calls() {
    let all = [FILE_CALLS, OLD_FILE_CALLS].concat();
    filter_calls(&all, Instead::Kill);
}

/// Runs the test called `name` of this module in a process of its own.
fn in_a_process(name: &str, role: &str) -> Output {
    let test = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture"])
        .env(ROLE, role)
        // So that the allocator does not read from `/sys` how many processors there are.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap()
}

fn memory() -> Arc<dyn Env> {
    Arc::new(MemEnv::new())
}

/// A counting environment over one that has a fault waiting, over memory.
fn stack() -> CountEnv {
    let faults = FaultEnv::new(memory());
    faults.add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::Sync).path("unlucky"));
    CountEnv::new(Arc::new(faults))
}

/// The conformance suite, but for the case that measures the process: it reads from `/proc` itself.
fn run_suite(make: impl Fn() -> (Arc<dyn Env>, PathBuf)) {
    let cases = || CASES.iter().filter(|case| case.name != "memory_in_flight_is_bounded");
    assert_eq!(cases().count(), CASES.len() - 1);
    for case in cases() {
        let (env, dir) = make();
        (case.run)(&Site { env, dir });
    }
}

/// ENV-11
#[test]
fn wrappers_over_memory_make_no_system_call_for_a_file() {
    if std::env::var_os(ROLE).is_some() {
        no_file_calls();
        run_suite(|| (Arc::new(stack()), PathBuf::new()));
        run_suite(|| {
            let two = ["first", "second"].map(|name| (memory(), PathBuf::from(name)));
            for (env, dir) in &two {
                env.create_dir_all(dir).unwrap();
            }
            let [first, second] = two;
            (Arc::new(MirrorEnv::new(first, second)), PathBuf::new())
        });
        // A failing call must not reach past the memory either.
        let env = stack();
        let mut file = env.create(Path::new("unlucky"), FileKind::Log).unwrap();
        file.append(b"lost").unwrap();
        assert_eq!(file.sync().unwrap_err().errno(), Some(libc::EIO));
        return;
    }
    let output = in_a_process("wrappers_over_memory_make_no_system_call_for_a_file", "wrappers");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("1 passed"), "{output:?}");
}

/// The filter sees what an environment over the operating system does: the first call of any kind
/// is the end of its process.
#[test]
fn an_environment_over_the_system_does_not_survive_the_same_filter() {
    let path = std::env::temp_dir();
    if let Some(role) = std::env::var_os(ROLE) {
        let env = CountEnv::new(Arc::new(FaultEnv::new(Arc::new(PosixEnv::new()))));
        no_file_calls();
        // None of these comes back.
        match role.to_str().unwrap() {
            "open" => drop(env.open(&path.join("absent"), Access::Random)),
            "metadata" => drop(env.metadata(&path.join("absent"))),
            "remove" => drop(env.remove(&path.join("absent"))),
            "free_space" => drop(env.free_space(&path)),
            other => panic!("there is no role {other}"),
        }
        return;
    }
    for role in ["open", "metadata", "remove", "free_space"] {
        let name = "an_environment_over_the_system_does_not_survive_the_same_filter";
        let output = in_a_process(name, role);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{role}: {output:?}");
    }
}
