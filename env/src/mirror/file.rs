//! The files of `MirrorEnv`: pairs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Difference, Judge};
use crate::{Alignment, Buffer, LogHandle, RandomAccessFile, RandomRwFile, Result, WritableFile};

/// A pair of files open at any offset; `F` is the trait object of either kind.
#[derive(Debug)]
pub(super) struct Pair<F: ?Sized> {
    pub(super) files: [Arc<F>; 2],
    path: PathBuf,
    judge: Arc<Judge>,
}

pub(super) type MirrorFile = Pair<dyn RandomAccessFile>;
pub(super) type MirrorRwFile = Pair<dyn RandomRwFile>;

impl<F: ?Sized + RandomAccessFile> Pair<F> {
    pub(super) fn new(files: [Arc<F>; 2], path: &Path, judge: &Arc<Judge>) -> Self {
        Self { files, path: path.to_path_buf(), judge: Arc::clone(judge) }
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let results = [0, 1].map(|i| {
            let mut buffer = Buffer::zeroed(buf.len());
            self.files[i].read_exact_at(buffer.as_mut_slice(), offset).map(|()| buffer)
        });
        let call = || format!("read {} at {offset}, {} bytes", self.path.display(), buf.len());
        let bytes = self.judge.agree(call, results, |a, b| **a == **b)?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn common_size(&self) -> u64 {
        let [first, second] = [0, 1].map(|i| self.files[i].size());
        if first != second {
            self.judge.differ(Difference {
                call: format!("size of {}", self.path.display()),
                first: first.to_string(),
                second: second.to_string(),
            });
        }
        first
    }

    fn hint(&self, offset: u64, len: u64) {
        for file in &self.files {
            file.will_need(offset, len);
        }
    }
}

impl RandomAccessFile for MirrorFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read(buf, offset)
    }

    fn size(&self) -> u64 {
        self.common_size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hint(offset, len);
    }
}

impl RandomAccessFile for MirrorRwFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read(buf, offset)
    }

    fn size(&self) -> u64 {
        self.common_size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hint(offset, len);
    }
}

impl MirrorRwFile {
    fn act(&self, call: &str, run: impl Fn(&dyn RandomRwFile) -> Result<()>) -> Result<()> {
        let results = [0, 1].map(|i| run(&*self.files[i]));
        self.judge.agree(|| format!("{call} {}", self.path.display()), results, |(), ()| true)
    }
}

impl RandomRwFile for MirrorRwFile {
    fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.act("write", |file| file.write_all_at(data, offset))
    }

    fn alignment(&self) -> Alignment {
        // All are powers of two: what is a multiple of the larger is one of the other.
        let [one, two] = [0, 1].map(|i| self.files[i].alignment());
        Alignment { memory: one.memory.max(two.memory), offset: one.offset.max(two.offset) }
    }

    fn sync(&self) -> Result<()> {
        self.act("sync", RandomRwFile::sync)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.act("set_size", |file| file.set_size(size))
    }
}

/// A pair of writers.
#[derive(Debug)]
pub(super) struct MirrorWriter {
    files: [Box<dyn WritableFile>; 2],
    path: PathBuf,
    judge: Arc<Judge>,
}

impl MirrorWriter {
    pub(super) fn new(files: [Box<dyn WritableFile>; 2], path: &Path, judge: &Arc<Judge>) -> Self {
        Self { files, path: path.to_path_buf(), judge: Arc::clone(judge) }
    }

    fn act(&mut self, call: &str, run: impl Fn(&mut dyn WritableFile) -> Result<()>) -> Result<()> {
        let [first, second] = &mut self.files;
        let results = [run(&mut **first), run(&mut **second)];
        self.judge.agree(|| format!("{call} {}", self.path.display()), results, |(), ()| true)
    }
}

impl WritableFile for MirrorWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.act("append", |file| file.append(data))
    }

    fn flush(&mut self) -> Result<()> {
        self.act("flush", |file| file.flush())
    }

    fn sync(&mut self) -> Result<()> {
        self.act("sync", |file| file.sync())
    }

    fn len(&self) -> u64 {
        self.files[0].len()
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        let handles = [0, 1].map(|i| self.files[i].handle());
        let (path, judge) = (self.path.clone(), Arc::clone(&self.judge));
        Arc::new(MirrorHandle { handles, path, judge })
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        let Self { files, path, judge } = *self;
        let results = files.map(WritableFile::finish);
        judge.agree(|| format!("finish {}", path.display()), results, |a, b| a == b)
    }
}

#[derive(Debug)]
struct MirrorHandle {
    handles: [Arc<dyn LogHandle>; 2],
    path: PathBuf,
    judge: Arc<Judge>,
}

impl LogHandle for MirrorHandle {
    fn sync(&self) -> Result<()> {
        let results = [0, 1].map(|i| self.handles[i].sync());
        self.judge.agree(|| format!("sync {}", self.path.display()), results, |(), ()| true)
    }

    fn prepare(&self, end: u64) -> Result<()> {
        let results = [0, 1].map(|i| self.handles[i].prepare(end));
        let call = || format!("prepare {} to {end}", self.path.display());
        self.judge.agree(call, results, |(), ()| true)
    }
}
