//! Column families: creating, finding and dropping them, and the handle to one.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::background::PanicGuard;
use super::state::{Family, State};
use super::{Handle, Shared};
use crate::batch::{DEFAULT_FAMILY, FamilyId, FamilyRef, WriteBatch};
use crate::iter::{DbCursor, KeyBounds, Range};
use crate::version::{FamilyLog, MAX_FAMILY_NAME, VersionEdit};
use crate::{CfOptions, Error, ReadOptions, Result, WriteOptions};

/// Checks a family's name: any text of 1 to 255 bytes. Names never become part of a path.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_FAMILY_NAME).contains(&name.len()) {
        return Ok(());
    }
    let length = name.len();
    Err(Error::invalid(format!(
        "a column family name of {length} bytes; names have 1 to {MAX_FAMILY_NAME}"
    )))
}

impl State {
    fn family_by_name(&self, name: &str) -> Option<&Family> {
        self.families.values().find(|family| &*family.name == name)
    }
}

impl Shared {
    pub(crate) fn create_family(&self, name: &str, options: CfOptions) -> Result<FamilyId> {
        self.check_writable()?;
        check_name(name)?;
        options.validate()?;
        let guard = PanicGuard::of_call(self);
        let result = self.create_family_guarded(name, options);
        guard.disarm();
        result
    }

    fn create_family_guarded(&self, name: &str, options: CfOptions) -> Result<FamilyId> {
        let mut versions = self.versions.lock();
        // Again under the manifest lock: see `apply`.
        self.check_writable()?;
        // Under the manifest lock: of two creations with one name the second sees the first.
        if self.state.lock().family_by_name(name).is_some() {
            return Err(Error::invalid(format!("the column family {name:?} exists already")));
        }
        let id = versions.next_family_id();
        let mut edit = VersionEdit::default();
        let log_number = self.note_logs(&mut edit, None)?;
        edit.added_families.push((id, name.to_owned()));
        let flushed_sequence = 0;
        edit.family_logs.push(FamilyLog { family: id, log_number, flushed_sequence });
        let logs = edit.family_logs.clone();
        let installed = versions.log_and_apply(edit).map_err(|error| self.poison(error))?;
        let created = versions.family(id).expect("the family was just installed");
        let unneeded = self.log.lock().drop_below(installed.log_floor);
        let mut state = self.state.lock();
        state.obsolete_logs.extend(unneeded);
        self.limit_log(options.memtable_size);
        state.families.insert(id, Family::new(options, &created));
        self.install(&mut state, installed, &logs, None);
        Ok(id)
    }

    /// Without a limit of the user's own, the logs may hold four of the largest memtables.
    pub(crate) fn limit_log(&self, memtable_size: usize) {
        if self.options.max_wal_size.is_none() {
            self.max_wal_size.fetch_max(4 * memtable_size as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn drop_family(&self, id: FamilyId) -> Result<()> {
        if id == DEFAULT_FAMILY {
            return Err(Error::invalid("the column family \"default\" cannot be dropped"));
        }
        {
            // With the baton in hand and no group under way, no batch is between the check of
            // its families and its inserts.
            let _baton = self.queue.baton();
            self.check_writable()?;
            self.turnstile.wait_for_at_most(0);
            if !self.state.lock().families.contains_key(&id) {
                return Err(Error::FamilyDropped { id });
            }
            let edit = VersionEdit { dropped_families: vec![id], ..VersionEdit::default() };
            self.apply(edit, None)?;
        }
        if self.inline() {
            self.run_due(super::background::Patience::BackOff);
        }
        Ok(())
    }

    pub(crate) fn family_names(&self) -> Vec<String> {
        let state = self.state.lock();
        state.families.values().map(|family| family.name.to_string()).collect()
    }
}

impl Handle {
    pub(crate) fn family(self: &Arc<Self>, name: &str) -> Option<ColumnFamily> {
        let state = self.shared.state.lock();
        let family = state.family_by_name(name)?;
        let (id, name) = (family.id, Arc::clone(&family.name));
        Some(ColumnFamily { handle: Arc::clone(self), id, name })
    }
}

/// A handle to a column family: a key space of its own in a database, with its own memtable,
/// tables and options, that shares the log with the others, so that one batch can write to
/// several families at once.
///
/// Cheap to clone; any number of threads may use it at once. It keeps the database open. After
/// the family was dropped every call is [`Error::FamilyDropped`]; iterators made before go on.
#[derive(Clone, Debug)]
pub struct ColumnFamily {
    pub(super) handle: Arc<Handle>,
    pub(super) id: FamilyId,
    name: Arc<str>,
}

impl FamilyRef for ColumnFamily {
    fn family_id(&self) -> u32 {
        self.id
    }

    fn database_id(&self) -> u64 {
        self.handle.shared.id
    }
}

impl ColumnFamily {
    /// The family's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The family's number, for a call to the open database behind `handle`;
    /// [`Error::InvalidArgument`] if the family is one of another.
    pub(crate) fn id_in(&self, handle: &Arc<Handle>) -> Result<FamilyId> {
        if Arc::ptr_eq(&self.handle, handle) { Ok(self.id) } else { Err(Error::foreign_family()) }
    }

    /// Sets a key; see [`Db::put`](super::Db::put).
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_in(self, key, value);
        self.handle.shared.write(batch, &WriteOptions::default())
    }

    /// Deletes a key; see [`Db::delete`](super::Db::delete).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_in(self, key);
        self.handle.shared.write(batch, &WriteOptions::default())
    }

    /// The value of a key; `None` if it has none.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_opt(key, &ReadOptions::default())
    }

    /// [`ColumnFamily::get`] with options.
    pub fn get_opt(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Bytes>> {
        self.handle.shared.get(None, self.id, key.as_ref(), options)
    }

    /// The values of many keys; see [`Db::multi_get`](super::Db::multi_get).
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        self.multi_get_opt(keys, &ReadOptions::default())
    }

    /// [`ColumnFamily::multi_get`] with options.
    pub fn multi_get_opt<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        let keys: Vec<(FamilyId, K)> = keys.into_iter().map(|key| (self.id, key)).collect();
        self.handle.shared.multi_get(None, &keys, options)
    }

    /// The keys in a range; see [`Db::range`](super::Db::range).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.handle.range(None, self.id, KeyBounds::new(&range))
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.handle.range(None, self.id, KeyBounds::prefix(prefix.as_ref()))
    }

    /// All keys.
    pub fn iter(&self) -> Range {
        self.handle.range(None, self.id, KeyBounds::all())
    }

    /// A cursor over all keys.
    pub fn cursor(&self) -> Result<DbCursor> {
        self.handle.cursor(None, self.id)
    }

    /// Compacts a range of the family; see [`Db::compact_range`](super::Db::compact_range).
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.handle.shared.compact_range(self.id, &KeyBounds::new(&range))
    }
}

impl IntoIterator for &ColumnFamily {
    type Item = Result<(Bytes, Bytes)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}
