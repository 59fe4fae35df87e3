//! The queue over scripted rings: what a kernel does seldom, on order and every time.
//!
//! The page cache would answer most reads before a ring sees them, so the queues here make no
//! NOWAIT reads, and the files are known to need none, unless a test is about them. Nor are reads
//! merged, though most lie next to each other: what is tested for one entry holds for each.

use std::path::PathBuf;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::{ENTER_BATCH, READY_ASIDE, RingQueue};
use crate::counters::Count;
use crate::os_file::{Latch, Os, OsFile};
use crate::sync::Arc;
use crate::sys::KernelSys;
use crate::sys::scripted::{Call, Fault, ScriptedSys, When};
use crate::uring::breaker::Breaker;
use crate::uring::pool::Pool;
use crate::uring::ring::Ring;
use crate::uring::run::Merging;
use crate::uring::scripted::{Answer, ScriptedRing, Seen};
use crate::uring::{Shared, WritePath};
use crate::{Access, Buffer, IoQueue, RandomAccessFile, Request, Result};

mod asking;
mod direct_writes;
mod errands;
mod faults;
mod limits;
mod lost;
mod merged;
mod nowait;
mod writes;

const UNMERGED: Merging = Merging { gap: 0, limit: 0 };

/// A directory with files of known bytes, scripted system calls, and rings to order.
pub(crate) struct Bench {
    dir: TempDir,
    sys: Arc<ScriptedSys>,
    os: Arc<Os>,
    seen: Arc<Mutex<Seen>>,
}

/// The byte at an offset of every test file; no period is a power of two.
fn byte_at(offset: u64) -> u8 {
    u8::try_from((offset % 251) ^ (offset / 4096 % 241)).expect("two values below 256")
}

fn bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(byte_at).collect()
}

impl Bench {
    fn new() -> Self {
        let sys = ScriptedSys::new(Arc::new(KernelSys));
        let os = Os::new(Arc::clone(&sys) as _);
        Self { dir: tempfile::tempdir().unwrap(), sys, os, seen: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, name: &str, len: usize, direct: bool) -> Arc<dyn RandomAccessFile> {
        let path = self.path(name);
        if !path.exists() {
            std::fs::write(&path, bytes(0, len)).unwrap();
        }
        let file = OsFile::open(&self.os, &path, Access::Random, direct).unwrap();
        Arc::new(file)
    }

    /// A file that is known to do NOWAIT reads, so that its first read is not one.
    fn latched(&self, name: &str, len: usize) -> Arc<dyn RandomAccessFile> {
        let file = self.open(name, len, false);
        let ours = OsFile::of(&*file).unwrap();
        ours.read_nowait(&mut [0], 0, &self.os.counters);
        assert_eq!(ours.nowait_latch(), Latch::Works);
        file
    }

    /// An environment of one ring for each that `make` gives.
    fn shared(
        &self,
        rings: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
    ) -> Arc<Shared> {
        self.shared_of(rings, 256, make)
    }

    fn shared_of(
        &self,
        rings: usize,
        entries: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
    ) -> Arc<Shared> {
        self.shared_by(WritePath::Reactor, rings, entries, make)
    }

    fn shared_by(
        &self,
        write_path: WritePath,
        rings: usize,
        entries: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
    ) -> Arc<Shared> {
        Arc::new(self.shared_values(write_path, rings, entries, make))
    }

    fn shared_values(
        &self,
        write_path: WritePath,
        rings: usize,
        entries: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
    ) -> Shared {
        let seen = Arc::clone(&self.seen);
        let make = move || {
            let ring = make(ScriptedRing::new(entries).seen_by(&seen));
            Ok(Box::new(ring) as Box<dyn Ring>)
        };
        let pool = Pool::new(rings, None, Box::new(make)).unwrap();
        let (os, breaker) = (Arc::clone(&self.os), Breaker::default());
        Shared {
            os,
            pool,
            asking: None,
            breaker,
            max_in_flight: 64,
            nowait: false,
            write_path,
            registered: None,
            merging: UNMERGED,
            reactor: None,
        }
    }

    fn count(&self, count: Count) -> u64 {
        self.os.counters.get(count)
    }
}

fn read(file: &Arc<dyn RandomAccessFile>, offset: u64, len: usize) -> Request {
    Request::Read { file: Arc::clone(file), offset, len }
}

/// Pushes reads of `len` bytes at each offset, pops all, and gives the results in order.
fn read_all(
    shared: &Arc<Shared>,
    file: &Arc<dyn RandomAccessFile>,
    ranges: &[(u64, usize)],
) -> Vec<Result<Buffer>> {
    let mut queue = RingQueue::new(shared);
    for (tag, (offset, len)) in ranges.iter().enumerate() {
        queue.push(tag as u64, read(file, *offset, *len));
    }
    pop_all(&mut queue, ranges.len())
}

/// Pops until nothing is pending; every tag below `count` must come exactly once.
fn pop_all(queue: &mut RingQueue, count: usize) -> Vec<Result<Buffer>> {
    let mut results: Vec<Option<Result<Buffer>>> = (0..count).map(|_| None).collect();
    while let Some(completion) = queue.pop() {
        let place = &mut results[usize::try_from(completion.tag).unwrap()];
        assert!(place.is_none(), "tag {} completed twice", completion.tag);
        *place = Some(completion.result);
    }
    results.into_iter().map(|result| result.expect("every request completes")).collect()
}

fn assert_right(results: &[Result<Buffer>], ranges: &[(u64, usize)]) {
    assert_eq!(results.len(), ranges.len());
    for (result, (offset, len)) in results.iter().zip(ranges) {
        let buffer = result.as_ref().unwrap();
        assert!(**buffer == bytes(*offset, *len)[..], "wrong bytes at {offset}");
    }
}

/// So many pages, one after another.
fn pages(count: u64) -> Vec<(u64, usize)> {
    (0..count).map(|page| (page * 4096, 4096)).collect()
}
