//! Opening a database: what must be there, in which order things become durable, and what is
//! cleared away at the end.
//!
//! 1. The directory, then `LOCK`.
//! 2. `CURRENT` and the manifest, or the decision that there is no database yet.
//! 3. The log is replayed into memtables, and these into new tables ([`super::recover`]).
//! 4. A new segment is prepared; a new manifest names it and the new tables, and `CURRENT` is
//!    switched to it. Until here everything of before is untouched, so a failure costs nothing.
//! 5. The new segment begins, with where the old log was cut. From here on writes may come.
//! 6. What the new manifest does not name is removed: tables, old logs and manifests of ours.
//!    Names that are not ours are never touched.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use treering_env::{DirEntry, Env, FileLock};

use super::background::Bell;
use super::log::Log;
use super::queue::{Turnstile, WriteQueue};
use super::recover::{Recovered, Recovery, recovery_cut};
use super::stall::Pressure;
use super::state::{Family, State};
use super::{Db, Handle, Shared, column_family};
use crate::filename::FileName;
use crate::record::RecordReader;
use crate::stats::{Counters, RecoveryReport};
use crate::table::BlockCache;
use crate::table_cache::TableCache;
use crate::version::{Claims, FamilyId, FamilyLog, VersionEdit, VersionSet};
use crate::wal::{Spare, Wal, WalOptions};
use crate::{CfOptions, Clock, Error, Options, Result, SystemClock, trace};

/// Opens of this process so far: numbers them, so that handles of different ones can be told apart.
static OPENS: AtomicU64 = AtomicU64::new(0);

/// Everything that can be chosen for an open; made by [`Db::builder`].
#[derive(Clone, Debug)]
pub struct DbBuilder {
    env: Arc<dyn Env>,
    path: PathBuf,
    options: Options,
    families: Vec<(String, CfOptions)>,
    clock: Arc<dyn Clock>,
}

impl DbBuilder {
    pub(crate) fn new(env: Arc<dyn Env>, path: &Path) -> Self {
        let (options, families) = (Options::default(), Vec::new());
        let clock = Arc::new(SystemClock::new());
        Self { env, path: path.to_path_buf(), options, families, clock }
    }

    /// The database's options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The options of a column family, which is created if it is not there. Families that are not
    /// named take the options of `default`; options are not stored.
    #[must_use]
    pub fn family(mut self, name: impl Into<String>, options: CfOptions) -> Self {
        self.families.push((name.into(), options));
        self
    }

    /// The source of time for delays and waits; the system's by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the database; see [`Db::open`].
    pub fn open(self) -> Result<Db> {
        self.check()?;
        self.prepare_directory()?;
        let lock = self.env.lock(&FileName::Lock.path(&self.path))?;
        let recovered = VersionSet::recover(self.env.clone(), &self.path)?;
        let created = recovered.is_none();
        let versions = match recovered {
            Some(_) if self.options.error_if_exists => {
                let path = self.path.display();
                return Err(Error::invalid(format!("error_if_exists: {path} holds a database")));
            }
            Some(versions) => versions,
            None => {
                self.check_nothing_is_lost()?;
                // The directory may have been made by a process that died before its name was
                // durable; nothing that is acknowledged later may depend on such a name.
                self.env.create_dir_all(&self.path)?;
                VersionSet::create(self.env.clone(), &self.path)?
            }
        };
        Opening { builder: self, versions, created }.finish(lock)
    }

    fn check(&self) -> Result<()> {
        self.options.validate()?;
        for (index, (name, options)) in self.families.iter().enumerate() {
            column_family::check_name(name)?;
            options.validate()?;
            if self.families[..index].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid(format!("the column family {name:?} is given twice")));
            }
        }
        Ok(())
    }

    /// Makes sure that the directory is there. Changes nothing if the database is not there and
    /// not to be created.
    fn prepare_directory(&self) -> Result<()> {
        let not_one = |what: &'static str, advice| {
            Err(Error::NotADatabase { path: self.path.clone(), what: what.into(), advice })
        };
        let create = Some("set create_if_missing to create a database there");
        match self.env.metadata(&self.path)? {
            Some(found) if !found.is_dir => not_one("it is not a directory", None),
            Some(_) if self.options.create_if_missing => Ok(()),
            Some(_) => {
                let current = FileName::Current.path(&self.path);
                if self.env.metadata(&current)?.is_none() {
                    self.check_nothing_is_lost()?;
                    return not_one("it has no CURRENT", create);
                }
                Ok(())
            }
            None if self.options.create_if_missing => Ok(self.env.create_dir_all(&self.path)?),
            None => not_one("it does not exist", create),
        }
    }

    /// Without `CURRENT` a database may be created only where none was: tables and begun logs
    /// are proof of one.
    fn check_nothing_is_lost(&self) -> Result<()> {
        for DirEntry { name, is_dir } in self.env.list(&self.path)? {
            let file = FileName::parse(&name).filter(|_| !is_dir);
            let proof = match file {
                Some(FileName::Table(_)) => true,
                Some(file @ FileName::Log(_)) => {
                    let path = file.path(&self.path);
                    RecordReader::open(&*self.env, &path)?.read_next()?.is_some()
                }
                _ => false,
            };
            if proof {
                let what = format!(
                    "CURRENT is missing, but {} is there; restore the whole directory from one copy",
                    name.display()
                );
                return Err(Error::corruption(&FileName::Current.path(&self.path), None, what));
            }
        }
        Ok(())
    }
}

/// What the manifests of a directory lay claim to.
#[derive(Debug, Default)]
struct Claimed {
    tables: HashSet<u64>,
    log_floor: u64,
    /// Whether the end of one was left out.
    is_cut: bool,
    /// Manifests without a first state.
    never_begun: HashSet<u64>,
}

/// An open under way, with the lock held and the manifest read.
struct Opening {
    builder: DbBuilder,
    versions: VersionSet,
    created: bool,
}

impl Opening {
    fn finish(mut self, lock: FileLock) -> Result<Db> {
        let DbBuilder { env, path, options, .. } = &self.builder;
        let blocks = Arc::new(BlockCache::new(options.block_cache_size));
        let tables = TableCache::new(env.clone(), path.clone(), options.max_open_tables, blocks);
        let tables = Arc::new(tables);
        let family_options = self.family_options();
        let recovered = self.recover(&tables, &family_options)?;
        let (wal, last_sequence, mut report) = self.roll(recovered)?;
        // The old log is not needed any more, nor is anything else that the manifest leaves out.
        let mut removed = self.versions.obsolete().take();
        removed.extend(self.versions.leftovers()?);
        removed.sort_unstable();
        removed.dedup();
        let env = &self.builder.env;
        let gone = removed.iter().filter(|name| env.remove(&name.path(&self.builder.path)).is_ok());
        report.removed_files = gone.count();
        let (path, told) = (self.builder.path.clone(), report.clone());
        let log = Log::new(wal, last_sequence);
        let shared = self.share(lock, tables, log, last_sequence, report, &family_options);
        let shared = Arc::new(shared);
        let handle = Handle { shared: Arc::clone(&shared), threads: Mutex::new(Vec::new()) };
        *handle.threads.lock() = shared.start_threads()?;
        trace::opened(&path, &told);
        Ok(Db { handle: Arc::new(handle) })
    }

    fn wal_options(&self) -> WalOptions {
        let options = &self.builder.options;
        WalOptions {
            segment_size: options.log_segment_size,
            prepare_step: options.log_prepare_step,
        }
    }

    fn options_of(&self, name: &str) -> CfOptions {
        let given = self.builder.families.iter().find(|(given, _)| given == name);
        given.map_or_else(|| self.builder.options.cf.clone(), |(_, options)| options.clone())
    }

    fn family_options(&self) -> HashMap<FamilyId, CfOptions> {
        self.versions.families().map(|family| (family.id, self.options_of(&family.name))).collect()
    }

    /// Step 3.
    fn recover(
        &self,
        tables: &Arc<TableCache>,
        options: &HashMap<FamilyId, CfOptions>,
    ) -> Result<Recovered> {
        if self.created {
            return Ok(Recovered::nothing());
        }
        let DbBuilder { env, path, options: db, .. } = &self.builder;
        let recover = || {
            let recovery = Recovery::new(&**env, path, tables, &self.versions, options);
            recovery.run(db.tail_policy)
        };
        match recover() {
            Err(Error::NoSpace(_)) if self.make_space()? => recover(),
            other => other,
        }
    }

    /// Removes, on a full device, what no manifest ever laid claim to; whether there was anything.
    ///
    /// Nothing here is trusted to be durable, also not what a sync says now: after a failed one,
    /// by whatever process, the pages count as written although the device has the old bytes. So
    /// any prefix of the edits that can be read, and any of the manifests that are there, may turn
    /// out to be the state after a power loss, and what one of them names stays. What goes is what
    /// a crash left of flushes, compactions and opens that never came to an edit.
    fn make_space(&self) -> Result<bool> {
        let DbBuilder { env, path, .. } = &self.builder;
        let (Some(current), _) = self.versions.manifest() else { return Ok(false) };
        let entries = env.list(path)?.into_iter().filter(|entry| !entry.is_dir);
        let files: Vec<FileName> =
            entries.filter_map(|entry| FileName::parse(&entry.name)).collect();
        let Some(claimed) = self.claimed(&files, current)? else { return Ok(false) };
        let is_left_over = |file: &FileName| match *file {
            FileName::Table(number) => !claimed.is_cut && !claimed.tables.contains(&number),
            FileName::Manifest(number) => claimed.never_begun.contains(&number),
            FileName::Log(number) => number < claimed.log_floor,
            FileName::CurrentTemp => true,
            FileName::Current | FileName::Lock => false,
        };
        let left_over = files.iter().filter(|file| is_left_over(file));
        let removed = left_over.filter(|file| env.remove(&file.path(path)).is_ok());
        Ok(removed.count() > 0)
    }

    /// What all manifests among `files` lay claim to together; `None` if one is damaged, so that
    /// nobody can say.
    fn claimed(&self, files: &[FileName], current: u64) -> Result<Option<Claimed>> {
        let DbBuilder { env, path, .. } = &self.builder;
        let mut all = Claimed { log_floor: u64::MAX, ..Claimed::default() };
        for file in files {
            let FileName::Manifest(number) = *file else { continue };
            match Claims::read(&**env, path, number) {
                Ok(Some(claims)) => {
                    all.tables.extend(claims.tables);
                    all.log_floor = all.log_floor.min(claims.log_floor);
                    all.is_cut |= claims.is_cut;
                }
                // An open that came no further; `CURRENT` is switched only after the first state.
                Ok(None) if number > current => {
                    all.never_begun.insert(number);
                }
                Ok(None) | Err(Error::Corruption { .. } | Error::UnsupportedVersion { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(all))
    }

    /// Steps 4 and 5: makes what was recovered durable, as the new state.
    fn roll(&mut self, recovered: Recovered) -> Result<(Wal, u64, RecoveryReport)> {
        let DbBuilder { env, path, families, .. } = &self.builder;
        let Recovered { tables, predecessor, next_wal_seq, last_sequence, mut report } = recovered;
        let number = self.versions.numbers().next();
        let spare = match Spare::create(&**env, path, number, &self.wal_options()) {
            Ok(spare) => spare,
            Err(error) => {
                // Nothing names these yet, and the log still has everything.
                for (_, table) in &tables {
                    let _leftover = env.remove(&FileName::Table(table.number).path(path));
                }
                return Err(error);
            }
        };
        let mut edit = VersionEdit { last_sequence: Some(last_sequence), ..VersionEdit::default() };
        edit.logs.push(spare.fact(next_wal_seq));
        edit.added = tables.into_iter().map(|(family, table)| (family, 0, table)).collect();
        let mut ids: Vec<FamilyId> = self.versions.families().map(|family| family.id).collect();
        let known: Vec<String> = self.versions.families().map(|family| family.name).collect();
        let missing = families.iter().filter(|(name, _)| !known.contains(name));
        for (id, (name, _)) in (self.versions.next_family_id()..).zip(missing) {
            edit.added_families.push((id, name.clone()));
            ids.push(id);
        }
        edit.family_logs = ids
            .into_iter()
            .map(|family| FamilyLog { family, log_number: number, flushed_sequence: last_sequence })
            .collect();
        report.created = self.created;
        if let (Some(cut), (Some(old), _)) = (self.versions.cut(), self.versions.manifest()) {
            let manifest = FileName::Manifest(old).path(path);
            report.cuts.insert(0, recovery_cut(manifest, cut));
        }
        // The families are read again below, with the versions that this installs.
        let _installed = self.versions.roll(edit)?;
        let wal = Wal::begin(spare, predecessor, next_wal_seq)?;
        Ok((wal, last_sequence, report))
    }

    fn share(
        self,
        lock: FileLock,
        tables: Arc<TableCache>,
        log: Log,
        last_sequence: u64,
        report: RecoveryReport,
        family_options: &HashMap<FamilyId, CfOptions>,
    ) -> Shared {
        let mut state = State::default();
        for family in self.versions.families() {
            let known = family_options.get(&family.id).cloned();
            let options = known.unwrap_or_else(|| self.options_of(&family.name));
            state.families.insert(family.id, Family::new(options, &family));
        }
        let wal_options = self.wal_options();
        let DbBuilder { env, path, options, clock, .. } = self.builder;
        let log_bell = Arc::new(Bell::rung());
        let bell = Arc::clone(&log_bell);
        self.versions.obsolete().on_push(move || bell.ring());
        let shared = Shared {
            // Relaxed: only that no number comes twice matters.
            id: OPENS.fetch_add(1, Ordering::Relaxed),
            max_wal_size: AtomicU64::new(options.max_wal_size.unwrap_or(0)),
            env,
            dir: path,
            options,
            clock,
            tables,
            numbers: Arc::clone(self.versions.numbers()),
            obsolete: Arc::clone(self.versions.obsolete()),
            wal_options,
            report,
            queue: WriteQueue::default(),
            turnstile: Turnstile::default(),
            pressure: Pressure::default(),
            inline_turn: Mutex::new(()),
            versions: Mutex::new(self.versions),
            view: ArcSwap::from_pointee(state.view()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            log: Mutex::new(log),
            visible: AtomicU64::new(last_sequence),
            poison: OnceLock::new(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
            log_bell,
            // Recovery may have left tables to compact: the first write looks.
            work_is_left: AtomicBool::new(true),
            stats: Counters::default(),
        };
        {
            let state = shared.state.lock();
            for family in state.families.values() {
                shared.limit_log(family.options.memtable_size);
            }
            shared.pressure.refresh(&state);
        }
        debug_assert!(
            shared.max_wal_size.load(Ordering::Relaxed) > 0
                || shared.options.max_wal_size.is_some(),
            "the logs have a limit"
        );
        shared
    }
}

#[cfg(test)]
mod tests;
