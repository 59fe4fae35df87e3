//! Wrapped writers and their handles. An error that a hook injects stops both, as a real one would.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::first;
use super::{Call, Hook, Op, Verdict, run};
use crate::{Error, ErrorKind, LogHandle, Result, WritableFile};

/// What a writer and its handles share.
#[derive(Debug)]
struct Shared<H> {
    hook: Arc<H>,
    path: PathBuf,
    /// The first failure.
    error: Mutex<Option<Error>>,
}

impl<H: Hook> Shared<H> {
    fn check(&self) -> Result<()> {
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    fn keep<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.error.lock().get_or_insert_with(|| error.clone());
        }
        result
    }

    fn call(&self, op: Op) -> Call<'_> {
        Call::new(op, &self.path)
    }

    fn act(&self, op: Op, go: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check()?;
        self.keep(run(&*self.hook, &self.call(op), || Ok(()), go))
    }
}

#[derive(Debug)]
pub(super) struct WrappedWriter<H> {
    inner: Box<dyn WritableFile>,
    shared: Arc<Shared<H>>,
    /// Appended bytes, those of dropped appends included.
    len: u64,
}

impl<H: Hook> WrappedWriter<H> {
    pub(super) fn new(inner: Box<dyn WritableFile>, hook: Arc<H>, path: &Path) -> Self {
        let shared = Shared { hook, path: path.to_path_buf(), error: Mutex::new(None) };
        Self { len: inner.len(), inner, shared: Arc::new(shared) }
    }
}

impl<H: Hook> WritableFile for WrappedWriter<H> {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.shared.check()?;
        let call = self.shared.call(Op::Append).range(self.len, data.len());
        let result = match self.shared.hook.before(&call) {
            Verdict::Go | Verdict::Flip(_) => self.inner.append(data),
            Verdict::Skip => Ok(()),
            Verdict::Fail(error) => Err(error),
            Verdict::FailAfter(error) => self.inner.append(data).and(Err(error)),
            Verdict::Short(bytes, error) => {
                // Flushed, because nobody will flush after the error.
                self.inner
                    .append(first(data, bytes, 1))
                    .and_then(|()| self.inner.flush())
                    .and(Err(error))
            }
        };
        self.shared.hook.after(&call, result.is_ok());
        self.shared.keep(result)?;
        self.len += data.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let inner = &mut self.inner;
        self.shared.act(Op::Flush, || inner.flush())
    }

    fn sync(&mut self) -> Result<()> {
        self.shared.check()?;
        let inner = &mut self.inner;
        let call = self.shared.call(Op::Sync);
        // A dropped sync still hands the bytes to the operating system, as `flush` does.
        let result = match self.shared.hook.before(&call) {
            Verdict::Go | Verdict::Flip(_) => inner.sync(),
            Verdict::Skip => inner.flush(),
            Verdict::Fail(error) | Verdict::Short(_, error) => Err(error),
            Verdict::FailAfter(error) => inner.sync().and(Err(error)),
        };
        self.shared.hook.after(&call, result.is_ok());
        self.shared.keep(result)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        let shared = Arc::clone(&self.shared);
        Arc::new(WrappedHandle { inner: self.inner.handle(), shared })
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        self.shared.check()?;
        let call = self.shared.call(Op::Finish);
        let result = match self.shared.hook.before(&call) {
            Verdict::Go | Verdict::Flip(_) => self.inner.finish(),
            // What an engine that forgets the sync leaves: everything written, nothing durable.
            Verdict::Skip => self.inner.flush().map(|()| self.inner.len()),
            Verdict::Fail(error) | Verdict::Short(_, error) => Err(error),
            Verdict::FailAfter(error) => self.inner.finish().and(Err(error)),
        };
        self.shared.hook.after(&call, result.is_ok());
        self.shared.keep(result)
    }
}

#[derive(Debug)]
struct WrappedHandle<H> {
    inner: Arc<dyn LogHandle>,
    shared: Arc<Shared<H>>,
}

impl<H: Hook> LogHandle for WrappedHandle<H> {
    fn sync(&self) -> Result<()> {
        self.shared.act(Op::Sync, || self.inner.sync())
    }

    fn prepare(&self, end: u64) -> Result<()> {
        self.shared.check()?;
        let call = Call { offset: end, ..self.shared.call(Op::Prepare) };
        let result = run(&*self.shared.hook, &call, || Ok(()), || self.inner.prepare(end));
        match &result {
            // Only disk full leaves the file usable.
            Err(error) if error.kind() != ErrorKind::NoSpace => self.shared.keep(result),
            _ => result,
        }
    }
}
