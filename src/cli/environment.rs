//! `--env`: the environments by name.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::args::Store;
use super::args::memory::Memory;
use super::failure::{Failure, Result};
use super::output::note;
use super::overlay::OverlayEnv;
use crate::env::auto::Choice;
use crate::env::{
    BatchReads, EnvReport, ErrorKind, IoUringEnvBuilder, PosixEnvBuilder, Unavailable,
};
use crate::{Db, Env, Error, IoUringEnv, MemEnv, Options, PosixEnv};

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
    /// The same, past the page cache.
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
        self.make_with(Memory::default())
    }

    /// The same with so much memory.
    pub(crate) fn make_with(self, memory: Memory) -> Result<(Arc<dyn Env>, Option<Choice>)> {
        let refuse = |option| {
            let name = self.name();
            Err(Failure::usage(format!("{option} means nothing to --env {name}; leave it out")))
        };
        if memory.buffer_pool.is_some() && self == Self::Mem {
            return refuse("--buffer-pool");
        }
        if memory.read_ahead.is_some() && self != Self::IoUringDirect {
            return refuse("--read-ahead");
        }
        let env: Arc<dyn Env> = match self {
            Self::Auto => {
                let (env, choice) = crate::auto();
                if memory.buffer_pool.is_none() {
                    return Ok((env, Some(choice)));
                }
                // Its memory and rings first: what is made below may need them.
                drop(env);
                let env = match choice.env() {
                    "io_uring" => with_rings(IoUringEnv::builder(), memory)?,
                    _ => plain(PosixEnv::builder(), memory)?,
                };
                return Ok((env, Some(choice)));
            }
            Self::Posix => plain(PosixEnv::builder(), memory)?,
            Self::PosixSerial => {
                plain(PosixEnv::builder().batch_reads(BatchReads::Serial), memory)?
            }
            Self::IoUring => with_rings(IoUringEnv::builder(), memory)?,
            Self::IoUringDirect => with_rings(IoUringEnv::builder().direct_reads(true), memory)?,
            Self::Mem => Arc::new(MemEnv::new()),
        };
        Ok((env, None))
    }
}

fn plain(mut builder: PosixEnvBuilder, memory: Memory) -> Result<Arc<dyn Env>> {
    if let Some(bytes) = memory.buffer_pool {
        builder = builder.buffer_pool(bytes);
    }
    Ok(Arc::new(builder.build()?))
}

fn with_rings(mut builder: IoUringEnvBuilder, memory: Memory) -> Result<Arc<dyn Env>> {
    if let Some(bytes) = memory.buffer_pool {
        builder = builder.buffer_pool(bytes);
    }
    if let Some(bytes) = memory.read_ahead {
        builder = builder.read_ahead(bytes);
    }
    Ok(Arc::new(builder.build().map_err(|why| no_io_uring(&why))?))
}

fn no_io_uring(why: &Unavailable) -> Failure {
    Failure::failed(format!(
        "io_uring cannot be used here: {why}\n  use --env posix, which reads batches in parallel \
         too; `treering doctor` says more"
    ))
}

/// What a command does with the database it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An absent or empty directory becomes a database.
    Create,
    /// It changes one that is there.
    Change,
    /// It reads one that is there, also where that cannot be written.
    Read,
}

/// Opens the database that a command was given.
pub(crate) fn open(store: &Store, purpose: Purpose) -> Result<Db> {
    Ok(open_and_say(store, purpose)?.0)
}

/// The same; with `--env auto` also tells what was chosen and why.
pub(crate) fn open_and_say(store: &Store, purpose: Purpose) -> Result<(Db, Option<Choice>)> {
    let name = store.on.env()?;
    let create_if_missing = purpose == Purpose::Create || name == EnvName::Mem;
    if name != EnvName::Mem {
        refuse_dangling(&store.database)?;
    }
    if purpose == Purpose::Create && name != EnvName::Mem {
        refuse_foreign(&store.database)?;
    }
    let (env, choice) = name.make_with(store.on.memory)?;
    let options = Options { create_if_missing, ..Options::default() };
    let db = match purpose {
        Purpose::Read => open_to_read(env, &store.database, &options)?,
        Purpose::Create | Purpose::Change => open_with(env, &store.database, options)?,
    };
    Ok((db, choice))
}

/// A link that leads nowhere is neither a database nor a place for one.
pub(crate) fn refuse_dangling(dir: &Path) -> Result<()> {
    match std::fs::read_link(dir) {
        Ok(to) if matches!(dir.try_exists(), Ok(false)) => Err(Failure::failed(format!(
            "{} is a symbolic link to {}, which is not there\n  make that directory, or name \
             another one",
            dir.display(),
            to.display()
        ))),
        _ => Ok(()),
    }
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
    Ok(tell(Db::open(env, path, options)?, "for good"))
}

/// Opens a database for reading. Where it cannot be written, what an open makes stays in memory.
fn open_to_read(env: Arc<dyn Env>, path: &Path, options: &Options) -> Result<Db> {
    let error = match Db::open(Arc::clone(&env), path, options.clone()) {
        Err(error) if cannot_be_written(&error) => error,
        opened => return Ok(tell(opened?, "for good")),
    };
    let db = Db::open(Arc::new(OverlayEnv::new(env, path)), path, OverlayEnv::options(options))?;
    note(format_args!("note: {} cannot be written ({error}); it is read as it is", path.display()));
    Ok(tell(db, "here, and stay in the file"))
}

/// Whether an open may have failed only because it has to write.
fn cannot_be_written(error: &Error) -> bool {
    match error {
        Error::NoSpace(_) => true,
        Error::Io(cause) => {
            let too_large = Errno::FBIG.raw_os_error();
            cause.kind() == ErrorKind::Denied || cause.errno() == Some(too_large)
        }
        _ => false,
    }
}

/// Tells what an open has cut off, and for how long.
fn tell(db: Db, how_long: &str) -> Db {
    for cut in &db.recovery_report().cuts {
        note(format_args!(
            "warning: {}: {} bytes from offset {} were left out {how_long}: {}",
            cut.path.display(),
            cut.dropped_bytes,
            cut.offset,
            cut.reason
        ));
    }
    db
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Fault, FaultEnv, FaultKind, Op};

    /// In every way in which a database may refuse to be written, from the first step of an open
    /// to the last.
    #[test]
    fn what_cannot_be_written_is_read_all_the_same() {
        let options = || Options { create_if_missing: false, ..Options::default() };
        let memory = MemEnv::new();
        let db = Db::open(Arc::new(memory.clone()), "db", Options::default()).unwrap();
        db.put("k", "v").unwrap();
        db.close().unwrap();
        let denied = [Errno::ROFS, Errno::ACCESS, Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
        for errno in denied.map(Errno::raw_os_error) {
            for op in [Op::Lock, Op::Create, Op::Append, Op::Prepare, Op::Rename] {
                let faults = Arc::new(FaultEnv::new(Arc::new(memory.kill())));
                faults.add(Fault::new(FaultKind::Error(errno)).on(op));
                let env: Arc<dyn Env> = faults.clone();
                open_with(Arc::clone(&env), Path::new("db"), options()).unwrap_err();
                let db = open_to_read(env, Path::new("db"), &options()).unwrap();
                assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]), "{op:?} {errno}");
                db.close().unwrap();
            }
        }
        let eio = Arc::new(FaultEnv::new(Arc::new(memory)));
        eio.add(Fault::new(FaultKind::Error(Errno::IO.raw_os_error())).on(Op::Create));
        assert!(
            open_to_read(eio, Path::new("db"), &options()).is_err(),
            "no other error is hidden"
        );
    }
}
