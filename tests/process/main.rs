//! What only a process of its own can show: that it is killed, that it ends in odd ways, what it
//! holds, and what another user may do.
//!
//! A test runs its own binary again, naming itself; the child finds its role in the surroundings
//! and plays it. What the child has to say goes to standard error, in lines that begin with `@`.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod child;
mod ending;
mod footprint;
mod killed;
mod locking;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use treering::env::{Env, IoUringEnv, PosixEnv};
use treering::{CfOptions, Db, Options};

/// Options so small that a few hundred writes keep background threads busy.
fn small(background_threads: usize) -> Options {
    let cf = CfOptions { memtable_size: 16 << 10, table_size: 16 << 10, ..CfOptions::default() };
    Options {
        log_segment_size: 64 << 10,
        log_prepare_step: 16 << 10,
        background_threads,
        cf,
        ..Options::default()
    }
}

/// A directory on the disk that the build is on.
fn scratch() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn database(scratch: &TempDir) -> PathBuf {
    scratch.path().join("db")
}

fn environment(name: &str) -> Option<Arc<dyn Env>> {
    match name {
        "posix" => Some(Arc::new(PosixEnv::new())),
        _ => IoUringEnv::new().ok().map(|env| Arc::new(env) as Arc<dyn Env>),
    }
}

fn open(dir: &Path) -> Db {
    Db::open(Arc::new(PosixEnv::new()), dir, small(0)).unwrap()
}

/// The keys of a database that holds nothing but numbers.
fn numbers(db: &Db) -> Vec<u64> {
    let number = |key: &[u8]| std::str::from_utf8(key).unwrap().parse().unwrap();
    db.iter().map(|entry| number(&entry.unwrap().0)).collect()
}

fn key(number: u64) -> String {
    format!("{number:08}")
}
