//! The block cache: decompressed blocks by table and offset, bounded in bytes, shared by all
//! tables and threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Counters are spread over this many cache lines so that readers do not fight over one.
const STRIPES: usize = 16;
/// What the cache itself spends on an entry, about.
const ENTRY_OVERHEAD: usize = 64;
/// The size that entries are expected to have.
const EXPECTED_BLOCK: usize = 4096;

/// A block by the random id of its table and its offset in it.
type Key = (u64, u64);

struct Entry<V> {
    block: Arc<V>,
    weight: u64,
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self { block: Arc::clone(&self.block), weight: self.weight }
    }
}

#[derive(Clone)]
struct ByWeight;

impl<V> Weighter<Key, Entry<V>> for ByWeight {
    fn weight(&self, _key: &Key, entry: &Entry<V>) -> u64 {
        entry.weight
    }
}

/// A bounded cache of blocks of type `V`. All methods may be called by any number of threads.
pub(crate) struct BlockCache<V> {
    /// `None` when the capacity is zero: then nothing is kept.
    blocks: Option<Cache<Key, Entry<V>, ByWeight>>,
    hits: Counter,
    misses: Counter,
}

impl<V> fmt::Debug for BlockCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockCache({} of {} bytes)", self.bytes(), self.capacity())
    }
}

impl<V> BlockCache<V> {
    /// A cache that keeps up to `capacity` bytes of blocks; none at all with 0.
    pub(crate) fn new(capacity: usize) -> Self {
        let blocks = (capacity > 0).then(|| {
            let items = (capacity / EXPECTED_BLOCK).max(1);
            Cache::with_weighter(items, capacity as u64, ByWeight)
        });
        Self { blocks, hits: Counter::default(), misses: Counter::default() }
    }

    /// The block at `offset` of the table with this id, if it is here.
    pub(crate) fn get(&self, table_id: u64, offset: u64) -> Option<Arc<V>> {
        let found = self.blocks.as_ref().and_then(|blocks| blocks.get(&(table_id, offset)));
        if found.is_some() {
            self.hits.add();
        } else {
            self.misses.add();
        }
        found.map(|entry| entry.block)
    }

    /// The block, without counting a hit or a miss and without making it stay longer: for scans
    /// that must not disturb what point reads keep here.
    pub(crate) fn peek(&self, table_id: u64, offset: u64) -> Option<Arc<V>> {
        let found = self.blocks.as_ref()?.peek(&(table_id, offset));
        found.map(|entry| entry.block)
    }

    /// Keeps a block that takes `bytes` of memory. Others may go for it, or it may be refused.
    pub(crate) fn insert(&self, table_id: u64, offset: u64, block: &Arc<V>, bytes: usize) {
        if let Some(blocks) = &self.blocks {
            let weight = (bytes + ENTRY_OVERHEAD) as u64;
            blocks.insert((table_id, offset), Entry { block: Arc::clone(block), weight });
        }
    }

    /// The most bytes it may keep.
    pub(crate) fn capacity(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::capacity)
    }

    /// Bytes it keeps now.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
    }

    /// Look-ups that found their block.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.sum()
    }

    /// Look-ups that did not.
    pub(crate) fn misses(&self) -> u64 {
        self.misses.sum()
    }
}

#[derive(Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// A count that many threads add to and few read.
#[derive(Default)]
struct Counter([Stripe; STRIPES]);

impl Counter {
    fn add(&self) {
        // Relaxed: a count orders nothing.
        self.0[stripe()].0.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The stripe of this thread: threads take turns when they first count.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    MINE.with(|mine| *mine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_of_capacity_zero_keeps_nothing() {
        let cache = BlockCache::new(0);
        cache.insert(1, 0, &Arc::new(7), 10);
        assert_eq!(cache.get(1, 0), None);
        assert_eq!((cache.hits(), cache.misses(), cache.bytes()), (0, 1, 0));
    }

    #[test]
    fn a_block_is_found_under_its_table_and_offset_only() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(1, 0, &Arc::new(7), 10);
        assert_eq!(cache.get(1, 0).as_deref(), Some(&7));
        assert_eq!(cache.get(2, 0), None);
        assert_eq!(cache.get(1, 1), None);
        assert_eq!((cache.hits(), cache.misses()), (1, 2));
    }

    #[test]
    fn the_capacity_is_kept_to_whatever_is_inserted() {
        let cache = BlockCache::new(256 << 10);
        for offset in 0..10_000 {
            cache.insert(1, offset, &Arc::new(offset), 4096);
            assert!(cache.bytes() <= cache.capacity());
        }
        assert!(cache.bytes() > cache.capacity() / 2);
        cache.insert(2, 0, &Arc::new(0), 1 << 30);
        assert!(cache.bytes() <= cache.capacity());
    }

    #[test]
    fn a_peek_counts_nothing() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(1, 0, &Arc::new(7), 10);
        assert_eq!(cache.peek(1, 0).as_deref(), Some(&7));
        assert_eq!(cache.peek(1, 1), None);
        assert_eq!((cache.hits(), cache.misses()), (0, 0));
    }

    #[test]
    fn counts_of_several_threads_add_up() {
        let cache = BlockCache::<u64>::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope
                    .spawn(|| (0..1000).for_each(|offset| assert!(cache.get(1, offset).is_none())));
            }
        });
        assert_eq!(cache.misses(), 4000);
    }
}
