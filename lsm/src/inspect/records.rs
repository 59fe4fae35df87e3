//! Log segments and manifests as text.

use std::fmt::Write as _;
use std::path::Path;

use treering_env::Env;

use super::dump::{Quoted, Sink};
use crate::batch;
use crate::key::{self, ValueKind};
use crate::record::{
    Begin, Bounds, End, FORMAT_VERSION, FileRole, Record, RecordReader, RecordType, SegmentFact,
    Verdict, settle, verdict,
};
use crate::version::edit::EditError;
use crate::version::{FileMeta, VersionEdit};
use crate::{Error, Result, TailPolicy};

/// Nothing is known about the file but itself.
const ALONE: Bounds = Bounds {
    successor_end: None,
    recorded_end: None,
    is_newest: true,
    policy: TailPolicy::TruncateUnwitnessed,
};

/// Prints the records of the file at `path`, which should have `role`.
pub(super) fn print(env: &dyn Env, path: &Path, role: FileRole, sink: &mut Sink<'_>) -> Result<()> {
    let mut reader = RecordReader::open(env, path)?;
    let mut ended = false;
    while !ended {
        if sink.is_full() {
            return Ok(());
        }
        let Some(record) = reader.read_next()? else { break };
        sink.count();
        ended = record.kind == RecordType::End;
        if !print_record(path, role, &record, sink)? {
            return Ok(());
        }
    }
    if ended {
        return Ok(());
    }
    print_end(path, role, &mut reader, sink)
}

/// The end of a file that no end record closes.
fn print_end(
    path: &Path,
    role: FileRole,
    reader: &mut RecordReader,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let evidence = reader.evidence(None)?;
    let end = evidence.offset;
    if reader.last().is_none() {
        if role == FileRole::Log && evidence.tail_end == 0 {
            sink.line(format_args!("a spare: prepared, without a first record"));
            return Ok(());
        }
        return Err(Error::corruption(path, 0, "the file has no valid first record"));
    }
    match verdict(&evidence, &ALONE) {
        Verdict::CleanEnd | Verdict::CutEarlier => {
            let zeros = reader.size().saturating_sub(end);
            sink.line(format_args!("{end:>10}  no more records; {zeros} bytes of zeros"));
            Ok(())
        }
        Verdict::TornTail | Verdict::UnsyncedReorder => {
            let what = format!(
                "{} bytes of a write that never finished, or damage that nothing witnesses",
                evidence.tail_end - end
            );
            Err(Error::corruption(path, end, what))
        }
        Verdict::Corruption(_) => settle(path, &evidence, &ALONE).map(|_| ()),
    }
}

/// Prints one record; whether more is wanted.
fn print_record(
    path: &Path,
    role: FileRole,
    record: &Record<'_>,
    sink: &mut Sink<'_>,
) -> Result<bool> {
    let malformed = |what: &'static str| Error::corruption(path, record.offset, what);
    let head = format!(
        "{:>10}  {:<6}  record {}, {} bytes, durable below {}",
        record.offset,
        format!("{:?}", record.kind).to_lowercase(),
        record.header.wal_seq,
        record.payload.len(),
        record.header.watermark
    );
    match record.kind {
        RecordType::Begin => {
            let begin = Begin::decode(record.payload);
            let begin = begin.ok_or_else(|| malformed("a malformed first record"))?;
            check_begin(path, role, &begin)?;
            Ok(sink.line(format_args!("{head}: {}", describe_begin(&begin, record.header.epoch))))
        }
        RecordType::Data => {
            let (first, count, ops) = check_batch(record.payload).map_err(malformed)?;
            let wanted = sink.line(format_args!("{head}: sequence {first}, {count} operations"));
            Ok(wanted && print_ops(ops, count, sink))
        }
        RecordType::End => {
            let end = End::decode(record.payload);
            let end = end.ok_or_else(|| malformed("a malformed end record"))?;
            Ok(match end.successor {
                None => sink.line(format_args!("{head}: closed")),
                Some(next) => sink.line(format_args!(
                    "{head}: goes on in {:06} (epoch {:016x}, {} bytes prepared)",
                    next.number, next.epoch, next.prepared
                )),
            })
        }
        RecordType::Marker => Ok(sink.line(format_args!("{head}"))),
        RecordType::Edit => {
            let edit = match VersionEdit::decode(record.payload) {
                Ok(edit) => edit,
                Err(EditError::Malformed(what)) => return Err(malformed(what)),
                Err(EditError::Unsupported(found)) => return Err(unsupported(path, found)),
            };
            Ok(sink.line(format_args!("{head}")) && print_edit(&edit, sink))
        }
    }
}

fn check_begin(path: &Path, role: FileRole, begin: &Begin) -> Result<()> {
    if begin.format > u16::from(FORMAT_VERSION) {
        return Err(unsupported(path, u32::from(begin.format)));
    }
    if begin.role != role {
        return Err(Error::corruption(path, 0, "the first record is that of another kind of file"));
    }
    Ok(())
}

fn unsupported(path: &Path, found: u32) -> Error {
    let supported = u32::from(FORMAT_VERSION);
    Error::UnsupportedVersion { path: path.to_path_buf(), found, supported }
}

fn describe_begin(begin: &Begin, epoch: u64) -> String {
    let kind = match begin.role {
        FileRole::Log => "log segment",
        FileRole::Manifest => "manifest",
    };
    let mut text = format!("{kind} {:06}, epoch {epoch:016x}", begin.number);
    if let Some(before) = &begin.predecessor {
        write!(
            text,
            ", after {:06}, which ended at {} with record {}",
            before.number, before.end, before.last_wal_seq
        )
        .expect("a string takes everything");
    }
    text
}

/// The parts of a data record, if it is a whole write batch with possible sequence numbers.
pub(super) fn check_batch(payload: &[u8]) -> Result<(u64, u32, &[u8]), &'static str> {
    let header = batch::decode_header(payload).ok_or("a write record without a header")?;
    let (first, count, ops) = header;
    let last = first.checked_add(u64::from(count));
    if first == 0 || count == 0 || last.is_none_or(|end| end - 1 > key::MAX_SEQUENCE) {
        return Err("a write record with impossible sequence numbers");
    }
    if batch::ops(ops, count).any(|op| op.is_none()) {
        return Err("a write record with malformed operations");
    }
    Ok(header)
}

fn print_ops(ops: &[u8], count: u32, sink: &mut Sink<'_>) -> bool {
    batch::ops(ops, count).flatten().all(|op| {
        let key = Quoted(op.key);
        match op.kind {
            ValueKind::Put => sink.line(format_args!(
                "{:>12}put in family {}: {key} = {}",
                "",
                op.family,
                Quoted(op.value)
            )),
            ValueKind::Deletion => {
                sink.line(format_args!("{:>12}delete in family {}: {key}", "", op.family))
            }
        }
    })
}

fn print_edit(edit: &VersionEdit, sink: &mut Sink<'_>) -> bool {
    let mut lines = Vec::new();
    if let Some(format) = edit.format {
        lines.push(format!("whole state, format {format}"));
    }
    if let Some(number) = edit.next_file_number {
        lines.push(format!("next file number {number}"));
    }
    if let Some(sequence) = edit.last_sequence {
        lines.push(format!("last sequence {sequence}"));
    }
    if let Some(id) = edit.next_family_id {
        lines.push(format!("next family id {id}"));
    }
    lines.extend(edit.logs.iter().map(describe_log));
    lines.extend(edit.dropped_families.iter().map(|id| format!("drop family {id}")));
    lines.extend(
        edit.added_families
            .iter()
            .map(|(id, name)| format!("add family {id}: {}", Quoted(name.as_bytes()))),
    );
    lines.extend(edit.family_logs.iter().map(|log| {
        format!(
            "family {}: needs logs from {:06}, flushed up to sequence {}",
            log.family, log.log_number, log.flushed_sequence
        )
    }));
    lines.extend(edit.removed.iter().map(|(family, level, number)| {
        format!("family {family}, level {level}: remove table {number:06}")
    }));
    lines.extend(edit.added.iter().map(|(family, level, file)| {
        format!("family {family}, level {level}: add {}", describe_table(file))
    }));
    lines.iter().all(|line| sink.line(format_args!("{:>12}{line}", "")))
}

fn describe_log(fact: &SegmentFact) -> String {
    let end = fact.end.map_or_else(
        || "not ended".to_owned(),
        |end| format!("ended at {} with record {}", end.end, end.last_wal_seq),
    );
    format!(
        "log {:06}: epoch {:016x}, {} bytes prepared, first record {}, {end}",
        fact.number, fact.epoch, fact.prepared, fact.first_wal_seq
    )
}

fn describe_table(file: &FileMeta) -> String {
    format!(
        "table {:06}: {} bytes, id {:016x}, {} entries, sequences {} to {}, keys {} to {}",
        file.number,
        file.size,
        file.table_id,
        file.entries,
        file.smallest_sequence,
        file.largest_sequence,
        Quoted(file.smallest_user_key()),
        Quoted(file.largest_user_key())
    )
}
