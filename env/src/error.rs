//! The error of every environment call: what kind, which operation, which path, and whether the
//! operation may have taken effect.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every environment call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The path does not exist.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The device or the quota is full.
    NoSpace,
    /// The file ends before the requested range does.
    UnexpectedEof,
    /// The environment or the file system does not offer this operation.
    Unsupported,
    /// The lock is held by someone else.
    Locked,
    /// Permission was denied, or the file system is read-only.
    Denied,
    /// The two paths are on different file systems.
    CrossDevice,
    /// A directory, a named pipe, a socket or a device stands where a file should.
    NotAFile,
    /// Offset, length or memory of a write is no multiple of what the file needs; see
    /// [`RandomRwFile::alignment`](crate::RandomRwFile::alignment). Nothing was written.
    Misaligned,
    /// Anything else; see [`Error::errno`].
    Other,
}

/// Whether a failed operation took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Nothing changed.
    NotApplied,
    /// Some or all of it may have happened.
    MaybeApplied,
    /// It happened, though something after it failed.
    Applied,
}

/// A failed environment operation. Cheap to clone: one error can be reported to many waiters.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    op: &'static str,
    path: PathBuf,
    offset: Option<u64>,
    errno: Option<i32>,
    message: String,
}

impl Error {
    /// An error of operation `op` on `path` that no operating system reported.
    pub fn new(kind: ErrorKind, op: &'static str, path: &Path, message: impl Into<String>) -> Self {
        Self::build(kind, op, path, None, message.into())
    }

    /// The error of a system call, from its positive `errno`.
    pub fn from_errno(errno: i32, op: &'static str, path: &Path) -> Self {
        let message = io::Error::from_raw_os_error(errno).to_string();
        Self::build(kind_of_errno(errno), op, path, Some(errno), message)
    }

    /// The error of a standard library call.
    pub fn from_io(error: &io::Error, op: &'static str, path: &Path) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno, op, path),
            None => Self::build(kind_of_io(error.kind()), op, path, None, error.to_string()),
        }
    }

    /// A read of `len` bytes at `offset` that a file of `size` bytes cannot fill.
    pub fn unexpected_eof(path: &Path, offset: u64, len: usize, size: u64) -> Self {
        let message = format!("end of file: {len} bytes wanted, the file has {size}");
        Self::build(ErrorKind::UnexpectedEof, "read", path, None, message).at(offset)
    }

    /// The same error with the file offset it happened at.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        self.change(|inner| inner.offset = Some(offset))
    }

    /// The same error with another outcome. The default is `NotApplied` for operations that only
    /// read and `MaybeApplied` for all others.
    #[must_use]
    pub fn with_outcome(self, outcome: Outcome) -> Self {
        self.change(|inner| inner.outcome = outcome)
    }

    /// The same error as another kind, where an operation gives an error number its own meaning.
    #[must_use]
    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        self.change(|inner| inner.kind = kind)
    }

    fn build(
        kind: ErrorKind,
        op: &'static str,
        path: &Path,
        errno: Option<i32>,
        message: String,
    ) -> Self {
        let outcome = match op {
            "open" | "read" | "metadata" | "list" | "lock" | "free_space" => Outcome::NotApplied,
            _ => Outcome::MaybeApplied,
        };
        let path = path.to_path_buf();
        Self { inner: Arc::new(Inner { kind, outcome, op, path, offset: None, errno, message }) }
    }

    fn change(mut self, edit: impl FnOnce(&mut Inner)) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            edit(inner);
            return self;
        }
        let old = &self.inner;
        let mut inner = Inner {
            kind: old.kind,
            outcome: old.outcome,
            op: old.op,
            path: old.path.clone(),
            offset: old.offset,
            errno: old.errno,
            message: old.message.clone(),
        };
        edit(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The positive error number of the system call, if one failed.
    pub fn errno(&self) -> Option<i32> {
        self.inner.errno
    }

    /// The operation that failed, such as `"sync"`.
    pub fn op(&self) -> &'static str {
        self.inner.op
    }

    /// The path it failed on.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The file offset it failed at, if it has one.
    pub fn offset(&self) -> Option<u64> {
        self.inner.offset
    }

    /// Whether the operation may have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.inner.outcome
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inner.op, self.inner.path.display())?;
        if let Some(offset) = self.inner.offset {
            write!(f, " at offset {offset}")?;
        }
        write!(f, ": {}", self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl std::error::Error for Error {}

fn kind_of_errno(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOENT => ErrorKind::NotFound,
        libc::EEXIST => ErrorKind::AlreadyExists,
        libc::ENOSPC | libc::EDQUOT => ErrorKind::NoSpace,
        libc::EOPNOTSUPP | libc::ENOSYS => ErrorKind::Unsupported,
        libc::EACCES | libc::EPERM | libc::EROFS => ErrorKind::Denied,
        libc::EXDEV => ErrorKind::CrossDevice,
        libc::EISDIR => ErrorKind::NotAFile,
        _ => ErrorKind::Other,
    }
}

fn kind_of_io(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        io::ErrorKind::UnexpectedEof => ErrorKind::UnexpectedEof,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        io::ErrorKind::WouldBlock => ErrorKind::Locked,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::CrossesDevices => ErrorKind::CrossDevice,
        io::ErrorKind::IsADirectory => ErrorKind::NotAFile,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_operation_path_offset_and_cause() {
        let error = Error::from_errno(libc::ENOSPC, "sync", Path::new("db/000012.log"));
        assert_eq!(error.to_string(), "sync db/000012.log: No space left on device (os error 28)");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.outcome(), Outcome::MaybeApplied);
        let error = Error::from_errno(libc::EIO, "read", Path::new("t")).at(4096);
        assert_eq!(error.to_string(), "read t at offset 4096: Input/output error (os error 5)");
        assert_eq!(error.outcome(), Outcome::NotApplied);
    }

    #[test]
    fn changing_a_shared_error_leaves_the_other_copy_alone() {
        let first = Error::from_errno(libc::EIO, "write", Path::new("t"));
        let second = first.clone().at(7);
        assert_eq!(first.offset(), None);
        assert_eq!(second.offset(), Some(7));
        assert_eq!(second.errno(), first.errno());
    }
}
