//! The one buffer type of all I/O: owned, aligned for direct I/O, cheap to hand over.
//!
//! Invariant: every byte of a buffer's memory was initialised when the memory was allocated, so
//! there is no moment at which safe code could read an uninitialised one. Memory is zeroed once;
//! a pool hands it out again with its old bytes, and only to code that fills it.

use std::fmt;
use std::ops::Deref;

use memmap2::Mmap;

use crate::sync::{Arc, OnceLock};

pub(crate) use arena::{Arena, ArenaPool};
use block::Block;
pub(crate) use pool::BufferPool;

mod arena;
mod block;
mod free;
#[cfg(all(test, target_os = "linux"))]
mod guarded;
mod pool;
mod slab;

/// Buffers of zeros from this size on come from slabs: smaller ones share pages anyway.
const SLAB_MIN: usize = 16 << 10;

/// The pool of those.
static SHARED: OnceLock<Arc<BufferPool>> = OnceLock::new();

/// Bytes that came from a file or are going to one.
///
/// A buffer owns its memory, so it can be in flight in the kernel without borrowing from anyone.
/// A buffer of at least 4096 bytes starts at a multiple of 4096. `Deref` and `AsRef` give the
/// bytes; `bytes::Bytes::from_owner` shares them without a copy. Buffers that an environment gives
/// out may hold up to twice their length, if that is below 16 KiB, and a quarter more if it is not
/// (see [`Buffer::capacity`]); dropped, their memory is used
/// again for later reads.
pub struct Buffer {
    memory: Memory,
    start: usize,
    len: usize,
}

enum Memory {
    /// Its own, freed with it.
    Owned(Block),
    /// From a pool, and given back to it. The block is `None` only while the buffer is dropped.
    Pooled(Option<Block>, Arc<BufferPool>),
    /// Part of a file, seen through a mapping shared with other buffers.
    Mapped(Arc<Mmap>),
}

impl Buffer {
    /// The address of a buffer of at least this many bytes is a multiple of it.
    pub(crate) const ALIGN: usize = block::ALIGN;

    /// A buffer of `len` zeros. From 16 KiB to 1 MiB its memory is cut from a slab of huge pages
    /// that all such buffers of the process share, so that reading it at random is cheap; it may
    /// hold a quarter more than `len` (see [`Buffer::capacity`]).
    pub fn zeroed(len: usize) -> Self {
        if !(SLAB_MIN..=BufferPool::LARGEST).contains(&len) {
            return Self { memory: Memory::Owned(Block::zeroed(len)), start: 0, len };
        }
        let pool = SHARED.get_or_init(|| BufferPool::new(BufferPool::DEFAULT_BUDGET));
        let mut buffer = pool.take(len);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    /// The bytes, to be changed in place. A view of a mapped file is copied first: the file itself
    /// is never changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if matches!(self.memory, Memory::Mapped(_)) {
            *self = Self::from(&**self);
        }
        let range = self.start..self.start + self.len;
        let block = match &mut self.memory {
            Memory::Owned(block) | Memory::Pooled(Some(block), _) => block,
            Memory::Pooled(None, _) => unreachable!("the block is there until the buffer drops"),
            Memory::Mapped(_) => unreachable!("a mapped buffer was copied above"),
        };
        &mut block.as_mut_slice()[range]
    }

    /// Bytes of memory this buffer keeps from other use, for accounting: at least its length, but
    /// none for a view of a mapped file.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Owned(block) | Memory::Pooled(Some(block), _) => block.as_slice().len(),
            Memory::Pooled(None, _) | Memory::Mapped(_) => 0,
        }
    }

    /// How many bytes it shows, told without a reference to them: what may be asked while a kernel
    /// writes to the memory.
    pub(crate) fn shown(&self) -> usize {
        self.len
    }

    /// A view of part of a mapped file.
    pub(crate) fn mapped(map: Arc<Mmap>, start: usize, len: usize) -> Self {
        assert!(start <= map.len() && len <= map.len() - start, "a view lies inside its mapping");
        Self { memory: Memory::Mapped(map), start, len }
    }

    /// The same memory showing only `len` bytes from `start` of what it showed.
    pub(crate) fn narrowed(mut self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "a part lies inside its buffer");
        self.start += start;
        self.len = len;
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Pooled(block, pool) = &mut self.memory
            && let Some(block) = block.take()
        {
            pool.give_back(block);
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        match &self.memory {
            Memory::Mapped(map) => Self::mapped(Arc::clone(map), self.start, self.len),
            Memory::Owned(_) | Memory::Pooled(..) => Self::from(&**self),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = match &self.memory {
            Memory::Owned(block) | Memory::Pooled(Some(block), _) => block.as_slice(),
            Memory::Pooled(None, _) => &[],
            Memory::Mapped(map) => map,
        };
        &bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_as_long_as_asked() {
        for len in [0, 1, 100, 4095, 4096, 4097, 65536, (1 << 20) + 1] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|&b| b == 0));
            assert!(len < 4096 || buffer.as_ptr().addr().is_multiple_of(4096));
            buffer.as_mut_slice().fill(7);
            let copy = buffer.clone();
            drop(buffer);
            assert!(copy.len() == len && copy.iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn a_narrowed_buffer_shows_and_changes_only_its_part() {
        let mut buffer = Buffer::from(&b"0123456789"[..]).narrowed(2, 6);
        assert_eq!(&*buffer, b"234567");
        buffer = buffer.narrowed(1, 3);
        buffer.as_mut_slice()[0] = b'x';
        assert_eq!(&*buffer, b"x45");
    }

    #[test]
    #[should_panic(expected = "a part lies inside its buffer")]
    fn a_part_cannot_reach_beyond_its_buffer() {
        let _ = Buffer::zeroed(4096).narrowed(0, 10).narrowed(5, 6);
    }

    #[test]
    fn buffers_can_be_sent_to_other_threads() {
        fn sendable<T: Send + Sync + 'static>(_: &T) {}
        sendable(&Buffer::zeroed(1));
    }
}
