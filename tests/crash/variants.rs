//! Tests of the tests: the engine with one of its durability steps left out, or made later than
//! the step it must come before, and the sweeps of this suite that must notice.
//!
//! Goal: every step by which the engine makes something durable is one that these tests would
//! miss; and it is the step that makes the difference, not the place of the cut.
//!
//! Method: the steps are told apart from outside, by an environment between the engine and the
//! memory whose power is cut ([`VariantEnv`]): by the kind of file, by the last record that was
//! appended to it, and by the name that was made last in the directory. So no engine is edited.
//! Each variant runs a workload that makes its step, cut everywhere, until the first image that
//! breaks a promise; then the engine as it is stands the same cuts of the same workload with the
//! same seed, which the other tests of this binary do in full.

use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use treering::env::{
    Access, DirEntry, Env, EnvReport, FileKind, FileLock, IoQueue, LogHandle, MemEnv, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

/// A step by which the engine makes something durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A sync of the log whose newest record is of this type.
    LogSync(Record),
    /// Zeros ahead in a new segment, and in one that is in use.
    PrepareNew,
    PrepareMore,
    /// The end of a table.
    TableFinish,
    /// A sync of a new manifest after its first state, and one after a later edit.
    ManifestState,
    ManifestEdit,
    /// The end of the temporary `CURRENT`.
    CurrentFinish,
    /// A sync of the directory after this was done there last.
    Names(Named),
}

/// Types of records of the log, by their bytes (`docs/format/record.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Begin = 1,
    Data = 2,
    End = 3,
}

/// What was done to the names of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Segment,
    Table,
    CurrentTemp,
    Current,
}

/// A call behind which a postponed step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// `CURRENT` is replaced.
    Rename,
    /// A file with this in its name is removed.
    Remove(&'static str),
    /// A step of the same kind or another one.
    Step(Step),
    /// The first record of a segment is written.
    Begin,
}

/// What is wrong with the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Variant {
    /// A step reports success and does nothing.
    Without(Step),
    /// A step is made right after a later event, and not before.
    Behind(Step, Event),
}

impl Variant {
    fn step(self) -> Step {
        match self {
            Variant::Without(step) | Variant::Behind(step, _) => step,
        }
    }
}

type Postponed = Box<dyn FnOnce() -> Result<()> + Send>;

/// What the parts of a [`VariantEnv`] share.
struct Shared {
    variant: Variant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_name: Option<Named>,
    postponed: Vec<Postponed>,
    /// How often the step was met.
    met: u64,
    /// How often a postponed one was made in the end.
    made: u64,
}

impl Shared {
    /// Makes a step, leaves it out, or keeps it for later.
    fn step(&self, step: Step, make: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        if step == self.variant.step() {
            let mut state = self.state.lock().unwrap();
            state.met += 1;
            if let Variant::Behind(..) = self.variant {
                state.postponed.push(Box::new(make));
            }
            return Ok(());
        }
        make()?;
        self.happened(Event::Step(step))
    }

    /// Makes what waited for this event.
    fn happened(&self, event: Event) -> Result<()> {
        match self.variant {
            Variant::Behind(_, awaited) if awaited == event => {
                let mut state = self.state.lock().unwrap();
                let postponed = std::mem::take(&mut state.postponed);
                state.made += postponed.len() as u64;
                drop(state);
                postponed.into_iter().try_for_each(|make| make())
            }
            _ => Ok(()),
        }
    }

    fn named(&self, name: Named) {
        self.state.lock().unwrap().last_name = Some(name);
    }
}

impl Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.variant.fmt(f)
    }
}

/// An environment in memory under an engine with a fault of its own.
#[derive(Clone, Debug)]
pub(crate) struct VariantEnv {
    inner: MemEnv,
    shared: Arc<Shared>,
}

impl VariantEnv {
    pub(crate) fn new(inner: &MemEnv, variant: Variant) -> Self {
        let shared = Arc::new(Shared { variant, state: Mutex::default() });
        Self { inner: inner.clone(), shared }
    }

    /// That a whole run came to the step in question, and made it if it was only postponed: one
    /// that is never made is one left out, and shows nothing of the order.
    pub(crate) fn assert_effective(&self) {
        let state = self.shared.state.lock().unwrap();
        assert!(state.met > 0, "{:?}: no such step", self.shared.variant);
        if let Variant::Behind(_, event) = self.shared.variant {
            assert!(state.made > 0, "{:?}: no {event:?} comes behind it", self.shared.variant);
        }
    }

    /// How often the engine came to the step in question.
    pub(crate) fn met(&self) -> u64 {
        self.shared.state.lock().unwrap().met
    }
}

impl Env for VariantEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        self.inner.open(path, access)
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.inner.open_rw(path)
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let inner = self.inner.create(path, kind)?;
        match kind {
            FileKind::Log => self.shared.named(Named::Segment),
            FileKind::Table => self.shared.named(Named::Table),
            FileKind::Other => self.shared.named(Named::CurrentTemp),
            FileKind::Manifest => {}
        }
        let progress = Arc::new(Mutex::new(Progress::default()));
        Ok(Box::new(VariantFile { inner, kind, progress, shared: Arc::clone(&self.shared) }))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.inner.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)?;
        self.shared.named(Named::Current);
        self.shared.happened(Event::Rename)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)?;
        match self.shared.variant {
            Variant::Behind(_, event @ Event::Remove(part))
                if path.to_string_lossy().contains(part) =>
            {
                self.shared.happened(event)
            }
            _ => Ok(()),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let last = self.shared.state.lock().unwrap().last_name;
        let (inner, dir) = (self.inner.clone(), PathBuf::from(dir));
        let make = move || inner.sync_dir(&dir);
        match last {
            Some(name) => self.shared.step(Step::Names(name), make),
            None => make(),
        }
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.inner.free_space(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.inner.lock(path)
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        self.inner.queue()
    }

    fn report(&self) -> EnvReport {
        self.inner.report()
    }
}

/// What was written to a file so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    last_record: Option<Record>,
    syncs: u64,
}

#[derive(Debug)]
struct VariantFile {
    inner: Box<dyn WritableFile>,
    kind: FileKind,
    progress: Arc<Mutex<Progress>>,
    shared: Arc<Shared>,
}

/// The step that a sync of a log or manifest is.
fn sync_step(kind: FileKind, progress: &Mutex<Progress>) -> Option<Step> {
    let mut progress = progress.lock().unwrap();
    progress.syncs += 1;
    match kind {
        FileKind::Log => progress.last_record.map(Step::LogSync),
        FileKind::Manifest if progress.syncs == 1 => Some(Step::ManifestState),
        FileKind::Manifest => Some(Step::ManifestEdit),
        FileKind::Table | FileKind::Other => None,
    }
}

/// The type of the last of the whole records in `bytes`.
fn last_record(mut bytes: &[u8]) -> Option<Record> {
    let mut last = None;
    while bytes.len() > 48 {
        let length = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        last = match bytes[8] {
            1 => Some(Record::Begin),
            // A marker stands behind data.
            2 | 4 => Some(Record::Data),
            3 => Some(Record::End),
            _ => None,
        };
        bytes = bytes.get((48 + length as usize).next_multiple_of(8)..).unwrap_or_default();
    }
    last
}

impl WritableFile for VariantFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.inner.append(data)?;
        if self.kind == FileKind::Log {
            self.progress.lock().unwrap().last_record = last_record(data);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()?;
        let begun = self.progress.lock().unwrap().last_record == Some(Record::Begin);
        if begun { self.shared.happened(Event::Begin) } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        self.inner.flush()?;
        let handle = self.inner.handle();
        match sync_step(self.kind, &self.progress) {
            Some(step) => self.shared.step(step, move || handle.sync()),
            None => handle.sync(),
        }
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn handle(&self) -> Arc<dyn LogHandle> {
        Arc::new(VariantHandle {
            inner: self.inner.handle(),
            kind: self.kind,
            progress: Arc::clone(&self.progress),
            shared: Arc::clone(&self.shared),
        })
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        let mut inner = self.inner;
        let step = match self.kind {
            FileKind::Table => Step::TableFinish,
            FileKind::Other => Step::CurrentFinish,
            FileKind::Log | FileKind::Manifest => return inner.finish(),
        };
        inner.flush()?;
        let size = inner.len();
        self.shared.step(step, move || inner.finish().map(drop))?;
        Ok(size)
    }
}

#[derive(Debug)]
struct VariantHandle {
    inner: Arc<dyn LogHandle>,
    kind: FileKind,
    progress: Arc<Mutex<Progress>>,
    shared: Arc<Shared>,
}

impl LogHandle for VariantHandle {
    fn sync(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        match sync_step(self.kind, &self.progress) {
            Some(step) => self.shared.step(step, move || inner.sync()),
            None => inner.sync(),
        }
    }

    fn prepare(&self, end: u64) -> Result<()> {
        let is_new = self.progress.lock().unwrap().last_record.is_none();
        let step = if is_new { Step::PrepareNew } else { Step::PrepareMore };
        let inner = Arc::clone(&self.inner);
        self.shared.step(step, move || inner.prepare(end))
    }
}
