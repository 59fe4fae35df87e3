//! Directories: the names on the medium, the names everybody sees, and the operations between.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::inode::Inode;
use crate::{Error, ErrorKind, Result};

/// Identity of a directory; it keeps it when it is renamed.
pub(super) type DirId = u64;

/// The directory that every path starts from.
pub(super) const ROOT: DirId = 0;

/// What a name leads to.
#[derive(Clone)]
pub(super) enum Node {
    File(Arc<Inode>),
    Dir(DirId),
}

/// Names in order, so that everything derived from them is deterministic.
pub(super) type Names = BTreeMap<OsString, Node>;

#[derive(Clone, Default)]
pub(super) struct Directory {
    pub(super) durable: Names,
    pub(super) current: Names,
}

/// An unsynced change of one name. It says the whole new state of the name, so the states a power
/// loss may leave are the durable one and the one after each operation on that name.
#[derive(Clone)]
pub(super) struct NameOp {
    /// Position among all unsynced operations of the environment.
    pub(super) sequence: u64,
    pub(super) dir: DirId,
    pub(super) name: OsString,
    /// What the name leads to afterwards; `None` after a removal.
    pub(super) node: Option<Node>,
    /// Sequence of the operation that must survive if this one does: a rename takes the old
    /// name away only if the new one is there.
    pub(super) needs: Option<u64>,
    pub(super) path: PathBuf,
}

#[derive(Clone)]
pub(super) struct Namespace {
    pub(super) dirs: BTreeMap<DirId, Directory>,
    pub(super) pending: Vec<NameOp>,
    next_dir: DirId,
}

/// A resolved name: the directory, the last component, and what is there now.
pub(super) struct Place {
    pub(super) dir: DirId,
    pub(super) name: OsString,
    pub(super) node: Option<Node>,
}

impl Namespace {
    pub(super) fn new() -> Self {
        Self::with_dirs(BTreeMap::from([(ROOT, Directory::default())]))
    }

    /// A namespace in which everything is durable.
    pub(super) fn with_dirs(dirs: BTreeMap<DirId, Directory>) -> Self {
        let next_dir = dirs.keys().last().map_or(ROOT, |last| *last) + 1;
        Self { dirs, pending: Vec::new(), next_dir }
    }

    pub(super) fn dir(&self, id: DirId) -> &Directory {
        self.dirs.get(&id).expect("a directory is kept while a name leads to it")
    }

    fn dir_mut(&mut self, id: DirId) -> &mut Directory {
        self.dirs.get_mut(&id).expect("a directory is kept while a name leads to it")
    }

    /// Finds the directory of a path and what its last component leads to.
    pub(super) fn place(&self, op: &'static str, path: &Path) -> Result<Place> {
        let names = components(path);
        let Some((last, parents)) = names.split_last() else {
            return Err(Error::from_errno(libc::EISDIR, op, path));
        };
        let mut dir = ROOT;
        for name in parents {
            dir = match self.dir(dir).current.get(*name) {
                Some(Node::Dir(id)) => *id,
                Some(Node::File(_)) => return Err(Error::from_errno(libc::ENOTDIR, op, path)),
                None => return Err(Error::from_errno(libc::ENOENT, op, path)),
            };
        }
        let node = self.dir(dir).current.get(*last).cloned();
        Ok(Place { dir, name: last.to_os_string(), node })
    }

    /// What is at `path`, the root included.
    pub(super) fn node(&self, op: &'static str, path: &Path) -> Result<Option<Node>> {
        if components(path).is_empty() {
            return Ok(Some(Node::Dir(ROOT)));
        }
        match self.place(op, path) {
            Ok(place) => Ok(place.node),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file at `path`.
    pub(super) fn file(&self, op: &'static str, path: &Path) -> Result<Arc<Inode>> {
        match self.node(op, path)? {
            Some(Node::File(inode)) => Ok(inode),
            Some(Node::Dir(_)) => Err(Error::from_errno(libc::EISDIR, op, path)),
            None => Err(Error::from_errno(libc::ENOENT, op, path)),
        }
    }

    /// The directory at `path`.
    pub(super) fn directory(&self, op: &'static str, path: &Path) -> Result<DirId> {
        match self.node(op, path)? {
            Some(Node::Dir(id)) => Ok(id),
            Some(Node::File(_)) => Err(Error::from_errno(libc::ENOTDIR, op, path)),
            None => Err(Error::from_errno(libc::ENOENT, op, path)),
        }
    }

    /// Changes a name for everybody; the medium follows with [`Namespace::sync_dir`].
    pub(super) fn set(&mut self, op: NameOp) {
        let directory = self.dir_mut(op.dir);
        match &op.node {
            Some(node) => directory.current.insert(op.name.clone(), node.clone()),
            None => directory.current.remove(&op.name),
        };
        self.pending.push(op);
    }

    /// A new, empty directory that no name leads to yet.
    pub(super) fn new_dir(&mut self) -> DirId {
        let id = self.next_dir;
        self.next_dir += 1;
        self.dirs.insert(id, Directory::default());
        id
    }

    /// Makes the names of `dir` durable, and of other directories what those depend on.
    pub(super) fn sync_dir(&mut self, dir: DirId) {
        let mut synced: Vec<bool> = self.pending.iter().map(|op| op.dir == dir).collect();
        while self.add_needed(&mut synced) {}
        let mut kept = Vec::new();
        for (position, op) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            if synced[position] {
                self.make_durable(op);
            } else {
                kept.push(op);
            }
        }
        self.pending = kept;
    }

    /// Makes the oldest half of the names of `dir` durable, as a sync that was cut off may have.
    pub(super) fn sync_half(&mut self, dir: DirId) {
        let mut left =
            self.pending.iter().filter(|op| op.dir == dir && op.needs.is_none()).count() / 2;
        let mut kept = Vec::new();
        for op in std::mem::take(&mut self.pending) {
            let is_first = !kept.iter().any(|k: &NameOp| k.dir == op.dir && k.name == op.name);
            if op.dir == dir && op.needs.is_none() && is_first && left > 0 {
                left -= 1;
                self.make_durable(op);
            } else {
                kept.push(op);
            }
        }
        self.pending = kept;
    }

    /// Extends a selection of pending operations by what it depends on: the other half of a
    /// rename, and every earlier operation on a selected name. Returns whether it grew.
    fn add_needed(&self, selected: &mut [bool]) -> bool {
        let mut grew = false;
        for i in (0..selected.len()).rev().filter(|i| !selected[*i]).collect::<Vec<_>>() {
            let op = &self.pending[i];
            let needed = self.pending.iter().enumerate().any(|(j, other)| {
                let later = j > i && other.dir == op.dir && other.name == op.name;
                selected[j] && (later || other.needs == Some(op.sequence))
            });
            selected[i] = needed;
            grew |= needed;
        }
        grew
    }

    fn make_durable(&mut self, op: NameOp) {
        let durable = &mut self.dir_mut(op.dir).durable;
        let old = match op.node {
            Some(node) => durable.insert(op.name, node),
            None => durable.remove(&op.name),
        };
        if let Some(Node::Dir(id)) = old {
            self.forget_if_unnamed(id);
        }
    }

    /// Drops a directory that no name leads to any more, neither now nor after a power loss.
    fn forget_if_unnamed(&mut self, id: DirId) {
        let leads_here = |node: &Node| matches!(node, Node::Dir(other) if *other == id);
        let named = self.dirs.values().any(|dir| {
            dir.durable.values().any(leads_here) || dir.current.values().any(leads_here)
        });
        let awaited = self.pending.iter().any(|op| op.node.as_ref().is_some_and(leads_here));
        if !named && !awaited {
            self.dirs.remove(&id);
        }
    }
}

/// The names of a path from the root, without `.` and with `..` taken as written.
fn components(path: &Path) -> Vec<&OsStr> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}
