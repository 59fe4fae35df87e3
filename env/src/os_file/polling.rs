//! Which devices can be asked for their completions, by what their drivers say about themselves.
//!
//! A device needs queues for that, which a driver makes only if it was told to when it was loaded.

use std::fs;
use std::path::Path;

use super::sysfs;

/// Whether the device with that `st_dev` has queues for it.
pub(super) fn polls(device: u64) -> bool {
    polls_in(Path::new(sysfs::ROOT), device)
}

fn polls_in(root: &Path, device: u64) -> bool {
    sysfs::queue_attribute(root, device, "io_poll").is_some_and(|text| says_yes(&text))
}

fn says_yes(text: &str) -> bool {
    text.trim() == "1"
}

/// The disks of this machine, by name, and of each whether it has queues for it.
pub(crate) fn disks() -> Vec<(String, bool)> {
    disks_in(Path::new(sysfs::ROOT))
}

fn disks_in(root: &Path) -> Vec<(String, bool)> {
    let Ok(disks) = fs::read_dir(root.join("block")) else { return Vec::new() };
    let of = |disk: fs::DirEntry| {
        let name = disk.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(disk.path().join("queue/io_poll"));
        (name, text.is_ok_and(|text| says_yes(&text)))
    };
    let mut disks: Vec<_> = disks.flatten().map(of).collect();
    disks.sort();
    disks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_their_partitions_and_what_is_none_are_told_apart() {
        let root = sysfs::with_disks("io_poll", &["1\n", "0\n"]);
        let asked = [(8, 0), (8, 1), (9, 0), (9, 1), (0, 40)];
        let polls = asked.map(|(major, minor)| polls_in(root.path(), libc::makedev(major, minor)));
        assert_eq!(polls, [true, true, false, false, false]);
        let disks = disks_in(root.path());
        assert_eq!(disks, [("disk8".to_owned(), true), ("disk9".to_owned(), false)]);
        assert!(disks_in(&root.path().join("nothing")).is_empty());
    }
}
