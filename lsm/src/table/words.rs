//! Numbers that are kept long and looked at one at a time: in memory where that is cheap.

use treering_env::{Buffer, prefetch_cache_line};

const WORD: usize = size_of::<u64>();

/// A fixed number of 64-bit numbers.
#[derive(Debug)]
pub(super) struct Words(Buffer);

impl Default for Words {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Words {
    /// So many zeros.
    pub(super) fn zeroed(count: usize) -> Self {
        Self(Buffer::zeroed(count.saturating_mul(WORD)))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.words().len()
    }

    /// The number at `index`.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<u64> {
        self.words().get(index).map(|word| u64::from_ne_bytes(*word))
    }

    /// Changes the number at `index`; there must be one.
    pub(super) fn set(&mut self, index: usize, value: u64) {
        let words = self.0.as_mut_slice().as_chunks_mut().0;
        if let Some(word) = words.get_mut(index) {
            *word = value.to_ne_bytes();
        } else {
            debug_assert!(false, "number {index} of {}", words.len());
        }
    }

    /// Where in `start..end` the numbers cease to be as `is_before` says, which those up to there
    /// are.
    #[inline]
    pub(super) fn partition_point(
        &self,
        start: usize,
        end: usize,
        is_before: impl Fn(u64) -> bool,
    ) -> usize {
        let words = self.words().get(start..end).unwrap_or_default();
        start.saturating_add(words.partition_point(|word| is_before(u64::from_ne_bytes(*word))))
    }

    /// Asks the processor for the number at `index` and its neighbours.
    #[inline]
    pub(super) fn prefetch(&self, index: usize) {
        prefetch_cache_line(self.words(), index);
    }

    /// Bytes of memory they take.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.0.capacity()
    }

    fn words(&self) -> &[[u8; WORD]] {
        self.0.as_chunks().0
    }
}
