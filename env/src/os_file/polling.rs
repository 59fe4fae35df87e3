//! Which devices can be asked for their completions, by what their drivers say about themselves.
//!
//! A device needs queues for that, which a driver makes only if it was told to when it was loaded.

use std::fs;
use std::path::Path;

/// Where the kernel shows its devices.
const SYSFS: &str = "/sys";

/// Whether the device with that `st_dev` has queues for it. File systems that are spread over
/// several devices or over none have no such device.
pub(super) fn polls(device: u64) -> bool {
    polls_in(Path::new(SYSFS), device)
}

fn polls_in(root: &Path, device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let place = root.join(format!("dev/block/{major}:{minor}"));
    // A partition has no queue of its own: its directory lies in that of its disk.
    ["queue", "../queue"].iter().any(|queue| says_yes(&place.join(queue).join("io_poll")))
}

fn says_yes(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.trim() == "1")
}

/// The disks of this machine, by name, and of each whether it has queues for it.
pub(crate) fn disks() -> Vec<(String, bool)> {
    disks_in(Path::new(SYSFS))
}

fn disks_in(root: &Path) -> Vec<(String, bool)> {
    let Ok(disks) = fs::read_dir(root.join("block")) else { return Vec::new() };
    let of = |disk: fs::DirEntry| {
        let name = disk.file_name().to_string_lossy().into_owned();
        (name, says_yes(&disk.path().join("queue/io_poll")))
    };
    let mut disks: Vec<_> = disks.flatten().map(of).collect();
    disks.sort();
    disks
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn disks_their_partitions_and_what_is_none_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        for (disk, answer) in [("yes", "1\n"), ("no", "0\n")] {
            let place = root.path().join("devices").join(disk);
            fs::create_dir_all(place.join("queue")).unwrap();
            fs::create_dir_all(place.join("part")).unwrap();
            fs::write(place.join("queue/io_poll"), answer).unwrap();
            fs::create_dir_all(root.path().join("block")).unwrap();
            symlink(&place, root.path().join("block").join(disk)).unwrap();
        }
        let numbers = root.path().join("dev/block");
        fs::create_dir_all(&numbers).unwrap();
        for (number, place) in
            [("8:0", "yes"), ("8:1", "yes/part"), ("9:0", "no"), ("9:1", "no/part")]
        {
            symlink(root.path().join("devices").join(place), numbers.join(number)).unwrap();
        }
        let asked = [(8, 0), (8, 1), (9, 0), (9, 1), (0, 40)];
        let polls = asked.map(|(major, minor)| polls_in(root.path(), libc::makedev(major, minor)));
        assert_eq!(polls, [true, true, false, false, false]);
        let disks = disks_in(root.path());
        assert_eq!(disks, [("no".to_owned(), false), ("yes".to_owned(), true)]);
        assert!(disks_in(&root.path().join("nothing")).is_empty());
    }
}
