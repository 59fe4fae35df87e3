//! The Treering key-value engine: a log-structured merge tree whose files live on a pluggable
//! storage environment.
//!
//! The engine touches files only through [`treering_env::Env`]. Its modules form layers; each
//! imports only from those below it (`docs/ARCHITECTURE.md`).
#![deny(unsafe_code)]

mod batch;
mod block_cache;
mod checksum;
mod clock;
mod coding;
mod compaction;
mod cursor;
mod db;
mod error;
mod filename;
pub mod inspect;
mod iter;
mod key;
mod memtable;
mod merge_iter;
mod options;
mod record;
mod stats;
mod table;
mod table_cache;
mod trace;
mod version;
mod wal;

pub use batch::{FamilyRef, WriteBatch};
pub use clock::{Clock, SystemClock};
pub use db::{
    ColumnFamily, Db, DbBuilder, FailedKeys, FixedColumn, KeyColumn, Snapshot, ValueColumn,
};
pub use error::{Error, Result};
pub use iter::{DbCursor, Range};
pub use key::{MAX_KEY_SIZE, MAX_VALUE_SIZE};
pub use options::{
    CfOptions, Compression, Durability, Options, ReadOptions, TailPolicy, WriteOptions,
};
pub use stats::{FamilyStats, LevelStats, RecoveryCut, RecoveryReport, Stats};
