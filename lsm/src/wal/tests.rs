//! Tests of the log: written on an environment in memory, crashed or damaged, and replayed.

use std::path::{Path, PathBuf};

use treering_env::{Access, Env, MemEnv};

use super::*;
use crate::TailPolicy;
use crate::filename::FileName;

mod crash;
mod damage;
mod faults;
mod lifecycle;

const DIR: &str = "db";

/// Small segments, so that a few records fill one.
const OPTIONS: WalOptions = WalOptions { segment_size: 12 << 10, prepare_step: 4 << 10 };

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn path_of(number: u64) -> PathBuf {
    FileName::Log(number).path(dir())
}

fn new_env() -> MemEnv {
    let env = MemEnv::new();
    env.create_dir_all(dir()).unwrap();
    env
}

/// The payload of the record of this number; its size differs from record to record.
fn payload(number: u64) -> Vec<u8> {
    let size = 300 + 13 * usize::try_from(number % 40).unwrap();
    let mut bytes = vec![(number % 251) as u8 + 1; size];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A log and what a manifest would know about it.
struct Log {
    env: MemEnv,
    wal: Wal,
    facts: Vec<SegmentFact>,
    next_number: u64,
    /// The number of the next record's payload.
    next: u64,
}

impl Log {
    /// A new log whose first segment is begun and named.
    fn new(env: &MemEnv) -> Self {
        Self::start(env, 1, None, 1, Vec::new(), 0).unwrap()
    }

    /// Goes on after a replay that found `report`, with `next` payloads in it, under `facts`.
    fn go_on(env: &MemEnv, found: &Found, facts: &[SegmentFact]) -> Result<Self> {
        let report = &found.report;
        let number = report.highest_file_number + 1;
        let next = found.payloads.len() as u64;
        Self::start(env, number, report.predecessor, report.next_wal_seq, facts.to_vec(), next)
    }

    fn start(
        env: &MemEnv,
        number: u64,
        predecessor: Option<Predecessor>,
        first_wal_seq: u64,
        mut facts: Vec<SegmentFact>,
        next: u64,
    ) -> Result<Self> {
        let spare = Spare::create(env, dir(), number, &OPTIONS)?;
        facts.push(spare.fact(first_wal_seq));
        let wal = Wal::begin(spare, predecessor, first_wal_seq)?;
        Ok(Self { env: env.clone(), wal, facts, next_number: number + 1, next })
    }

    /// Appends the next payload, in a new segment if it does not fit.
    fn append(&mut self) -> Result<Appended> {
        let payload = payload(self.next);
        if !self.wal.fits(payload.len() as u64) {
            self.rotate()?;
        }
        let appended = self.wal.append(&[&payload])?;
        self.next += 1;
        Ok(appended)
    }

    fn sync(&mut self) -> Result<()> {
        let point = self.wal.sync_point().unwrap();
        point.sync()?;
        self.wal.note_synced(&point);
        Ok(())
    }

    fn rotate(&mut self) -> Result<Rotation> {
        self.next_number += 1;
        let spare = Spare::create(&self.env, dir(), self.next_number - 1, &OPTIONS)?;
        self.wal.rotate(spare)
    }

    /// Appends `count` payloads, each synced.
    fn append_synced(&mut self, count: u64) {
        for _ in 0..count {
            self.append().unwrap();
            self.sync().unwrap();
        }
    }

    /// Records a rotation as a version edit would.
    fn record(&mut self, rotation: Rotation) {
        self.facts.retain(|fact| fact.number != rotation.closed.number);
        self.facts.extend([rotation.closed, rotation.begun]);
    }
}

/// What a replay found.
#[derive(Debug)]
struct Found {
    payloads: Vec<Vec<u8>>,
    report: ReplayReport,
}

impl Found {
    /// How many payloads there are, after checking that they are the first ones in order.
    fn prefix(&self) -> u64 {
        for (number, found) in self.payloads.iter().enumerate() {
            assert_eq!(*found, payload(number as u64), "payload {number}");
        }
        self.payloads.len() as u64
    }
}

fn replay_with(env: &MemEnv, facts: &[SegmentFact], tail_policy: TailPolicy) -> Result<Found> {
    let plan = ReplayPlan { from_number: 1, facts: facts.to_vec(), tail_policy };
    let before = env.operations();
    let mut payloads = Vec::new();
    let report = replay(env, dir(), &plan, &mut |_, _, _, payload| {
        payloads.push(payload.to_vec());
        Ok(())
    });
    assert_eq!(env.operations(), before, "a replay changes nothing on disk");
    let report = report?;
    assert_eq!(report.records, payloads.len() as u64);
    Ok(Found { payloads, report })
}

fn replayed(env: &MemEnv, facts: &[SegmentFact]) -> Result<Found> {
    replay_with(env, facts, TailPolicy::TruncateUnwitnessed)
}

/// The file's bytes.
fn bytes_of(env: &MemEnv, path: &Path) -> Vec<u8> {
    let file = env.open(path, Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A copy of `env` in which `path` holds `bytes`.
fn with_bytes(env: &MemEnv, path: &Path, bytes: &[u8]) -> MemEnv {
    let copy = env.kill();
    let file = copy.open_rw(path).unwrap();
    file.set_size(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    copy
}

/// That `result` is corruption of `path`; its offset.
fn corruption_at(result: Result<Found>, path: &Path) -> u64 {
    match result {
        Err(Error::Corruption { path: damaged, offset: Some(offset), .. }) if damaged == path => {
            offset
        }
        Err(error) => panic!("not corruption of {}: {error}", path.display()),
        Ok(found) => panic!("opened with {} records", found.payloads.len()),
    }
}
