//! A ring that does no reads and writes: it keeps something of the kernel's that other rings share.

use std::mem;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::IoUring;

use super::give_memory_back;
use crate::process::Process;

/// See the module.
pub(super) struct Keeper {
    /// There until this is dropped.
    ring: Option<IoUring>,
    owner: Process,
}

impl Keeper {
    pub(super) fn new(ring: IoUring) -> Self {
        Self { ring: Some(ring), owner: Process::current() }
    }

    pub(super) fn ring(&self) -> &IoUring {
        self.ring.as_ref().expect("the ring is there until this is dropped")
    }

    /// What other rings name it by.
    pub(super) fn fd(&self) -> RawFd {
        self.ring().as_raw_fd()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.owner.is_current() {
            give_memory_back();
        } else {
            // A forked child: what the ring had mapped is not here, and may be something else.
            mem::forget(self.ring.take());
        }
    }
}
