//! The calls that Linux alone has, or has in its own way.

use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, FileType, OFlags, StatxFlags};
use rustix::io::{self, ReadWriteFlags};

use super::errno;
use crate::sys::{Advice, DirectSupport, FileStat, SysResult};

#[expect(clippy::unnecessary_wraps, reason = "other systems have no such flag")]
pub(super) fn direct_flag() -> SysResult<OFlags> {
    Ok(OFlags::DIRECT)
}

pub(super) fn read_nowait(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
    let mut bufs = [IoSliceMut::new(buf)];
    errno(io::preadv2(fd, &mut bufs, offset, ReadWriteFlags::NOWAIT))
}

pub(super) fn fdatasync(fd: BorrowedFd<'_>) -> SysResult<()> {
    errno(fs::fdatasync(fd))
}

pub(super) fn fsync(fd: BorrowedFd<'_>) -> SysResult<()> {
    errno(fs::fsync(fd))
}

pub(super) fn fallocate(fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
    errno(fs::fallocate(fd, fs::FallocateFlags::empty(), offset, len))
}

pub(super) fn fadvise(fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()> {
    let advice = match advice {
        Advice::Random => fs::Advice::Random,
        Advice::WillNeed => fs::Advice::WillNeed,
        Advice::DontNeed => fs::Advice::DontNeed,
    };
    errno(fs::fadvise(fd, offset, NonZeroU64::new(len), advice))
}

pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> SysResult<FileStat> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    errno(fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)).map(|s| file_stat(&s))
}

pub(super) fn stat(path: &Path) -> SysResult<FileStat> {
    let wanted = StatxFlags::BASIC_STATS;
    errno(fs::statx(CWD, path, AtFlags::empty(), wanted)).map(|s| file_stat(&s))
}

fn file_stat(stat: &fs::Statx) -> FileStat {
    let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let direct = match (told, memory, offset) {
        (false, ..) => DirectSupport::Unknown,
        (true, 0, _) | (true, _, 0) => DirectSupport::No,
        (true, memory, offset) => DirectSupport::Aligned { memory, offset },
    };
    let kind = FileType::from_raw_mode(stat.stx_mode.into());
    let (is_dir, is_file) = (kind == FileType::Directory, kind == FileType::RegularFile);
    let device = fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    FileStat { size: stat.stx_size, is_dir, is_file, device, direct }
}

/// Starts write-back of the dirty pages in the range and waits for none of it. The waiting forms
/// are not used: they would consume an error that the next sync must report.
pub(super) fn start_write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(libc::EINVAL);
    };
    // SAFETY: the call touches no memory of this process, and `fd` is open while it is borrowed.
    let done =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if done == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
