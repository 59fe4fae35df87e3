//! What a dump is made of, for people and for programs.

use std::fmt;

/// One thing that [`dump`](super::dump()) found: `Display` is its text for people, of one line or
/// more and without the last line feed; `what` and `fields` are the same for programs.
///
/// | `what` | in | `fields` |
/// |---|---|---|
/// | `begin` | log, manifest | a record's, and `role` (`log`, `manifest`), `number`, `epoch`, `after`, `after_end`, `after_record` (the last three absent in a first segment and in manifests) |
/// | `data` | log | a record's, and `sequence` (of its first operation), `operations` |
/// | `end` | log, manifest | a record's, and `next`, `next_epoch`, `next_prepared` (bytes) of the segment that follows (absent after a clean close) |
/// | `marker` | log | a record's |
/// | `edit` | manifest | a record's |
/// | `put`, `delete` | log, table | `family` (absent in a table, which does not know it), `sequence`, `key`, `value` (of `put`) |
/// | `no_more_records` | log, manifest | `offset`, `zeros` (bytes from there on) |
/// | `spare` | log | none: a prepared segment without a first record |
/// | `format` | manifest | `format`: the record holds the whole state |
/// | `next_file_number`, `last_sequence`, `next_family_id` | manifest | `number` |
/// | `log` | manifest | `number`, `epoch`, `prepared`, `first_record`, `end`, `last_record` (both absent until it ended) |
/// | `drop_family` | manifest | `family` |
/// | `add_family` | manifest | `family`, `name` |
/// | `family_log` | manifest | `family`, `needs_logs_from` (a number), `flushed_sequence` |
/// | `remove_table` | manifest | `family`, `level`, `number` |
/// | `add_table` | manifest | `family`, `level`, `number`, `bytes`, `id`, `entries`, `smallest_sequence`, `largest_sequence`, `smallest_key`, `largest_key` |
/// | `table` | table | `id`, `bytes`, `entries`, `deletions`, `smallest_sequence`, `largest_sequence`, `key_bytes`, `value_bytes`, `data_end`, `largest_block`, `block_size`, `restart_interval`, `bloom_bits_per_key`, `compression` (`none`, `lz4`), `smallest_key`, `largest_key` |
/// | `block` | table | `offset`, `bytes` (with the trailer) of the block that holds the entries after it |
/// | `current` | `CURRENT` | `text` |
/// | `names_manifest` | `CURRENT` | `number` |
///
/// A record's fields are `offset`, `record` (its number), `bytes` (of its payload) and
/// `durable_below`. The operations of a `data` record and the parts of an `edit` come after it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Item<'a> {
    /// The kind of thing.
    pub what: &'static str,
    /// What it holds, by name; all of the table above, in its order.
    pub fields: &'a [(&'static str, Field<'a>)],
    /// The same as text.
    pub(super) text: fmt::Arguments<'a>,
}

impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(self.text)
    }
}

/// A value in an [`Item`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A count, a number of bytes, an offset or the like.
    Number(u64),
    /// A random id, printed as 16 hexadecimal digits.
    Id(u64),
    /// One of the words named at [`Item`].
    Word(&'static str),
    /// A key, a value or a name, whole.
    Bytes(&'a [u8]),
    /// There is none.
    Absent,
}

impl Field<'_> {
    /// The number, if there is one.
    pub(super) fn number(number: Option<u64>) -> Self {
        number.map_or(Self::Absent, Self::Number)
    }
}
