//! The kernel's thread that looks for entries in rings (SQPOLL), so that submitting is no system
//! call while it is awake: one for all rings of an environment.
//!
//! It belongs to a ring that does nothing else. A ring that is made for queues joins it, and may
//! come and go.

use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::IoUring;

use super::keeper::Keeper;
use super::{Errno, errno_of};

/// See the module.
pub(crate) struct PollThread {
    keeper: Keeper,
    idle: Duration,
}

impl PollThread {
    /// Starts the thread, which sleeps after `idle` without an entry.
    pub(crate) fn start(idle: Duration) -> Result<Self, Errno> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_sqpoll(milliseconds(idle)).setup_r_disabled();
        let ring = builder.build(1).map_err(|e| errno_of(&e))?;
        Ok(Self { keeper: Keeper::new(ring), idle })
    }

    /// The ring to join.
    pub(super) fn fd(&self) -> RawFd {
        self.keeper.fd()
    }

    /// After so many milliseconds without an entry the thread sleeps.
    pub(crate) fn idle_ms(&self) -> u32 {
        milliseconds(self.idle)
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl fmt::Debug for PollThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PollThread({:?})", self.idle)
    }
}
