//! A memory cgroup for one process, version 2 or 1: it bounds the page cache that a cold run can
//! build up, which nothing else does.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::failure::Result;

/// Starts the name of every group; the number of our process follows.
const NAME: &str = "treering-peers-";

/// A group with a limit, removed when this is dropped. Processes join it by themselves.
pub struct MemoryGroup {
    dir: PathBuf,
}

impl MemoryGroup {
    /// Makes a group with a limit of `bytes`, `number` telling it from our others. The error says
    /// why no place allowed it.
    pub fn create(number: usize, bytes: u64) -> Result<Self> {
        let mut reasons = Vec::new();
        for (parent, file) in places(&fs::read_to_string("/proc/self/mountinfo")?) {
            match Self::create_in(&parent, file, number, bytes) {
                Ok(group) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", parent.display())),
            }
        }
        if reasons.is_empty() {
            reasons.push("no cgroup file system is mounted".to_owned());
        }
        Err(reasons.join("; ").into())
    }

    fn create_in(parent: &Path, file: &str, number: usize, bytes: u64) -> std::io::Result<Self> {
        remove_stale(parent);
        let dir = parent.join(format!("{NAME}{}-{number}", std::process::id()));
        fs::create_dir(&dir)?;
        let group = Self { dir };
        // Writing to a file that the kernel did not put there must not create one.
        let mut limit = fs::OpenOptions::new().write(true).open(group.dir.join(file))?;
        limit.write_all(bytes.to_string().as_bytes())?;
        Ok(group)
    }

    /// The file a process writes `0` to in order to join.
    pub fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may still be counted for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Moves this process into the group of a door.
pub fn join(door: &Path) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(door)?.write_all(b"0")
}

/// Removes groups whose maker died before it could. A group in use cannot be removed, so nothing
/// is taken from anyone.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let maker = rest.and_then(|rest| rest.split('-').next());
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where groups may be made, and the name of the file that limits each. Version 1 comes first:
/// where it is mounted it owns the memory controller.
fn places(mountinfo: &str) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    for (kind, option, file) in
        [("cgroup", "memory", "memory.limit_in_bytes"), ("cgroup2", "", "memory.max")]
    {
        for line in mountinfo.lines() {
            let Some((front, back)) = line.split_once(" - ") else { continue };
            let mut back = back.split(' ');
            let right = back.next() == Some(kind)
                && (option.is_empty()
                    || back.nth(1).is_some_and(|list| list.split(',').any(|o| o == option)));
            if let (true, Some(mount)) = (right, front.split(' ').nth(4)) {
                found.push((PathBuf::from(mount), file));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_preferred_where_it_owns_memory() {
        let mounts = "24 1 254:0 / / rw - ext4 /dev/vda rw
36 30 0:31 / /cg/cpu rw - cgroup cgroup rw,cpu
38 30 0:33 / /cg/unified rw - cgroup2 cgroup2 rw
37 30 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,memory";
        let expected = [("/cg/memory", "memory.limit_in_bytes"), ("/cg/unified", "memory.max")];
        assert_eq!(places(mounts), expected.map(|(at, file)| (PathBuf::from(at), file)));
        assert_eq!(places("nonsense"), []);
    }
}
