//! The opt-in way of reading through a memory mapping.

use std::os::fd::OwnedFd;

use memmap2::Mmap;

/// Maps a whole file, which must not be empty, for reading.
///
/// Only behind `mmap_reads`, whose documentation hands on what it takes: files opened for reading
/// are not changed in place and not cut short while they are open. A cut would end the process
/// (SIGBUS), as would a device error.
pub(super) fn map(fd: &OwnedFd) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is private to this process's view, read-only, and kept alive by whoever
    // holds the returned value. That no one changes the file underneath is the caller's promise,
    // given by switching `mmap_reads` on: the files of an engine that are opened for reading are
    // written once and then only read.
    unsafe { Mmap::map(fd) }
}
