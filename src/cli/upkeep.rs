//! `stats`, `verify`, `dump` and `compact`.

use serde_json::{Value, json};

use super::access::{Span, shown};
use super::args::{Compact, Dump, Report};
use super::encoding::Encoding;
use super::environment::{Purpose, open, open_and_say, refuse_dangling, report_json};
use super::failure::{Exit, Failure, Result};
use super::output::{Output, note};
use super::size::human_size;
use crate::inspect::{self, VerifyReport};
use crate::{Error, FamilyStats, RecoveryReport};

/// Prints what the database, its last recovery and its environment say about themselves.
pub(crate) fn stats(args: &Report) -> Result {
    let (db, choice) = open_and_say(&args.store, Purpose::Read)?;
    let choice = choice.map(|choice| choice.to_string());
    let mut out = Output::new();
    if args.output.json {
        out.json(&json!({
            "database": db.path().to_string_lossy(),
            "stats": stats_json(&db.stats()),
            "recovery": recovery_json(&db.recovery_report()),
            "environment": report_json(&db.env().report()),
            "auto": choice,
        }))?;
    } else {
        out.text(&db.stats())?;
        if let Some(choice) = choice {
            out.line(format_args!("--env auto took {choice}"))?;
        }
        out.text(&db.env().report())?;
    }
    out.finish()?;
    db.close()?;
    Ok(Exit::Done)
}

/// Reads every block of every file.
pub(crate) fn verify(args: &Report) -> Result {
    refuse_dangling(&args.store.database)?;
    let env = args.store.on.env()?.make_with(args.store.on.memory)?.0;
    let report = inspect::verify(env, &args.store.database)?;
    let read = format!(
        "{} files, {} blocks, {} read",
        report.files,
        report.blocks,
        human_size(report.bytes)
    );
    let mut out = Output::new();
    if args.output.json {
        out.json(&verify_json(&report))?;
    } else {
        for damage in &report.damages {
            out.line(damage_line(damage))?;
        }
        if report.damages.is_empty() {
            out.line(format_args!("no damage found: {read}"))?;
        }
    }
    out.finish()?;
    for tail in &report.tails {
        note(format_args!(
            "{}\n  a write that never finished, as after a power loss; the next open cuts it off",
            damage_line(tail)
        ));
    }
    if report.damages.is_empty() {
        return Ok(Exit::Done);
    }
    let count = report.damages.len();
    note(format_args!(
        "{count} damaged {}: {read}\n  to repair it restore the whole directory from one copy, \
         since every open replaces files; keys outside those named can still be read (`scan \
         --encoding escape --from KEY` goes on behind a damage, from the last key that it names), \
         while a damaged CURRENT, manifest or log keeps the database from opening",
        if count == 1 { "place" } else { "places" }
    ));
    Ok(Exit::Damaged)
}

fn damage_line(damage: &inspect::Damage) -> String {
    let at = damage.offset.map_or_else(String::new, |offset| format!(" at offset {offset}"));
    let keys = damage.keys.as_ref().map_or_else(String::new, |(least, greatest)| {
        // So quoted a shell takes them as they are.
        let quoted = |key| shown(Encoding::Escape, key).replace('\'', "\\x27");
        format!(" (keys from '{}' to '{}')", quoted(least), quoted(greatest))
    });
    format!("{}{at}: {}{keys}", damage.path.display(), damage.what)
}

fn verify_json(report: &VerifyReport) -> Value {
    let places = |damages: &[inspect::Damage]| -> Vec<Value> {
        damages
            .iter()
            .map(|damage| {
                json!({
                    "path": damage.path.to_string_lossy(),
                    "offset": damage.offset,
                    "what": damage.what,
                    "keys": damage.keys.as_ref().map(|(least, greatest)| json!({
                        "encoding": "escape",
                        "from": Encoding::Escape.to_json(least),
                        "to": Encoding::Escape.to_json(greatest),
                    })),
                })
            })
            .collect()
    };
    json!({
        "files": report.files,
        "blocks": report.blocks,
        "bytes": report.bytes,
        "damages": places(&report.damages),
        "unfinished_tails": places(&report.tails),
    })
}

/// What `dump` takes.
const DUMPED: &str =
    "name a table (*.sst), a log segment (*.log), a manifest (MANIFEST-*) or CURRENT";

/// Prints what is in one file.
pub(crate) fn dump(args: &Dump) -> Result {
    // The engine would call this damage; here somebody named the wrong thing.
    if std::fs::metadata(&args.file).is_ok_and(|found| !found.is_file()) {
        return Err(Failure::failed(format!(
            "{} is not a regular file; {DUMPED}",
            args.file.display()
        )));
    }
    let env = args.on.env()?.make_with(args.on.memory)?.0;
    let mut out = Output::new();
    let mut closed = None;
    let limit = args.limit.unwrap_or(u64::MAX);
    let dumped = inspect::dump(env, &args.file, limit, &mut |item| {
        let printed = if args.json { out.json_line(&item_json(item)) } else { out.line(item) };
        closed = printed.err();
        closed.is_none()
    });
    let finished = out.finish();
    if let Some(failure) = closed {
        return Err(failure);
    }
    dumped.map_err(|error| match error {
        // The argument is the command's own, and so is the way out.
        Error::InvalidArgument(what) => Failure::failed(format!("{what}\n  {DUMPED}")),
        error => error.into(),
    })?;
    finished?;
    Ok(Exit::Done)
}

/// An item of a dump: its fields behind `what`.
fn item_json(item: &inspect::Item<'_>) -> Value {
    let what = ("what".to_owned(), item.what.into());
    let fields = item.fields.iter().map(|(name, field)| {
        let value = match *field {
            inspect::Field::Number(number) => number.into(),
            inspect::Field::Id(id) => format!("{id:016x}").into(),
            inspect::Field::Word(word) => word.into(),
            inspect::Field::Bytes(bytes) => Encoding::Text.to_json(bytes),
            inspect::Field::Absent => Value::Null,
        };
        ((*name).to_owned(), value)
    });
    Value::Object(std::iter::once(what).chain(fields).collect())
}

/// Flushes and compacts.
pub(crate) fn compact(args: &Compact) -> Result {
    let span = Span::new(&args.keys, args.bytes.encoding())?;
    let db = open(&args.store, Purpose::Change)?;
    db.flush()?;
    db.compact_range(span.bounds())?;
    db.wait_for_compact()?;
    let stats = db.stats();
    let mut out = Output::new();
    if args.json {
        out.json(&stats_json(&stats))?;
    } else {
        out.text(&stats)?;
    }
    out.finish()?;
    db.close()?;
    Ok(Exit::Done)
}

fn stats_json(stats: &crate::Stats) -> Value {
    json!({
        "families": stats.families.iter().map(family_json).collect::<Vec<_>>(),
        "last_sequence": stats.last_sequence,
        "snapshots": stats.snapshots,
        "groups": stats.groups,
        "batches": stats.batches,
        "largest_group": stats.largest_group,
        "log_bytes": stats.log_bytes,
        "log_syncs": stats.log_syncs,
        "log_switches": stats.log_switches,
        "log_segments": stats.log_segments,
        "log_size": stats.log_size,
        "flushes": stats.flushes,
        "flushed_bytes": stats.flushed_bytes,
        "failed_flushes": stats.failed_flushes,
        "flush_error": stats.flush_error,
        "compactions": stats.compactions,
        "moves": stats.moves,
        "compaction_read": stats.compaction_read,
        "compaction_written": stats.compaction_written,
        "running_compactions": stats.running_compactions,
        "failed_compactions": stats.failed_compactions,
        "compaction_error": stats.compaction_error,
        "slowed_writes": stats.slowed_writes,
        "stopped_writes": stats.stopped_writes,
        "removed_files": stats.removed_files,
        "failed_removals": stats.failed_removals,
        "cache_hits": stats.cache_hits,
        "cache_misses": stats.cache_misses,
        "cache_bytes": stats.cache_bytes,
        "open_tables": stats.open_tables,
        "poisoned": stats.poisoned,
    })
}

fn family_json(family: &FamilyStats) -> Value {
    let levels: Vec<Value> = family
        .levels
        .iter()
        .map(|level| json!({ "files": level.files, "bytes": level.bytes }))
        .collect();
    json!({
        "name": family.name,
        "memtable_bytes": family.memtable_bytes,
        "memtable_entries": family.memtable_entries,
        "immutable_memtables": family.immutable_memtables,
        "immutable_bytes": family.immutable_bytes,
        "levels": levels,
        "pending_compaction_bytes": family.pending_compaction_bytes,
    })
}

fn recovery_json(report: &RecoveryReport) -> Value {
    let cuts: Vec<Value> = report
        .cuts
        .iter()
        .map(|cut| {
            json!({
                "path": cut.path.to_string_lossy(),
                "offset": cut.offset,
                "dropped_bytes": cut.dropped_bytes,
                "reason": cut.reason,
            })
        })
        .collect();
    json!({
        "created": report.created,
        "segments": report.segments,
        "records": report.records,
        "bytes": report.bytes,
        "operations": report.operations,
        "tables": report.tables,
        "cuts": cuts,
        "removed_files": report.removed_files,
    })
}
