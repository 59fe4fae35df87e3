//! What the figures were measured on.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// A description of this machine, the file system of `dir`, and how the benchmark was called.
pub(crate) fn describe(dir: &Path) -> Value {
    let system = rustix::system::uname();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounts = text("/proc/self/mountinfo");
    let (filesystem, device) =
        dir.canonicalize().ok().and_then(|dir| mount_of(&mounts, &dir)).unwrap_or_default();
    let in_memory = matches!(filesystem.as_str(), "tmpfs" | "ramfs" | "hugetlbfs");
    json!({
        "in_memory": in_memory,
        "treering": env!("CARGO_PKG_VERSION"),
        "kernel": system.release().to_string_lossy(),
        "arch": system.machine().to_string_lossy(),
        "cpu": field(&text("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&text("/proc/meminfo"), "MemTotal"),
        "load_average": load(&text("/proc/loadavg")),
        "filesystem": filesystem,
        "device": device,
        "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
    })
}

/// How many threads wanted to run, on average over the last minute.
fn load(loadavg: &str) -> Option<f64> {
    loadavg.split(' ').next()?.parse().ok()
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Type and device of the mount that holds `dir`: the longest mount point above it, and of
/// several at the same point the last, which covers the others.
fn mount_of(mountinfo: &str, dir: &Path) -> Option<(String, String)> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let point = Path::new(front.split(' ').nth(4)?);
        let mut back = back.split(' ');
        let found = (back.next()?.to_owned(), back.next()?.to_owned());
        dir.starts_with(point).then_some((point.as_os_str().len(), found))
    });
    mounts.max_by_key(|(length, _)| *length).map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_directory_is_the_nearest_one_above_it() {
        let mounts = "24 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      25 24 0:5 / /data rw - xfs /dev/vdb rw\n\
                      26 24 0:6 / /data rw - tmpfs tmpfs rw";
        let mount = |dir: &str| mount_of(mounts, Path::new(dir)).unwrap();
        assert_eq!(mount("/database"), ("ext4".to_owned(), "/dev/vda".to_owned()));
        assert_eq!(mount("/data/x"), ("tmpfs".to_owned(), "tmpfs".to_owned()));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn the_load_is_the_first_figure() {
        assert_eq!(load("7.69 8.93 10.95 3/204 1234\n"), Some(7.69));
        assert_eq!(load(""), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_cores() {
        let machine = describe(Path::new("."));
        assert!(machine["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
        assert!(machine["cores"].as_u64().is_some_and(|cores| cores > 0));
    }
}
