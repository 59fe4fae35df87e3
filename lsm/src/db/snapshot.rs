//! Snapshots: the database as it was at one moment.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Handle, Shared};
use crate::batch::{DEFAULT_FAMILY, FamilyId};
use crate::iter::{DbCursor, KeyBounds, Range};
use crate::{ColumnFamily, ReadOptions, Result};

impl Shared {
    /// Registers the last published sequence: compactions keep what it sees.
    ///
    /// Under the state lock, which also covers the choice of a compaction and its list of
    /// snapshots: one that is not on the list is newer than everything in that job's inputs.
    fn register_snapshot(&self) -> u64 {
        let mut state = self.state.lock();
        let sequence = self.visible.load(Ordering::Acquire);
        *state.snapshots.entry(sequence).or_insert(0) += 1;
        sequence
    }

    fn release_snapshot(&self, sequence: u64) {
        let mut state = self.state.lock();
        let count = state.snapshots.get_mut(&sequence).expect("a live snapshot is registered");
        *count -= 1;
        if *count == 0 {
            state.snapshots.remove(&sequence);
        }
    }
}

/// A view of all column families as they were when it was taken.
///
/// It costs nothing to take; while it lives, compactions keep the versions that it sees. Cheap to
/// clone; any number of threads may read through it at once. It keeps the database open. What was
/// created before and dropped since is [`Error::FamilyDropped`](crate::Error::FamilyDropped); a
/// family of another open database is
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument).
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: Arc<Registered>,
}

struct Registered {
    handle: Arc<Handle>,
    sequence: u64,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.sequence)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.handle.shared.release_snapshot(self.sequence);
    }
}

impl Snapshot {
    pub(crate) fn new(handle: &Arc<Handle>) -> Self {
        let sequence = handle.shared.register_snapshot();
        Self { inner: Arc::new(Registered { handle: Arc::clone(handle), sequence }) }
    }

    /// The sequence number of the last operation that the snapshot sees.
    pub fn sequence(&self) -> u64 {
        self.inner.sequence
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.handle.shared
    }

    /// The number of a family of this database.
    pub(super) fn id_of(&self, family: &ColumnFamily) -> Result<FamilyId> {
        family.id_in(&self.inner.handle)
    }

    /// The value of a key; `None` if it had none.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_opt(key, &ReadOptions::default())
    }

    /// [`Snapshot::get`] with options.
    pub fn get_opt(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Bytes>> {
        self.shared().get(Some(self.inner.sequence), DEFAULT_FAMILY, key.as_ref(), options)
    }

    /// [`Snapshot::get`] in a column family.
    pub fn get_in(&self, family: &ColumnFamily, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let id = self.id_of(family)?;
        self.shared().get(Some(self.inner.sequence), id, key.as_ref(), &ReadOptions::default())
    }

    /// The values of many keys; see [`Db::multi_get`](super::Db::multi_get).
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        self.multi_get_opt(keys, &ReadOptions::default())
    }

    /// [`Snapshot::multi_get`] with options.
    pub fn multi_get_opt<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        let keys: Vec<(FamilyId, K)> = keys.into_iter().map(|key| (DEFAULT_FAMILY, key)).collect();
        self.shared().multi_get(Some(self.inner.sequence), &keys, options)
    }

    /// [`Snapshot::multi_get`] over several column families.
    pub fn multi_get_in<'a, K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = (&'a ColumnFamily, K)>,
    ) -> Vec<Result<Option<Bytes>>> {
        self.inner.handle.multi_get_in(Some(self.inner.sequence), keys)
    }

    /// The keys in a range, from either end.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.inner.handle.range(Some(self.inner.sequence), DEFAULT_FAMILY, KeyBounds::new(&range))
    }

    /// [`Snapshot::range`] in a column family.
    pub fn range_in<K: AsRef<[u8]>>(
        &self,
        family: &ColumnFamily,
        range: impl RangeBounds<K>,
    ) -> Range {
        let bounds = KeyBounds::new(&range);
        self.inner.handle.range_in(Some(self.inner.sequence), family, bounds)
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        let bounds = KeyBounds::prefix(prefix.as_ref());
        self.inner.handle.range(Some(self.inner.sequence), DEFAULT_FAMILY, bounds)
    }

    /// [`Snapshot::prefix`] in a column family.
    pub fn prefix_in(&self, family: &ColumnFamily, prefix: impl AsRef<[u8]>) -> Range {
        let bounds = KeyBounds::prefix(prefix.as_ref());
        self.inner.handle.range_in(Some(self.inner.sequence), family, bounds)
    }

    /// All keys.
    pub fn iter(&self) -> Range {
        self.inner.handle.range(Some(self.inner.sequence), DEFAULT_FAMILY, KeyBounds::all())
    }

    /// All keys of a column family.
    pub fn iter_in(&self, family: &ColumnFamily) -> Range {
        self.inner.handle.range_in(Some(self.inner.sequence), family, KeyBounds::all())
    }

    /// A cursor over all keys.
    pub fn cursor(&self) -> Result<DbCursor> {
        self.inner.handle.cursor(Some(self.inner.sequence), DEFAULT_FAMILY)
    }

    /// A cursor over all keys of a column family.
    pub fn cursor_in(&self, family: &ColumnFamily) -> Result<DbCursor> {
        let id = self.id_of(family)?;
        self.inner.handle.cursor(Some(self.inner.sequence), id)
    }
}

impl IntoIterator for &Snapshot {
    type Item = Result<(Bytes, Bytes)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}
