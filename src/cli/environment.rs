//! `--env`: the environments by name.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::args::Store;
use super::failure::{Failure, Result};
use super::output::note;
use crate::env::auto::Choice;
use crate::env::{BatchReads, EnvReport, Unavailable};
use crate::{Db, Env, IoUringEnv, MemEnv, Options, PosixEnv};

/// The environments the command line knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum EnvName {
    /// `io_uring` where it works, otherwise `posix`; `stats` and `doctor` say which and why.
    #[serde(rename = "auto")]
    Auto,
    /// pread and pwrite; batches of reads are started together.
    #[serde(rename = "posix")]
    Posix,
    /// pread and pwrite, one after another: the baseline.
    #[serde(rename = "posix-serial")]
    PosixSerial,
    /// Batches of reads through rings shared with the kernel.
    #[value(name = "io_uring", alias = "io-uring")]
    #[serde(rename = "io_uring")]
    IoUring,
    /// The same, past the page cache and with 128 reads in flight.
    #[value(name = "io_uring-direct", alias = "io-uring-direct")]
    #[serde(rename = "io_uring-direct")]
    IoUringDirect,
    /// In memory.
    #[serde(rename = "mem")]
    Mem,
}

impl EnvName {
    /// The name as written on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Posix => "posix",
            Self::PosixSerial => "posix-serial",
            Self::IoUring => "io_uring",
            Self::IoUringDirect => "io_uring-direct",
            Self::Mem => "mem",
        }
    }

    /// Makes the environment. Asking for `io_uring` by name never gives anything else.
    pub(crate) fn make(self) -> Result<Arc<dyn Env>> {
        Ok(self.make_and_say()?.0)
    }

    /// The same; of `auto` also what it took and why.
    pub(crate) fn make_and_say(self) -> Result<(Arc<dyn Env>, Option<Choice>)> {
        let env: Arc<dyn Env> = match self {
            Self::Auto => {
                let (env, choice) = crate::auto();
                return Ok((env, Some(choice)));
            }
            Self::Posix => Arc::new(PosixEnv::new()),
            Self::PosixSerial => {
                Arc::new(PosixEnv::builder().batch_reads(BatchReads::Serial).build()?)
            }
            Self::IoUring => Arc::new(IoUringEnv::new().map_err(|why| no_io_uring(&why))?),
            Self::IoUringDirect => {
                let builder = IoUringEnv::builder().direct_reads(true);
                Arc::new(builder.build().map_err(|why| no_io_uring(&why))?)
            }
            Self::Mem => Arc::new(MemEnv::new()),
        };
        Ok((env, None))
    }
}

fn no_io_uring(why: &Unavailable) -> Failure {
    Failure::failed(format!(
        "io_uring cannot be used here: {why}\n  use --env posix, which reads batches in parallel \
         too; `treering doctor` says more"
    ))
}

/// Whether a command may create the database it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// An absent or empty directory becomes a database.
    Create,
    /// An absent database is an error.
    Refuse,
}

/// Opens the database that a command was given.
pub(crate) fn open(store: &Store, absent: Absent) -> Result<Db> {
    let env = store.on.env()?;
    let create_if_missing = absent == Absent::Create || env == EnvName::Mem;
    if absent == Absent::Create && env != EnvName::Mem {
        refuse_foreign(&store.database)?;
    }
    let options = Options { create_if_missing, ..Options::default() };
    open_with(env.make()?, &store.database, options)
}

/// The engine creates a database beside files it does not know. A person who names a directory of
/// other files has most likely mistyped, so the command line does not.
fn refuse_foreign(dir: &Path) -> Result<()> {
    if dir.join("CURRENT").exists() {
        return Ok(());
    }
    // What is not there, or no directory, is the engine's to judge.
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        if !may_be_there(&entry.file_name().to_string_lossy()) {
            return Err(Failure::failed(format!(
                "{} is not a Treering database and holds other files, such as {}\n  name an \
                 absent or empty directory to create a database in",
                dir.display(),
                entry.path().display()
            )));
        }
    }
    Ok(())
}

/// What an interrupted creation leaves, and what a new file system has.
fn may_be_there(name: &str) -> bool {
    let extension = Path::new(name).extension();
    matches!(name, "LOCK" | "CURRENT.tmp" | "lost+found")
        || name.starts_with("MANIFEST-")
        || extension.is_some_and(|extension| extension == "log" || extension == "sst")
}

/// Opens a database with `options`.
pub(crate) fn open_with(env: Arc<dyn Env>, path: &Path, options: Options) -> Result<Db> {
    let db = Db::open(env, path, options)?;
    for cut in &db.recovery_report().cuts {
        note(format_args!(
            "warning: {}: {} bytes from offset {} were left out for good: {}",
            cut.path.display(),
            cut.dropped_bytes,
            cut.offset,
            cut.reason
        ));
    }
    Ok(db)
}

/// A report as JSON: `{"env", "facts": [{"name", "value", "why"}], "counters": {..}}`.
pub(crate) fn report_json(report: &EnvReport) -> Value {
    let facts: Vec<Value> = report
        .facts
        .iter()
        .map(|fact| json!({ "name": fact.name, "value": fact.value, "why": fact.why }))
        .collect();
    let counters: Map<String, Value> =
        report.counters.iter().map(|(name, &value)| ((*name).to_owned(), value.into())).collect();
    json!({ "env": report.env, "facts": facts, "counters": counters })
}
