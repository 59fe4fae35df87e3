//! The tables that a job writes. They are whole and durable when the job has succeeded, and gone
//! when it has failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::{Env, FileKind};

use crate::checksum::random_id;
use crate::filename::FileName;
use crate::table::{TableOptions, TableWriter};
use crate::version::{FileMeta, FileNumbers};
use crate::{CfOptions, Result};

/// Writes one table after another. Dropped before [`Outputs::finish`], it removes what it wrote.
pub(super) struct Outputs<'a> {
    env: &'a dyn Env,
    dir: &'a Path,
    numbers: &'a FileNumbers,
    options: TableOptions,
    current: Option<Current>,
    finished: Vec<FileMeta>,
    /// Every file that was created.
    created: Vec<PathBuf>,
    entries: u64,
}

struct Current {
    number: u64,
    writer: TableWriter,
}

impl<'a> Outputs<'a> {
    pub(super) fn new(
        env: &'a dyn Env,
        dir: &'a Path,
        numbers: &'a FileNumbers,
        options: &CfOptions,
    ) -> Self {
        let options = TableOptions::from(options);
        let (current, finished, created) = (None, Vec::new(), Vec::new());
        Self { env, dir, numbers, options, current, finished, created, entries: 0 }
    }

    /// Adds an entry to the current table, which is created if there is none.
    pub(super) fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        if self.current.is_none() {
            self.current = Some(self.create()?);
        }
        self.entries += 1;
        self.current.as_mut().expect("created above").writer.add(internal_key, value)
    }

    fn create(&mut self) -> Result<Current> {
        let number = self.numbers.next();
        let path = FileName::Table(number).path(self.dir);
        let file = self.env.create(&path, FileKind::Table)?;
        self.created.push(path.clone());
        let writer = TableWriter::new(file, &path, &self.options, random_id());
        Ok(Current { number, writer })
    }

    /// About how many bytes the current table has; zero if there is none.
    pub(super) fn current_size(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.writer.estimated_size())
    }

    /// Ends the current table, if there is one. Its bytes are durable then.
    pub(super) fn cut(&mut self) -> Result<()> {
        let Some(Current { number, writer }) = self.current.take() else { return Ok(()) };
        self.finished.push(FileMeta::of_table(number, writer.finish()?));
        Ok(())
    }

    /// Entries added so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Ends the last table and makes the names durable: an edit may name the tables after this.
    pub(super) fn finish(mut self) -> Result<Vec<Arc<FileMeta>>> {
        self.cut()?;
        if !self.finished.is_empty() {
            self.env.sync_dir(self.dir)?;
        }
        self.created.clear();
        Ok(self.finished.drain(..).map(Arc::new).collect())
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        // The file is closed before its name goes.
        self.current = None;
        remove_all(self.env, &self.created);
    }
}

/// Removes tables that no edit names. One that cannot be removed is left for the next open.
pub(super) fn remove_all(env: &dyn Env, paths: &[PathBuf]) {
    for path in paths {
        let _ = env.remove(path);
    }
}
