//! A piece of memory: zeroed at first, aligned for direct I/O, owned by one holder. It is on its
//! own, or cut from a slab that goes when the last of its pieces does.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

#[cfg(all(test, target_os = "linux"))]
use super::guarded::Guarded;
use super::slab::Slab;
use crate::sync::Arc;

/// What blocks of at least this size are aligned to: the largest alignment that direct I/O needs
/// on common devices, and the size of a page.
pub(super) const ALIGN: usize = 4096;

/// Memory of a fixed size, initialised from the start.
///
/// Invariant: `memory` points to `len` initialised bytes that nothing but this block uses, and
/// that `home` keeps alive.
pub(super) struct Block {
    memory: NonNull<u8>,
    len: usize,
    home: Home,
}

/// Where a block's memory comes from, and goes.
enum Home {
    /// Allocated by `alloc_zeroed` with this layout, or dangling if it has no size; freed with the
    /// block.
    Own(Layout),
    /// A part of a slab, which no other block has, and the number that its pool gave the slab.
    Slab { _keep: Arc<Slab>, number: usize },
    /// Its own mapping, watched by tests.
    #[cfg(all(test, target_os = "linux"))]
    Guarded(#[expect(dead_code, reason = "dropped with the block")] Box<Guarded>),
}

// SAFETY: a block owns its memory alone, as a `Box<[u8]>` does, and bytes have no thread affinity.
unsafe impl Send for Block {}
// SAFETY: through a shared block the memory can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// `size` zeros. Aborts like any allocation if there is no memory.
    pub(super) fn zeroed(size: usize) -> Self {
        let align = if size >= ALIGN { ALIGN } else { align_of::<u64>() };
        let layout = Layout::from_size_align(size, align)
            .expect("no range of a file in memory is near half of the address space");
        Self { memory: allocate(layout), len: size, home: Home::Own(layout) }
    }

    /// Memory for `len` bytes that notices what is done to it too late or too far.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn guarded(len: usize) -> Self {
        let guarded = Box::new(Guarded::new(len));
        let (memory, len) = guarded.memory();
        Self { memory, len, home: Home::Guarded(guarded) }
    }

    /// A slab cut into blocks of `size` bytes, zeros unless the slab came back to an arena before.
    /// They carry the slab's `number`.
    pub(super) fn cut(slab: Slab, size: usize, number: usize) -> impl Iterator<Item = Self> {
        let slab = Arc::new(slab);
        (0..Slab::SIZE / size).map(move |piece| {
            let memory = slab.piece(piece * size, size);
            Self { memory, len: size, home: Home::Slab { _keep: Arc::clone(&slab), number } }
        })
    }

    /// The number of the slab that it is part of, if it is.
    pub(super) fn slab_number(&self) -> Option<usize> {
        if let Home::Slab { number, .. } = self.home { Some(number) } else { None }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: by the invariant `memory` points to `len` bytes (any non-null pointer does for
        // none), initialised at allocation, and they live as long as `self`, whose borrow forbids
        // changes meanwhile.
        unsafe { slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow of the only owner forbids any other access.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Home::Own(layout) = self.home
            && layout.size() > 0
        {
            // SAFETY: by the invariant the memory came from this layout and is freed only here,
            // once, when its only owner goes.
            unsafe { dealloc(self.memory.as_ptr(), layout) }
        }
    }
}

/// Zeroed memory of that layout; a dangling pointer if it has no size.
fn allocate(layout: Layout) -> NonNull<u8> {
    if layout.size() == 0 {
        return NonNull::dangling();
    }
    // SAFETY: the layout has a size above zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}
