//! The longest read that is given to a device at once, by what its driver says about itself.
//!
//! A longer one is split by the kernel, which on a ring may end in a worker thread or a refusal.
//! Half of what the driver takes leaves room for reads that do not begin where its own pieces do.

use std::path::Path;

use super::sysfs;

/// The longest read where the device says nothing, and where it would take more.
const LONGEST: usize = 512 << 10;

/// Reads are cut at multiples of this, which every direct read may begin at. A device that takes
/// less than twice as much is given this all the same: the kernel splits it.
const UNIT: usize = 64 << 10;

/// The longest read for one device, and the driver's limit that it follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) bytes: usize,
    /// `max_sectors_kb`, in KiB; `None` if there is no such device, as for file systems that are
    /// spread over several or over none, or it does not say.
    pub(crate) driver_kib: Option<u64>,
}

impl Chunk {
    /// What the kernel says about the device with that `st_dev`. Reads a file of sysfs or two.
    pub(crate) fn of(device: u64) -> Self {
        Self::in_sysfs(Path::new(sysfs::ROOT), device)
    }

    fn in_sysfs(root: &Path, device: u64) -> Self {
        let limit = sysfs::queue_attribute(root, device, "max_sectors_kb");
        let driver_kib = limit.and_then(|text| text.trim().parse().ok()).filter(|kib| *kib > 0);
        Self::from_limit(driver_kib)
    }

    fn from_limit(driver_kib: Option<u64>) -> Self {
        let half = driver_kib.map_or(LONGEST as u64, |kib| kib.saturating_mul(1024) / 2);
        let bytes = usize::try_from(half).unwrap_or(LONGEST).min(LONGEST);
        Self { bytes: (bytes / UNIT * UNIT).max(UNIT), driver_kib }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_chunk_is_half_of_what_the_driver_takes_within_bounds() {
        let cases = [
            ("1280\n", 512, Some(1280)),
            ("1024\n", 512, Some(1024)),
            ("512\n", 256, Some(512)),
            ("168\n", 64, Some(168)),
            ("124\n", 64, Some(124)),
            ("4\n", 64, Some(4)),
            ("18446744073709551615\n", 512, Some(u64::MAX)),
            ("0\n", 512, None),
            ("none\n", 512, None),
            ("-1\n", 512, None),
            ("", 512, None),
        ];
        for (limit, kib, driver_kib) in cases {
            let root = sysfs::with_disks("max_sectors_kb", &[limit]);
            let expected = Chunk { bytes: kib << 10, driver_kib };
            let disk = Chunk::in_sysfs(root.path(), libc::makedev(8, 0));
            assert_eq!(disk, expected, "{limit:?}");
        }
    }

    #[test]
    fn a_partition_follows_its_disk_and_what_is_no_device_the_default() {
        let root = sysfs::with_disks("max_sectors_kb", &["256\n"]);
        let expected = Chunk { bytes: 128 << 10, driver_kib: Some(256) };
        assert_eq!(Chunk::in_sysfs(root.path(), libc::makedev(8, 1)), expected);
        let default = Chunk { bytes: LONGEST, driver_kib: None };
        assert_eq!(Chunk::in_sysfs(root.path(), libc::makedev(8, 2)), default);
        assert_eq!(Chunk::in_sysfs(root.path(), libc::makedev(0, 42)), default);
        assert_eq!(Chunk::in_sysfs(&root.path().join("nowhere"), libc::makedev(8, 0)), default);
    }

    /// The device of the directory for temporary files, whatever it is, and every block device
    /// there is.
    #[test]
    fn every_device_of_this_machine_has_a_chunk_within_bounds() {
        let mut devices = vec![fs::metadata(std::env::temp_dir()).unwrap().dev()];
        for entry in fs::read_dir("/sys/dev/block").into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let (major, minor) = name.split_once(':').unwrap();
            let device = libc::makedev(major.parse().unwrap(), minor.parse().unwrap());
            devices.push(device);
            if let Ok(limit) = fs::read_to_string(entry.path().join("queue/max_sectors_kb")) {
                let limit = limit.trim().parse().unwrap();
                assert_eq!(Chunk::of(device).driver_kib, Some(limit), "{name}");
            }
        }
        for device in devices {
            let Chunk { bytes, driver_kib } = Chunk::of(device);
            assert!((UNIT..=LONGEST).contains(&bytes) && bytes.is_multiple_of(UNIT));
            let fits = driver_kib.is_none_or(|kib| bytes as u64 <= (kib * 512).max(UNIT as u64));
            assert!(fits, "{bytes} of {driver_kib:?}");
        }
    }
}
