//! Reading a database that cannot be written: on a read-only or full disk, or somebody else's.
//!
//! An open replays the log into tables and begins a new log and manifest. Here all that stays in
//! memory, above the files, which are only read. That is the tables made from the log and a
//! memtable for each family: as much as the log on the disk is long, which the writer's
//! `max_wal_size` bounds.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::env::{
    Access, DirEntry, EnvReport, Error, ErrorKind, FileKind, FileLock, IoQueue, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};
use crate::{CfOptions, Env, MemEnv, Options};

/// An environment in which one directory takes changes in memory only.
#[derive(Debug)]
pub(crate) struct OverlayEnv {
    dir: PathBuf,
    below: Arc<dyn Env>,
    /// What was made, by the last part of its path.
    above: MemEnv,
    /// Names of files below that were removed.
    removed: Mutex<HashSet<OsString>>,
}

impl OverlayEnv {
    /// Nothing changes in `dir`, which `below` reads.
    pub(crate) fn new(below: Arc<dyn Env>, dir: &Path) -> Self {
        let removed = Mutex::default();
        Self { dir: dir.to_path_buf(), below, above: MemEnv::new(), removed }
    }

    /// The options with which a database opened here compacts nothing: memory would have to hold
    /// what comes of it.
    pub(crate) fn options(options: &Options) -> Options {
        let never = u16::MAX.into();
        let cf = CfOptions {
            level0_compaction_trigger: never,
            level0_slowdown_trigger: never,
            level0_stop_trigger: never,
            level_base_size: 1 << 50,
            ..options.cf.clone()
        };
        Options { cf, background_threads: 0, create_if_missing: false, ..options.clone() }
    }

    /// The name of a file in the directory.
    fn name<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let name = path.file_name()?;
        (path.parent() == Some(&*self.dir)).then_some(Path::new(name))
    }

    /// The name of a file in the directory that was made since.
    fn made<'p>(&self, path: &'p Path) -> Result<Option<&'p Path>> {
        match self.name(path) {
            Some(name) if self.above.metadata(name)?.is_some() => Ok(Some(name)),
            _ => Ok(None),
        }
    }

    fn removed(&self) -> MutexGuard<'_, HashSet<OsString>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_removed(&self, path: &Path) -> bool {
        self.name(path).is_some_and(|name| self.removed().contains(name.as_os_str()))
    }
}

fn absent(op: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::NotFound, op, path, "it was removed")
}

fn read_only(op: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::Denied, op, path, "the database is only read")
}

impl Env for OverlayEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        match self.made(path)? {
            Some(name) => self.above.open(name, access),
            None if self.is_removed(path) => Err(absent("open", path)),
            None => self.below.open(path, access),
        }
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        Err(read_only("open", path))
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let name = self.name(path).ok_or_else(|| read_only("create", path))?;
        if self.metadata(path)?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, "create", path, "it is there"));
        }
        self.above.create(name, kind)
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        match self.made(path)? {
            Some(name) => self.above.metadata(name),
            None if self.is_removed(path) => Ok(None),
            None => self.below.metadata(path),
        }
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = self.below.list(dir)?;
        if dir == self.dir {
            let made = self.above.list(Path::new(""))?;
            let removed = self.removed();
            entries.retain(|entry| {
                !removed.contains(&entry.name) && made.iter().all(|made| made.name != entry.name)
            });
            entries.extend(made);
        }
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match (self.made(from)?, self.name(to)) {
            (Some(from), Some(to)) => self.above.rename(from, to),
            _ => Err(read_only("rename", from)),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let name = self.name(path).ok_or_else(|| read_only("remove", path))?;
        if self.metadata(path)?.is_none() {
            return Err(absent("remove", path));
        }
        if self.made(path)?.is_some() {
            self.above.remove(name)?;
        }
        self.removed().insert(name.into());
        Ok(())
    }

    fn link(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(read_only("link", from))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        Err(read_only("create_dir_all", dir))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        Err(read_only("remove_dir", dir))
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.below.free_space(dir)
    }

    /// Shared with others who only read; it keeps those out who write. Where there is no lock
    /// file, or none that can be locked, nobody is kept out: who writes then may remove files that
    /// are being read, which shows as damage.
    fn lock(&self, path: &Path) -> Result<FileLock> {
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        let Some(file) = is_file.then(|| File::open(path).ok()).flatten() else {
            return Ok(FileLock::new(()));
        };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {
                Err(Error::new(ErrorKind::Locked, "lock", path, "held by a process that writes"))
            }
            Ok(()) | Err(TryLockError::Error(_)) => Ok(FileLock::new(file)),
        }
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        self.below.queue()
    }

    fn report(&self) -> EnvReport {
        let mut report = self.below.report();
        let why = "the database cannot be written".to_owned();
        report.fact("changes", "kept in memory until the command ends", Some(why));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;

    /// A database with a table and entries in the log, in memory.
    fn database() -> MemEnv {
        let env = MemEnv::new();
        let db = Db::open(Arc::new(env.clone()), "db", Options::default()).unwrap();
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        db.put("b", "2").unwrap();
        db.close().unwrap();
        env
    }

    #[test]
    fn a_database_is_read_and_written_over_files_that_stay_as_they_are() {
        let below = database();
        let before = below.fingerprint();
        let names = |env: &dyn Env| {
            let mut names = env.list(Path::new("db")).unwrap();
            names.sort_unstable();
            names
        };
        let over: Arc<dyn Env> =
            Arc::new(OverlayEnv::new(Arc::new(below.clone()), Path::new("db")));
        for round in 0..3 {
            let options = OverlayEnv::options(&Options::default());
            let db = Db::open(Arc::clone(&over), "db", options).unwrap();
            let all: Vec<_> = db.iter().map(|entry| entry.unwrap().0).collect();
            assert_eq!(all[..2], ["a", "b"]);
            assert_eq!(all.len(), 2 + round, "what was written over it is there");
            let answers = db.multi_get(["a", "b", "c"]);
            assert_eq!(answers.iter().filter(|a| matches!(a, Ok(Some(_)))).count(), 2);
            db.put(format!("later{round}"), "3").unwrap();
            db.close().unwrap();
        }
        assert_ne!(names(&*over), names(&below), "files came and went above");
        assert_eq!(below.fingerprint(), before);
    }

    #[test]
    fn whoever_writes_keeps_out_whoever_only_reads_and_readers_share() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("LOCK");
        let env: Arc<dyn Env> = Arc::new(crate::PosixEnv::new());
        let over = OverlayEnv::new(Arc::clone(&env), dir.path());
        over.lock(&lock).unwrap();
        assert!(!lock.exists(), "none is made");
        let writer = env.lock(&lock).unwrap();
        assert_eq!(over.lock(&lock).unwrap_err().kind(), ErrorKind::Locked);
        drop(writer);
        let readers = [over.lock(&lock).unwrap(), over.lock(&lock).unwrap()];
        assert_eq!(env.lock(&lock).unwrap_err().kind(), ErrorKind::Locked);
        drop(readers);
        env.lock(&lock).unwrap();
    }
}
