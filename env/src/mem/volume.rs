//! The state all files of one `MemEnv` share: names, space, locks, and the power switch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::inode::{Change, Inode};
use super::names::{NameOp, Namespace, Node, Place};
use crate::{Error, ErrorKind, Outcome, Result};

/// Where in an operation the power goes; see [`MemEnv::cut_power_at`](crate::MemEnv::cut_power_at).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// Nothing of the operation happens.
    Before,
    /// A part of it happens: half of a write, half of a sync; a change of one name happens.
    Inside,
    /// All of it happens, and nobody hears of it.
    After,
}

/// What an operation that changes something may do, as the power switch decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    Part,
}

/// The volume behind its locks. Lock order: a writer's own state, then `volume`, then a file's
/// data.
pub(super) struct Shared {
    /// Exclusive for every operation that changes something, shared for look-ups. Reads of an
    /// open file take only that file's lock.
    pub(super) volume: RwLock<Volume>,
    /// Whether the power is off. Not in `Volume`, for the sake of reads, which do not take the
    /// volume's lock. `Release` and `Acquire` order it after the operation that was cut.
    off: AtomicBool,
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
}

pub(super) struct Volume {
    pub(super) names: Namespace,
    pub(super) capacity: u64,
    /// Bytes of all files that a name or an open file leads to.
    pub(super) used: u64,
    /// Files that are locked, by identity.
    pub(super) locked: BTreeSet<u64>,
    /// Operations so far that changed something.
    pub(super) operations: u64,
    pub(super) counters: BTreeMap<&'static str, u64>,
    cut: Option<(u64, When)>,
    /// The operation the power was cut at.
    pub(super) cut_operation: Option<String>,
    next_sequence: u64,
    next_inode: u64,
}

impl Shared {
    pub(super) fn new(
        names: Namespace,
        capacity: u64,
        next_inode: u64,
        next_sequence: u64,
    ) -> Self {
        let volume = Volume {
            names,
            capacity,
            used: 0,
            locked: BTreeSet::new(),
            operations: 0,
            counters: BTreeMap::new(),
            cut: None,
            cut_operation: None,
            next_sequence,
            next_inode,
        };
        Self {
            volume: RwLock::new(volume),
            off: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Fails if the power is off.
    pub(super) fn powered(&self, op: &'static str, path: &Path) -> Result<()> {
        if self.off.load(Ordering::Acquire) { Err(power_is_off(op, path)) } else { Ok(()) }
    }

    /// Runs an operation that changes something, unless the power is cut before it; if it is cut
    /// inside or after it, the operation fails although it had an effect.
    pub(super) fn change<T>(
        &self,
        op: &'static str,
        path: &Path,
        run: impl FnOnce(&mut Volume, Extent) -> Result<T>,
    ) -> Result<T> {
        let mut volume = self.volume.write();
        self.powered(op, path)?;
        let number = volume.operations;
        volume.operations += 1;
        *volume.counters.entry(op).or_insert(0) += 1;
        let Some((_, when)) = volume.cut.filter(|(at, _)| *at == number) else {
            return run(&mut volume, Extent::Whole);
        };
        let unheard = match when {
            When::Before => None,
            When::Inside => Some(run(&mut volume, Extent::Part)),
            When::After => Some(run(&mut volume, Extent::Whole)),
        };
        volume.cut_operation = Some(format!("{op} {}", path.display()));
        self.off.store(true, Ordering::Release);
        drop(volume);
        // An open file takes the volume's lock when it is dropped.
        drop(unheard);
        Err(power_is_off(op, path))
    }

    pub(super) fn cut_power_at(&self, operation: u64, when: When) {
        self.volume.write().cut = Some((operation, when));
    }

    pub(super) fn cut_power(&self) {
        // Under the lock, so that no operation is half done when this returns.
        let _volume = self.volume.write();
        self.off.store(true, Ordering::Release);
    }

    pub(super) fn power_is_off(&self) -> bool {
        self.off.load(Ordering::Acquire)
    }
}

impl Volume {
    pub(super) fn next_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }

    pub(super) fn peek_inode(&self) -> u64 {
        self.next_inode
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    pub(super) fn peek_sequence(&self) -> u64 {
        self.next_sequence
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    /// Makes `place` lead to `node`, and lets go of the file that it led to.
    pub(super) fn set_name(
        &mut self,
        place: Place,
        node: Option<Node>,
        needs: Option<u64>,
        path: &Path,
    ) -> u64 {
        if let Some(Node::File(inode)) = &node {
            inode.data.write().links += 1;
        }
        let sequence = self.next_sequence();
        let path = path.to_path_buf();
        let op = NameOp { sequence, dir: place.dir, name: place.name, node, needs, path };
        self.names.set(op);
        if let Some(Node::File(inode)) = place.node {
            inode.data.write().links -= 1;
            self.release_if_unused(&inode);
        }
        sequence
    }

    /// Creates an empty file at a place where nothing is.
    pub(super) fn create_file(&mut self, place: Place, path: &Path) -> Arc<Inode> {
        let inode = Inode::new(self.next_inode(), path);
        self.set_name(place, Some(Node::File(Arc::clone(&inode))), None, path);
        inode
    }

    /// Gives back the space of a file that nobody can reach any more.
    pub(super) fn release_if_unused(&mut self, inode: &Inode) {
        let data = inode.data.read();
        if data.links == 0 && data.opens == 0 {
            self.used -= data.current.len();
        }
    }

    /// Writes as much of `data` as there is room for; `NoSpace` if that is not all. In part:
    /// the first half.
    pub(super) fn write(
        &mut self,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        extent: Extent,
    ) -> Result<()> {
        let mut file = inode.data.write();
        let len = file.current.len();
        let Some(end) = offset.checked_add(data.len() as u64) else {
            return Err(Error::from_errno(libc::EFBIG, "write", &inode.path).at(offset));
        };
        let room = len.saturating_add(self.free());
        let end = end.min(room.max(offset));
        let mut fitting = usize::try_from(end - offset).expect("no longer than the data");
        let full = fitting < data.len() || (offset > room && !data.is_empty());
        if extent == Extent::Part {
            fitting /= 2;
        }
        if offset > room {
            fitting = 0;
        }
        if fitting > 0 {
            let change = Change::Write { offset, data: data[..fitting].into() };
            self.apply(&mut file, change);
        }
        *self.counters.entry("write_bytes").or_insert(0) += fitting as u64;
        if full { Err(no_space("write", &inode.path).at(offset)) } else { Ok(()) }
    }

    /// Writes zeros, all or none. In part: the first half.
    pub(super) fn zero(
        &mut self,
        inode: &Inode,
        offset: u64,
        len: u64,
        extent: Extent,
    ) -> Result<()> {
        let mut file = inode.data.write();
        let end = offset.saturating_add(len);
        if end > file.current.len().saturating_add(self.free()) {
            return Err(no_space("prepare", &inode.path).with_outcome(Outcome::NotApplied));
        }
        let len = if extent == Extent::Part { len / 2 } else { len };
        if len > 0 {
            self.apply(&mut file, Change::Zero { offset, len });
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, inode: &Inode, len: u64) -> Result<()> {
        let mut file = inode.data.write();
        if len > file.current.len().saturating_add(self.free()) {
            return Err(no_space("set_size", &inode.path).with_outcome(Outcome::NotApplied));
        }
        if len != file.current.len() {
            self.apply(&mut file, Change::SetLen(len));
        }
        Ok(())
    }

    fn apply(&mut self, file: &mut super::inode::FileData, change: Change) {
        let before = file.current.len();
        let sequence = self.next_sequence();
        file.change(sequence, change);
        self.used = self.used - before + file.current.len();
    }
}

fn no_space(op: &'static str, path: &Path) -> Error {
    Error::from_errno(libc::ENOSPC, op, path)
}

fn power_is_off(op: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::Other, op, path, "power is off")
}
