//! The manifest file: a file of records, the first of which holds a whole state and each later
//! one an edit. Each edit is synced before the next is appended.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use treering_env::{Env, ErrorKind, FileKind};

use super::edit::{EditError, FORMAT_VERSION, VersionEdit};
use super::state::State;
use crate::checksum::random_id;
use crate::filename::FileName;
use crate::record::{Begin, Bounds, Cut, FileRole, RecordReader, RecordType, RecordWriter, settle};
use crate::{Error, Result, TailPolicy};

/// A manifest is replaced when it is this much larger than twice its first state: small enough to
/// read quickly at open, large enough that replacing it stays rare.
const ROLL_SLACK: u64 = 4 << 20;

/// Appends edits to the current manifest. After the first failure it does nothing more.
#[derive(Debug)]
pub(super) struct ManifestWriter {
    number: u64,
    records: RecordWriter,
    snapshot_end: u64,
    slack: u64,
}

impl ManifestWriter {
    /// Creates manifest `number` with `snapshot` as its first state, durable but for its name.
    pub(super) fn create(
        env: &dyn Env,
        dir: &Path,
        number: u64,
        snapshot: &VersionEdit,
    ) -> Result<Self> {
        let path = FileName::Manifest(number).path(dir);
        let file = env.create(&path, FileKind::Manifest)?;
        let begin = Begin::new(FileRole::Manifest, number, None);
        let records = RecordWriter::begin(file, random_id(), 1, &begin)?;
        let mut manifest = Self { number, records, snapshot_end: 0, slack: ROLL_SLACK };
        manifest.append(snapshot)?;
        manifest.snapshot_end = manifest.records.end();
        Ok(manifest)
    }

    /// Appends an edit and makes it durable. After an error it is unknown whether the edit will
    /// be there at the next open.
    pub(super) fn append(&mut self, edit: &VersionEdit) -> Result<()> {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        self.records.append(RecordType::Edit, &[&bytes])?;
        self.records.sync()
    }

    /// The number in the file's name.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes in the file.
    pub(super) fn size(&self) -> u64 {
        self.records.end()
    }

    /// Whether the file is due to be replaced by a new one.
    pub(super) fn wants_roll(&self) -> bool {
        self.records.end() > self.slack + 2 * self.snapshot_end
    }

    /// Lets a test see rolls without megabytes of edits.
    #[cfg(test)]
    pub(super) fn set_slack(&mut self, slack: u64) {
        self.slack = slack;
    }
}

/// What a manifest says.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The state that its edits add up to.
    pub(crate) state: State,
    /// What was left out at its end: an edit that never became durable.
    pub(crate) cut: Option<Cut>,
}

/// What a manifest lays claim to, whichever of its edits turn out to be durable.
#[derive(Debug)]
pub(crate) struct Claims {
    /// Every table that an edit adds or removes.
    pub(crate) tables: HashSet<u64>,
    /// The oldest log segment that its first state needs.
    pub(crate) log_floor: u64,
    /// Whether the end was left out: an edit there may lay claim to more.
    pub(crate) is_cut: bool,
}

impl Claims {
    /// Reads what manifest `number` lays claim to; `None` if its first state is not there, so
    /// that `CURRENT` never named it.
    pub(crate) fn read(env: &dyn Env, dir: &Path, number: u64) -> Result<Option<Self>> {
        let path = FileName::Manifest(number).path(dir);
        let mut reading = Reading::new(&path, number);
        let cut = reading.run(RecordReader::open(env, &path)?)?;
        let Some(log_floor) = reading.first_log_floor else { return Ok(None) };
        Ok(Some(Self { tables: reading.tables, log_floor, is_cut: cut.is_some() }))
    }
}

/// Reads manifest `number`, which `CURRENT` names.
pub(crate) fn read(env: &dyn Env, dir: &Path, number: u64) -> Result<Manifest> {
    let path = FileName::Manifest(number).path(dir);
    let records = match RecordReader::open(env, &path) {
        Ok(records) => records,
        Err(Error::Io(error)) if error.kind() == ErrorKind::NotFound => {
            let name = FileName::Manifest(number).name();
            let what = format!(
                "it names {name}, which is missing; restore the whole directory from one copy"
            );
            return Err(Error::corruption(&FileName::Current.path(dir), None, what));
        }
        Err(error) => return Err(error),
    };
    let mut reading = Reading::new(&path, number);
    let cut = reading.run(records)?;
    if reading.first_log_floor.is_none() {
        // It was synced with its first state before CURRENT named it.
        return Err(Error::corruption(&path, reading.end, "the manifest has no first state"));
    }
    if !reading.state.families.contains_key(&0) {
        return Err(Error::corruption(&path, None, "no family has the id 0"));
    }
    Ok(Manifest { state: reading.state, cut })
}

struct Reading {
    path: PathBuf,
    number: u64,
    state: State,
    /// Where the valid records end.
    end: u64,
    /// That of the first state, once it was read.
    first_log_floor: Option<u64>,
    /// Every table that was added or removed.
    tables: HashSet<u64>,
}

impl Reading {
    fn new(path: &Path, number: u64) -> Self {
        let (path, state) = (path.to_path_buf(), State::empty());
        Self { path, number, state, end: 0, first_log_floor: None, tables: HashSet::new() }
    }

    /// Reads all edits; returns what was left out at the end.
    fn run(&mut self, mut records: RecordReader) -> Result<Option<Cut>> {
        while let Some(record) = records.read_next()? {
            self.record(record.kind, record.offset, record.payload)?;
        }
        let evidence = records.evidence(None)?;
        self.end = evidence.offset;
        // The tail policy of the options is about the log: whatever an unsynced edit changed is
        // still in the log, or in files that no durable edit names.
        let policy = TailPolicy::TruncateUnwitnessed;
        let bounds = Bounds { successor_end: None, recorded_end: None, is_newest: true, policy };
        settle(&self.path, &evidence, &bounds)
    }

    fn record(&mut self, kind: RecordType, offset: u64, payload: &[u8]) -> Result<()> {
        let broken = |what: &'static str| Err(Error::corruption(&self.path, offset, what));
        match kind {
            RecordType::Begin => match Begin::decode(payload) {
                Some(begin) if begin.role != FileRole::Manifest => broken("not a manifest"),
                Some(begin) if u32::from(begin.format) > FORMAT_VERSION => {
                    Err(self.unsupported(u32::from(begin.format)))
                }
                Some(begin) if begin.number != self.number => broken("another manifest's contents"),
                Some(_) => Ok(()),
                None => broken("a malformed first record"),
            },
            RecordType::Edit => self.edit(offset, payload),
            _ => broken("a record that no manifest has"),
        }
    }

    fn edit(&mut self, offset: u64, payload: &[u8]) -> Result<()> {
        let broken = |what: &'static str| Error::corruption(&self.path, offset, what);
        let edit = match VersionEdit::decode(payload) {
            Ok(edit) => edit,
            Err(EditError::Malformed(what)) => return Err(broken(what)),
            Err(EditError::Unsupported(found)) => return Err(self.unsupported(found)),
        };
        if edit.format.is_some() != self.first_log_floor.is_none() {
            return Err(broken("a whole state, and only that, begins a manifest"));
        }
        self.state.apply(&edit).map_err(broken)?;
        self.first_log_floor.get_or_insert(self.state.log_floor());
        self.tables.extend(edit.removed.iter().map(|(_, _, number)| number));
        self.tables.extend(edit.added.iter().map(|(_, _, file)| file.number));
        Ok(())
    }

    fn unsupported(&self, found: u32) -> Error {
        let (path, supported) = (self.path.clone(), FORMAT_VERSION);
        Error::UnsupportedVersion { path, found, supported }
    }
}
