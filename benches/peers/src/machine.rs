//! What the figures were measured on.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// A description of this machine and of the file system of `dir`.
pub fn describe(dir: &Path) -> Value {
    let system = rustix::system::uname();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    json!({
        "kernel": system.release().to_string_lossy(),
        "cpu": field(&text("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&text("/proc/meminfo"), "MemTotal"),
        "load_average": text("/proc/loadavg").split(' ').next(),
        "filesystem": dir.canonicalize().ok().and_then(|dir| {
            filesystem(&text("/proc/self/mountinfo"), &dir)
        }),
    })
}

/// The same for people.
pub fn line(machine: &Value) -> String {
    let part = |name: &str| match &machine[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!(
        "Linux {}, {} cores ({}), {}, {}, load {}",
        part("kernel"),
        part("cores"),
        part("cpu"),
        part("memory"),
        part("filesystem"),
        part("load_average")
    )
}

/// Type and device of the mount nearest above `dir`.
fn filesystem(mountinfo: &str, dir: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let point = Path::new(front.split(' ').nth(4)?);
        let mut back = back.split(' ');
        let found = format!("{} on {}", back.next()?, back.next()?);
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
                      25 24 0:5 / /data rw - xfs /dev/vdb rw";
        let found = |dir: &str| filesystem(mounts, Path::new(dir)).unwrap();
        assert_eq!(found("/database"), "ext4 on /dev/vda");
        assert_eq!(found("/data/x"), "xfs on /dev/vdb");
    }
}
