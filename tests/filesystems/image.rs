//! File systems made for one test: an image on a loop device, an overlay, memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use crate::disk::{Control, Disk};
use crate::skipped;

/// The directory of this process, and the locks that say that it is in use.
struct Workshop {
    dir: PathBuf,
    _lock: File,
}

static WORKSHOP: OnceLock<Workshop> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Workshop {
    /// Takes away what killed processes left, and makes the directory of this one.
    fn open() -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filesystems");
        fs::create_dir_all(&base).unwrap();
        let gate = File::create(base.join("lock")).unwrap();
        flock(&gate, FlockOperation::LockExclusive).unwrap();
        for entry in fs::read_dir(&base).unwrap() {
            let path = entry.unwrap().path();
            let Ok(lock) = File::open(path.join("lock")) else { continue };
            // The lock goes with its process.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                unmount_all_under(&path);
                fs::remove_dir_all(&path).unwrap();
            }
        }
        let dir = base.join(std::process::id().to_string());
        fs::create_dir(&dir).unwrap();
        let lock = File::create(dir.join("lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        Self { dir, _lock: lock }
    }
}

/// A new directory for one file system and what it is made of.
pub(crate) fn site() -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = WORKSHOP.get_or_init(Workshop::open).dir.join(number.to_string());
    fs::create_dir(&dir).unwrap();
    dir
}

/// The mount points below a directory, the newest first.
fn mounts_under(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    points.reverse();
    points
}

pub(crate) fn unmount_all_under(dir: &Path) {
    for point in mounts_under(dir) {
        // A file that was closed a moment ago may still be on its way out.
        let gone = (0..500).any(|_| {
            let done = unmount(&point, UnmountFlags::empty()).is_ok();
            if !done {
                std::thread::sleep(Duration::from_millis(10));
            }
            done
        });
        if !gone {
            // It goes when the last file on it does.
            let detached = unmount(&point, UnmountFlags::DETACH);
            assert!(detached.is_ok() || std::thread::panicking(), "{detached:?}");
        }
    }
}

/// What lies below a file system, and goes after it.
enum Below {
    Mounted { _mounted: Box<Mounted> },
    Loop { _device: LoopDevice, _memory: Box<Mounted> },
    Disk { _disk: Box<Disk> },
}

/// A mounted file system, which goes away with everything on it when this is dropped. To be
/// declared before what uses it.
pub(crate) struct Mounted {
    site: PathBuf,
    at: PathBuf,
    next: AtomicU32,
    /// What this one lies on.
    _below: Option<Below>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount_all_under(&self.site);
        let removed = fs::remove_dir_all(&self.site);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// A command of the system's administrator.
pub(crate) fn admin(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs it, and gives what it said if it failed.
fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("{}: {said}", command.get_program().display()))
        }
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

impl Mounted {
    /// Mounts what `options` (the words of `mount` but the directory) say.
    fn new(site: PathBuf, options: &[&str], below: Option<Below>) -> Option<Self> {
        let at = site.join("mounted");
        fs::create_dir(&at).unwrap();
        // From here on the site is taken away in any case.
        let mounted = Self { site, at, next: AtomicU32::new(0), _below: below };
        let mut command = admin("mount");
        match run(command.args(options).arg(&mounted.at)) {
            Ok(()) => Some(mounted),
            Err(why) => {
                skipped(&why);
                None
            }
        }
    }

    /// A new file system of `kind` in an image of so many MiB. The image lies in memory, where a
    /// sync of the device takes no time; only what is written takes room. `None`, said, where that
    /// cannot be.
    pub(crate) fn image(kind: &str, size: u64) -> Option<Self> {
        if !is_offered(kind) {
            return None;
        }
        let memory = Self::memory(2 * size)?;
        let image = memory.path().join("image");
        File::create(&image).unwrap().set_len(size << 20).unwrap();
        format(kind, &image)?;
        let below = Below::Mounted { _mounted: Box::new(memory) };
        Self::new(site(), &["-o", "loop", "-t", kind, &image.to_string_lossy()], Some(below))
    }

    /// The same on a device whose sectors are of so many bytes, which is the least that it reads
    /// and writes.
    pub(crate) fn image_in_sectors_of(sector: u32, kind: &str, size: u64) -> Option<Self> {
        if !is_offered(kind) {
            return None;
        }
        let memory = Self::memory(2 * size)?;
        let image = memory.path().join("image");
        File::create(&image).unwrap().set_len(size << 20).unwrap();
        let device = LoopDevice::new(&image, &["--sector-size", &sector.to_string()]);
        let device = device.map_err(|why| skipped(&why)).ok()?;
        assert_eq!(device.sector(), sector);
        let path = device.0.clone();
        format(kind, Path::new(&path))?;
        let below = Below::Loop { _device: device, _memory: Box::new(memory) };
        Self::new(site(), &["-t", kind, &path], Some(below))
    }

    /// The same on a disk that fails and stalls on command. The device hands requests on as they
    /// come, without a cache of its own.
    pub(crate) fn on_disk_in_trouble(kind: &str, size: u64) -> Option<(Self, Control)> {
        if !is_offered(kind) || !is_offered("fuse") {
            return None;
        }
        let (file, disk, control) = Disk::new(Self::memory(2 * size)?, size)?;
        format(kind, &file)?;
        let device = LoopDevice::new(&file, &["--direct-io=on"]);
        let device = device.map_err(|why| skipped(&why)).ok()?;
        // What the disk lies below must be gone first, however this ends.
        let below = Below::Disk { _disk: Box::new(disk) };
        let mounted = Self::new(site(), &["-t", kind, &device.0], Some(below))?;
        Some((mounted, control))
    }

    /// An overlay over two directories of an ext4 image.
    pub(crate) fn overlay() -> Option<Self> {
        let below = Self::image("ext4", 256)?;
        if !is_offered("overlay") {
            return None;
        }
        let [lower, upper, work] = [below.dir(), below.dir(), below.dir()];
        let [lower, upper, work] = [lower, upper, work].map(|dir| dir.display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let below = Below::Mounted { _mounted: Box::new(below) };
        Self::new(site(), &["-t", "overlay", "-o", &options, "overlay"], Some(below))
    }

    /// A file system in memory that holds so many MiB.
    pub(crate) fn memory(size: u64) -> Option<Self> {
        if !is_offered("tmpfs") {
            return None;
        }
        let size = format!("size={size}m");
        Self::new(site(), &["-t", "tmpfs", "-o", &size, "tmpfs"], None)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// A new empty directory on it.
    pub(crate) fn dir(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = self.at.join(number.to_string());
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Removes the directories that were made on it.
    pub(crate) fn clear(&self) {
        for number in 0..self.next.load(Ordering::Relaxed) {
            let dir = self.at.join(number.to_string());
            if dir.exists() {
                fs::remove_dir_all(dir).unwrap();
            }
        }
    }
}

/// A loop device, which goes when nothing uses it any more.
struct LoopDevice(String);

impl LoopDevice {
    fn new(image: &Path, options: &[&str]) -> Result<Self, String> {
        let mut command = admin("losetup");
        command.args(["--find", "--show"]).args(options).arg(image);
        let output = command.output().map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }

    fn sector(&self) -> u32 {
        let name = self.0.strip_prefix("/dev/").unwrap();
        let told = format!("/sys/block/{name}/queue/logical_block_size");
        fs::read_to_string(told).unwrap().trim().parse().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // If it is mounted, it goes when it is not.
        let detached = run(admin("losetup").arg("--detach").arg(&self.0));
        assert!(detached.is_ok() || std::thread::panicking(), "{detached:?}");
    }
}

/// Whether this process may mount, and the kernel knows this kind; says so if not.
fn is_offered(kind: &str) -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let why = if !rustix::process::geteuid().is_root() {
        "only root can mount file systems".to_owned()
    } else if !known.split_whitespace().any(|name| name == kind) {
        format!("this kernel has no {kind}")
    } else {
        return true;
    };
    skipped(&why);
    false
}

/// Makes a file system of `kind` in an image; says so if that cannot be done.
fn format(kind: &str, image: &Path) -> Option<()> {
    run(admin(&format!("mkfs.{kind}")).arg("-q").arg(image)).map_err(|why| skipped(&why)).ok()
}
