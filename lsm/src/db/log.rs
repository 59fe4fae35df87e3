//! The log as the database uses it: numbers for operations, segments, spares and syncs.
//!
//! Everything in [`Log`] is under the log lock. Appends run under it, each one write that the
//! operating system takes; whatever waits for the device does not: syncs, zero-filling, the making
//! of spares, and the switch of segments, which takes the lock for moments only. Whoever appends
//! or switches holds the baton, so nothing comes in between.

use std::collections::VecDeque;

use super::Shared;
use super::background::PanicGuard;
use crate::filename::FileName;
use crate::key::MAX_SEQUENCE;
use crate::record::SegmentFact;
use crate::wal::{Rotation, Spare, SyncPoint, Wal};
use crate::{Durability, Error, Result};

/// Bytes of a marker's payload: a watermark.
const MARKER_PAYLOAD: usize = 8;

/// What the log lock protects.
#[derive(Debug)]
pub(crate) struct Log {
    /// The newest segment; `None` once the database is closed.
    wal: Option<Wal>,
    /// The last number given to an operation.
    last_sequence: u64,
    /// Older segments that are still needed: number and end, oldest first.
    closed: VecDeque<(u64, u64)>,
    /// What the next version edit must say about segments.
    facts: Vec<SegmentFact>,
    spare: Option<Spare>,
}

impl Log {
    /// The log right after an open.
    pub(crate) fn new(wal: Wal, last_sequence: u64) -> Self {
        let (closed, facts) = (VecDeque::new(), Vec::new());
        Self { wal: Some(wal), last_sequence, closed, facts, spare: None }
    }

    fn wal(&mut self) -> Result<&mut Wal> {
        self.wal.as_mut().ok_or(Error::Closed)
    }

    fn newest(&self) -> Result<&Wal> {
        self.wal.as_ref().ok_or(Error::Closed)
    }

    /// The first of the next `count` sequence numbers, which are not taken yet.
    pub(crate) fn next_sequences(&self, count: u64) -> Result<u64> {
        if count > MAX_SEQUENCE - self.last_sequence {
            return Err(Error::invalid("the 2^56 sequence numbers of the database are used up"));
        }
        Ok(self.last_sequence + 1)
    }

    /// Takes the next `count` sequence numbers; returns the last of them.
    pub(crate) fn take_sequences(&mut self, count: u64) -> u64 {
        self.last_sequence += count;
        self.last_sequence
    }

    /// Appends a data record for `writes` batches; leaves it in memory if that is durable enough.
    /// The caller looks at [`Log::has_failed`] after an error.
    pub(crate) fn append(
        &mut self,
        payload: &[&[u8]],
        durability: Durability,
        writes: u64,
    ) -> Result<()> {
        let wal = self.wal()?;
        let appended = match durability {
            Durability::Buffered => wal.append_buffered(payload, writes),
            Durability::Flushed | Durability::Synced => wal.append(payload),
        };
        appended.map(|_| ())
    }

    /// Whether a failure stopped the log for good.
    pub(crate) fn has_failed(&self) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.failure().is_some())
    }

    /// The newest segment's number.
    pub(crate) fn number(&self) -> Result<u64> {
        self.newest().map(Wal::number)
    }

    /// What a sync of everything appended so far needs; what is in memory is written first. The
    /// caller looks at [`Log::has_failed`] after an error.
    pub(crate) fn sync_point(&mut self) -> Result<SyncPoint> {
        self.wal()?.sync_point()
    }

    /// Bytes of records that are in memory only.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.wal.as_ref().map_or(0, Wal::buffered_bytes)
    }

    /// Whether the log thread has something to prepare.
    pub(crate) fn wants_attention(&self) -> bool {
        let wants = |wal: &Wal| {
            (self.spare.is_none() && wal.wants_spare()) || wal.prepare_ahead().is_some()
        };
        self.wal.as_ref().is_some_and(wants)
    }

    /// Bytes of records in all segments that are still needed.
    pub(crate) fn size(&self) -> u64 {
        let closed: u64 = self.closed.iter().map(|(_, end)| end).sum();
        closed + self.wal.as_ref().map_or(0, Wal::end)
    }

    /// The number of segments that are still needed.
    pub(crate) fn segments(&self) -> usize {
        self.closed.len() + usize::from(self.wal.is_some())
    }

    /// The oldest segment that is still needed, unless it is the newest one.
    pub(crate) fn oldest_closed(&self) -> Option<u64> {
        self.closed.front().map(|(number, _)| *number)
    }

    /// Takes what the next version edit must say about segments.
    pub(crate) fn take_facts(&mut self) -> Vec<SegmentFact> {
        std::mem::take(&mut self.facts)
    }

    /// Gives facts back that were not written after all.
    pub(crate) fn return_facts(&mut self, mut facts: Vec<SegmentFact>) {
        facts.append(&mut self.facts);
        self.facts = facts;
    }

    /// Forgets the closed segments below `floor`; returns their files.
    pub(crate) fn drop_below(&mut self, floor: u64) -> Vec<FileName> {
        let keep = self.closed.partition_point(|(number, _)| *number < floor);
        self.closed.drain(..keep).map(|(number, _)| FileName::Log(number)).collect()
    }

    /// Keeps `spare` for the next switch. Gives it back if it is of no use: there is one already,
    /// or the log went on in a newer segment while this one was made.
    fn keep_spare(&mut self, spare: Spare) -> Option<Spare> {
        let follows = self.wal.as_ref().is_some_and(|wal| wal.number() < spare.number());
        if self.spare.is_some() || !follows {
            return Some(spare);
        }
        self.spare = Some(spare);
        None
    }

    /// Goes on in the segment `next`. Returns the spare if it is of no use any more, because it is
    /// older: then `next` was made while the log thread was still at work on it.
    fn go_on(&mut self, next: Wal, rotation: Rotation) -> Option<Spare> {
        let end = rotation.closed.end.expect("a closed segment has an end").end;
        self.closed.push_back((rotation.closed.number, end));
        self.facts.extend([rotation.closed, rotation.begun]);
        let number = next.number();
        self.wal = Some(next);
        self.spare.take_if(|spare| spare.number() < number)
    }
}

impl Shared {
    /// Makes sure that a record with a payload of `length` bytes goes into a segment it fits in,
    /// and into prepared space of it; the caller holds the baton.
    ///
    /// A spare that cannot be made, or space that is not there, fails the caller's batch and
    /// nothing else: nothing of the log was touched. A failed switch poisons.
    pub(crate) fn ensure_log_room(&self, length: usize) -> Result<()> {
        let length = length as u64;
        let fits = self.on_log(|log| log.wal().map(|wal| wal.fits(length)))?;
        if !fits {
            self.switch_log()?;
        }
        let job = self.on_log(|log| log.wal().map(|wal| wal.missing_room(length)))?;
        let Some(job) = job else { return Ok(()) };
        let guard = PanicGuard::of_call(self);
        let outcome = job.run();
        guard.disarm();
        let full = self.on_log(|log| log.wal()?.note_prepared(&job, outcome))?;
        full.map_or(Ok(()), |full| Err(Error::NoSpace(full)))
    }

    fn switch_log(&self) -> Result<()> {
        let ready = self.log.lock().spare.take();
        let spare = match ready {
            Some(spare) => spare,
            None => self.new_spare()?,
        };
        let ended = self.on_log(|log| log.wal()?.end_before(&spare))?;
        self.sync_log(ended.point())?;
        let useless = match ended.begin(spare) {
            Ok((next, rotation)) => self.log.lock().go_on(next, rotation),
            Err(error) => {
                let error = match self.log.lock().wal() {
                    Ok(wal) => wal.fail(error),
                    Err(_) => error,
                };
                return Err(self.poison(error));
            }
        };
        self.stats.log_switches.add(1);
        if let Some(spare) = useless {
            spare.discard(&*self.env);
        }
        Ok(())
    }

    fn new_spare(&self) -> Result<Spare> {
        Spare::create(&*self.env, &self.dir, self.numbers.next(), &self.wal_options)
    }

    /// The end of the log, with everything before it written. A failure poisons.
    pub(crate) fn log_point(&self) -> Result<SyncPoint> {
        self.on_log(Log::sync_point)
    }

    /// Does something under the log lock; an error that stopped the log poisons.
    fn on_log<T>(&self, act: impl FnOnce(&mut Log) -> Result<T>) -> Result<T> {
        let guard = PanicGuard::of_call(self);
        let mut log = self.log.lock();
        let result = act(&mut log);
        let failed = log.has_failed();
        drop(log);
        guard.disarm();
        result.map_err(|error| if failed { self.poison(error) } else { error })
    }

    /// Makes everything up to `point` durable, holding no lock. A failure poisons.
    pub(crate) fn sync_log(&self, point: &SyncPoint) -> Result<()> {
        self.stats.log_syncs.add(1);
        let guard = PanicGuard::of_call(self);
        let result = point.sync();
        guard.disarm();
        let mut log = self.log.lock();
        let failed = match result {
            Ok(()) => {
                if let Ok(wal) = log.wal() {
                    wal.note_synced(point);
                }
                return Ok(());
            }
            Err(error) => match log.wal() {
                Ok(wal) => wal.fail(error),
                Err(_) => error,
            },
        };
        drop(log);
        Err(self.poison(failed))
    }

    /// Makes everything written so far durable; see [`super::Db::sync_wal`].
    pub(crate) fn sync_wal(&self) -> Result<()> {
        self.check_writable()?;
        let point = self.log_point()?;
        self.sync_log(&point)?;
        // A group before the point may have failed meanwhile: then the sync must not claim it.
        self.check_poison()
    }

    /// Writes what is in memory, and a marker record if it would say anything; see
    /// [`super::Db::flush_wal`].
    pub(crate) fn flush_wal(&self) -> Result<()> {
        self.check_writable()?;
        let wants_marker = self.on_log(|log| {
            let wal = log.wal()?;
            wal.flush()?;
            Ok(wal.wants_marker())
        })?;
        if !wants_marker {
            // What was written may be behind a group that failed: then it must not be claimed.
            return self.check_poison();
        }
        // Like a write: only with the baton in hand may the log go on in another segment.
        let _baton = self.queue.baton();
        self.check_writable()?;
        let guard = PanicGuard::of_call(self);
        let result = self.ensure_log_room(MARKER_PAYLOAD).and_then(|()| {
            self.on_log(|log| {
                let wal = log.wal()?;
                if wal.wants_marker() { wal.marker().map(|_| ()) } else { Ok(()) }
            })
        });
        guard.disarm();
        result
    }

    /// Prepares what the log will need next: one step of zeros, or a spare. Whether it did
    /// anything. A full device is no error here: the append that needs the space reports it.
    pub(crate) fn prepare_log(&self) -> bool {
        let (job, wants_spare) = {
            let log = self.log.lock();
            let Some(wal) = &log.wal else { return false };
            let wants_spare = log.spare.is_none() && wal.wants_spare();
            (wal.prepare_ahead(), wants_spare && wal.failure().is_none())
        };
        if let Some(job) = job {
            let guard = PanicGuard::of_call(self);
            let outcome = job.run();
            guard.disarm();
            let noted = self.on_log(|log| log.wal()?.note_prepared(&job, outcome));
            return matches!(noted, Ok(None));
        }
        if !wants_spare {
            return false;
        }
        let Ok(spare) = self.new_spare() else { return false };
        let useless = self.log.lock().keep_spare(spare);
        match useless {
            None => true,
            Some(spare) => {
                spare.discard(&*self.env);
                false
            }
        }
    }

    /// Ends the log: see [`super::Db::close`]. The caller holds the baton.
    pub(crate) fn close_log(&self) -> Result<()> {
        let (wal, spare) = {
            let mut log = self.log.lock();
            (log.wal.take(), log.spare.take())
        };
        if self.check_poison().is_err() {
            // The manifest may have failed and not the log: what was acknowledged as buffered is
            // kept then. The caller reports the poison.
            return wal.map_or(Ok(()), |mut wal| wal.flush().or(Ok(())));
        }
        if let Some(spare) = spare {
            spare.discard(&*self.env);
        }
        let guard = PanicGuard::of_call(self);
        let result = wal.map_or(Ok(()), |wal| wal.close().map(|_| ()));
        guard.disarm();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use treering_env::{Env, MemEnv};

    use super::*;
    use crate::wal::WalOptions;

    /// A writer that needs the next segment at once makes one itself while the log thread is still
    /// at work on a spare with a smaller number.
    #[test]
    fn a_spare_older_than_the_newest_segment_is_not_kept() {
        let (env, dir) = (MemEnv::new(), Path::new("db"));
        env.create_dir_all(dir).unwrap();
        let options = WalOptions { segment_size: 64 << 10, prepare_step: 4 << 10 };
        let spare = |number| Spare::create(&env, dir, number, &options).unwrap();
        let mut log = Log::new(Wal::begin(spare(1), None, 1).unwrap(), 0);
        let switch = |log: &mut Log, spare: Spare| {
            let ended = log.wal().unwrap().end_before(&spare).unwrap();
            ended.point().sync().unwrap();
            let (next, rotation) = ended.begin(spare).unwrap();
            log.go_on(next, rotation)
        };
        let late = spare(2);
        assert!(switch(&mut log, spare(3)).is_none());
        let late = log.keep_spare(late).expect("it is older than segment 3");
        late.discard(&env);
        assert!(log.keep_spare(spare(4)).is_none());
        assert!(log.keep_spare(spare(5)).is_some(), "there is one already");
        let next = log.spare.take().expect("spare 4 was kept");
        switch(&mut log, next);
        assert_eq!(log.number().unwrap(), 4);
        // The same, but that it was kept just before the switch.
        assert!(log.keep_spare(spare(6)).is_none());
        let late = switch(&mut log, spare(7)).expect("it is older than segment 7");
        assert_eq!(late.number(), 6);
        assert!(log.spare.is_none());
    }
}
