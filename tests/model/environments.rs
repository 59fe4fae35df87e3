//! The environments that the model runs on, and how to make their caches cold.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use treering::env::{BatchReads, Env, IoUringEnv, MemEnv, PosixEnv, Unavailable};

/// An environment and an empty directory in it.
pub(crate) struct Place {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    /// The real directory behind it, if there is one.
    real: Option<TempDir>,
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self { env: Arc::new(MemEnv::new()), dir: PathBuf::from("db"), real: None }
    }

    pub(crate) fn posix(prefetch: bool) -> Self {
        let reads = if prefetch { BatchReads::Prefetch } else { BatchReads::Serial };
        let env = PosixEnv::builder().batch_reads(reads).build().unwrap();
        Self::real(Arc::new(env))
    }

    pub(crate) fn io_uring() -> Result<Self, Unavailable> {
        Ok(Self::real(Arc::new(IoUringEnv::new()?)))
    }

    /// A directory beside the build's output: on a real file system, where `/tmp` may be none.
    fn real(env: Arc<dyn Env>) -> Self {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let real = TempDir::new_in(base).unwrap();
        Self { env, dir: real.path().join("db"), real: Some(real) }
    }

    /// Drops the database's clean pages from the page cache, where there is one.
    pub(crate) fn make_cold(&self) {
        if self.real.is_none() {
            return;
        }
        for entry in std::fs::read_dir(&self.dir).unwrap() {
            let path = entry.unwrap().path();
            // A file may be removed by background work between the listing and the open.
            let Ok(file) = File::open(&path) else { continue };
            file.sync_data().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}
