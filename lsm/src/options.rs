//! Options: plain data, few, each with meaning, unit, default and trade-off.

use crate::{Error, Result};

/// How long a successful write lasts: the rows of the environment's durability table, the least
/// durable first. A write may be more durable than asked, never less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In this process's memory only: the death of the process may lose it, latest writes first.
    ///
    /// At most 256 KiB of the log stay there. They are handed to the operating system, many writes
    /// in one call, when more than that has gathered, by the next write that is not buffered, by
    /// [`Db::flush_wal`](crate::Db::flush_wal), [`Db::sync_wal`](crate::Db::sync_wal),
    /// [`Db::flush`](crate::Db::flush) and every flush of a memtable, by a switch of log segments,
    /// and when the database is closed or dropped; not by time. If that fails, the error is
    /// [`Error::BufferedLost`].
    Buffered,
    /// Handed to the operating system: survives the death of the process, not a power loss.
    #[default]
    Flushed,
    /// On the device: survives a power loss.
    Synced,
}

/// How data blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Stored as they are.
    None,
    /// LZ4 blocks: fast, moderate. Needs the feature `lz4` (on by default).
    Lz4,
}

impl Default for Compression {
    fn default() -> Self {
        if cfg!(feature = "lz4") { Self::Lz4 } else { Self::None }
    }
}

/// What to do at open with bytes at the end of the newest log that are neither a record nor zeros
/// and that no later byte proves to have been durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TailPolicy {
    /// Take them for a write that never finished: cut them off and say so in
    /// the recovery report. Damage to the very last synced group is cut too; nothing can tell it
    /// from a torn write.
    #[default]
    TruncateUnwitnessed,
    /// Refuse to open. Not fit for automatic restarts: a plain power loss can leave such a tail.
    RefuseOnAny,
}

/// Options of a database. `Options::default()` suits a server with a few GiB of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Create the database if the directory is absent or holds none. Files in it that are not a
    /// database's stay; tables or begun logs without a `CURRENT` are [`Error::Corruption`], since
    /// a database was there. Default: true.
    pub create_if_missing: bool,
    /// Fail if the database exists. Default: false.
    pub error_if_exists: bool,
    /// Durability of writes that do not say their own. Default: [`Durability::Flushed`].
    pub durability: Durability,
    /// Size of a log segment in bytes, 64 KiB to 4 GiB. Larger: fewer switches, longer recovery.
    /// Default: 64 MiB.
    pub log_segment_size: u64,
    /// How far the log is zero-filled ahead in one step, in bytes, 4 KiB to 64 MiB, so that a
    /// synced append changes no file metadata. Default: 1 MiB.
    pub log_prepare_step: u64,
    /// When the logs together exceed this many bytes, the family that pins the oldest one is
    /// flushed. `None`: four times the largest memtable size. Default: `None`.
    pub max_wal_size: Option<u64>,
    /// Bytes of decompressed blocks kept in memory. Zero keeps none. Default: 64 MiB.
    pub block_cache_size: usize,
    /// Table files kept open, at least 16. Default: 512.
    pub max_open_tables: usize,
    /// Threads for compaction; flushes and log preparation have one thread each beside them.
    /// Zero: all work runs inside the calls that make it necessary, on their threads, and is
    /// deterministic. Default: half the cores, at least one.
    pub background_threads: usize,
    /// What to do with an unexplained end of the newest log. Default:
    /// [`TailPolicy::TruncateUnwitnessed`].
    pub tail_policy: TailPolicy,
    /// Options of the family `default`.
    pub cf: CfOptions,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            create_if_missing: true,
            error_if_exists: false,
            durability: Durability::default(),
            log_segment_size: 64 << 20,
            log_prepare_step: 1 << 20,
            max_wal_size: None,
            block_cache_size: 64 << 20,
            max_open_tables: 512,
            background_threads: (cores / 2).max(1),
            tail_policy: TailPolicy::default(),
            cf: CfOptions::default(),
        }
    }
}

/// Options of one column family. They are not stored: give them at every open; a table is always
/// read by the parameters it was written with.
#[derive(Clone, Debug, PartialEq)]
pub struct CfOptions {
    /// Size at which a memtable is frozen and flushed, in bytes, at least 4 KiB. What is written
    /// together stays together: a memtable may exceed it by a commit group, which is up to 1 MiB or
    /// one larger batch. Default: 64 MiB.
    pub memtable_size: usize,
    /// Frozen memtables that may wait for their flush before writes wait, at least 1. Default: 2.
    pub max_immutable_memtables: usize,
    /// Files in level 0 that start a compaction, at least 1. Default: 4.
    pub level0_compaction_trigger: usize,
    /// Files in level 0 from which each write is delayed. Default: 20.
    pub level0_slowdown_trigger: usize,
    /// Files in level 0 at which writes wait. Default: 36.
    pub level0_stop_trigger: usize,
    /// Target size of level 1 in bytes. Default: 256 MiB.
    pub level_base_size: u64,
    /// How many times larger each further level may be, at least 2. Default: 10.
    pub level_multiplier: u64,
    /// Size at which compaction starts a new table, in bytes. Default: 64 MiB.
    pub table_size: u64,
    /// Size of a data block in bytes, trailer included: 4096 is what the format is built around;
    /// smaller values (from 64) serve tests. Default: 4096.
    pub block_size: usize,
    /// Entries between restart points in a block, 1 to 128. Default: 16.
    pub restart_interval: usize,
    /// Bits of Bloom filter per key, 0 (no filter) to 30. Default: 10 (about 1 % false positives).
    pub bloom_bits_per_key: u32,
    /// Compression of data blocks. Default: LZ4 where it is built in.
    pub compression: Compression,
}

impl Default for CfOptions {
    fn default() -> Self {
        Self {
            memtable_size: 64 << 20,
            max_immutable_memtables: 2,
            level0_compaction_trigger: 4,
            level0_slowdown_trigger: 20,
            level0_stop_trigger: 36,
            level_base_size: 256 << 20,
            level_multiplier: 10,
            table_size: 64 << 20,
            block_size: 4096,
            restart_interval: 16,
            bloom_bits_per_key: 10,
            compression: Compression::default(),
        }
    }
}

/// Options of one write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteOptions {
    /// How long the write must last once it returned; `None` takes the database's.
    pub durability: Option<Durability>,
}

/// Options of one read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOptions {
    /// Keep the blocks that were read in the block cache. Default: true.
    pub fill_cache: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { fill_cache: true }
    }
}

impl Options {
    /// Checks every value against its range.
    pub(crate) fn validate(&self) -> Result<()> {
        within("log_segment_size", self.log_segment_size, 64 << 10, 4 << 30)?;
        within("log_prepare_step", self.log_prepare_step, 4 << 10, 64 << 20)?;
        within("max_open_tables", self.max_open_tables as u64, 16, 1 << 20)?;
        within("background_threads", self.background_threads as u64, 0, 256)?;
        self.cf.validate()
    }
}

impl CfOptions {
    /// Checks every value against its range.
    pub(crate) fn validate(&self) -> Result<()> {
        within("memtable_size", self.memtable_size as u64, 4 << 10, 1 << 40)?;
        within("max_immutable_memtables", self.max_immutable_memtables as u64, 1, 64)?;
        within("level0_compaction_trigger", self.level0_compaction_trigger as u64, 1, 1 << 16)?;
        let slowdown = self.level0_slowdown_trigger as u64;
        within(
            "level0_slowdown_trigger",
            slowdown,
            self.level0_compaction_trigger as u64,
            1 << 16,
        )?;
        within("level0_stop_trigger", self.level0_stop_trigger as u64, slowdown, 1 << 16)?;
        within("level_base_size", self.level_base_size, 4 << 10, 1 << 50)?;
        within("level_multiplier", self.level_multiplier, 2, 1000)?;
        within("table_size", self.table_size, 4 << 10, 64 << 30)?;
        within("block_size", self.block_size as u64, 64, 4096)?;
        within("restart_interval", self.restart_interval as u64, 1, 128)?;
        within("bloom_bits_per_key", u64::from(self.bloom_bits_per_key), 0, 30)?;
        if self.compression == Compression::Lz4 && !cfg!(feature = "lz4") {
            return Err(Error::invalid("compression = Lz4 needs the feature `lz4`"));
        }
        Ok(())
    }
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} = {value} is out of range: {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        Options::default().validate().unwrap();
    }

    #[test]
    fn an_option_out_of_range_is_named_with_its_range() {
        let cf = CfOptions { restart_interval: 0, ..CfOptions::default() };
        let message = Options { cf, ..Options::default() }.validate().unwrap_err().to_string();
        assert_eq!(message, "invalid argument: restart_interval = 0 is out of range: 1 to 128");
    }
}
