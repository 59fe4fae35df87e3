//! The one buffer type of all I/O: owned, aligned for direct I/O, cheap to hand over.

use std::fmt;
use std::ops::Deref;

/// Bytes that came from a file or are going to one.
///
/// A buffer owns its memory, so it can be in flight in the kernel without borrowing from anyone.
/// `Deref` and `AsRef` give the bytes; `bytes::Bytes::from_owner` shares them without a copy.
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// The address of a buffer of at least this many bytes is a multiple of it.
    pub(crate) const ALIGN: usize = 4096;

    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: vec![0; len] }
    }

    /// The bytes, to be changed in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
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
        write!(f, "Buffer({} bytes)", self.len())
    }
}
