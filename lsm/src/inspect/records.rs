//! Log segments and manifests as text.

use std::fmt::{self, Write as _};
use std::path::Path;

use treering_env::Env;

use super::dump::{Quoted, Sink};
use super::item::Field::{self, Absent, Bytes, Id, Number, Word};
use crate::batch::{self, FamilyId};
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
            let text = format_args!("a spare: prepared, without a first record");
            sink.give("spare", &[], text);
            return Ok(());
        }
        return Err(Error::corruption(path, 0, "the file has no valid first record"));
    }
    match verdict(&evidence, &ALONE) {
        Verdict::CleanEnd | Verdict::CutEarlier => {
            let zeros = reader.size().saturating_sub(end);
            sink.give(
                "no_more_records",
                &[("offset", Number(end)), ("zeros", Number(zeros))],
                format_args!("{end:>10}  no more records; {zeros} bytes of zeros"),
            );
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
    let head = Head::of(record);
    match record.kind {
        RecordType::Begin => {
            let begin = Begin::decode(record.payload);
            let begin = begin.ok_or_else(|| malformed("a malformed first record"))?;
            check_begin(path, role, &begin)?;
            Ok(print_begin(&head, &begin, record.header.epoch, sink))
        }
        RecordType::Data => {
            let (first, count, ops) = check_batch(record.payload).map_err(malformed)?;
            let fields = [("sequence", Number(first)), ("operations", Number(count.into()))];
            let text = format_args!(": sequence {first}, {count} operations");
            Ok(head.give(&fields, text, sink) && print_ops(first, ops, count, sink))
        }
        RecordType::End => {
            let end = End::decode(record.payload);
            let end = end.ok_or_else(|| malformed("a malformed end record"))?;
            Ok(print_end_record(&head, &end, sink))
        }
        RecordType::Marker => Ok(head.give(&[], format_args!(""), sink)),
        RecordType::Edit => {
            let edit = match VersionEdit::decode(record.payload) {
                Ok(edit) => edit,
                Err(EditError::Malformed(what)) => return Err(malformed(what)),
                Err(EditError::Unsupported(found)) => return Err(unsupported(path, found)),
            };
            Ok(head.give(&[], format_args!(""), sink) && print_edit(&edit, sink))
        }
    }
}

/// What every record has.
struct Head {
    kind: &'static str,
    fields: [(&'static str, Field<'static>); 4],
    text: String,
}

impl Head {
    fn of(record: &Record<'_>) -> Self {
        let kind = match record.kind {
            RecordType::Begin => "begin",
            RecordType::Data => "data",
            RecordType::End => "end",
            RecordType::Marker => "marker",
            RecordType::Edit => "edit",
        };
        let bytes = record.payload.len();
        let (wal_seq, watermark) = (record.header.wal_seq, record.header.watermark);
        let fields = [
            ("offset", Number(record.offset)),
            ("record", Number(wal_seq)),
            ("bytes", Number(bytes as u64)),
            ("durable_below", Number(watermark)),
        ];
        let text = format!(
            "{:>10}  {kind:<6}  record {wal_seq}, {bytes} bytes, durable below {watermark}",
            record.offset
        );
        Self { kind, fields, text }
    }

    /// Gives the record on with what its type adds.
    fn give(
        &self,
        own: &[(&'static str, Field<'_>)],
        text: fmt::Arguments<'_>,
        sink: &mut Sink<'_>,
    ) -> bool {
        sink.give(self.kind, &[&self.fields[..], own].concat(), format_args!("{}{text}", self.text))
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

fn print_begin(head: &Head, begin: &Begin, epoch: u64, sink: &mut Sink<'_>) -> bool {
    let (role, kind) = match begin.role {
        FileRole::Log => ("log", "log segment"),
        FileRole::Manifest => ("manifest", "manifest"),
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
    let before = begin.predecessor.as_ref();
    let fields = [
        ("role", Word(role)),
        ("number", Number(begin.number)),
        ("epoch", Id(epoch)),
        ("after", Field::number(before.map(|before| before.number))),
        ("after_end", Field::number(before.map(|before| before.end))),
        ("after_record", Field::number(before.map(|before| before.last_wal_seq))),
    ];
    head.give(&fields, format_args!(": {text}"), sink)
}

fn print_end_record(head: &Head, end: &End, sink: &mut Sink<'_>) -> bool {
    let next = end.successor.as_ref();
    let fields = [
        ("next", Field::number(next.map(|next| next.number))),
        ("next_epoch", next.map_or(Absent, |next| Id(next.epoch))),
        ("next_prepared", Field::number(next.map(|next| next.prepared))),
    ];
    match next {
        None => head.give(&fields, format_args!(": closed"), sink),
        Some(next) => {
            let text = format_args!(
                ": goes on in {:06} (epoch {:016x}, {} bytes prepared)",
                next.number, next.epoch, next.prepared
            );
            head.give(&fields, text, sink)
        }
    }
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

fn print_ops(first: u64, ops: &[u8], count: u32, sink: &mut Sink<'_>) -> bool {
    batch::ops(ops, count).flatten().zip(first..).all(|(op, sequence)| {
        let (family, key) = (op.family, Quoted(op.key));
        let fields = [
            ("family", Number(family.into())),
            ("sequence", Number(sequence)),
            ("key", Bytes(op.key)),
            ("value", Bytes(op.value)),
        ];
        match op.kind {
            ValueKind::Put => {
                let value = Quoted(op.value);
                let text = format_args!("{:>12}put in family {family}: {key} = {value}", "");
                sink.give("put", &fields, text)
            }
            ValueKind::Deletion => {
                let text = format_args!("{:>12}delete in family {family}: {key}", "");
                sink.give("delete", &fields[..3], text)
            }
        }
    })
}

fn print_edit(edit: &VersionEdit, sink: &mut Sink<'_>) -> bool {
    print_state(edit, sink)
        && edit.logs.iter().all(|fact| print_log(fact, sink))
        && print_families(edit, sink)
        && edit.removed.iter().all(|&(family, level, number)| {
            let fields = [
                ("family", Number(family.into())),
                ("level", Number(level as u64)),
                ("number", Number(number)),
            ];
            let text = format_args!("family {family}, level {level}: remove table {number:06}");
            print_part("remove_table", &fields, text, sink)
        })
        && edit.added.iter().all(|(family, level, file)| print_added(*family, *level, file, sink))
}

/// Gives a part of an edit on: its text stands below that of the edit.
fn print_part(
    what: &'static str,
    fields: &[(&'static str, Field<'_>)],
    text: fmt::Arguments<'_>,
    sink: &mut Sink<'_>,
) -> bool {
    sink.give(what, fields, format_args!("{:>12}{text}", ""))
}

fn print_state(edit: &VersionEdit, sink: &mut Sink<'_>) -> bool {
    if let Some(format) = edit.format {
        let text = format_args!("whole state, format {format}");
        print_part("format", &[("format", Number(format.into()))], text, sink);
    }
    let numbers = [
        ("next_file_number", "next file number", edit.next_file_number),
        ("last_sequence", "last sequence", edit.last_sequence),
        ("next_family_id", "next family id", edit.next_family_id.map(u64::from)),
    ];
    numbers.into_iter().all(|(what, name, number)| {
        number.is_none_or(|number| {
            let text = format_args!("{name} {number}");
            print_part(what, &[("number", Number(number))], text, sink)
        })
    })
}

fn print_families(edit: &VersionEdit, sink: &mut Sink<'_>) -> bool {
    edit.dropped_families.iter().all(|&id| {
        let text = format_args!("drop family {id}");
        print_part("drop_family", &[("family", Number(id.into()))], text, sink)
    }) && edit.added_families.iter().all(|(id, name)| {
        let fields = [("family", Number((*id).into())), ("name", Bytes(name.as_bytes()))];
        let text = format_args!("add family {id}: {}", Quoted(name.as_bytes()));
        print_part("add_family", &fields, text, sink)
    }) && edit.family_logs.iter().all(|log| {
        let fields = [
            ("family", Number(log.family.into())),
            ("needs_logs_from", Number(log.log_number)),
            ("flushed_sequence", Number(log.flushed_sequence)),
        ];
        let text = format_args!(
            "family {}: needs logs from {:06}, flushed up to sequence {}",
            log.family, log.log_number, log.flushed_sequence
        );
        print_part("family_log", &fields, text, sink)
    })
}

fn print_log(fact: &SegmentFact, sink: &mut Sink<'_>) -> bool {
    let end = fact.end.map_or_else(
        || "not ended".to_owned(),
        |end| format!("ended at {} with record {}", end.end, end.last_wal_seq),
    );
    let fields = [
        ("number", Number(fact.number)),
        ("epoch", Id(fact.epoch)),
        ("prepared", Number(fact.prepared)),
        ("first_record", Number(fact.first_wal_seq)),
        ("end", Field::number(fact.end.map(|end| end.end))),
        ("last_record", Field::number(fact.end.map(|end| end.last_wal_seq))),
    ];
    let text = format_args!(
        "log {:06}: epoch {:016x}, {} bytes prepared, first record {}, {end}",
        fact.number, fact.epoch, fact.prepared, fact.first_wal_seq
    );
    print_part("log", &fields, text, sink)
}

fn print_added(family: FamilyId, level: usize, file: &FileMeta, sink: &mut Sink<'_>) -> bool {
    let fields = [
        ("family", Number(family.into())),
        ("level", Number(level as u64)),
        ("number", Number(file.number)),
        ("bytes", Number(file.size)),
        ("id", Id(file.table_id)),
        ("entries", Number(file.entries)),
        ("smallest_sequence", Number(file.smallest_sequence)),
        ("largest_sequence", Number(file.largest_sequence)),
        ("smallest_key", Bytes(file.smallest_user_key())),
        ("largest_key", Bytes(file.largest_user_key())),
    ];
    let text = format_args!(
        "family {family}, level {level}: add table {:06}: {} bytes, id {:016x}, {} entries, \
         sequences {} to {}, keys {} to {}",
        file.number,
        file.size,
        file.table_id,
        file.entries,
        file.smallest_sequence,
        file.largest_sequence,
        Quoted(file.smallest_user_key()),
        Quoted(file.largest_user_key())
    );
    print_part("add_table", &fields, text, sink)
}
