//! `import` and `export`: entries from and to files of lines.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::access::{Span, check_key, check_value, shown};
use super::args::{Durability, Export, Import, LineFormat, OnError};
use super::environment::{Purpose, open};
use super::failure::{Exit, Failure, Result};
use super::interrupt::{Guard, Leftover, Stored, on_interrupt};
use super::layout::{Format, Layout};
use super::lines::{Line, Lines};
use super::new_file::NewFile;
use super::output::{Output, note, talks_to_a_terminal};
use super::size::{counted, human_size, to_f64};
use crate::{Db, WriteBatch, WriteOptions};

/// A batch also ends at this many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Skipped lines that are reported one by one; the others are only counted.
const REPORTED: u64 = 20;

/// Stores lines.
pub(crate) fn import(args: &Import) -> Result {
    if args.header && args.lines.format != Format::Tsv {
        return Err(Failure::usage("--header is for --format tsv; JSON fields have names"));
    }
    let mut lines = Lines::open("FILE", &args.file)?;
    let header = if args.header { header(&mut lines)? } else { None };
    // A first line that ends so says that all do: their CR is not the last column's.
    let bare = |header: &Vec<u8>| header.strip_suffix(b"\r").map(<[u8]>::to_vec);
    let (header, crlf) = match header.as_ref().and_then(bare) {
        Some(bare) => (Some(bare), true),
        None => (header, false),
    };
    let layout = layout(&args.lines, header.as_deref())?;
    if layout == Layout::WholeObject {
        return Err(Failure::usage("name the key's field with --key FIELD"));
    }
    let db = open(&args.store, Purpose::Create)?;
    let mut loader = Loader::new(&db, args);
    let progress = progress(lines.total());
    let started = Instant::now();
    let outcome = load(&mut lines, &layout, crlf, &mut loader, &progress);
    progress.finish_and_clear();
    // What was read before an error is stored and made durable, if that can be done.
    let kept = loader.finish();
    let rows = loader.stored.rows();
    let told = |failure| stopped(failure, &loader.stored);
    let bad_line = outcome.map_err(told)?;
    kept.map_err(told)?;
    if let Some(bad_line) = bad_line {
        db.close()?;
        return Err(Failure::failed(format!(
            "{bad_line}\n  {} before it stored; --on-error skip goes on",
            counted(rows, "entry", "entries")
        )));
    }
    let skipped = loader.skipped;
    db.close()?;
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let rate = to_f64(rows) / seconds;
    if args.json {
        let mut out = Output::new();
        out.json(&json!({
            "rows": rows,
            "skipped": skipped,
            "bytes": lines.bytes_read(),
            "seconds": seconds,
            "rows_per_sec": rate,
        }))?;
        out.finish()?;
    } else {
        note(format_args!(
            "{} stored, {skipped} skipped; {} in {seconds:.1} s ({rate:.0} rows/s)",
            counted(rows, "row", "rows"),
            human_size(lines.bytes_read()),
        ));
    }
    Ok(if skipped == 0 { Exit::Done } else { Exit::No })
}

/// An import that failed after some entries.
fn stopped(failure: Failure, stored: &Stored) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Failed(format!("{message}\n{stored}")),
        other => other,
    }
}

/// Writes lines.
pub(crate) fn export(args: &Export) -> Result {
    let layout = layout(&args.lines, None)?;
    let encoding = args.lines.bytes.encoding();
    let span = Span::new(&args.keys, encoding)?;
    let db = open(&args.store, Purpose::Read)?;
    let mut sink = Sink::create(&args.file)?;
    let mut line = Vec::new();
    let mut rows = 0_u64;
    for entry in span.entries(&db) {
        let (key, value) = entry?;
        line.clear();
        layout.write(&key, &value, &mut line).map_err(|what| {
            let message =
                format!("cannot write the entry of key {}: {what}", shown(encoding, &key));
            Failure::failed(message)
        })?;
        sink.write(&line)?;
        rows += 1;
    }
    sink.finish()?;
    db.close()?;
    if args.file != Path::new("-") {
        let rows = counted(rows, "row", "rows");
        note(format_args!("{rows} written to {}", args.file.display()));
    }
    Ok(Exit::Done)
}

fn layout(lines: &LineFormat, header: Option<&[u8]>) -> Result<Layout> {
    let (key, value) = (lines.key.as_deref(), lines.value.as_deref());
    Layout::new(lines.format, key, value, lines.bytes.encoding(), header).map_err(Failure::Usage)
}

fn header(lines: &mut Lines) -> Result<Option<Vec<u8>>> {
    match lines.next_line()? {
        Some(Line::Bytes(line)) => Ok(Some(line.to_vec())),
        Some(Line::TooLong) => Err(Failure::failed(format!("{}: too long", lines.position()))),
        None => Ok(None),
    }
}

/// Stores the lines up to the end, or up to a bad one where the command stops; then says what is
/// wrong with it.
fn load(
    lines: &mut Lines,
    layout: &Layout,
    crlf: bool,
    loader: &mut Loader<'_>,
    progress: &ProgressBar,
) -> Result<Option<String>> {
    while let Some(line) = lines.next_line()? {
        let added = match line {
            Line::TooLong => Err("the line is longer than any entry can be".to_owned()),
            Line::Bytes(line) => {
                let bare = line.strip_suffix(b"\r").filter(|_| crlf).unwrap_or(line);
                layout.parse(bare).and_then(|(key, value)| {
                    // A value that is the whole line keeps all of it, as an export promises.
                    loader.add(&key, if layout.value_is_line() { line } else { &value })
                })
            }
        };
        if let Err(what) = added {
            let message = format!("{}: {what}", lines.position());
            if loader.args.on_error == OnError::Stop {
                return Ok(Some(message));
            }
            loader.skip(&message);
        }
        if loader.is_full() {
            loader.store()?;
            progress.set_position(lines.bytes_read());
            let rows = counted(loader.stored.rows(), "row", "rows");
            progress.set_message(format!("{rows}, {} skipped", loader.skipped));
        }
    }
    Ok(None)
}

/// Collects entries into batches and stores them.
struct Loader<'a> {
    db: &'a Db,
    args: &'a Import,
    options: WriteOptions,
    batch: WriteBatch,
    stored: Stored,
    /// An interruption tells how far it came.
    _guard: Guard,
    skipped: u64,
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, args: &'a Import) -> Self {
        let options = WriteOptions { durability: Some(args.durability.into()) };
        let stored = Stored::new(args.durability != Durability::Buffered);
        let guard = on_interrupt(Leftover::Entries(stored.clone()));
        Self { db, args, options, batch: WriteBatch::new(), stored, _guard: guard, skipped: 0 }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String> {
        // Checked line by line, so that one oversized entry does not spoil its whole batch.
        check_key(key)?;
        check_value(value)?;
        self.batch.put(key, value);
        Ok(())
    }

    fn skip(&mut self, message: &str) {
        self.skipped += 1;
        if self.skipped <= REPORTED {
            note(format_args!("skipped: {message}"));
        } else if self.skipped == REPORTED + 1 {
            note("further skipped lines are only counted");
        }
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= self.args.batch as usize || self.batch.size_in_bytes() >= BATCH_BYTES
    }

    fn store(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let rows = batch.len() as u64;
        self.db.write_opt(batch, &self.options)?;
        self.stored.add(rows);
        Ok(())
    }

    /// Stores what is left and makes everything durable.
    fn finish(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            self.store()?;
        }
        Ok(self.db.sync_wal()?)
    }
}

/// Where an export goes.
enum Sink {
    Standard(Output),
    File(NewFile),
}

impl Sink {
    fn create(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Standard(Output::new()));
        }
        NewFile::create(path).map(Self::File)
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        match self {
            Self::Standard(out) => out.bytes(line),
            Self::File(file) => file.write(line),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Standard(out) => out.finish(),
            Self::File(file) => file.finish(),
        }
    }
}

/// A progress bar on a terminal; hidden elsewhere.
fn progress(total: Option<u64>) -> ProgressBar {
    if !talks_to_a_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg} eta {eta}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec} {msg}"),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(ProgressStyle::with_template(template).expect("the template is well formed"))
}
