//! A pluggable storage environment for Linux.
//!
//! [`Env`] is everything a storage engine asks of the operating system: files, directories, locks,
//! and a queue of batched reads and writes ([`IoQueue`]). One contract, several implementations;
//! `docs/env.md` states the contract with its durability table and says how to write another one.
//!
//! The crate knows nothing of the engine above it. It starts no thread but the reactor of an
//! [`IoUringEnv`], keeps no clock and writes no log: what happened is in [`EnvReport`].

pub mod auto;
mod buffer;
mod counters;
mod env;
mod error;
mod hint;
mod mem;
mod os_file;
mod posix;
#[cfg(target_os = "linux")]
mod probe;
mod process;
mod queue;
mod report;
mod sync;
mod sys;
mod trace;
#[cfg(target_os = "linux")]
mod uring;

pub use auto::auto;
pub use buffer::Buffer;
pub use env::{
    Access, Alignment, DirEntry, Env, FileKind, FileLock, LogHandle, Metadata, RandomAccessFile,
    RandomRwFile, WritableFile,
};
pub use error::{Error, ErrorKind, Outcome, Result};
pub use hint::prefetch_cache_line;
pub use mem::{CrashChoice, CrashPolicy, CrashSubject, MemEnv, When};
pub use posix::{BatchReads, PosixEnv, PosixEnvBuilder};
#[cfg(target_os = "linux")]
pub use probe::{Diagnosis, NowaitMiss, probe};
pub use queue::{Completion, IoQueue, Request, SerialQueue, read_batch};
pub use report::{EnvReport, Fact};
#[cfg(target_os = "linux")]
pub use uring::{
    IoUringEnv, IoUringEnvBuilder, MachineFacts, Offer, SelfTestStep, Unavailable, WritePath,
};

// Environments for tests, and the suite that checks any environment.
#[cfg(feature = "test-util")]
pub mod conformance;
#[cfg(feature = "test-util")]
mod count;
#[cfg(feature = "test-util")]
mod fault;
#[cfg(feature = "test-util")]
mod mirror;
#[cfg(feature = "test-util")]
mod wrap;

#[cfg(feature = "test-util")]
pub use count::{Count, CountEnv, Counts};
#[cfg(feature = "test-util")]
pub use fault::{Fault, FaultEnv, FaultHandle, FaultKind};
#[cfg(feature = "test-util")]
pub use mirror::{Difference, MirrorEnv};
#[cfg(all(feature = "test-util", target_os = "linux"))]
pub use sys::filter::deny_io_uring;
#[cfg(feature = "test-util")]
pub use wrap::{Call, Op};
