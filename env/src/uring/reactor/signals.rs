//! Keeping signals off the reactor's thread: one that is pending there makes the kernel fail to
//! start a worker, and cancel what the worker was to do.

/// Blocks every signal that can be blocked, for the calling thread.
pub(super) fn block_all() {
    // SAFETY: `all` is a plain value of which every bit pattern is valid, filled by the first call
    // and only read by the second; nothing else is passed.
    let blocked = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut())
    };
    assert_eq!(blocked, 0, "a thread may block signals for itself");
}
