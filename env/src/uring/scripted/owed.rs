//! What a kernel may still do when the ring is gone: closing one is no barrier, so entries that it
//! took and did not answer may be worked on at any time later, for ever.
//!
//! Everything here goes through system calls: memory that must not be touched any more is then an
//! error of the call, where guarded buffers are in use, and not the end of the process.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;

use super::{Entry, Errno, Work, vectors_of};
use crate::Buffer;

/// Memory that a kernel may still use for an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    /// Where in the file.
    pub(crate) offset: u64,
    address: usize,
    len: usize,
}

/// What a late read brings: no byte of a test file is all of these.
const JUNK: u8 = 0xAD;

impl Owed {
    /// The memory of one entry, which may be several pieces.
    pub(super) fn by(entry: &Entry) -> Vec<Self> {
        let offset = entry.offset;
        let one =
            |address: *mut u8, len| Self { offset, address: address.expose_provenance(), len };
        match entry.work {
            Work::ReadVectored => {
                let pieces = vectors_of(entry).into_iter();
                pieces.map(|piece| one(piece.iov_base.cast(), piece.iov_len)).collect()
            }
            Work::Read | Work::Write => vec![one(entry.start, entry.len as usize)],
            Work::StartWriteBack | Work::Sync => Vec::new(),
        }
    }

    fn pointer(&self) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Reads to the memory, late: other bytes than the file's, so that whoever uses the memory for
    /// something else sees it.
    pub(crate) fn read_late(&self) -> Result<(), Errno> {
        let junk = tempfile_of(&vec![JUNK; self.len]);
        // SAFETY: the memory was leaked for this, or is found not to be by the caller; in tests no
        // other thread has been given it, and where it may not be touched the call fails.
        let got = unsafe { libc::pread(junk.as_raw_fd(), self.pointer(), self.len, 0) };
        whole(got, self.len)
    }

    /// The bytes that a late write would write.
    pub(crate) fn write_late(&self) -> Result<Vec<u8>, Errno> {
        let mut file = tempfile_of(&[]);
        // SAFETY: as in `read_late`, and this only reads.
        let wrote = unsafe { libc::pwrite(file.as_raw_fd(), self.pointer(), self.len, 0) };
        whole(wrote, self.len)?;
        let mut bytes = Vec::new();
        file.rewind().expect("a file can be rewound");
        file.read_to_end(&mut bytes).expect("our own file can be read");
        Ok(bytes)
    }

    /// Whether a buffer has any of the memory.
    pub(crate) fn overlaps(&self, buffer: &Buffer) -> bool {
        let start = buffer.as_ptr().addr();
        self.address < start + buffer.len() && start < self.address + self.len
    }
}

fn tempfile_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().expect("a temporary file can be made");
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("it can be written");
    file
}

fn whole(transferred: isize, len: usize) -> Result<(), Errno> {
    if transferred < 0 {
        let error = std::io::Error::last_os_error();
        return Err(error.raw_os_error().expect("a system call failed"));
    }
    assert_eq!(transferred.unsigned_abs(), len, "a temporary file transfers everything at once");
    Ok(())
}

/// Asserts that none of the memory is among `again`, which are more buffers of its size than were
/// ever in use: it was not given back.
pub(crate) fn assert_leaked(owed: &[Owed], again: &[Buffer]) {
    for owed in owed {
        let taken = again.iter().any(|buffer| owed.overlaps(buffer));
        assert!(!taken, "memory that a kernel may still use is used again: {owed:?}");
    }
}
