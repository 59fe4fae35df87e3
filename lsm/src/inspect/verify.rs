//! Reading everything: `CURRENT`, the manifest, the tables it names, the logs it needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::{Access, Env, ErrorKind, FileLock};

use super::records::check_batch;
use super::{Damage, VerifyReport};
use crate::block_cache::BlockCache;
use crate::filename::FileName;
use crate::key::user_key;
use crate::record::{Cut, CutReason, RecordReader, RecordType, SegmentFact, Stop};
use crate::table::{BlockCache as TableBlocks, Table};
use crate::version::edit::EditError;
use crate::version::state::State;
use crate::version::{FileMeta, VersionEdit, current, manifest};
use crate::wal::{ReplayPlan, replay};
use crate::{Error, Result, TailPolicy};

/// See [`super::verify`].
pub(super) fn verify(env: Arc<dyn Env>, dir: &Path) -> Result<VerifyReport> {
    let not_one = |what: &'static str| {
        Err(Error::NotADatabase { path: dir.to_path_buf(), what: what.into(), advice: None })
    };
    match env.metadata(dir)? {
        None => return not_one("there is no such directory"),
        Some(metadata) if !metadata.is_dir => return not_one("it is a file"),
        Some(_) => {}
    }
    let _lock = lock(&*env, dir)?;
    let mut names = BTreeSet::new();
    for entry in env.list(dir)? {
        names.extend(FileName::parse(&entry.name));
    }
    let blocks = Arc::new(BlockCache::new(0));
    let report = VerifyReport::default();
    let mut check =
        Check { env, dir: dir.to_path_buf(), names, blocks, report, unjudged: Vec::new() };
    if !check.is_database() {
        return not_one("it holds neither a table nor a log that was begun");
    }
    if let Some(state) = check.manifest() {
        check.state(&state);
    } else {
        check.files_alone();
    }
    // Nothing is known to be wrong with the files: they could not be judged.
    if check.unjudged.len() == check.report.damages.len()
        && let Some(error) = check.unjudged.pop()
    {
        return Err(error);
    }
    Ok(check.report)
}

/// Takes the database's lock, if there is a lock file and it can be opened: a copy on a medium
/// that cannot be written is nobody's to change.
fn lock(env: &dyn Env, dir: &Path) -> Result<Option<FileLock>> {
    let path = FileName::Lock.path(dir);
    if env.metadata(&path)?.is_none() {
        return Ok(None);
    }
    match env.lock(&path) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == ErrorKind::Locked => Err(Error::from(error)),
        Err(_) => Ok(None),
    }
}

/// Whether an error says that a file could not be judged, and not that something is wrong with it:
/// it is of a newer format, or this process may not read it.
fn is_no_damage(error: &Error) -> bool {
    match error {
        Error::UnsupportedVersion { .. } => true,
        Error::Io(io) => io.kind() == ErrorKind::Denied,
        _ => false,
    }
}

struct Check {
    env: Arc<dyn Env>,
    dir: PathBuf,
    names: BTreeSet<FileName>,
    blocks: Arc<TableBlocks>,
    report: VerifyReport,
    /// Those of the damages that are none.
    unjudged: Vec<Error>,
}

impl Check {
    /// Whether there is anything that a database would leave: a creation that never finished has
    /// no `CURRENT`, no table and no log with a record in it.
    fn is_database(&self) -> bool {
        for name in &self.names {
            let counts = match name {
                FileName::Current | FileName::Table(_) => true,
                FileName::Log(_) => {
                    let path = name.path(&self.dir);
                    // What cannot be read is reported below, with everything else.
                    let first = RecordReader::open(&*self.env, &path)
                        .and_then(|mut records| Ok(records.read_next()?.is_some()));
                    first.unwrap_or(true)
                }
                _ => false,
            };
            if counts {
                return true;
            }
        }
        false
    }

    fn damage(&mut self, path: &Path, error: &Error) {
        let damage = Damage::new(path, error);
        let found = self.report.damages.iter().any(|earlier| {
            earlier.path == damage.path
                && earlier.offset == damage.offset
                && (damage.offset.is_some() || earlier.what == damage.what)
        });
        if !found {
            self.report.damages.push(damage);
            if is_no_damage(error) {
                self.unjudged.push(error.clone());
            }
        }
    }

    fn tail(&mut self, path: &Path, cut: &Cut) {
        let what = match cut.reason {
            CutReason::TornTail => "a write that never finished",
            CutReason::UnsyncedReorder => "unsynced writes behind one that was lost",
        };
        let what = format!("{what}: {} bytes", cut.dropped_bytes);
        let (path, offset) = (path.to_path_buf(), Some(cut.offset));
        self.report.tails.push(Damage { path, offset, what, keys: None });
    }

    /// The state that `CURRENT` and the manifest give, unless they are damaged.
    fn manifest(&mut self) -> Option<State> {
        let path = FileName::Current.path(&self.dir);
        self.report.files += 1;
        let number = match current::read(&*self.env, &self.dir) {
            Ok(Some(number)) => number,
            Ok(None) => {
                self.damage(&path, &Error::MissingFile(path.clone()));
                return None;
            }
            Err(error) => {
                self.damage(&path, &error);
                return None;
            }
        };
        let path = FileName::Manifest(number).path(&self.dir);
        match manifest::read(&*self.env, &self.dir, number) {
            Ok(manifest) => {
                self.count_records(&path);
                if let Some(cut) = &manifest.cut {
                    self.tail(&path, cut);
                }
                Some(manifest.state)
            }
            Err(error) => {
                self.damage(&path, &error);
                None
            }
        }
    }

    fn count_records(&mut self, path: &Path) {
        self.report.files += 1;
        let counted = RecordReader::open(&*self.env, path).and_then(|mut records| {
            while let Some(record) = records.read_next()? {
                self.report.blocks += 1;
                self.report.bytes += record.end - record.offset;
            }
            Ok(())
        });
        if let Err(error) = counted {
            self.damage(path, &error);
        }
    }

    /// Everything that the manifest's state names.
    fn state(&mut self, state: &State) {
        for table in state.tables() {
            self.table(FileName::Table(table.number), Some(table));
        }
        let floor = state.log_floor();
        let facts = state.logs.values().copied().collect();
        self.logs(floor, facts);
    }

    /// A table, and whether it is the one that `recorded` describes.
    fn table(&mut self, name: FileName, recorded: Option<&FileMeta>) {
        let path = name.path(&self.dir);
        self.report.files += 1;
        if let Err(error) = self.read_table(&path, recorded) {
            let error = match error {
                Error::Io(io) if io.kind() == ErrorKind::NotFound => {
                    Error::MissingFile(path.clone())
                }
                error => error,
            };
            self.damage(&path, &error);
            // Nothing of the table can be read: it may cost all that the manifest says is in it.
            let whole = self.report.damages.last_mut().filter(|last| last.path == path);
            if let (Some(damage), Some(recorded)) = (whole, recorded) {
                let edge = |internal_key: &[u8]| user_key(internal_key).to_vec();
                damage.keys = Some((edge(&recorded.smallest), edge(&recorded.largest)));
            }
        }
    }

    fn read_table(&mut self, path: &Path, recorded: Option<&FileMeta>) -> Result<()> {
        let file = self.env.open(path, Access::Sequential)?;
        let size = file.size();
        if let Some(recorded) = recorded
            && recorded.size != size
        {
            let what = format!("{size} bytes long, {} recorded", recorded.size);
            self.damage(path, &Error::corruption(path, None, what));
        }
        let table = Table::open(file, size, &self.blocks)?;
        if let Some(recorded) = recorded
            && !is_recorded(&table, recorded)
        {
            let what = "the table is not the one that the manifest describes";
            self.damage(path, &Error::corruption(path, None, what));
        }
        let mut damages = Vec::new();
        let read = table.verify(&mut |error| damages.push(error));
        self.report.blocks += read.blocks;
        self.report.bytes += read.bytes;
        for error in damages {
            self.damage(path, &error);
            // Only just reported, unless it was before, and then with its keys.
            if let Some(damage) = self.report.damages.last_mut().filter(|last| last.path == path) {
                damage.keys = damage.offset.and_then(|offset| table.keys_at(offset));
            }
        }
        Ok(())
    }

    /// The logs from `floor` on, as an open would read them. What stands behind a damage that
    /// ends the reading is read file by file.
    fn logs(&mut self, floor: u64, facts: Vec<SegmentFact>) {
        let env = Arc::clone(&self.env);
        let dir = self.dir.clone();
        let tail_policy = TailPolicy::TruncateUnwitnessed;
        let plan = ReplayPlan { from_number: floor, facts, tail_policy };
        let mut reached = None;
        let replayed = replay(&*env, &dir, &plan, &mut |path, offset, number, payload| {
            reached = Some(number);
            self.report.blocks += 1;
            self.report.bytes += payload.len() as u64;
            if let Err(what) = check_batch(payload) {
                self.damage(path, &Error::corruption(path, offset, what));
            }
            Ok(())
        });
        match replayed {
            Ok(report) => {
                self.report.files += report.segments.len() as u64;
                for cut in report.cuts {
                    self.tail(&cut.path, &cut.cut);
                }
            }
            Err(error) => {
                let dir = self.dir.clone();
                self.damage(&dir, &error);
                // Up to the segment with the damage all were read; without a record, none was.
                let damaged = Damage::new(&dir, &error).path;
                let stopped = match damaged.file_name().and_then(FileName::parse) {
                    Some(FileName::Log(number)) => Some(number),
                    _ => None,
                };
                let next = reached.map(|reached| stopped.map_or(reached, |at| at.max(reached)));
                self.logs_alone(next.map_or(floor, |number| number.saturating_add(1)));
            }
        }
    }

    fn logs_alone(&mut self, from: u64) {
        let logs: Vec<FileName> = self.names.range(FileName::Log(from)..).copied().collect();
        for name in logs {
            if matches!(name, FileName::Log(_)) {
                self.records_alone(&name.path(&self.dir));
            }
        }
    }

    /// Every file by itself, when nothing says what they mean together.
    fn files_alone(&mut self) {
        for name in self.names.clone() {
            match name {
                FileName::Table(_) => self.table(name, None),
                FileName::Log(_) | FileName::Manifest(_) => {
                    self.records_alone(&name.path(&self.dir));
                }
                FileName::Current | FileName::CurrentTemp | FileName::Lock => {}
            }
        }
    }

    fn records_alone(&mut self, path: &Path) {
        self.report.files += 1;
        if let Err(error) = self.read_records(path) {
            self.damage(path, &error);
        }
    }

    /// A file of records, judged by itself. One without a first record means nothing.
    fn read_records(&mut self, path: &Path) -> Result<()> {
        let mut records = RecordReader::open(&*self.env, path)?;
        while let Some(record) = records.read_next()? {
            self.report.blocks += 1;
            self.report.bytes += record.end - record.offset;
            let checked = match record.kind {
                RecordType::Data => check_batch(record.payload).map(|_| ()),
                RecordType::Edit => VersionEdit::decode(record.payload).map_or_else(
                    |error| match error {
                        EditError::Malformed(what) => Err(what),
                        EditError::Unsupported(_) => Err("an edit of a newer format"),
                    },
                    |_| Ok(()),
                ),
                RecordType::Begin | RecordType::Marker | RecordType::End => Ok(()),
            };
            if let Err(what) = checked {
                let error = Error::corruption(path, record.offset, what);
                self.damage(path, &error);
            }
        }
        if records.last().is_none() {
            return Ok(());
        }
        let evidence = records.evidence(None)?;
        let end = evidence.offset;
        if let Stop::Broken(what) = evidence.stop {
            return Err(Error::corruption(path, end, what));
        }
        if evidence.witness.is_some_and(|witness| witness.watermark > end) {
            return Err(Error::corruption(path, end, "a later record proves more durable"));
        }
        Ok(())
    }
}

fn is_recorded(table: &Table, recorded: &FileMeta) -> bool {
    let properties = table.properties();
    table.table_id() == recorded.table_id
        && properties.entries == recorded.entries
        && properties.smallest == recorded.smallest
        && properties.largest == recorded.largest
        && properties.smallest_sequence == recorded.smallest_sequence
        && properties.largest_sequence == recorded.largest_sequence
}
