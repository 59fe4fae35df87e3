//! Tables as text.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, Env};

use super::dump::{Quoted, Sink};
use crate::block_cache::BlockCache;
use crate::cursor::Cursor;
use crate::key::{self, ValueKind};
use crate::table::{Properties, Table};
use crate::{Error, Result};

/// Prints properties, blocks and entries of the table at `path`.
pub(super) fn print(env: &dyn Env, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let file = env.open(path, Access::Sequential)?;
    let size = file.size();
    let table = Arc::new(Table::open(Arc::clone(&file), size, &Arc::new(BlockCache::new(0)))?);
    sink.line(format_args!("table, id {:016x}, {size} bytes", table.table_id()));
    print_properties(table.properties(), sink);
    let mut cursor = table.scan(file);
    let mut block = None;
    cursor.seek_to_first()?;
    while cursor.valid() && !sink.is_full() {
        sink.count();
        let handle = table.find_block(cursor.key());
        if handle != block {
            block = handle;
            if let Some(handle) = handle {
                sink.line(format_args!(
                    "block at {}, {} bytes, data with trailer",
                    handle.offset, handle.size
                ));
            }
        }
        let entry = key::parse(cursor.key());
        let entry = entry.ok_or_else(|| Error::corruption(path, None, "an unknown kind of key"))?;
        let shown = Quoted(entry.user_key);
        let wanted = match entry.kind {
            ValueKind::Put => sink.line(format_args!(
                "  {shown} at {} = {}",
                entry.sequence,
                Quoted(cursor.value())
            )),
            ValueKind::Deletion => {
                sink.line(format_args!("  {shown} at {} deleted", entry.sequence))
            }
        };
        if !wanted {
            return Ok(());
        }
        cursor.next()?;
    }
    Ok(())
}

fn print_properties(properties: &Properties, sink: &mut Sink<'_>) {
    let Properties { entries, deletions, smallest_sequence, largest_sequence, .. } = properties;
    sink.line(format_args!(
        "{entries} entries, {deletions} of them deletions, sequences {smallest_sequence} to \
         {largest_sequence}"
    ));
    sink.line(format_args!(
        "{} bytes of keys, {} bytes of values, data up to {}, largest block {}",
        properties.key_bytes, properties.value_bytes, properties.data_end, properties.largest_block
    ));
    sink.line(format_args!(
        "written with block size {}, restart interval {}, {} bits of filter a key, compression {:?}",
        properties.block_size,
        properties.restart_interval,
        properties.bloom_bits_per_key,
        properties.compression
    ));
    for (name, key) in [("smallest", &properties.smallest), ("largest", &properties.largest)] {
        if let Some(parsed) = key::parse(key) {
            sink.line(format_args!(
                "{name} key {} at {}",
                Quoted(parsed.user_key),
                parsed.sequence
            ));
        }
    }
}
