//! Hold mode: appended bytes stay here until they are synced.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    Access, DirEntry, Env, EnvReport, Error, FileKind, FileLock, IoQueue, LogHandle, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

/// An environment that keeps appended bytes from `inner` until they are synced.
#[derive(Debug)]
pub(super) struct HoldEnv {
    inner: Arc<dyn Env>,
    /// The files that were created here and not finished, by every name they have. One whose
    /// writer was dropped stays, because its flushed bytes must.
    held: Mutex<HashMap<PathBuf, Arc<Held>>>,
}

/// A file being written. Lock order: `inner`, then `tail`.
#[derive(Debug)]
struct Held {
    /// `None` once the file is finished.
    inner: Mutex<Option<Box<dyn WritableFile>>>,
    tail: Mutex<Tail>,
}

#[derive(Debug, Default)]
struct Tail {
    /// How many bytes `inner` has.
    start: u64,
    /// The bytes flushed since.
    bytes: Vec<u8>,
    error: Option<Error>,
    /// Whether everything is in `inner` for good.
    finished: bool,
}

impl Held {
    fn check(&self) -> Result<()> {
        self.tail.lock().error.clone().map_or(Ok(()), Err)
    }

    fn keep<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.tail.lock().error.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Passes the tail on and syncs.
    fn sync(&self) -> Result<()> {
        self.check()?;
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_mut() else { return Ok(()) };
        let result = self.pass_on(inner.as_mut()).and_then(|()| inner.sync());
        self.keep(result)
    }

    /// Appends the tail to the file inside.
    fn pass_on(&self, inner: &mut dyn WritableFile) -> Result<()> {
        // Under the tail's lock, so that a reader finds each byte in one of the two places.
        let mut tail = self.tail.lock();
        inner.append(&tail.bytes)?;
        inner.flush()?;
        tail.start += tail.bytes.len() as u64;
        tail.bytes.clear();
        Ok(())
    }

    fn end(&self) -> u64 {
        let tail = self.tail.lock();
        tail.start + tail.bytes.len() as u64
    }
}

#[derive(Debug)]
struct HeldWriter {
    held: Arc<Held>,
    buffer: Vec<u8>,
    handle: Arc<dyn LogHandle>,
}

impl WritableFile for HeldWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.held.check()?;
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.held.check()?;
        self.held.tail.lock().bytes.append(&mut self.buffer);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.held.sync()
    }

    fn len(&self) -> u64 {
        self.held.end() + self.buffer.len() as u64
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        let (held, inner) = (Arc::clone(&self.held), Arc::clone(&self.handle));
        Arc::new(HeldHandle { held, inner })
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        self.flush()?;
        let mut slot = self.held.inner.lock();
        let mut inner = slot.take().expect("a writer is finished once");
        self.held.keep(self.held.pass_on(inner.as_mut()))?;
        let size = self.held.keep(inner.finish())?;
        self.held.tail.lock().finished = true;
        Ok(size)
    }
}

#[derive(Debug)]
struct HeldHandle {
    held: Arc<Held>,
    inner: Arc<dyn LogHandle>,
}

impl LogHandle for HeldHandle {
    fn sync(&self) -> Result<()> {
        self.held.sync()
    }

    fn prepare(&self, end: u64) -> Result<()> {
        self.held.check()?;
        // The zeros go to the file inside, where the tail will overwrite them.
        self.inner.prepare(end)
    }
}

/// A reader of a file being written.
#[derive(Debug)]
struct HeldFile {
    held: Arc<Held>,
    inner: Arc<dyn RandomAccessFile>,
    size: u64,
}

impl RandomAccessFile for HeldFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let tail = self.held.tail.lock();
        let end = tail.start + tail.bytes.len() as u64;
        let wanted = offset.saturating_add(buf.len() as u64);
        if buf.is_empty() || tail.bytes.is_empty() || wanted <= tail.start || offset >= end {
            return self.inner.read_exact_at(buf, offset);
        }
        let below = tail.start.saturating_sub(offset);
        let beyond = wanted.saturating_sub(end);
        let (first, rest) = buf.split_at_mut(to_usize(below));
        let middle_len = rest.len() - to_usize(beyond);
        let (middle, last) = rest.split_at_mut(middle_len);
        self.inner.read_exact_at(first, offset)?;
        let from = to_usize((offset + below) - tail.start);
        middle.copy_from_slice(&tail.bytes[from..from + middle_len]);
        // Prepared zeros, or the end of the file.
        self.inner.read_exact_at(last, end).map_err(|_| {
            Error::unexpected_eof(self.path(), offset, first.len() + middle_len + last.len(), end)
        })
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no longer than a buffer in memory")
}

impl HoldEnv {
    pub(super) fn new(inner: Arc<dyn Env>) -> Self {
        Self { inner, held: Mutex::default() }
    }

    fn held(&self, path: &Path) -> Option<Arc<Held>> {
        let mut held = self.held.lock();
        held.retain(|_, file| !file.tail.lock().finished);
        held.get(path).cloned()
    }
}

impl Env for HoldEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let inner = self.inner.open(path, access)?;
        Ok(match self.held(path) {
            Some(held) => {
                let size = inner.size().max(held.end());
                Arc::new(HeldFile { held, inner, size })
            }
            None => inner,
        })
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.inner.open_rw(path)
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, kind)?;
        let handle = inner.handle();
        let held = Arc::new(Held { inner: Mutex::new(Some(inner)), tail: Mutex::default() });
        self.held.lock().insert(path.to_path_buf(), Arc::clone(&held));
        Ok(Box::new(HeldWriter { held, buffer: Vec::new(), handle }))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        let metadata = self.inner.metadata(path)?;
        Ok(metadata.map(|found| match self.held(path) {
            Some(held) => Metadata { size: found.size.max(held.end()), ..found },
            None => found,
        }))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut held = self.held.lock();
        self.inner.rename(from, to)?;
        // A directory takes the names in it along.
        let moved: Vec<PathBuf> = held.keys().filter(|p| p.starts_with(from)).cloned().collect();
        held.remove(to);
        for path in moved {
            let rest = path.strip_prefix(from).expect("it was found by this prefix");
            let new = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            let file = held.remove(&path).expect("its key was just listed");
            held.insert(new, file);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut held = self.held.lock();
        self.inner.remove(path)?;
        held.remove(path);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let mut held = self.held.lock();
        self.inner.link(from, to)?;
        if let Some(file) = held.get(from).cloned() {
            held.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.inner.free_space(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.inner.lock(path)
    }

    /// Readers of files being written are of a type that the inner queue does not know, and so
    /// it reads them through their own method.
    fn queue(&self) -> Box<dyn IoQueue> {
        self.inner.queue()
    }

    fn report(&self) -> EnvReport {
        let mut report = self.inner.report();
        report.fact("hold", "appended bytes reach the device when they are synced", None);
        report
    }
}
