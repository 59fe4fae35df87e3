//! Runs: reads that lie next to each other in one file and go to the ring together are one entry,
//! and are told apart again when it completes. In which order they were pushed is no matter.
//!
//! A run is an optimisation of the reads in it and never their fate: whatever goes wrong with it,
//! each is read again on its own, and only what that says is its result. One that fails with an
//! error goes back to the ring in single entries, in an order in which the kernel joins few of
//! them: a bad block costs few of its neighbours a plain read.

use super::RingQueue;
use crate::Buffer;
use crate::counters::Count;
use crate::sync::Arc;
use crate::uring::op::{Op, Piece};
use crate::uring::ring::{Entry, Work};
use crate::uring::run::{Joint, Layout, Load, Merging, Part, Run};
use crate::uring::slots::Slots;
use crate::uring::verdict::{Asked, Verdict, judge, retried, strains_the_breaker};

/// What decides whether a staged piece can be part of a run.
struct Span {
    fd: i32,
    range: std::ops::Range<u64>,
    joins: bool,
}

impl RingQueue {
    /// Puts what is staged in the order of files and offsets, if all of it goes out now: else a
    /// read could be passed by others for ever.
    pub(super) fn bring_neighbours_together(&mut self) {
        let merges = self.shared.merging.limit > 0 && self.staged.len() > 1;
        if merges && self.staged.len() <= self.lane.room() {
            let ops = &mut self.ops;
            // What is to be alone stays in front, in the order that it was given.
            self.staged.make_contiguous().sort_by_key(|piece| {
                let span = span_of(ops, piece);
                (!piece.alone).then_some((span.fd, span.range.start))
            });
        }
    }

    /// Takes the piece that was staged first out of line, and those behind it that make a run
    /// with it.
    pub(super) fn next_load(&mut self) -> Option<(Load, Entry)> {
        let first = self.staged.pop_front()?;
        let op = self.ops.get_mut(first.op).expect("operations under way are in the table");
        let chunk = op.file().device().chunk().bytes;
        let rule = Merging { limit: self.shared.merging.limit.min(chunk), ..self.shared.merging };
        let span = span_of(&mut self.ops, &first);
        let mut layout = Layout::new(&span.range);
        let mut parts = Vec::new();
        while span.joins
            && let Some(next) = self.staged.front()
            && let next_span = span_of(&mut self.ops, next)
            && next_span.joins
            && next_span.fd == span.fd
            && let Some(joint) = layout.join(&next_span.range, rule)
            && let Some(piece) = self.staged.pop_front()
        {
            if parts.is_empty() {
                parts.push(Part { piece: first.clone(), joint: Joint::default() });
            }
            parts.push(Part { piece, joint });
        }
        if parts.is_empty() {
            let entry = self.op(first.op).entry(&first);
            return Some((Load::One(first), entry));
        }
        let mut run = Run { parts, len: layout.len(), vectors: Vec::new(), waste: None };
        self.list_memory(&mut run);
        let entry = Entry {
            work: Work::ReadVectored,
            fd: span.fd,
            start: run.vectors.as_ptr().cast_mut().cast(),
            len: u32::try_from(run.vectors.len()).expect("a run has few parts"),
            offset: layout.start(),
            user_data: 0,
        };
        Some((Load::Run(run), entry))
    }

    /// Lists the memory of a run in the order of the file.
    fn list_memory(&mut self, run: &mut Run) {
        let counters = &self.shared.os.counters;
        counters.add(Count::MergedReads, run.parts.len() as u64 - 1);
        run.vectors.reserve_exact(run.parts.len() * 2);
        let waste: usize = run.parts.iter().map(|part| part.joint.waste).sum();
        counters.add(Count::MergedWasteBytes, waste as u64);
        let mut rest: &mut [u8] = &mut [];
        if waste > 0 {
            // Never shorter than a page, so that it is aligned for direct reads.
            let memory = self.shared.os.pool.take(waste.max(Buffer::ALIGN));
            rest = run.waste.insert(memory).as_mut_slice();
        }
        for Part { piece, joint } in &run.parts {
            if joint.waste > 0 {
                let (here, behind) = rest.split_at_mut(joint.waste);
                let iov_base = here.as_mut_ptr().cast();
                run.vectors.push(libc::iovec { iov_base, iov_len: here.len() });
                rest = behind;
            }
            let len = piece.end - piece.from;
            if joint.shared < len {
                let op = self.ops.get_mut(piece.op).expect("what is staged is in the table");
                let iov_base = op.address(piece).wrapping_add(joint.shared).cast();
                run.vectors.push(libc::iovec { iov_base, iov_len: len - joint.shared });
            }
        }
    }

    /// Acts upon the result of a run.
    pub(super) fn judge_run(&mut self, run: Run, result: i32) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.os.counters;
        match judge(Asked { len: run.len, needed: run.len }, result) {
            Verdict::Done => {
                shared.breaker.good();
                let len = run.len;
                self.deal_out(run, len);
            }
            Verdict::Partly(got) => {
                shared.breaker.good();
                self.deal_out(run, got);
            }
            Verdict::Nothing => {
                counters.bump(Count::ShortReads);
                self.leave_run(run);
            }
            Verdict::Passing(errno) => {
                counters.bump(retried(errno));
                if strains_the_breaker(errno) && shared.breaker.fault() {
                    counters.bump(Count::BreakerOpened);
                }
                self.leave_run(run);
            }
            // It may be the form that is refused: a single read will tell. From a device that was
            // asked for the completion it is that which is refused, and nothing about the form.
            Verdict::Unsupported => {
                let of_the_form = !self.lane.asks_device();
                let op = self.op(run.parts[0].piece.op);
                if of_the_form && op.file().latch_unmerged() {
                    counters.bump(Count::MergeRefused);
                }
                self.stage_run_alone(run);
            }
            Verdict::Medium(_) | Verdict::Failed(_) => self.stage_run_alone(run),
            Verdict::Overlong => {
                self.lane.spoil();
                self.leave_run(run);
            }
        }
    }

    fn stage_run_alone(&mut self, run: Run) {
        self.stage_alone(run.parts.into_iter().map(|part| part.piece).collect());
    }

    /// Leaves every read of a run for a plain one, each with its own result.
    fn leave_run(&mut self, run: Run) {
        for part in run.parts {
            self.leave_piece(&part.piece, true);
        }
    }

    /// Gives each read of a run what it has of the first `got` bytes. What is not whole goes back
    /// to the ring, alone.
    fn deal_out(&mut self, run: Run, got: usize) {
        let here =
            |part: &Part| got.saturating_sub(part.joint.at).min(part.piece.end - part.piece.from);
        // All copies come first: a read that is whole is given away with its memory.
        for part in &run.parts {
            let copied = part.joint.shared.min(here(part));
            if copied > 0 {
                self.copy(&run.parts[part.joint.source], part, copied);
            }
        }
        let mut again = Vec::new();
        for part in run.parts {
            let arrived = here(&part);
            let mut piece = part.piece;
            let op = self.op(piece.op);
            if arrived >= op.asked(&piece).needed {
                op.piece_done();
                self.settle(piece.op, true);
            } else if arrived == 0 || op.advance(&mut piece, arrived) {
                again.push(piece);
            } else {
                self.leave_piece(&piece, true);
            }
        }
        if !again.is_empty() {
            self.shared.os.counters.bump(Count::ShortReads);
            self.stage_alone(again);
        }
    }

    /// Copies what a read shares with an earlier one of its run from there.
    fn copy(&mut self, source: &Part, part: &Part, len: usize) {
        let from = source.piece.from + (part.joint.at - source.joint.at);
        let to = part.piece.from;
        let mut memory = self.op(part.piece.op).lend();
        memory.as_mut_slice()[to..to + len]
            .copy_from_slice(self.op(source.piece.op).arrived(from..from + len));
        self.op(part.piece.op).put_back(memory);
        self.shared.os.counters.add(Count::MergedCopyBytes, len as u64);
    }

    /// Puts pieces that were part of a run in line again, before all others, to be read alone.
    /// Every other one goes first: the kernel joins an entry with the one before it, if it
    /// continues it.
    fn stage_alone(&mut self, pieces: Vec<Piece>) {
        let (first, second): (Vec<_>, Vec<_>) =
            pieces.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
        for (_, mut piece) in first.into_iter().chain(second).rev() {
            piece.alone = true;
            self.op(piece.op).reclaim();
            self.staged.push_front(piece);
        }
    }
}

fn span_of(ops: &mut Slots<Op>, piece: &Piece) -> Span {
    let op = ops.get_mut(piece.op).expect("operations under way are in the table");
    let range = op.offset_of(piece.from)..op.offset_of(piece.end);
    Span { fd: op.raw_fd(), range, joins: !piece.alone && op.is_sole() && op.file().may_merge() }
}
