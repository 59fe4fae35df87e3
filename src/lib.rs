//! Treering: an embeddable key-value store, a log-structured merge tree on rings.
//!
//! A database is a directory. It is opened on a storage environment ([`Env`]): plain system calls
//! ([`PosixEnv`]), `io_uring` ([`IoUringEnv`]), memory ([`MemEnv`]), or one of your own. All of
//! them keep the same files, so a database can be opened on another one the next time.
//!
//! ```
//! use std::sync::Arc;
//! use treering::{Db, Options};
//!
//! # fn main() -> treering::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("data");
//! let (env, choice) = treering::auto(); // io_uring where it works, else pread
//! println!("{choice}");
//! let db = Db::open(Arc::clone(&env), &path, Options::default())?;
//! db.put("apple", "red")?;
//! db.put("plum", "blue")?;
//! for answer in db.multi_get(["plum", "apple", "fig"]) {
//!     println!("{:?}", answer?); // Some(b"blue"), Some(b"red"), None
//! }
//! for entry in db.range("a".."c") {
//!     println!("{:?}", entry?);
//! }
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # How long a write lasts
//!
//! A write returns when it is as durable as its [`Durability`] says. The default is
//! [`Durability::Flushed`]: it survives the death of the process, **not a power loss**.
//!
//! | durability | process killed | power lost |
//! |---|---|---|
//! | [`Durability::Buffered`] | the latest writes may be lost | the latest writes may be lost |
//! | [`Durability::Flushed`] (default) | kept | the latest writes may be lost |
//! | [`Durability::Synced`] | kept | kept |
//!
//! What is lost is always an end of the history: the writes that are there after a crash are a
//! prefix of the order in which they were made, a batch is there whole or not at all, and nothing
//! that was acknowledged as synced is missing.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `lz4` | yes | LZ4 compression of blocks |
//! | `cli` | no | the `treering` command |
//! | `test-util` | no | environments that count, fail and compare, and the conformance suite |

pub use treering_env as env;
pub use treering_env::{Env, IoUringEnv, MemEnv, PosixEnv, auto};
pub use treering_lsm::{
    CfOptions, Clock, ColumnFamily, Compression, Db, DbBuilder, DbCursor, Durability, Error,
    FailedKeys, FamilyRef, FamilyStats, FixedColumn, KeyColumn, LevelStats, MAX_KEY_SIZE,
    MAX_VALUE_SIZE, Options, Range, ReadOptions, RecoveryCut, RecoveryReport, Result, Snapshot,
    Stats, SystemClock, TailPolicy, ValueColumn, WriteBatch, WriteOptions, inspect,
};

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;

/// The example of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
