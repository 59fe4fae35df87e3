//! Files appended to by positional writes, on the calling thread unless their outlet says
//! otherwise.
//!
//! Invariants:
//! * Every write has an offset (no `O_APPEND`), so repeating one is harmless.
//! * A log or manifest has no buffer: an append that returned is in the operating system.
//! * No zero of `prepare` lands below the append position: zeros go in under the lock of the tail,
//!   and an append that reaches beyond the prepared end takes the same lock.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::outlet::{CallerOutlet, Outlet, Stopped};
use super::paths::path_error;
use crate::os_file::{DirectAlign, Durability, Os, WriteFailure, pwrite_all, pwrite_blocks};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::sys::{OpenMode, SysResult, uninterrupted};
use crate::{Buffer, Error, ErrorKind, FileKind, LogHandle, Outcome, Result, WritableFile};

/// What a table collects before it is written by the thread that appends: the bytes are still in
/// the processor's cache then.
pub(crate) const TABLE_BUFFER: usize = 256 << 10;
/// Zeros written at a time: an append that needs the lock waits for no more.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The part that a file and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    os: Arc<Os>,
    fd: OwnedFd,
    path: PathBuf,
    durability: Durability,
    /// Zeros stand up to here, or data. It only grows.
    prepared: AtomicU64,
    tail: Mutex<Tail>,
    /// Held while space is prepared, so that `finish` cuts what that leaves. Taken before `tail`.
    preparing: Mutex<()>,
    /// Opened past the page cache: zeros are not written ahead, extents alone serve it.
    direct: Option<DirectAlign>,
}

#[derive(Debug, Default)]
struct Tail {
    /// Where the append position may be, if beyond `prepared`.
    append_end: u64,
    /// The file may be as long as this.
    file_end: u64,
    finished: bool,
}

impl Shared {
    /// Creates the file.
    fn create(os: &Arc<Os>, path: &Path) -> Result<Arc<Self>> {
        let fd = uninterrupted(&os.counters, || os.sys.open(path, OpenMode::Create))
            .map_err(|errno| path_error(errno, "create", path))?;
        Ok(Self::new(os, path, fd, None))
    }

    /// Wraps a file just created.
    pub(crate) fn new(
        os: &Arc<Os>,
        path: &Path,
        fd: OwnedFd,
        direct: Option<DirectAlign>,
    ) -> Arc<Self> {
        let durability = Durability::default();
        durability.note_size_changed();
        Arc::new(Self {
            os: Arc::clone(os),
            fd,
            path: path.to_path_buf(),
            durability,
            prepared: AtomicU64::new(0),
            tail: Mutex::default(),
            preparing: Mutex::default(),
            direct,
        })
    }

    /// What the files of the environment share.
    pub(crate) fn os(&self) -> &Arc<Os> {
        &self.os
    }

    /// The descriptor, open as long as this.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The path it was created under.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The alignment its writes need, if they go past the page cache.
    pub(crate) fn direct(&self) -> Option<DirectAlign> {
        self.direct
    }

    /// The first error, if there was one.
    pub(crate) fn check(&self) -> Result<()> {
        self.durability.check()
    }

    /// Remembers a failure, which is the file's last word, and returns the first one.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.durability.fail(error)
    }

    /// Whether a flush to the medium may begin apart from the caller; see
    /// [`Durability::begin_early`].
    pub(crate) fn begin_early_sync(&self, given_up: &Arc<AtomicBool>) -> bool {
        self.durability.begin_early(given_up)
    }

    /// Ends it; see [`Durability::end_early`].
    pub(crate) fn end_early_sync(&self, failure: Option<Error>) {
        self.durability.end_early(failure);
    }

    /// Says that bytes up to `end` are about to be written with [`Shared::put_reserved`] or by
    /// the kernel on its own: from now on no zeros are written ahead of them. True if the file may
    /// grow by it, which then has to be said with [`Shared::note_growth`] when they are there.
    pub(crate) fn reserve(&self, end: u64) -> bool {
        // Acquire: as in `put`.
        if end <= self.prepared.load(Ordering::Acquire) {
            return false;
        }
        let mut tail = self.tail.lock();
        tail.append_end = tail.append_end.max(end);
        tail.file_end = tail.file_end.max(end);
        true
    }

    /// To be called when reserved bytes are in the file, before they are flushed.
    pub(crate) fn note_growth(&self) {
        self.durability.note_size_changed();
    }

    /// Writes bytes that were reserved. A failure is the file's last word.
    pub(crate) fn put_reserved(&self, data: &[u8], offset: u64) -> Result<(), WriteFailure> {
        self.write(data, offset).map_err(|failure| self.last_word(failure))
    }

    fn last_word(&self, failure: WriteFailure) -> WriteFailure {
        let error = self.durability.fail(failure.error);
        WriteFailure { error, written: failure.written }
    }

    /// Writes appended bytes at the end of those before. A failure is the file's last word.
    pub(super) fn put(&self, data: &[u8], offset: u64) -> Result<(), WriteFailure> {
        let end = offset + data.len() as u64;
        // Acquire, paired with the release in `zero_to`: the zeros below are written before this
        // append is. `prepared` only grows, so the answer stays right without the lock.
        let done = if end <= self.prepared.load(Ordering::Acquire) {
            self.write(data, offset)
        } else {
            let mut tail = self.tail.lock();
            tail.append_end = end;
            tail.file_end = tail.file_end.max(end);
            let done = self.write(data, offset);
            // After the write, so that a flush that clears the mark comes after the growth.
            self.durability.note_size_changed();
            done
        };
        done.map_err(|failure| self.last_word(failure))
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<(), WriteFailure> {
        let (os, fd) = (&self.os, self.fd.as_fd());
        match self.direct {
            None => pwrite_all(os, fd, "append", &self.path, data, offset),
            Some(align) => pwrite_blocks(os, fd, align, "append", &self.path, data, offset),
        }
    }

    /// Allocates and zeroes up to `end`; see [`LogHandle::prepare`].
    fn allocate_and_zero(&self, end: u64) -> Result<()> {
        let from = {
            let mut tail = self.tail.lock();
            let from = self.prepared.load(Ordering::Acquire).max(tail.append_end);
            if tail.finished {
                let message = "the file is finished";
                return Err(Error::new(ErrorKind::Unsupported, "prepare", &self.path, message)
                    .with_outcome(Outcome::NotApplied));
            }
            if from >= end {
                return Ok(());
            }
            tail.file_end = tail.file_end.max(end);
            from
        };
        let allocated = self.allocate(from, end);
        // The size may have grown from here on, so that any flush must be a full one.
        self.durability.note_size_changed();
        match allocated {
            // Without allocation the zeros take the space just as well, only in more pieces.
            Ok(()) | Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EINTR) => {}
            Err(errno) => return Err(self.give_up_preparing(errno)),
        }
        if self.direct.is_none() {
            self.zero_to(end)?;
        }
        self.durability.note_size_changed();
        Ok(())
    }

    fn allocate(&self, from: u64, end: u64) -> SysResult<()> {
        let (os, fd) = (&self.os, self.fd.as_fd());
        uninterrupted(&os.counters, || os.sys.fallocate(fd, from, end - from))
    }

    /// Allocates ahead of the append position, for speed alone: where there is no room the write
    /// itself will say so.
    pub(super) fn allocate_ahead(&self, from: u64, end: u64) {
        let mut tail = self.tail.lock();
        tail.file_end = tail.file_end.max(end);
        let _ = self.allocate(from, end);
        self.durability.note_size_changed();
    }

    fn zero_to(&self, end: u64) -> Result<()> {
        loop {
            let tail = self.tail.lock();
            let from = self.prepared.load(Ordering::Acquire).max(tail.append_end);
            if from >= end || tail.finished {
                return Ok(());
            }
            let piece = usize::try_from(end - from).map_or(ZEROS.len(), |n| n.min(ZEROS.len()));
            let zeros = &ZEROS[..piece];
            let done = pwrite_all(&self.os, self.fd.as_fd(), "prepare", &self.path, zeros, from);
            if let Err(failure) = done {
                drop(tail);
                let Some(errno) = failure.error.errno() else { return Err(failure.error) };
                return Err(self.give_up_preparing(errno));
            }
            self.prepared.store(from + piece as u64, Ordering::Release);
        }
    }

    /// Gives back the space that a failed `prepare` may have taken. The file is as before.
    fn give_up_preparing(&self, errno: i32) -> Error {
        let mut tail = self.tail.lock();
        let end = self.prepared.load(Ordering::Acquire).max(tail.append_end);
        let sys = &self.os.sys;
        // If even this fails, the longer file is cut by `finish`.
        if !tail.finished && sys.ftruncate(self.fd.as_fd(), end).is_ok() {
            tail.file_end = end;
        }
        self.durability.note_size_changed();
        Error::from_errno(errno, "prepare", &self.path).with_outcome(Outcome::NotApplied)
    }

    pub(super) fn sync(&self, full: bool) -> Result<()> {
        self.durability.sync(&self.os, &self.fd, &self.path, full)
    }

    /// Cuts off what the file has beyond `len`.
    fn cut(&self, tail: &mut Tail, len: u64) -> Result<()> {
        if tail.file_end <= len {
            return Ok(());
        }
        let sys = &self.os.sys;
        uninterrupted(&self.os.counters, || sys.ftruncate(self.fd.as_fd(), len)).map_err(
            |errno| self.durability.fail(Error::from_errno(errno, "truncate", &self.path)),
        )?;
        tail.file_end = len;
        self.durability.note_size_changed();
        Ok(())
    }

    /// Cuts off what was allocated beyond `len`, while the file goes on.
    pub(crate) fn cut_to(&self, len: u64) -> Result<()> {
        self.cut(&mut self.tail.lock(), len)
    }

    /// Cuts the file to `len` and flushes everything. Nothing can be prepared afterwards.
    pub(super) fn finish(&self, len: u64) -> Result<()> {
        let _no_more = self.preparing.lock();
        let mut tail = self.tail.lock();
        tail.finished = true;
        self.cut(&mut tail, len)?;
        drop(tail);
        self.sync(true)
    }
}

impl LogHandle for Shared {
    fn sync(&self) -> Result<()> {
        Shared::sync(self, false)
    }

    fn prepare(&self, end: u64) -> Result<()> {
        self.durability.check()?;
        let _one_at_a_time = self.preparing.lock();
        if end <= self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        self.allocate_and_zero(end)?;
        Shared::sync(self, true)
    }
}

/// See [`WritableFile`].
#[derive(Debug)]
pub(crate) struct PosixFile {
    shared: Arc<Shared>,
    outlet: Box<dyn Outlet>,
    /// What was appended but not put yet; of no length for kinds that do not buffer.
    buffer: Buffer,
    buffered: usize,
    /// Where the next write goes.
    written: u64,
}

impl PosixFile {
    /// Creates a file that is written through what `outlet` gives, or on the calling thread.
    pub(super) fn create(
        os: &Arc<Os>,
        path: &Path,
        kind: FileKind,
        outlet: impl FnOnce(&Arc<Shared>) -> Option<Box<dyn Outlet>>,
    ) -> Result<Self> {
        let table = kind == FileKind::Table;
        let shared = Shared::create(os, path)?;
        let outlet = outlet(&shared).unwrap_or_else(|| Box::new(CallerOutlet::new(&shared, table)));
        let buffer = if table { os.pool.take(outlet.buffer_len()) } else { Buffer::zeroed(0) };
        Ok(Self { shared, outlet, buffer, buffered: 0, written: 0 })
    }

    fn check(&mut self) -> Result<()> {
        let checked = self.outlet.check();
        self.moved(checked, 0)
    }

    fn write_out(&mut self) -> Result<()> {
        let len = self.buffered;
        let done = self.outlet.put_buffer(&mut self.buffer, len, self.written);
        self.moved(done, len)?;
        self.buffered = 0;
        Ok(())
    }

    /// Moves the write position over what was put, or to where a failure left it.
    fn moved(&mut self, done: Result<(), Stopped>, len: usize) -> Result<()> {
        match done {
            Ok(()) => self.written += len as u64,
            Err(Stopped { error, end }) => {
                if let Some(end) = end {
                    (self.written, self.buffered) = (end, 0);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

impl WritableFile for PosixFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.check()?;
        let mut rest = data;
        while !rest.is_empty() {
            let whole = self.buffered == 0 && rest.len() >= self.buffer.len();
            if whole && (self.buffer.is_empty() || !self.outlet.gathers()) {
                let done = self.outlet.put(rest, self.written);
                return self.moved(done, rest.len());
            }
            let room = self.buffer.len() - self.buffered;
            let (fits, more) = rest.split_at(room.min(rest.len()));
            let to = self.buffered..self.buffered + fits.len();
            self.buffer.as_mut_slice()[to].copy_from_slice(fits);
            self.buffered += fits.len();
            rest = more;
            if self.buffered == self.buffer.len() {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.check()?;
        if self.buffered > 0 {
            self.write_out()?;
        }
        let settled = self.outlet.settle(self.written);
        self.moved(settled, 0)
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.shared.sync(false)
    }

    fn len(&self) -> u64 {
        self.written + self.buffered as u64
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        Arc::clone(&self.shared) as Arc<dyn LogHandle>
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        self.flush()?;
        self.shared.finish(self.written)?;
        Ok(self.written)
    }
}
