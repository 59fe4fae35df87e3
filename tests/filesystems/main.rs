//! The environments and the engine on file systems of their own: ext4, XFS and btrfs in images on
//! loop devices, an overlay, a file system in memory, and an image that lies on a disk which fails
//! or stalls on command.
//!
//! Goal: what `docs/env.md` says of file systems holds on each of them, on the kernel's own code.
//!
//! Method: each test makes its file system, mounts it, works on it and takes it away, however it
//! ends; what a killed run left is taken away by the next. All this needs root, loop devices and
//! the programs that make file systems; without them the tests say `SKIPPED`, or fail if
//! `TREERING_REQUIRE_FILESYSTEMS` is set.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod disk;
mod engine;
mod failing;
mod full;
mod image;
mod sectors;
mod suite;

use std::io::Write;
use std::path::Path;

use treering::env::{IoUringEnv, IoUringEnvBuilder};

/// Says that something was not tested here, past the test harness, which would hide it.
fn skipped(why: &str) {
    let required = std::env::var_os("TREERING_REQUIRE_FILESYSTEMS").is_some();
    assert!(!required, "file systems of their own are required here: {why}");
    say_skipped(why);
}

fn say_skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("standard error can be written");
}

/// The environment of rings, or `None` where this machine has none.
fn uring(change: impl FnOnce(IoUringEnvBuilder) -> IoUringEnvBuilder) -> Option<IoUringEnv> {
    match change(IoUringEnv::builder()).build() {
        Ok(env) => Some(env),
        Err(cause) => {
            let required = std::env::var_os("TREERING_REQUIRE_IO_URING").is_some();
            assert!(!required, "io_uring is required here: {cause}");
            say_skipped(&format!("io_uring cannot be used here: {cause}"));
            None
        }
    }
}

/// Bytes that tell where they belong, and that no compression makes shorter.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes a file's pages to the device and drops them from the page cache, as far as the kernel
/// lets go of them.
fn evict(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_data().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
