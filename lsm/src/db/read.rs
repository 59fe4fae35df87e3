//! Reads: the moment they see, single look-ups, and the cursors under iterators.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::view::{FamilyView, ReadView};
use super::{ColumnFamily, Handle, Shared};
use crate::batch::FamilyId;
use crate::cursor::Cursor;
use crate::iter::{DbCursor, KeyBounds, Range};
use crate::key::SeekKey;
use crate::memtable::Lookup;
use crate::merge_iter::MergeCursor;
use crate::{ReadOptions, Result};

impl Shared {
    /// Calls `read` with the newest moment: a view, and a sequence number such that every write
    /// up to it is in the view.
    ///
    /// The view is loaded before and after the sequence. A memtable is only replaced while no
    /// group is between its inserts and its publication; so if the view was the same both times,
    /// everything published by then went into the memtables (or tables) of this view. Otherwise a
    /// memtable was just switched or installed, which is rare, and the next try will do.
    pub(crate) fn at_newest<T>(&self, read: impl FnOnce(&Arc<ReadView>, u64) -> T) -> T {
        loop {
            let view = self.view.load();
            // Acquire: pairs with the publication, whose inserts must be visible.
            let sequence = self.visible.load(Ordering::Acquire);
            if Arc::ptr_eq(&view, &self.view.load()) {
                return read(&view, sequence);
            }
        }
    }

    /// Calls `read` with a moment: that of the snapshot with number `at`, or the newest.
    ///
    /// A snapshot reads through the newest view: what its sequence needs is kept by compactions
    /// for as long as it is registered.
    pub(crate) fn at<T>(&self, at: Option<u64>, read: impl FnOnce(&Arc<ReadView>, u64) -> T) -> T {
        match at {
            Some(sequence) => read(&self.view.load(), sequence),
            None => self.at_newest(read),
        }
    }

    /// The value of a key.
    pub(crate) fn get(
        &self,
        at: Option<u64>,
        family: FamilyId,
        user_key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Bytes>> {
        self.check_open()?;
        self.at(at, |view, sequence| {
            let found = self.look_up(view.family(family)?, sequence, user_key, options)?;
            Ok(match found {
                Some(Lookup::Found(value)) => Some(value),
                Some(Lookup::Deleted) | None => None,
            })
        })
    }

    /// The newest version of a key at `sequence`: memtables, then tables, newest first. The first
    /// source that knows the key decides, and so does the first that fails.
    fn look_up(
        &self,
        family: &FamilyView,
        sequence: u64,
        user_key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Lookup>> {
        let in_memory = family.memtables().find_map(|table| table.get(user_key, sequence));
        if in_memory.is_some() {
            return Ok(in_memory);
        }
        let mut seek = None;
        for (_, file) in family.version.candidates(user_key) {
            let seek = seek.get_or_insert_with(|| SeekKey::new(user_key, sequence));
            let table = file.open(&self.tables)?;
            if let Some((_, found)) = table.get(seek.as_slice(), options.fill_cache)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// What a cursor reads, and what must stay alive while it does.
#[derive(Clone)]
struct Source {
    pins: Arc<Pins>,
    sequence: u64,
    options: ReadOptions,
}

/// What cursors keep alive, in the order in which it is let go.
struct Pins {
    /// `None` only while this is dropped.
    family: Option<Arc<FamilyView>>,
    /// Keeps the database open, so that nobody else removes the files under the cursor.
    handle: Arc<Handle>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.family = None;
        self.handle.shared.after_reader();
    }
}

impl Source {
    fn cursor(&self, bounds: KeyBounds) -> Result<DbCursor> {
        let shared = &self.pins.handle.shared;
        shared.check_open()?;
        let family = self.pins.family.as_ref().expect("pins are whole until they are dropped");
        let mut children: Vec<Box<dyn Cursor>> = Vec::new();
        for table in family.memtables() {
            children.push(Box::new(table.cursor()));
        }
        children.extend(family.version.cursors(&shared.tables, &self.options)?);
        let inner = Box::new(MergeCursor::new(children));
        // The cursor drops these last, when its own references to tables are gone.
        let pins = Arc::clone(&self.pins);
        Ok(DbCursor::new(inner, bounds, self.sequence, shared.dir.clone(), pins))
    }
}

impl Handle {
    fn source(self: &Arc<Self>, at: Option<u64>, family: FamilyId) -> Result<Source> {
        self.shared.check_open()?;
        self.shared.at(at, |view, sequence| {
            let family = Arc::clone(view.family(family)?);
            let pins = Arc::new(Pins { family: Some(family), handle: Arc::clone(self) });
            Ok(Source { pins, sequence, options: ReadOptions::default() })
        })
    }

    /// A cursor over a family at a moment.
    pub(crate) fn cursor(self: &Arc<Self>, at: Option<u64>, family: FamilyId) -> Result<DbCursor> {
        self.source(at, family)?.cursor(KeyBounds::all())
    }

    /// A range of a family at a moment. The moment is now, not that of the first item.
    pub(crate) fn range(
        self: &Arc<Self>,
        at: Option<u64>,
        family: FamilyId,
        bounds: KeyBounds,
    ) -> Range {
        range_over(self.source(at, family), bounds)
    }

    /// [`Handle::range`] in a family that may be one of another open database.
    pub(crate) fn range_in(
        self: &Arc<Self>,
        at: Option<u64>,
        family: &ColumnFamily,
        bounds: KeyBounds,
    ) -> Range {
        range_over(family.id_in(self).and_then(|id| self.source(at, id)), bounds)
    }
}

/// The range of a source; the error in its place is the range's only item.
fn range_over(source: Result<Source>, bounds: KeyBounds) -> Range {
    Range::new(Box::new(move || source.clone()?.cursor(bounds.clone())))
}
