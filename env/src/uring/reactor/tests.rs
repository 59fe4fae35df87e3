//! The reactor over scripted rings: what a kernel does seldom, on order and every time.
//!
//! Here the machine has no thread: a test turns it by hand, so that nothing depends on who gets
//! the processor. What needs the thread is in `threads`.

use std::ops::Deref;
use std::path::PathBuf;

use tempfile::TempDir;

use super::HANDED as BLOCK;
use super::machine::Machine;
use super::*;
use crate::posix::PosixEnv;
use crate::sys::KernelSys;
use crate::sys::scripted::{Call, Fault, ScriptedSys, When};
use crate::uring::scripted::{Answer, Entered, ScriptedRing, Seen, assert_leaked};
use crate::{Error, ErrorKind, FileKind, Outcome, WritableFile};

mod ahead;
mod dying;
mod early;
mod faults;
mod flow;
mod threads;

/// How tables are written by default.
const AUTO: Manner =
    Manner { depth: PER_TABLE, shortest: SHORTEST, waits: false, rests: false, early_sync: None };
/// How logs are written where everything goes through the reactor.
const WAITS: Manner = Manner { depth: 1, shortest: 0, waits: true, rests: false, early_sync: None };

/// A directory and scripted system calls.
struct Stage {
    dir: TempDir,
    sys: Arc<ScriptedSys>,
    os: Arc<Os>,
    env: PosixEnv,
    breaker: Breaker,
    seen: Arc<Mutex<Seen>>,
}

impl Stage {
    fn new() -> Self {
        let sys = ScriptedSys::new(Arc::new(KernelSys));
        let os = Os::new(Arc::clone(&sys) as _);
        let env = PosixEnv::with_os(Arc::clone(&os), PosixEnv::builder()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Self { dir, sys, os, env, breaker: Breaker::default(), seen: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn count(&self, count: Count) -> u64 {
        self.os.counters.get(count)
    }

    fn create(
        &self,
        reactor: &Arc<Reactor>,
        name: &str,
        kind: FileKind,
        manner: Manner,
    ) -> crate::Result<Box<dyn WritableFile>> {
        let outlet = |file: &Arc<_>| Some(Box::new(Handover::new(reactor, file, manner)) as _);
        self.env.create_through(&self.path(name), kind, outlet)
    }
}

/// A reactor without a thread, and its machine.
struct Bench {
    stage: Stage,
    reactor: Arc<Reactor>,
    machine: Machine,
}

impl Deref for Bench {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Bench {
    /// A bench whose rings are made by `make`.
    fn new(make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static) -> Self {
        Self::with(64, 64 << 20, make)
    }

    fn with(
        entries: usize,
        budget: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static,
    ) -> Self {
        Self::of_rings(entries, budget, usize::MAX, make)
    }

    /// A bench with so many rings in all.
    fn of_rings(
        entries: usize,
        budget: usize,
        rings: usize,
        make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static,
    ) -> Self {
        let stage = Stage::new();
        let reactor = Reactor::without_thread(&stage.os, &stage.breaker, budget).unwrap();
        reactor.life.alive.store(true, Ordering::Release);
        let (for_rings, mut left) = (Arc::clone(&stage.seen), rings);
        let make = move || {
            left = left.checked_sub(1).ok_or(SetupError::Setup(libc::ENOMEM))?;
            let ring = make(ScriptedRing::new(entries).seen_by(&for_rings));
            Ok(Box::new(ring) as Box<dyn Ring>)
        };
        let machine = Machine::new(&stage.os, &stage.breaker, Box::new(make)).unwrap();
        Self { stage, reactor: Arc::new(reactor), machine }
    }

    fn create(&self, name: &str, kind: FileKind, manner: Manner) -> Box<dyn WritableFile> {
        self.stage.create(&self.reactor, name, kind, manner).unwrap()
    }

    fn table(&self, name: &str) -> Box<dyn WritableFile> {
        self.create(name, FileKind::Table, AUTO)
    }

    /// The same bench with tables written past the page cache.
    fn writing_direct(mut self) -> Self {
        let direct = PosixEnv::builder().direct_writes(true);
        self.stage.env = PosixEnv::with_os(Arc::clone(&self.os), direct).unwrap();
        self
    }

    /// A table on a bench that writes direct, unless the file system does no direct I/O.
    fn direct_table(&self, name: &str, manner: Manner) -> Option<Box<dyn WritableFile>> {
        let created = self.stage.create(&self.reactor, name, FileKind::Table, manner);
        // What a refusal must look like is asserted where direct writes are.
        created.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::Unsupported)).ok()
    }

    /// Writes a table of these bytes, four blocks to a turn of the machine, and looks at it.
    fn write_in_turns(&mut self, name: &str, bytes: &[u8]) {
        self.write_in_turns_as(name, bytes, AUTO);
    }

    fn write_in_turns_as(&mut self, name: &str, bytes: &[u8], manner: Manner) {
        let mut file = self.create(name, FileKind::Table, manner);
        for part in bytes.chunks(4 * BLOCK) {
            file.append(part).unwrap();
            self.turn();
        }
        file.finish().unwrap();
        assert!(self.content(name) == *bytes);
    }

    fn turn(&mut self) {
        self.machine.turn(&self.reactor.inbox);
        assert!(!self.machine.has_offers(), "a thread that waited now would wait for ever");
    }
}

/// Bytes of no period that a block or page could hide.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i % 251) ^ (i / 4096 % 241)).unwrap()).collect()
}

/// So many blocks.
fn blocks(count: usize) -> Vec<u8> {
    pattern(count * BLOCK)
}

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

fn same(one: &Error, other: &Error) -> bool {
    (one.kind(), one.errno(), one.op(), one.offset())
        == (other.kind(), other.errno(), other.op(), other.offset())
}

/// Every later call of a file fails with its first error.
fn assert_dead(mut file: Box<dyn WritableFile>, first: &Error) {
    let handle = file.handle();
    for later in [
        file.append(b"more"),
        file.flush(),
        file.sync(),
        handle.sync(),
        handle.prepare(1 << 30),
        file.finish().map(drop),
    ] {
        let later = later.unwrap_err();
        assert!(same(&later, first), "{later} instead of {first}");
    }
}
