//! The cursor over internal keys that memtables, blocks, tables, levels and merges all have.

use crate::Result;

/// A position in a sorted sequence of (internal key, value) entries.
///
/// A cursor starts unpositioned. A call that returns an error leaves it invalid, and it stays so
/// until an explicit seek; `next` and `prev` on an invalid cursor do nothing.
pub(crate) trait Cursor: Send {
    /// Whether the cursor is on an entry.
    fn valid(&self) -> bool;

    /// The internal key of the entry. Only when valid.
    fn key(&self) -> &[u8];

    /// The value of the entry. Only when valid.
    fn value(&self) -> &[u8];

    /// Goes to the first entry.
    fn seek_to_first(&mut self) -> Result<()>;

    /// Goes to the last entry.
    fn seek_to_last(&mut self) -> Result<()>;

    /// Goes to the first entry whose internal key is at or after `target`.
    fn seek(&mut self, target: &[u8]) -> Result<()>;

    /// Goes to the last entry whose internal key is at or before `target`.
    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()>;

    /// Goes to the next entry; past the last one the cursor is invalid.
    fn next(&mut self) -> Result<()>;

    /// Goes to the previous entry; before the first one the cursor is invalid.
    fn prev(&mut self) -> Result<()>;
}
