//! The default environment: plain system calls on the calling thread, no threads of its own.
//!
//! Batched reads are parallel all the same (see `prefetch_queue`), also where no ring is to be had.
//! Tested on Linux; what other Unix systems lack is left out there.

#[cfg(feature = "test-util")]
use std::num::NonZeroUsize;
use std::path::Path;

use crate::buffer::BufferPool;
use crate::os_file::{Kick, Os, OsFile, OsRwFile};
use crate::sync::Arc;
#[cfg(feature = "test-util")]
use crate::sys::short::ShortSys;
use crate::sys::{KernelSys, Sys};
use crate::{
    Access, DirEntry, Env, EnvReport, Error, ErrorKind, FileKind, FileLock, IoQueue, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

use direct_table::DirectTable;
use outlet::Outlet;
pub(crate) use prefetch_queue::{PrefetchQueue, WINDOW};
use writable::{PosixFile, Shared};

mod direct_table;
pub(crate) mod outlet;
pub(crate) mod paths;
mod prefetch_queue;
#[cfg(test)]
mod tests;
pub(crate) mod writable;

/// How [`PosixEnv`] serves a queue of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BatchReads {
    /// One `pread` after another: the plain baseline.
    Serial,
    /// What is in the page cache at once; the device reads of the others are started together and
    /// waited for one by one.
    #[default]
    Prefetch,
}

/// The environment of plain system calls: `pread`, `pwrite`, `fdatasync`.
///
/// Cheap to clone; clones share their counters and what was learned about devices.
#[derive(Clone, Debug)]
pub struct PosixEnv {
    os: Arc<Os>,
    options: Options,
}

#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options that have nothing to do with each other"
)]
struct Options {
    batch_reads: BatchReads,
    mmap_reads: bool,
    direct_reads: bool,
    direct_writes: bool,
    direct_rw: bool,
    /// [`BufferPool::DEFAULT_BUDGET`] unless told otherwise.
    buffer_pool: Option<usize>,
}

impl Options {
    fn any_direct(self) -> bool {
        self.direct_reads || self.direct_writes || self.direct_rw
    }
}

/// Makes a [`PosixEnv`] with other than the default options.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PosixEnvBuilder {
    options: Options,
    #[cfg(feature = "test-util")]
    max_transfer: Option<NonZeroUsize>,
}

impl PosixEnvBuilder {
    /// How queues are served. Default: [`BatchReads::Prefetch`].
    pub fn batch_reads(mut self, batch_reads: BatchReads) -> Self {
        self.options.batch_reads = batch_reads;
        self
    }

    /// Reads files through memory mappings. Default: off. For data that fits in memory: a cached
    /// read costs no system call, and a queued one no copy; one that is not cached stalls its
    /// thread on a page fault, one page after another.
    ///
    /// By switching it on the caller promises that no one changes or cuts short a file that is
    /// open for reading. **A device error, or a file cut short, then kills the process** (SIGBUS)
    /// instead of returning an error.
    pub fn mmap_reads(mut self, on: bool) -> Self {
        self.options.mmap_reads = on;
        self
    }

    /// Reads files opened for random access past the page cache. Default: off. Queued reads are
    /// then served one after another: only a ring reads directly in parallel. Opening a file on a
    /// file system without direct I/O is an error of kind `Unsupported`.
    pub fn direct_reads(mut self, on: bool) -> Self {
        self.options.direct_reads = on;
        self
    }

    /// Writes tables past the page cache, into space allocated ahead. Default: off. The table is
    /// not cached afterwards, and a flush before its end costs one block written twice. Creating a
    /// table on a file system without direct I/O is an error of kind `Unsupported`.
    pub fn direct_writes(mut self, on: bool) -> Self {
        self.options.direct_writes = on;
        self
    }

    /// Reads and writes files opened for both ([`Env::open_rw`]) past the page cache. Default: off.
    ///
    /// A write is then taken only if its offset, its length and its address in memory are multiples
    /// of what the file system asks for ([`RandomRwFile::alignment`]); any other is an error of
    /// kind `Misaligned` and writes nothing. A read may begin and end anywhere. Writing whole
    /// blocks makes the file longer than its last byte, until `set_size` cuts it. Writes that make
    /// it longer are the slow kind: write zeros first. What is read of the file through the page
    /// cache while it is being written may be old. Opening one on a file system without direct I/O
    /// is an error of kind `Unsupported`.
    pub fn direct_rw(mut self, on: bool) -> Self {
        self.options.direct_rw = on;
        self
    }

    /// Keeps at most so many bytes of buffers that nobody uses, in sizes from 4 KiB to 1 MiB, for
    /// the reads to come. Default: 64 MiB; 0 keeps none, and each buffer costs what making it costs
    /// (page faults, most of all). Buffers in use do not count, nor do the free parts of 2 MiB
    /// slabs of which others are in use. `buffer_bytes_made` of the report says how much was made
    /// because nothing free was there: it stands still when enough is kept.
    pub fn buffer_pool(mut self, bytes: usize) -> Self {
        self.options.buffer_pool = Some(bytes);
        self
    }

    /// Lets every system call that reads or writes transfer at most so many bytes, as a kernel
    /// may, although more is asked for and the end of the file is far. Default: as many as the
    /// kernel likes. For tests of what stands above: the environment must go on until everything
    /// is there, and `short_reads` and `short_writes` of its report say how often it had to.
    /// Mapped reads are no calls and stay whole; direct files, which no call may cut just
    /// anywhere, cannot be had together with it.
    #[cfg(feature = "test-util")]
    pub fn max_transfer(mut self, bytes: NonZeroUsize) -> Self {
        self.max_transfer = Some(bytes);
        self
    }

    /// The environment, or an error that says which options exclude each other.
    pub fn build(self) -> Result<PosixEnv> {
        #[cfg(feature = "test-util")]
        if let Some(bytes) = self.max_transfer {
            if self.options.any_direct() {
                return Err(refused("max_transfer and direct files exclude each other"));
            }
            return PosixEnv::with_sys(Arc::new(ShortSys::new(Arc::new(KernelSys), bytes)), self);
        }
        PosixEnv::with_sys(Arc::new(KernelSys), self)
    }
}

/// The error of options that cannot be had.
fn refused(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "build", Path::new("PosixEnv"), message)
}

impl Default for PosixEnv {
    fn default() -> Self {
        Self::new()
    }
}

impl PosixEnv {
    /// The environment with default options.
    pub fn new() -> Self {
        Self { os: Os::new(Arc::new(KernelSys)), options: Options::default() }
    }

    /// Starts from the default options.
    pub fn builder() -> PosixEnvBuilder {
        PosixEnvBuilder::default()
    }

    /// The environment on other system calls than the kernel's.
    pub(crate) fn with_sys(sys: Arc<dyn Sys>, builder: PosixEnvBuilder) -> Result<Self> {
        let budget = builder.options.buffer_pool.unwrap_or(BufferPool::DEFAULT_BUDGET);
        Self::with_os(Os::with_pool(sys, BufferPool::new(budget)), builder)
    }

    /// The environment on shared state that another one keeps too.
    pub(crate) fn with_os(
        os: Arc<Os>,
        PosixEnvBuilder { options, .. }: PosixEnvBuilder,
    ) -> Result<Self> {
        if options.mmap_reads && options.direct_reads {
            return Err(refused(
                "mmap_reads and direct_reads exclude each other: a mapping is the page cache",
            ));
        }
        if cfg!(not(target_os = "linux")) && options.any_direct() {
            return Err(refused("direct files are offered on Linux only"));
        }
        Ok(Self { os, options })
    }

    /// The system calls, counters and memory that its files share.
    pub(crate) fn os(&self) -> &Arc<Os> {
        &self.os
    }

    /// Whether files open for random access are read past the page cache.
    pub(crate) fn reads_direct(&self) -> bool {
        self.options.direct_reads
    }

    /// [`Env::create`] with the file's writes going through what `outlet` gives, or, if that is
    /// nothing, made on the calling thread.
    pub(crate) fn create_through(
        &self,
        path: &Path,
        kind: FileKind,
        outlet: impl FnOnce(&Arc<Shared>) -> Option<Box<dyn Outlet>>,
    ) -> Result<Box<dyn WritableFile>> {
        if self.options.direct_writes && kind == FileKind::Table {
            return Ok(Box::new(DirectTable::create(&self.os, path, outlet)?));
        }
        Ok(Box::new(PosixFile::create(&self.os, path, kind, outlet)?))
    }

    fn add_facts(&self, report: &mut EnvReport) {
        let Options { batch_reads, mmap_reads, direct_reads, direct_writes, direct_rw, .. } =
            self.options;
        let how = match batch_reads {
            BatchReads::Serial => "one pread after another",
            BatchReads::Prefetch => "page cache first, misses started together, then pread",
        };
        report.fact("batched reads", how, None);
        let reads = match (mmap_reads, direct_reads) {
            (true, _) => "through memory mappings",
            (_, true) => "direct where access is random",
            _ => "through the page cache",
        };
        report.fact("reads", reads, None);
        let way = |direct| if direct { "direct" } else { "through the page cache" };
        report.fact("table writes", way(direct_writes), None);
        report.fact("files in place", way(direct_rw), None);
        for device in self.os.devices() {
            let (verdict, why) = match device.kick() {
                Kick::Kicks => ("a miss starts its read", "no read-ahead hints needed"),
                Kick::OnlyLooks => ("a miss starts nothing", "read-ahead hints are given"),
                Kick::Unknown => ("not known yet", "read-ahead hints are given until it is"),
            };
            let value = format!("{:#x}: {verdict}", device.id());
            report.fact("NOWAIT reads on device", value, Some(why.to_owned()));
        }
        let (free, budget) = (self.os.pool.free_bytes() >> 10, self.os.pool.budget() >> 10);
        let pool =
            format!("{free} KiB free, at most {budget} KiB kept besides parts of used slabs");
        report.fact("buffer pool", pool, None);
        report.counters.insert("buffer_bytes_made", self.os.pool.made_bytes() as u64);
    }

    /// What [`Env::open`] opens.
    pub(crate) fn open_file(&self, path: &Path, access: Access) -> Result<Arc<OsFile>> {
        // Scans profit from the kernel's read-ahead, which direct reads do without.
        let direct = self.options.direct_reads && access == Access::Random;
        let file = OsFile::open(&self.os, path, access, direct)?;
        Ok(Arc::new(if self.options.mmap_reads { file.through_mapping()? } else { file }))
    }
}

impl Env for PosixEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        Ok(self.open_file(path, access)?)
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        Ok(Arc::new(OsRwFile::open(&self.os, path, self.options.direct_rw)?))
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        self.create_through(path, kind, |_| None)
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        paths::metadata(&self.os, path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        paths::list(&self.os, dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        paths::rename(&self.os, from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        paths::remove(&self.os, path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        paths::link(&self.os, from, to)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        paths::create_dir_all(&self.os, dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        paths::remove_dir(&self.os, dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        paths::sync_dir(&self.os, dir)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        paths::free_space(&self.os, dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        paths::lock(&self.os, path)
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        match self.options.batch_reads {
            BatchReads::Serial => Box::new(PrefetchQueue::serial(&self.os)),
            BatchReads::Prefetch => Box::new(PrefetchQueue::new(&self.os, WINDOW)),
        }
    }

    fn report(&self) -> EnvReport {
        let mut report = EnvReport::new(match self.options.batch_reads {
            BatchReads::Serial => "posix-serial",
            BatchReads::Prefetch => "posix",
        });
        self.add_facts(&mut report);
        self.os.counters.fill(&mut report);
        report
    }
}
