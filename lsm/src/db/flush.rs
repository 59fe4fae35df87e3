//! Memtables on their way into tables: freezing the active one, flushing the frozen ones, and
//! installing what a job made.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::background::PanicGuard;
use super::queue::Baton;
use super::state::{Frozen, State};
use crate::batch::FamilyId;
use crate::compaction::flush;
use crate::filename::FileName;
use crate::version::{FamilyLog, Installed, VersionEdit};
use crate::{CfOptions, Error, Result, trace};

impl Shared {
    /// Freezes what must be frozen before a group that touches `families` is appended. Waits
    /// while too many frozen memtables wait for their flush; refuses with the flush's error if
    /// that fails. Without threads it does nothing: the work is done between writes.
    pub(crate) fn make_room(&self, baton: &Baton<'_>, families: &[FamilyId]) -> Result<()> {
        if self.inline() {
            return Ok(());
        }
        let full = {
            let view = self.view.load();
            let is_full = |id: &&FamilyId| view.family(**id).is_ok_and(|family| family.is_full());
            let mut full: Vec<FamilyId> = families.iter().filter(is_full).copied().collect();
            full.extend(self.pins_old_log());
            full
        };
        if full.is_empty() {
            return Ok(());
        }
        self.turnstile.wait_for_at_most(0);
        let (start, mut stopped) = (self.clock.now(), false);
        let result = self.freeze_all(baton, &full, &mut stopped);
        if stopped {
            trace::held_back(self.clock.now().saturating_sub(start), result.as_ref().err());
        }
        result
    }

    /// Freezes these memtables, each when there is room for it; `stopped` if one had to wait.
    fn freeze_all(&self, baton: &Baton<'_>, full: &[FamilyId], stopped: &mut bool) -> Result<()> {
        let mut state = self.state.lock();
        for &family in full {
            if state.has_no_room(family) {
                *stopped = true;
                self.stats.stopped_writes.add(1);
            }
            while state.has_no_room(family) {
                self.check_writable()?;
                if let Some(error) = state.flush.error() {
                    return Err(error);
                }
                self.changed.wait(&mut state);
            }
            self.freeze(baton, &mut state, family);
        }
        Ok(())
    }

    /// The family to flush because the logs exceed their limit: the one that needs the oldest
    /// segment, unless its flush is due already.
    pub(crate) fn pins_old_log(&self) -> Option<FamilyId> {
        let oldest = {
            let log = self.log.lock();
            if log.size() <= self.max_wal_size.load(Ordering::Relaxed) {
                return None;
            }
            log.oldest_closed()?
        };
        let state = self.state.lock();
        let pins = |mem: &super::view::Mem| mem.first_log().is_some_and(|first| first <= oldest);
        state.families.values().find(|family| pins(&family.active)).map(|family| family.id)
    }

    /// Freezes the active memtable of a family, if it holds anything. The caller holds the baton
    /// and no group is between append and publication, so the memtable holds exactly what was
    /// published for it.
    pub(crate) fn freeze(&self, _baton: &Baton<'_>, state: &mut State, family: FamilyId) {
        // Relaxed: with the baton in hand and no group under way nobody else changes it.
        let last_sequence = self.visible.load(Ordering::Relaxed);
        let Some(family) = state.families.get_mut(&family) else { return };
        if family.active.table.is_empty() {
            return;
        }
        family.freeze(last_sequence);
        self.publish(state);
    }

    /// Flushes the oldest frozen memtable. Whether there was one; an error is the job's.
    pub(crate) fn flush_one(&self) -> Result<bool> {
        let (family, frozen, options, snapshots) = {
            let mut state = self.state.lock();
            if state.flush.running > 0 {
                return Ok(false);
            }
            let Some((family, frozen)) = state.next_to_flush() else { return Ok(false) };
            state.flush.running += 1;
            let options = Arc::clone(&state.families[&family].options);
            (family, frozen, options, state.snapshot_sequences())
        };
        let guard = PanicGuard::of_job(self, |state| &mut state.flush);
        let result =
            self.check_poison().and_then(|()| self.flush(family, &frozen, &options, &snapshots));
        guard.disarm();
        let mut state = self.state.lock();
        state.flush.running -= 1;
        match &result {
            Ok(()) => state.flush.succeeded(),
            Err(error) => state.flush.failed(error.clone(), self.clock.now()),
        }
        self.publish(&state);
        drop(state);
        if let Err(error) = &result {
            trace::job_failed("flush", error);
        }
        result.map(|()| true)
    }

    fn flush(
        &self,
        family: FamilyId,
        frozen: &Frozen,
        options: &CfOptions,
        snapshots: &[u64],
    ) -> Result<()> {
        // A batch over two families must not become durable in one of them only, nor a later
        // write without an earlier one: the log goes first.
        let point = self.log_point()?;
        self.sync_log(&point)?;
        let should_stop = || self.should_stop();
        let context = self.job_context(options, snapshots, &should_stop);
        let written = flush::write_table(&context, &mut frozen.mem.table.cursor())?;
        let mut edit = VersionEdit::default();
        if let Some(table) = &written {
            self.stats.flushed_bytes.add(table.size);
            edit.added.push((family, 0, Arc::clone(table)));
        }
        match self.apply(edit, Some((family, frozen.last_sequence))) {
            Ok(()) => {
                self.stats.flushes.add(1);
                trace::flushed(family, written.map_or(0, |table| table.size));
                Ok(())
            }
            Err(error @ (Error::FamilyDropped { .. } | Error::Closed)) => {
                // Nothing names the table. Nobody misses the data of a family that is gone, and
                // that of a database that closes is in the log.
                if let Some(table) = &written {
                    self.remove_unnamed(FileName::Table(table.number));
                }
                if matches!(error, Error::Closed) { Err(error) } else { Ok(()) }
            }
            Err(error) => Err(error),
        }
    }

    /// Makes an edit durable and shows its effect to readers. With `flushed`, the oldest frozen
    /// memtable of that family is in tables now, up to the sequence number.
    ///
    /// [`Error::FamilyDropped`] and [`Error::Closed`]: nothing was done. Any other failure poisons.
    pub(crate) fn apply(&self, edit: VersionEdit, flushed: Option<(FamilyId, u64)>) -> Result<()> {
        let guard = PanicGuard::of_call(self);
        let result = self.apply_guarded(edit, flushed);
        guard.disarm();
        result
    }

    fn apply_guarded(&self, mut edit: VersionEdit, flushed: Option<(FamilyId, u64)>) -> Result<()> {
        let mut versions = self.versions.lock();
        // Under the manifest lock, which a close takes once it has said that it closes: after that
        // the directory may be somebody else's, and nothing may be written into it.
        self.check_writable()?;
        if let Some((family, _)) = flushed
            && !self.state.lock().families.contains_key(&family)
        {
            return Err(Error::FamilyDropped { id: family });
        }
        self.note_logs(&mut edit, flushed)?;
        let facts = edit.logs.clone();
        let logs = edit.family_logs.clone();
        let dropped = edit.dropped_families.clone();
        match versions.log_and_apply(edit) {
            Ok(installed) => {
                let unneeded = self.log.lock().drop_below(installed.log_floor);
                let mut state = self.state.lock();
                state.obsolete_logs.extend(unneeded);
                for family in &dropped {
                    state.families.remove(family);
                }
                self.install(&mut state, installed, &logs, flushed.map(|(family, _)| family));
                Ok(())
            }
            Err(dropped @ Error::FamilyDropped { .. }) => {
                self.log.lock().return_facts(facts);
                Err(dropped)
            }
            Err(error) => Err(self.poison(error)),
        }
    }

    /// Adds to an edit what is to be recorded about segments, and how far families moved on in
    /// the log: also those with nothing to flush, or they would need the oldest segment for ever.
    /// Returns the newest of those segments. The caller holds the manifest lock.
    ///
    /// The log may go on before the families are looked at. A record that is appended by then is
    /// in the returned segment or a newer one, so no family is said to need less than it does;
    /// and none is said to need a segment that the edit does not record.
    pub(crate) fn note_logs(
        &self,
        edit: &mut VersionEdit,
        flushed: Option<(FamilyId, u64)>,
    ) -> Result<u64> {
        let current = {
            let mut log = self.log.lock();
            let current = log.number()?;
            edit.logs = log.take_facts();
            current
        };
        let state = self.state.lock();
        for family in state.families.values() {
            if edit.dropped_families.contains(&family.id) {
                continue;
            }
            let own = flushed.filter(|(id, _)| *id == family.id);
            let log_number = family.oldest_log(usize::from(own.is_some()), current);
            let flushed_sequence = own.map_or(family.flushed_sequence, |(_, sequence)| sequence);
            if own.is_some() || log_number > family.log_number {
                let family = family.id;
                edit.family_logs.push(FamilyLog { family, log_number, flushed_sequence });
            }
        }
        Ok(current)
    }

    /// Shows readers what a durable edit changed. The caller still holds the manifest lock, so
    /// that edits are shown in their order.
    pub(crate) fn install(
        &self,
        state: &mut State,
        installed: Installed,
        logs: &[FamilyLog],
        flushed: Option<FamilyId>,
    ) {
        for (id, version) in installed.versions {
            if let Some(family) = state.families.get_mut(&id) {
                family.version = version;
            }
        }
        for log in logs {
            if let Some(family) = state.families.get_mut(&log.family) {
                family.log_number = log.log_number;
                family.flushed_sequence = log.flushed_sequence;
            }
        }
        if let Some(family) = flushed.and_then(|id| state.families.get_mut(&id)) {
            family.frozen.pop_front();
        }
        self.publish(state);
    }

    /// Freezes and flushes every family; see [`super::Db::flush`].
    pub(crate) fn flush_all(&self, only: Option<FamilyId>) -> Result<()> {
        self.check_writable()?;
        // Without room for another frozen memtable the waiting ones go first, or a caller that
        // flushes in a loop on a full device would pile them up.
        let crowded = {
            let state = self.state.lock();
            state.families.keys().any(|id| state.has_no_room(*id))
        };
        if crowded {
            self.flush_up_to(self.visible.load(Ordering::Acquire))?;
        }
        let target = {
            let baton = self.queue.baton();
            self.check_writable()?;
            self.turnstile.wait_for_at_most(0);
            let mut state = self.state.lock();
            let all: Vec<FamilyId> = state.families.keys().copied().collect();
            for family in all.into_iter().filter(|id| only.is_none_or(|only| only == *id)) {
                self.freeze(&baton, &mut state, family);
            }
            self.visible.load(Ordering::Relaxed)
        };
        self.flush_up_to(target)
    }

    /// Waits until every memtable frozen at or before `target` is flushed, or a flush fails.
    fn flush_up_to(&self, target: u64) -> Result<()> {
        let is_due =
            |state: &State| state.next_to_flush().is_some_and(|(_, f)| f.last_sequence <= target);
        if self.inline() {
            self.run_due(super::background::Patience::None);
            let state = self.state.lock();
            self.check_poison()?;
            if !is_due(&state) {
                return Ok(());
            }
            self.check_writable()?;
            return state.flush.error().map_or(Ok(()), Err);
        }
        let mut state = self.state.lock();
        let failures = state.flush.failures;
        while is_due(&state) {
            self.check_writable()?;
            if state.flush.failures > failures
                && let Some(error) = state.flush.error()
            {
                return Err(error);
            }
            self.changed.wait(&mut state);
        }
        self.check_poison()
    }
}
