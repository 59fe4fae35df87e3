//! Tables as text.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, Env};

use super::dump::{Quoted, Sink};
use super::item::Field::{self, Absent, Bytes, Id, Number, Word};
use crate::block_cache::BlockCache;
use crate::cursor::Cursor;
use crate::key::{self, ValueKind};
use crate::options::Compression;
use crate::table::{Properties, Table};
use crate::{Error, Result};

/// Prints properties, blocks and entries of the table at `path`.
pub(super) fn print(env: &dyn Env, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let file = env.open(path, Access::Sequential)?;
    let size = file.size();
    let table = Arc::new(Table::open(Arc::clone(&file), size, &Arc::new(BlockCache::new(0)))?);
    print_table(&table, size, sink);
    let mut cursor = table.scan(file);
    let mut block = None;
    cursor.seek_to_first()?;
    while cursor.valid() && !sink.is_full() {
        sink.count();
        let handle = table.find_block(cursor.key());
        if handle != block {
            block = handle;
            if let Some(handle) = handle {
                let (at, bytes) = (handle.offset, handle.size);
                let fields = [("offset", Number(at)), ("bytes", Number(bytes.into()))];
                let text = format_args!("block at {at}, {bytes} bytes, data with trailer");
                sink.give("block", &fields, text);
            }
        }
        let entry = key::parse(cursor.key());
        let entry = entry.ok_or_else(|| Error::corruption(path, None, "an unknown kind of key"))?;
        let (shown, sequence) = (Quoted(entry.user_key), entry.sequence);
        let fields = [
            ("family", Absent),
            ("sequence", Number(sequence)),
            ("key", Bytes(entry.user_key)),
            ("value", Bytes(cursor.value())),
        ];
        let wanted = match entry.kind {
            ValueKind::Put => {
                let value = Quoted(cursor.value());
                sink.give("put", &fields, format_args!("  {shown} at {sequence} = {value}"))
            }
            ValueKind::Deletion => {
                sink.give("delete", &fields[..3], format_args!("  {shown} at {sequence} deleted"))
            }
        };
        if !wanted {
            return Ok(());
        }
        cursor.next()?;
    }
    Ok(())
}

/// Gives the table's properties on as one item; the text has a line for each group of them.
fn print_table(table: &Table, size: u64, sink: &mut Sink<'_>) {
    let id = table.table_id();
    let properties = table.properties();
    let compression = match properties.compression {
        Compression::None => "none",
        Compression::Lz4 => "lz4",
    };
    let fields = [
        ("id", Id(id)),
        ("bytes", Number(size)),
        ("entries", Number(properties.entries)),
        ("deletions", Number(properties.deletions)),
        ("smallest_sequence", Number(properties.smallest_sequence)),
        ("largest_sequence", Number(properties.largest_sequence)),
        ("key_bytes", Number(properties.key_bytes)),
        ("value_bytes", Number(properties.value_bytes)),
        ("data_end", Number(properties.data_end)),
        ("largest_block", Number(properties.largest_block.into())),
        ("block_size", Number(properties.block_size.into())),
        ("restart_interval", Number(properties.restart_interval.into())),
        ("bloom_bits_per_key", Number(properties.bloom_bits_per_key.into())),
        ("compression", Word(compression)),
        ("smallest_key", user_key(&properties.smallest)),
        ("largest_key", user_key(&properties.largest)),
    ];
    let text = describe(properties);
    sink.give("table", &fields, format_args!("table, id {id:016x}, {size} bytes{text}"));
}

fn user_key(internal_key: &[u8]) -> Field<'_> {
    key::parse(internal_key).map_or(Absent, |key| Bytes(key.user_key))
}

fn describe(properties: &Properties) -> String {
    let Properties { entries, deletions, smallest_sequence, largest_sequence, .. } = properties;
    let mut text = format!(
        "\n{entries} entries, {deletions} of them deletions, sequences {smallest_sequence} to \
         {largest_sequence}\n{} bytes of keys, {} bytes of values, data up to {}, largest block \
         {}\nwritten with block size {}, restart interval {}, {} bits of filter a key, \
         compression {:?}",
        properties.key_bytes,
        properties.value_bytes,
        properties.data_end,
        properties.largest_block,
        properties.block_size,
        properties.restart_interval,
        properties.bloom_bits_per_key,
        properties.compression
    );
    for (name, key) in [("smallest", &properties.smallest), ("largest", &properties.largest)] {
        if let Some(parsed) = key::parse(key) {
            let key = Quoted(parsed.user_key);
            write!(text, "\n{name} key {key} at {}", parsed.sequence)
                .expect("a string takes everything");
        }
    }
    text
}
