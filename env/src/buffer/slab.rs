//! Memory for many buffers at once, of the size of a huge page.
//!
//! Blocks read at random are each on a page of their own, so touching one costs a walk through the
//! page tables, and under a hypervisor a walk through its tables for each step of it. One entry of
//! the processor's table for a huge page stands for 512 of them.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapRaw};

/// Zeroed memory that is handed out in pieces.
#[derive(Debug)]
pub(super) struct Slab {
    /// Twice the size, so that an aligned part is in it. What is never touched takes no memory.
    map: MmapRaw,
    /// Where the aligned part begins.
    skip: usize,
}

impl Slab {
    /// Bytes in a slab, and what it is aligned to: a huge page where pages have 4 KiB.
    pub(super) const SIZE: usize = 2 << 20;

    /// A new one. Aborts like any allocation if there is no memory.
    pub(super) fn new() -> Self {
        let map = MmapMut::map_anon(2 * Self::SIZE).unwrap_or_else(|_| {
            let layout = Layout::from_size_align(2 * Self::SIZE, Self::SIZE);
            handle_alloc_error(layout.expect("a size in range and a power of two"))
        });
        let map = MmapRaw::from(map);
        let skip = map.as_ptr().align_offset(Self::SIZE);
        // What pieces rely on; the method itself promises less.
        assert!(skip < Self::SIZE, "twice the size has an aligned part");
        // Advice: without huge pages the memory is as good, only slower. For all of the mapping, so
        // that the kernel keeps it, and neighbours like it, as one.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Self { map, skip }
    }

    /// Where the `len` bytes from `offset` are. They are valid as long as the slab, and are
    /// reached by this pointer only.
    pub(super) fn piece(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= Self::SIZE && len <= Self::SIZE - offset, "a piece lies in its slab");
        let address = self.map.as_mut_ptr().wrapping_add(self.skip + offset);
        NonNull::new(address).expect("a mapping is not at address 0")
    }
}
