//! The contract: what every environment promises to the engine above it.
//!
//! `docs/env.md` holds the durability table that these methods refer to; the public conformance
//! suite checks it on any implementation.

use std::any::Any;
use std::ffi::OsString;
use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;

use crate::{EnvReport, IoQueue, Result, SerialQueue};

/// How a file opened for reading will be read. Each open has a descriptor of its own, so the
/// advice given to the kernel for one reader never spoils another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Point reads: the kernel is asked not to read ahead.
    Random,
    /// Scans: the kernel's read-ahead stays on.
    Sequential,
}

/// What a file being created is for. An environment may choose its write path by it; it never
/// changes what the calls promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A write-ahead log segment: small appends, each perhaps followed by a sync.
    Log,
    /// A manifest: few small appends, each followed by a sync.
    Manifest,
    /// A table: written once, from start to end, in large pieces, synced at the end.
    Table,
    /// Anything else, such as `CURRENT`.
    Other,
}

/// What [`Env::metadata`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The length in bytes; unspecified for a directory.
    pub size: u64,
    /// Whether the path is a directory.
    pub is_dir: bool,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The file name, without its directory.
    pub name: OsString,
    /// Whether the entry is a directory.
    pub is_dir: bool,
}

/// An exclusive lock on a file, held until this value is dropped or its process ends.
pub struct FileLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl FileLock {
    /// Wraps whatever an environment keeps while the lock is held; dropping it must release it.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileLock")
    }
}

/// A storage environment, used as `Arc<dyn Env>`.
///
/// Every method may be called by any number of threads at once. Paths are passed on as given: a
/// relative path is relative to the process's working directory (to the root, in memory). Errors
/// name the operation and the path.
pub trait Env: Send + Sync + Debug {
    /// Opens an existing file for reading at any offset.
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) only if the file is not there. The
    /// reader keeps the file's bytes readable after the name was removed or replaced.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>>;

    /// Opens a file for reading and writing in place, creating it empty if it is absent.
    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>>;

    /// Creates a file and opens it for appending.
    ///
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if the name is taken; an
    /// existing file is never truncated. The new name is durable only after [`Env::sync_dir`].
    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>>;

    /// What is at `path`: `None` only if nothing is there; every other failure is an error.
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>>;

    /// The names in a directory, in no order. A listing that fails half-way is an error, never a
    /// shorter list.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;

    /// Renames a file, atomically replacing `to` if it exists. Durable after [`Env::sync_dir`] of
    /// the directories concerned.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file's name. Readers that have it open keep their bytes.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Gives a file a second name. `CrossDevice` or `Unsupported`: the caller should copy.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Creates a directory and its missing parents, from the top, and syncs the parent of each
    /// before it makes the next. The deepest directory that was there already gets its parent
    /// synced as well: a process that made it may have died before it could. Succeeds if the
    /// directory exists.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> Result<()>;

    /// Makes the names in `dir` (creations, renames, removals, links that returned before this
    /// call) survive a power loss.
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Bytes that can still be written to the file system of `dir`.
    fn free_space(&self, dir: &Path) -> Result<u64>;

    /// Takes an exclusive lock on `path`, creating the file if needed.
    ///
    /// Never waits: `Locked` if another process or another opener in this process holds it.
    fn lock(&self, path: &Path) -> Result<FileLock>;

    /// A queue for batched reads and writes over any files of this environment.
    ///
    /// The default performs one operation after another: always right, one deep. A wrapper that
    /// unwraps its own file type should override it and forward to the inner queue.
    fn queue(&self) -> Box<dyn IoQueue> {
        Box::new(SerialQueue::new())
    }

    /// What is really in use, why, and every counter. Cheap enough to call between runs, not
    /// meant for a hot path.
    fn report(&self) -> EnvReport;
}

/// A file open for reading at any offset, by any number of threads at once.
pub trait RandomAccessFile: Any + Send + Sync + Debug {
    /// Fills `buf` from `offset`.
    ///
    /// Short reads and interruptions are the environment's business. A read that the file cannot
    /// fill is [`ErrorKind::UnexpectedEof`](crate::ErrorKind::UnexpectedEof); an empty read
    /// succeeds anywhere. After an error the contents of `buf` are unspecified.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// The length in bytes: as of the open for a read-only file, the current one for a file
    /// that can be written in place.
    fn size(&self) -> u64;

    /// The path the file was opened by.
    fn path(&self) -> &Path;

    /// A hint that the range will be read soon by [`read_exact_at`](Self::read_exact_at). Never
    /// fails and never waits for the device.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}

/// What a write in place must be at multiples of. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Its address in memory. At most 4096 for the files of an environment over the operating
    /// system; a [`Buffer`](crate::Buffer) of at least that many bytes lies at a multiple of it.
    pub memory: usize,
    /// Its offset in the file, and its length. At most 65,536 for those files.
    pub offset: usize,
}

impl Alignment {
    /// That of a file which takes any write.
    pub const ANY: Self = Self { memory: 1, offset: 1 };
}

/// A file that can also be written in place.
///
/// Writes to disjoint ranges may run at once; overlapping writes at once leave either's bytes.
pub trait RandomRwFile: RandomAccessFile {
    /// Writes all of `data` at `offset`, growing the file if needed. The durability of the bytes
    /// is that of [`WritableFile::flush`].
    ///
    /// A file that is written past the page cache takes whole blocks only, see
    /// [`alignment`](Self::alignment). Anything else is refused with
    /// [`ErrorKind::Misaligned`](crate::ErrorKind::Misaligned) before anything is written. Nothing
    /// at all may be written anywhere.
    fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Which writes are taken. Reads may begin and end anywhere. A wrapper gives what the file
    /// inside gives.
    fn alignment(&self) -> Alignment;

    /// Makes all writes that returned before this call survive a power loss. Errors are sticky:
    /// once a sync has failed, no later sync of this handle succeeds.
    fn sync(&self) -> Result<()>;

    /// Cuts or extends the file; an extension reads as zeros.
    fn set_size(&self, size: u64) -> Result<()>;
}

/// A new file being appended to from start to end, by one thread at a time.
///
/// Errors are sticky: after a failed write or sync every later call fails with the first error,
/// and everything since the last good sync counts as lost.
pub trait WritableFile: Send + Debug {
    /// Adds `data` at the end. May buffer or pipeline: the error of an earlier append may be
    /// reported by a later call, at the latest by `sync`.
    fn append(&mut self, data: &[u8]) -> Result<()>;

    /// Hands all appended bytes to the operating system: they survive the death of this process,
    /// not a power loss.
    fn flush(&mut self) -> Result<()>;

    /// Makes all appended bytes survive a power loss (the name needs [`Env::sync_dir`] too).
    fn sync(&mut self) -> Result<()>;

    /// Bytes appended so far; space prepared ahead is not counted.
    fn len(&self) -> u64;

    /// Whether nothing was appended yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A handle to sync or prepare the file from another thread while this one appends.
    fn handle(&self) -> Arc<dyn LogHandle>;

    /// Flushes, cuts off what was prepared beyond the end, makes everything durable with a full
    /// sync and closes the file. Returns the file's size.
    fn finish(self: Box<Self>) -> Result<u64>;
}

/// The second handle to a file being appended to; see [`WritableFile::handle`]. Errors are shared
/// with the file: whichever side fails first stops both.
pub trait LogHandle: Send + Sync + Debug {
    /// Makes durable what was flushed before this call. An append that runs at the same time is
    /// covered by a later sync only.
    fn sync(&self) -> Result<()>;

    /// Allocates space and writes zeros up to offset `end`, then makes that durable with a full
    /// sync, so that later appends below `end` change no metadata. Never touches bytes below the
    /// append position. A failure to allocate or write (`NoSpace`) leaves the file usable up to
    /// its old prepared end; a failed sync is sticky.
    fn prepare(&self, end: u64) -> Result<()>;
}
