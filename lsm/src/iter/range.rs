//! Ranges of keys as double-ended iterators.

use std::fmt;

use bytes::Bytes;

use super::DbCursor;
use crate::Result;

/// Makes one more cursor over the same keys at the same sequence.
pub(crate) type MakeCursor = Box<dyn Fn() -> Result<DbCursor> + Send>;

/// An iterator over a range of keys and their values, from either end, as they were when it was
/// made.
///
/// An error is the last item: nothing behind it is shown. The iterator owns what it reads; it is
/// `Send` and `'static`. The first item from either end opens the tables it needs.
pub struct Range {
    make: MakeCursor,
    front: Option<DbCursor>,
    back: Option<DbCursor>,
    done: bool,
}

impl Range {
    /// The range over which `make` makes cursors.
    pub(crate) fn new(make: MakeCursor) -> Self {
        Self { make, front: None, back: None, done: false }
    }

    fn step_front(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let cursor = match &mut self.front {
            Some(cursor) => {
                cursor.next()?;
                cursor
            }
            none => {
                let cursor = none.insert((self.make)()?);
                cursor.seek_to_first()?;
                cursor
            }
        };
        let met = self.back.as_ref().is_some_and(|back| cursor.key() >= back.key());
        Ok(entry(cursor).filter(|_| !met))
    }

    fn step_back(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let cursor = match &mut self.back {
            Some(cursor) => {
                cursor.prev()?;
                cursor
            }
            none => {
                let cursor = none.insert((self.make)()?);
                cursor.seek_to_last()?;
                cursor
            }
        };
        let met = self.front.as_ref().is_some_and(|front| cursor.key() <= front.key());
        Ok(entry(cursor).filter(|_| !met))
    }

    /// Ends the iterator for good after its last item.
    fn give(&mut self, item: Result<Option<(Bytes, Bytes)>>) -> Option<Result<(Bytes, Bytes)>> {
        let item = item.transpose();
        if !matches!(item, Some(Ok(_))) {
            self.done = true;
            self.front = None;
            self.back = None;
        }
        item
    }
}

fn entry(cursor: &DbCursor) -> Option<(Bytes, Bytes)> {
    let (key, value) = (cursor.key()?, cursor.value()?);
    Some((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)))
}

impl Iterator for Range {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.step_front();
        self.give(item)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.step_back();
        self.give(item)
    }
}

impl std::iter::FusedIterator for Range {}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("done", &self.done).finish_non_exhaustive()
    }
}
