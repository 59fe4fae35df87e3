//! An open table: index and filter in memory, data blocks through the cache.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use treering_env::{Buffer, RandomAccessFile, Request};

use super::block::{Block, Entry};
use super::cursor::TableCursor;
use super::filter::{self, Filter};
use super::format::{
    BlockHandle, Codec, FOOTER_SIZE, Footer, FooterError, Malformed, Parsed, VERSION,
    decompressed_len, unseal,
};
use super::index::Index;
use super::properties::Properties;
use super::{BlockCache, compress};
use crate::key;
use crate::memtable::Lookup;
use crate::options::{Compression, ReadOptions};
use crate::{Error, Result};

/// A table open for reading, by any number of threads at once.
pub(crate) struct Table {
    file: Arc<dyn RandomAccessFile>,
    size: u64,
    footer: Footer,
    properties: Properties,
    index: Index,
    filter: Option<Filter>,
    cache: Arc<BlockCache>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({}, {} bytes)", self.path().display(), self.size)
    }
}

impl Table {
    /// Opens the table in `file`, which the manifest says has `size` bytes. Reads footer,
    /// properties, index and filter; damage to any of them is an error.
    pub(crate) fn open(
        file: Arc<dyn RandomAccessFile>,
        size: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<Self> {
        let footer = read_footer(&*file, size)?;
        let read = |handle| read_meta(&*file, &footer, handle);
        let decoded = |handle: BlockHandle, malformed: Malformed| {
            Error::corruption(file.path(), handle.offset, malformed.0)
        };
        let payload = read(footer.properties)?;
        let properties = Properties::decode(&payload, footer.filter.offset)
            .map_err(|malformed| decoded(footer.properties, malformed))?;
        if !properties.readable() {
            return Err(needs_lz4(file.path()));
        }
        let payload = read(footer.index)?;
        let index = Index::decode(&payload, footer.alignment, properties.data_end)
            .map_err(|malformed| decoded(footer.index, malformed))?;
        let filter = if footer.filter.size == 0 {
            None
        } else {
            let payload = read(footer.filter)?;
            Some(Filter::decode(&payload).map_err(|malformed| decoded(footer.filter, malformed))?)
        };
        let cache = Arc::clone(cache);
        Ok(Self { file, size, footer, properties, index, filter, cache })
    }

    /// The random identity that the table was written with.
    pub(crate) fn table_id(&self) -> u64 {
        self.footer.table_id
    }

    /// The path the file was opened by.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    #[cfg(test)]
    /// The size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What the table holds and how it was written.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    #[cfg(test)]
    /// Bytes of memory that index and filter take.
    pub(crate) fn memory(&self) -> usize {
        self.index.memory() + self.filter.as_ref().map_or(0, Filter::memory)
    }

    /// The index, for cursors.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// Where the first of the blocks behind the data is.
    pub(super) fn footer(&self) -> &Footer {
        &self.footer
    }

    /// The file, opened for point reads.
    pub(super) fn file(&self) -> &Arc<dyn RandomAccessFile> {
        &self.file
    }

    /// Whether some version of `user_key` may be in the table. `false` is certain.
    pub(crate) fn may_contain(&self, user_key: &[u8]) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(filter::hash(user_key)))
    }

    /// [`Table::may_contain`] for a key whose [`filter_hash`](super::filter_hash) is known: a
    /// batch over several tables hashes each key once.
    pub(crate) fn may_contain_hash(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// Asks the processor for what [`Table::may_contain_hash`] will look at.
    pub(crate) fn prefetch_filter(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.prefetch(hash);
        }
    }

    /// Begins a search of the index; [`Table::find_from`] ends it.
    pub(crate) fn approach(&self, user_key: &[u8]) -> usize {
        self.index.approach(user_key)
    }

    /// The number of the block that [`Table::find_block`] gives, from where [`Table::approach`]
    /// said, with its handle on the way into the processor's cache.
    pub(crate) fn find_from(&self, start: usize, internal_key: &[u8]) -> Option<usize> {
        if key::compare(internal_key, &self.properties.largest).is_gt() {
            return None;
        }
        let (user_key, trailer) = key::split(internal_key);
        let block = self.index.find_from(start, user_key, trailer);
        self.index.prefetch_handle(block);
        Some(block)
    }

    /// The handle of the block with this number.
    pub(crate) fn handle(&self, block: usize) -> Option<BlockHandle> {
        self.index.handle(block)
    }

    /// The one data block that can hold what a look-up of `internal_key` finds: the newest
    /// version at or after it of the same user key. `None` if the table ends before that key.
    /// Asks the index only, not the filter; reads and allocates nothing.
    pub(crate) fn find_block(&self, internal_key: &[u8]) -> Option<BlockHandle> {
        if key::compare(internal_key, &self.properties.largest).is_gt() {
            return None;
        }
        let (user_key, trailer) = key::split(internal_key);
        self.index.handle(self.index.find(user_key, trailer))
    }

    /// The block, if it is in the cache. Counts a hit or a miss.
    pub(crate) fn cached(&self, handle: BlockHandle) -> Option<Arc<Block>> {
        self.cache.get(self.table_id(), handle.offset)
    }

    /// The block, if it is in the cache, without a trace of the question.
    pub(super) fn peek(&self, handle: BlockHandle) -> Option<Arc<Block>> {
        self.cache.peek(self.table_id(), handle.offset)
    }

    /// The read that fetches the block, for a queue; [`Table::decode`] takes its result.
    pub(crate) fn request(&self, handle: BlockHandle) -> Request {
        let len = handle.size as usize;
        Request::Read { file: Arc::clone(&self.file), offset: handle.offset, len }
    }

    /// The block in the bytes that were read for `handle`: checked, decompressed, and kept in
    /// the cache if `fill_cache`.
    pub(crate) fn decode(
        &self,
        handle: BlockHandle,
        buffer: Buffer,
        fill_cache: bool,
    ) -> Result<Arc<Block>> {
        let block = self.decode_block(handle, buffer)?;
        let block = Arc::new(block);
        if fill_cache {
            self.cache.insert(self.table_id(), handle.offset, &block, block.memory());
        }
        Ok(block)
    }

    fn decode_block(&self, handle: BlockHandle, buffer: Buffer) -> Result<Block> {
        let damaged = |malformed| self.damaged(handle, malformed);
        if buffer.len() as u64 != u64::from(handle.size) {
            return Err(damaged(Malformed("a block was read with another length")));
        }
        let (codec, stored) = unseal(&buffer, self.table_id(), handle.offset).map_err(damaged)?;
        match codec {
            Codec::None => Block::new(buffer, stored).map_err(damaged),
            // Where the properties allow it, this build has it: `open` saw to that.
            Codec::Lz4 { .. } if self.properties.compression == Compression::None => {
                Err(damaged(Malformed("a compressed block in a table without compression")))
            }
            Codec::Lz4 { len } => {
                let len = decompressed_len(len, stored, self.properties.largest_block)
                    .map_err(damaged)?;
                let mut plain = Buffer::zeroed(len);
                if !compress::decompress_into(&buffer[..stored], plain.as_mut_slice()) {
                    let what = "a block does not decompress to the length it claims";
                    return Err(damaged(Malformed(what)));
                }
                Block::new(plain, len).map_err(damaged)
            }
        }
    }

    /// The block, from the cache or the file.
    pub(crate) fn load(&self, handle: BlockHandle, fill_cache: bool) -> Result<Arc<Block>> {
        match self.cached(handle) {
            Some(block) => Ok(block),
            None => self.read(&*self.file, handle, fill_cache),
        }
    }

    /// The block, from `file`: this table's, perhaps opened for other access.
    pub(super) fn read(
        &self,
        file: &dyn RandomAccessFile,
        handle: BlockHandle,
        fill_cache: bool,
    ) -> Result<Arc<Block>> {
        // The index promises that the block ends before the footer, so this is bounded.
        let mut buffer = Buffer::zeroed(handle.size as usize);
        file.read_exact_at(buffer.as_mut_slice(), handle.offset).map_err(Error::from_read)?;
        self.decode(handle, buffer, fill_cache)
    }

    /// What the block at `handle` has for a look-up of `internal_key`: the first version at or
    /// after it of the same user key. Allocates nothing.
    pub(crate) fn search<'a>(
        &self,
        handle: BlockHandle,
        block: &'a Block,
        internal_key: &[u8],
    ) -> Result<Option<Entry<'a>>> {
        let (user_key, trailer) = key::split(internal_key);
        block.search(user_key, trailer).map_err(|malformed| self.damaged(handle, malformed))
    }

    /// The newest version at or after `internal_key` of the same user key: its trailer and what
    /// it says. Asks the filter first; reads at most one block.
    pub(crate) fn get(
        &self,
        internal_key: &[u8],
        fill_cache: bool,
    ) -> Result<Option<(u64, Lookup)>> {
        if !self.may_contain(key::user_key(internal_key)) {
            return Ok(None);
        }
        let Some(handle) = self.find_block(internal_key) else { return Ok(None) };
        let block = self.load(handle, fill_cache)?;
        let (user_key, trailer) = key::split(internal_key);
        block.get(user_key, trailer).map_err(|malformed| self.damaged(handle, malformed))
    }

    /// A cursor over the table, for a reader of any kind.
    pub(crate) fn cursor(self: &Arc<Self>, options: &ReadOptions) -> TableCursor {
        TableCursor::new(Arc::clone(self), Arc::clone(&self.file), options.fill_cache)
    }

    /// A cursor that reads the whole table once, through `file`: the same file opened for
    /// sequential access. Its blocks do not enter the cache, and keys out of order are reported
    /// as corruption, so that what it gives can be written onward.
    pub(crate) fn scan(self: &Arc<Self>, file: Arc<dyn RandomAccessFile>) -> TableCursor {
        TableCursor::new(Arc::clone(self), file, false).checking_order()
    }

    #[cfg(test)]
    /// About where in the file `internal_key` would be, in bytes.
    pub(crate) fn approximate_offset(&self, internal_key: &[u8]) -> u64 {
        match self.find_block(internal_key) {
            Some(handle) => handle.offset,
            None => self.size,
        }
    }

    /// Damage in the block at `handle`.
    pub(super) fn damaged(&self, handle: BlockHandle, malformed: Malformed) -> Error {
        Error::corruption(self.path(), handle.offset, malformed.0)
    }
}

fn needs_lz4(path: &Path) -> Error {
    Error::invalid(format!(
        "{} is compressed with LZ4, which this build does not have: build it with the feature `lz4`",
        path.display()
    ))
}

fn read_footer(file: &dyn RandomAccessFile, size: u64) -> Result<Footer> {
    let path = file.path();
    if file.size() != size {
        let what = format!("the file has {} bytes instead of {size}", file.size());
        return Err(Error::corruption(path, None, what));
    }
    let Some(offset) = size.checked_sub(FOOTER_SIZE as u64) else {
        return Err(Error::corruption(path, 0, "a file too short for a table"));
    };
    let mut bytes = [0; FOOTER_SIZE];
    file.read_exact_at(&mut bytes, offset).map_err(Error::from_read)?;
    Footer::decode(&bytes, offset).map_err(|error| match error {
        FooterError::Malformed(Malformed(what)) => Error::corruption(path, offset, what),
        FooterError::Version(found) => {
            Error::UnsupportedVersion { path: path.to_path_buf(), found, supported: VERSION }
        }
    })
}

/// The payload of one of the blocks behind the data. The footer was checked: they follow one
/// another up to its own offset, so their sizes are bounded by the file's.
fn read_meta(file: &dyn RandomAccessFile, footer: &Footer, handle: BlockHandle) -> Result<Vec<u8>> {
    let mut bytes = vec![0; handle.size as usize];
    file.read_exact_at(&mut bytes, handle.offset).map_err(Error::from_read)?;
    let payload: Parsed<usize> =
        unseal(&bytes, footer.table_id, handle.offset).and_then(|(codec, len)| match codec {
            Codec::None => Ok(len),
            Codec::Lz4 { .. } => Err(Malformed("an index, filter or properties block compressed")),
        });
    match payload {
        Ok(len) => {
            bytes.truncate(len);
            Ok(bytes)
        }
        Err(Malformed(what)) => Err(Error::corruption(file.path(), handle.offset, what)),
    }
}
