//! Names and directories: everything an environment over the operating system does with a path.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use crate::counters::Count;
use crate::os_file::Os;
use crate::process::Process;
use crate::sys::{OpenMode, uninterrupted};
use crate::{DirEntry, Error, ErrorKind, FileLock, Metadata, Outcome, Result};

/// The error of a call on a path. An error number by which the kernel refuses a call outright says
/// that nothing changed; any other leaves that open.
pub(crate) fn path_error(errno: i32, op: &'static str, path: &Path) -> Error {
    let error = Error::from_errno(errno, op, path);
    match errno {
        libc::ENOENT
        | libc::EEXIST
        | libc::EACCES
        | libc::EPERM
        | libc::EROFS
        | libc::EXDEV
        | libc::ENOTDIR
        | libc::EISDIR
        | libc::ENOTEMPTY
        | libc::ENAMETOOLONG
        | libc::ELOOP
        | libc::EMLINK
        | libc::EMFILE
        | libc::ENFILE
        | libc::EINVAL => error.with_outcome(Outcome::NotApplied),
        _ => error,
    }
}

/// What is there; `None` only if the kernel says that nothing is.
pub(crate) fn metadata(os: &Os, path: &Path) -> Result<Option<Metadata>> {
    match uninterrupted(&os.counters, || os.sys.stat(path)) {
        Ok(stat) => Ok(Some(Metadata { size: stat.size, is_dir: stat.is_dir })),
        Err(libc::ENOENT) => Ok(None),
        Err(errno) => Err(path_error(errno, "metadata", path)),
    }
}

/// Every name in a directory, or an error.
pub(crate) fn list(os: &Os, dir: &Path) -> Result<Vec<DirEntry>> {
    let fd = os.open_fd(dir, OpenMode::Directory, "list")?;
    let mut raw = Vec::new();
    uninterrupted(&os.counters, || {
        raw.clear();
        os.sys.read_dir(fd.as_fd(), &mut |entry| raw.push(entry))
    })
    .map_err(|errno| path_error(errno, "list", dir))?;
    let mut entries = Vec::with_capacity(raw.len());
    for entry in raw {
        let is_dir = match entry.is_dir {
            Some(is_dir) => is_dir,
            // The file system does not tell in the listing. A name that went since is absent.
            None => match metadata(os, &dir.join(&entry.name))? {
                Some(metadata) => metadata.is_dir,
                None => continue,
            },
        };
        entries.push(DirEntry { name: entry.name, is_dir });
    }
    Ok(entries)
}

pub(crate) fn rename(os: &Os, from: &Path, to: &Path) -> Result<()> {
    os.sys.rename(from, to).map_err(|errno| path_error(errno, "rename", from))
}

pub(crate) fn remove(os: &Os, path: &Path) -> Result<()> {
    os.sys.unlink(path).map_err(|errno| path_error(errno, "remove", path))
}

pub(crate) fn remove_dir(os: &Os, dir: &Path) -> Result<()> {
    os.sys.rmdir(dir).map_err(|errno| path_error(errno, "remove_dir", dir))
}

/// Gives a file a second name. Where the file system has no second names (it says so in several
/// ways, one of them "operation not permitted"), or not that many, the kind is `Unsupported`.
pub(crate) fn link(os: &Os, from: &Path, to: &Path) -> Result<()> {
    os.sys.link(from, to).map_err(|errno| {
        let error = path_error(errno, "link", from);
        match errno {
            libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK => {
                error.with_kind(ErrorKind::Unsupported).with_outcome(Outcome::NotApplied)
            }
            _ => error,
        }
    })
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(os: &Os, dir: &Path) -> Result<()> {
    let fd = os.open_fd(dir, OpenMode::Directory, "sync_dir")?;
    os.counters.bump(Count::DirSyncs);
    uninterrupted(&os.counters, || os.sys.fsync(fd.as_fd()))
        .map_err(|errno| Error::from_errno(errno, "sync_dir", dir))
}

/// Makes a directory and what is missing above it. Each new one is durable in its parent before
/// the next is made in it.
pub(crate) fn create_dir_all(os: &Os, dir: &Path) -> Result<()> {
    let mut missing = vec![dir];
    let mut found = false;
    // Upwards until one exists or can be made, then down again and never up a second time.
    while let Some(&next) = missing.last() {
        match os.sys.mkdir(next) {
            Ok(()) => {
                if !found && let Some(above) = next.parent().filter(|p| p.file_name().is_some()) {
                    sync_found_dir(os, above)?;
                }
                found = true;
                sync_new_dir(os, next)?;
            }
            Err(libc::EEXIST) => {
                require_dir(os, next)?;
                sync_found_dir(os, next)?;
                found = true;
            }
            Err(libc::ENOENT) => {
                // Below a directory that is there this says that the file system makes none, or
                // that somebody takes away what is made.
                if !found && let Some(parent) = next.parent().filter(|p| !p.as_os_str().is_empty())
                {
                    missing.push(parent);
                    continue;
                }
                return Err(path_error(libc::ENOENT, "create_dir_all", next));
            }
            Err(errno) => return Err(path_error(errno, "create_dir_all", next)),
        }
        missing.pop();
    }
    Ok(())
}

/// Makes the name of a directory that was already there durable: a process that made it may have
/// died before it had synced the parent. A parent that may not be read was not changed by us.
fn sync_found_dir(os: &Os, dir: &Path) -> Result<()> {
    match sync_dir(os, parent_of(dir)) {
        Err(error) if error.kind() == ErrorKind::Denied => Ok(()),
        synced => synced,
    }
}

fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the parent of a directory just made. If that fails the directory is taken away again, or
/// a second attempt would find it and take it for durable.
fn sync_new_dir(os: &Os, dir: &Path) -> Result<()> {
    let synced = sync_dir(os, parent_of(dir));
    if synced.is_err() {
        // Nothing better can be done if this fails too; the error is reported either way.
        let _ = os.sys.rmdir(dir);
    }
    synced
}

fn require_dir(os: &Os, path: &Path) -> Result<()> {
    match metadata(os, path)? {
        Some(metadata) if metadata.is_dir => Ok(()),
        _ => Err(path_error(libc::ENOTDIR, "create_dir_all", path)),
    }
}

pub(crate) fn free_space(os: &Os, dir: &Path) -> Result<u64> {
    uninterrupted(&os.counters, || os.sys.free_space(dir))
        .map_err(|errno| path_error(errno, "free_space", dir))
}

/// Takes the lock on a file, creating the file if needed. Never waits.
pub(crate) fn lock(os: &Os, path: &Path) -> Result<FileLock> {
    let file = File::from(os.open_file(path, OpenMode::Lock, "lock")?);
    match uninterrupted(&os.counters, || os.sys.try_lock(&file)) {
        Ok(()) => Ok(FileLock::new(Held { file, owner: Process::current() })),
        Err(libc::EWOULDBLOCK) => Err(Error::new(
            ErrorKind::Locked,
            "lock",
            path,
            "held by another process, or by another opener in this one; it is released when its \
             holder closes it or ends",
        )),
        Err(errno) => {
            let cause = io::Error::from_raw_os_error(errno);
            Err(Error::from_io(&cause, "lock", path))
        }
    }
}

/// A lock of this process.
#[derive(Debug)]
struct Held {
    file: File,
    owner: Process,
}

impl Drop for Held {
    /// Closing alone would leave the lock to a child that was forked a moment ago and has not yet
    /// started its program. A child that drops its copy must not take the lock from its parent.
    fn drop(&mut self) {
        if self.owner.is_current() {
            // If it fails, closing still releases the lock when the last copy is closed.
            let _ = self.file.unlock();
        }
    }
}
