//! A memory cgroup for one run, version 1 or 2: it bounds the page cache that a cold run can
//! build up, which nothing else does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::cli::interrupt::{self, Guard, Leftover};

/// Starts the name of every group we make; the number of our process follows.
const NAME: &str = "treering-bench-";

/// A group with a limit, removed when this is dropped. Processes join it by themselves.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    dir: PathBuf,
    version: Version,
    _guard: Guard,
}

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    /// The number people use.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

impl MemoryGroup {
    /// Makes a group with a limit of `bytes`. The error says why no place allowed it.
    pub(crate) fn create(bytes: u64) -> Result<Self, String> {
        let read =
            |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let places = places(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let mut reasons = Vec::new();
        for (version, parent) in &places {
            match Self::create_in(*version, parent, bytes) {
                Ok(group) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", parent.display())),
            }
        }
        if reasons.is_empty() {
            return Err("no cgroup file system with a memory controller is mounted".to_owned());
        }
        Err(reasons.join("; "))
    }

    fn create_in(version: Version, parent: &Path, bytes: u64) -> io::Result<Self> {
        remove_stale(parent);
        let dir = parent.join(format!("{NAME}{}", std::process::id()));
        let ((), guard) =
            interrupt::make(|| fs::create_dir(&dir), |()| Leftover::Group(dir.clone()))?;
        let group = Self { dir, version, _guard: guard };
        // Writing to a file that the kernel did not put there must not create one.
        let limit = fs::OpenOptions::new().write(true).open(group.dir.join(version.limit_file()));
        io::Write::write_all(&mut limit?, bytes.to_string().as_bytes())?;
        Ok(group)
    }

    /// The file a process writes to in order to join; see [`join`].
    pub(crate) fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Which interface it is.
    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may still be counted for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Moves this process into the group of a [`MemoryGroup::door`].
pub(crate) fn join(door: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(door)?;
    io::Write::write_all(&mut file, b"0")
}

/// Removes groups whose maker died before it could. A group in use cannot be removed, so nothing
/// is taken from anyone.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(maker) = name.to_str().and_then(|name| name.strip_prefix(NAME)) else { continue };
        if maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where a memory group may be made: below this process's own group, or at the top of the
/// hierarchy, version 1 first, since where it is mounted it owns the memory controller.
fn places(mountinfo: &str, own: &str) -> Vec<(Version, PathBuf)> {
    let mut places = Vec::new();
    for version in [Version::V1, Version::V2] {
        let Some((root, mount)) = mountinfo.lines().find_map(|line| mount_of(line, version)) else {
            continue;
        };
        let group = own.lines().find_map(|line| group_of(line, version));
        // Inside a container the mount may show only a part of the hierarchy.
        let below = group.and_then(|group| group.strip_prefix(root)).unwrap_or("");
        let below = below.trim_start_matches('/');
        if !below.is_empty() {
            places.push((version, Path::new(mount).join(below)));
        }
        places.push((version, PathBuf::from(mount)));
    }
    places
}

/// Root and mount point of a line of `/proc/self/mountinfo`, if it is this controller's.
fn mount_of(line: &str, version: Version) -> Option<(&str, &str)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, mount) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let kind = back.next()?;
    let options = back.nth(1).unwrap_or("");
    let right = match version {
        Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::V2 => kind == "cgroup2",
    };
    right.then_some((root.trim_end_matches('/'), mount))
}

/// The group of a line of `/proc/self/cgroup`, if it is this controller's.
fn group_of(line: &str, version: Version) -> Option<&str> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let right = match version {
        Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
        Version::V2 => controllers.is_empty(),
    };
    right.then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 254:0 / / rw - ext4 /dev/vda rw
36 30 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
37 30 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
38 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn version_1_is_preferred_where_it_owns_memory() {
        let own = "4:memory:/service/a\n3:cpu:/\n0::/";
        let expected = [
            (Version::V1, "/sys/fs/cgroup/memory/service/a"),
            (Version::V1, "/sys/fs/cgroup/memory"),
            (Version::V2, "/sys/fs/cgroup/unified"),
        ];
        let expected: Vec<_> = expected.map(|(v, path)| (v, PathBuf::from(path))).into();
        assert_eq!(places(HYBRID, own), expected);
    }

    #[test]
    fn a_container_s_part_of_the_hierarchy_starts_at_the_mount_s_root() {
        let mounts = "30 1 0:26 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate";
        assert_eq!(
            places(mounts, "0::/docker/1f/inner"),
            [
                (Version::V2, PathBuf::from("/sys/fs/cgroup/inner")),
                (Version::V2, PathBuf::from("/sys/fs/cgroup")),
            ]
        );
        assert_eq!(places(mounts, "0::/"), [(Version::V2, PathBuf::from("/sys/fs/cgroup"))]);
    }

    #[test]
    fn without_a_mounted_controller_there_is_no_place() {
        assert_eq!(places("24 1 254:0 / / rw - ext4 /dev/vda rw", "0::/"), []);
        assert_eq!(places("garbage", "garbage"), []);
    }
}
