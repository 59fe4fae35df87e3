//! Why io_uring cannot be used here, as a type, and as a message that says what to do.

use std::fmt;

use super::kernel::SetupError;
use super::machine::MachineFacts;

/// The oldest kernel whose rings are used.
const FLOOR: &str = "Linux 5.15 or later with io_uring";

/// Why [`IoUringEnv`](crate::IoUringEnv) could not be built.
///
/// Its `Display` has several lines: what failed, the facts of this machine, the likely cause and
/// its remedy. `PosixEnv` needs nothing of what is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The sysctl `kernel.io_uring_disabled` forbids it.
    Sysctl {
        /// Its value: 1 restricts io_uring to privileged users and one group, 2 turns it off.
        value: u32,
    },
    /// The kernel refuses the system call though no sysctl forbids it.
    Denied {
        /// Whether a seccomp filter is active, which is then the likely cause.
        seccomp: bool,
        /// What the system call answered: `EPERM`, or `ENOSYS` from some filters.
        errno: i32,
    },
    /// The kernel was built without io_uring.
    NotBuilt,
    /// Not even one ring fits in the memory that this user may lock.
    LockedMemory {
        /// `RLIMIT_MEMLOCK` in bytes; `u64::MAX` if unlimited.
        limit: u64,
    },
    /// No file descriptor is left for a ring.
    Descriptors,
    /// The kernel is too old.
    Kernel {
        /// Its release.
        found: String,
        /// What is needed.
        needs: &'static str,
    },
    /// The kernel's io_uring lacks something required.
    Feature(&'static str),
    /// Setting up a ring failed with this errno for a reason not known to us.
    Setup(i32),
    /// The thread that writes could not be started; its errno.
    Thread(i32),
    /// An option of the builder is out of its range.
    InvalidOption {
        /// The option.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be set to.
        allowed: String,
    },
    /// A poll thread ([`sqpoll`](crate::IoUringEnvBuilder::sqpoll)) would take one of too few
    /// processors.
    TooFewCores {
        /// Processors that this process may use.
        found: usize,
        /// From how many on it is done unasked.
        needs: usize,
    },
    /// No disk can be asked for completions ([`iopoll`](crate::IoUringEnvBuilder::iopoll)).
    NoPollQueues {
        /// The disks that there are.
        disks: Vec<String>,
    },
    /// A ring could be set up but does not work, as under a filter that allows the setup only.
    SelfTest {
        /// What was tried.
        step: SelfTestStep,
        /// The positive errno; zero if the operation succeeded with a wrong result.
        errno: i32,
    },
}

/// A step of the self-test of the first ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelfTestStep {
    /// Enabling the ring after it was restricted.
    Enable,
    /// A request that does nothing.
    Nop,
    /// Making the temporary file to read.
    TemporaryFile,
    /// Reading the temporary file, with its bytes compared.
    Read,
    /// Having completions signalled to the thread that writes.
    Bell,
    /// A request that does nothing, on a worker thread of the kernel.
    Worker,
}

impl Unavailable {
    /// The cause behind a failed setup, judged with the facts of the machine.
    pub(crate) fn from_setup(error: SetupError, facts: &MachineFacts) -> Self {
        let errno = match error {
            SetupError::Setup(errno) => errno,
            SetupError::Enable(errno) => {
                return Self::SelfTest { step: SelfTestStep::Enable, errno };
            }
            SetupError::Bell(errno) => return Self::SelfTest { step: SelfTestStep::Bell, errno },
            SetupError::Worker(errno) => {
                return Self::SelfTest { step: SelfTestStep::Worker, errno };
            }
        };
        let seccomp = facts.seccomp == Some(true);
        match errno {
            libc::EPERM => match facts.io_uring_disabled {
                Some(value @ 1..) => Self::Sysctl { value },
                _ => Self::Denied { seccomp, errno },
            },
            libc::ENOSYS if seccomp => Self::Denied { seccomp, errno },
            libc::ENOSYS => Self::NotBuilt,
            libc::ENOMEM => Self::LockedMemory { limit: facts.locked_memory.unwrap_or(u64::MAX) },
            libc::EMFILE | libc::ENFILE => Self::Descriptors,
            libc::EINVAL => Self::Kernel { found: facts.kernel.clone(), needs: FLOOR },
            _ => Self::Setup(errno),
        }
    }

    /// The first line: what failed.
    fn failure(&self) -> String {
        match self {
            Self::Sysctl { .. } => format!("io_uring_setup: {}", describe(libc::EPERM)),
            Self::Denied { errno, .. } | Self::Setup(errno) => {
                format!("io_uring_setup: {}", describe(*errno))
            }
            Self::NotBuilt => format!("io_uring_setup: {}", describe(libc::ENOSYS)),
            Self::LockedMemory { .. } => format!("io_uring_setup: {}", describe(libc::ENOMEM)),
            Self::Descriptors => format!("io_uring_setup: {}", describe(libc::EMFILE)),
            Self::Kernel { .. } => format!("io_uring_setup: {}", describe(libc::EINVAL)),
            Self::Thread(errno) => format!("starting a thread: {}", describe(*errno)),
            Self::Feature(name) => format!("this kernel's io_uring lacks {name}"),
            Self::InvalidOption { name, value, allowed } => {
                format!("option {name} = {value} is out of range: {allowed}")
            }
            Self::TooFewCores { found, needs } => {
                format!("option sqpoll needs {needs} processors, and this process has {found}")
            }
            Self::NoPollQueues { disks } => {
                let disks = if disks.is_empty() { "none".to_owned() } else { disks.join(", ") };
                format!("option iopoll needs a disk with poll queues; the disks are: {disks}")
            }
            Self::SelfTest { step, errno: 0 } => {
                format!("the self-test ({step:?}) gave wrong bytes")
            }
            Self::SelfTest { step, errno } => {
                format!("the self-test ({step:?}) failed: {}", describe(*errno))
            }
        }
    }

    /// The last lines: the likely cause and what to do about it.
    fn remedy(&self) -> String {
        match self {
            Self::Sysctl { value: 1 } => "the sysctl kernel.io_uring_disabled = 1 keeps it for \
                 CAP_SYS_ADMIN and the group in kernel.io_uring_group: join that group, or set it to 0"
                .into(),
            Self::Sysctl { .. } => "the sysctl turns it off for everyone: \
                 sysctl kernel.io_uring_disabled=0"
                .into(),
            Self::Denied { seccomp: true, .. }
            | Self::SelfTest { errno: libc::EPERM | libc::ENOSYS | libc::EACCES, .. } => {
                "a seccomp profile blocks it. Docker: --security-opt seccomp=<profile allowing \
                 io_uring_setup, io_uring_enter, io_uring_register>\n  (or seccomp=unconfined), \
                 and --ulimit memlock=-1 on Linux 6.14 or later"
                    .into()
            }
            Self::Denied { .. } => "a security module or sandbox blocks it".into(),
            Self::NotBuilt => "the kernel was built without CONFIG_IO_URING".into(),
            Self::LockedMemory { .. } => "rings are charged as locked memory. Raise the limit: \
                 ulimit -l, systemd LimitMEMLOCK=, Docker --ulimit memlock=-1, Kubernetes IPC_LOCK; \
                 or ask for fewer rings or entries"
                .into(),
            Self::Descriptors | Self::SelfTest { errno: libc::EMFILE | libc::ENFILE, .. } => {
                "raise the limit of open files (ulimit -n), or ask for fewer rings".into()
            }
            Self::Kernel { found, needs } => format!("found {found}, needs {needs}"),
            Self::Feature(_) => format!("needs {FLOOR}"),
            Self::Thread(_)
            | Self::SelfTest { step: SelfTestStep::Worker, errno: libc::ECANCELED } => {
                "the limit of processes and threads is reached (ulimit -u, the pids cgroup); \
                 WritePath::Caller needs no further thread"
                    .into()
            }
            Self::InvalidOption { .. } => "correct the option".into(),
            Self::NoPollQueues { .. } => "a driver makes poll queues when it is told to: boot with \
                 nvme.poll_queues=N (virtio_blk.poll_queues=N), after which \
                 /sys/block/*/queue/io_poll is 1; or leave the option out"
                .into(),
            Self::TooFewCores { .. } => "the poll thread takes a processor for itself, which the \
                 threads that use the rings would miss. Leave the option out, or say \
                 allow_few_cores(true) to measure it all the same"
                .into(),
            Self::Setup(_) | Self::SelfTest { .. } => "the cause is not known to us".into(),
        }
    }
}

/// An errno in words and by name, such as `Operation not permitted (EPERM)`.
fn describe(errno: i32) -> String {
    let words = std::io::Error::from_raw_os_error(errno).to_string();
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ENOSYS => "ENOSYS",
        libc::ECANCELED => "ECANCELED",
        _ => return words,
    };
    words.replace(&format!("(os error {errno})"), &format!("({name})"))
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::InvalidOption { .. } = self {
            writeln!(f, "the io_uring environment cannot be made so: {}", self.failure())?;
        } else {
            writeln!(f, "io_uring is not available: {}", self.failure())?;
            writeln!(f, "  {}", MachineFacts::read())?;
        }
        write!(f, "  {}. PosixEnv needs none of this.", self.remedy())
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(disabled: Option<u32>, seccomp: bool) -> MachineFacts {
        MachineFacts {
            kernel: "6.8.0".into(),
            io_uring_disabled: disabled,
            seccomp: Some(seccomp),
            locked_memory: Some(65536),
        }
    }

    fn cause(errno: i32, disabled: Option<u32>, seccomp: bool) -> Unavailable {
        Unavailable::from_setup(SetupError::Setup(errno), &facts(disabled, seccomp))
    }

    /// URING-23
    #[test]
    fn each_setup_errno_gives_its_typed_cause() {
        assert_eq!(cause(libc::EPERM, Some(2), true), Unavailable::Sysctl { value: 2 });
        assert_eq!(cause(libc::EPERM, Some(1), false), Unavailable::Sysctl { value: 1 });
        let denied = Unavailable::Denied { seccomp: true, errno: libc::EPERM };
        assert_eq!(cause(libc::EPERM, Some(0), true), denied);
        let denied = Unavailable::Denied { seccomp: false, errno: libc::EPERM };
        assert_eq!(cause(libc::EPERM, None, false), denied);
        let denied = Unavailable::Denied { seccomp: true, errno: libc::ENOSYS };
        assert_eq!(cause(libc::ENOSYS, Some(0), true), denied);
        assert_eq!(cause(libc::ENOSYS, None, false), Unavailable::NotBuilt);
        assert_eq!(cause(libc::EMFILE, None, false), Unavailable::Descriptors);
        assert_eq!(cause(libc::ENFILE, None, false), Unavailable::Descriptors);
        let memory = Unavailable::LockedMemory { limit: 65536 };
        assert_eq!(cause(libc::ENOMEM, None, false), memory);
        let kernel = Unavailable::Kernel { found: "6.8.0".into(), needs: FLOOR };
        assert_eq!(cause(libc::EINVAL, None, false), kernel);
        assert_eq!(cause(libc::EIO, None, false), Unavailable::Setup(libc::EIO));
    }

    #[test]
    fn the_message_names_failure_facts_remedy_and_the_way_out() {
        let text = cause(libc::EPERM, Some(0), true).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "io_uring is not available: io_uring_setup: Operation not permitted (EPERM)"
        );
        assert!(lines[1].contains("kernel ") && lines[1].contains("RLIMIT_MEMLOCK"), "{text}");
        assert!(text.contains("--security-opt seccomp="), "{text}");
        assert!(text.contains("--ulimit memlock=-1"), "{text}");
        assert!(text.ends_with("PosixEnv needs none of this."), "{text}");
        let text = cause(libc::EPERM, Some(2), true).to_string();
        assert!(text.contains("sysctl kernel.io_uring_disabled=0"), "{text}");
        let text = cause(libc::ENOMEM, None, false).to_string();
        assert!(text.contains("LimitMEMLOCK="), "{text}");
    }
}
