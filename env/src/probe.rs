//! What this machine and the file system of a directory can do, found out by trying, and which
//! environment that speaks for.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Advice;

use crate::counters::Counters;
use crate::os_file::{Nowait, Os, OsFile};
use crate::sync::Arc;
use crate::sys::KernelSys;
use crate::uring::offers;
use crate::{Access, IoUringEnv, MachineFacts, Offer, Unavailable};

/// Pages of the temporary file; the ones looked at are far from each other.
const PAGES: u64 = 64;
const PAGE: usize = 4096;
/// Looks of which each asks one page twice.
const LOOKS: u64 = 8;
/// How often it is tried at most: a page that cannot be dropped from the cache tells nothing.
const TRIES: usize = 100;
/// The pause before the next try.
const HELD: Duration = Duration::from_millis(5);

/// What [`probe`] found.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The directory it is about.
    pub dir: PathBuf,
    /// The facts of the machine.
    pub machine: MachineFacts,
    /// Why io_uring is not available; `None` if it is.
    pub unavailable: Option<Unavailable>,
    /// What would become of the options of `IoUringEnv` that not every machine can do.
    pub offers: Vec<Offer>,
    /// The file system of the directory, such as `ext4`; `unknown (0x...)` for one not known here.
    pub file_system: String,
    /// What a NOWAIT read of a page does that is not in the page cache.
    pub nowait: NowaitMiss,
    /// The environment to use: `"io_uring"` or `"posix"`.
    pub advised: &'static str,
    /// Why.
    pub why: String,
}

/// What `preadv2(RWF_NOWAIT)` does when it misses the page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NowaitMiss {
    /// It starts the read (Linux 6.12 and later): asked again a little later, the page is there.
    Starts,
    /// It only looks.
    OnlyLooks,
    /// The file system refuses NOWAIT reads. Then it has no asynchronous reads either, and a ring
    /// would serve each by a thread of the kernel.
    Unsupported,
    /// It could not be found out, for this reason.
    NotFoundOut(String),
}

/// Finds out what `dir` and this machine can do. Writes a file of 256 KiB into `dir` and removes
/// it, makes rings, and locks up to 16 MiB for a moment; takes some ten milliseconds.
pub fn probe(dir: &Path) -> Diagnosis {
    let unavailable = IoUringEnv::builder().rings(1).build().err();
    let nowait =
        nowait_miss(dir).unwrap_or_else(|error| NowaitMiss::NotFoundOut(error.to_string()));
    let (advised, why) = advise(unavailable.as_ref(), &nowait);
    Diagnosis {
        dir: dir.to_path_buf(),
        machine: MachineFacts::read(),
        file_system: file_system_of(dir),
        offers: offers(unavailable.as_ref()),
        advised,
        why: why.to_owned(),
        unavailable,
        nowait,
    }
}

fn advise(unavailable: Option<&Unavailable>, nowait: &NowaitMiss) -> (&'static str, &'static str) {
    match (unavailable, nowait) {
        (Some(_), _) => ("posix", "io_uring is not available; batched reads are parallel without"),
        (None, NowaitMiss::Unsupported) => {
            ("posix", "this file system has no asynchronous reads, so a ring gains nothing here")
        }
        (None, NowaitMiss::Starts) => (
            "io_uring",
            "batches of misses go to the device together and are worked on as they arrive; posix \
             is close, since a NOWAIT miss starts its read here",
        ),
        (None, _) => {
            ("io_uring", "batches of misses go to the device together, with one call for many")
        }
    }
}

/// Writes a file, drops it from the page cache and looks what NOWAIT reads of it do.
fn nowait_miss(dir: &Path) -> io::Result<NowaitMiss> {
    let path = dir.join(format!(".treering-probe-{}", std::process::id()));
    let looked = write_file(&path).and_then(|file| look(&path, &file));
    let removed = std::fs::remove_file(&path);
    let miss = looked?;
    removed.map(|()| miss)
}

fn write_file(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    for page in 0..PAGES {
        file.write_all(&[u8::try_from(page).unwrap_or(0); PAGE])?;
    }
    file.sync_all()?;
    Ok(file)
}

fn look(path: &Path, written: &File) -> io::Result<NowaitMiss> {
    let counters = Counters::default();
    let os = Os::new(Arc::new(KernelSys));
    let file = OsFile::open(&os, path, Access::Random, false).map_err(io::Error::other)?;
    let mut memory = [0; PAGE];
    let (mut there, mut absent) = (0, 0);
    for nth in (0..LOOKS).cycle().take(TRIES) {
        if there + absent == LOOKS {
            break;
        }
        rustix::fs::fadvise(written.as_fd(), 0, None, Advice::DontNeed)?;
        let subject = nth * 4 * PAGE as u64;
        let other = subject + (PAGES - LOOKS * 4) * PAGE as u64;
        match file.read_nowait(&mut memory, subject, &counters) {
            Nowait::Miss => {}
            Nowait::Unsupported => return Ok(NowaitMiss::Unsupported),
            Nowait::Full | Nowait::Short(_) => {
                // Right after it was written a page may be held by the kernel for a while.
                std::thread::sleep(HELD);
                continue;
            }
        }
        // A read that waits for the device, behind the one that the miss may have started.
        file.pread_exact(&mut memory, other, &counters).map_err(io::Error::other)?;
        match file.read_nowait(&mut memory, subject, &counters) {
            Nowait::Full => there += 1,
            _ => absent += 1,
        }
    }
    Ok(match (there, absent) {
        (0, 0) => NowaitMiss::NotFoundOut("the page cache could not be emptied".to_owned()),
        _ if there > absent => NowaitMiss::Starts,
        _ => NowaitMiss::OnlyLooks,
    })
}

/// The name of the file system that `dir` is on.
fn file_system_of(dir: &Path) -> String {
    match rustix::fs::statfs(dir) {
        Ok(found) => name_of_magic(u64::try_from(found.f_type).unwrap_or(0)),
        Err(errno) => format!("unknown ({errno})"),
    }
}

/// File systems by the number that `statfs` gives, as in `linux/magic.h` and their own sources.
fn name_of_magic(magic: u64) -> String {
    let name = match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0xCA45_1A4E => "bcachefs",
        0x794C_7630 => "overlayfs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "smb",
        0x00C3_6400 => "ceph",
        0x0102_1997 => "9p",
        _ => return format!("unknown ({magic:#x})"),
    };
    name.to_owned()
}

impl fmt::Display for NowaitMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starts => f.write_str("a miss starts its read"),
            Self::OnlyLooks => f.write_str("a miss starts nothing"),
            Self::Unsupported => f.write_str("not supported"),
            Self::NotFoundOut(why) => write!(f, "not found out: {why}"),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "machine: {}", self.machine)?;
        match &self.unavailable {
            None => writeln!(f, "io_uring: available")?,
            Some(cause) => writeln!(f, "{cause}")?,
        }
        for offer in &self.offers {
            writeln!(f, "  option {offer}")?;
        }
        writeln!(f, "file system of {}: {}", self.dir.display(), self.file_system)?;
        writeln!(f, "NOWAIT reads: {}", self.nowait)?;
        write!(f, "advised environment: {} ({})", self.advised, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_directory_is_diagnosed_and_left_clean() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let found = probe(dir.path());
        assert!(!found.file_system.is_empty());
        assert!(
            !matches!(found.nowait, NowaitMiss::NotFoundOut(_)),
            "a directory that can be written to can be probed: {}",
            found.nowait
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let text = found.to_string();
        assert!(text.contains("advised environment: "), "{text}");
        assert!(text.contains(&found.machine.kernel), "{text}");
        for option in ["fixed_buffers", "sqpoll", "iopoll"] {
            assert_eq!(text.matches(&format!("  option {option}: ")).count(), 1, "{text}");
        }
    }

    #[test]
    fn memory_file_systems_are_named_and_advised_against_rings() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let found = probe(dir.path());
        assert_eq!(found.file_system, "tmpfs");
        assert_eq!((found.nowait, found.advised), (NowaitMiss::Unsupported, "posix"));
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_says_so() {
        let found = probe(Path::new("/proc"));
        assert!(matches!(found.nowait, NowaitMiss::NotFoundOut(_)));
        assert!(found.file_system.starts_with("unknown (0x"), "{}", found.file_system);
    }

    #[test]
    fn the_advice_follows_what_was_found() {
        let denied = Unavailable::Denied { seccomp: true, errno: 1 };
        assert_eq!(advise(Some(&denied), &NowaitMiss::Starts).0, "posix");
        assert_eq!(advise(None, &NowaitMiss::Unsupported).0, "posix");
        assert_eq!(advise(None, &NowaitMiss::Starts).0, "io_uring");
        assert_eq!(advise(None, &NowaitMiss::OnlyLooks).0, "io_uring");
    }
}
