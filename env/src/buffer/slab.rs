//! Memory for many buffers at once, of the size of a huge page.
//!
//! Blocks read at random are each on a page of their own, so touching one costs a walk through the
//! page tables, and under a hypervisor a walk through its tables for each step of it. One entry of
//! the processor's table for a huge page stands for 512 of them.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapRaw};

use super::arena::Arena;
use crate::sync::Arc;

/// Memory that is handed out in pieces; zeros when it is new.
#[derive(Debug)]
pub(super) struct Slab {
    home: Home,
}

/// Where a slab's memory comes from, and goes.
#[derive(Debug)]
enum Home {
    /// A mapping that goes with the slab, and where its aligned part begins.
    Own { map: MmapRaw, skip: usize },
    /// The part of an arena with that number, which goes back to it. It may hold old bytes.
    Arena(Arc<Arena>, usize),
}

impl Slab {
    /// Bytes in a slab, and what it is aligned to: a huge page where pages have 4 KiB.
    pub(super) const SIZE: usize = 2 << 20;

    /// A new one. Aborts like any allocation if there is no memory.
    pub(super) fn new() -> Self {
        let (map, skip) = map_aligned(Self::SIZE).unwrap_or_else(|| {
            let layout = Layout::from_size_align(2 * Self::SIZE, Self::SIZE);
            handle_alloc_error(layout.expect("a size in range and a power of two"))
        });
        Self { home: Home::Own { map, skip } }
    }

    /// The part of `arena` with that number, which nobody else has.
    pub(super) fn of_arena(arena: &Arc<Arena>, number: usize) -> Self {
        Self { home: Home::Arena(Arc::clone(arena), number) }
    }

    /// Where the `len` bytes from `offset` are. They are valid as long as the slab, and are
    /// reached by this pointer only.
    pub(super) fn piece(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= Self::SIZE && len <= Self::SIZE - offset, "a piece lies in its slab");
        let start = match &self.home {
            Home::Own { map, skip } => map.as_mut_ptr().wrapping_add(*skip),
            Home::Arena(arena, number) => {
                assert!((number + 1) * Self::SIZE <= arena.len(), "a slab lies in its arena");
                arena.start().wrapping_add(number * Self::SIZE)
            }
        };
        NonNull::new(start.wrapping_add(offset)).expect("a mapping is not at address 0")
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Home::Arena(arena, number) = &self.home {
            arena.give_back(*number);
        }
    }
}

/// A mapping, and where in it `len` bytes begin that are aligned to the size of a slab; `len` is a
/// multiple of that. `None` if there is no room.
pub(super) fn map_aligned(len: usize) -> Option<(MmapRaw, usize)> {
    // One slab more, so that an aligned part is in it. What is never touched takes no memory.
    let map = MmapMut::map_anon(len.checked_add(Slab::SIZE)?).ok()?;
    let map = MmapRaw::from(map);
    let skip = map.as_ptr().align_offset(Slab::SIZE);
    // What pieces rely on; the method itself promises less.
    assert!(skip < Slab::SIZE, "one slab more has an aligned part");
    // Advice: without huge pages the memory is as good, only slower. For all of the mapping, so
    // that the kernel keeps it, and neighbours like it, as one.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Some((map, skip))
}
