//! What this machine allows: the facts behind "io_uring is not available".

use std::fmt;
use std::fs;

/// The facts of the running system that decide about io_uring, read when asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    /// The kernel release, such as `6.8.0-45-generic`.
    pub kernel: String,
    /// The sysctl `kernel.io_uring_disabled` (0 allowed, 1 restricted to a group, 2 off); `None`
    /// before Linux 6.6, which has no such switch.
    pub io_uring_disabled: Option<u32>,
    /// Whether a seccomp filter is active on the calling thread; `None` if that cannot be read.
    pub seccomp: Option<bool>,
    /// The limit of locked memory in bytes (`RLIMIT_MEMLOCK`); `None` if unlimited.
    pub locked_memory: Option<u64>,
}

impl MachineFacts {
    /// Reads the facts. Costs a few small reads from `/proc`.
    pub fn read() -> Self {
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            io_uring_disabled: fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            seccomp: fs::read_to_string("/proc/thread-self/status")
                .ok()
                .and_then(|status| seccomp_of(&status)),
            locked_memory: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        }
    }
}

/// The `Seccomp:` line of a `/proc/.../status`: 0 is off, 1 strict, 2 a filter.
fn seccomp_of(status: &str) -> Option<bool> {
    let value = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    Some(value.trim() != "0")
}

/// Worker threads that the kernel runs for this process's rings. None are needed for reads that
/// the file system does asynchronously.
pub(crate) fn ring_workers() -> u64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0 };
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("iou-wrk")).count() as u64
}

impl fmt::Display for MachineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}, kernel.io_uring_disabled ", self.kernel)?;
        match self.io_uring_disabled {
            Some(value) => write!(f, "= {value}")?,
            None => f.write_str("not known to this kernel")?,
        }
        f.write_str(", seccomp filter on this thread: ")?;
        f.write_str(match self.seccomp {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        })?;
        match self.locked_memory {
            Some(limit) => write!(f, ", RLIMIT_MEMLOCK {} KiB", limit / 1024),
            None => f.write_str(", RLIMIT_MEMLOCK unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seccomp_line_is_found_among_its_neighbours() {
        let status = "NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(seccomp_of(status), Some(true));
        assert_eq!(seccomp_of("Seccomp:\t0\n"), Some(false));
        assert_eq!(seccomp_of("Seccomp_filters:\t1\n"), None);
    }

    #[test]
    fn facts_of_this_machine_name_its_kernel() {
        let facts = MachineFacts::read();
        assert!(!facts.kernel.is_empty());
        assert!(facts.to_string().starts_with(&format!("kernel {}", facts.kernel)));
    }
}
