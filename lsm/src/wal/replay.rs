//! Reads all segments back in order, and judges every end. Nothing on disk is changed.
//!
//! The segments in use form a line: each names its predecessor in its first record. A first pass
//! reads those first records; the second walks along the line, reads each segment exactly to the
//! end that its successor names, and only the newest to the first offset without a valid record.
//! A prepared file that nothing names and that has no first record of its own is passed over.

mod survey;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use treering_env::Env;

use crate::record::{
    Bounds, Cut, End, Predecessor, RecordReader, RecordType, SegmentFact, Stop, Successor, Tail,
    settle,
};
use crate::{Error, Result, TailPolicy};

use survey::{Begun, Segment, Survey};

/// Receives each data record's payload: the segment's path, the record's offset in it, the
/// segment's number, the payload. An error ends the replay.
pub(crate) type OnRecord<'a> = dyn FnMut(&Path, u64, u64, &[u8]) -> Result<()> + 'a;

/// What the manifest says about the log, and what its owner wants.
#[derive(Clone, Debug)]
pub(crate) struct ReplayPlan {
    /// The oldest segment that is needed; it must exist. Older ones are not looked at.
    pub(crate) from_number: u64,
    /// What the manifest knows about segments; those below `from_number` are passed over.
    pub(crate) facts: Vec<SegmentFact>,
    /// What to do with an end of the newest segment that nothing explains.
    pub(crate) tail_policy: TailPolicy,
}

/// One segment that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSummary {
    /// Its number.
    pub(crate) number: u64,
    /// Where it ends; zero if it was named but never begun.
    pub(crate) end: u64,
    /// Data records in it.
    pub(crate) records: u64,
    /// Whether it was ended in order.
    pub(crate) ended: bool,
}

/// Bytes of a segment that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogCut {
    /// The segment.
    pub(crate) path: PathBuf,
    /// What and why.
    pub(crate) cut: Cut,
}

/// What a replay found.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayReport {
    /// What the next segment names as its predecessor, which makes every cut final; `None` if
    /// there was no segment at all.
    pub(crate) predecessor: Option<Predecessor>,
    /// The number of the next segment's first record: beyond any seen, damaged ones included.
    pub(crate) next_wal_seq: u64,
    /// The segments in order.
    pub(crate) segments: Vec<SegmentSummary>,
    /// What was left out.
    pub(crate) cuts: Vec<LogCut>,
    /// The highest number in the name of any file of the directory, stray ones included.
    pub(crate) highest_file_number: u64,
    /// Data records replayed.
    pub(crate) records: u64,
    /// Bytes of their payloads.
    pub(crate) bytes: u64,
}

/// Reads the segments of `dir` from `plan.from_number` on and hands every data record to
/// `on_record`, in the order of their appends.
///
/// Any failed read is an error. Damage is [`Error::Corruption`] with path and offset; a segment
/// that must be there and is not is [`Error::MissingFile`]. Records before the damage may have
/// been handed over by then.
pub(crate) fn replay(
    env: &dyn Env,
    dir: &Path,
    plan: &ReplayPlan,
    on_record: &mut OnRecord<'_>,
) -> Result<ReplayReport> {
    let survey = Survey::take(env, dir, plan)?;
    let mut walk = Walk {
        env,
        dir,
        plan,
        last_begun: survey.last_begun(),
        successors: survey.successors()?,
        link: None,
        named_next: None,
        highest_wal_seq: survey.highest_wal_seq,
        report: ReplayReport {
            highest_file_number: survey.highest_file_number,
            ..ReplayReport::default()
        },
    };
    for segment in survey.segments.values() {
        walk.step(segment, on_record)?;
    }
    walk.finish()
}

/// The last segment of the line so far.
#[derive(Clone, Copy, Debug)]
struct Link {
    number: u64,
    end: u64,
    tail: Tail,
}

/// The walk along the line of segments.
struct Walk<'a> {
    env: &'a dyn Env,
    dir: &'a Path,
    plan: &'a ReplayPlan,
    /// The newest begun segment.
    last_begun: Option<u64>,
    /// For each segment, what its successor's first record says about it.
    successors: BTreeMap<u64, Predecessor>,
    link: Option<Link>,
    /// The segment that the last end record names.
    named_next: Option<Successor>,
    highest_wal_seq: u64,
    report: ReplayReport,
}

impl Walk<'_> {
    fn step(&mut self, segment: &Segment, on_record: &mut OnRecord<'_>) -> Result<()> {
        let named = self.name_of(segment)?;
        match &segment.begun {
            Some(begun) => self.read(segment, begun, named, on_record),
            None => self.pass(segment, named),
        }
    }

    /// What names the segment: the manifest, or the end record of the one before.
    fn name_of(&mut self, segment: &Segment) -> Result<Option<Successor>> {
        let by_manifest = segment.fact.map(|fact| Successor {
            number: fact.number,
            epoch: fact.epoch,
            prepared: fact.prepared,
        });
        let Some(named) = self.named_next else { return Ok(by_manifest) };
        if segment.number < named.number {
            return Ok(by_manifest);
        }
        if segment.number > named.number {
            return Err(self.missing(named.number));
        }
        self.named_next = None;
        Ok(Some(named))
    }

    fn missing(&self, number: u64) -> Error {
        survey::missing(self.dir, number)
    }

    /// Passes over a segment without a first record: one that was named but never begun, or a
    /// spare.
    fn pass(&mut self, segment: &Segment, named: Option<Successor>) -> Result<()> {
        let successor_end = self.successors.get(&segment.number).map(|named| named.end);
        if named.is_none() && successor_end.is_none() {
            return Ok(());
        }
        if successor_end != Some(0) {
            self.judge_unbegun(segment, named, successor_end)?;
        }
        let tail = match (self.link, segment.fact) {
            (Some(link), _) => link.tail,
            (None, Some(fact)) => Tail { wal_seq: fact.first_wal_seq.saturating_sub(1), crc: 0 },
            (None, None) => Tail { wal_seq: 0, crc: 0 },
        };
        self.link_to(Link { number: segment.number, end: 0, tail }, 0, false);
        Ok(())
    }

    fn judge_unbegun(
        &mut self,
        segment: &Segment,
        named: Option<Successor>,
        successor_end: Option<u64>,
    ) -> Result<()> {
        let mut reader = RecordReader::open(self.env, &segment.path)?;
        let none = reader.read_next()?.is_none();
        if !none {
            return Err(Error::corruption(&segment.path, 0, "the first record of another segment"));
        }
        let evidence = reader.evidence(named.map(|named| named.epoch))?;
        self.highest_wal_seq = self.highest_wal_seq.max(evidence.highest_wal_seq.unwrap_or(0));
        let bounds = Bounds {
            successor_end,
            recorded_end: segment.fact.and_then(|fact| fact.end).map(|end| end.end),
            is_newest: self.last_begun.is_none_or(|last| last < segment.number),
            policy: self.plan.tail_policy,
        };
        if let Some(cut) = settle(&segment.path, &evidence, &bounds)? {
            self.report.cuts.push(LogCut { path: segment.path.clone(), cut });
        }
        check_size(segment, named)
    }

    /// Reads a begun segment.
    fn read(
        &mut self,
        segment: &Segment,
        begun: &Begun,
        named: Option<Successor>,
        on_record: &mut OnRecord<'_>,
    ) -> Result<()> {
        check_name(segment, begun, named)?;
        self.check_predecessor(segment, begun)?;
        let successor = self.successors.get(&segment.number).copied();
        let mut reader = RecordReader::open(self.env, &segment.path)?;
        if let Some(successor) = &successor {
            reader.settle_end(successor.end);
        }
        let mut ended = None;
        let mut records = 0;
        while ended.is_none() {
            let Some(record) = reader.read_next()? else { break };
            match record.kind {
                RecordType::Begin | RecordType::Marker => {}
                RecordType::Data => {
                    records += 1;
                    self.report.bytes += record.payload.len() as u64;
                    on_record(&segment.path, record.offset, segment.number, record.payload)?;
                }
                RecordType::End => {
                    let offset = record.offset;
                    let end = End::decode(record.payload);
                    let malformed =
                        || Error::corruption(&segment.path, offset, "a malformed end record");
                    ended = Some(end.ok_or_else(malformed)?);
                }
                RecordType::Edit => {
                    let what = "a version edit in a log segment";
                    return Err(Error::corruption(&segment.path, record.offset, what));
                }
            }
        }
        match &successor {
            Some(successor) => {
                self.check_settled_end(segment, &mut reader, successor, ended.is_some())?;
            }
            None => self.judge_end(segment, &mut reader, named, ended.is_some())?,
        }
        check_recorded_end(segment, &reader)?;
        let tail = reader.last().expect("a begun segment has a first record");
        self.highest_wal_seq = self.highest_wal_seq.max(tail.wal_seq);
        self.report.records += records;
        self.named_next = ended.and_then(|end| end.successor);
        let link = Link { number: segment.number, end: reader.offset(), tail };
        self.link_to(link, records, ended.is_some());
        Ok(())
    }

    /// The first record must name the segment before this one, as it was found.
    fn check_predecessor(&self, segment: &Segment, begun: &Begun) -> Result<()> {
        let wrong = |what: String| Err(Error::corruption(&segment.path, 0, what));
        match (self.link, &begun.predecessor) {
            (Some(link), Some(predecessor)) => {
                if predecessor.number != link.number {
                    return wrong(format!(
                        "the segment names {} as its predecessor, but {} stands before it",
                        predecessor.number, link.number
                    ));
                }
                let found = Tail { wal_seq: predecessor.last_wal_seq, crc: predecessor.last_crc };
                if predecessor.end != link.end || found != link.tail {
                    return wrong(format!(
                        "the segment says that {} ended at {}, but it ends at {}",
                        link.number, predecessor.end, link.end
                    ));
                }
                if begun.wal_seq <= link.tail.wal_seq {
                    return wrong("the first record has a number that was used".to_owned());
                }
                Ok(())
            }
            (Some(link), None) => wrong(format!(
                "the segment says that it is the first of the log, but {} stands before it",
                link.number
            )),
            (None, Some(predecessor)) if predecessor.number >= self.plan.from_number => {
                Err(self.missing(predecessor.number))
            }
            (None, _) => Ok(()),
        }
    }

    /// A segment with a successor must be whole up to the end that the successor names.
    fn check_settled_end(
        &mut self,
        segment: &Segment,
        reader: &mut RecordReader,
        successor: &Predecessor,
        ended: bool,
    ) -> Result<()> {
        let at_end = reader.offset() == successor.end;
        if !at_end && ended {
            let what = "records follow the end record";
            return Err(Error::corruption(&segment.path, reader.offset(), what));
        }
        if at_end {
            return Ok(());
        }
        let evidence = reader.evidence(None)?;
        let bounds = Bounds {
            successor_end: Some(successor.end),
            recorded_end: None,
            is_newest: false,
            policy: self.plan.tail_policy,
        };
        settle(&segment.path, &evidence, &bounds)?;
        let what = "the segment does not end where the next one says";
        Err(Error::corruption(&segment.path, evidence.offset, what))
    }

    /// The end of a segment without a successor: an end record, a tail, or damage.
    fn judge_end(
        &mut self,
        segment: &Segment,
        reader: &mut RecordReader,
        named: Option<Successor>,
        ended: bool,
    ) -> Result<()> {
        if ended {
            return Ok(());
        }
        debug_assert_ne!(reader.stop(), Some(Stop::AtLimit), "no successor settled the end");
        let evidence = reader.evidence(None)?;
        self.highest_wal_seq = self.highest_wal_seq.max(evidence.highest_wal_seq.unwrap_or(0));
        let bounds = Bounds {
            successor_end: None,
            recorded_end: segment.fact.and_then(|fact| fact.end).map(|end| end.end),
            is_newest: self.last_begun == Some(segment.number),
            policy: self.plan.tail_policy,
        };
        if let Some(cut) = settle(&segment.path, &evidence, &bounds)? {
            self.report.cuts.push(LogCut { path: segment.path.clone(), cut });
        } else if !bounds.is_newest {
            let what = "the segment has neither an end record nor a successor, \
                        though a newer one was begun";
            return Err(Error::corruption(&segment.path, evidence.offset, what));
        }
        check_size(segment, named)
    }

    fn link_to(&mut self, link: Link, records: u64, ended: bool) {
        self.link = Some(link);
        self.report.segments.push(SegmentSummary {
            number: link.number,
            end: link.end,
            records,
            ended,
        });
    }

    fn finish(self) -> Result<ReplayReport> {
        if let Some(named) = self.named_next {
            return Err(self.missing(named.number));
        }
        let predecessor = self.link.map(|link| Predecessor {
            number: link.number,
            end: link.end,
            last_wal_seq: link.tail.wal_seq,
            last_crc: link.tail.crc,
        });
        let next_wal_seq = self.highest_wal_seq.saturating_add(1);
        Ok(ReplayReport { predecessor, next_wal_seq, ..self.report })
    }
}

/// A segment that was named and not ended is never shorter than it was then.
fn check_size(segment: &Segment, named: Option<Successor>) -> Result<()> {
    match named {
        Some(named) if segment.size < named.prepared => {
            let what = format!(
                "the segment is shorter than the {} bytes that it was prepared to",
                named.prepared
            );
            Err(Error::corruption(&segment.path, segment.size, what))
        }
        _ => Ok(()),
    }
}

/// A segment that the manifest knows as closed must end exactly there.
fn check_recorded_end(segment: &Segment, reader: &RecordReader) -> Result<()> {
    let Some(end) = segment.fact.and_then(|fact| fact.end) else { return Ok(()) };
    let recorded = Tail { wal_seq: end.last_wal_seq, crc: end.last_crc };
    if reader.offset() == end.end && reader.last() == Some(recorded) {
        return Ok(());
    }
    let what = format!("the segment does not end at {} as the manifest says", end.end);
    Err(Error::corruption(&segment.path, reader.offset(), what))
}

/// The segment must be the one that was named.
fn check_name(segment: &Segment, begun: &Begun, named: Option<Successor>) -> Result<()> {
    let other = named.is_some_and(|named| named.epoch != begun.epoch)
        || segment.fact.is_some_and(|fact| fact.epoch != begun.epoch);
    if other {
        let what = "another segment stands in the place of the one that was named";
        return Err(Error::corruption(&segment.path, 0, what));
    }
    if segment.fact.is_some_and(|fact| fact.first_wal_seq != begun.wal_seq) {
        let what = "the first record does not have the number that the manifest names";
        return Err(Error::corruption(&segment.path, 0, what));
    }
    Ok(())
}
