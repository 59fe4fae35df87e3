//! The version set: the current versions of all families, and the manifest that makes each change
//! of them durable before anyone sees it.
//!
//! Invariants:
//! * A version is installed only after the edit that made it is durable.
//! * After the first failed write, sync or switch nothing is written any more and nothing is
//!   queued for removal: what is on disk is unknown until the next open. Every later call returns
//!   the first error.
//! * A new manifest, with its name, and the switch of `CURRENT` to it are durable before the old
//!   manifest is queued for removal.
//! * File numbers, sequence numbers and family ids only grow, over reopens and beyond stray files.

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::Env;

use super::edit::FamilyLog;
use super::manifest::{self, ManifestWriter};
use super::state::State;
use super::{FamilyId, FileMeta, FileNumbers, ObsoleteFiles, Version, VersionEdit, current};
use crate::filename::FileName;
use crate::record::{Cut, SegmentFact};
use crate::{Error, Result};

/// The default family's name.
pub(crate) const DEFAULT_FAMILY: &str = "default";

/// One family as the manifest has it.
#[derive(Clone, Debug)]
pub(crate) struct FamilyVersions {
    /// Its id.
    pub(crate) id: FamilyId,
    /// Its name.
    pub(crate) name: String,
    /// The oldest log segment that may hold records of it that no table holds.
    pub(crate) log_number: u64,
    /// Every operation up to this sequence number is in its tables.
    pub(crate) flushed_sequence: u64,
    /// Its tables.
    pub(crate) current: Arc<Version>,
}

/// What an edit changed, once it is durable.
#[derive(Debug)]
#[must_use = "readers see the new versions only when they are put into the read view"]
pub(crate) struct Installed {
    /// The new version of each family whose tables changed.
    pub(crate) versions: Vec<(FamilyId, Arc<Version>)>,
    /// No family needs a log segment below this number any more.
    pub(crate) log_floor: u64,
}

/// See the module. Used by one thread at a time, under a lock of its own, since an edit waits for
/// the device. The lock that readers and writers take must not be held meanwhile.
#[derive(Debug)]
pub(crate) struct VersionSet {
    env: Arc<dyn Env>,
    dir: PathBuf,
    numbers: Arc<FileNumbers>,
    obsolete: Arc<ObsoleteFiles>,
    state: State,
    versions: BTreeMap<FamilyId, Arc<Version>>,
    /// The manifest that `CURRENT` durably names.
    current_manifest: Option<u64>,
    writer: Option<ManifestWriter>,
    cut: Option<Cut>,
    failure: Option<Error>,
}

impl VersionSet {
    /// The version set of a database that does not exist yet, with the family `default`. Writes
    /// nothing: the database exists once [`VersionSet::roll`] succeeded. `dir` must exist.
    pub(crate) fn create(env: Arc<dyn Env>, dir: &Path) -> Result<Self> {
        let mut state = State::empty();
        let first = VersionEdit {
            next_family_id: Some(1),
            added_families: vec![(0, DEFAULT_FAMILY.to_owned())],
            ..VersionEdit::default()
        };
        state.apply(&first).expect("the first family fits the empty state");
        Self::new(env, dir, state, None, None)
    }

    /// Reads the state of the database in `dir`; `None` if there is no `CURRENT`. Writes nothing.
    ///
    /// Every table that the state names is there with its recorded size: a missing one is
    /// [`Error::MissingFile`]. A damaged `CURRENT` or manifest is `Corruption`; an edit at the
    /// manifest's end that never became durable is left out ([`VersionSet::cut`]).
    ///
    /// Before the first change the set needs a new manifest: [`VersionSet::roll`].
    pub(crate) fn recover(env: Arc<dyn Env>, dir: &Path) -> Result<Option<Self>> {
        let Some(number) = current::read(&*env, dir)? else { return Ok(None) };
        let manifest = manifest::read(&*env, dir, number)?;
        for table in manifest.state.tables() {
            check_table(&*env, dir, table)?;
        }
        Self::new(env, dir, manifest.state, Some(number), manifest.cut).map(Some)
    }

    fn new(
        env: Arc<dyn Env>,
        dir: &Path,
        state: State,
        current_manifest: Option<u64>,
        cut: Option<Cut>,
    ) -> Result<Self> {
        let numbers = FileNumbers::new(state.next_file_number);
        for entry in env.list(dir)? {
            if let Some(number) = FileName::parse(&entry.name).and_then(number_of) {
                numbers.raise_above(number);
            }
        }
        let versions = state.families.iter();
        let versions = versions.map(|(id, family)| (*id, Arc::new(family.version()))).collect();
        Ok(Self {
            env,
            dir: dir.to_path_buf(),
            numbers: Arc::new(numbers),
            obsolete: Arc::default(),
            state,
            versions,
            current_manifest,
            writer: None,
            cut,
            failure: None,
        })
    }

    /// Applies `edit` by starting a new manifest that holds the state after it, and switches
    /// `CURRENT` to it. This is how a database is created and how an open ends.
    ///
    /// Errors are like those of [`VersionSet::log_and_apply`]; both manifests are kept then.
    pub(crate) fn roll(&mut self, edit: VersionEdit) -> Result<Installed> {
        let edit = self.admit(edit)?;
        let gone = self.apply(&edit);
        self.start_manifest()?;
        Ok(self.install(&edit, gone))
    }

    /// Makes `edit` durable, then installs it. The set fills in the file number counter and raises
    /// `last_sequence` to that of the tables added.
    ///
    /// [`Error::FamilyDropped`]: the edit is about a family that is gone; nothing was done, and
    /// the caller may remove the tables it wrote. Any other error means that the edit may or may
    /// not be there at the next open: no file that it names may be removed, and the database must
    /// stop writing.
    ///
    /// # Panics
    /// If the edit breaks a rule of the manifest (an overlap, a table removed that is not there):
    /// writing it would make the database unreadable.
    pub(crate) fn log_and_apply(&mut self, edit: VersionEdit) -> Result<Installed> {
        let mut edit = self.admit(edit)?;
        let wants_roll = self.writer.as_ref().expect("the set has a manifest").wants_roll();
        if wants_roll {
            self.start_manifest()?;
            edit.next_file_number = Some(self.numbers.peek());
        }
        let gone = self.apply(&edit);
        let writer = self.writer.as_mut().expect("the set has a manifest");
        if let Err(error) = writer.append(&edit) {
            return Err(self.fail(error));
        }
        Ok(self.install(&edit, gone))
    }

    /// Completes an edit with the facts that only grow, or refuses it.
    fn admit(&self, mut edit: VersionEdit) -> Result<VersionEdit> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let is_known = |id: FamilyId| {
            self.state.families.contains_key(&id)
                || edit.added_families.iter().any(|(added, _)| *added == id)
        };
        let removed = edit.removed.iter().map(|(id, _, _)| *id);
        let added = edit.added.iter().map(|(id, _, _)| *id);
        let logs = edit.family_logs.iter().map(|log| log.family);
        let dropped = edit.dropped_families.iter().copied();
        let mut named = removed.chain(added).chain(logs).chain(dropped);
        if let Some(id) = named.find(|id| !is_known(*id)) {
            return Err(Error::FamilyDropped { id });
        }
        edit.next_file_number = Some(self.numbers.peek());
        let tables = edit.added.iter().map(|(_, _, file)| file.largest_sequence);
        let flushed = edit.family_logs.iter().map(|log| log.flushed_sequence);
        let newest = tables.chain(flushed).max().unwrap_or(0).max(self.state.last_sequence);
        edit.last_sequence = Some(edit.last_sequence.unwrap_or(0).max(newest));
        let next_id = edit.added_families.iter().map(|(id, _)| id + 1).max();
        edit.next_family_id = next_id.max(edit.next_family_id).max(Some(self.state.next_family_id));
        Ok(edit)
    }

    /// Applies the edit to the state that the next manifest will hold; versions stay as they are.
    fn apply(&mut self, edit: &VersionEdit) -> Vec<Arc<FileMeta>> {
        match self.state.apply(edit) {
            Ok(gone) => gone,
            Err(broken) => panic!("a version edit must keep the manifest's rules: {broken}"),
        }
    }

    fn start_manifest(&mut self) -> Result<()> {
        let number = self.numbers.next();
        self.state.next_file_number = self.numbers.peek();
        let created = ManifestWriter::create(&*self.env, &self.dir, number, &self.state.snapshot())
            .and_then(|writer| current::switch(&*self.env, &self.dir, number).map(|()| writer));
        match created {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => return Err(self.fail(error)),
        }
        if let Some(old) = self.current_manifest.replace(number) {
            self.obsolete.push(FileName::Manifest(old));
        }
        Ok(())
    }

    fn fail(&mut self, error: Error) -> Error {
        // Closing the file here could only add to what is unknown; it is never written again.
        self.failure = Some(error.clone());
        error
    }

    fn install(&mut self, edit: &VersionEdit, gone: Vec<Arc<FileMeta>>) -> Installed {
        for file in gone {
            file.mark_obsolete(&self.obsolete);
        }
        for id in &edit.dropped_families {
            self.versions.remove(id);
        }
        let removed = edit.removed.iter().map(|(id, _, _)| *id);
        let added = edit.added.iter().map(|(id, _, _)| *id);
        let new = edit.added_families.iter().map(|(id, _)| *id);
        let mut changed: Vec<FamilyId> = removed.chain(added).chain(new).collect();
        changed.sort_unstable();
        changed.dedup();
        let mut versions = Vec::new();
        for id in changed {
            if let Some(family) = self.state.families.get(&id) {
                let version = Arc::new(family.version());
                self.versions.insert(id, Arc::clone(&version));
                versions.push((id, version));
            }
        }
        Installed { versions, log_floor: self.state.log_floor() }
    }

    /// The counter of file numbers; it may be used without the set's lock.
    pub(crate) fn numbers(&self) -> &Arc<FileNumbers> {
        &self.numbers
    }

    /// The queue of files to remove; it may be used without the set's lock.
    pub(crate) fn obsolete(&self) -> &Arc<ObsoleteFiles> {
        &self.obsolete
    }

    /// The families, by id.
    pub(crate) fn families(&self) -> impl Iterator<Item = FamilyVersions> {
        self.versions.iter().map(|(&id, version)| {
            let family = self.state.families.get(&id).expect("each version has its family");
            FamilyVersions {
                id,
                name: family.name.clone(),
                log_number: family.log_number,
                flushed_sequence: family.flushed_sequence,
                current: Arc::clone(version),
            }
        })
    }

    /// The family `id`.
    pub(crate) fn family(&self, id: FamilyId) -> Option<FamilyVersions> {
        self.families().find(|family| family.id == id)
    }

    /// The id for the next new family.
    pub(crate) fn next_family_id(&self) -> FamilyId {
        self.state.next_family_id
    }

    /// No table, and no flushed operation, has a newer sequence number.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.state.last_sequence
    }

    /// No family needs a log segment below this number.
    pub(crate) fn log_floor(&self) -> u64 {
        self.state.log_floor()
    }

    /// What is known of the log segments from the floor on, by number.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &SegmentFact> {
        self.state.logs.values()
    }

    /// The edit, left out at recovery, that never became durable.
    pub(crate) fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// The number of the manifest that `CURRENT` names, and its size in bytes if this set wrote
    /// it.
    pub(crate) fn manifest(&self) -> (Option<u64>, Option<u64>) {
        let size = self.writer.as_ref().map(ManifestWriter::size);
        (self.current_manifest, size)
    }

    /// Our own files in the directory that the durable manifest does not name: tables, manifests,
    /// a temporary `CURRENT`, and logs below the floor. Foreign names are not among them.
    ///
    /// Only at the end of an open, after [`VersionSet::roll`] and before any job runs: the tables
    /// of running jobs and of older versions look like left-overs.
    pub(crate) fn leftovers(&self) -> Result<Vec<FileName>> {
        let manifest = self.writer.as_ref().expect("the set has a manifest").number();
        let floor = self.log_floor();
        let is_leftover = |name: FileName| match name {
            FileName::Table(number) => !self.state.has_table(number),
            FileName::Manifest(number) => number != manifest,
            FileName::Log(number) => number < floor,
            FileName::CurrentTemp => true,
            FileName::Current | FileName::Lock => false,
        };
        let mut names = Vec::new();
        for entry in self.env.list(&self.dir)? {
            let name = FileName::parse(&entry.name).filter(|_| !entry.is_dir);
            let Some(name) = name else { continue };
            if is_leftover(name) {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// The number in a name.
fn number_of(name: FileName) -> Option<u64> {
    match name {
        FileName::Log(number) | FileName::Table(number) | FileName::Manifest(number) => {
            Some(number)
        }
        FileName::Current | FileName::CurrentTemp | FileName::Lock => None,
    }
}

fn check_table(env: &dyn Env, dir: &Path, table: &FileMeta) -> Result<()> {
    let path = FileName::Table(table.number).path(dir);
    match env.metadata(&path)? {
        None => Err(Error::MissingFile(path)),
        Some(found) if found.is_dir => {
            Err(Error::corruption(&path, None, "a directory in place of a table"))
        }
        Some(found) if found.size != table.size => {
            let what = format!("{} bytes long, {} recorded", found.size, table.size);
            Err(Error::corruption(&path, None, what))
        }
        Some(_) => Ok(()),
    }
}

/// For callers that move a family forward without adding a table.
impl From<&FamilyVersions> for FamilyLog {
    fn from(family: &FamilyVersions) -> Self {
        Self {
            family: family.id,
            log_number: family.log_number,
            flushed_sequence: family.flushed_sequence,
        }
    }
}
