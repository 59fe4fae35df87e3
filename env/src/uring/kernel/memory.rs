//! Memory that the kernel keeps pinned for an environment's rings, so that no read or write has to
//! pin and release the pages it uses.
//!
//! The memory is registered once, with a ring that does nothing else. The others take that
//! registration over (Linux 6.12), which pins nothing again and counts no memory again as locked;
//! on older kernels each registers for itself.

use std::fmt;

use io_uring::IoUring;

use super::keeper::Keeper;
use super::{Errno, errno_of};
use crate::buffer::Arena;
use crate::sync::Arc;

/// An arena that is registered.
pub(crate) struct Registered {
    /// Declared before the arena, and so dropped before it.
    keeper: Keeper,
    arena: Arc<Arena>,
}

impl Registered {
    /// Registers an arena of `bytes`, or of as many halves of it as this user may lock.
    pub(crate) fn new(bytes: usize) -> Result<Arc<Self>, Errno> {
        let mut size = bytes;
        loop {
            match Self::of_size(size) {
                Err(libc::ENOMEM) if size / 2 >= Arena::UNIT => size /= 2,
                other => return other.map(Arc::new),
            }
        }
    }

    fn of_size(bytes: usize) -> Result<Self, Errno> {
        let arena = Arena::new(bytes).ok_or(libc::ENOMEM)?;
        let mut builder = IoUring::builder();
        let ring = builder.dontfork().build(1).map_err(|e| errno_of(&e))?;
        // Kept only then: a keeper that goes says that memory was given back.
        register(&ring, &arena)?;
        Ok(Self { keeper: Keeper::new(ring), arena })
    }

    /// The memory.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes)", self.arena.len())
    }
}

/// The memory that one ring knows, as its buffer number 0.
#[derive(Debug, Default)]
pub(super) enum Known {
    /// Nobody asked.
    #[default]
    Nothing,
    /// All of it. Declared to outlive the ring.
    All(Arc<Registered>),
    /// The kernel would not.
    Refused,
}

impl Known {
    /// Makes the memory known to `ring`, or notes that it cannot be.
    pub(super) fn learn(&mut self, ring: &IoUring, memory: &Arc<Registered>) {
        if !matches!(self, Self::Nothing) {
            return;
        }
        let taken_over = ring.submitter().register_buffers_clone(memory.keeper.fd()).is_ok();
        let known = taken_over || register(ring, &memory.arena).is_ok();
        *self = if known { Self::All(Arc::clone(memory)) } else { Self::Refused };
    }

    /// Whether all of these bytes are among what is known.
    pub(super) fn holds(&self, start: *const u8, len: usize) -> bool {
        match self {
            Self::All(memory) => memory.arena.holds(start, len),
            Self::Nothing | Self::Refused => false,
        }
    }
}

/// Registers all of an arena as the only buffer of `ring`.
fn register(ring: &IoUring, arena: &Arena) -> Result<(), Errno> {
    let all = libc::iovec { iov_base: arena.start().cast(), iov_len: arena.len() };
    // SAFETY: the kernel pins the pages of the mapping, which `arena` keeps as it is. Whoever holds
    // the ring holds the arena at least as long: a `Registered` has both and drops its ring first,
    // and a ring that learned of it keeps it in `Known`, declared behind the ring. In a forked
    // child the ring is forgotten, and registers nothing there.
    unsafe { ring.submitter().register_buffers(&[all]) }.map_err(|e| errno_of(&e))
}
