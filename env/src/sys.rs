//! The seam of system calls: everything the environments over the operating system ask of it.
//!
//! Each method is one system call, tried once. Short transfers and error numbers come out as the
//! kernel gave them; the loops that deal with them stand above this seam, so that a scripted
//! implementation can put them to the test.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use crate::counters::{Count, Counters};

pub(crate) use kernel::KernelSys;

#[cfg(all(target_os = "linux", any(test, feature = "test-util")))]
pub(crate) mod filter;
mod kernel;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(feature = "test-util")]
pub(crate) mod short;

/// What a system call gives: a positive error number if it failed.
pub(crate) type SysResult<T> = Result<T, i32>;

/// How a path is opened. Every descriptor is closed on exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// The same, past the page cache.
    ReadDirect,
    /// For reading and writing; created empty, private to the user, if absent.
    ReadWrite,
    /// The same, past the page cache.
    ReadWriteDirect,
    /// As `ReadWrite`, but never through a symbolic link.
    Lock,
    /// A new file for writing, private to the user; fails if the name is taken, even by a link.
    Create,
    /// The same, past the page cache.
    CreateDirect,
    /// A directory, to be listed or synced.
    Directory,
}

/// What the kernel says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) size: u64,
    pub(crate) is_dir: bool,
    /// Whether it is a regular file: no directory, named pipe, socket or device.
    pub(crate) is_file: bool,
    /// `st_dev`: which file system the file is on.
    pub(crate) device: u64,
    /// What direct I/O needs, if the kernel says.
    pub(crate) direct: DirectSupport,
}

/// The file system's answer about direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectSupport {
    /// The kernel is too old to say (before 6.1).
    Unknown,
    /// This file cannot be read or written directly.
    No,
    /// The multiples that memory addresses, and offsets and lengths, must have.
    Aligned { memory: u32, offset: u32 },
}

/// What the kernel is told about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Point reads: no read-ahead on this descriptor.
    Random,
    /// The range will be read soon: start reading it.
    WillNeed,
    /// The range is not needed: drop its clean pages from the cache. Only tests say so.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests empty the page cache with it"))]
    DontNeed,
}

/// One name in a directory, as the kernel listed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawEntry {
    pub(crate) name: OsString,
    /// `None` if the file system does not tell in the listing.
    pub(crate) is_dir: Option<bool>,
}

/// How often one call is repeated after EINTR before the interruption is reported. Each takes a
/// signal of its own, so only a storm comes near it.
pub(crate) const INTERRUPTIONS: u32 = 10_000;

/// How often a call that should wait is repeated after EAGAIN, giving up the CPU in between.
const BUSY: u32 = 16;

/// Makes a call that is safe to repeat until it is not interrupted.
pub(crate) fn uninterrupted<T>(
    counters: &Counters,
    mut call: impl FnMut() -> SysResult<T>,
) -> SysResult<T> {
    for _ in 0..INTERRUPTIONS {
        match call() {
            Err(libc::EINTR) => counters.bump(Count::RetriedEintr),
            other => return other,
        }
    }
    call()
}

/// The same for a read or write that should wait but may say EAGAIN all the same, as some file
/// systems do under memory pressure.
pub(crate) fn settled<T>(
    counters: &Counters,
    mut call: impl FnMut() -> SysResult<T>,
) -> SysResult<T> {
    for _ in 0..BUSY {
        match uninterrupted(counters, &mut call) {
            Err(libc::EAGAIN) => {
                counters.bump(Count::RetriedEagain);
                std::thread::yield_now();
            }
            other => return other,
        }
    }
    uninterrupted(counters, &mut call)
}

/// The system calls. Each may be made by any number of threads at once.
pub(crate) trait Sys: Send + Sync + Debug + 'static {
    fn open(&self, path: &Path, mode: OpenMode) -> SysResult<OwnedFd>;
    fn pread(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize>;
    /// `preadv2(RWF_NOWAIT)`: what is in the page cache, without waiting for a device.
    fn read_nowait(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize>;
    fn pwrite(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> SysResult<usize>;
    fn fdatasync(&self, fd: BorrowedFd<'_>) -> SysResult<()>;
    fn fsync(&self, fd: BorrowedFd<'_>) -> SysResult<()>;
    /// Allocates the range and extends the size to its end.
    fn fallocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()>;
    fn ftruncate(&self, fd: BorrowedFd<'_>, size: u64) -> SysResult<()>;
    /// `sync_file_range(WRITE)`: starts write-back. A hint; it makes nothing durable.
    fn flush_range(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()>;
    fn fadvise(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()>;
    fn stat_fd(&self, fd: BorrowedFd<'_>) -> SysResult<FileStat>;
    fn stat(&self, path: &Path) -> SysResult<FileStat>;
    /// Gives every name in the directory but `.` and `..`. Names given before an error are part
    /// of a listing that failed.
    fn read_dir(&self, dir: BorrowedFd<'_>, each: &mut dyn FnMut(RawEntry)) -> SysResult<()>;
    fn rename(&self, from: &Path, to: &Path) -> SysResult<()>;
    fn unlink(&self, path: &Path) -> SysResult<()>;
    fn rmdir(&self, path: &Path) -> SysResult<()>;
    /// Makes one directory, private to the user.
    fn mkdir(&self, path: &Path) -> SysResult<()>;
    fn link(&self, from: &Path, to: &Path) -> SysResult<()>;
    /// Bytes an unprivileged process can still write to the file system of `path`.
    fn free_space(&self, path: &Path) -> SysResult<u64>;
    /// Takes the exclusive lock of the open file, or fails with EWOULDBLOCK.
    fn try_lock(&self, file: &File) -> SysResult<()>;
}
