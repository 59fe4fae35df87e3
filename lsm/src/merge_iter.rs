//! The merging cursor: several sorted sequences as one.
//!
//! Invariants:
//! * While the cursor is valid and moves forward, every child is at its first entry after the
//!   current one (the current child at the entry itself); backward, at its last entry before it.
//! * After a child's error the cursor is invalid until an explicit seek: the entries behind a bad
//!   block are never shown as if nothing were missing.

use std::cmp::Ordering;
use std::fmt;

use crate::Result;
use crate::cursor::Cursor;
use crate::key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor over the union of its children. Where two children hold the same internal key, the
/// one earlier in the list comes first (both ways the same entry is shown twice).
pub(crate) struct MergeCursor {
    children: Vec<Box<dyn Cursor>>,
    /// A binary heap of indexes of valid children; the top is the current one.
    heap: Vec<usize>,
    direction: Direction,
}

impl MergeCursor {
    /// The union of `children`, newest source first.
    pub(crate) fn new(children: Vec<Box<dyn Cursor>>) -> Self {
        let heap = Vec::with_capacity(children.len());
        Self { children, heap, direction: Direction::Forward }
    }

    fn position(
        &mut self,
        direction: Direction,
        mut place: impl FnMut(&mut dyn Cursor) -> Result<()>,
    ) -> Result<()> {
        self.heap.clear();
        self.direction = direction;
        for child in &mut self.children {
            place(child.as_mut())?;
        }
        self.build_heap();
        Ok(())
    }

    fn build_heap(&mut self) {
        self.heap.clear();
        self.heap.extend((0..self.children.len()).filter(|&index| self.children[index].valid()));
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    /// Moves the current child one step and restores the heap.
    fn step(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        let child = &mut self.children[top];
        let moved = match self.direction {
            Direction::Forward => child.next(),
            Direction::Backward => child.prev(),
        };
        if let Err(error) = moved {
            self.heap.clear();
            return Err(error);
        }
        if !self.children[top].valid() {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// Turns around at the current entry: every other child goes to its neighbour of the current
    /// key on the new side. The current child stays on it.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let Some(&current) = self.heap.first() else { return Ok(()) };
        let at = self.children[current].key().to_vec();
        self.heap.clear();
        self.direction = direction;
        for index in 0..self.children.len() {
            if index == current {
                continue;
            }
            let child = self.children[index].as_mut();
            // Of equal keys, the child earlier in the list comes first in forward order.
            match direction {
                Direction::Forward => {
                    child.seek(&at)?;
                    if index < current && child.valid() && child.key() == at {
                        child.next()?;
                    }
                }
                Direction::Backward => {
                    child.seek_for_prev(&at)?;
                    if index > current && child.valid() && child.key() == at {
                        child.prev()?;
                    }
                }
            }
        }
        self.build_heap();
        debug_assert_eq!(self.heap.first(), Some(&current), "turning keeps the current entry");
        Ok(())
    }

    /// Whether child `a` comes before child `b` in the current direction.
    fn before(&self, a: usize, b: usize) -> bool {
        let order = key::compare(self.children[a].key(), self.children[b].key()).then(a.cmp(&b));
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut first = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.heap.swap(at, first);
            at = first;
        }
    }

    fn current(&self) -> &dyn Cursor {
        let top = *self.heap.first().expect("key() and value() are called on a valid cursor only");
        self.children[top].as_ref()
    }
}

impl fmt::Debug for MergeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MergeCursor({} children, {:?})", self.children.len(), self.direction)
    }
}

impl Cursor for MergeCursor {
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }

    fn key(&self) -> &[u8] {
        self.current().key()
    }

    fn value(&self) -> &[u8] {
        self.current().value()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, |child| child.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, |child| child.seek_to_last())
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.position(Direction::Forward, |child| child.seek(target))
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.position(Direction::Backward, |child| child.seek_for_prev(target))
    }

    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            self.turn(Direction::Forward)?;
        }
        self.step()
    }

    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            self.turn(Direction::Backward)?;
        }
        self.step()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::Error;
    use crate::key::{ValueKind, encode, trailer};
    use crate::memtable::MemTable;

    fn merged(tables: &[Arc<MemTable>]) -> MergeCursor {
        MergeCursor::new(tables.iter().map(|table| Box::new(table.cursor()) as _).collect())
    }

    #[test]
    fn no_children_and_empty_children_give_an_invalid_cursor() {
        for tables in [vec![], vec![Arc::new(MemTable::new())]] {
            let mut cursor = merged(&tables);
            cursor.seek_to_first().unwrap();
            assert!(!cursor.valid());
            cursor.next().unwrap();
            cursor.prev().unwrap();
            cursor.seek_to_last().unwrap();
            assert!(!cursor.valid());
        }
    }

    /// ITER-04: at every position and after every kind of seek the cursor turns and turns again,
    /// and is always where a sorted list would be.
    #[test]
    fn random_walks_agree_with_a_sorted_list() {
        for seed in 0..60 {
            let mut rng = StdRng::seed_from_u64(seed);
            let count = rng.random_range(1..6);
            let tables: Vec<_> = (0..count).map(|_| Arc::new(MemTable::new())).collect();
            let mut model = Vec::new();
            for sequence in 1..rng.random_range(2..80) {
                let key = vec![b'a'; rng.random_range(0..4)];
                let key = [key, vec![rng.random_range(b'a'..b'd')]].concat();
                let table = &tables[rng.random_range(0..count)];
                table.insert(&key, sequence, ValueKind::Put, &sequence.to_be_bytes());
                model.push(encode(&key, trailer(sequence, ValueKind::Put)));
            }
            model.sort_by(|a, b| key::compare(a, b));
            let mut cursor = merged(&tables);
            let mut at: Option<usize> = None;
            for step in 0..300 {
                match rng.random_range(0..8) {
                    0 => {
                        cursor.seek_to_first().unwrap();
                        at = Some(0);
                    }
                    1 => {
                        cursor.seek_to_last().unwrap();
                        at = model.len().checked_sub(1);
                    }
                    kind @ 2..=3 => {
                        let base = &model[rng.random_range(0..model.len())];
                        let shift = rng.random_range(0..3);
                        let (user_key, t) = key::split(base);
                        let target = encode(user_key, (t + 256 * shift).saturating_sub(256));
                        if kind == 2 {
                            cursor.seek(&target).unwrap();
                            at = model.iter().position(|k| key::compare(k, &target).is_ge());
                        } else {
                            cursor.seek_for_prev(&target).unwrap();
                            at = model.iter().rposition(|k| key::compare(k, &target).is_le());
                        }
                    }
                    4..=5 => {
                        cursor.next().unwrap();
                        at = at.map(|i| i + 1);
                    }
                    _ => {
                        cursor.prev().unwrap();
                        at = at.and_then(|i| i.checked_sub(1));
                    }
                }
                at = at.filter(|&i| i < model.len());
                let expected = at.map(|i| &model[i][..]);
                let found = cursor.valid().then(|| cursor.key());
                assert_eq!(found, expected, "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn equal_entries_in_two_children_are_both_shown_both_ways() {
        let tables = [Arc::new(MemTable::new()), Arc::new(MemTable::new())];
        for table in &tables {
            for sequence in [1, 2] {
                table.insert(b"k", sequence, ValueKind::Put, b"v");
            }
        }
        let mut cursor = merged(&tables);
        cursor.seek_to_first().unwrap();
        cursor.next().unwrap();
        cursor.next().unwrap();
        cursor.prev().unwrap();
        cursor.next().unwrap();
        cursor.next().unwrap();
        assert!(cursor.valid());
        cursor.next().unwrap();
        assert!(!cursor.valid());
    }

    /// A child that fails on its `fail_at`-th move.
    struct Failing {
        inner: Box<dyn Cursor>,
        fail_at: usize,
    }

    impl Failing {
        fn tick(&mut self) -> Result<()> {
            self.fail_at = self.fail_at.saturating_sub(1);
            if self.fail_at == 0 { Err(Error::Closed) } else { Ok(()) }
        }
    }

    impl Cursor for Failing {
        fn valid(&self) -> bool {
            self.inner.valid()
        }
        fn key(&self) -> &[u8] {
            self.inner.key()
        }
        fn value(&self) -> &[u8] {
            self.inner.value()
        }
        fn seek_to_first(&mut self) -> Result<()> {
            self.inner.seek_to_first()
        }
        fn seek_to_last(&mut self) -> Result<()> {
            self.inner.seek_to_last()
        }
        fn seek(&mut self, target: &[u8]) -> Result<()> {
            self.inner.seek(target)
        }
        fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
            self.inner.seek_for_prev(target)
        }
        fn next(&mut self) -> Result<()> {
            self.tick()?;
            self.inner.next()
        }
        fn prev(&mut self) -> Result<()> {
            self.tick()?;
            self.inner.prev()
        }
    }

    /// ITER-08
    #[test]
    fn after_an_error_the_cursor_stays_invalid_until_a_seek() {
        let tables = [Arc::new(MemTable::new()), Arc::new(MemTable::new())];
        for sequence in 1..20 {
            tables[usize::from(sequence % 2 == 0)].insert(
                &[u8::try_from(sequence).unwrap()],
                sequence,
                ValueKind::Put,
                b"",
            );
        }
        let failing = Failing { inner: Box::new(tables[0].cursor()), fail_at: 3 };
        let mut cursor = MergeCursor::new(vec![Box::new(failing), Box::new(tables[1].cursor())]);
        cursor.seek_to_first().unwrap();
        let error = loop {
            if let Err(error) = cursor.next() {
                break error;
            }
            assert!(cursor.valid());
        };
        assert!(matches!(error, Error::Closed));
        assert!(!cursor.valid());
        cursor.next().unwrap();
        assert!(!cursor.valid());
        cursor.prev().unwrap();
        assert!(!cursor.valid());
        cursor.seek_to_first().unwrap();
        assert!(cursor.valid());
    }
}
