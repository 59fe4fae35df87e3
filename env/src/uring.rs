//! The io_uring environment: misses of batched reads go to a ring together, and so do batched
//! writes to direct files in place; blocks of tables are written by a thread that has a ring of its
//! own, the reactor. Everything else is done as in the environment of plain system calls, which it
//! holds inside.
//!
//! A ring is used where it pays and nowhere else. A single read is a `pread` on the calling thread,
//! since a ring at depth one loses. Appends to logs and syncs are made on the calling thread.

use std::path::Path;
use std::time::Duration;

use crate::os_file::{Chunk, Os};
use crate::sync::Arc;
use crate::sys::Sys;
use crate::{
    Access, DirEntry, Env, EnvReport, Error, ErrorKind, FileKind, FileLock, IoQueue, Metadata,
    PosixEnv, RandomAccessFile, RandomRwFile, Result, WritableFile,
};

use ahead::Ahead;
use assembly::{Assembled, RingFacts, assemble};
use breaker::Breaker;
use kernel::Registered;
use pool::Pool;
use queue::RingQueue;
use reactor::Reactor;
use run::Merging;
use writes::Writes;

pub use builder::IoUringEnvBuilder;
pub use machine::MachineFacts;
pub use offers::Offer;
pub(crate) use offers::offers;
pub use unavailable::{SelfTestStep, Unavailable};
pub use writes::WritePath;

mod ahead;
mod assembly;
mod breaker;
mod builder;
mod flight;
mod kernel;
mod lane;
mod machine;
mod offers;
mod op;
mod pool;
mod queue;
mod reactor;
mod ring;
mod run;
#[cfg(test)]
mod scripted;
mod setup;
#[cfg(feature = "test-util")]
mod short;
mod slots;
mod unavailable;
mod verdict;
mod writes;

/// What the queues of one environment share.
#[derive(Debug)]
pub(crate) struct Shared {
    os: Arc<Os>,
    pool: Pool,
    /// Rings for direct reads that ask the device for completions, if there are any.
    asking: Option<Pool>,
    breaker: Breaker,
    max_in_flight: usize,
    nowait: bool,
    /// Which queued writes in place go to a ring.
    write_path: WritePath,
    /// Memory that a ring is told of when it is first used.
    registered: Option<Arc<Registered>>,
    merging: Merging,
    /// What reads for direct queues that find no free ring.
    reactor: Option<Arc<Reactor>>,
}

/// The environment whose batched reads go to the kernel together, through io_uring.
///
/// It uses io_uring or it is not built: [`IoUringEnvBuilder::build`] gives the cause in a type,
/// and [`auto`](crate::auto()) is the separate call that chooses another environment and says so.
/// While running, a read that a ring cannot serve is served by plain calls; that never changes an
/// answer and always moves a counter in [`Env::report`].
///
/// Files of [`PosixEnv`] work in its queues, and the other way round. Cheap to clone; clones share
/// their rings, their thread and counters.
///
/// # The reactor
///
/// Unless [`WritePath::Caller`] is chosen the environment has one thread, with every signal
/// blocked, to which tables hand their blocks ([`WritePath`]). It ends with the last clone of the
/// environment and the last file made by one, after everything handed to it is written. If it
/// ended before, writes would be made on the calling thread, and the report say so.
///
/// # Queues and threads
///
/// A queue stays on its thread:
///
/// ```compile_fail
/// let env = treering_env::IoUringEnv::new().unwrap();
/// let queue = treering_env::Env::queue(&env);
/// std::thread::spawn(move || drop(queue));
/// ```
///
/// # Forking
///
/// A child made by `fork` has no rings and no reactor: its queues read and its files are written by
/// plain calls. A table that had blocks with the reactor at that moment fails in the child. As
/// always, a child can do little if it was made while another thread held a lock, and the reactor
/// is such a thread while it has blocks: make children when no table is being written. Direct
/// reads in flight during a `fork` are not supported on old kernels, where the child's
/// copy-on-write may separate a buffer from the device.
#[derive(Clone, Debug)]
pub struct IoUringEnv {
    posix: PosixEnv,
    shared: Arc<Shared>,
    rings: RingFacts,
    writes: Writes,
    /// What direct files are read ahead into, if they are.
    ahead: Option<Arc<Ahead>>,
}

impl IoUringEnv {
    /// The environment with default options.
    pub fn new() -> Result<Self, Unavailable> {
        Self::builder().build()
    }

    /// Starts from the default options.
    pub fn builder() -> IoUringEnvBuilder {
        IoUringEnvBuilder::default()
    }

    /// The environment over other system calls than the kernel's; its rings are real.
    fn with_sys(sys: Arc<dyn Sys>, options: &IoUringEnvBuilder) -> Result<Self, Unavailable> {
        options.check()?;
        let mut assembled = assemble(options)?;
        let posix = PosixEnv::builder()
            .direct_reads(options.direct_reads)
            .direct_writes(options.direct_writes)
            .direct_rw(options.direct_rw)
            .buffer_pool(options.buffer_pool);
        let posix = PosixEnv::with_sys(sys, posix)
            .expect("direct reads and writes go together, and on Linux");
        assembled.register(options.fixed_buffers, posix.os());
        let Assembled { pool, asking, registered, plain_flags, facts: rings } = assembled;
        let breaker = Breaker::default();
        // Who was refused rings a moment ago waits no second time.
        let patient = pool.shortfall().is_none();
        let release = MachineFacts::read().kernel;
        let writes = Writes::start(
            &release,
            options,
            plain_flags,
            patient,
            registered.as_ref(),
            posix.os(),
            &breaker,
        )?;
        let reactor = writes.reactor();
        let reads_ahead = options.direct_reads && options.read_ahead > 0;
        let ahead = reactor.as_ref().filter(|_| reads_ahead);
        let ahead = ahead.map(|reactor| Ahead::new(posix.os(), reactor, options.read_ahead));
        let shared = Shared {
            os: Arc::clone(posix.os()),
            pool,
            asking,
            breaker,
            max_in_flight: options.max_in_flight,
            nowait: options.nowait,
            write_path: options.write_path,
            registered,
            merging: Merging { gap: options.merge_gap, limit: options.merge_limit },
            reactor,
        };
        Ok(Self { posix, shared: Arc::new(shared), rings, writes, ahead })
    }

    /// Ends the reactor: it takes no more writes, completes what it was given, and its thread ends.
    /// Later writes are made on the calling thread. Does nothing the second time, or where there
    /// is no reactor. Dropping the environment and its files does the same without a limit of time.
    ///
    /// An error says that writes or reads were still in the kernel when `patience` was over. Their
    /// memory stays allocated, and their files open, until they complete, if they ever do. A file
    /// with such a write fails when it is flushed, and it may be applied or not; a queue makes such
    /// a read again, by a plain call or on a ring of its own. Who waits already is told within 50
    /// ms.
    pub fn shutdown(&self, patience: Duration) -> Result<()> {
        if self.writes.shut_down(patience) {
            return Ok(());
        }
        let message = format!("writes are still in the kernel after {patience:?}");
        Err(Error::new(ErrorKind::Other, "shutdown", Path::new("IoUringEnv"), message))
    }

    fn add_facts(&self, report: &mut EnvReport) {
        let Shared { pool, breaker, max_in_flight, nowait, merging, .. } = &*self.shared;
        report.fact("kernel", MachineFacts::read().kernel, None);
        let looks = *nowait && !self.posix.reads_direct();
        let first = if looks { "page cache first, misses" } else { "all" };
        let how = format!("{first} through a ring, at most {max_in_flight} at once per queue");
        report.fact("batched reads", how, None);
        let Merging { gap, limit } = *merging;
        let merged = if limit == 0 {
            "no".to_owned()
        } else {
            format!("up to {limit} bytes, over gaps of up to {gap}")
        };
        report.fact("neighbouring ring reads merged", merged, None);
        let on_a_ring = match self.shared.write_path {
            WritePath::Auto => "through a ring if the file is direct",
            WritePath::Reactor => "through a ring",
            WritePath::Caller => "on the calling thread",
        };
        report.fact("queued writes in place", on_a_ring, None);
        if self.posix.reads_direct() {
            let how = self.ahead.as_ref().map(|ahead| ahead.bytes());
            let (how, why) = match how {
                Some((bytes, limit)) => {
                    (format!("{} of at most {} KiB kept", bytes >> 10, limit >> 10), None)
                }
                None if self.shared.reactor.is_none() => ("off".to_owned(), Some("no reactor")),
                None => ("off".to_owned(), Some("not wanted")),
            };
            report.fact("direct files read ahead", how, why.map(str::to_owned));
        }
        for device in self.shared.os.devices() {
            let Chunk { bytes, driver_kib } = device.chunk();
            let value = format!("{:#x}: {} KiB", device.id(), bytes >> 10);
            let why = driver_kib.map_or_else(
                || "the device does not say what it takes".to_owned(),
                |kib| format!("the driver takes {kib} KiB"),
            );
            report.fact("longest ring read on device", value, Some(why));
        }
        self.rings.add_to(report, pool, self.shared.asking.as_ref());
        let state = if breaker.is_open() { "open" } else { "closed" };
        let why = breaker.is_open().then(|| "rings kept failing reads".to_owned());
        report.fact("breaker", format!("{state}, level {}", breaker.level()), why);
    }
}

impl Env for IoUringEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let file = self.posix.open_file(path, access)?;
        if let Some(ahead) = self.ahead.as_ref().filter(|_| file.direct().is_some()) {
            ahead.attend(&file);
        }
        Ok(file)
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.posix.open_rw(path)
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        self.posix.create_through(path, kind, |file| self.writes.outlet(kind, file))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.posix.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.posix.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.posix.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.posix.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.posix.link(from, to)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.posix.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.posix.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.posix.sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.posix.free_space(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.posix.lock(path)
    }

    /// A queue over the rings. It takes one when it first needs it, and gives it back whenever
    /// nothing is pending.
    fn queue(&self) -> Box<dyn IoQueue> {
        Box::new(RingQueue::new(&self.shared))
    }

    fn report(&self) -> EnvReport {
        let mut report = self.posix.report();
        report.env = "io_uring";
        report.facts.retain(|fact| fact.name != "batched reads");
        self.add_facts(&mut report);
        self.writes.add_facts(&mut report);
        let pool = &self.shared.pool;
        report.counters.insert("rings_alive", pool.size() as u64);
        report.counters.insert("ring_replaced", pool.replaced());
        report.counters.insert("ring_lost", pool.lost());
        let workers = machine::ring_workers();
        report.counters.insert("worker_threads_alive", workers.queues);
        report.counters.insert("reactor_worker_threads_alive", workers.reactors);
        report
    }
}

#[cfg(test)]
mod tests;
