//! The bell of the reactor: an eventfd, which the kernel rings too when something completes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{self, Errno};

use super::inbox::Bell;

/// See the module.
#[derive(Debug)]
pub(crate) struct EventBell {
    fd: OwnedFd,
}

impl EventBell {
    /// A bell, or the error number that the kernel refuses it with.
    pub(crate) fn new() -> Result<Self, i32> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
        Ok(Self { fd })
    }

    /// What a ring is to signal.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        loop {
            match io::write(&self.fd, &1_u64.to_ne_bytes()) {
                Err(Errno::INTR) => {}
                // The count is never near its limit, where a write would wait.
                other => {
                    other.expect("our own eventfd can be written");
                    return;
                }
            }
        }
    }

    fn wait(&self) {
        loop {
            match io::read(&self.fd, &mut [0_u8; 8]) {
                Err(Errno::INTR) => {}
                other => {
                    other.expect("our own eventfd can be read");
                    return;
                }
            }
        }
    }
}
