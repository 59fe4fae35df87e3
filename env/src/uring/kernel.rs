//! The kernel's io_uring: one ring, its setup with a given set of flags, and its restrictions.
//!
//! A ring starts disabled, is restricted to the operations that queues use, and only then enabled:
//! a stray opcode is answered with `EACCES` instead of being run. Its memory is not inherited by a
//! forked child (`MADV_DONTFORK`) and its descriptor not by an executed one (the kernel always sets
//! `O_CLOEXEC` on it).
//!
//! A ring that joins a [`PollThread`] is another matter in one respect: an entry is the kernel's
//! from the moment it is pushed. So entering always says that all of them were taken, and a failure
//! that passes is told by a later call, when nothing is offered.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::{Probe, Restriction};
use io_uring::squeue::Flags;
use io_uring::types::FsyncFlags;
use io_uring::{EnterFlags, IoUring, opcode, types};

use super::ring::{Completed, DRAIN_BATCH, Entry, Errno, How, Ring, Took, Work};
use crate::sync::Arc;

use back_off::give_memory_back;
pub(crate) use back_off::with_memory_back_off;
use memory::Known;
pub(crate) use memory::Registered;
pub(crate) use poll_thread::PollThread;

mod back_off;
mod keeper;
mod memory;
mod poll_thread;

/// The optional setup flags of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of the kernel's interface")]
pub(crate) struct RingFlags {
    pub(crate) disabled_first: bool,
    pub(crate) submit_all: bool,
    pub(crate) coop_taskrun: bool,
    pub(crate) no_sqarray: bool,
}

/// What is tried, best first. Each step follows an `EINVAL` of the one before. No step is serial:
/// the plainest ring still reads in parallel.
pub(crate) const LADDER: [RingFlags; 5] = [
    RingFlags { disabled_first: true, submit_all: true, coop_taskrun: true, no_sqarray: true },
    RingFlags { disabled_first: true, submit_all: true, coop_taskrun: true, no_sqarray: false },
    RingFlags { disabled_first: false, submit_all: true, coop_taskrun: true, no_sqarray: false },
    RingFlags { disabled_first: false, submit_all: true, coop_taskrun: false, no_sqarray: false },
    RingFlags { disabled_first: false, submit_all: false, coop_taskrun: false, no_sqarray: false },
];

impl fmt::Display for RingFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.disabled_first, "R_DISABLED"),
            (self.submit_all, "SUBMIT_ALL"),
            (self.coop_taskrun, "COOP_TASKRUN"),
            (self.no_sqarray, "NO_SQARRAY"),
        ];
        let names: Vec<&str> = named.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        if names.is_empty() { f.write_str("none") } else { f.write_str(&names.join("|")) }
    }
}

#[cfg(test)]
thread_local! {
    /// Flags that setup answers with `EINVAL` on this thread, as older kernels do.
    pub(crate) static REFUSED: std::cell::Cell<RingFlags> =
        const { std::cell::Cell::new(LADDER[LADDER.len() - 1]) };
}

#[cfg(test)]
impl RingFlags {
    /// Whether they have one in common.
    pub(crate) fn meet(self, other: Self) -> bool {
        self.disabled_first && other.disabled_first
            || self.submit_all && other.submit_all
            || self.coop_taskrun && other.coop_taskrun
            || self.no_sqarray && other.no_sqarray
    }
}

/// What the kernel said it can do when a ring was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent features of the kernel")]
pub(crate) struct Abilities {
    pub(crate) ext_arg: bool,
    pub(crate) nodrop: bool,
    pub(crate) submit_stable: bool,
    /// Opcodes READ and NOP, by the kernel's own probe; `None` if the probe itself was refused.
    pub(crate) opcodes: Option<bool>,
    /// Whether the ring refuses the opcodes that queues do not use.
    pub(crate) restricted: bool,
}

/// What options of the environment ask of its rings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    /// Registered memory may be made known to a ring later, and is used then.
    pub(crate) fixed: bool,
    /// The thread that takes the entries of queues.
    pub(crate) poll_thread: Option<Arc<PollThread>>,
    /// Rings for direct reads only, whose completions the device is asked for: it sends no
    /// interrupts, and waiting takes all of the processor that waits.
    pub(crate) asks_device: bool,
}

/// Who uses a ring, and what it needs besides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose<'a> {
    /// Queues, one after another, on any thread.
    Queues,
    /// The reactor, on the thread that sets the ring up.
    Reactor {
        /// An eventfd that every completion is to be signalled on.
        bell: BorrowedFd<'a>,
        /// The most kernel worker threads for this thread's rings: those that write files.
        workers: u32,
    },
}

/// A real io_uring.
pub(crate) struct KernelRing {
    ring: IoUring,
    entries: usize,
    /// Behind the ring, which goes first.
    known: Known,
    /// The thread that takes its entries, if it is not who enters.
    poll_thread: Option<Arc<PollThread>>,
    /// Entries that the thread has from us and that no `enter` told of yet.
    published: usize,
}

impl KernelRing {
    /// Sets up a ring for queues, restricts and enables it.
    pub(crate) fn new(
        entries: u32,
        flags: RingFlags,
        extras: &Extras,
    ) -> Result<(Self, Abilities), SetupError> {
        Self::for_purpose(entries, flags, extras, Purpose::Queues)
    }

    /// Sets up a ring, restricts and enables it.
    pub(crate) fn for_purpose(
        entries: u32,
        flags: RingFlags,
        extras: &Extras,
        purpose: Purpose<'_>,
    ) -> Result<(Self, Abilities), SetupError> {
        let poll_thread = match purpose {
            Purpose::Queues => extras.poll_thread.clone(),
            Purpose::Reactor { .. } => None,
        };
        let ring = set_up(entries, flags, poll_thread.as_deref(), extras.asks_device)?;
        let mut probe = Probe::new();
        let opcodes = ring.submitter().register_probe(&mut probe).is_ok().then(|| {
            probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Nop::CODE)
        });
        if let Purpose::Reactor { bell, workers } = purpose {
            let registered = ring.submitter().register_eventfd(bell.as_raw_fd());
            registered.map_err(|e| SetupError::Bell(errno_of(&e)))?;
            // Before Linux 5.15 the number cannot be limited; the ring works all the same.
            let _ = ring.submitter().register_iowq_max_workers(&mut [workers, UNBOUNDED_WORKERS]);
        }
        let restricted = flags.disabled_first && restrict(&ring, extras, purpose);
        if flags.disabled_first {
            let enabled = ring.submitter().register_enable_rings();
            enabled.map_err(|e| SetupError::Enable(errno_of(&e)))?;
        }
        let params = ring.params();
        let abilities = Abilities {
            ext_arg: params.is_feature_ext_arg(),
            nodrop: params.is_feature_nodrop(),
            submit_stable: params.is_feature_submit_stable(),
            opcodes,
            restricted,
        };
        let entries = params.sq_entries() as usize;
        let entries = if poll_thread.is_some() { entries / 2 } else { entries };
        let known = Known::default();
        Ok((Self { ring, entries, known, poll_thread, published: 0 }, abilities))
    }

    /// Runs one NOP through the ring: the first proof that entering the kernel is allowed.
    pub(crate) fn nop(&mut self) -> Result<(), Errno> {
        self.run_nop(Flags::empty())
    }

    /// Runs one NOP on a kernel worker thread, which the kernel makes for it and then keeps. A
    /// worker that is made later may not come to be, if a signal is pending or the limit of
    /// processes is reached, and what it was to do is cancelled.
    pub(crate) fn nop_on_worker(&mut self) -> Result<(), Errno> {
        self.run_nop(Flags::ASYNC)
    }

    fn run_nop(&mut self, flags: Flags) -> Result<(), Errno> {
        push_nop(&mut self.ring, flags);
        self.published += usize::from(self.poll_thread.is_some());
        let mut done = Vec::new();
        while done.is_empty() {
            match self.enter(true, 1) {
                Ok(_) | Err(libc::EINTR) => self.drain(&mut done),
                Err(errno) => return Err(errno),
            }
        }
        if done[0].result < 0 { Err(-done[0].result) } else { Ok(()) }
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        give_memory_back();
    }
}

/// Why a ring could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// `io_uring_setup`, or mapping what it made, failed.
    Setup(Errno),
    /// The ring was made but could not be enabled.
    Enable(Errno),
    /// The ring was made but would not signal its completions.
    Bell(Errno),
    /// The ring was made but no kernel worker thread runs for it.
    Worker(Errno),
}

/// `IORING_REGISTER_BUFFERS` and `IORING_REGISTER_CLONE_BUFFERS`.
const REGISTER_BUFFERS: u8 = 0;
const CLONE_BUFFERS: u8 = 30;

impl SetupError {
    /// What the kernel said.
    pub(crate) fn errno(self) -> Errno {
        let (Self::Setup(errno) | Self::Enable(errno) | Self::Bell(errno) | Self::Worker(errno)) =
            self;
        errno
    }
}

/// Worker threads for what is no file, of which the reactor has nothing.
const UNBOUNDED_WORKERS: u32 = 2;

/// Makes the ring as such.
fn set_up(
    entries: u32,
    flags: RingFlags,
    poll_thread: Option<&PollThread>,
    asks_device: bool,
) -> Result<IoUring, SetupError> {
    #[cfg(test)]
    if REFUSED.with(std::cell::Cell::get).meet(flags) {
        return Err(SetupError::Setup(libc::EINVAL));
    }
    // The poll thread says that it took entries only after it has begun all that it found, when
    // some may be answered and others pushed in their place. So there is room for both.
    let places = if poll_thread.is_some() { entries * 2 } else { entries };
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(places * 2);
    if flags.disabled_first {
        builder.setup_r_disabled();
    }
    if flags.submit_all {
        builder.setup_submit_all();
    }
    // It is about where the completions of the thread that enters are worked on.
    if flags.coop_taskrun && poll_thread.is_none() {
        builder.setup_coop_taskrun();
    }
    if flags.no_sqarray {
        builder.setup_no_sqarray();
    }
    if let Some(thread) = poll_thread {
        builder.setup_sqpoll(thread.idle_ms()).setup_attach_wq(thread.fd());
    }
    if asks_device {
        builder.setup_iopoll();
    }
    builder.build(places).map_err(|e| SetupError::Setup(errno_of(&e)))
}

/// Limits a disabled ring to what its user does. A kernel that refuses loses a safety net, no
/// function.
fn restrict(ring: &IoUring, extras: &Extras, purpose: Purpose<'_>) -> bool {
    let mut allowed = match purpose {
        Purpose::Queues => vec![
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
        ],
        Purpose::Reactor { .. } => vec![
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::SyncFileRange::CODE),
            Restriction::sqe_op(opcode::Fsync::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
            Restriction::sqe_flags_allowed(Flags::ASYNC.bits()),
        ],
    };
    if !extras.fixed {
        return ring.submitter().register_restrictions(&mut allowed).is_ok();
    }
    allowed.push(Restriction::sqe_op(opcode::ReadFixed::CODE));
    // Queues too: what was read into registered memory may be what is written in place next.
    allowed.push(Restriction::sqe_op(opcode::WriteFixed::CODE));
    allowed.push(Restriction::register_op(REGISTER_BUFFERS));
    // Last, because a kernel that cannot clone registrations refuses a list that allows it.
    allowed.push(Restriction::register_op(CLONE_BUFFERS));
    ring.submitter().register_restrictions(&mut allowed).is_ok() || {
        allowed.pop();
        ring.submitter().register_restrictions(&mut allowed).is_ok()
    }
}

fn push_nop(ring: &mut IoUring, flags: Flags) {
    // SAFETY: a NOP refers to no memory, so nothing has to outlive it.
    unsafe { ring.submission().push(&opcode::Nop::new().build().flags(flags)) }
        .expect("a ring that was never used has room");
}

/// The kernel's form of an entry; `fixed` says that its memory is registered, as buffer 0.
fn to_kernel(entry: &Entry, fixed: bool) -> io_uring::squeue::Entry {
    let fd = types::Fd(entry.fd);
    let built = match entry.work {
        Work::Read if fixed => {
            opcode::ReadFixed::new(fd, entry.start, entry.len, 0).offset(entry.offset).build()
        }
        Work::Write if fixed => {
            opcode::WriteFixed::new(fd, entry.start, entry.len, 0).offset(entry.offset).build()
        }
        Work::Read => opcode::Read::new(fd, entry.start, entry.len).offset(entry.offset).build(),
        Work::ReadVectored => opcode::Readv::new(fd, entry.start.cast_const().cast(), entry.len)
            .offset(entry.offset)
            .build(),
        Work::Write => opcode::Write::new(fd, entry.start, entry.len).offset(entry.offset).build(),
        Work::StartWriteBack => opcode::SyncFileRange::new(fd, entry.len)
            .offset(entry.offset)
            .flags(libc::SYNC_FILE_RANGE_WRITE)
            .build(),
        Work::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    };
    built.user_data(entry.user_data)
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl KernelRing {
    /// Enters a ring whose entries the poll thread takes by itself: only to wait, or to wake it.
    fn enter_polled(&mut self, wait: u32) -> Result<Took, Errno> {
        let entries = std::mem::take(&mut self.published);
        let asleep = self.ring.submission().need_wakeup();
        let how = How::PollThread { called: asleep || wait > 0, woken: asleep };
        if how == (How::PollThread { called: false, woken: false }) {
            return Ok(Took { entries, how });
        }
        let wake = if asleep { EnterFlags::SQ_WAKEUP } else { EnterFlags::empty() };
        match self.call(0, wait, wake | EnterFlags::GETEVENTS) {
            Ok(_) => Ok(Took { entries, how }),
            // The thread is dead: nobody knows what became of the entries.
            Err(libc::EOWNERDEAD) => Err(libc::EOWNERDEAD),
            Err(_) if entries > 0 => Ok(Took { entries, how }),
            Err(errno) => Err(errno),
        }
    }

    fn call(&self, offered: u32, wait: u32, flags: EnterFlags) -> Result<usize, Errno> {
        let submitter = self.ring.submitter();
        // SAFETY: no argument is passed, and the memory that the offered entries name is valid by
        // the contract of `Ring::push`.
        let entered =
            unsafe { submitter.enter::<libc::sigset_t>(offered, wait, flags.bits(), None) };
        entered.map_err(|e| errno_of(&e))
    }
}

impl Ring for KernelRing {
    fn entries(&self) -> usize {
        self.entries
    }

    fn learn(&mut self, memory: &Arc<Registered>) {
        self.known.learn(&self.ring, memory);
    }

    fn knows(&self, entry: &Entry) -> bool {
        // Of a vectored read the entry names a list, which is in nobody's registered memory.
        entry.work != Work::ReadVectored && self.known.holds(entry.start, entry.len as usize)
    }

    unsafe fn push(&mut self, entry: Entry) -> bool {
        let fixed = self.knows(&entry);
        // SAFETY: the caller keeps the memory valid and untouched until the completion of this
        // entry (contract of `Ring::push`).
        let pushed = unsafe { self.ring.submission().push(&to_kernel(&entry, fixed)) }.is_ok();
        self.published += usize::from(pushed && self.poll_thread.is_some());
        pushed
    }

    fn enter(&mut self, submit: bool, wait: usize) -> Result<Took, Errno> {
        let wait = u32::try_from(wait).expect("a ring has at most 65536 completions");
        if self.poll_thread.is_some() {
            return self.enter_polled(wait);
        }
        let offered = if submit { self.ring.submission().len() } else { 0 };
        let offered = u32::try_from(offered).expect("a ring has at most 32768 entries");
        // Always with GETEVENTS: completions of buffered reads are task work of this thread, and
        // only then is it sure to run before the call returns.
        let entries = self.call(offered, wait, EnterFlags::GETEVENTS)?;
        Ok(Took { entries, how: How::Call })
    }

    fn must_be_entered(&mut self) -> bool {
        if self.poll_thread.is_none() {
            return self.ring.params().is_setup_iopoll();
        }
        let entries = self.ring.submission();
        entries.need_wakeup() && !entries.is_empty()
    }

    fn drain(&mut self, into: &mut Vec<Completed>) {
        let completed = self.ring.completion().take(DRAIN_BATCH);
        into.extend(
            completed
                .map(|entry| Completed { user_data: entry.user_data(), result: entry.result() }),
        );
    }
}

impl fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelRing({} entries)", self.entries)
    }
}
