//! Memory that a kernel is to know in advance: one mapping of a fixed size, from which a pool of
//! its own cuts buffers.
//!
//! Invariants:
//! * The mapping stays as it is from the first slab to the last: it is unmapped when neither a slab
//!   nor anybody who told a kernel of it holds the arena any more.
//! * A slab of the arena is out in the hands of one holder, or free.

use std::ops::Range;

use memmap2::MmapRaw;

use super::pool::BufferPool;
use super::slab::{Slab, map_aligned};
use crate::Buffer;
use crate::sync::{Arc, Mutex};

/// See the module.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    skip: usize,
    slabs: usize,
    free: Mutex<Vec<usize>>,
}

impl Arena {
    /// Bytes of an arena are a multiple of this.
    pub(crate) const UNIT: usize = Slab::SIZE;

    /// An arena of so many bytes, rounded down to whole slabs; `None` if the address space has no
    /// room for it, or not even one slab was asked for.
    pub(crate) fn new(bytes: usize) -> Option<Arc<Self>> {
        let slabs = bytes / Slab::SIZE;
        if slabs == 0 {
            return None;
        }
        let (map, skip) = map_aligned(slabs * Slab::SIZE)?;
        // The lowest is taken first.
        let free = Mutex::new((0..slabs).rev().collect());
        Some(Arc::new(Self { map, skip, slabs, free }))
    }

    /// Where it begins; for [`Arena::len`] bytes.
    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.skip)
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.slabs * Slab::SIZE
    }

    /// Whether all of `len` bytes from `start` are in it.
    pub(crate) fn holds(&self, start: *const u8, len: usize) -> bool {
        let Range { start: first, end } = self.addresses();
        let start = start.addr();
        start >= first && start <= end && len <= end - start
    }

    fn addresses(&self) -> Range<usize> {
        let start = self.start().addr();
        start..start + self.len()
    }

    /// A slab that nobody has.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slab> {
        let number = self.free.lock().pop()?;
        Some(Slab::of_arena(self, number))
    }

    /// Takes a slab back.
    pub(super) fn give_back(&self, number: usize) {
        self.free.lock().push(number);
    }
}

/// Buffers cut from an arena.
#[derive(Clone, Debug)]
pub(crate) struct ArenaPool(Arc<BufferPool>);

impl ArenaPool {
    /// The only pool of an arena. It keeps a quarter of it cut up in the sizes last used, and gives
    /// the rest back to be cut anew.
    pub(crate) fn new(arena: &Arc<Arena>) -> Self {
        Self(BufferPool::over(arena, arena.len() / 4))
    }

    /// A buffer of `len` bytes as from [`BufferPool::take`], but at least a page and all of it in
    /// the arena; `None` if it has no room, or for more than a MiB.
    pub(crate) fn take(&self, len: usize) -> Option<Buffer> {
        self.0.take_from_arena(len.max(Buffer::ALIGN)).map(|buffer| buffer.narrowed(0, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(arena: &Arena, buffer: &Buffer) -> bool {
        arena.holds(buffer.as_ptr(), buffer.len())
    }

    #[test]
    fn all_buffers_lie_in_the_arena_until_it_is_used_up_and_its_room_comes_back() {
        let arena = Arena::new(3 * Arena::UNIT + 5).unwrap();
        assert_eq!(arena.len(), 3 * Arena::UNIT);
        let pool = ArenaPool::new(&arena);
        for len in [4096, 20_000, 1 << 20, 100, 256 << 10] {
            let mut taken: Vec<Buffer> = Vec::new();
            while let Some(mut buffer) = pool.take(len) {
                assert!(buffer.len() == len && inside(&arena, &buffer), "{len}");
                assert!(buffer.as_ptr().addr().is_multiple_of(4096));
                buffer.as_mut_slice().fill(1);
                taken.push(buffer);
            }
            let smallest = 3 * Arena::UNIT / (len + len / 4).max(8192);
            assert!(taken.len() >= smallest, "{} buffers of {len}", taken.len());
        }
        assert!(pool.take((1 << 20) + 1).is_none());
    }

    #[test]
    fn when_all_is_cut_a_larger_block_has_to_do() {
        let arena = Arena::new(Arena::UNIT).unwrap();
        let pool = ArenaPool::new(&arena);
        let large: Vec<Buffer> = (0..2).map(|_| pool.take(1 << 20).unwrap()).collect();
        assert!(pool.take(4096).is_none());
        let mut large = large.into_iter();
        let first = large.next().map(|buffer| buffer.as_ptr()).unwrap();
        let small = pool.take(4096).unwrap();
        assert_eq!((small.len(), small.capacity(), small.as_ptr()), (4096, 1 << 20, first));
        assert!(pool.take(4096).is_none());
    }

    #[test]
    fn an_arena_outlives_its_pool_as_long_as_a_buffer_is_used() {
        let arena = Arena::new(Arena::UNIT).unwrap();
        let pool = ArenaPool::new(&arena);
        let mut buffer = pool.take(8192).unwrap();
        let weak = Arc::downgrade(&arena);
        drop((pool, arena));
        buffer.as_mut_slice().fill(7);
        assert!(weak.upgrade().is_some());
        drop(buffer);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn what_begins_before_or_ends_behind_is_not_inside() {
        let arena = Arena::new(Arena::UNIT).unwrap();
        let (start, len) = (arena.start().cast_const(), arena.len());
        assert!(arena.holds(start, len) && arena.holds(start.wrapping_add(len), 0));
        assert!(!arena.holds(start.wrapping_sub(1), 2));
        assert!(!arena.holds(start, len + 1));
        assert!(!arena.holds(start.wrapping_add(len - 1), 2));
        assert!(!arena.holds(start.wrapping_add(1), usize::MAX));
        assert!(Arena::new(Arena::UNIT - 1).is_none() && Arena::new(usize::MAX / 2).is_none());
    }
}
