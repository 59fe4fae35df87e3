//! Running compactions: those that are due, and those that somebody asked for.

use std::collections::HashSet;
use std::sync::Arc;

use super::Shared;
use super::background::{PanicGuard, Patience};
use super::state::State;
use crate::batch::FamilyId;
use crate::compaction::{self, Compaction, CompactionJob, JobContext, Picker, RangePick};
use crate::iter::KeyBounds;
use crate::version::{KeyRange, LEVELS, Version};
use crate::{CfOptions, Error, Result, trace};

/// A compaction that was picked, with what it needs of the state at that moment.
#[derive(Debug)]
pub(crate) struct PickedJob {
    compaction: Compaction,
    options: Arc<CfOptions>,
    snapshots: Vec<u64>,
}

impl State {
    /// Picks the most urgent compaction that can run, and counts it as running.
    pub(crate) fn pick_compaction(&mut self) -> Option<PickedJob> {
        let mut due: Vec<(f64, FamilyId)> = Vec::new();
        for family in self.families.values() {
            if Picker::is_due(&family.version, &family.options) {
                due.push((urgency(&family.version, &family.options), family.id));
            }
        }
        due.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let snapshots = self.snapshot_sequences();
        let picked = due.iter().find_map(|(_, id)| {
            let family = self.families.get_mut(id)?;
            let compaction = family.picker.pick(&family.version, &family.options)?;
            Some((compaction, Arc::clone(&family.options)))
        });
        let (compaction, options) = picked?;
        self.compaction.running += 1;
        Some(PickedJob { compaction, options, snapshots })
    }

    /// Whether a compaction is due or running.
    fn is_compacting(&self) -> bool {
        let is_due =
            |family: &super::state::Family| Picker::is_due(&family.version, &family.options);
        self.compaction.running > 0 || self.families.values().any(is_due)
    }
}

fn urgency(version: &Version, options: &CfOptions) -> f64 {
    (0..LEVELS - 1).map(|level| compaction::score(version, options, level)).fold(0.0, f64::max)
}

impl Shared {
    /// What a job needs of the database.
    pub(crate) fn job_context<'a>(
        &'a self,
        options: &'a CfOptions,
        snapshots: &'a [u64],
        should_stop: &'a dyn Fn() -> Option<Error>,
    ) -> JobContext<'a> {
        JobContext {
            env: &*self.env,
            dir: &self.dir,
            tables: &self.tables,
            numbers: &self.numbers,
            options,
            snapshots,
            should_stop,
        }
    }

    /// Why a running job should give up, if it should.
    pub(crate) fn should_stop(&self) -> Option<Error> {
        self.check_writable().err()
    }

    /// Runs the most urgent compaction that is due. Whether there was one; an error is the job's.
    pub(crate) fn compact_one(&self) -> Result<bool> {
        let picked = self.state.lock().pick_compaction();
        picked.map_or(Ok(false), |job| self.run_compaction(job).map(|_| true))
    }

    /// Runs a compaction; returns the numbers of the tables it wrote.
    pub(crate) fn run_compaction(&self, job: PickedJob) -> Result<Vec<u64>> {
        let guard = PanicGuard::of_job(self, |state| &mut state.compaction);
        let result = self.check_writable().and_then(|()| self.compact(&job));
        guard.disarm();
        let mut state = self.state.lock();
        // Its tables are free again before anyone looks for the next job.
        drop(job);
        state.compaction.running -= 1;
        match &result {
            Ok(_) => state.compaction.succeeded(),
            Err(error) => state.compaction.failed(error.clone(), self.clock.now()),
        }
        self.publish(&state);
        drop(state);
        if let Err(error) = &result {
            trace::job_failed("compaction", error);
        }
        result
    }

    fn compact(&self, job: &PickedJob) -> Result<Vec<u64>> {
        let compaction = &job.compaction;
        if compaction.trivial_move {
            match self.apply(compaction.move_edit(), None) {
                Ok(()) => self.stats.moves.add(1),
                Err(Error::FamilyDropped { .. }) => {}
                Err(error) => return Err(error),
            }
            return Ok(Vec::new());
        }
        let should_stop = || self.should_stop();
        let context = self.job_context(&job.options, &job.snapshots, &should_stop);
        let output = CompactionJob::new(compaction).run(&context)?;
        match self.apply(compaction.edit(output.added.clone()), None) {
            Ok(()) => {
                self.stats.compactions.add(1);
                self.stats.compaction_read.add(output.stats.bytes_read);
                self.stats.compaction_written.add(output.stats.bytes_written);
                let (read, written) = (output.stats.bytes_read, output.stats.bytes_written);
                trace::compacted(output.added.len(), read, written);
                Ok(output.added.iter().map(|file| file.number).collect())
            }
            Err(error @ (Error::FamilyDropped { .. } | Error::Closed)) => {
                output.discard(&*self.env, &self.dir);
                if matches!(error, Error::Closed) { Err(error) } else { Ok(Vec::new()) }
            }
            // Whether the edit is in the manifest is unknown: the tables stay.
            Err(error) => Err(error),
        }
    }

    /// Compacts a range of a family as far down as it goes; see [`super::Db::compact_range`].
    pub(crate) fn compact_range(&self, family: FamilyId, bounds: &KeyBounds) -> Result<()> {
        self.flush_all(Some(family))?;
        let range = KeyRange { begin: bounds.first(), end: bounds.last() };
        let deepest = {
            let state = self.state.lock();
            let found = state.families.get(&family);
            let version = &found.ok_or(Error::FamilyDropped { id: family })?.version;
            let holds = |level: &usize| !version.overlapping(*level, range).is_empty();
            (1..LEVELS).rev().find(holds).unwrap_or(1)
        };
        let mut fresh = HashSet::new();
        for level in 0..deepest {
            self.compact_level(family, level, range, &mut fresh)?;
        }
        self.rewrite_level(family, deepest, range, &fresh)?;
        if self.inline() {
            self.run_due(Patience::BackOff);
        }
        Ok(())
    }

    /// Moves the tables of `level` in the range one level down.
    fn compact_level(
        &self,
        family: FamilyId,
        level: usize,
        range: KeyRange<'_>,
        fresh: &mut HashSet<u64>,
    ) -> Result<()> {
        // Writers may go on filling the level; what came after the call need not go.
        let mut rounds = usize::MAX;
        while rounds > 0 {
            let Some(job) = self.pick_range(family, (level, level + 1), range)? else { break };
            if rounds == usize::MAX {
                let files = job.compaction.version.files(level).len();
                rounds = if level == 0 { 1 } else { files };
            }
            fresh.extend(self.run_compaction(job)?);
            rounds -= 1;
        }
        Ok(())
    }

    /// Rewrites the tables of the deepest level in the range, but for those just written: so
    /// deleted keys and versions that no snapshot needs any more leave.
    fn rewrite_level(
        &self,
        family: FamilyId,
        level: usize,
        range: KeyRange<'_>,
        fresh: &HashSet<u64>,
    ) -> Result<()> {
        let mut begin = range.begin.map(<[u8]>::to_vec);
        loop {
            let rest = KeyRange { begin: begin.as_deref(), end: range.end };
            let Some(job) = self.pick_range(family, (level, level), rest)? else { return Ok(()) };
            // The smallest key behind the piece.
            let mut next = job.compaction.end.clone();
            next.push(0);
            begin = Some(next);
            if job.compaction.all_inputs().all(|(_, file)| fresh.contains(&file.number)) {
                let mut state = self.state.lock();
                drop(job);
                state.compaction.running -= 1;
                self.publish(&state);
                continue;
            }
            self.run_compaction(job)?;
        }
    }

    /// The next piece of a range, when it can run; `None` if there is nothing left in the range.
    fn pick_range(
        &self,
        family: FamilyId,
        levels: (usize, usize),
        range: KeyRange<'_>,
    ) -> Result<Option<PickedJob>> {
        let mut state = self.state.lock();
        loop {
            self.check_writable()?;
            let snapshots = state.snapshot_sequences();
            let entry = state.families.get_mut(&family);
            let entry = entry.ok_or(Error::FamilyDropped { id: family })?;
            match entry.picker.pick_range(&entry.version, &entry.options, levels, range) {
                RangePick::Nothing => return Ok(None),
                RangePick::Busy => self.changed.wait(&mut state),
                RangePick::Job(compaction) => {
                    let options = Arc::clone(&entry.options);
                    state.compaction.running += 1;
                    return Ok(Some(PickedJob { compaction: *compaction, options, snapshots }));
                }
            }
        }
    }

    /// Waits until no compaction is due or running; see [`super::Db::wait_for_compact`].
    pub(crate) fn wait_for_compact(&self) -> Result<()> {
        self.check_writable()?;
        if self.inline() {
            self.run_due(Patience::None);
            self.check_writable()?;
            let state = self.state.lock();
            let failure = state.flush.error().or_else(|| state.compaction.error());
            return failure.map_or(Ok(()), Err);
        }
        let mut state = self.state.lock();
        let failures = state.compaction.failures;
        while state.is_compacting() {
            self.check_writable()?;
            if state.compaction.failures > failures
                && let Some(error) = state.compaction.error()
            {
                return Err(error);
            }
            self.changed.wait(&mut state);
        }
        self.check_poison()
    }
}
