//! Memory for reads that is used again: without it a cold batch would allocate, fault in and zero
//! every block it reads.

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

use super::block::Block;
use super::slab::Slab;
use super::{Buffer, Memory};

/// The smallest class; below half of it a plain allocation costs less than the unused rest.
const SMALLEST: usize = 4096;
const LARGEST: usize = BufferPool::LARGEST;
const CLASSES: usize = class_of(LARGEST) + 1;

/// Free memory in classes from 4 KiB to 1 MiB, bounded by a budget. From 16 KiB on there are four
/// classes to a doubling, so that no more than a quarter is added to what was asked for.
///
/// Only *free* memory counts against the budget: buffers given out are their holders' affair, and
/// taking one never waits.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: [Mutex<Vec<Block>>; CLASSES],
    free_bytes: AtomicUsize,
    budget: usize,
}

impl BufferPool {
    /// The largest class; what is longer is allocated and freed.
    pub(super) const LARGEST: usize = 1 << 20;

    /// How much free memory is kept unless told otherwise.
    pub(crate) const DEFAULT_BUDGET: usize = 64 << 20;

    /// An empty pool that keeps at most `budget` bytes of free memory.
    pub(crate) fn new(budget: usize) -> Arc<Self> {
        let free = std::array::from_fn(|_| Mutex::default());
        Arc::new(Self { free, free_bytes: AtomicUsize::new(0), budget })
    }

    /// A buffer of `len` bytes of unspecified content (initialised, but perhaps from an earlier
    /// use): only for code that overwrites all of it before anyone else sees it.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        if len <= SMALLEST / 2 || len > LARGEST {
            return Buffer::zeroed(len);
        }
        let class = class_of(len);
        let block = self.free[class].lock().pop();
        let block = match block {
            Some(block) => {
                self.free_bytes.fetch_sub(size_of_class(class), Ordering::Relaxed);
                block
            }
            None => self.fresh(class),
        };
        Buffer { memory: Memory::Pooled(Some(block), Arc::clone(self)), start: 0, len }
    }

    /// A new block; where the budget has room, the first of a slab whose others are free.
    fn fresh(&self, class: usize) -> Block {
        let size = size_of_class(class);
        if self.free_bytes() + Slab::SIZE > self.budget {
            return Block::zeroed(size);
        }
        let mut blocks = Block::slab_of(size);
        let first = blocks.next().expect("a slab holds at least two of the largest blocks");
        blocks.for_each(|block| self.give_back(block));
        first
    }

    /// Takes memory back, or frees it if enough is free already.
    pub(super) fn give_back(&self, block: Block) {
        let size = block.as_slice().len();
        // Relaxed: the counter only bounds memory, and the block itself moves under the mutex.
        if self.free_bytes.fetch_add(size, Ordering::Relaxed) + size > self.budget {
            self.free_bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        self.free[class_of(size)].lock().push(block);
    }

    /// Bytes kept for later use.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// The most it keeps.
    pub(crate) fn budget(&self) -> usize {
        self.budget
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
