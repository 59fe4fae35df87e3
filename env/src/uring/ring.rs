//! The seam below the ring queue: what it needs from an io_uring, as a private trait.
//!
//! [`KernelRing`](super::kernel::KernelRing) is the real thing. The tests put a scripted ring here,
//! because short transfers, lost completions and refused submissions cannot be ordered from a
//! kernel.

use std::fmt::Debug;

use super::kernel::Registered;
use crate::sync::Arc;

/// Completions copied out of a ring at once.
pub(crate) const DRAIN_BATCH: usize = 64;

/// A positive error number.
pub(crate) type Errno = i32;

/// What an entry asks the kernel to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Fill the memory from the file.
    Read,
    /// Fill several pieces of memory from one range of the file: `start` leads to a list of them
    /// (`struct iovec`), which has `len` members.
    ReadVectored,
    /// Write the memory to the file.
    Write,
    /// Start write-back of the range, which names no memory: a hint.
    StartWriteBack,
    /// Flush the file's data to the medium, and what is needed to read it back.
    Sync,
}

/// One operation, ready to be handed to the kernel. It never carries per-request flags:
/// `RWF_NOWAIT` in an entry would defeat the kernel's own retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) work: Work,
    pub(crate) fd: i32,
    pub(crate) start: *mut u8,
    pub(crate) len: u32,
    pub(crate) offset: u64,
    /// Comes back in the completion.
    pub(crate) user_data: u64,
}

/// One completion: the tag of the entry, and the bytes transferred or a negative error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
}

/// What one `enter` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    /// How many entries the kernel took, the oldest first.
    pub(crate) entries: usize,
    pub(crate) how: How,
}

/// Who took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// This system call.
    Call,
    /// The kernel's poll thread.
    PollThread {
        /// A system call was made all the same: to wait, or to wake the thread.
        called: bool,
        /// It was asleep.
        woken: bool,
    },
}

/// An io_uring in the hands of exactly one user: a queue, or the reactor.
pub(crate) trait Ring: Send + Debug {
    /// Submission entries; the completion side holds twice as many.
    fn entries(&self) -> usize;

    /// Puts an operation into the submission queue; false if that is full.
    ///
    /// # Safety
    ///
    /// The memory `entry.start..+entry.len` of a read must stay valid for writes, and be touched by
    /// nobody, until the completion of this entry was drained, or for ever if it never is; that of
    /// a write must as long stay valid for reads, and be changed by nobody. Of a vectored read the
    /// list is like the memory of a write, and what it names like that of a read. The one
    /// exception: an entry that the kernel has not taken, by what [`Ring::enter`] returned, was
    /// never seen by it, and never will be if no `enter` with `submit` follows.
    unsafe fn push(&mut self, entry: Entry) -> bool;

    /// Enters the kernel: offers what was pushed if `submit`, then waits until `wait` completions
    /// are there; it may return early, with fewer. After an error it has taken no entry, but for
    /// `EOWNERDEAD`, after which nothing is known of those that were pushed: a passing error is
    /// returned only where that is true.
    fn enter(&mut self, submit: bool, wait: usize) -> Result<Took, Errno>;

    /// Makes registered memory known to the ring, once; whether that worked, [`Ring::knows`] tells.
    fn learn(&mut self, _memory: &Arc<Registered>) {}

    /// Whether the memory of an entry is registered, so that its pages need not be pinned for it.
    fn knows(&self, _entry: &Entry) -> bool {
        false
    }

    /// Whether nothing of what was pushed shows unless somebody enters the kernel for it, as far as
    /// can be seen from here.
    fn must_be_entered(&mut self) -> bool {
        false
    }

    /// Moves up to [`DRAIN_BATCH`] completions that are already visible to the end of `into`.
    fn drain(&mut self, into: &mut Vec<Completed>);
}
