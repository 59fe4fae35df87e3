//! A file of the operating system open for reading: the concrete type that every queue of ours
//! recognises, whichever of our environments opened it.
//!
//! Invariants:
//! * A NOWAIT read succeeds or defers; it never turns into an error or an end of file.
//! * That NOWAIT is not supported is remembered for the file that showed it, never for others.
//! * A range that the file cannot fill is an error before any memory is allocated for it.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::buffer::{ArenaPool, BufferPool};
use crate::counters::{Count, Counters};
use crate::sync::{Arc, AtomicBool, AtomicU8, Mutex, OnceLock, Ordering};
use crate::sys::{Advice, FileStat, OpenMode, Sys, settled, uninterrupted};
use crate::{Access, Buffer, Error, ErrorKind, Outcome, RandomAccessFile, Result};

#[cfg(target_os = "linux")]
pub(crate) use chunk::Chunk;
pub(crate) use device::{BatchPlan, Device, Kick};
pub(crate) use direct::DirectAlign;
pub(crate) use rw_file::OsRwFile;
pub(crate) use write::{Durability, WriteFailure, pwrite_all, pwrite_blocks};

#[cfg(target_os = "linux")]
mod chunk;
mod device;
mod direct;
mod mapped;
#[cfg(target_os = "linux")]
pub(crate) mod polling;
mod rw_file;
#[cfg(target_os = "linux")]
mod sysfs;
mod write;

/// The longest range given to one read-ahead hint: kernels cut longer ones short.
const HINT_LEN: u64 = 256 * 1024;
/// The most hints one call gives.
const HINTS: u64 = 256;

/// What the files of one environment share.
#[derive(Debug)]
pub(crate) struct Os {
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) counters: Counters,
    pub(crate) pool: Arc<BufferPool>,
    devices: Mutex<HashMap<u64, Arc<Device>>>,
    /// Memory that is registered with rings, if that was asked for and could be had.
    fixed: OnceLock<Option<ArenaPool>>,
}

impl Os {
    pub(crate) fn new(sys: Arc<dyn Sys>) -> Arc<Self> {
        Self::with_pool(sys, BufferPool::new(BufferPool::DEFAULT_BUDGET))
    }

    pub(crate) fn with_pool(sys: Arc<dyn Sys>, pool: Arc<BufferPool>) -> Arc<Self> {
        let (counters, devices, fixed) = Default::default();
        Arc::new(Self { sys, counters, pool, devices, fixed })
    }

    /// Takes memory for direct files from a pool of registered memory from now on; `None` if it was
    /// asked for and is not to be had. Only the first call counts.
    pub(crate) fn use_fixed(&self, pool: Option<ArenaPool>) {
        self.fixed.get_or_init(|| pool);
    }

    /// Whether registered memory was asked for.
    pub(crate) fn wants_fixed(&self) -> bool {
        self.fixed.get().is_some()
    }

    /// Memory of `len` bytes for a file that is read or written past the page cache, aligned
    /// whatever the length: registered memory if there is any. What is in it is unspecified.
    pub(crate) fn take_direct(&self, len: usize) -> Buffer {
        let fixed = self.fixed.get().and_then(Option::as_ref).and_then(|pool| pool.take(len));
        fixed.unwrap_or_else(|| self.pool.take(len.max(Buffer::ALIGN)).narrowed(0, len))
    }

    /// The device with that `st_dev`, the same for all its files.
    fn device(&self, id: u64) -> Arc<Device> {
        let mut devices = self.devices.lock();
        Arc::clone(devices.entry(id).or_insert_with(|| Arc::new(Device::new(id))))
    }

    /// Every device met so far, for reports.
    pub(crate) fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.lock().values().cloned().collect()
    }

    /// Opens a path, repeating what was interrupted.
    pub(crate) fn open_fd(&self, path: &Path, mode: OpenMode, op: &'static str) -> Result<OwnedFd> {
        uninterrupted(&self.counters, || self.sys.open(path, mode))
            .map_err(|errno| Error::from_errno(errno, op, path))
    }

    /// Opens a regular file, or creates one if `mode` does. Anything else that stands there is
    /// refused before it is opened: opening a named pipe waits for its other end, and opening a
    /// device may do anything.
    pub(crate) fn open_file(
        &self,
        path: &Path,
        mode: OpenMode,
        op: &'static str,
    ) -> Result<OwnedFd> {
        // What cannot be asked about, the open itself will report.
        if let Ok(stat) = uninterrupted(&self.counters, || self.sys.stat(path)) {
            require_file(stat, op, path)?;
        }
        self.open_fd(path, mode, op)
    }

    /// What the kernel says about a file being opened.
    pub(crate) fn stat_fd(&self, fd: &OwnedFd, path: &Path) -> Result<FileStat> {
        uninterrupted(&self.counters, || self.sys.stat_fd(fd.as_fd()))
            .map_err(|errno| Error::from_errno(errno, "open", path))
    }
}

/// What is known about NOWAIT reads of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latch {
    Unknown,
    Works,
    Unsupported,
}

/// What a NOWAIT read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nowait {
    /// Everything.
    Full,
    /// The first so many bytes, at least one and not all.
    Short(usize),
    /// Nothing; a plain read must follow.
    Miss,
    /// Nothing, and it never will for this file: do not ask again.
    Unsupported,
}

/// What is to be done about announced reads of a direct file, which the kernel does not read ahead.
pub(crate) trait Announced: Debug + Send + Sync {
    /// A range will be read soon. Never waits for the device.
    fn announce(&self, offset: u64, len: u64);

    /// Fills `buf` with what was announced, waiting for it if it is on its way. If not all of it is
    /// to be had so, false, and the contents are unspecified.
    fn fill(&self, buf: &mut [u8], offset: u64) -> bool;
}

/// A file open for reading.
#[derive(Debug)]
pub(crate) struct OsFile {
    os: Arc<Os>,
    fd: OwnedFd,
    path: PathBuf,
    /// The size at open; `None` for a file that may change in place, whose size is asked for.
    fixed_size: Option<u64>,
    access: Access,
    direct: Option<DirectAlign>,
    device: Arc<Device>,
    nowait: AtomicU8,
    /// A read of several pieces of memory at once was refused.
    unmerged: AtomicBool,
    /// The whole file, if it is read through a mapping.
    map: Option<Arc<Mmap>>,
    announced: OnceLock<Box<dyn Announced>>,
}

impl OsFile {
    /// Opens an existing file. With `direct` its reads go past the page cache; a file system that
    /// refuses that is an error, not another way of reading.
    pub(crate) fn open(os: &Arc<Os>, path: &Path, access: Access, direct: bool) -> Result<Self> {
        let mode = if direct { OpenMode::ReadDirect } else { OpenMode::Read };
        let fd = os.open_file(path, mode, "open").map_err(|error| {
            let refused = direct && error.errno() == Some(libc::EINVAL);
            if refused { no_direct("reads", path) } else { error }
        })?;
        let stat = os.stat_fd(&fd, path)?;
        let align = DirectAlign::of(stat.direct);
        let direct =
            if direct { Some(align.ok_or_else(|| no_direct("reads", path))?) } else { None };
        if access == Access::Random && direct.is_none() {
            // Advice: a file system that will not take it still reads right.
            let _ = os.sys.fadvise(fd.as_fd(), 0, 0, Advice::Random);
        }
        Self::from_parts(os, fd, path, stat, access, direct)
    }

    fn from_parts(
        os: &Arc<Os>,
        fd: OwnedFd,
        path: &Path,
        stat: FileStat,
        access: Access,
        direct: Option<DirectAlign>,
    ) -> Result<Self> {
        require_file(stat, "open", path)?;
        Ok(Self {
            os: Arc::clone(os),
            fd,
            path: path.to_path_buf(),
            fixed_size: Some(stat.size),
            access,
            direct,
            device: os.device(stat.device),
            nowait: AtomicU8::new(Latch::Unknown as u8),
            unmerged: AtomicBool::new(false),
            map: None,
            announced: OnceLock::new(),
        })
    }

    /// Tells `announced` of reads to come, from now on. Only the first call counts.
    pub(crate) fn tell_announcements(&self, announced: Box<dyn Announced>) {
        let _ = self.announced.set(announced);
    }

    /// The same file, read through a memory mapping from now on.
    pub(crate) fn through_mapping(mut self) -> Result<Self> {
        if self.fixed_size.is_some_and(|size| size > 0) {
            let map = mapped::map(&self.fd);
            let map = map.map_err(|error| Error::from_io(&error, "open", &self.path))?;
            self.map = Some(Arc::new(map));
        }
        Ok(self)
    }

    /// The file behind a trait object, if it is one of ours.
    pub(crate) fn of(file: &dyn RandomAccessFile) -> Option<&Self> {
        let file: &dyn Any = file;
        file.downcast_ref().or_else(|| file.downcast_ref().map(|rw: &OsRwFile| &rw.file))
    }

    /// The descriptor, open as long as this file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The alignment its reads need, if it reads past the page cache.
    pub(crate) fn direct(&self) -> Option<DirectAlign> {
        self.direct
    }

    /// The device it is on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How it was said to be read.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// What is known about NOWAIT reads of this file. Relaxed: it guards no other memory.
    pub(crate) fn nowait_latch(&self) -> Latch {
        match self.nowait.load(Ordering::Relaxed) {
            l if l == Latch::Works as u8 => Latch::Works,
            l if l == Latch::Unsupported as u8 => Latch::Unsupported,
            _ => Latch::Unknown,
        }
    }

    /// Remembers that this file refuses NOWAIT, or whatever else its file system does not do on a
    /// ring: it is read by plain calls from now on.
    pub(crate) fn latch_unsupported(&self) {
        let before = self.nowait.swap(Latch::Unsupported as u8, Ordering::Relaxed);
        if before != Latch::Unsupported as u8 {
            crate::trace::nowait_unsupported(&self.path);
        }
    }

    /// Remembers that this file refused a read of several pieces of memory at once; whether that is
    /// news.
    pub(crate) fn latch_unmerged(&self) -> bool {
        !self.unmerged.swap(true, Ordering::Relaxed)
    }

    /// Whether one call may read to several pieces of memory, each of which fits such a read by
    /// itself. Where memory must be aligned to more than offsets, the pieces may not be. Relaxed,
    /// as above.
    pub(crate) fn may_merge(&self) -> bool {
        let aligned = self.direct.is_none_or(|align| align.memory as u64 <= align.offset);
        aligned && !self.unmerged.load(Ordering::Relaxed)
    }

    /// Fails if the file cannot fill the range; to be asked before memory is made for it.
    pub(crate) fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let size = self.current_size()?;
        if len as u64 <= size.saturating_sub(offset) {
            return Ok(());
        }
        Err(Error::unexpected_eof(&self.path, offset, len, size))
    }

    fn current_size(&self) -> Result<u64> {
        match self.fixed_size {
            Some(size) => Ok(size),
            None => self.os.stat_fd(&self.fd, &self.path).map(|stat| stat.size),
        }
    }

    /// Takes what the page cache has of a range that is inside the file. Never waits for the
    /// device, never fails: what it does not give must be read by a plain read. `buf` holds what
    /// the answer says and is otherwise unspecified.
    pub(crate) fn read_nowait(&self, buf: &mut [u8], offset: u64, counters: &Counters) -> Nowait {
        if self.nowait_latch() == Latch::Unsupported {
            return Nowait::Unsupported;
        }
        let sys = &self.os.sys;
        match uninterrupted(counters, || sys.read_nowait(self.fd(), buf, offset)) {
            Ok(n) if n >= buf.len() => {
                self.latch_works();
                counters.bump(Count::NowaitHit);
                Nowait::Full
            }
            // Kernels 5.9 and 5.10 say 0 at page boundaries in mid-file: not an end of file.
            Ok(0) => {
                counters.bump(Count::NowaitMiss);
                Nowait::Miss
            }
            Ok(n) => {
                self.latch_works();
                counters.bump(Count::NowaitShort);
                Nowait::Short(n)
            }
            Err(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM) => {
                self.latch_unsupported();
                counters.bump(Count::NowaitUnsupported);
                Nowait::Unsupported
            }
            Err(errno) => {
                if errno == libc::EAGAIN {
                    self.latch_works();
                }
                // Any other error is left to the plain read that follows: its word is final.
                counters.bump(Count::NowaitMiss);
                Nowait::Miss
            }
        }
    }

    fn latch_works(&self) {
        if self.nowait_latch() == Latch::Unknown {
            self.nowait.store(Latch::Works as u8, Ordering::Relaxed);
        }
    }

    /// Fills `buf` from `offset` by plain reads on the calling thread, whatever it takes: short
    /// reads go on, interruptions are repeated. The last resort of every queue; its result is
    /// final.
    pub(crate) fn pread_exact(
        &self,
        buf: &mut [u8],
        offset: u64,
        counters: &Counters,
    ) -> Result<()> {
        self.check_range(offset, buf.len())?;
        if let Some(view) = self.view(offset, buf.len()) {
            buf.copy_from_slice(&view);
            counters.bump(Count::MmapReads);
            return Ok(());
        }
        // An empty range may lie beyond the end, where a direct read's window cannot be filled.
        if let Some(align) = self.direct
            && !buf.is_empty()
        {
            return direct::read_exact(self, align, buf, offset, counters);
        }
        let (len, mut filled, mut stuck) = (buf.len(), 0, 0);
        while filled < len {
            let at = offset + filled as u64;
            let rest = &mut buf[filled..];
            counters.bump(Count::Preads);
            let got = settled(counters, || self.os.sys.pread(self.fd(), rest, at))
                .map_err(|errno| Error::from_errno(errno, "read", &self.path).at(at))?;
            // Nothing below the known size may be a file cut short, or a slip: ask once more.
            stuck = if got == 0 { stuck + 1 } else { 0 };
            if stuck == 2 {
                return Err(Error::unexpected_eof(&self.path, offset, len, self.size()));
            }
            filled += got;
            if filled < len {
                counters.bump(Count::ShortReads);
            }
        }
        Ok(())
    }

    /// A view of a range of a mapped file; `None` if the file is not mapped or the mapping, which
    /// is as long as the file was then, does not hold the range.
    pub(crate) fn view(&self, offset: u64, len: usize) -> Option<Buffer> {
        let map = self.map.as_ref()?;
        let start = usize::try_from(offset).ok()?;
        let held = start <= map.len() && len <= map.len() - start;
        held.then(|| Buffer::mapped(Arc::clone(map), start, len))
    }

    /// Reads a range by plain reads into a buffer from the pool of `os`. A direct file is read
    /// without a copy: the buffer shows part of an aligned window.
    pub(crate) fn read_buffer(&self, os: &Os, offset: u64, len: usize) -> Result<Buffer> {
        self.check_range(offset, len)?;
        if let Some(align) = self.direct
            && len > 0
        {
            return direct::read_window(self, align, os, offset, len);
        }
        let mut buffer = os.pool.take(len);
        self.pread_exact(buffer.as_mut_slice(), offset, &os.counters)?;
        Ok(buffer)
    }

    /// Asks the kernel to start reading a range, in pieces that it does not cut short.
    pub(crate) fn hint(&self, offset: u64, len: u64, counters: &Counters) {
        if self.direct.is_some() {
            return;
        }
        let end = offset.saturating_add(len).min(self.size());
        let mut at = offset;
        for _ in 0..HINTS {
            if at >= end {
                break;
            }
            let piece = HINT_LEN.min(end - at);
            counters.bump(Count::WillNeed);
            // A hint: what it does not start, the read will.
            let _ = self.os.sys.fadvise(self.fd(), at, piece, Advice::WillNeed);
            at += piece;
        }
    }
}

impl RandomAccessFile for OsFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.announced.get() {
            Some(announced) if announced.fill(buf, offset) => Ok(()),
            _ => self.pread_exact(buf, offset, &self.os.counters),
        }
    }

    fn size(&self) -> u64 {
        // A descriptor that is open can only be refused by a failing device or server; a read of
        // it then says what is wrong.
        self.current_size().unwrap_or(0)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn will_need(&self, offset: u64, len: u64) {
        match self.announced.get() {
            Some(announced) => announced.announce(offset, len),
            None => self.hint(offset, len, &self.os.counters),
        }
    }
}

fn require_file(stat: FileStat, op: &'static str, path: &Path) -> Result<()> {
    if stat.is_file {
        return Ok(());
    }
    if stat.is_dir {
        return Err(Error::from_errno(libc::EISDIR, op, path));
    }
    let message = "a named pipe, a socket or a device, not a regular file";
    Err(Error::new(ErrorKind::NotAFile, op, path, message).with_outcome(Outcome::NotApplied))
}

fn no_direct(what: &str, path: &Path) -> Error {
    let message =
        format!("direct {what} were asked for, but this file system does not do direct I/O");
    Error::new(ErrorKind::Unsupported, "open", path, message)
}
