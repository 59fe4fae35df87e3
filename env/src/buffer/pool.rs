//! Memory for reads that is used again: without it a cold batch would allocate, fault in and zero
//! every block it reads.

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

use super::arena::Arena;
use super::block::Block;
use super::free::{Change, FreeBlocks};
use super::slab::Slab;
use super::{Buffer, Memory};

/// The smallest class; below half of it a plain allocation costs less than the unused rest.
const SMALLEST: usize = 4096;
const LARGEST: usize = BufferPool::LARGEST;
const CLASSES: usize = class_of(LARGEST) + 1;

/// Free memory in classes from 4 KiB to 1 MiB, bounded by a budget. From 16 KiB on there are four
/// classes to a doubling, so that no more than a quarter is added to what was asked for.
///
/// Only memory that could be given back counts against the budget: blocks on their own and slabs
/// of which nothing is in use. The free pieces of other slabs cost nothing more, and are used
/// before anything new is made. Buffers given out are their holders' affair, and taking one never
/// waits.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: [Mutex<FreeBlocks>; CLASSES],
    /// Bytes of all that is free. Relaxed, like `spare_bytes`: they only bound memory and inform,
    /// and the blocks themselves move under the mutexes.
    free_bytes: AtomicUsize,
    /// Bytes that could be given back.
    spare_bytes: AtomicUsize,
    budget: usize,
    /// Bytes that were not used before: from the operating system, or the arena.
    made_bytes: AtomicUsize,
    /// Where slabs come from, if not from the operating system.
    arena: Option<Arc<Arena>>,
}

impl BufferPool {
    /// The largest class; what is longer is allocated and freed.
    pub(super) const LARGEST: usize = 1 << 20;

    /// How much memory without use is kept unless told otherwise.
    pub(crate) const DEFAULT_BUDGET: usize = 64 << 20;

    /// An empty pool that keeps at most `budget` bytes that it could give back.
    pub(crate) fn new(budget: usize) -> Arc<Self> {
        Arc::new(Self::with(budget, None))
    }

    /// An empty pool of an arena's memory, for [`BufferPool::take_from_arena`]. Of what nobody uses
    /// it keeps at most `budget` bytes from being cut into other sizes.
    pub(super) fn over(arena: &Arc<Arena>, budget: usize) -> Arc<Self> {
        Arc::new(Self::with(budget, Some(Arc::clone(arena))))
    }

    fn with(budget: usize, arena: Option<Arc<Arena>>) -> Self {
        let free = std::array::from_fn(|_| Mutex::default());
        let (free_bytes, spare_bytes, made_bytes) = Default::default();
        Self { free, free_bytes, spare_bytes, budget, made_bytes, arena }
    }

    /// A buffer of `len` bytes of unspecified content (initialised, but perhaps from an earlier
    /// use): only for code that overwrites all of it before anyone else sees it.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        #[cfg(all(test, target_os = "linux"))]
        if len > 0 && super::guarded::is_on() {
            return Buffer { memory: Memory::Owned(Block::guarded(len)), start: 0, len };
        }
        if len <= SMALLEST / 2 || len > LARGEST {
            return Buffer::zeroed(len);
        }
        let class = class_of(len);
        let block = self.used_again(class).unwrap_or_else(|| self.fresh(class));
        Buffer { memory: Memory::Pooled(Some(block), Arc::clone(self)), start: 0, len }
    }

    /// A buffer as from [`BufferPool::take`], all of it in the pool's arena; `None` if that has no
    /// room, or for a length without a class. When all of the arena is cut, a free block of a
    /// larger class has to do.
    pub(super) fn take_from_arena(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let arena = self.arena.as_ref()?;
        if len > LARGEST {
            return None;
        }
        let class = class_of(len);
        let fitting = self.used_again(class);
        let fitting = fitting.or_else(|| arena.take().map(|slab| self.cut(slab, class)));
        let larger = || (class + 1..CLASSES).find_map(|class| self.used_again(class));
        let block = fitting.or_else(larger)?;
        Some(Buffer { memory: Memory::Pooled(Some(block), Arc::clone(self)), start: 0, len })
    }

    /// A free block.
    fn used_again(&self, class: usize) -> Option<Block> {
        let mut free = self.free[class].lock();
        let (block, change) = free.take()?;
        let size = size_of_class(class);
        self.free_bytes.fetch_sub(size, Ordering::Relaxed);
        if let Some(spare) = spare_bytes(&block, change) {
            self.spare_bytes.fetch_sub(spare, Ordering::Relaxed);
        }
        Some(block)
    }

    /// A new block; where the budget has room, the first of a slab whose others are free.
    fn fresh(&self, class: usize) -> Block {
        let size = size_of_class(class);
        if self.spare_bytes.load(Ordering::Relaxed) + Slab::SIZE > self.budget {
            self.made_bytes.fetch_add(size, Ordering::Relaxed);
            return Block::zeroed(size);
        }
        self.cut(Slab::new(), class)
    }

    /// The first block of a new slab, whose others are free.
    fn cut(&self, slab: Slab, class: usize) -> Block {
        let size = size_of_class(class);
        let mut free = self.free[class].lock();
        let block = free.add_slab(slab, size);
        self.made_bytes.fetch_add(Slab::SIZE, Ordering::Relaxed);
        self.free_bytes.fetch_add((Slab::SIZE / size - 1) * size, Ordering::Relaxed);
        block
    }

    /// Takes memory back; frees what could be, if enough is kept already.
    pub(super) fn give_back(&self, block: Block) {
        let size = block.as_slice().len();
        let class = &self.free[class_of(size)];
        let Some(number) = block.slab_number() else {
            if self.spare_bytes.fetch_add(size, Ordering::Relaxed) + size > self.budget {
                self.spare_bytes.fetch_sub(size, Ordering::Relaxed);
                return;
            }
            let mut free = class.lock();
            self.free_bytes.fetch_add(size, Ordering::Relaxed);
            free.keep_alone(block);
            return;
        };
        let slab = Slab::SIZE / size * size;
        let mut free = class.lock();
        self.free_bytes.fetch_add(size, Ordering::Relaxed);
        if free.keep_piece(block, number) == Change::WholeSlab
            && self.spare_bytes.fetch_add(slab, Ordering::Relaxed) + slab > self.budget
        {
            self.spare_bytes.fetch_sub(slab, Ordering::Relaxed);
            self.free_bytes.fetch_sub(slab, Ordering::Relaxed);
            let pieces = free.remove_slab(number);
            drop(free);
            drop(pieces);
        }
    }

    /// Bytes that are free for later use, in slabs that are partly in use too.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of blocks that were made, because no free one was there.
    pub(crate) fn made_bytes(&self) -> usize {
        self.made_bytes.load(Ordering::Relaxed)
    }

    /// The most it keeps that it could give back.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }
}

/// How many bytes were part of what could be given back, and are not when `block` was taken.
fn spare_bytes(block: &Block, change: Change) -> Option<usize> {
    let size = block.as_slice().len();
    match (block.slab_number(), change) {
        (None, _) => Some(size),
        (Some(_), Change::WholeSlab) => Some(Slab::SIZE / size * size),
        (Some(_), Change::Piece) => None,
    }
}

/// The smallest class whose blocks hold `len` bytes, which is at most `LARGEST`.
const fn class_of(len: usize) -> usize {
    let pages = len.div_ceil(SMALLEST);
    match pages {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => {
            let doubling = (pages - 1).ilog2() as usize;
            let quarter = (1 << doubling) / 4;
            2 + (doubling - 2) * 4 + (pages - (1 << doubling)).div_ceil(quarter)
        }
    }
}

/// The size of the blocks of a class.
const fn size_of_class(class: usize) -> usize {
    if class < 2 {
        return SMALLEST << class;
    }
    let (doubling, quarters) = (2 + (class - 2) / 4, (class - 2) % 4);
    SMALLEST * ((1 << doubling) / 4) * (4 + quarters)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        let pool = BufferPool::new(1 << 30);
        for (len, capacity) in [
            (0, 0),
            (2048, 2048),
            (2049, 4096),
            (4096, 4096),
            (4097, 8192),
            (4 * 4096 + 1, 5 * 4096),
            (5 * 4096 + 1, 6 * 4096),
            (8 * 4096 + 1, 10 * 4096),
            (5 << 16, 5 << 16),
            ((5 << 16) + 1, 6 << 16),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, (1 << 20) + 1),
        ] {
            let buffer = pool.take(len);
            assert_eq!((buffer.len(), buffer.capacity()), (len, capacity));
            assert!(capacity < 4096 || buffer.as_ptr().addr().is_multiple_of(4096));
        }
    }

    #[test]
    fn every_class_is_the_one_of_its_own_size() {
        for class in 0..CLASSES {
            assert_eq!(class_of(size_of_class(class)), class);
            assert!(size_of_class(class).is_multiple_of(SMALLEST));
            assert!(class == 0 || class_of(size_of_class(class - 1) + 1) == class);
        }
        assert_eq!(size_of_class(CLASSES - 1), LARGEST);
    }

    #[test]
    fn memory_is_used_again_and_the_free_part_keeps_to_the_budget() {
        let pool = BufferPool::new(16 << 10);
        let first = pool.take(4096);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.free_bytes(), 4096);
        let again = pool.take(3000);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(pool.free_bytes(), 0);
        let many: Vec<_> = (0..10).map(|_| pool.take(4096)).collect();
        drop(many);
        assert_eq!(pool.free_bytes(), 16 << 10);
        drop(pool.take(1 << 20));
        assert_eq!(pool.free_bytes(), 16 << 10);
        drop(again);
        assert_eq!(pool.free_bytes(), pool.budget());
    }

    /// Whoever keeps one buffer of many keeps a slab; what else is in it must be used again.
    #[test]
    fn pieces_of_slabs_in_use_are_taken_before_new_slabs_are_made() {
        let pool = BufferPool::new(4 << 20);
        let mut scattered: Vec<Buffer> = Vec::new();
        for round in 0..4 {
            let many: Vec<_> = (0..8 * Slab::SIZE / 4096).map(|_| pool.take(4096)).collect();
            let buffers = scattered.iter().chain(&many);
            let slabs: BTreeSet<_> = buffers.map(|b| b.as_ptr().addr() / Slab::SIZE).collect();
            assert!(slabs.len() <= 9, "round {round}: {} slabs for 8 and a bit", slabs.len());
            if round == 0 {
                scattered = many.into_iter().step_by(64).collect();
            }
        }
        drop(scattered);
        assert!(pool.free_bytes() <= pool.budget(), "nothing is in use: {}", pool.free_bytes());
    }

    #[test]
    fn slabs_go_when_all_of_them_is_free_in_whatever_order() {
        let pool = BufferPool::new(2 * Slab::SIZE);
        for (len, stride) in [(4096, 7), (20_000, 13), (1 << 20, 3), (300 << 10, 5)] {
            let count = 6 * Slab::SIZE / len;
            let mut many: Vec<_> = (0..count).map(|_| Some(pool.take(len))).collect();
            for i in 0..stride {
                many.iter_mut().skip(i).step_by(stride).for_each(|buffer| drop(buffer.take()));
            }
            assert!(pool.free_bytes() <= pool.budget(), "{} of {len}", pool.free_bytes());
        }
    }

    #[test]
    fn a_buffer_outlives_the_handle_of_its_pool() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(8192);
        drop(pool);
        buffer.as_mut_slice().fill(3);
        assert!(std::thread::spawn(move || buffer.iter().all(|&b| b == 3)).join().unwrap());
    }

    #[test]
    fn threads_that_take_and_drop_at_once_never_share_memory() {
        let pool = BufferPool::new(64 << 10);
        std::thread::scope(|scope| {
            for id in 0..4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut buffers: Vec<_> =
                            (0..8).map(|i| pool.take(2049 + 2000 * (i % 3))).collect();
                        for buffer in &mut buffers {
                            buffer.as_mut_slice().fill(id);
                        }
                        let intact = buffers.iter().all(|b| b.iter().all(|&x| x == id));
                        assert!(intact, "round {round}: another thread wrote into this buffer");
                    }
                });
            }
        });
        assert!(pool.free_bytes() <= pool.budget());
    }
}
