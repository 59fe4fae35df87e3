//! What readers see: for every column family its memtables and its version, as one immutable
//! value that is replaced as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::FamilyId;
use crate::memtable::MemTable;
use crate::version::Version;
use crate::{CfOptions, Error, Result};

/// A memtable and the oldest log segment that holds records of it.
#[derive(Debug)]
pub(crate) struct Mem {
    /// The entries.
    pub(crate) table: Arc<MemTable>,
    /// The segment of the first record for this memtable; zero while there is none. Set under
    /// the log lock, before the record's entries are inserted.
    first_log: AtomicU64,
}

impl Mem {
    /// An empty memtable that no record belongs to yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { table: Arc::new(MemTable::new()), first_log: AtomicU64::new(0) })
    }

    /// Notes that a record in segment `number` holds operations for this memtable. Only under
    /// the log lock.
    pub(crate) fn note_record(&self, number: u64) {
        // Relaxed: the log lock orders this; the atomic only makes the field shareable.
        if self.first_log.load(Ordering::Relaxed) == 0 {
            self.first_log.store(number, Ordering::Relaxed);
        }
    }

    /// The segment of the first record, if there is one. Whoever has held the log lock sees every
    /// record that was appended before.
    pub(crate) fn first_log(&self) -> Option<u64> {
        Some(self.first_log.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }
}

/// One column family as readers and writers see it.
#[derive(Clone, Debug)]
pub(crate) struct FamilyView {
    /// The family's number.
    pub(crate) id: FamilyId,
    /// The family's options.
    pub(crate) options: Arc<CfOptions>,
    /// The memtable that takes writes.
    pub(crate) active: Arc<Mem>,
    /// Frozen memtables, newest first.
    pub(crate) immutables: Vec<Arc<Mem>>,
    /// The tables.
    pub(crate) version: Arc<Version>,
}

impl FamilyView {
    /// All memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active).chain(&self.immutables).map(|mem| &mem.table)
    }

    /// Whether the active memtable has reached its size.
    pub(crate) fn is_full(&self) -> bool {
        self.active.table.approximate_size() >= self.options.memtable_size
    }
}

/// All column families at one moment.
#[derive(Debug, Default)]
pub(crate) struct ReadView {
    /// Sorted by number.
    families: Vec<Arc<FamilyView>>,
}

impl ReadView {
    /// A view of `families`, which are sorted by number.
    pub(crate) fn new(families: Vec<Arc<FamilyView>>) -> Self {
        debug_assert!(families.is_sorted_by_key(|family| family.id), "families are sorted");
        Self { families }
    }

    /// The family with number `id`; [`Error::FamilyDropped`] if there is none (any more).
    pub(crate) fn family(&self, id: FamilyId) -> Result<&Arc<FamilyView>> {
        let index = self.families.binary_search_by_key(&id, |family| family.id);
        index.map(|index| &self.families[index]).map_err(|_| Error::FamilyDropped { id })
    }

    /// All families, sorted by number.
    pub(crate) fn families(&self) -> &[Arc<FamilyView>] {
        &self.families
    }
}
