//! The write-ahead log: numbered segments of records, each prepared before it is begun
//! (`docs/format/wal.md`).
//!
//! A [`Spare`] is a prepared file that means nothing yet. [`Wal::begin`] and [`Ended::begin`] make
//! it the newest segment; [`replay`] reads all segments back and changes nothing on disk.
//!
//! Invariants:
//! * a record is appended, also to what is still in memory, only where space was zero-filled and
//!   synced before, and room for an end record is always left, so ending a segment, and writing
//!   out what is in memory, needs no more space;
//! * a segment is named, by the manifest or by the end record of the one before, before its first
//!   record, and is durable under that name by then;
//! * a segment is ended and synced before its successor's first record;
//! * nothing is appended after the first failed write or sync.

mod replay;
mod segment;

#[cfg(test)]
mod tests;

pub(crate) use replay::{ReplayPlan, ReplayReport, replay};
pub(crate) use segment::{PrepareJob, Spare, SyncPoint, WalOptions};

use treering_env::{ErrorKind, Outcome};

use crate::record::{
    Appended, Begin, End, FileRole, Predecessor, RecordType, RecordWriter, SegmentEnd, SegmentFact,
    Successor, record_size,
};
use crate::{Error, Result};

/// Bytes of a segment's first record.
const BEGIN_RECORD: u64 = 96;

/// Bytes kept free behind the last record for the end record.
const END_RECORD: u64 = 80;

const _: () = assert!(Begin::SIZE == 48 && End::SIZE == 32, "the record sizes above");

/// What a switch of segments changed, to be recorded in the next version edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// The segment that ended, with its end.
    pub(crate) closed: SegmentFact,
    /// The segment that began.
    pub(crate) begun: SegmentFact,
}

/// A segment that was ended and not synced yet: what the next one needs. The switch goes on without
/// the log lock: [`Ended::point`] is synced and noted, then [`Ended::begin`] starts the next.
#[derive(Debug)]
pub(crate) struct Ended {
    point: SyncPoint,
    closed: SegmentFact,
    predecessor: Predecessor,
}

impl Ended {
    /// The sync that must succeed before the next segment begins.
    pub(crate) fn point(&self) -> &SyncPoint {
        &self.point
    }

    /// Begins `spare`, which the end record names. The ended segment is synced by now.
    pub(crate) fn begin(&self, spare: Spare) -> Result<(Wal, Rotation)> {
        let first_wal_seq = self.predecessor.last_wal_seq + 1;
        let next = Wal::begin(spare, Some(self.predecessor), first_wal_seq)?;
        let rotation = Rotation { closed: self.closed, begun: next.fact };
        Ok((next, rotation))
    }
}

/// The newest segment, being appended to. Used under the log lock.
#[derive(Debug)]
pub(crate) struct Wal {
    writer: RecordWriter,
    fact: SegmentFact,
    prepared: u64,
    options: WalOptions,
    /// Whether the end record is written: nothing may follow it.
    ended: bool,
    /// The end of the last data record; zero while there is none.
    data_end: u64,
    /// The watermark that the last record carries.
    witnessed: u64,
}

impl Wal {
    /// Makes `spare` the newest segment, after `predecessor`, by writing its first record,
    /// numbered `first_wal_seq`: one more than any number seen before, 1 in a new database. The
    /// record is flushed, not synced.
    ///
    /// The manifest must name the segment ([`Spare::fact`]) durably before this call. After a
    /// replay it must also need no older segment any more, because all that was replayed is in
    /// tables: a killed process leaves records that were never synced, which a replay reads and a
    /// power loss may still take, while this segment's first record settles where they end.
    pub(crate) fn begin(
        spare: Spare,
        predecessor: Option<Predecessor>,
        first_wal_seq: u64,
    ) -> Result<Self> {
        let fact = spare.fact(first_wal_seq);
        if let Some(predecessor) = &predecessor {
            assert!(
                predecessor.number < fact.number && predecessor.last_wal_seq < first_wal_seq,
                "segments and records are numbered in order"
            );
        }
        let begin = Begin::new(FileRole::Log, fact.number, predecessor);
        let Spare { file, options, .. } = spare;
        let writer = RecordWriter::begin(file, fact.epoch, first_wal_seq, &begin)?;
        let prepared = fact.prepared;
        Ok(Self { writer, fact, prepared, options, ended: false, data_end: 0, witnessed: 0 })
    }

    /// Appends one write batch as one record, with one write, and flushes it; what was buffered
    /// before goes with it.
    ///
    /// If the space prepared ahead does not suffice, more is prepared here first; the database does
    /// that before, without the log lock ([`Self::missing_room`]). When that finds the device full
    /// the error is `NoSpace`, nothing was applied and the log goes on ([`Self::failure`] is
    /// `None`). Every other error stops the log: see [`Self::failure`].
    pub(crate) fn append(&mut self, payload: &[&[u8]]) -> Result<Appended> {
        self.append_data(payload, None)
    }

    /// Appends one record that holds `writes` batches and leaves it in memory, with what is there
    /// already, up to 256 KiB; beyond that everything is written. Errors are those of
    /// [`Self::append`]: space is prepared for what is in memory too.
    pub(crate) fn append_buffered(&mut self, payload: &[&[u8]], writes: u64) -> Result<Appended> {
        self.append_data(payload, Some(writes))
    }

    fn append_data(&mut self, payload: &[&[u8]], buffered: Option<u64>) -> Result<Appended> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        self.make_room(length as u64)?;
        self.witnessed = self.writer.watermark();
        let appended = match buffered {
            None => self.writer.append(RecordType::Data, payload),
            Some(writes) => self.writer.append_buffered(RecordType::Data, payload, writes),
        }?;
        self.data_end = appended.end;
        Ok(appended)
    }

    /// Hands what is in memory to the operating system. An error stops the log.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }

    /// Bytes of records in memory.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.writer.buffered_bytes()
    }

    /// Whether a marker would say something new about data: more of it is known to be durable than
    /// the last record says. So markers alone never fill a segment.
    pub(crate) fn wants_marker(&self) -> bool {
        self.witnessed < self.data_end && self.witnessed < self.writer.watermark()
    }

    /// Appends a record without data that carries the watermark: damage to what a sync covered is
    /// then told from a write that never finished. Errors as in [`Self::append`].
    pub(crate) fn marker(&mut self) -> Result<Appended> {
        let watermark = self.writer.watermark();
        let payload = watermark.to_le_bytes();
        self.make_room(payload.len() as u64)?;
        self.witnessed = watermark;
        self.writer.append(RecordType::Marker, &[&payload])
    }

    /// What must be prepared before a record with a payload of `length` bytes can be appended;
    /// `None` if it fits into what is there. To be run without the log lock, and noted.
    pub(crate) fn missing_room(&self, length: u64) -> Option<PrepareJob> {
        let needed = self.writer.end() + record_size(length) + END_RECORD;
        (needed > self.prepared).then(|| {
            let target = self.options.step_end(needed - 1);
            PrepareJob::new(self.writer.handle(), self.fact.number, target)
        })
    }

    /// Makes sure that a record with a payload of `length` bytes and an end record fit into
    /// prepared space.
    fn make_room(&mut self, length: u64) -> Result<()> {
        if let Some(failure) = self.writer.failure() {
            return Err(failure.clone());
        }
        assert!(!self.ended, "no record follows an end record");
        let Some(job) = self.missing_room(length) else { return Ok(()) };
        let outcome = job.run();
        self.note_prepared(&job, outcome)?.map_or(Ok(()), |full| Err(Error::NoSpace(full)))
    }

    /// Whether a batch of `length` bytes should go into this segment. A batch larger than a
    /// segment fits into one that holds nothing yet, and grows it.
    pub(crate) fn fits(&self, length: u64) -> bool {
        let end = self.writer.end();
        let wanted = end + record_size(length) + END_RECORD;
        wanted <= self.options.segment_size || end <= BEGIN_RECORD
    }

    /// Whether the next segment should be prepared now: this one is half full.
    pub(crate) fn wants_spare(&self) -> bool {
        self.writer.end() >= self.options.segment_size / 2
    }

    /// Ends this segment with a record that names `spare` as the next, and flushes it. The rest of
    /// the switch is up to [`Ended`]; until it is done nothing can be appended. An error stops the
    /// log.
    pub(crate) fn end_before(&mut self, spare: &Spare) -> Result<Ended> {
        assert!(!self.ended, "a segment ends once");
        let successor =
            Successor { number: spare.number(), epoch: spare.epoch(), prepared: spare.prepared() };
        assert!(successor.number > self.fact.number, "segments are numbered in order");
        let end = End { successor: Some(successor) };
        self.writer.append(RecordType::End, &[&end.encode()])?;
        self.ended = true;
        let (closed, predecessor) = (self.closed_fact(), self.as_predecessor());
        Ok(Ended { point: self.sync_point()?, closed, predecessor })
    }

    /// The whole switch.
    #[cfg(test)]
    pub(crate) fn rotate(&mut self, spare: Spare) -> Result<Rotation> {
        let ended = self.end_before(&spare)?;
        if let Err(error) = ended.point().sync() {
            return Err(self.fail(error));
        }
        self.note_synced(ended.point());
        match ended.begin(spare) {
            Ok((next, rotation)) => {
                *self = next;
                Ok(rotation)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Ends the log in order: everything synced, an end record that proves it, synced too; then
    /// the space prepared behind it is given back.
    pub(crate) fn close(mut self) -> Result<SegmentFact> {
        self.writer.sync()?;
        let end = End { successor: None };
        self.writer.append(RecordType::End, &[&end.encode()])?;
        self.writer.sync()?;
        let closed = self.closed_fact();
        self.writer.finish()?;
        Ok(closed)
    }

    /// What a sync of everything appended so far needs, which is flushed first:
    /// [`SyncPoint::sync`] runs without the log lock, its success goes to [`Self::note_synced`],
    /// its failure to [`Self::fail`].
    pub(crate) fn sync_point(&mut self) -> Result<SyncPoint> {
        self.writer.flush()?;
        Ok(SyncPoint::new(self.writer.handle(), self.fact.number, self.writer.end()))
    }

    /// Notes that the sync of `point` succeeded. A point of an earlier segment says nothing new:
    /// that one was synced when it ended.
    pub(crate) fn note_synced(&mut self, point: &SyncPoint) {
        if point.number() == self.fact.number {
            self.writer.note_synced(point.end());
        }
    }

    /// Stops the log because of `error`, met by a sync or a preparation outside the log lock;
    /// returns the first failure.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.writer.fail(error)
    }

    /// The failure that stopped the log, if any: writes are to be refused until reopen.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.writer.failure()
    }

    /// The next step to prepare, if less than one is left ahead and the segment is not at its full
    /// size: to be run without the log lock.
    pub(crate) fn prepare_ahead(&self) -> Option<PrepareJob> {
        let ahead = self.prepared - self.writer.end();
        let wanted = ahead < self.options.prepare_step
            && self.prepared < self.options.segment_size
            && !self.ended
            && self.writer.failure().is_none();
        wanted.then(|| {
            let target = self.options.step_end(self.prepared);
            PrepareJob::new(self.writer.handle(), self.fact.number, target)
        })
    }

    /// Takes the outcome of a preparation. A full device is no failure of the log, and returned
    /// beside one: only an append that needs the space is concerned.
    pub(crate) fn note_prepared(
        &mut self,
        job: &PrepareJob,
        outcome: treering_env::Result<()>,
    ) -> Result<Option<treering_env::Error>> {
        if job.number() != self.fact.number {
            return Ok(None);
        }
        match outcome {
            Ok(()) => self.prepared = self.prepared.max(job.target()),
            Err(error) if is_full_before_sync(&error) => return Ok(Some(error)),
            Err(error) => return Err(self.writer.fail(Error::from(error))),
        }
        Ok(None)
    }

    /// The newest segment's number.
    pub(crate) fn number(&self) -> u64 {
        self.fact.number
    }

    /// The end of its last record.
    pub(crate) fn end(&self) -> u64 {
        self.writer.end()
    }

    fn closed_fact(&self) -> SegmentFact {
        let last = self.writer.last();
        let end =
            SegmentEnd { end: self.writer.end(), last_wal_seq: last.wal_seq, last_crc: last.crc };
        SegmentFact { end: Some(end), ..self.fact }
    }

    fn as_predecessor(&self) -> Predecessor {
        let last = self.writer.last();
        Predecessor {
            number: self.fact.number,
            end: self.writer.end(),
            last_wal_seq: last.wal_seq,
            last_crc: last.crc,
        }
    }
}

/// Whether a failed preparation left the segment usable: the device was full, and the failure
/// came before the sync, so nothing of the log was touched.
fn is_full_before_sync(error: &treering_env::Error) -> bool {
    error.kind() == ErrorKind::NoSpace && error.outcome() == Outcome::NotApplied
}
