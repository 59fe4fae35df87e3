//! Writes a table: data blocks as entries arrive, then filter, index, properties and footer.
//!
//! With blocks aligned to pages the writer fills each to the page: an uncompressed block is cut
//! before it would overflow. With compression a block takes as many entries as the ratio of the
//! blocks before it promises, is then compressed, and corrected a bounded number of times: a
//! block that came out small takes more entries, one that came out large loses its last ones to
//! the next block. A block that fits its page uncompressed is stored so: compressing it would
//! save no read and cost time at each.

use std::fmt;
use std::path::{Path, PathBuf};

use treering_env::WritableFile;

use super::TableOptions;
use super::block_builder::BlockBuilder;
use super::compress::Compressor;
use super::filter::FilterBuilder;
use super::format::{
    BlockHandle, COMPRESSED_TRAILER, Codec, Footer, MAX_COMPRESSED_PAYLOAD, MAX_SHARED_BLOCK,
    PAGE_SIZE, PLAIN_TRAILER, align_up, seal,
};
use super::index::IndexBuilder;
use super::properties::Properties;
use crate::key::{self, ValueKind};
use crate::options::Compression;
use crate::{Error, Result};

/// The most that is compressed into one page: reading one key decompresses all of it.
const MAX_FILL: usize = 16 << 10;
/// Compressions spent on one block at most before it is cut where it certainly fits.
const MAX_ATTEMPTS: u32 = 3;
/// A compressed block that fills this share of its page, in 1/1024, is not worth another attempt.
const FULL_ENOUGH: usize = 900;
/// What is aimed at, in 1/1024 of the page: a little less than all, so that most blocks fit.
const AIM: usize = 980;
/// While data does not compress, one block in so many is tried nevertheless.
const PROBE_EVERY: u64 = 32;

/// What a finished table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableSummary {
    /// The size of the file in bytes.
    pub(crate) size: u64,
    /// How many versions it holds.
    pub(crate) entries: u64,
    /// Its first internal key.
    pub(crate) smallest: Vec<u8>,
    /// Its last internal key.
    pub(crate) largest: Vec<u8>,
    /// The smallest sequence number in it.
    pub(crate) smallest_sequence: u64,
    /// The largest sequence number in it.
    pub(crate) largest_sequence: u64,
    /// Its random identity.
    pub(crate) table_id: u64,
}

/// Writes one table from entries in ascending order.
pub(crate) struct TableWriter {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    options: TableOptions,
    table_id: u64,
    alignment: u32,
    /// Where the last block ends.
    offset: u64,
    block: BlockBuilder,
    /// Takes over what a cut leaves.
    spare: BlockBuilder,
    /// The payload size at which the block is looked at.
    target: usize,
    compressor: Compressor,
    /// Compressions spent on this block so far.
    attempts: u32,
    /// Blocks written.
    blocks: u64,
    index: IndexBuilder,
    filter: FilterBuilder,
    properties: Properties,
    /// The last key of the last block written, and scratch for the first one of the next.
    before: Vec<u8>,
    first: Vec<u8>,
    /// The last key added.
    last: Vec<u8>,
    out: Vec<u8>,
}

impl fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableWriter({}, {} bytes)", self.path.display(), self.offset)
    }
}

impl TableWriter {
    /// A writer that fills the new, empty `file` at `path`. `table_id` is random.
    pub(crate) fn new(
        file: Box<dyn WritableFile>,
        path: &Path,
        options: &TableOptions,
        table_id: u64,
    ) -> Self {
        let alignment = if options.block_size == PAGE_SIZE as usize { PAGE_SIZE } else { 1 };
        let mut writer = Self {
            file,
            path: path.to_path_buf(),
            options: options.clone(),
            table_id,
            alignment,
            offset: 0,
            block: BlockBuilder::new(options.restart_interval),
            spare: BlockBuilder::new(options.restart_interval),
            target: 0,
            compressor: Compressor::new(),
            attempts: 0,
            blocks: 0,
            index: IndexBuilder::default(),
            filter: FilterBuilder::new(options.bloom_bits_per_key),
            properties: Properties::new(options),
            before: Vec::new(),
            first: Vec::new(),
            last: Vec::new(),
            out: Vec::new(),
        };
        writer.target = writer.next_target();
        writer
    }

    /// Entries so far.
    pub(crate) fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// About the size the file would have if it were finished now.
    pub(crate) fn estimated_size(&self) -> u64 {
        let rest = self.block.size() + self.filter.size() + self.index.size();
        self.offset + rest as u64
    }

    /// Adds a version, whose internal key is after the one before.
    ///
    /// # Panics
    /// If the key is not after the one before, or has no valid kind: callers sort and check.
    pub(crate) fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let parsed = key::parse(internal_key).expect("only valid internal keys go into a table");
        let in_order = self.entries() == 0 || key::compare(&self.last, internal_key).is_lt();
        assert!(in_order, "keys go into a table in strictly ascending order");
        let (user_key, trailer) = key::split(internal_key);
        while !self.block.is_empty() && !self.takes(user_key, trailer, value) {
            self.fill(Some((user_key, trailer, value)))?;
        }
        self.block.add(user_key, trailer, value);
        self.filter.add(user_key);
        self.last.clear();
        self.last.extend_from_slice(internal_key);
        let properties = &mut self.properties;
        if properties.entries == 0 {
            properties.smallest.extend_from_slice(internal_key);
        }
        properties.entries += 1;
        properties.deletions += u64::from(parsed.kind == ValueKind::Deletion);
        properties.smallest_sequence = properties.smallest_sequence.min(parsed.sequence);
        properties.largest_sequence = properties.largest_sequence.max(parsed.sequence);
        properties.key_bytes += user_key.len() as u64;
        properties.value_bytes += value.len() as u64;
        Ok(())
    }

    /// Writes what is left and everything behind the data blocks, and syncs the file. The name
    /// needs `sync_dir` too.
    ///
    /// # Panics
    /// If nothing was added: an empty table has no place in the tree.
    pub(crate) fn finish(mut self) -> Result<TableSummary> {
        assert!(self.entries() > 0, "a table has at least one entry");
        while !self.block.is_empty() {
            self.fill(None)?;
        }
        self.properties.largest.clone_from(&self.last);
        self.properties.data_end = self.offset;
        let (filter, index) = (self.filter, self.index);
        let mut tail = Tail { out: Vec::new(), start: self.offset, table_id: self.table_id };
        let filter = tail.block(|out| filter.write_to(out))?;
        let index = tail.block(|out| index.write_to(out))?;
        let properties = tail.block(|out| self.properties.write_to(out))?;
        let (table_id, alignment) = (self.table_id, self.alignment);
        let footer = Footer { table_id, filter, index, properties, alignment };
        let footer = footer.encode(self.offset + tail.out.len() as u64);
        tail.out.extend_from_slice(&footer);
        self.file.append(&tail.out)?;
        let size = self.file.finish()?;
        debug_assert_eq!(size, self.offset + tail.out.len() as u64, "nothing else was appended");
        let properties = self.properties;
        Ok(TableSummary {
            size,
            entries: properties.entries,
            smallest: properties.smallest,
            largest: properties.largest,
            smallest_sequence: properties.smallest_sequence,
            largest_sequence: properties.largest_sequence,
            table_id: self.table_id,
        })
    }

    /// Whether the block can take an entry before it must be looked at.
    fn takes(&self, user_key: &[u8], trailer: u64, value: &[u8]) -> bool {
        self.block.size_with(user_key, trailer, value) <= self.target
    }

    /// The payload of an uncompressed block that fits the block size.
    fn budget(&self) -> usize {
        self.options.block_size - PLAIN_TRAILER
    }

    fn compresses(&self) -> bool {
        self.options.compression == Compression::Lz4
    }

    /// The payload size at which the next block is looked at first.
    fn next_target(&self) -> usize {
        let budget = self.budget();
        if !self.compresses() || self.alignment == 1 {
            return budget;
        }
        let promised = self.compressor.raw_size_for(budget) * AIM / 1024;
        let probe = if self.blocks.is_multiple_of(PROBE_EVERY) { budget * 2 } else { 0 };
        promised.max(probe).clamp(budget, MAX_FILL)
    }

    /// Looks at the block because `next` does not fit, or because there is no next: writes it or
    /// a part of it, or decides that it takes more. Every call writes something or uses up one
    /// of the block's attempts and makes room for `next`.
    fn fill(&mut self, next: Option<(&[u8], u64, &[u8])>) -> Result<()> {
        let (size, budget) = (self.block.size(), self.budget());
        let all = self.block.len();
        if !self.compresses() || (self.alignment != 1 && size <= budget) {
            return self.write(all, Codec::None);
        }
        if self.alignment == 1 || all == 1 {
            return self.write_alone(all);
        }
        let page = self.options.block_size - COMPRESSED_TRAILER;
        let mut count = all;
        while self.attempts < MAX_ATTEMPTS && count > 0 {
            self.attempts += 1;
            let raw = self.compressor.compress(&self.block, count);
            let stored = self.compressor.stored_size();
            if stored > page {
                // Fewer entries, as many as this ratio promises to fit.
                let fits = raw * page / stored * AIM / 1024;
                count = self.block.entries_within(fits).min(count - 1);
                if self.block.prefix_size(count.max(1)) <= budget {
                    break;
                }
                continue;
            }
            let full = stored * 1024 >= page * FULL_ENOUGH || raw >= MAX_FILL * 7 / 8;
            if !full && count == all && self.attempts < MAX_ATTEMPTS {
                let more = (raw * page / stored.max(1) * AIM / 1024).min(MAX_FILL);
                if more > self.target {
                    self.target = more;
                    if next.is_some_and(|(key, trailer, value)| self.takes(key, trailer, value)) {
                        return Ok(());
                    }
                }
            }
            return self.write(count, self.compressor.codec());
        }
        let count = self.block.entries_within(budget);
        if count == 1 { self.write_alone(1) } else { self.write(count, Codec::None) }
    }

    /// Writes the first `count` entries, compressed if that saves a page (an eighth, if blocks
    /// are packed).
    fn write_alone(&mut self, count: usize) -> Result<()> {
        let raw = self.block.prefix_size(count);
        if raw > MAX_COMPRESSED_PAYLOAD {
            return self.write(count, Codec::None);
        }
        self.compressor.compress(&self.block, count);
        let stored = self.compressor.stored_size() + COMPRESSED_TRAILER;
        let plain = raw + PLAIN_TRAILER;
        let saves = if self.alignment == 1 {
            stored < plain - plain / 8
        } else {
            stored.div_ceil(PAGE_SIZE as usize) < plain.div_ceil(PAGE_SIZE as usize)
        };
        let codec = if saves { self.compressor.codec() } else { Codec::None };
        self.write(count, codec)
    }

    /// Writes the first `count` entries as a block; for LZ4 the compressor holds its payload.
    fn write(&mut self, count: usize, codec: Codec) -> Result<()> {
        let raw = self.block.prefix_size(count);
        assert!(count == 1 || raw <= MAX_SHARED_BLOCK, "blocks of several entries are small");
        let aligned = align_up(self.offset, self.alignment).expect("files are below 2^63 bytes");
        let padding = usize::try_from(aligned - self.offset).expect("less than a page");
        self.out.clear();
        self.out.resize(padding, 0);
        match codec {
            Codec::None => self.block.write_prefix_to(count, &mut self.out),
            Codec::Lz4 { .. } => self.out.extend_from_slice(self.compressor.stored()),
        }
        seal(&mut self.out, padding, codec, self.table_id, aligned);
        let size = u32::try_from(self.out.len() - padding).expect("values are at most 1 GiB");
        self.file.append(&self.out)?;
        self.offset = aligned + u64::from(size);
        let raw = u32::try_from(raw).expect("values are at most 1 GiB");
        self.properties.largest_block = self.properties.largest_block.max(raw);
        self.block.first_key(&mut self.first);
        let before = (self.blocks > 0).then_some(&*self.before);
        self.index.add(before, &self.first, size);
        self.block.last_key(count, &mut self.before);
        self.block.drop_prefix(count, &mut self.spare);
        self.compressor.learn();
        self.blocks += 1;
        self.attempts = 0;
        self.target = self.next_target();
        Ok(())
    }
}

/// What follows the data blocks, put together before it is appended at once.
struct Tail {
    out: Vec<u8>,
    start: u64,
    table_id: u64,
}

impl Tail {
    /// Adds the block that `write` appends; a handle of size 0 if it appends nothing.
    fn block(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<BlockHandle> {
        let start = self.out.len();
        let offset = self.start + start as u64;
        write(&mut self.out);
        if self.out.len() > start {
            seal(&mut self.out, start, Codec::None, self.table_id, offset);
        }
        let size = u32::try_from(self.out.len() - start);
        let size = size.map_err(|_| Error::invalid("a table's index or filter exceeds 4 GiB"))?;
        Ok(BlockHandle { offset, size })
    }
}
