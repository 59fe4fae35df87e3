//! A piece of memory on its own: allocated zeroed, aligned for direct I/O, freed when dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

/// What blocks of at least this size are aligned to: the largest alignment that direct I/O needs
/// on common devices, and the size of a page.
pub(super) const ALIGN: usize = 4096;

/// Memory of a fixed size, initialised from the start.
///
/// Invariant: `memory` was allocated by `alloc_zeroed` with `layout`, or is dangling if the layout
/// has no size; nothing else frees it or holds a pointer to it.
pub(super) struct Block {
    memory: NonNull<u8>,
    layout: Layout,
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
        Self { memory: allocate(layout), layout }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: by the invariant `memory` points to `layout.size()` bytes (any non-null pointer
        // does for none), initialised at allocation, and they live as long as `self`, whose
        // borrow forbids changes meanwhile.
        unsafe { slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow of the only owner forbids any other access.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.layout.size())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: by the invariant the memory came from this layout and is freed only here,
            // once, when its only owner goes.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) }
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
