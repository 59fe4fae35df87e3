//! The options of the io_uring environment, each with its range.

use std::fmt::Display;
#[cfg(feature = "test-util")]
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use super::{IoUringEnv, Unavailable, WritePath};
use crate::buffer::{Arena, BufferPool};
use crate::os_file::polling;
use crate::sync::Arc;
use crate::sys::KernelSys;
#[cfg(feature = "test-util")]
use crate::sys::short::ShortSys;

const RING_ENTRIES: RangeInclusive<u32> = 8..=4096;
const RINGS: RangeInclusive<usize> = 1..=256;
const MAX_IN_FLIGHT: RangeInclusive<usize> = 1..=4096;
const WRITE_BUDGET: RangeInclusive<usize> = 1 << 20..=64 << 30;
/// A kernel registers at most 1 GiB at once.
const FIXED_BUFFERS: RangeInclusive<usize> = Arena::UNIT..=1 << 30;
const BUFFER_POOL: RangeInclusive<usize> = 0..=64 << 30;
const READ_AHEAD: RangeInclusive<usize> = 0..=64 << 30;
const SQPOLL_IDLE_MS: RangeInclusive<u128> = 1..=60_000;
/// With fewer processors than this, one that does nothing but poll is missed by what it polls for.
pub(super) const SQPOLL_CORES: usize = 8;
const MERGE_GAP: RangeInclusive<usize> = 0..=64 << 10;
const MERGE_LIMIT: RangeInclusive<usize> = 0..=512 << 10;
const EARLY_SYNC: RangeInclusive<u64> = 1 << 20..=1 << 40;

/// Makes an [`IoUringEnv`] with other than the default options.
#[derive(Clone, Debug)]
#[must_use]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options that have nothing to do with each other"
)]
pub struct IoUringEnvBuilder {
    pub(super) ring_entries: u32,
    pub(super) rings: Option<usize>,
    pub(super) max_in_flight: usize,
    pub(super) direct_reads: bool,
    pub(super) direct_writes: bool,
    pub(super) direct_rw: bool,
    pub(super) nowait: bool,
    pub(super) write_path: WritePath,
    pub(super) write_budget: usize,
    pub(super) read_ahead: usize,
    pub(super) buffer_pool: usize,
    pub(super) fixed_buffers: Option<usize>,
    pub(super) sqpoll: Option<Duration>,
    pub(super) allow_few_cores: bool,
    pub(super) merge_gap: usize,
    pub(super) merge_limit: usize,
    pub(super) iopoll: bool,
    pub(super) early_sync: Option<u64>,
    #[cfg(feature = "test-util")]
    pub(super) max_transfer: Option<NonZeroUsize>,
}

impl Default for IoUringEnvBuilder {
    fn default() -> Self {
        Self {
            ring_entries: 256,
            rings: None,
            max_in_flight: 128,
            direct_reads: false,
            direct_writes: false,
            direct_rw: false,
            nowait: true,
            write_path: WritePath::Auto,
            write_budget: 32 << 20,
            read_ahead: 32 << 20,
            buffer_pool: BufferPool::DEFAULT_BUDGET,
            fixed_buffers: None,
            sqpoll: None,
            allow_few_cores: false,
            merge_gap: 0,
            merge_limit: 128 << 10,
            iopoll: false,
            early_sync: Some(8 << 20),
            #[cfg(feature = "test-util")]
            max_transfer: None,
        }
    }
}

impl IoUringEnvBuilder {
    /// Entries of each ring, 8 to 4096, rounded up to a power of two. Default: 256. One ring of
    /// 256 entries takes about 50 KiB of locked memory since Linux 6.14.
    pub fn ring_entries(mut self, entries: u32) -> Self {
        self.ring_entries = entries;
        self
    }

    /// How many rings are made, 1 to 256. Default: twice the cores, at least 16 and at most 64.
    /// Each queue with reads in flight holds one; a queue that finds none reads without. Fewer are
    /// made if the kernel refuses more, and the report says so.
    pub fn rings(mut self, rings: usize) -> Self {
        self.rings = Some(rings);
        self
    }

    /// How many reads one queue has in flight at once, 1 to 4096. Default: 128, as many as
    /// a fast drive does in parallel. More of them take more memory: of so many, and of up to 32
    /// results that nobody took yet. Writes, which bring their memory, are up to 128 in any case.
    pub fn max_in_flight(mut self, reads: usize) -> Self {
        self.max_in_flight = reads;
        self
    }

    /// Reads files opened for random access past the page cache, through the ring. Default: off.
    /// Halves the CPU time of a read from the device and makes every read one: for use with a block
    /// cache as good as the page cache would be. Opening a file on a file system without direct
    /// I/O is an error of kind `Unsupported`.
    pub fn direct_reads(mut self, on: bool) -> Self {
        self.direct_reads = on;
        self
    }

    /// Keeps at most so many bytes of what direct files were announced to be read
    /// ([`will_need`](crate::RandomAccessFile::will_need)), until it is read; what finds no room
    /// is not read ahead, unless older ranges were left behind. The reactor reads it, up to 1 MiB
    /// or a quarter of the bytes for one announcement. Default: 32 MiB, up to 64 GiB; 0, or no
    /// reactor ([`WritePath::Caller`]): announcements of direct files do nothing.
    /// `read_ahead_ranges`, `read_ahead_hits` and `read_ahead_refused` of the report count. Files
    /// in the page cache are read ahead by the kernel whatever this says.
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// Writes tables past the page cache, into space allocated ahead; see
    /// [`PosixEnvBuilder::direct_writes`](crate::PosixEnvBuilder::direct_writes). Default: off.
    /// Creating a table on a file system without direct I/O is an error of kind `Unsupported`.
    pub fn direct_writes(mut self, on: bool) -> Self {
        self.direct_writes = on;
        self
    }

    /// Reads and writes files opened for both ([`Env::open_rw`](crate::Env::open_rw)) past the page
    /// cache, and takes only writes of whole blocks; see
    /// [`PosixEnvBuilder::direct_rw`](crate::PosixEnvBuilder::direct_rw). Default: off. Writes that
    /// are pushed to a queue go to a ring together, in one submission, unless
    /// [`WritePath::Caller`] is chosen; `ring_writes` counts them.
    pub fn direct_rw(mut self, on: bool) -> Self {
        self.direct_rw = on;
        self
    }

    /// Looks for batched reads in the page cache, until one is not there, before they go to a ring.
    /// Default: on. Off, every read goes to the ring, and one that is cached costs a ring entry:
    /// meant for comparing.
    pub fn nowait(mut self, on: bool) -> Self {
        self.nowait = on;
        self
    }

    /// Who makes the writes of appended files. Default: [`WritePath::Auto`].
    pub fn write_path(mut self, path: WritePath) -> Self {
        self.write_path = path;
        self
    }

    /// Bytes of buffers that writers may have with the reactor, 1 MiB to 64 GiB. Default: 32 MiB,
    /// enough for 8 tables being written at once. A writer that finds it used waits for one of its
    /// own writes, or, if none is out, writes on its own thread; `reactor_budget_full` counts that.
    pub fn write_budget(mut self, bytes: usize) -> Self {
        self.write_budget = bytes;
        self
    }

    /// Keeps at most so many bytes of buffers that nobody uses, up to 64 GiB: see
    /// [`PosixEnvBuilder::buffer_pool`](crate::PosixEnvBuilder::buffer_pool). Default: 64 MiB.
    /// Buffers of [`write_budget`](Self::write_budget) come from there and go back to it.
    pub fn buffer_pool(mut self, bytes: usize) -> Self {
        self.buffer_pool = bytes;
        self
    }

    /// Registers so many bytes of buffers with the kernel, 2 MiB to 1 GiB, rounded down to 2 MiB,
    /// so that a direct read or write on a ring need not pin and release the pages it uses.
    /// Default: none.
    ///
    /// They are for files past the page cache (`direct_reads`, `direct_writes`) and of no use
    /// otherwise. [`build`](Self::build) makes and pins every page of it, which takes the longer
    /// the more it is. The memory is there and locked from then to the end of the environment and
    /// of the last buffer in it, so it counts against `RLIMIT_MEMLOCK`: where that is too low, a
    /// half or less is registered, or nothing. A buffer that a caller or a cache keeps is one fewer
    /// for the next read; when all are in use, reads go on with other memory. `fixed_used` counts
    /// the one, `fixed_refused` the other, and the report says how much is registered. Reads that
    /// are merged into one entry ([`merge_limit`](Self::merge_limit)) fill such memory too, but do
    /// not use that it is registered, and count as neither.
    pub fn fixed_buffers(mut self, bytes: usize) -> Self {
        self.fixed_buffers = Some(bytes);
        self
    }

    /// Has a thread of the kernel look for what queues give to rings, so that giving it is no
    /// system call while the thread is awake; it sleeps after `idle` without any, 1 ms to 60 s.
    /// Default: off.
    ///
    /// It takes all of one processor while it is awake. With fewer than 8 of them the
    /// environment is not built ([`Unavailable::TooFewCores`]), unless
    /// [`allow_few_cores`](Self::allow_few_cores) says so. `sqpoll_sqes` counts what the thread
    /// took.
    pub fn sqpoll(mut self, idle: Duration) -> Self {
        self.sqpoll = Some(idle);
        self
    }

    /// Lets [`sqpoll`](Self::sqpoll) have one of a few processors: for tests, and for measuring.
    pub fn allow_few_cores(mut self, on: bool) -> Self {
        self.allow_few_cores = on;
        self
    }

    /// Bytes that may lie between the pages of two reads that go to a ring as one, 0 to 64 KiB.
    /// Default: 0, which merges what is on the same and on neighbouring pages. What lies between is
    /// read for nobody; `merged_waste_bytes` counts it.
    pub fn merge_gap(mut self, bytes: usize) -> Self {
        self.merge_gap = bytes;
        self
    }

    /// Bytes, at most, of reads of one file that follow one another closely and go to a ring as one
    /// entry, 0 to 512 KiB. Default: 128 KiB; 0 merges none. A device that takes shorter reads sets
    /// a lower limit. Each read keeps its own buffer and its own result; `merged_reads` counts
    /// those that went with another. Memory registered by [`fixed_buffers`](Self::fixed_buffers)
    /// is filled by such an entry like any other.
    pub fn merge_limit(mut self, bytes: usize) -> Self {
        self.merge_limit = bytes;
        self
    }

    /// Reads direct files on rings of their own that ask the device for completions instead of
    /// waiting for its interrupts. Default: off.
    ///
    /// Whoever waits for such a read takes all of a processor. Needs `direct_reads`, and a disk
    /// whose driver has queues for it, or the environment is not built
    /// ([`Unavailable::NoPollQueues`]): the module parameter `poll_queues` of `nvme` makes
    /// them. There are as many such rings as others. Files on other devices are read as without the
    /// option; together with reads of the first kind, in the same batch, by plain calls.
    /// `iopoll_reads` counts what such rings were given, `iopoll_refused` what the device would
    /// not take all the same, after which that device is left alone.
    pub fn iopoll(mut self, on: bool) -> Self {
        self.iopoll = on;
        self
    }

    /// After how many bytes of a table the reactor begins to flush what there is to the medium,
    /// while the rest is still being written; 1 MiB to 1 TiB, `None` for never. Default: 8 MiB.
    /// Without it all that the device holds in its cache is left to the sync at the end, and the
    /// device idles until then. It makes nothing durable: the sync at the end does. A flush that
    /// fails is the table's error. At most one is under way for a table; `early_syncs` counts them.
    /// Tables written past the page cache have none. [`sync`](crate::WritableFile::sync) waits for
    /// one that is under way, [`flush`](crate::WritableFile::flush) does not.
    pub fn early_sync(mut self, bytes: Option<u64>) -> Self {
        self.early_sync = bytes;
        self
    }

    /// Lets every system call that reads or writes, and every entry of a ring, transfer at most so
    /// many bytes, as a kernel may at any time; no reads are merged then. For tests of what stands
    /// above. Default: no limit. Excludes direct files.
    #[cfg(feature = "test-util")]
    pub fn max_transfer(mut self, bytes: NonZeroUsize) -> Self {
        self.max_transfer = Some(bytes);
        self
    }

    /// Finds out whether io_uring works here, with a real read, and makes the rings. Takes a few
    /// milliseconds; up to 160 more where locked memory is short, unless this process has waited in
    /// vain already and given none back since.
    pub fn build(self) -> Result<IoUringEnv, Unavailable> {
        #[cfg(feature = "test-util")]
        if let Some(bytes) = self.max_transfer {
            let direct = self.direct_reads || self.direct_writes || self.direct_rw;
            in_range("max_transfer with direct files", &direct, &(false..=false))?;
            let sys = ShortSys::new(Arc::new(KernelSys), bytes);
            return IoUringEnv::with_sys(Arc::new(sys), &Self { merge_limit: 0, ..self });
        }
        IoUringEnv::with_sys(Arc::new(KernelSys), &self)
    }

    /// Whether every option is in its range.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        in_range("ring_entries", &self.ring_entries, &RING_ENTRIES)?;
        in_range("max_in_flight", &self.max_in_flight, &MAX_IN_FLIGHT)?;
        in_range("write_budget", &self.write_budget, &WRITE_BUDGET)?;
        in_range("read_ahead", &self.read_ahead, &READ_AHEAD)?;
        in_range("buffer_pool", &self.buffer_pool, &BUFFER_POOL)?;
        if let Some(bytes) = self.fixed_buffers {
            in_range("fixed_buffers", &bytes, &FIXED_BUFFERS)?;
        }
        if let Some(idle) = self.sqpoll {
            in_range("sqpoll (milliseconds)", &idle.as_millis(), &SQPOLL_IDLE_MS)?;
            let cores = thread::available_parallelism().map_or(1, usize::from);
            if cores < SQPOLL_CORES && !self.allow_few_cores {
                return Err(Unavailable::TooFewCores { found: cores, needs: SQPOLL_CORES });
            }
        }
        in_range("merge_gap", &self.merge_gap, &MERGE_GAP)?;
        in_range("merge_limit", &self.merge_limit, &MERGE_LIMIT)?;
        if self.iopoll {
            self.check_iopoll(&polling::disks())?;
        }
        self.early_sync.map_or(Ok(()), |bytes| in_range("early_sync", &bytes, &EARLY_SYNC))?;
        self.rings.map_or(Ok(()), |rings| in_range("rings", &rings, &RINGS))
    }

    /// Whether `iopoll` makes sense with the other options and these disks.
    fn check_iopoll(&self, disks: &[(String, bool)]) -> Result<(), Unavailable> {
        if !self.direct_reads {
            let (value, allowed) = ("true".to_owned(), "true only with direct_reads".to_owned());
            return Err(Unavailable::InvalidOption { name: "iopoll", value, allowed });
        }
        if disks.iter().any(|(_, polls)| *polls) {
            return Ok(());
        }
        let disks = disks.iter().map(|(name, _)| name.clone()).collect();
        Err(Unavailable::NoPollQueues { disks })
    }

    /// How many rings to make.
    pub(super) fn ring_count(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        self.rings.unwrap_or((2 * cores).clamp(16, 64))
    }
}

fn in_range<T: PartialOrd + Display>(
    name: &'static str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), Unavailable> {
    if range.contains(value) {
        return Ok(());
    }
    let allowed = format!("{} to {}", range.start(), range.end());
    Err(Unavailable::InvalidOption { name, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_out_of_range_is_named_with_its_value_and_range() {
        let fixed = "2097152 to 1073741824";
        let sqpoll = |ms| IoUringEnv::builder().sqpoll(Duration::from_millis(ms));
        let wrong = [
            (IoUringEnv::builder().ring_entries(4), "ring_entries", "4", "8 to 4096"),
            (IoUringEnv::builder().ring_entries(4097), "ring_entries", "4097", "8 to 4096"),
            (IoUringEnv::builder().rings(0), "rings", "0", "1 to 256"),
            (IoUringEnv::builder().max_in_flight(0), "max_in_flight", "0", "1 to 4096"),
            (
                IoUringEnv::builder().early_sync(Some(0)),
                "early_sync",
                "0",
                "1048576 to 1099511627776",
            ),
            (IoUringEnv::builder().write_budget(1), "write_budget", "1", "1048576 to 68719476736"),
            (
                IoUringEnv::builder().buffer_pool(65 << 30),
                "buffer_pool",
                "69793218560",
                "0 to 68719476736",
            ),
            (IoUringEnv::builder().fixed_buffers(0), "fixed_buffers", "0", fixed),
            (IoUringEnv::builder().fixed_buffers(2 << 30), "fixed_buffers", "2147483648", fixed),
            (sqpoll(0), "sqpoll (milliseconds)", "0", "1 to 60000"),
            (sqpoll(60_001), "sqpoll (milliseconds)", "60001", "1 to 60000"),
            (IoUringEnv::builder().merge_gap(65_537), "merge_gap", "65537", "0 to 65536"),
            (IoUringEnv::builder().merge_limit(1 << 20), "merge_limit", "1048576", "0 to 524288"),
        ];
        for (builder, name, value, allowed) in wrong {
            let (value, allowed) = (value.to_owned(), allowed.to_owned());
            let expected = Unavailable::InvalidOption { name, value, allowed };
            assert_eq!(builder.build().unwrap_err(), expected);
        }
    }

    /// URING-37
    #[test]
    fn asking_the_device_needs_direct_reads_and_a_disk_that_can_be_asked() {
        let disks = |polls| [("sda".to_owned(), false), ("vdb".to_owned(), polls)];
        let direct = IoUringEnv::builder().iopoll(true).direct_reads(true);
        assert_eq!(direct.check_iopoll(&disks(true)), Ok(()));
        let refused = direct.check_iopoll(&disks(false)).unwrap_err();
        let named = vec!["sda".to_owned(), "vdb".to_owned()];
        assert_eq!(refused, Unavailable::NoPollQueues { disks: named });
        let text = refused.to_string();
        for part in ["sda, vdb", "nvme.poll_queues", "iopoll"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let buffered = IoUringEnv::builder().iopoll(true).check_iopoll(&disks(true)).unwrap_err();
        assert!(buffered.to_string().contains("only with direct_reads"), "{buffered}");
    }

    #[test]
    fn the_default_number_of_rings_lies_between_16_and_64() {
        assert!((16..=64).contains(&IoUringEnv::builder().ring_count()));
        assert_eq!(IoUringEnv::builder().rings(3).ring_count(), 3);
    }
}
