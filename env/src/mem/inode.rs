//! One file: what is on the medium, what everybody sees, and the changes between the two.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use super::content::{Content, index};
use super::crash::{CrashChoice, CrashSubject};

/// The unit in which a power loss keeps or loses unsynced bytes.
const SECTOR_BYTES: usize = 512;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// Unsynced bytes that one file keeps apart before the oldest half of them is written back, as a
/// kernel does. Far above what a crash test leaves unsynced, so it only bounds memory.
const WRITE_BACK: u64 = 256 << 20;

/// A file, whatever names it has. Names and open files share it.
pub(super) struct Inode {
    pub(super) id: u64,
    /// The name it was created by, for messages and crash choices.
    pub(super) path: PathBuf,
    pub(super) data: RwLock<FileData>,
}

impl Inode {
    /// An empty file without a name.
    pub(super) fn new(id: u64, path: &Path) -> Arc<Self> {
        Self::with_content(id, path, Arc::default())
    }

    /// A file whose bytes are all durable.
    pub(super) fn with_content(id: u64, path: &Path, content: Arc<Content>) -> Arc<Self> {
        let data = FileData {
            current: Arc::clone(&content),
            durable: content,
            pending: Vec::new(),
            pending_bytes: 0,
            links: 0,
            opens: 0,
        };
        Self::with_data(id, path, data)
    }

    pub(super) fn with_data(id: u64, path: &Path, data: FileData) -> Arc<Self> {
        Arc::new(Self { id, path: path.to_path_buf(), data: RwLock::new(data) })
    }
}

/// A change of a file's bytes.
#[derive(Clone)]
pub(super) enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    Zero { offset: u64, len: u64 },
    SetLen(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Change::Write { offset, data } => content.write(data, *offset),
            Change::Zero { offset, len } => content.zero(*offset, *len),
            Change::SetLen(len) => content.set_len(*len),
        }
    }

    /// The bytes it covers: where, and how many.
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Write { offset, data } => (*offset, data.len() as u64),
            Change::Zero { offset, len } => (*offset, *len),
            Change::SetLen(len) => (*len, u64::MAX - *len),
        }
    }

    fn held_bytes(&self) -> u64 {
        match self {
            Change::Write { data, .. } => data.len() as u64,
            Change::Zero { .. } | Change::SetLen(_) => 0,
        }
    }
}

#[derive(Clone)]
struct Pending {
    /// Position among all unsynced operations of the environment.
    sequence: u64,
    change: Change,
}

/// Invariant: `current` is `durable` with `pending` applied in order.
#[derive(Clone)]
pub(super) struct FileData {
    pub(super) durable: Arc<Content>,
    pub(super) current: Arc<Content>,
    pending: Vec<Pending>,
    pending_bytes: u64,
    /// Names that lead here now.
    pub(super) links: u32,
    /// Open files, handles and locks.
    pub(super) opens: u32,
}

impl FileData {
    /// Makes a change that everybody sees and no sync covers yet.
    pub(super) fn change(&mut self, sequence: u64, change: Change) {
        change.apply(Arc::make_mut(&mut self.current));
        self.pending_bytes += change.held_bytes();
        self.pending.push(Pending { sequence, change });
        if self.pending_bytes > WRITE_BACK {
            self.sync_first(self.pending.len().div_ceil(2));
        }
    }

    /// Makes everything durable.
    pub(super) fn sync(&mut self) {
        if self.pending.iter().any(|p| matches!(p.change, Change::SetLen(_))) {
            self.durable = Arc::clone(&self.current);
        } else if !self.pending.is_empty() {
            let durable = Arc::make_mut(&mut self.durable);
            for pending in &self.pending {
                let (offset, len) = pending.change.range();
                durable.adopt(&self.current, offset, len);
            }
            durable.set_len(self.current.len());
        }
        self.pending.clear();
        self.pending_bytes = 0;
    }

    /// Makes the oldest half of the changes durable, as a sync that was cut off may have.
    pub(super) fn sync_half(&mut self) {
        self.sync_first(self.pending.len() / 2);
    }

    fn sync_first(&mut self, count: usize) {
        let durable = Arc::make_mut(&mut self.durable);
        for pending in self.pending.drain(..count) {
            pending.change.apply(durable);
            self.pending_bytes -= pending.change.held_bytes();
        }
    }

    /// Sequences of the changes that no sync covers, oldest first.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|p| p.sequence)
    }

    /// Sequence of the newest unsynced write of bytes.
    pub(super) fn newest_write(&self) -> Option<u64> {
        let is_write = |p: &&Pending| matches!(p.change, Change::Write { .. });
        self.pending.iter().rev().find(is_write).map(|p| p.sequence)
    }

    /// What a power loss leaves, each length and each sector as `pick` chooses.
    pub(super) fn survivor(
        &self,
        path: &Path,
        pick: &mut dyn FnMut(CrashSubject, &Path, &[u64]) -> usize,
    ) -> Arc<Content> {
        if self.pending.is_empty() {
            return Arc::clone(&self.durable);
        }
        let (length, steps) = self.surviving_length(path, pick);
        let mut chosen = Vec::new();
        let mut all_old = true;
        let mut all_new = length == self.current.len();
        for (sector, touching) in self.touched_sectors() {
            let sequences: Vec<u64> = touching.iter().map(|i| self.pending[*i].sequence).collect();
            let mut version = pick(CrashSubject::Sector(sector), path, &sequences);
            // A cut that decides the length has also dropped the bytes it cut off.
            let cut =
                |i: &usize| matches!(self.pending[*i].change, Change::SetLen(_)) && *i < steps;
            if let Some(last_cut) = touching.iter().rposition(cut) {
                version = version.max(last_cut + 1);
            }
            all_old &= version == 0;
            all_new &= version == touching.len();
            chosen.push((sector, touching, version));
        }
        // The two commonest images share everything with the live file.
        if all_new {
            return Arc::clone(&self.current);
        }
        if all_old && length == self.durable.len() {
            return Arc::clone(&self.durable);
        }
        let mut image = Content::clone(&self.durable);
        image.set_len(length.max(image.len()));
        for (sector, touching, version) in chosen {
            let bytes = self.sector_version(sector, &touching[..version]);
            let room = length.saturating_sub(sector * SECTOR).min(SECTOR);
            image.write(&bytes[..index(room)], sector * SECTOR);
        }
        image.set_len(length);
        Arc::new(image)
    }

    /// The chosen length, and how many changes had been made when the file had it first.
    fn surviving_length(
        &self,
        path: &Path,
        pick: &mut dyn FnMut(CrashSubject, &Path, &[u64]) -> usize,
    ) -> (u64, usize) {
        let mut lengths = vec![(self.durable.len(), 0)];
        let mut sequences = Vec::new();
        let mut len = self.durable.len();
        for (i, pending) in self.pending.iter().enumerate() {
            let after = match &pending.change {
                Change::SetLen(new) => *new,
                Change::Write { data, .. } if data.is_empty() => len,
                Change::Write { offset, data } => len.max(offset + data.len() as u64),
                Change::Zero { offset, len: zeros } => len.max(offset + zeros),
            };
            if after != len {
                len = after;
                lengths.push((len, i + 1));
                sequences.push(pending.sequence);
            }
        }
        if sequences.is_empty() {
            return lengths[0];
        }
        lengths[pick(CrashSubject::Length, path, &sequences)]
    }

    /// For each sector that has versions: the positions of the changes that made them.
    fn touched_sectors(&self) -> BTreeMap<u64, Vec<usize>> {
        let mut sectors: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for pending in &self.pending {
            let (offset, len) = pending.change.range();
            let touched = match &pending.change {
                Change::Write { data, .. } if data.is_empty() => Vec::new(),
                Change::Write { .. } => vec![(offset, offset + len)],
                // Zeros over a hole make no new version.
                _ => self.durable.data_ranges(offset, (offset + len).min(self.durable.len())),
            };
            for (from, to) in touched {
                for sector in from / SECTOR..to.div_ceil(SECTOR) {
                    sectors.entry(sector).or_default();
                }
            }
        }
        for (i, pending) in self.pending.iter().enumerate() {
            let (offset, len) = pending.change.range();
            if len > 0 {
                let last = (offset + (len - 1)) / SECTOR;
                for (_, touching) in sectors.range_mut(offset / SECTOR..=last) {
                    touching.push(i);
                }
            }
        }
        sectors.retain(|_, touching| !touching.is_empty());
        sectors
    }

    fn sector_version(&self, sector: u64, changes: &[usize]) -> [u8; SECTOR_BYTES] {
        let start = sector * SECTOR;
        let mut bytes = [0; SECTOR_BYTES];
        self.durable.read(&mut bytes, start);
        for i in changes {
            let change = &self.pending[*i].change;
            let (offset, len) = change.range();
            let from = offset.max(start);
            let to = offset.saturating_add(len).min(start + SECTOR);
            let within = index(from - start)..index(to - start);
            match change {
                Change::Write { offset, data } => {
                    bytes[within].copy_from_slice(&data[index(from - offset)..index(to - offset)]);
                }
                Change::Zero { .. } | Change::SetLen(_) => bytes[within].fill(0),
            }
        }
        bytes
    }
}

/// The form in which crash choices reach the chooser: what, whose, made by which operations.
pub(super) fn choice<'a>(
    subject: CrashSubject,
    path: &'a Path,
    operations: &'a [usize],
    total: usize,
) -> CrashChoice<'a> {
    CrashChoice { subject, path, operations, total }
}
