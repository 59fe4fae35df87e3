//! `MirrorEnv`: does everything in two environments and compares what they say.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::{
    Access, DirEntry, Env, EnvReport, Error, FileKind, FileLock, IoQueue, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

mod file;
mod queue;
#[cfg(test)]
mod tests;

use file::{MirrorFile, MirrorRwFile, MirrorWriter};
use queue::MirrorQueue;

/// One answer that was not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The operation, with its arguments.
    pub call: String,
    /// What the first environment said.
    pub first: String,
    /// What the second one said.
    pub second: String,
}

/// A wrapper of two environments, each with a directory that stands for the root. A clone shares
/// the recorded differences.
///
/// Compared are bytes, lengths, listings, and of errors the kind. What both agree on is returned,
/// with the first one's words. Free space is the smaller of the two, and reports are not compared.
///
/// Calls that look at names and calls that change them exclude each other, so that both sides see
/// one order of them. Bytes are another matter: who reads a range, or asks for the length of a
/// file, while another thread writes there, finds differences that are none.
#[derive(Clone, Debug)]
pub struct MirrorEnv {
    sides: [Side; 2],
    judge: Arc<Judge>,
    /// Held shared to look at names, exclusively to change them.
    names: Arc<RwLock<()>>,
}

#[derive(Clone, Debug)]
struct Side {
    env: Arc<dyn Env>,
    root: PathBuf,
}

impl Side {
    fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Compares, and remembers what differed.
#[derive(Debug)]
pub(crate) struct Judge {
    panics: bool,
    differences: Mutex<Vec<Difference>>,
}

impl Judge {
    /// Returns the common answer of both sides; an error if only one of them failed.
    fn agree<T: Debug>(
        &self,
        call: impl Fn() -> String,
        [first, second]: [Result<T>; 2],
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<T> {
        let equal = match (&first, &second) {
            (Ok(a), Ok(b)) => same(a, b),
            (Err(a), Err(b)) => a.kind() == b.kind(),
            _ => false,
        };
        if !equal {
            self.differ(Difference {
                call: call(),
                first: describe(&first),
                second: describe(&second),
            });
        }
        let value = first?;
        second.map(|_| value)
    }

    fn differ(&self, difference: Difference) {
        assert!(!self.panics, "the environments differ: {difference:?}");
        self.differences.lock().push(difference);
    }
}

/// An answer in few words.
fn describe<T: Debug>(result: &Result<T>) -> String {
    let mut text = match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}: {error}", error.kind()),
    };
    if text.len() > 400 {
        let end = (0..=400).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

impl MirrorEnv {
    /// Panics at the first difference.
    pub fn new(first: (Arc<dyn Env>, PathBuf), second: (Arc<dyn Env>, PathBuf)) -> Self {
        Self::with(first, second, true)
    }

    /// Records differences and goes on; see [`MirrorEnv::differences`].
    pub fn recording(first: (Arc<dyn Env>, PathBuf), second: (Arc<dyn Env>, PathBuf)) -> Self {
        Self::with(first, second, false)
    }

    fn with(first: (Arc<dyn Env>, PathBuf), second: (Arc<dyn Env>, PathBuf), panics: bool) -> Self {
        let sides = [first, second].map(|(env, root)| Side { env, root });
        let judge = Arc::new(Judge { panics, differences: Mutex::default() });
        Self { sides, judge, names: Arc::default() }
    }

    /// The differences so far, oldest first.
    pub fn differences(&self) -> Vec<Difference> {
        self.judge.differences.lock().clone()
    }

    /// The reports of both environments.
    pub fn reports(&self) -> [EnvReport; 2] {
        [self.sides[0].env.report(), self.sides[1].env.report()]
    }

    fn both<T>(&self, path: &Path, run: impl Fn(&dyn Env, &Path) -> Result<T>) -> [Result<T>; 2] {
        [0, 1].map(|i| run(&*self.sides[i].env, &self.sides[i].path(path)))
    }

    fn act(&self, call: &str, path: &Path, results: [Result<()>; 2]) -> Result<()> {
        self.judge.agree(|| format!("{call} {}", path.display()), results, |(), ()| true)
    }

    /// For calls that give an object: both objects, or the common error.
    fn give<T: Debug>(
        &self,
        call: &str,
        path: &Path,
        [first, second]: [Result<T>; 2],
    ) -> Result<[T; 2]> {
        let call = || format!("{call} {}", path.display());
        match (first, second) {
            (Ok(a), Ok(b)) => Ok([a, b]),
            (Err(a), Err(b)) => {
                let results: [Result<()>; 2] = [Err(a.clone()), Err(b)];
                self.judge.agree(call, results, |(), ()| true).and(Err(a))
            }
            (first, second) => {
                let error: Option<Error> = first.as_ref().err().or(second.as_ref().err()).cloned();
                self.judge.differ(Difference {
                    call: call(),
                    first: describe(&first),
                    second: describe(&second),
                });
                Err(error.expect("one of the two is an error"))
            }
        }
    }
}

impl Env for MirrorEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let _order = self.names.read();
        let opened = self.both(path, |env, path| env.open(path, access));
        let files = self.give("open", path, opened)?;
        Ok(Arc::new(MirrorFile::new(files, path, &self.judge)))
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        let _order = self.names.write();
        let opened = self.both(path, |env, path| env.open_rw(path));
        let files = self.give("open_rw", path, opened)?;
        Ok(Arc::new(MirrorRwFile::new(files, path, &self.judge)))
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let _order = self.names.write();
        let created = self.both(path, |env, path| env.create(path, kind));
        let files = self.give("create", path, created)?;
        Ok(Box::new(MirrorWriter::new(files, path, &self.judge)))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        let _order = self.names.read();
        let found = self.both(path, |env, path| {
            // The size of a directory is unspecified.
            let size = |m: Metadata| if m.is_dir { 0 } else { m.size };
            env.metadata(path).map(|found| found.map(|m| Metadata { size: size(m), ..m }))
        });
        self.judge.agree(|| format!("metadata {}", path.display()), found, |a, b| a == b)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let _order = self.names.read();
        let listed = self.both(dir, |env, dir| {
            let mut entries = env.list(dir)?;
            entries.sort();
            Ok(entries)
        });
        self.judge.agree(|| format!("list {}", dir.display()), listed, |a, b| a == b)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let _order = self.names.write();
        let renamed = [0, 1]
            .map(|i| self.sides[i].env.rename(&self.sides[i].path(from), &self.sides[i].path(to)));
        self.act("rename", from, renamed)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let _order = self.names.write();
        self.act("remove", path, self.both(path, |env, path| env.remove(path)))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let _order = self.names.write();
        let linked = [0, 1]
            .map(|i| self.sides[i].env.link(&self.sides[i].path(from), &self.sides[i].path(to)));
        self.act("link", from, linked)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let _order = self.names.write();
        self.act("create_dir_all", dir, self.both(dir, |env, dir| env.create_dir_all(dir)))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        let _order = self.names.write();
        self.act("remove_dir", dir, self.both(dir, |env, dir| env.remove_dir(dir)))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.act("sync_dir", dir, self.both(dir, |env, dir| env.sync_dir(dir)))
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        let [first, second] = self.both(dir, |env, dir| env.free_space(dir));
        let smaller = first.as_ref().ok().min(second.as_ref().ok()).copied();
        let agreed = self.act("free_space", dir, [first.map(drop), second.map(drop)]);
        agreed.map(|()| smaller.expect("both succeeded"))
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        let _order = self.names.write();
        let locks = self.give("lock", path, self.both(path, |env, path| env.lock(path)))?;
        Ok(FileLock::new(locks))
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        let inner = [0, 1].map(|i| self.sides[i].env.queue());
        Box::new(MirrorQueue::new(inner, Arc::clone(&self.judge)))
    }

    /// The first environment's report, with a word on the second.
    fn report(&self) -> EnvReport {
        let [mut report, second] = self.reports();
        report.fact("mirror", second.env, None);
        report
    }
}
