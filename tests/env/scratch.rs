//! Directories on the real file system for one test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// A directory that goes away with the test, and numbered directories in it.
pub(crate) struct Scratch {
    root: TempDir,
    next: AtomicU32,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        // Beside the build, because a temporary directory is often in memory.
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("the build directory can be written");
        Self { root, next: AtomicU32::new(0) }
    }

    /// A new empty directory.
    pub(crate) fn dir(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = self.root.path().join(number.to_string());
        std::fs::create_dir(&dir).expect("the scratch directory can be written");
        dir
    }
}
