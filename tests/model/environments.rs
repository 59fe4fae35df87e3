//! The environments that the model runs on, and how to make their caches cold.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use treering::env::{
    BatchReads, Env, FileKind, IoUringEnv, MemEnv, PosixEnv, Unavailable, WritePath,
};

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

    /// Tables are read through mappings.
    pub(crate) fn mapped() -> Self {
        Self::real(Arc::new(PosixEnv::builder().mmap_reads(true).build().unwrap()))
    }

    /// Tables are read and written past the page cache.
    pub(crate) fn direct() -> Self {
        let builder = PosixEnv::builder().direct_reads(true).direct_writes(true);
        Self::real(Arc::new(builder.build().unwrap()))
    }

    pub(crate) fn io_uring() -> Result<Self, Unavailable> {
        Ok(Self::real(Arc::new(IoUringEnv::new()?)))
    }

    /// Every write goes through the reactor's ring; if asked for, tables past the page cache.
    pub(crate) fn reactor(direct: bool) -> Result<Self, Unavailable> {
        let builder = IoUringEnv::builder().write_path(WritePath::Reactor);
        let env = builder.direct_reads(direct).direct_writes(direct).build()?;
        Ok(Self::real(Arc::new(env)))
    }

    /// Whether files beside the build's output can be read and written past the page cache.
    pub(crate) fn can_be_direct() -> bool {
        let place = Self::direct();
        place.env.create_dir_all(&place.dir).unwrap();
        place.env.create(&place.dir.join("table"), FileKind::Table).is_ok()
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
