//! The real system calls. Linux is tested; on other Unix systems what they lack is answered as a
//! kernel without the feature would, and the layers above take their documented other way.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{self, Errno, ReadWriteFlags};

use super::{Advice, DirectSupport, FileStat, OpenMode, RawEntry, Sys, SysResult};

/// Calls the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelSys;

impl Sys for KernelSys {
    fn open(&self, path: &Path, mode: OpenMode) -> SysResult<OwnedFd> {
        let create_new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::ReadDirect => OFlags::RDONLY | OFlags::DIRECT,
            OpenMode::ReadWrite => OFlags::RDWR | OFlags::CREATE,
            OpenMode::Lock => OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW,
            OpenMode::Create => create_new,
            OpenMode::CreateDirect => create_new | OFlags::DIRECT,
            OpenMode::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        };
        errno(fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR))
    }

    fn pread(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        errno(io::pread(fd, buf, offset))
    }

    fn read_nowait(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        let mut bufs = [IoSliceMut::new(buf)];
        errno(io::preadv2(fd, &mut bufs, offset, ReadWriteFlags::NOWAIT))
    }

    fn pwrite(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> SysResult<usize> {
        errno(io::pwrite(fd, data, offset))
    }

    fn fdatasync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        errno(fs::fdatasync(fd))
    }

    fn fsync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        errno(fs::fsync(fd))
    }

    fn fallocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        errno(fs::fallocate(fd, fs::FallocateFlags::empty(), offset, len))
    }

    fn ftruncate(&self, fd: BorrowedFd<'_>, size: u64) -> SysResult<()> {
        errno(fs::ftruncate(fd, size))
    }

    fn flush_range(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        start_write_back(fd, offset, len)
    }

    fn fadvise(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()> {
        let advice = match advice {
            Advice::Random => fs::Advice::Random,
            Advice::WillNeed => fs::Advice::WillNeed,
            Advice::DontNeed => fs::Advice::DontNeed,
        };
        errno(fs::fadvise(fd, offset, NonZeroU64::new(len), advice))
    }

    fn stat_fd(&self, fd: BorrowedFd<'_>) -> SysResult<FileStat> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        errno(fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)).map(|s| file_stat(&s))
    }

    fn stat(&self, path: &Path) -> SysResult<FileStat> {
        let wanted = StatxFlags::BASIC_STATS;
        errno(fs::statx(CWD, path, AtFlags::empty(), wanted)).map(|s| file_stat(&s))
    }

    fn read_dir(&self, dir: BorrowedFd<'_>, each: &mut dyn FnMut(RawEntry)) -> SysResult<()> {
        let mut entries = errno(Dir::read_from(dir))?;
        while let Some(entry) = entries.read() {
            let entry = errno(entry)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Unknown => None,
                kind => Some(kind == FileType::Directory),
            };
            each(RawEntry { name: OsString::from_vec(name.to_vec()), is_dir });
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> SysResult<()> {
        errno(fs::rename(from, to))
    }

    fn unlink(&self, path: &Path) -> SysResult<()> {
        errno(fs::unlink(path))
    }

    fn rmdir(&self, path: &Path) -> SysResult<()> {
        errno(fs::rmdir(path))
    }

    fn mkdir(&self, path: &Path) -> SysResult<()> {
        errno(fs::mkdir(path, Mode::RWXU))
    }

    fn link(&self, from: &Path, to: &Path) -> SysResult<()> {
        errno(fs::link(from, to))
    }

    fn free_space(&self, path: &Path) -> SysResult<u64> {
        errno(fs::statvfs(path)).map(|s| s.f_bavail.saturating_mul(s.f_frsize))
    }

    fn try_lock(&self, file: &File) -> SysResult<()> {
        match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(libc::EWOULDBLOCK),
            Err(TryLockError::Error(error)) => Err(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// The positive error number in place of rustix's type.
fn errno<T>(result: Result<T, Errno>) -> SysResult<T> {
    result.map_err(Errno::raw_os_error)
}

fn file_stat(stat: &fs::Statx) -> FileStat {
    let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let direct = match (told, memory, offset) {
        (false, ..) => DirectSupport::Unknown,
        (true, 0, _) | (true, _, 0) => DirectSupport::No,
        (true, memory, offset) => DirectSupport::Aligned { memory, offset },
    };
    let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
    let device = fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    FileStat { size: stat.stx_size, is_dir, device, direct }
}

/// Starts write-back of the dirty pages in the range and waits for none of it. The waiting forms
/// are not used: they would consume an error that the next sync must report.
fn start_write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
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
