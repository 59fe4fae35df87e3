//! Wrapped files that are open at any offset.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Call, Hook, Op, Verdict, run};
use crate::{Alignment, Error, RandomAccessFile, RandomRwFile, Result};

/// A file open for reading, and the hook that sees its reads.
#[derive(Debug)]
pub(crate) struct WrappedFile<H> {
    pub(super) inner: Arc<dyn RandomAccessFile>,
    pub(super) hook: Arc<H>,
}

impl<H: Hook> RandomAccessFile for WrappedFile<H> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        read(&*self.inner, &*self.hook, buf, offset)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn will_need(&self, offset: u64, len: u64) {
        will_need(&*self.inner, &*self.hook, offset, len);
    }
}

/// A file that can be written in place, and the hook that sees its calls.
#[derive(Debug)]
pub(crate) struct WrappedRwFile<H> {
    pub(super) inner: Arc<dyn RandomRwFile>,
    pub(super) hook: Arc<H>,
    /// The first sync that failed; no later one succeeds.
    failed_sync: Mutex<Option<Error>>,
}

impl<H> WrappedRwFile<H> {
    pub(super) fn new(inner: Arc<dyn RandomRwFile>, hook: Arc<H>) -> Self {
        Self { inner, hook, failed_sync: Mutex::new(None) }
    }
}

impl<H: Hook> RandomAccessFile for WrappedRwFile<H> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        read(&*self.inner, &*self.hook, buf, offset)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn will_need(&self, offset: u64, len: u64) {
        will_need(&*self.inner, &*self.hook, offset, len);
    }
}

impl<H: Hook> RandomRwFile for WrappedRwFile<H> {
    fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let call = Call::new(Op::Write, self.inner.path()).range(offset, data.len());
        let result = match self.hook.before(&call) {
            Verdict::Go | Verdict::Flip(_) => self.inner.write_all_at(data, offset),
            Verdict::Skip => Ok(()),
            Verdict::Fail(error) => Err(error),
            Verdict::FailAfter(error) => self.inner.write_all_at(data, offset).and(Err(error)),
            Verdict::Short(bytes, error) => {
                let part = first(data, bytes, self.inner.alignment().offset);
                self.inner.write_all_at(part, offset).and(Err(error))
            }
        };
        self.hook.after(&call, result.is_ok());
        result
    }

    fn alignment(&self) -> Alignment {
        self.inner.alignment()
    }

    fn sync(&self) -> Result<()> {
        if let Some(error) = &*self.failed_sync.lock() {
            return Err(error.clone());
        }
        let call = Call::new(Op::Sync, self.inner.path());
        let result = run(&*self.hook, &call, || Ok(()), || self.inner.sync());
        if let Err(error) = &result {
            self.failed_sync.lock().get_or_insert_with(|| error.clone());
        }
        result
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let call = Call { offset: size, ..Call::new(Op::SetSize, self.inner.path()) };
        run(&*self.hook, &call, || Ok(()), || self.inner.set_size(size))
    }
}

fn read<F: RandomAccessFile + ?Sized, H: Hook>(
    inner: &F,
    hook: &H,
    buf: &mut [u8],
    offset: u64,
) -> Result<()> {
    let call = Call::new(Op::Read, inner.path()).range(offset, buf.len());
    let result = match hook.before(&call) {
        Verdict::Go => inner.read_exact_at(buf, offset),
        Verdict::Skip => panic!("a read gives something, so it cannot be dropped"),
        Verdict::Fail(error) | Verdict::Short(_, error) => Err(error),
        Verdict::FailAfter(error) => inner.read_exact_at(buf, offset).and(Err(error)),
        Verdict::Flip(bit) => inner.read_exact_at(buf, offset).map(|()| flip(buf, bit)),
    };
    hook.after(&call, result.is_ok());
    result
}

fn will_need<F: RandomAccessFile + ?Sized, H: Hook>(inner: &F, hook: &H, offset: u64, len: u64) {
    let call = Call { offset, len, ..Call::new(Op::WillNeed, inner.path()) };
    let given = run(
        hook,
        &call,
        || Ok(()),
        || {
            inner.will_need(offset, len);
            Ok(())
        },
    );
    // A hint cannot fail: an injected error means that it was not given.
    drop(given);
}

/// Flips bit number `bit`, counted modulo the length.
pub(super) fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() as u64 * 8);
        let byte = usize::try_from(bit / 8).expect("below the length");
        bytes[byte] ^= 1 << (bit % 8);
    }
}

/// The first `bytes` bytes of `data`, or all; only whole blocks, if the file takes nothing else.
pub(super) fn first(data: &[u8], bytes: u64, block: usize) -> &[u8] {
    let bytes = usize::try_from(bytes).map_or(data.len(), |bytes| bytes.min(data.len()));
    &data[..bytes / block * block]
}
