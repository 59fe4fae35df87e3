//! Tables: immutable sorted files of versions of keys. `docs/format/table.md` is the format.
//!
//! A [`TableWriter`] makes one from entries in ascending order; a [`Table`] reads it: index and
//! filter stay in memory, data blocks come from the block cache or the file. A look-up asks the
//! filter, then the index for the one block that can hold the key, then that block.

mod block;
mod block_builder;
mod compress;
mod cursor;
mod filter;
mod format;
mod index;
mod properties;
mod reader;
mod verify;
mod words;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use block::{Block, Entry};
pub(crate) use cursor::TableCursor;
pub(crate) use filter::hash as filter_hash;
pub(crate) use format::BlockHandle;
pub(crate) use properties::Properties;
pub(crate) use reader::Table;
pub(crate) use writer::{TableSummary, TableWriter};

use crate::options::{CfOptions, Compression};

/// The cache of decompressed data blocks that all tables of a process share.
pub(crate) type BlockCache = crate::block_cache::BlockCache<Block>;

/// How a table is written. A table is read by what it was written with, not by this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// Bytes of a data block with its trailer. With 4096 data blocks are aligned to pages.
    pub(crate) block_size: usize,
    /// Entries between restart points.
    pub(crate) restart_interval: usize,
    /// Bits of filter per key; 0 for no filter.
    pub(crate) bloom_bits_per_key: u32,
    /// Compression of data blocks.
    pub(crate) compression: Compression,
}

impl From<&CfOptions> for TableOptions {
    fn from(options: &CfOptions) -> Self {
        Self {
            block_size: options.block_size,
            restart_interval: options.restart_interval,
            bloom_bits_per_key: options.bloom_bits_per_key,
            compression: options.compression,
        }
    }
}
