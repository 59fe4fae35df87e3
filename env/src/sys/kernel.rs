//! The real system calls. Linux is tested; on other Unix systems what they lack is answered as a
//! kernel without the feature would, and the layers above take their documented other way.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{self, Dir, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use super::{Advice, FileStat, OpenMode, RawEntry, Sys, SysResult};

#[cfg(target_os = "linux")]
use linux as os;
#[cfg(not(target_os = "linux"))]
use other as os;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

/// Calls the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelSys;

impl Sys for KernelSys {
    fn open(&self, path: &Path, mode: OpenMode) -> SysResult<OwnedFd> {
        let create_new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::ReadDirect => OFlags::RDONLY | os::direct_flag()?,
            OpenMode::ReadWrite => OFlags::RDWR | OFlags::CREATE,
            OpenMode::ReadWriteDirect => OFlags::RDWR | OFlags::CREATE | os::direct_flag()?,
            OpenMode::Lock => OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW,
            OpenMode::Create => create_new,
            OpenMode::CreateDirect => create_new | os::direct_flag()?,
            OpenMode::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        };
        errno(fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR))
    }

    fn pread(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        errno(io::pread(fd, buf, offset))
    }

    fn read_nowait(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        os::read_nowait(fd, buf, offset)
    }

    fn pwrite(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> SysResult<usize> {
        errno(io::pwrite(fd, data, offset))
    }

    fn fdatasync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        os::fdatasync(fd)
    }

    fn fsync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        os::fsync(fd)
    }

    fn fallocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        os::fallocate(fd, offset, len)
    }

    fn ftruncate(&self, fd: BorrowedFd<'_>, size: u64) -> SysResult<()> {
        errno(fs::ftruncate(fd, size))
    }

    fn flush_range(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        os::start_write_back(fd, offset, len)
    }

    fn fadvise(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()> {
        os::fadvise(fd, offset, len, advice)
    }

    fn stat_fd(&self, fd: BorrowedFd<'_>) -> SysResult<FileStat> {
        os::stat_fd(fd)
    }

    fn stat(&self, path: &Path) -> SysResult<FileStat> {
        os::stat(path)
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
