//! The workloads: what each thread of a run does until time is up.
//!
//! A call is timed alone; choosing keys, and comparing every value with what it must be, is not
//! part of its latency, but of the run's time.

use std::ops::Bound;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;

use super::data::{Data, Key, Stream};
use crate::cli::args::Workload;
use crate::cli::failure::{Failure, Result};
use crate::{Db, Durability, Range, WriteBatch, WriteOptions};

/// Rows a scan takes in one timed call.
const SCAN_ROWS: usize = 1000;
/// Entries of a fill that are read back afterwards.
const READ_BACK: u64 = 2000;

/// What a run's threads do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) workload: Workload,
    pub(crate) threads: u32,
    pub(crate) batch: usize,
    pub(crate) order_seed: u64,
    pub(crate) time: Duration,
}

/// What they did.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Keys asked for or put, rows that had to come.
    pub(crate) requested: u64,
    /// Those of them that came with the right value, or were acknowledged and read back.
    pub(crate) found: u64,
    /// From the common start until the last thread ended.
    pub(crate) time: Duration,
    /// Nanoseconds of each call.
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    fn new() -> Self {
        let latency = Histogram::new(3).expect("three figures are within the library's range");
        Self { requested: 0, found: 0, time: Duration::ZERO, latency }
    }

    fn add(&mut self, other: &Self) {
        self.requested += other.requested;
        self.found += other.found;
        self.time = self.time.max(other.time);
        self.latency.add(&other.latency).expect("the histogram grows as needed");
    }

    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = call();
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latency.record(nanoseconds).expect("the histogram grows as needed");
        answer
    }
}

/// Runs the threads. An error or a wrong value in any of them is the run's error.
pub(crate) fn work(db: &Db, data: Data, work: &Work) -> Result<Tally> {
    let barrier = Barrier::new(work.threads as usize);
    let tallies: Vec<Result<Tally>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..work.threads)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut worker = Worker::new(db, data, work, number);
                    barrier.wait();
                    worker.run()?;
                    Ok(worker.tally)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("workers do not panic")).collect()
    });
    let mut total = Tally::new();
    let mut each = Vec::with_capacity(tallies.len());
    for tally in tallies {
        let tally = tally?;
        each.push(tally.requested);
        total.add(&tally);
    }
    if matches!(work.workload, Workload::Fill | Workload::FillSync) {
        total.found -= missing_after_fill(db, data, &each, work.order_seed)?;
    }
    Ok(total)
}

struct Worker<'a> {
    db: &'a Db,
    data: Data,
    work: &'a Work,
    number: u32,
    random: Stream,
    tally: Tally,
    deadline: Instant,
    /// The share of the key space that this thread scans, and the rows in it.
    share: (Key, Option<Key>, u64),
}

impl<'a> Worker<'a> {
    fn new(db: &'a Db, data: Data, work: &'a Work, number: u32) -> Self {
        let random = Stream::new(work.order_seed.wrapping_add(u64::from(number) << 32));
        let deadline = Instant::now();
        let share = data.part(number, work.threads);
        Self { db, data, work, number, random, tally: Tally::new(), deadline, share }
    }

    fn run(&mut self) -> Result<()> {
        let start = Instant::now();
        self.deadline = start + self.work.time;
        match self.work.workload {
            Workload::Fill => self.fill(Durability::Flushed)?,
            Workload::FillSync => self.fill(Durability::Synced)?,
            Workload::Get => self.get()?,
            Workload::MultiGet => self.multi_get()?,
            Workload::Scan => self.scan()?,
        }
        self.tally.time = start.elapsed();
        Ok(())
    }

    fn time_is_up(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn get(&mut self) -> Result<()> {
        while !self.time_is_up() {
            let index = self.random.below(self.data.len());
            let key = self.data.key(index);
            let value = self.tally.call(|| self.db.get(key))?;
            self.check(index, value.as_deref())?;
        }
        Ok(())
    }

    fn multi_get(&mut self) -> Result<()> {
        let mut indexes = Vec::with_capacity(self.work.batch);
        let mut keys: Vec<Key> = Vec::with_capacity(self.work.batch);
        while !self.time_is_up() {
            indexes.clear();
            indexes.extend((0..self.work.batch).map(|_| self.random.below(self.data.len())));
            keys.clear();
            keys.extend(indexes.iter().map(|&index| self.data.key(index)));
            let values = self.tally.call(|| self.db.multi_get(&keys));
            if values.len() != keys.len() {
                return Err(Failure::failed("a multi_get gave too many or too few answers"));
            }
            for (&index, value) in indexes.iter().zip(values) {
                self.check(index, value?.as_deref())?;
            }
        }
        Ok(())
    }

    /// Passes over this thread's share of the keys, one after another until time is up.
    fn scan(&mut self) -> Result<()> {
        let (begin, end, expected) = self.share;
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        if expected == 0 {
            return Ok(());
        }
        while !self.time_is_up() {
            let mut rows = self.db.range::<Key>((Bound::Included(begin), end));
            let mut seen = 0;
            let mut last = None;
            loop {
                let taken = self.tally.call(|| take(&mut rows))?;
                for (key, value) in &taken {
                    let Some(index) = self.data.index(key) else {
                        return Err(wrong(key, "was never put"));
                    };
                    if last.as_ref().is_some_and(|last| last >= key) {
                        return Err(wrong(key, "came out of order"));
                    }
                    last = Some(key.clone());
                    self.check(index, Some(value))?;
                }
                seen += taken.len() as u64;
                if taken.len() < SCAN_ROWS {
                    // A whole pass: rows that did not come count as asked for and not found.
                    self.tally.requested += expected.saturating_sub(seen);
                    break;
                }
                if self.time_is_up() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Puts every n-th key, so that the threads together put each once.
    fn fill(&mut self, durability: Durability) -> Result<()> {
        let options = WriteOptions { durability: Some(durability) };
        let mut value = Vec::new();
        let mut index = u64::from(self.number);
        while index < self.data.len() && !self.time_is_up() {
            let key = self.data.key(index);
            self.data.value(index, &mut value);
            self.tally.call(|| {
                let mut batch = WriteBatch::new();
                batch.put(key, &value);
                self.db.write_opt(batch, &options)
            })?;
            self.tally.requested += 1;
            self.tally.found += 1;
            index += u64::from(self.work.threads);
        }
        Ok(())
    }

    fn check(&mut self, index: u64, value: Option<&[u8]>) -> Result<()> {
        self.tally.requested += 1;
        if let Some(value) = value {
            if !self.data.is_value(index, value) {
                return Err(wrong(&self.data.key(index), "has a wrong value"));
            }
            self.tally.found += 1;
        }
        Ok(())
    }
}

fn take(rows: &mut Range) -> crate::Result<Vec<(Bytes, Bytes)>> {
    rows.take(SCAN_ROWS).collect()
}

fn wrong(key: &[u8], what: &str) -> Failure {
    Failure::Damaged(format!("key {} {what}", key.escape_ascii()))
}

/// Reads some of what a fill put and counts what is not there. `puts` are the threads' numbers of
/// puts; thread `t` of `n` put the keys `t`, `t + n`, `t + 2n`, ...
fn missing_after_fill(db: &Db, data: Data, puts: &[u64], seed: u64) -> Result<u64> {
    let mut random = Stream::new(seed);
    let mut missing = 0;
    for (number, &put) in (0..).zip(puts) {
        for _ in 0..READ_BACK.min(put) {
            let index = number + random.below(put) * puts.len() as u64;
            match db.get(data.key(index))? {
                Some(value) if data.is_value(index, &value) => {}
                Some(_) => return Err(wrong(&data.key(index), "has a wrong value")),
                None => missing += 1,
            }
        }
    }
    Ok(missing.min(puts.iter().sum()))
}
