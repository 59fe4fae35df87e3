//! A real seccomp filter on the calling thread, for tests: what an environment does where the
//! kernel denies a call, as in a container.

/// What becomes of a call that a filter names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// It fails with this error number.
    Errno(i32),
    /// It is the end of the process, by SIGSYS.
    #[cfg_attr(
        not(all(test, feature = "test-util")),
        expect(dead_code, reason = "only tests of the wrappers end processes")
    )]
    Kill,
}

/// Lets the kernel answer `io_uring_setup` with `errno` on the calling thread from now on, and on
/// every thread and in every process that it starts. It cannot be taken back, so a test calls this
/// on a thread of its own.
///
/// # Panics
/// If the kernel has no seccomp filters.
#[cfg(feature = "test-util")]
pub fn deny_io_uring(errno: i32) {
    filter_calls(&[libc::SYS_io_uring_setup], Instead::Errno(errno));
}

/// The same for any calls and either answer.
pub(crate) fn filter_calls(numbers: &[libc::c_long], instead: Instead) {
    install(numbers, instead, 0);
}

/// The same for all threads of the process, those that the kernel works with included.
#[cfg(test)]
pub(crate) fn filter_calls_of_the_process(numbers: &[libc::c_long], instead: Instead) {
    install(numbers, instead, libc::SECCOMP_FILTER_FLAG_TSYNC);
}

fn install(numbers: &[libc::c_long], instead: Instead, flags: libc::c_ulong) {
    let op = |bits: u32| u16::try_from(bits).expect("an opcode has 16 bits");
    let step = |code, jf, k| libc::sock_filter { code: op(code), jt: 0, jf, k };
    let answer = |k| step(libc::BPF_RET | libc::BPF_K, 0, k);
    let instead = match instead {
        Instead::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        Instead::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    // The number of the call is the first word of what a filter sees.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for number in numbers {
        let number = u32::try_from(*number).expect("system calls have small numbers");
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number));
        filter.push(answer(instead));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    let len = u16::try_from(filter.len()).expect("a filter names few calls");
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: both calls only read their arguments; `program` and the `len` instructions that it
    // points to live to the end of this function.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    assert_eq!(installed, 0, "a seccomp filter: {}", std::io::Error::last_os_error());
}
