//! The flush job: a memtable becomes a table of level 0.

use std::sync::Arc;

use super::job::JobContext;
use super::output::Outputs;
use super::retain::Retention;
use crate::Result;
use crate::cursor::Cursor;
use crate::key;
use crate::version::FileMeta;

/// The job asks whether to stop once in this many entries.
const STOP_INTERVAL: u64 = 256;

/// Writes what `memtable` holds, except versions that nobody can see, as one table, durable with
/// its name. `None` if the memtable is empty. After an error no table is left.
///
/// The log must be durable up to the memtable's last sequence number before the table's edit is
/// logged: a batch over two families must not survive in one of them alone.
pub(crate) fn write_table(
    context: &JobContext<'_>,
    memtable: &mut dyn Cursor,
) -> Result<Option<Arc<FileMeta>>> {
    let mut outputs = Outputs::new(context.env, context.dir, context.numbers, context.options);
    let mut retention = Retention::new(context.snapshots);
    let mut entries = 0_u64;
    memtable.seek_to_first()?;
    while memtable.valid() {
        if entries.is_multiple_of(STOP_INTERVAL)
            && let Some(error) = (context.should_stop)()
        {
            return Err(error);
        }
        entries += 1;
        let parsed = key::parse(memtable.key()).expect("a memtable holds whole internal keys");
        if retention.keep(parsed.user_key, parsed.sequence) {
            outputs.add(memtable.key(), memtable.value())?;
        }
        memtable.next()?;
    }
    let mut tables = outputs.finish()?;
    assert!(tables.len() <= 1, "a flush never cuts its table");
    Ok(tables.pop())
}
