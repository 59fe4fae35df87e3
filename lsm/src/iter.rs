//! The public cursor: user keys visible at one sequence number, inside bounds, both ways.
//!
//! Invariants:
//! * Forward, the inner cursor stands on the entry that is shown. Backward, it stands before all
//!   versions of the key that is shown, and key and value are kept aside.
//! * Nothing outside the bounds is ever shown.

mod range;

use std::any::Any;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::sync::Arc;

pub use range::Range;

use crate::cursor::Cursor;
use crate::key::{self, ParsedKey, ValueKind};
use crate::{Error, Result};

/// The last trailer of a user key in the order of internal keys: sorts after all its versions.
const AFTER_ALL_VERSIONS: u64 = 0;
/// The first trailer of a user key: sorts before all its versions.
const BEFORE_ALL_VERSIONS: u64 = u64::MAX;

/// Which user keys a cursor may show.
#[derive(Clone, Debug)]
pub(crate) struct KeyBounds {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

impl KeyBounds {
    /// The bounds of a range of keys. An inverted range is empty.
    pub(crate) fn new<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Self {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Self { lower: owned(range.start_bound()), upper: owned(range.end_bound()) }
    }

    /// The key at the lower bound, which may be excluded; `None` if there is none.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        bound_key(&self.lower)
    }

    /// The key at the upper bound, which may be excluded; `None` if there is none.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        bound_key(&self.upper)
    }

    /// All keys.
    pub(crate) fn all() -> Self {
        Self { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }

    /// All keys that begin with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        let upper = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Self { lower: Bound::Included(prefix.to_vec()), upper }
    }

    fn below(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(lower) => key < &lower[..],
            Bound::Excluded(lower) => key <= &lower[..],
            Bound::Unbounded => false,
        }
    }

    fn above(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) => key > &upper[..],
            Bound::Excluded(upper) => key >= &upper[..],
            Bound::Unbounded => false,
        }
    }
}

fn bound_key(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Forward,
    Backward,
}

/// A position among the keys of a column family, as they were when the cursor was made.
///
/// A new cursor is not positioned. It becomes invalid by running off either end (of its bounds)
/// and by an error; `next` and `prev` then do nothing (after an error they return it again) until
/// an explicit seek, which starts clean. The cursor owns what it reads: it may be moved to another
/// thread and may outlive the database handle.
pub struct DbCursor {
    inner: Box<dyn Cursor>,
    bounds: KeyBounds,
    sequence: u64,
    place: Place,
    /// The user key shown when going backward; the key to skip when going forward.
    key: Vec<u8>,
    value: Vec<u8>,
    error: Option<Error>,
    dir: PathBuf,
    /// What must stay alive while the cursor reads: the view and the registered snapshot.
    _pins: Arc<dyn Any + Send + Sync>,
}

impl DbCursor {
    /// A cursor over what `inner` holds at `sequence`, inside `bounds`. `dir` is named in errors;
    /// `pins` is kept until the cursor is dropped.
    pub(crate) fn new(
        inner: Box<dyn Cursor>,
        bounds: KeyBounds,
        sequence: u64,
        dir: PathBuf,
        pins: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let (key, value) = (Vec::new(), Vec::new());
        let (place, error) = (Place::Nowhere, None);
        Self { inner, bounds, sequence, place, key, value, error, dir, _pins: pins }
    }

    /// Whether the cursor is on a key.
    pub fn valid(&self) -> bool {
        self.place != Place::Nowhere
    }

    /// The key the cursor is on; `None` if it is on none.
    pub fn key(&self) -> Option<&[u8]> {
        match self.place {
            Place::Nowhere => None,
            Place::Forward => Some(key::user_key(self.inner.key())),
            Place::Backward => Some(&self.key),
        }
    }

    /// The value of the key the cursor is on; `None` if it is on none.
    pub fn value(&self) -> Option<&[u8]> {
        match self.place {
            Place::Nowhere => None,
            Place::Forward => Some(self.inner.value()),
            Place::Backward => Some(&self.value),
        }
    }

    /// Goes to the first key.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.run(|cursor| {
            let target = match &cursor.bounds.lower {
                Bound::Unbounded => None,
                Bound::Included(lower) => Some(key::encode(lower, BEFORE_ALL_VERSIONS)),
                Bound::Excluded(lower) => Some(key::encode(lower, AFTER_ALL_VERSIONS)),
            };
            match target {
                None => cursor.inner.seek_to_first()?,
                Some(target) => cursor.inner.seek(&target)?,
            }
            cursor.find_forward(false)
        })
    }

    /// Goes to the last key.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.run(|cursor| {
            let target = match &cursor.bounds.upper {
                Bound::Unbounded => None,
                Bound::Included(upper) => Some(key::encode(upper, AFTER_ALL_VERSIONS)),
                Bound::Excluded(upper) => Some(key::encode(upper, BEFORE_ALL_VERSIONS)),
            };
            match target {
                None => cursor.inner.seek_to_last()?,
                Some(target) => cursor.inner.seek_for_prev(&target)?,
            }
            cursor.find_backward()
        })
    }

    /// Goes to the first key at or after `target`.
    pub fn seek(&mut self, target: impl AsRef<[u8]>) -> Result<()> {
        let target = target.as_ref();
        if self.bounds.below(target) {
            return self.seek_to_first();
        }
        self.run(|cursor| {
            cursor.inner.seek(&key::encode(target, key::seek_trailer(cursor.sequence)))?;
            cursor.find_forward(false)
        })
    }

    /// Goes to the last key at or before `target`.
    pub fn seek_for_prev(&mut self, target: impl AsRef<[u8]>) -> Result<()> {
        let target = target.as_ref();
        if self.bounds.above(target) {
            return self.seek_to_last();
        }
        self.run(|cursor| {
            cursor.inner.seek_for_prev(&key::encode(target, AFTER_ALL_VERSIONS))?;
            cursor.find_backward()
        })
    }

    /// Goes to the next key.
    #[expect(clippy::should_implement_trait, reason = "a cursor's next is the field's term")]
    pub fn next(&mut self) -> Result<()> {
        self.unfailed()?;
        match self.place {
            Place::Nowhere => Ok(()),
            Place::Forward => self.run(|cursor| {
                cursor.key.clear();
                cursor.key.extend_from_slice(key::user_key(cursor.inner.key()));
                cursor.inner.next()?;
                cursor.find_forward(true)
            }),
            Place::Backward => self.run(|cursor| {
                cursor.inner.seek(&key::encode(&cursor.key, AFTER_ALL_VERSIONS))?;
                cursor.find_forward(false)
            }),
        }
    }

    /// Goes to the previous key.
    pub fn prev(&mut self) -> Result<()> {
        self.unfailed()?;
        match self.place {
            Place::Nowhere => Ok(()),
            Place::Forward => self.run(|cursor| {
                let target = key::encode(key::user_key(cursor.inner.key()), BEFORE_ALL_VERSIONS);
                cursor.inner.seek_for_prev(&target)?;
                cursor.find_backward()
            }),
            Place::Backward => self.run(Self::find_backward),
        }
    }

    fn unfailed(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Runs a move; whatever fails in it leaves the cursor invalid and is kept.
    fn run(&mut self, go: impl FnOnce(&mut Self) -> Result<Place>) -> Result<()> {
        self.error = None;
        match go(self) {
            Ok(place) => {
                self.place = place;
                Ok(())
            }
            Err(error) => {
                self.place = Place::Nowhere;
                self.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// From the inner cursor's entry on, the first key that is visible and not deleted. With
    /// `skipping`, versions of the key kept aside are passed over.
    fn find_forward(&mut self, mut skipping: bool) -> Result<Place> {
        while self.inner.valid() {
            let entry = parse(self.inner.as_ref(), &self.dir)?;
            if self.bounds.above(entry.user_key) {
                break;
            }
            let hidden = entry.sequence > self.sequence || (skipping && entry.user_key == self.key);
            if !hidden {
                if entry.kind == ValueKind::Put {
                    return Ok(Place::Forward);
                }
                skipping = true;
                self.key.clear();
                self.key.extend_from_slice(entry.user_key);
            }
            self.inner.next()?;
        }
        Ok(Place::Nowhere)
    }

    /// From the inner cursor's entry back, the last key that is visible and not deleted. Versions
    /// of a key come oldest first this way, so the last visible one counts.
    fn find_backward(&mut self) -> Result<Place> {
        let mut candidate = false;
        let mut live = false;
        while self.inner.valid() {
            let entry = parse(self.inner.as_ref(), &self.dir)?;
            if self.bounds.below(entry.user_key) {
                break;
            }
            if candidate && live && entry.user_key != self.key {
                return Ok(Place::Backward);
            }
            if entry.sequence <= self.sequence {
                candidate = true;
                live = entry.kind == ValueKind::Put;
                self.key.clear();
                self.key.extend_from_slice(entry.user_key);
                self.value.clear();
                if live {
                    self.value.extend_from_slice(self.inner.value());
                }
            }
            self.inner.prev()?;
        }
        Ok(if live { Place::Backward } else { Place::Nowhere })
    }
}

fn parse<'a>(cursor: &'a dyn Cursor, dir: &std::path::Path) -> Result<ParsedKey<'a>> {
    key::parse(cursor.key())
        .ok_or_else(|| Error::corruption(dir, None, "an entry has an unknown kind"))
}

impl fmt::Debug for DbCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbCursor")
            .field("place", &self.place)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
