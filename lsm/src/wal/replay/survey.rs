//! The first pass: which segments there are, and what their first records say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use treering_env::Env;

use crate::filename::FileName;
use crate::record::{
    Begin, FORMAT_VERSION, FileRole, Predecessor, RecordReader, SegmentFact, Stop,
};
use crate::{Error, Result};

use super::ReplayPlan;

/// The segments of a directory, by number.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) highest_file_number: u64,
    pub(super) highest_wal_seq: u64,
}

/// One segment file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) fact: Option<SegmentFact>,
    /// `None` without a first record of its own.
    pub(super) begun: Option<Begun>,
}

/// What a valid first record says.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) epoch: u64,
    pub(super) wal_seq: u64,
    pub(super) predecessor: Option<Predecessor>,
}

/// The error for a segment that must be there.
pub(super) fn missing(dir: &Path, number: u64) -> Error {
    Error::MissingFile(FileName::Log(number).path(dir))
}

impl Survey {
    /// Lists `dir` and reads the first record of every segment from `plan.from_number` on.
    pub(super) fn take(env: &dyn Env, dir: &Path, plan: &ReplayPlan) -> Result<Self> {
        let facts: BTreeMap<u64, SegmentFact> = plan
            .facts
            .iter()
            .filter(|fact| fact.number >= plan.from_number)
            .map(|fact| (fact.number, *fact))
            .collect();
        let mut survey =
            Self { segments: BTreeMap::new(), highest_file_number: 0, highest_wal_seq: 0 };
        for fact in &plan.facts {
            let last = fact.end.map_or(0, |end| end.last_wal_seq);
            survey.highest_wal_seq = survey.highest_wal_seq.max(fact.first_wal_seq).max(last);
            survey.highest_file_number = survey.highest_file_number.max(fact.number);
        }
        for entry in env.list(dir)? {
            let (number, is_log) = match FileName::parse(&entry.name) {
                Some(FileName::Log(number)) => (number, true),
                Some(FileName::Table(number) | FileName::Manifest(number)) => (number, false),
                Some(FileName::Current | FileName::CurrentTemp | FileName::Lock) | None => continue,
            };
            survey.highest_file_number = survey.highest_file_number.max(number);
            if is_log && number >= plan.from_number {
                let path = FileName::Log(number).path(dir);
                let segment = Segment::look(env, path, number, facts.get(&number).copied())?;
                survey.segments.insert(number, segment);
            }
        }
        let needed = facts.keys().copied().chain([plan.from_number]);
        for number in needed {
            if !survey.segments.contains_key(&number) {
                return Err(missing(dir, number));
            }
        }
        Ok(survey)
    }

    /// The newest begun segment.
    pub(super) fn last_begun(&self) -> Option<u64> {
        let begun = self.segments.values().filter(|segment| segment.begun.is_some());
        begun.map(|segment| segment.number).next_back()
    }

    /// For each predecessor that a first record names, what it says about it.
    pub(super) fn successors(&self) -> Result<BTreeMap<u64, Predecessor>> {
        let mut successors = BTreeMap::new();
        for segment in self.segments.values() {
            let predecessor = segment.begun.as_ref().and_then(|begun| begun.predecessor);
            let Some(predecessor) = predecessor else { continue };
            let earlier = successors.insert(predecessor.number, predecessor);
            if earlier.is_some() || predecessor.number >= segment.number {
                let what = format!("{} cannot be the segment before this one", predecessor.number);
                return Err(Error::corruption(&segment.path, 0, what));
            }
        }
        Ok(successors)
    }
}

impl Segment {
    fn look(env: &dyn Env, path: PathBuf, number: u64, fact: Option<SegmentFact>) -> Result<Self> {
        let mut reader = RecordReader::open(env, &path)?;
        let size = reader.size();
        let mut begun = None;
        if let Some(record) = reader.read_next()? {
            let begin = Begin::decode(record.payload)
                .ok_or_else(|| Error::corruption(&path, 0, "a malformed first record"))?;
            if begin.format > u16::from(FORMAT_VERSION) {
                let found = u32::from(begin.format);
                let supported = u32::from(FORMAT_VERSION);
                return Err(Error::UnsupportedVersion { path, found, supported });
            }
            let is_own = begin.role == FileRole::Log && begin.number == number;
            if is_own {
                begun = Some(Begun {
                    epoch: record.header.epoch,
                    wal_seq: record.header.wal_seq,
                    predecessor: begin.predecessor,
                });
            } else if fact.is_some() {
                let what = "the first record belongs to another file";
                return Err(Error::corruption(&path, 0, what));
            }
        } else if let Some(Stop::Broken(what)) = reader.stop()
            && fact.is_some()
        {
            return Err(Error::corruption(&path, 0, what));
        }
        Ok(Self { number, path, size, fact, begun })
    }
}
