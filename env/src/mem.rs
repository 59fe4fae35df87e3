//! `MemEnv`: a complete environment in memory that knows what a power loss may do.
//!
//! It keeps the durability table of `docs/env.md` literally. Each file has its durable bytes and
//! the list of changes since; each directory its durable names and the list of changes since.
//! Reads see everything. A sync folds the list into the durable part, and [`MemEnv::crash`] builds
//! an image from the durable part and any subset of the list, sector by sector and name by name.
//!
//! Cost: an image shares every unchanged page with the environment it was taken from, so taking
//! one costs about a map entry per file and per unsynced sector. Operations that change something
//! run one at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::{
    Access, DirEntry, Env, EnvReport, Error, ErrorKind, FileKind, FileLock, Metadata,
    RandomAccessFile, RandomRwFile, Result, WritableFile,
};

mod content;
mod crash;
mod file;
mod inode;
mod names;
#[cfg(test)]
mod tests;
mod volume;

pub use crash::{CrashChoice, CrashPolicy, CrashSubject};
pub use volume::When;

#[cfg(feature = "test-util")]
pub(crate) use crash::Random;
use file::{Lock, MemFile, MemRwFile, MemWriter, Open, all_bytes};
use inode::Inode;
use names::{Directory, Namespace, Node, ROOT};
use volume::{Extent, Shared, Volume};

/// An environment in memory, with power loss on command.
///
/// A clone is another handle to the same files. Paths are taken from one root, whatever the
/// working directory is. Appended bytes stay in the writer until `flush`, `sync` or `finish`, as
/// the contract allows, so that an engine that forgets to flush is found out.
#[derive(Clone)]
pub struct MemEnv {
    shared: Arc<Shared>,
}

impl Default for MemEnv {
    fn default() -> Self {
        Self::new()
    }
}

impl MemEnv {
    /// An empty environment with space without end.
    pub fn new() -> Self {
        Self::with_capacity(u64::MAX)
    }

    /// An empty environment whose files can hold `capacity` bytes in all. A write that does not
    /// fit leaves what fits and fails with [`ErrorKind::NoSpace`].
    pub fn with_capacity(capacity: u64) -> Self {
        Self { shared: Arc::new(Shared::new(Namespace::new(), capacity, 0, 0)) }
    }

    /// Changes the capacity: a disk that fills up, or one that somebody has made room on.
    pub fn set_capacity(&self, capacity: u64) {
        self.shared.volume.write().capacity = capacity;
    }

    /// What a power loss now leaves, as a new environment in which everything is durable. This
    /// one goes on untouched.
    #[must_use]
    pub fn crash(&self, policy: CrashPolicy) -> MemEnv {
        let volume = self.shared.volume.read();
        let (sequences, newest_write) = crash::unsynced(&volume.names);
        let newest_write = newest_write.map(|s| sequences.partition_point(|other| *other < s));
        let mut choose = crash::chooser(policy, newest_write);
        Self::image(&volume, &sequences, &mut choose)
    }

    /// As [`MemEnv::crash`], with each choice made by `choose`: it returns the number of the
    /// version that survives, 0 for the durable one and `operations.len()` for the newest.
    ///
    /// # Panics
    /// If it returns a larger number.
    #[must_use]
    pub fn crash_with(&self, mut choose: impl FnMut(&CrashChoice<'_>) -> usize) -> MemEnv {
        let volume = self.shared.volume.read();
        let (sequences, _) = crash::unsynced(&volume.names);
        Self::image(&volume, &sequences, &mut choose)
    }

    fn image(
        volume: &Volume,
        sequences: &[u64],
        choose: &mut dyn FnMut(&CrashChoice<'_>) -> usize,
    ) -> MemEnv {
        let names = crash::image(&volume.names, sequences, choose);
        let next = (volume.peek_inode(), volume.peek_sequence());
        MemEnv::from_names(names, volume.capacity, next)
    }

    /// What the death of the process leaves, as a new environment: flushed bytes and all names,
    /// still unsynced, so that a power loss may follow; no locks, and nothing that was still in a
    /// writer. This one goes on untouched.
    #[must_use]
    pub fn kill(&self) -> MemEnv {
        let volume = self.shared.volume.read();
        let mut copies = BTreeMap::new();
        let mut names = volume.names.clone();
        for directory in names.dirs.values_mut() {
            for node in directory.durable.values_mut().chain(directory.current.values_mut()) {
                copy_inode(node, &mut copies);
            }
        }
        for node in names.pending.iter_mut().filter_map(|op| op.node.as_mut()) {
            copy_inode(node, &mut copies);
        }
        let next = (volume.peek_inode(), volume.peek_sequence());
        MemEnv::from_names(names, volume.capacity, next)
    }

    fn from_names(names: Namespace, capacity: u64, next: (u64, u64)) -> MemEnv {
        let mut files = BTreeMap::new();
        for node in names.dirs.values().flat_map(|dir| dir.current.values()) {
            if let Node::File(inode) = node {
                files.insert(inode.id, inode.data.read().current.len());
            }
        }
        let shared = Shared::new(names, capacity, next.0, next.1);
        shared.volume.write().used = files.values().sum();
        MemEnv { shared: Arc::new(shared) }
    }

    /// How many operations so far changed something (created, wrote, synced, renamed, ...).
    pub fn operations(&self) -> u64 {
        self.shared.volume.read().operations
    }

    /// Cuts the power at operation number `operation` (counted from 0, as
    /// [`MemEnv::operations`] does). From then on every call fails with the message "power is
    /// off"; [`MemEnv::crash`] takes the images. Replaces an earlier setting.
    pub fn cut_power_at(&self, operation: u64, when: When) {
        self.shared.cut_power_at(operation, when);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.shared.cut_power();
    }

    /// Whether the power is off.
    pub fn power_is_off(&self) -> bool {
        self.shared.power_is_off()
    }

    /// The operation that [`MemEnv::cut_power_at`] hit, such as `sync db/000012.log`.
    pub fn cut_operation(&self) -> Option<String> {
        self.shared.volume.read().cut_operation.clone()
    }

    /// A hash of all names and bytes that everybody sees. Two images of one value are the same
    /// for every reader, so a sweep needs to open one of them only. Reads everything.
    pub fn fingerprint(&self) -> u64 {
        let volume = self.shared.volume.read();
        let mut hasher = DefaultHasher::new();
        let mut waiting = vec![ROOT];
        while let Some(id) = waiting.pop() {
            for (name, node) in &volume.names.dir(id).current {
                name.hash(&mut hasher);
                match node {
                    Node::Dir(child) => waiting.push(*child),
                    Node::File(inode) => all_bytes(inode).hash(&mut hasher),
                }
            }
            // Ends the directory, so that names do not run over into the next one.
            0xFF_u8.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn open_inode(&self, path: &Path, inode: Arc<Inode>) -> Open {
        Open::new(&self.shared, inode, path)
    }

    fn make_dir(&self, dir: &Path) -> Result<()> {
        self.shared.change("create_dir_all", dir, |volume, extent| {
            let place = volume.names.place("create_dir_all", dir)?;
            match place.node {
                None => {}
                // Another thread made it just now.
                Some(Node::Dir(_)) => return Ok(()),
                Some(Node::File(_)) => {
                    return Err(Error::from_errno(libc::ENOTDIR, "create_dir_all", dir));
                }
            }
            let parent = place.dir;
            let id = volume.names.new_dir();
            volume.set_name(place, Some(Node::Dir(id)), None, dir);
            if extent == Extent::Whole {
                volume.names.sync_dir(parent);
            }
            Ok(())
        })
    }
}

/// Replaces a file by a copy that shares no state with it, the same copy for the same file.
fn copy_inode(node: &mut Node, copies: &mut BTreeMap<u64, Arc<Inode>>) {
    if let Node::File(inode) = node {
        let copy = copies.entry(inode.id).or_insert_with(|| {
            let mut data = inode.data.read().clone();
            data.opens = 0;
            Inode::with_data(inode.id, &inode.path, data)
        });
        *inode = Arc::clone(copy);
    }
}

impl Env for MemEnv {
    fn open(&self, path: &Path, _access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        self.shared.powered("open", path)?;
        let volume = self.shared.volume.read();
        let inode = volume.names.file("open", path)?;
        Ok(Arc::new(MemFile::new(self.open_inode(path, inode))))
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.shared.powered("open", path)?;
        let existing = match self.shared.volume.read().names.file("open", path) {
            Ok(inode) => Some(self.open_inode(path, inode)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let open = match existing {
            Some(open) => open,
            None => self.shared.change("create", path, |volume, _| {
                let place = volume.names.place("open", path)?;
                let inode = match &place.node {
                    None => volume.create_file(place, path),
                    Some(Node::File(inode)) => Arc::clone(inode),
                    Some(Node::Dir(_)) => {
                        return Err(Error::from_errno(libc::EISDIR, "open", path));
                    }
                };
                Ok(self.open_inode(path, inode))
            })?,
        };
        Ok(Arc::new(MemRwFile::new(open)))
    }

    fn create(&self, path: &Path, _kind: FileKind) -> Result<Box<dyn WritableFile>> {
        let open = self.shared.change("create", path, |volume, _| {
            let place = volume.names.place("create", path)?;
            if place.node.is_some() {
                return Err(Error::from_errno(libc::EEXIST, "create", path));
            }
            let inode = volume.create_file(place, path);
            Ok(self.open_inode(path, inode))
        })?;
        Ok(Box::new(MemWriter::new(open)))
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.shared.powered("metadata", path)?;
        let node = self.shared.volume.read().names.node("metadata", path)?;
        Ok(node.map(|node| match node {
            Node::Dir(_) => Metadata { size: 0, is_dir: true },
            Node::File(inode) => Metadata { size: inode.data.read().current.len(), is_dir: false },
        }))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.shared.powered("list", dir)?;
        let volume = self.shared.volume.read();
        let id = volume.names.directory("list", dir)?;
        let entries = volume.names.dir(id).current.iter();
        Ok(entries
            .map(|(name, node)| DirEntry {
                name: name.clone(),
                is_dir: matches!(node, Node::Dir(_)),
            })
            .collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.change("rename", from, |volume, _| {
            let source = volume.names.place("rename", from)?;
            let target = volume.names.place("rename", to)?;
            let Some(node) = source.node.clone() else {
                return Err(Error::from_errno(libc::ENOENT, "rename", from));
            };
            match (&node, &target.node) {
                (Node::File(one), Some(Node::File(other))) if one.id == other.id => return Ok(()),
                (Node::Dir(one), Some(Node::Dir(other))) if one == other => return Ok(()),
                (Node::File(_), Some(Node::Dir(_))) => {
                    return Err(Error::from_errno(libc::EISDIR, "rename", to));
                }
                (Node::Dir(_), Some(Node::File(_))) => {
                    return Err(Error::from_errno(libc::ENOTDIR, "rename", to));
                }
                (Node::Dir(_), Some(Node::Dir(id))) if !is_empty(&volume.names, *id) => {
                    return Err(Error::from_errno(libc::ENOTEMPTY, "rename", to));
                }
                _ => {}
            }
            if matches!(node, Node::Dir(_)) && to.starts_with(from) {
                return Err(Error::from_errno(libc::EINVAL, "rename", to));
            }
            let appears = volume.set_name(target, Some(node), None, to);
            volume.set_name(source, None, Some(appears), from);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.shared.change("remove", path, |volume, _| {
            let place = volume.names.place("remove", path)?;
            match place.node {
                None => Err(Error::from_errno(libc::ENOENT, "remove", path)),
                Some(Node::Dir(_)) => Err(Error::from_errno(libc::EISDIR, "remove", path)),
                Some(Node::File(_)) => {
                    volume.set_name(place, None, None, path);
                    Ok(())
                }
            }
        })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.change("link", to, |volume, _| {
            let inode = volume.names.file("link", from)?;
            let place = volume.names.place("link", to)?;
            if place.node.is_some() {
                return Err(Error::from_errno(libc::EEXIST, "link", to));
            }
            volume.set_name(place, Some(Node::File(inode)), None, to);
            Ok(())
        })
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.shared.powered("create_dir_all", dir)?;
        let mut missing = Vec::new();
        for ancestor in dir.ancestors() {
            let node = self.shared.volume.read().names.node("create_dir_all", ancestor)?;
            match node {
                Some(Node::Dir(_)) => {
                    // Whoever made it may have died before it had synced the parent.
                    if let Some(parent) = ancestor.parent() {
                        self.sync_dir(parent)?;
                    }
                    break;
                }
                Some(Node::File(_)) => {
                    return Err(Error::from_errno(libc::ENOTDIR, "create_dir_all", ancestor));
                }
                None => missing.push(ancestor),
            }
        }
        for ancestor in missing.into_iter().rev() {
            self.make_dir(ancestor)?;
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.shared.change("remove_dir", dir, |volume, _| {
            let id = volume.names.directory("remove_dir", dir)?;
            let place = volume.names.place("remove_dir", dir)?;
            if !is_empty(&volume.names, id) {
                return Err(Error::from_errno(libc::ENOTEMPTY, "remove_dir", dir));
            }
            volume.set_name(place, None, None, dir);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.shared.change("sync_dir", dir, |volume, extent| {
            let id = volume.names.directory("sync_dir", dir)?;
            match extent {
                Extent::Whole => volume.names.sync_dir(id),
                Extent::Part => volume.names.sync_half(id),
            }
            Ok(())
        })
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.shared.powered("free_space", dir)?;
        let volume = self.shared.volume.read();
        volume.names.directory("free_space", dir)?;
        Ok(volume.free())
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.shared.powered("lock", path)?;
        let absent = self.shared.volume.read().names.node("lock", path)?.is_none();
        if absent {
            self.open_rw(path)?;
        }
        let mut volume = self.shared.volume.write();
        let inode = volume.names.file("lock", path)?;
        if !volume.locked.insert(inode.id) {
            let message = "the lock is held by another opener";
            return Err(Error::new(ErrorKind::Locked, "lock", path, message));
        }
        Ok(FileLock::new(Lock::new(self.open_inode(path, inode))))
    }

    fn report(&self) -> EnvReport {
        let mut report = EnvReport::new("mem");
        report.fact("queue", "serial", Some("memory has no latency to hide".into()));
        let volume = self.shared.volume.read();
        report.counters.clone_from(&volume.counters);
        report.counters.insert("operations", volume.operations);
        report.counters.insert("reads", self.shared.reads.load(Ordering::Relaxed));
        report.counters.insert("read_bytes", self.shared.read_bytes.load(Ordering::Relaxed));
        report
    }
}

fn is_empty(names: &Namespace, id: names::DirId) -> bool {
    let Directory { current, .. } = names.dir(id);
    current.is_empty()
}

impl fmt::Debug for MemEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemEnv({} operations)", self.operations())
    }
}
