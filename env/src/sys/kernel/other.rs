//! The same calls on other Unix systems: what they lack is answered as by a kernel without the
//! feature. Compiled, not tested: Linux is what is promised.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{self, FileType, OFlags};

use super::errno;
use crate::sys::{Advice, DirectSupport, FileStat, SysResult};

pub(super) fn direct_flag() -> SysResult<OFlags> {
    Err(libc::EINVAL)
}

pub(super) fn read_nowait(_: BorrowedFd<'_>, _: &mut [u8], _: u64) -> SysResult<usize> {
    Err(libc::EOPNOTSUPP)
}

pub(super) fn fdatasync(fd: BorrowedFd<'_>) -> SysResult<()> {
    fsync(fd)
}

/// On Apple's systems a plain fsync leaves the bytes in the drive's cache.
pub(super) fn fsync(fd: BorrowedFd<'_>) -> SysResult<()> {
    #[cfg(target_vendor = "apple")]
    return errno(fs::fcntl_fullfsync(fd));
    #[cfg(not(target_vendor = "apple"))]
    errno(fs::fsync(fd))
}

pub(super) fn fallocate(_: BorrowedFd<'_>, _: u64, _: u64) -> SysResult<()> {
    Err(libc::EOPNOTSUPP)
}

pub(super) fn start_write_back(_: BorrowedFd<'_>, _: u64, _: u64) -> SysResult<()> {
    Err(libc::EOPNOTSUPP)
}

pub(super) fn fadvise(_: BorrowedFd<'_>, _: u64, _: u64, _: Advice) -> SysResult<()> {
    Err(libc::EOPNOTSUPP)
}

pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> SysResult<FileStat> {
    errno(fs::fstat(fd)).map(|s| file_stat(&s))
}

pub(super) fn stat(path: &Path) -> SysResult<FileStat> {
    errno(fs::stat(path)).map(|s| file_stat(&s))
}

fn file_stat(stat: &fs::Stat) -> FileStat {
    let kind = FileType::from_raw_mode(stat.st_mode);
    FileStat {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        is_dir: kind == FileType::Directory,
        is_file: kind == FileType::RegularFile,
        device: u64::try_from(stat.st_dev).unwrap_or(u64::MAX),
        direct: DirectSupport::No,
    }
}
