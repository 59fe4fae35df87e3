//! System calls that transfer little at a time, for tests from outside the crate: what stands above
//! must go on until everything is there.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::{Advice, FileStat, OpenMode, RawEntry, Sys, SysResult};

/// Another [`Sys`] of which each read and write transfers at most so many bytes.
#[derive(Debug)]
pub(crate) struct ShortSys {
    inner: Arc<dyn Sys>,
    most: NonZeroUsize,
}

impl ShortSys {
    /// Everything goes through to `inner`, reads and writes in pieces.
    pub(crate) fn new(inner: Arc<dyn Sys>, most: NonZeroUsize) -> Self {
        Self { inner, most }
    }

    fn len(&self, asked: usize) -> usize {
        asked.min(self.most.get())
    }
}

impl Sys for ShortSys {
    fn pread(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        let len = self.len(buf.len());
        self.inner.pread(fd, &mut buf[..len], offset)
    }

    fn read_nowait(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        let len = self.len(buf.len());
        self.inner.read_nowait(fd, &mut buf[..len], offset)
    }

    fn pwrite(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> SysResult<usize> {
        self.inner.pwrite(fd, &data[..self.len(data.len())], offset)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> SysResult<OwnedFd> {
        self.inner.open(path, mode)
    }

    fn fdatasync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        self.inner.fdatasync(fd)
    }

    fn fsync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        self.inner.fsync(fd)
    }

    fn fallocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        self.inner.fallocate(fd, offset, len)
    }

    fn ftruncate(&self, fd: BorrowedFd<'_>, size: u64) -> SysResult<()> {
        self.inner.ftruncate(fd, size)
    }

    fn flush_range(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        self.inner.flush_range(fd, offset, len)
    }

    fn fadvise(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()> {
        self.inner.fadvise(fd, offset, len, advice)
    }

    fn stat_fd(&self, fd: BorrowedFd<'_>) -> SysResult<FileStat> {
        self.inner.stat_fd(fd)
    }

    fn stat(&self, path: &Path) -> SysResult<FileStat> {
        self.inner.stat(path)
    }

    fn read_dir(&self, dir: BorrowedFd<'_>, each: &mut dyn FnMut(RawEntry)) -> SysResult<()> {
        self.inner.read_dir(dir, each)
    }

    fn rename(&self, from: &Path, to: &Path) -> SysResult<()> {
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> SysResult<()> {
        self.inner.unlink(path)
    }

    fn rmdir(&self, path: &Path) -> SysResult<()> {
        self.inner.rmdir(path)
    }

    fn mkdir(&self, path: &Path) -> SysResult<()> {
        self.inner.mkdir(path)
    }

    fn link(&self, from: &Path, to: &Path) -> SysResult<()> {
        self.inner.link(from, to)
    }

    fn free_space(&self, path: &Path) -> SysResult<u64> {
        self.inner.free_space(path)
    }

    fn try_lock(&self, file: &File) -> SysResult<()> {
        self.inner.try_lock(file)
    }
}
