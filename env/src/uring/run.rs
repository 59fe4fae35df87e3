//! Several reads by one entry of a ring: which ranges of a file make one run, and how the bytes
//! that the entry brings are dealt out to their memory.
//!
//! Each read of a run keeps its own memory. Bytes that two of them want are read for the one that
//! came first and copied to the other; bytes between them that nobody wants go to waste memory.
//!
//! Invariant: the ranges of a run begin in ascending order, so what a range shares with those
//! before it lies in the one of them that reaches furthest.

use std::ops::Range;

use super::op::Piece;
use crate::Buffer;

/// The page of the page cache, and of direct reads too: what a device reads for one byte.
const PAGE: u64 = 4096;

/// The most reads of one run.
pub(crate) const MOST: usize = 64;

/// Which reads make one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merging {
    /// Bytes that may lie between the pages of two reads and are read for nobody.
    pub(crate) gap: usize,
    /// Bytes of a run, at most; with 0 there are none.
    pub(crate) limit: usize,
}

/// How a read continues a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Joint {
    /// Where in the run it begins.
    pub(crate) at: usize,
    /// Bytes before it that nobody wants.
    pub(crate) waste: usize,
    /// How many of its first bytes are read for an earlier one ...
    pub(crate) shared: usize,
    /// ... which is this one of the run.
    pub(crate) source: usize,
}

/// The ranges of a run so far.
#[derive(Debug)]
pub(crate) struct Layout {
    start: u64,
    end: u64,
    last_start: u64,
    /// The one that reaches to the end.
    furthest: usize,
    count: usize,
}

impl Layout {
    pub(crate) fn new(first: &Range<u64>) -> Self {
        Self { start: first.start, end: first.end, last_start: first.start, furthest: 0, count: 1 }
    }

    /// Where in the file the run begins.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of the run.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.end - self.start).expect("a run is bounded")
    }

    /// Takes one more range into the run, if it continues it.
    pub(crate) fn join(&mut self, next: &Range<u64>, rule: Merging) -> Option<Joint> {
        let reach = self.end.next_multiple_of(PAGE) + rule.gap as u64;
        let end = self.end.max(next.end);
        let fits = end - self.start <= rule.limit as u64 && self.count < MOST;
        if next.start < self.last_start || next.start / PAGE * PAGE > reach || !fits {
            return None;
        }
        let bytes = |n: u64| usize::try_from(n).expect("a run is bounded");
        let joint = Joint {
            at: bytes(next.start - self.start),
            waste: bytes(next.start.saturating_sub(self.end)),
            shared: bytes(self.end.min(next.end).saturating_sub(next.start)),
            source: self.furthest,
        };
        self.last_start = next.start;
        if next.end > self.end {
            self.end = next.end;
            self.furthest = self.count;
        }
        self.count += 1;
        Some(joint)
    }
}

/// One read of a run.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) piece: Piece,
    pub(crate) joint: Joint,
}

/// A run on its way: its parts, and the list of their memory that the kernel goes by.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) parts: Vec<Part>,
    pub(crate) len: usize,
    /// Stays where it is until the run has completed: a kernel may look at it until then.
    pub(crate) vectors: Vec<libc::iovec>,
    /// Where the bytes go that nobody wants, each to a place of its own: a file system that checks
    /// what it read directly finds it changed if another read has been there.
    pub(crate) waste: Option<Buffer>,
}

/// What one entry of a ring reads.
#[derive(Debug)]
pub(crate) enum Load {
    One(Piece),
    Run(Run),
}

impl Load {
    /// Its pieces, in the order of the file.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let (one, run) = match self {
            Self::One(piece) => (Some(piece), None),
            Self::Run(run) => (None, Some(run)),
        };
        let parts = run.into_iter().flat_map(|run| &run.parts);
        one.into_iter().chain(parts.map(|part| &part.piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Merging = Merging { gap: 0, limit: 128 << 10 };

    fn joined(ranges: &[Range<u64>], rule: Merging) -> Vec<Option<Joint>> {
        let mut layout = Layout::new(&ranges[0]);
        ranges[1..].iter().map(|range| layout.join(range, rule)).collect()
    }

    #[test]
    fn ranges_on_the_same_and_on_neighbouring_pages_make_a_run() {
        let joints = joined(&[0..3900, 4096..8192, 8192..8200, 8300..9000], RULE);
        let expected = [
            Joint { at: 4096, waste: 196, shared: 0, source: 0 },
            Joint { at: 8192, waste: 0, shared: 0, source: 1 },
            Joint { at: 8300, waste: 100, shared: 0, source: 2 },
        ];
        assert_eq!(joints, expected.map(Some));
    }

    #[test]
    fn what_is_shared_lies_in_the_range_that_reaches_furthest() {
        let joints = joined(&[0..8192, 1000..2000, 4096..12288, 4096..12288, 12000..13000], RULE);
        let expected = [
            Joint { at: 1000, waste: 0, shared: 1000, source: 0 },
            Joint { at: 4096, waste: 0, shared: 4096, source: 0 },
            Joint { at: 4096, waste: 0, shared: 8192, source: 2 },
            Joint { at: 12000, waste: 0, shared: 288, source: 2 },
        ];
        assert_eq!(joints, expected.map(Some));
    }

    /// MGET-09
    #[test]
    fn a_run_ends_at_a_gap_at_a_step_back_at_its_limit_and_at_so_many_reads() {
        assert_eq!(joined(&[0..4096, 8192..8200], RULE), [None]);
        assert_eq!(joined(&[4096..8192, 0..4096], RULE), [None]);
        let gap = Merging { gap: 8192, ..RULE };
        let wide = Joint { at: 12288, waste: 8192, shared: 0, source: 0 };
        assert_eq!(joined(&[0..4096, 12288..12300], gap), [Some(wide)]);
        assert_eq!(joined(&[0..4096, 16384..16400], gap), [None]);
        let limit = Merging { limit: 8192, ..RULE };
        assert!(joined(&[0..4096, 4096..8192], limit)[0].is_some());
        assert_eq!(joined(&[0..4096, 4096..8193], limit), [None]);
        let same = vec![0..100; MOST + 1];
        let joints = joined(&same, RULE);
        assert_eq!(joints.iter().filter(|joint| joint.is_some()).count(), MOST - 1);
        assert_eq!(joints.last(), Some(&None));
        assert_eq!(joined(&[0..1, 0..1], Merging { limit: 0, ..RULE }), [None]);
    }
}
