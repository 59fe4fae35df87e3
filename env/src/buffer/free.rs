//! The free blocks of one size: those on their own, and the pieces of slabs, slab by slab.
//!
//! A piece that is dropped frees nothing while others of its slab are in use. So pieces are never
//! dropped one by one: they wait here to be used again, and when all of a slab are free, the slab
//! can go as a whole. Pieces are taken from the first slab that has any, so that the last ones
//! become free.

use std::collections::BTreeSet;

use super::block::Block;
use super::slab::Slab;

/// Free blocks of one size.
#[derive(Debug, Default)]
pub(super) struct FreeBlocks {
    alone: Vec<Block>,
    /// The free pieces of each slab, by the slab's number. Those of a number without a slab are
    /// none.
    slabs: Vec<Vec<Block>>,
    /// The numbers of the slabs that have free pieces.
    with_pieces: BTreeSet<usize>,
    /// Numbers without a slab.
    unused: Vec<usize>,
}

/// Whether a slab is used, after a piece of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// As before: one block moved.
    Piece,
    /// All of its pieces were free, or are now.
    WholeSlab,
}

impl FreeBlocks {
    /// Takes a block, a piece of a slab if there is one.
    pub(super) fn take(&mut self) -> Option<(Block, Change)> {
        let Some(&number) = self.with_pieces.first() else {
            return self.alone.pop().map(|block| (block, Change::Piece));
        };
        let pieces = &mut self.slabs[number];
        let block = pieces.pop().expect("the slab is listed as one with free pieces");
        if pieces.is_empty() {
            self.with_pieces.remove(&number);
        }
        let change = change_of(&block, pieces.len() + 1);
        Some((block, change))
    }

    /// Adds a slab cut into blocks of `size` bytes, and takes the first of them.
    pub(super) fn add_slab(&mut self, slab: Slab, size: usize) -> Block {
        let number = self.unused.pop().unwrap_or_else(|| {
            self.slabs.push(Vec::new());
            self.slabs.len() - 1
        });
        let mut blocks = Block::cut(slab, size, number);
        let first = blocks.next().expect("a slab holds at least two of the largest blocks");
        self.slabs[number].extend(blocks);
        self.with_pieces.insert(number);
        first
    }

    /// Takes a block that is on its own back.
    pub(super) fn keep_alone(&mut self, block: Block) {
        self.alone.push(block);
    }

    /// Takes a piece of the slab with this number back.
    pub(super) fn keep_piece(&mut self, block: Block, number: usize) -> Change {
        let pieces = &mut self.slabs[number];
        let change = change_of(&block, pieces.len() + 1);
        pieces.push(block);
        if pieces.len() == 1 {
            self.with_pieces.insert(number);
        }
        change
    }

    /// Forgets a slab whose pieces are all free; gives the pieces, to be dropped.
    pub(super) fn remove_slab(&mut self, number: usize) -> Vec<Block> {
        self.with_pieces.remove(&number);
        self.unused.push(number);
        std::mem::take(&mut self.slabs[number])
    }
}

/// What it means that `block` is or was one of `free` free pieces of its slab.
fn change_of(block: &Block, free: usize) -> Change {
    if free == pieces_of(block) { Change::WholeSlab } else { Change::Piece }
}

/// How many pieces the slab has that `block` is one of.
fn pieces_of(block: &Block) -> usize {
    Slab::SIZE / block.as_slice().len()
}
