//! What this machine allows: the facts behind "io_uring is not available".

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::Path;

use super::reactor::THREAD_NAME;

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

/// Whether a kernel of this release may lose the wake-up of a worker that is to write: one before
/// Linux 5.15.3, as far as the release tells. Distributions port the fix back without saying so. A
/// release that cannot be read is taken for a good one.
pub(crate) fn may_lose_wake_ups(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || parts.next()?.parse::<u32>().ok();
    match (number(), number(), number()) {
        (Some(major), Some(minor), patch) => (major, minor, patch.unwrap_or(0)) < (5, 15, 3),
        _ => false,
    }
}

/// The `Seccomp:` line of a `/proc/.../status`: 0 is off, 1 strict, 2 a filter.
fn seccomp_of(status: &str) -> Option<bool> {
    let value = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    Some(value.trim() != "0")
}

/// Worker threads that the kernel runs for this process's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workers {
    /// For queues. None are needed for reads that the file system does asynchronously.
    pub(crate) queues: u64,
    /// For reactors, which keep at least one each.
    pub(crate) reactors: u64,
}

/// Counts them.
pub(crate) fn ring_workers() -> Workers {
    let mut workers = Workers::default();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return workers };
    let name = |id: &OsStr| fs::read_to_string(Path::new("/proc/self/task").join(id).join("comm"));
    for task in tasks.flatten() {
        // A worker is called after the thread that it works for.
        let Ok(comm) = name(&task.file_name()) else { continue };
        let Some(id) = comm.strip_prefix("iou-wrk-") else { continue };
        // A thread that is gone has no workers any more.
        let Ok(works_for) = name(OsStr::new(id.trim())) else { continue };
        let reactor = works_for.trim() == THREAD_NAME;
        *(if reactor { &mut workers.reactors } else { &mut workers.queues }) += 1;
    }
    workers
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

    /// URING-36
    #[test]
    fn releases_with_lost_wake_ups_are_told_from_others_and_garbage_is_none() {
        for release in ["5.4", "5.15.0", "5.15.2", "5.15.0-88-generic", "5.14.0-362.el9", "4.19.1"]
        {
            assert!(may_lose_wake_ups(release), "{release}");
        }
        let good = ["5.15.3", "5.15.10-arch1", "6.1.0-13-amd64", "6.18.44-custom", "6.0-rc1"];
        let garbage = ["garbage", "", "5", "5.", "..", "99999999999.1.1", "-1.2.3"];
        for release in good.into_iter().chain(garbage) {
            assert!(!may_lose_wake_ups(release), "{release:?}");
        }
    }

    #[test]
    fn facts_of_this_machine_name_its_kernel() {
        let facts = MachineFacts::read();
        assert!(!facts.kernel.is_empty());
        assert!(facts.to_string().starts_with(&format!("kernel {}", facts.kernel)));
    }
}
