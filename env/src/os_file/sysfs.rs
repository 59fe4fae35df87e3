//! What the drivers of block devices say about them.

use std::fs;
use std::path::Path;

/// Where the kernel shows its devices.
pub(super) const ROOT: &str = "/sys";

/// An attribute of the request queue of the device with that `st_dev`. File systems that are spread
/// over several devices or over none have no such device.
pub(super) fn queue_attribute(root: &Path, device: u64, name: &str) -> Option<String> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let place = root.join(format!("dev/block/{major}:{minor}"));
    // A partition has no queue of its own: its directory lies in that of its disk.
    let queues = ["queue", "../queue"].map(|queue| place.join(queue));
    queues.iter().find_map(|queue| fs::read_to_string(queue.join(name)).ok())
}

/// A directory like sysfs: a disk for each value of the attribute, 8:0, 9:0 and so on, and a
/// partition of each, 8:1, 9:1 and so on. Their names are `disk8`, `disk9` and so on.
#[cfg(test)]
pub(super) fn with_disks(attribute: &str, values: &[&str]) -> tempfile::TempDir {
    use std::os::unix::fs::symlink;

    let root = tempfile::tempdir().unwrap();
    for dir in ["devices", "block", "dev/block"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    for (major, value) in (8..).zip(values) {
        let disk = root.path().join(format!("devices/disk{major}"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("part")).unwrap();
        fs::write(disk.join("queue").join(attribute), value).unwrap();
        symlink(&disk, root.path().join(format!("block/disk{major}"))).unwrap();
        symlink(&disk, root.path().join(format!("dev/block/{major}:0"))).unwrap();
        symlink(disk.join("part"), root.path().join(format!("dev/block/{major}:1"))).unwrap();
    }
    root
}
