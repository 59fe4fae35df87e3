//! The kernel's io_uring: one ring, its setup with a given set of flags, and its restrictions.
//!
//! A ring starts disabled, is restricted to the operations that queues use, and only then enabled:
//! a stray opcode is answered with `EACCES` instead of being run. Its memory is not inherited by a
//! forked child (`MADV_DONTFORK`) and its descriptor not by an executed one (the kernel always sets
//! `O_CLOEXEC` on it).

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::{Probe, Restriction};
use io_uring::squeue::Flags;
use io_uring::{EnterFlags, IoUring, opcode, types};

use super::ring::{Completed, DRAIN_BATCH, Entry, Errno, Ring, Work};

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
}

impl KernelRing {
    /// Sets up a ring for queues, restricts and enables it.
    pub(crate) fn new(entries: u32, flags: RingFlags) -> Result<(Self, Abilities), SetupError> {
        Self::for_purpose(entries, flags, Purpose::Queues)
    }

    /// Sets up a ring, restricts and enables it.
    pub(crate) fn for_purpose(
        entries: u32,
        flags: RingFlags,
        purpose: Purpose<'_>,
    ) -> Result<(Self, Abilities), SetupError> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(entries * 2);
        if flags.disabled_first {
            builder.setup_r_disabled();
        }
        if flags.submit_all {
            builder.setup_submit_all();
        }
        if flags.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if flags.no_sqarray {
            builder.setup_no_sqarray();
        }
        let ring = builder.build(entries).map_err(|e| SetupError::Setup(errno_of(&e)))?;
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
        let restricted = flags.disabled_first && restrict(&ring, purpose);
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
        Ok((Self { ring, entries }, abilities))
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

/// Worker threads for what is no file, of which the reactor has nothing.
const UNBOUNDED_WORKERS: u32 = 2;

/// Limits a disabled ring to what its user does. A kernel that refuses loses a safety net, no
/// function.
fn restrict(ring: &IoUring, purpose: Purpose<'_>) -> bool {
    let mut allowed = match purpose {
        Purpose::Queues => vec![
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
        ],
        Purpose::Reactor { .. } => vec![
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_op(opcode::SyncFileRange::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
            Restriction::sqe_flags_allowed(Flags::ASYNC.bits()),
        ],
    };
    ring.submitter().register_restrictions(&mut allowed).is_ok()
}

fn push_nop(ring: &mut IoUring, flags: Flags) {
    // SAFETY: a NOP refers to no memory, so nothing has to outlive it.
    unsafe { ring.submission().push(&opcode::Nop::new().build().flags(flags)) }
        .expect("a ring that was never used has room");
}

/// The kernel's form of an entry.
fn to_kernel(entry: &Entry) -> io_uring::squeue::Entry {
    let fd = types::Fd(entry.fd);
    let built = match entry.work {
        Work::Read => opcode::Read::new(fd, entry.start, entry.len).offset(entry.offset).build(),
        Work::Write => opcode::Write::new(fd, entry.start, entry.len).offset(entry.offset).build(),
        Work::StartWriteBack => opcode::SyncFileRange::new(fd, entry.len)
            .offset(entry.offset)
            .flags(libc::SYNC_FILE_RANGE_WRITE)
            .build(),
    };
    built.user_data(entry.user_data)
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Ring for KernelRing {
    fn entries(&self) -> usize {
        self.entries
    }

    unsafe fn push(&mut self, entry: Entry) -> bool {
        // SAFETY: the caller keeps the memory valid and untouched until the completion of this
        // entry (contract of `Ring::push`).
        unsafe { self.ring.submission().push(&to_kernel(&entry)) }.is_ok()
    }

    fn enter(&mut self, submit: bool, wait: usize) -> Result<usize, Errno> {
        let offered = if submit { self.ring.submission().len() } else { 0 };
        let offered = u32::try_from(offered).expect("a ring has at most 32768 entries");
        let wait = u32::try_from(wait).expect("a ring has at most 65536 completions");
        // Always with GETEVENTS: completions of buffered reads are task work of this thread, and
        // only then is it sure to run before the call returns.
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument is passed, and the memory that the offered entries name is valid by
        // the contract of `Ring::push`.
        let entered =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(offered, wait, flags, None) };
        entered.map_err(|e| errno_of(&e))
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
