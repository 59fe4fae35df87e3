//! A cursor over a table, both ways, with read-ahead once a scan is seen to go on.

use std::sync::Arc;

use treering_env::RandomAccessFile;

use super::block::{Block, BlockCursor, Scratch};
use super::format::{BlockHandle, Malformed};
use super::reader::Table;
use crate::cursor::Cursor;
use crate::key;
use crate::{Error, Result};

/// The first range a scan asks the environment to read ahead, in bytes.
const FIRST_AHEAD: u64 = 16 << 10;
/// The largest one; the range doubles from ask to ask.
const MOST_AHEAD: u64 = 1 << 20;
/// Blocks read one after another before a scan is taken for one.
const BLOCKS_BEFORE_AHEAD: u32 = 2;

/// A cursor over one table. It owns what it reads from, and allocates per block, not per key.
pub(crate) struct TableCursor {
    table: Arc<Table>,
    file: Arc<dyn RandomAccessFile>,
    fill_cache: bool,
    /// The key before, when order is checked.
    checked: Option<Vec<u8>>,
    /// The number of the block in `block`.
    number: usize,
    block: Option<BlockCursor>,
    ahead: ReadAhead,
}

/// How far a scan has asked to read ahead.
#[derive(Debug, Default)]
struct ReadAhead {
    /// Blocks read from the file in this direction, one after another.
    run: u32,
    /// The range last asked for, in bytes.
    window: u64,
    /// The edge of what was asked for: its end going forward, its start going backward.
    edge: u64,
    backward: bool,
}

impl TableCursor {
    pub(super) fn new(
        table: Arc<Table>,
        file: Arc<dyn RandomAccessFile>,
        fill_cache: bool,
    ) -> Self {
        let (checked, block, ahead) = (None, None, ReadAhead::default());
        Self { table, file, fill_cache, checked, number: 0, block, ahead }
    }

    /// The same cursor, which reports keys that do not ascend while it goes forward.
    pub(super) fn checking_order(mut self) -> Self {
        self.checked = Some(Vec::new());
        self
    }

    fn handle(&self, number: usize) -> Option<BlockHandle> {
        self.table.index().handle(number)
    }

    /// Enters block `number`, on no entry of it; `false` if there is none.
    fn enter(&mut self, number: usize) -> Result<bool> {
        let Some(handle) = self.handle(number) else {
            self.block = None;
            return Ok(false);
        };
        let (kept, scratch) = match self.block.take() {
            Some(cursor) => {
                let (block, scratch) = cursor.into_parts();
                ((number == self.number).then_some(block), scratch)
            }
            None => (None, Scratch::default()),
        };
        let block = match kept {
            Some(block) => block,
            None => self.load(handle)?,
        };
        self.number = number;
        self.block = Some(BlockCursor::new(block, scratch));
        Ok(true)
    }

    fn load(&mut self, handle: BlockHandle) -> Result<Arc<Block>> {
        let cached =
            if self.fill_cache { self.table.cached(handle) } else { self.table.peek(handle) };
        if let Some(block) = cached {
            return Ok(block);
        }
        if let Some((offset, len)) = self.ahead.next(handle, self.table.footer().filter.offset) {
            self.file.will_need(offset, len);
        }
        self.table.read(&*self.file, handle, self.fill_cache)
    }

    /// Runs `step` on the block's cursor; damage ends the cursor.
    fn step(
        &mut self,
        step: impl FnOnce(&mut BlockCursor) -> std::result::Result<(), Malformed>,
    ) -> Result<()> {
        let Some(block) = &mut self.block else { return Ok(()) };
        step(block).map_err(|malformed| self.fail(malformed))
    }

    fn fail(&mut self, malformed: Malformed) -> Error {
        self.block = None;
        match self.handle(self.number) {
            Some(handle) => self.table.damaged(handle, malformed),
            None => Error::corruption(self.table.path(), None, malformed.0),
        }
    }

    /// Leaves a block that has no entry where the cursor went, for the next one.
    fn skip_forward(&mut self) -> Result<()> {
        while let Some(block) = &self.block
            && !block.valid()
        {
            if self.enter(self.number + 1)? {
                self.step(BlockCursor::first)?;
            }
        }
        self.check_order()
    }

    fn skip_backward(&mut self) -> Result<()> {
        while let Some(block) = &self.block
            && !block.valid()
        {
            let Some(number) = self.number.checked_sub(1) else {
                self.block = None;
                return Ok(());
            };
            if self.enter(number)? {
                self.step(BlockCursor::last)?;
            }
        }
        Ok(())
    }

    fn forget_order(&mut self) {
        if let Some(before) = &mut self.checked {
            before.clear();
        }
    }

    fn check_order(&mut self) -> Result<()> {
        let (Some(before), Some(block)) = (&mut self.checked, &self.block) else { return Ok(()) };
        if !before.is_empty() && key::compare(before, block.key()).is_ge() {
            return Err(self.fail(Malformed("keys out of order")));
        }
        before.clear();
        before.extend_from_slice(block.key());
        Ok(())
    }
}

impl ReadAhead {
    /// What to ask for now that `handle` is about to be read, in a table whose data blocks end
    /// at `data_end`.
    fn next(&mut self, handle: BlockHandle, data_end: u64) -> Option<(u64, u64)> {
        let end = handle.offset + u64::from(handle.size);
        if self.run < BLOCKS_BEFORE_AHEAD {
            self.run += 1;
            self.edge = if self.backward { handle.offset } else { end };
            return None;
        }
        // Asking again when half of the range is used keeps the device busy.
        let margin = self.window / 2;
        let reached = if self.backward {
            handle.offset <= self.edge.saturating_add(margin)
        } else {
            end.saturating_add(margin) >= self.edge
        };
        if !reached {
            return None;
        }
        self.window = (self.window * 2).clamp(FIRST_AHEAD, MOST_AHEAD);
        let (from, to) = if self.backward {
            let to = self.edge.min(end);
            (to.saturating_sub(self.window), to)
        } else {
            let from = self.edge.max(handle.offset);
            (from, from.saturating_add(self.window).min(data_end))
        };
        self.edge = if self.backward { from } else { to };
        (from < to).then_some((from, to - from))
    }

    /// The scan was left for another place.
    fn reset(&mut self) {
        *self = Self::default();
    }

    /// The scan goes this way now.
    fn turn(&mut self, backward: bool) {
        if self.backward != backward {
            *self = Self { backward, ..Self::default() };
        }
    }
}

impl Cursor for TableCursor {
    fn valid(&self) -> bool {
        self.block.as_ref().is_some_and(BlockCursor::valid)
    }

    fn key(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], BlockCursor::key)
    }

    fn value(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], BlockCursor::value)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.ahead.reset();
        self.forget_order();
        self.enter(0)?;
        self.step(BlockCursor::first)?;
        self.skip_forward()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.ahead.reset();
        self.ahead.turn(true);
        self.forget_order();
        self.enter(self.table.index().len().saturating_sub(1))?;
        self.step(BlockCursor::last)?;
        self.skip_backward()
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.ahead.reset();
        self.forget_order();
        let (user_key, trailer) = key::split(target);
        self.enter(self.table.index().find(user_key, trailer))?;
        self.step(|block| block.seek(user_key, trailer))?;
        self.skip_forward()
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.ahead.reset();
        self.ahead.turn(true);
        self.forget_order();
        let (user_key, trailer) = key::split(target);
        self.enter(self.table.index().find(user_key, trailer))?;
        self.step(|block| {
            block.seek(user_key, trailer)?;
            if !block.valid() {
                return block.last();
            }
            if block.compare(user_key, trailer).is_gt() { block.backward() } else { Ok(()) }
        })?;
        self.skip_backward()
    }

    fn next(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        self.ahead.turn(false);
        self.step(BlockCursor::forward)?;
        self.skip_forward()
    }

    fn prev(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        self.ahead.turn(true);
        self.forget_order();
        self.step(BlockCursor::backward)?;
        self.skip_backward()
    }
}
