//! What our wrappers have in common: an environment that shows every call to a hook before and
//! after it reaches the environment inside.
//!
//! The wrapper keeps the contract by itself: an error that a hook injects into a writer is sticky,
//! and `queue` forwards to the inner queue with the files taken out of their wrapping, so that
//! batches stay as parallel as they were.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{
    Access, DirEntry, Env, EnvReport, Error, FileKind, FileLock, IoQueue, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

mod file;
mod queue;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod writer;

pub(crate) use file::{WrappedFile, WrappedRwFile};
use queue::WrappedQueue;
use writer::WrappedWriter;

/// The operations that a wrapper sees. Queued reads and writes are `Read` and `Write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum Op {
    Open,
    OpenRw,
    Create,
    Metadata,
    List,
    Rename,
    Remove,
    Link,
    CreateDir,
    RemoveDir,
    SyncDir,
    FreeSpace,
    Lock,
    Read,
    WillNeed,
    Write,
    SetSize,
    Append,
    Flush,
    /// Any of the three `sync` methods of files and handles.
    Sync,
    Prepare,
    Finish,
}

impl Op {
    /// How many there are.
    pub(crate) const COUNT: usize = Op::Finish as usize + 1;

    /// The name that errors of this operation carry.
    pub fn name(self) -> &'static str {
        match self {
            Op::Open | Op::OpenRw => "open",
            Op::Create => "create",
            Op::Metadata => "metadata",
            Op::List => "list",
            Op::Rename => "rename",
            Op::Remove => "remove",
            Op::Link => "link",
            Op::CreateDir => "create_dir_all",
            Op::RemoveDir => "remove_dir",
            Op::SyncDir => "sync_dir",
            Op::FreeSpace => "free_space",
            Op::Lock => "lock",
            Op::Read => "read",
            Op::WillNeed => "will_need",
            Op::Write | Op::Append => "write",
            Op::SetSize => "set_size",
            Op::Flush => "flush",
            Op::Sync => "sync",
            Op::Prepare => "prepare",
            Op::Finish => "finish",
        }
    }
}

/// One call, as a hook sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Which operation.
    pub op: Op,
    /// The path it works on; the old name for `Rename`, the existing one for `Link`.
    pub path: &'a Path,
    /// The new name, for `Rename` and `Link`.
    pub to: Option<&'a Path>,
    /// The file offset; zero where there is none.
    pub offset: u64,
    /// How many bytes it moves; zero where it moves none.
    pub len: u64,
    /// Whether it came through a queue.
    pub queued: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(op: Op, path: &'a Path) -> Self {
        Self { op, path, to: None, offset: 0, len: 0, queued: false }
    }

    pub(crate) fn range(self, offset: u64, len: usize) -> Self {
        Self { offset, len: len as u64, ..self }
    }
}

/// What a hook wants of a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    Go,
    /// Do nothing and report success.
    Skip,
    /// Do nothing and fail.
    Fail(Error),
    /// Do it, and fail if it succeeded.
    FailAfter(Error),
    /// Write so many bytes of it and fail. `Fail` for operations that write nothing.
    Short(u64, Error),
    /// Do it, and flip one bit of what was read.
    Flip(u64),
}

/// Sees every call of a wrapper. Called by any number of threads at once.
pub(crate) trait Hook: Debug + Send + Sync + 'static {
    /// The wrapper's name in reports.
    const NAME: &'static str;

    /// Before the call; for a queued one, when it is pushed.
    fn before(&self, call: &Call<'_>) -> Verdict {
        let _ = call;
        Verdict::Go
    }

    /// After the call, whatever became of it; for a queued one, when it is popped.
    fn after(&self, call: &Call<'_>, succeeded: bool);

    /// Adds to the report of the environment inside.
    fn report(&self, report: &mut EnvReport);
}

/// Runs a call under a hook. `skip` gives the result of a call that was left out.
pub(crate) fn run<H: Hook, T>(
    hook: &H,
    call: &Call<'_>,
    skip: impl FnOnce() -> Result<T>,
    go: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let result = match hook.before(call) {
        Verdict::Go | Verdict::Flip(_) => go(),
        Verdict::Skip => skip(),
        Verdict::Fail(error) | Verdict::Short(_, error) => Err(error),
        Verdict::FailAfter(error) => go().and(Err(error)),
    };
    hook.after(call, result.is_ok());
    result
}

/// An environment whose every call passes a hook.
#[derive(Debug)]
pub(crate) struct Wrapped<H> {
    inner: Arc<dyn Env>,
    hook: Arc<H>,
}

impl<H: Hook> Wrapped<H> {
    pub(crate) fn new(inner: Arc<dyn Env>, hook: H) -> Self {
        Self { inner, hook: Arc::new(hook) }
    }

    pub(crate) fn hook(&self) -> &H {
        &self.hook
    }

    /// Runs a call that gives something, and so cannot be left out.
    fn give<T>(&self, op: Op, path: &Path, go: impl FnOnce() -> Result<T>) -> Result<T> {
        let skip = || panic!("{op:?} gives something, so it cannot be dropped");
        run(&*self.hook, &Call::new(op, path), skip, go)
    }

    fn act(&self, call: Call<'_>, go: impl FnOnce() -> Result<()>) -> Result<()> {
        run(&*self.hook, &call, || Ok(()), go)
    }
}

impl<H> Clone for Wrapped<H> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), hook: Arc::clone(&self.hook) }
    }
}

impl<H: Hook> Env for Wrapped<H> {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let inner = self.give(Op::Open, path, || self.inner.open(path, access))?;
        Ok(Arc::new(WrappedFile { inner, hook: Arc::clone(&self.hook) }))
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        let inner = self.give(Op::OpenRw, path, || self.inner.open_rw(path))?;
        Ok(Arc::new(WrappedRwFile::new(inner, Arc::clone(&self.hook))))
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let inner = self.give(Op::Create, path, || self.inner.create(path, kind))?;
        Ok(Box::new(WrappedWriter::new(inner, Arc::clone(&self.hook), path)))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.give(Op::Metadata, path, || self.inner.metadata(path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.give(Op::List, dir, || self.inner.list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let call = Call { to: Some(to), ..Call::new(Op::Rename, from) };
        self.act(call, || self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.act(Call::new(Op::Remove, path), || self.inner.remove(path))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let call = Call { to: Some(to), ..Call::new(Op::Link, from) };
        self.act(call, || self.inner.link(from, to))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.act(Call::new(Op::CreateDir, dir), || self.inner.create_dir_all(dir))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.act(Call::new(Op::RemoveDir, dir), || self.inner.remove_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.act(Call::new(Op::SyncDir, dir), || self.inner.sync_dir(dir))
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.give(Op::FreeSpace, dir, || self.inner.free_space(dir))
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.give(Op::Lock, path, || self.inner.lock(path))
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        Box::new(WrappedQueue::<H>::new(self.inner.queue()))
    }

    fn report(&self) -> EnvReport {
        let mut report = self.inner.report();
        report.fact("wrapper", H::NAME, None);
        self.hook.report(&mut report);
        report
    }
}

/// A call that outlives the borrow of its path.
pub(crate) struct OwnedCall {
    op: Op,
    path: PathBuf,
    offset: u64,
    len: u64,
}

impl OwnedCall {
    fn new(call: &Call<'_>) -> Self {
        Self { op: call.op, path: call.path.to_path_buf(), offset: call.offset, len: call.len }
    }

    /// The call again; only queues keep calls.
    fn call(&self) -> Call<'_> {
        let Self { op, offset, len, .. } = *self;
        Call { op, path: &self.path, to: None, offset, len, queued: true }
    }
}

/// Implements `Env` for a type by forwarding every method, `queue` included, to a field.
macro_rules! forward_env {
    ($type:ty, $field:ident) => {
        impl $crate::Env for $type {
            fn open(
                &self,
                path: &std::path::Path,
                access: $crate::Access,
            ) -> $crate::Result<std::sync::Arc<dyn $crate::RandomAccessFile>> {
                self.$field.open(path, access)
            }
            fn open_rw(
                &self,
                path: &std::path::Path,
            ) -> $crate::Result<std::sync::Arc<dyn $crate::RandomRwFile>> {
                self.$field.open_rw(path)
            }
            fn create(
                &self,
                path: &std::path::Path,
                kind: $crate::FileKind,
            ) -> $crate::Result<Box<dyn $crate::WritableFile>> {
                self.$field.create(path, kind)
            }
            fn metadata(&self, path: &std::path::Path) -> $crate::Result<Option<$crate::Metadata>> {
                self.$field.metadata(path)
            }
            fn list(&self, dir: &std::path::Path) -> $crate::Result<Vec<$crate::DirEntry>> {
                self.$field.list(dir)
            }
            fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> $crate::Result<()> {
                self.$field.rename(from, to)
            }
            fn remove(&self, path: &std::path::Path) -> $crate::Result<()> {
                self.$field.remove(path)
            }
            fn link(&self, from: &std::path::Path, to: &std::path::Path) -> $crate::Result<()> {
                self.$field.link(from, to)
            }
            fn create_dir_all(&self, dir: &std::path::Path) -> $crate::Result<()> {
                self.$field.create_dir_all(dir)
            }
            fn remove_dir(&self, dir: &std::path::Path) -> $crate::Result<()> {
                self.$field.remove_dir(dir)
            }
            fn sync_dir(&self, dir: &std::path::Path) -> $crate::Result<()> {
                self.$field.sync_dir(dir)
            }
            fn free_space(&self, dir: &std::path::Path) -> $crate::Result<u64> {
                self.$field.free_space(dir)
            }
            fn lock(&self, path: &std::path::Path) -> $crate::Result<$crate::FileLock> {
                self.$field.lock(path)
            }
            fn queue(&self) -> Box<dyn $crate::IoQueue> {
                self.$field.queue()
            }
            fn report(&self) -> $crate::EnvReport {
                self.$field.report()
            }
        }
    };
}
pub(crate) use forward_env;
