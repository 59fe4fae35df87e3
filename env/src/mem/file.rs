//! Open files of `MemEnv`: readers, files written in place, appending writers and their handles.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::content::index;
use super::inode::Inode;
use super::volume::{Extent, Shared};
use crate::{Alignment, Error, LogHandle, RandomAccessFile, RandomRwFile, Result, WritableFile};

/// Appended bytes that a writer may keep to itself. Small enough that tables reach the volume
/// while they are written, large enough that an engine that forgets to flush is found out.
const BUFFER: usize = 64 << 10;

/// An open file. It keeps the bytes alive when the last name is gone.
pub(super) struct Open {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
    path: PathBuf,
}

impl Open {
    pub(super) fn new(shared: &Arc<Shared>, inode: Arc<Inode>, path: &Path) -> Self {
        inode.data.write().opens += 1;
        Self { shared: Arc::clone(shared), inode, path: path.to_path_buf() }
    }

    fn size(&self) -> u64 {
        self.inode.data.read().current.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.shared.powered("read", &self.path)?;
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        if buf.is_empty() {
            return Ok(());
        }
        let file = self.inode.data.read();
        let size = file.current.len();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > size) {
            return Err(Error::unexpected_eof(&self.path, offset, buf.len(), size));
        }
        file.current.read(buf, offset);
        self.shared.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        self.shared.change("write", &self.path, |volume, extent| {
            volume.write(&self.inode, offset, data, extent)
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.shared.change("set_size", &self.path, |volume, _| volume.set_len(&self.inode, len))
    }

    fn sync(&self) -> Result<()> {
        self.shared.change("sync", &self.path, |_, extent| {
            let mut file = self.inode.data.write();
            match extent {
                Extent::Whole => file.sync(),
                Extent::Part => file.sync_half(),
            }
            Ok(())
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut volume = self.shared.volume.write();
        self.inode.data.write().opens -= 1;
        volume.release_if_unused(&self.inode);
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// A file open for reading.
#[derive(Debug)]
pub(super) struct MemFile {
    open: Open,
    size: u64,
}

impl MemFile {
    pub(super) fn new(open: Open) -> Self {
        let size = open.size();
        Self { open, size }
    }
}

impl RandomAccessFile for MemFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.open.read_exact_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.open.path
    }
}

/// A file open for reading and writing in place.
#[derive(Debug)]
pub(super) struct MemRwFile {
    open: Open,
}

impl MemRwFile {
    pub(super) fn new(open: Open) -> Self {
        Self { open }
    }
}

impl RandomAccessFile for MemRwFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.open.read_exact_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.open.size()
    }

    fn path(&self) -> &Path {
        &self.open.path
    }
}

impl RandomRwFile for MemRwFile {
    fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.open.write(data, offset)
    }

    fn alignment(&self) -> Alignment {
        Alignment::ANY
    }

    fn sync(&self) -> Result<()> {
        self.open.sync()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.open.set_len(size)
    }
}

/// What a writer and its handles share.
struct Tail {
    open: Open,
    state: Mutex<TailState>,
}

struct TailState {
    /// Appended bytes that reached the file.
    written: u64,
    /// Appended bytes that did not, yet.
    buffered: u64,
    /// The file is zeros from `written` to here.
    prepared: u64,
    /// The first failure; every later call fails with it.
    error: Option<Error>,
}

impl TailState {
    fn check(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first failure.
    fn keep<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.error.get_or_insert_with(|| error.clone());
        }
        result
    }
}

impl Tail {
    fn sync(&self) -> Result<()> {
        self.state.lock().check()?;
        // Not under the lock, so that appends go on meanwhile where a sync takes time.
        let result = self.open.sync();
        self.state.lock().keep(result)
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.open.fmt(f)
    }
}

/// A new file being appended to.
#[derive(Debug)]
pub(super) struct MemWriter {
    tail: Arc<Tail>,
    buffer: Vec<u8>,
}

impl MemWriter {
    pub(super) fn new(open: Open) -> Self {
        let state = TailState { written: 0, buffered: 0, prepared: 0, error: None };
        Self { tail: Arc::new(Tail { open, state: Mutex::new(state) }), buffer: Vec::new() }
    }
}

impl WritableFile for MemWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        {
            let mut state = self.tail.state.lock();
            state.check()?;
            self.tail.open.shared.powered("write", &self.tail.open.path)?;
            self.buffer.extend_from_slice(data);
            state.buffered = self.buffer.len() as u64;
        }
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let mut state = self.tail.state.lock();
        state.check()?;
        if !self.buffer.is_empty() {
            let result = self.tail.open.write(&self.buffer, state.written);
            state.keep(result)?;
            state.written += self.buffer.len() as u64;
            state.buffered = 0;
            self.buffer.clear();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.tail.sync()
    }

    fn len(&self) -> u64 {
        let state = self.tail.state.lock();
        state.written + state.buffered
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        Arc::new(MemLogHandle { tail: Arc::clone(&self.tail) })
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        self.flush()?;
        let written = {
            let mut state = self.tail.state.lock();
            if state.prepared > state.written {
                let result = self.tail.open.set_len(state.written);
                state.keep(result)?;
            }
            state.written
        };
        self.tail.sync()?;
        Ok(written)
    }
}

/// Syncs and prepares a file from another thread than the one that appends.
#[derive(Debug)]
struct MemLogHandle {
    tail: Arc<Tail>,
}

impl LogHandle for MemLogHandle {
    fn sync(&self) -> Result<()> {
        self.tail.sync()
    }

    fn prepare(&self, end: u64) -> Result<()> {
        {
            let mut state = self.tail.state.lock();
            state.check()?;
            // Appended bytes still in the writer will overwrite zeros, so they need no care.
            let from = state.prepared.max(state.written);
            if end > from {
                let open = &self.tail.open;
                open.shared.change("prepare", &open.path, |volume, extent| {
                    volume.zero(&open.inode, from, end - from, extent)
                })?;
                state.prepared = end;
            }
        }
        self.tail.sync()
    }
}

/// Keeps a file locked until it is dropped.
pub(super) struct Lock {
    open: Open,
}

impl Lock {
    /// The caller has entered the file into the volume's set of locked files.
    pub(super) fn new(open: Open) -> Self {
        Self { open }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.open.shared.volume.write().locked.remove(&self.open.inode.id);
    }
}

/// All bytes of a file, for fingerprints.
pub(super) fn all_bytes(inode: &Inode) -> Vec<u8> {
    let file = inode.data.read();
    let mut bytes = vec![0; index(file.current.len())];
    file.current.read(&mut bytes, 0);
    bytes
}
