//! System calls that go wrong as a script says: any error number, short transfers, and the odd
//! answers of particular kernels, by kind of call, path and count. What the script does not
//! touch goes through to another implementation.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Advice, DirectSupport, FileStat, OpenMode, RawEntry, Sys, SysResult};

/// The kinds of call a rule can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Open,
    Pread,
    ReadNowait,
    Pwrite,
    Fdatasync,
    Fsync,
    Fallocate,
    Ftruncate,
    FlushRange,
    Fadvise,
    StatFd,
    Stat,
    ReadDir,
    Rename,
    Unlink,
    Rmdir,
    Mkdir,
    Link,
    FreeSpace,
    TryLock,
}

/// What happens instead of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done; this error number comes back.
    Errno(i32),
    /// At most this many bytes are transferred. Zero transfers nothing and returns 0, as a NOWAIT
    /// read of some kernels does before the end of the file.
    Short(usize),
    /// A listing gives this many names and then fails.
    EntriesThen(usize, i32),
    /// What is asked about an open file says that direct I/O needs these multiples of memory
    /// addresses, and of offsets and lengths.
    Aligned(u32, u32),
}

/// Which of the matching calls a rule is for, counted from 0 by each rule on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Only this one.
    Nth(u64),
    /// This one and all after it.
    From(u64),
    /// The 1st, the 3rd, the 5th, ...
    EveryOther,
    /// All but the last of each so many.
    AllButEvery(u64),
}

impl When {
    fn covers(self, nth: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(n) => nth == n,
            Self::From(n) => nth >= n,
            Self::EveryOther => nth.is_multiple_of(2),
            Self::AllButEvery(n) => nth % n != n - 1,
        }
    }
}

/// A rule in force; says how often it was met and how often it fired.
#[derive(Debug)]
pub(crate) struct Rule {
    call: Call,
    /// Only paths that end so; empty for all.
    path_ends: String,
    when: When,
    fault: Fault,
    matched: AtomicU64,
    fired: AtomicU64,
    off: AtomicU64,
}

impl Rule {
    /// How often the rule changed an answer.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Puts the rule out of force.
    pub(crate) fn lift(&self) {
        self.off.store(1, Ordering::Relaxed);
    }
}

/// Another [`Sys`] with a script in front.
pub(crate) struct ScriptedSys {
    inner: Arc<dyn Sys>,
    rules: Mutex<Vec<Arc<Rule>>>,
    /// The path each descriptor was opened by. A number used again replaces the old path.
    paths: Mutex<HashMap<RawFd, PathBuf>>,
    calls: Mutex<HashMap<Call, u64>>,
    /// Every read and write asked for: kind, offset, length.
    transfers: Mutex<Vec<(Call, u64, usize)>>,
}

impl fmt::Debug for ScriptedSys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedSys").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ScriptedSys {
    /// No rules yet: everything goes through to `inner`.
    pub(crate) fn new(inner: Arc<dyn Sys>) -> Arc<Self> {
        let (rules, paths, calls, transfers) = Default::default();
        Arc::new(Self { inner, rules, paths, calls, transfers })
    }

    /// Adds a rule. Of several that cover a call the first one added decides; all count it.
    pub(crate) fn rule(&self, call: Call, path_ends: &str, when: When, fault: Fault) -> Arc<Rule> {
        let path_ends = path_ends.to_owned();
        let (matched, fired, off) = Default::default();
        let rule = Arc::new(Rule { call, path_ends, when, fault, matched, fired, off });
        self.rules.lock().push(Arc::clone(&rule));
        rule
    }

    /// How many calls of a kind were made, those that a rule answered included.
    pub(crate) fn calls(&self, call: Call) -> u64 {
        self.calls.lock().get(&call).copied().unwrap_or(0)
    }

    /// The reads and writes asked for since the last call of this.
    pub(crate) fn take_transfers(&self) -> Vec<(Call, u64, usize)> {
        std::mem::take(&mut self.transfers.lock())
    }

    fn fault(&self, call: Call, path: &Path) -> Option<Fault> {
        *self.calls.lock().entry(call).or_default() += 1;
        let mut decided = None;
        for rule in self.rules.lock().iter() {
            let applies = rule.call == call
                && rule.off.load(Ordering::Relaxed) == 0
                && path.to_string_lossy().ends_with(&rule.path_ends);
            if !applies {
                continue;
            }
            let nth = rule.matched.fetch_add(1, Ordering::Relaxed);
            if decided.is_none() && rule.when.covers(nth) {
                rule.fired.fetch_add(1, Ordering::Relaxed);
                decided = Some(rule.fault);
            }
        }
        decided
    }

    fn fault_fd(&self, call: Call, fd: BorrowedFd<'_>) -> Option<Fault> {
        let path = self.paths.lock().get(&fd.as_raw_fd()).cloned().unwrap_or_default();
        self.fault(call, &path)
    }

    /// How many of `len` bytes may be transferred.
    fn allowed(&self, call: Call, fd: BorrowedFd<'_>, len: usize, offset: u64) -> SysResult<usize> {
        self.transfers.lock().push((call, offset, len));
        match self.fault_fd(call, fd) {
            None => Ok(len),
            Some(Fault::Short(n)) => Ok(n.min(len)),
            Some(fault) => Err(errno_of(fault)),
        }
    }

    /// Fails if a rule says so, for calls that transfer nothing.
    fn check(fault: Option<Fault>) -> SysResult<()> {
        fault.map_or(Ok(()), |fault| Err(errno_of(fault)))
    }
}

fn errno_of(fault: Fault) -> i32 {
    match fault {
        Fault::Errno(errno) | Fault::EntriesThen(_, errno) => errno,
        Fault::Short(_) => panic!("a call that transfers nothing cannot be short"),
        Fault::Aligned(..) => panic!("only a file can be asked about direct I/O"),
    }
}

impl Sys for ScriptedSys {
    fn open(&self, path: &Path, mode: OpenMode) -> SysResult<OwnedFd> {
        Self::check(self.fault(Call::Open, path))?;
        let fd = self.inner.open(path, mode)?;
        self.paths.lock().insert(fd.as_raw_fd(), path.to_path_buf());
        Ok(fd)
    }

    fn pread(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        let len = self.allowed(Call::Pread, fd, buf.len(), offset)?;
        if len == 0 {
            return Ok(0);
        }
        // The whole is read, since a direct read cannot be cut anywhere; what is not owned up to
        // is spoilt, so that nobody can rely on it.
        let got = self.inner.pread(fd, buf, offset)?.min(len);
        buf[got..].fill(0xa5);
        Ok(got)
    }

    fn read_nowait(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> SysResult<usize> {
        let len = self.allowed(Call::ReadNowait, fd, buf.len(), offset)?;
        if len == 0 {
            return Ok(0);
        }
        if len < buf.len() {
            // The scripted prefix must arrive whether or not the page cache has it.
            return self.inner.pread(fd, &mut buf[..len], offset);
        }
        self.inner.read_nowait(fd, buf, offset)
    }

    fn pwrite(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> SysResult<usize> {
        let len = self.allowed(Call::Pwrite, fd, data.len(), offset)?;
        if len == 0 { Ok(0) } else { self.inner.pwrite(fd, &data[..len], offset) }
    }

    fn fdatasync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        Self::check(self.fault_fd(Call::Fdatasync, fd))?;
        self.inner.fdatasync(fd)
    }

    fn fsync(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        Self::check(self.fault_fd(Call::Fsync, fd))?;
        self.inner.fsync(fd)
    }

    fn fallocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        Self::check(self.fault_fd(Call::Fallocate, fd))?;
        self.inner.fallocate(fd, offset, len)
    }

    fn ftruncate(&self, fd: BorrowedFd<'_>, size: u64) -> SysResult<()> {
        Self::check(self.fault_fd(Call::Ftruncate, fd))?;
        self.inner.ftruncate(fd, size)
    }

    fn flush_range(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<()> {
        Self::check(self.fault_fd(Call::FlushRange, fd))?;
        self.inner.flush_range(fd, offset, len)
    }

    fn fadvise(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> SysResult<()> {
        Self::check(self.fault_fd(Call::Fadvise, fd))?;
        self.inner.fadvise(fd, offset, len, advice)
    }

    fn stat_fd(&self, fd: BorrowedFd<'_>) -> SysResult<FileStat> {
        match self.fault_fd(Call::StatFd, fd) {
            Some(Fault::Aligned(memory, offset)) => {
                let direct = DirectSupport::Aligned { memory, offset };
                Ok(FileStat { direct, ..self.inner.stat_fd(fd)? })
            }
            fault => Self::check(fault).and_then(|()| self.inner.stat_fd(fd)),
        }
    }

    fn stat(&self, path: &Path) -> SysResult<FileStat> {
        Self::check(self.fault(Call::Stat, path))?;
        self.inner.stat(path)
    }

    fn read_dir(&self, dir: BorrowedFd<'_>, each: &mut dyn FnMut(RawEntry)) -> SysResult<()> {
        match self.fault_fd(Call::ReadDir, dir) {
            None => self.inner.read_dir(dir, each),
            Some(Fault::EntriesThen(limit, errno)) => {
                let mut given = 0;
                self.inner.read_dir(dir, &mut |entry| {
                    if given < limit {
                        given += 1;
                        each(entry);
                    }
                })?;
                Err(errno)
            }
            Some(fault) => Err(errno_of(fault)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> SysResult<()> {
        Self::check(self.fault(Call::Rename, from))?;
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> SysResult<()> {
        Self::check(self.fault(Call::Unlink, path))?;
        self.inner.unlink(path)
    }

    fn rmdir(&self, path: &Path) -> SysResult<()> {
        Self::check(self.fault(Call::Rmdir, path))?;
        self.inner.rmdir(path)
    }

    fn mkdir(&self, path: &Path) -> SysResult<()> {
        Self::check(self.fault(Call::Mkdir, path))?;
        self.inner.mkdir(path)
    }

    fn link(&self, from: &Path, to: &Path) -> SysResult<()> {
        Self::check(self.fault(Call::Link, from))?;
        self.inner.link(from, to)
    }

    fn free_space(&self, path: &Path) -> SysResult<u64> {
        Self::check(self.fault(Call::FreeSpace, path))?;
        self.inner.free_space(path)
    }

    fn try_lock(&self, file: &File) -> SysResult<()> {
        Self::check(self.fault(Call::TryLock, Path::new("")))?;
        self.inner.try_lock(file)
    }
}
