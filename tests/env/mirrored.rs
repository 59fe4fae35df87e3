//! Two environments side by side under one random sequence of operations (ENV-14).
//!
//! Each round changes some files and then reads through one queue of 1 to 300 requests over up to
//! 50 files: doubles, neighbours, ends of files, ranges past the end, writes in place. The mirror
//! compares every answer and panics at the first difference. `TREERING_MIRROR_ROUNDS` sets how
//! many rounds are run, `TREERING_MIRROR_SEED` repeats a run.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_env::{
    Access, BatchReads, Buffer, Env, ErrorKind, FileKind, IoQueue, MemEnv, MirrorEnv, PosixEnv,
    RandomAccessFile, RandomRwFile, Request,
};

use crate::scratch::Scratch;

/// Where one side keeps its files, and whether they are on a disk whose cache can be dropped.
pub(crate) struct Side {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) root: PathBuf,
    pub(crate) on_disk: bool,
}

struct Run {
    seed: u64,
    random: StdRng,
    mirror: MirrorEnv,
    evict: Vec<PathBuf>,
    files: Vec<Arc<dyn RandomAccessFile>>,
    in_place: Vec<Arc<dyn RandomRwFile>>,
    created: u32,
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {value}")))
}

/// A different number in every process.
fn any_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// Runs `rounds` rounds, or as many as the environment variable says.
pub(crate) fn run(rounds: u64, sides: [Side; 2]) {
    let rounds = setting("TREERING_MIRROR_ROUNDS").unwrap_or(rounds);
    let seed = setting("TREERING_MIRROR_SEED").unwrap_or_else(any_seed);
    println!("TREERING_MIRROR_SEED={seed} TREERING_MIRROR_ROUNDS={rounds}");
    let evict = sides.iter().filter(|s| s.on_disk).map(|s| s.root.clone()).collect();
    let [first, second] = sides.map(|side| (side.env, side.root));
    let mut run = Run {
        seed,
        random: StdRng::seed_from_u64(seed),
        mirror: MirrorEnv::new(first, second),
        evict,
        files: Vec::new(),
        in_place: Vec::new(),
        created: 0,
    };
    let mut served = 0;
    for round in 0..rounds {
        for _ in 0..run.random.random_range(0..4) {
            run.change();
        }
        run.evict_some();
        served += run.queue(round);
    }
    assert!(served > 0, "seed {seed}: no request was ever made");
}

impl Run {
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.random.random_range(0..=most);
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes[..]);
        bytes
    }

    fn change(&mut self) {
        match self.random.random_range(0..10) {
            0..5 => self.write_a_file(),
            5 => self.write_in_place(),
            6 => self.rename_one(),
            7 => self.remove_one(),
            8 => self.look_around(),
            _ => self.reopen_one(),
        }
    }

    fn write_a_file(&mut self) {
        self.created += 1;
        let name = PathBuf::from(format!("{:06}", self.created));
        let kinds = [FileKind::Log, FileKind::Manifest, FileKind::Table, FileKind::Other];
        let kind = kinds[self.random.random_range(0..4)];
        let mut file = self.mirror.create(&name, kind).unwrap();
        let handle = file.handle();
        for _ in 0..self.random.random_range(0..8) {
            let bytes = self.bytes(40_000);
            file.append(&bytes).unwrap();
            match self.random.random_range(0..5) {
                0 => file.flush().unwrap(),
                1 => file.sync().unwrap(),
                2 => handle.prepare(file.len() + self.random.random_range(0..50_000)).unwrap(),
                _ => {}
            }
        }
        file.finish().unwrap();
        let access = [Access::Random, Access::Sequential][self.random.random_range(0..2)];
        let file = self.mirror.open(&name, access).unwrap();
        if self.files.len() < 40 {
            self.files.push(file);
        } else {
            let at = self.random.random_range(0..self.files.len());
            self.files[at] = file;
        }
    }

    fn write_in_place(&mut self) {
        if self.in_place.len() < 10 {
            let name = PathBuf::from(format!("rw{}", self.in_place.len()));
            self.in_place.push(self.mirror.open_rw(&name).unwrap());
        }
        let at = self.random.random_range(0..self.in_place.len());
        let bytes = self.bytes(20_000);
        let offset = self.random.random_range(0..60_000);
        let file = &self.in_place[at];
        match self.random.random_range(0..6) {
            0 => file.set_size(offset).unwrap(),
            1 => file.sync().unwrap(),
            _ => file.write_all_at(&bytes, offset).unwrap(),
        }
    }

    /// Any two names, there or not: what must agree is the outcome.
    fn rename_one(&mut self) {
        let mut name =
            || PathBuf::from(format!("{:06}", self.random.random_range(0..=self.created)));
        let (from, to) = (name(), name());
        if self.random.random_range(0..2) == 0 {
            drop(self.mirror.rename(&from, &to));
        } else {
            drop(self.mirror.link(&from, &to));
        }
    }

    fn remove_one(&mut self) {
        let name = format!("{:06}", self.random.random_range(0..=self.created));
        drop(self.mirror.remove(Path::new(&name)));
        self.mirror.sync_dir(Path::new("")).unwrap();
    }

    fn look_around(&mut self) {
        for entry in self.mirror.list(Path::new("")).unwrap() {
            let found = self.mirror.metadata(Path::new(&entry.name)).unwrap();
            assert!(found.is_some(), "seed {}: {entry:?} is listed", self.seed);
        }
    }

    fn reopen_one(&mut self) {
        let name = format!("{:06}", self.random.random_range(0..=self.created));
        if let Ok(file) = self.mirror.open(Path::new(&name), Access::Random) {
            self.files.push(file);
            if self.files.len() > 40 {
                let at = self.random.random_range(0..self.files.len());
                self.files.swap_remove(at);
            }
        }
    }

    /// Drops some files from the page cache, so that reads have to wait for the device.
    fn evict_some(&mut self) {
        for root in self.evict.clone() {
            let mut entries: Vec<PathBuf> =
                std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
            entries.sort();
            for path in entries {
                if self.random.random_range(0..3) > 0 {
                    evict(&path);
                }
            }
        }
    }

    /// One queue, pushed and popped in random turns. Returns the number of requests.
    fn queue(&mut self, round: u64) -> u64 {
        let requests = self.random.random_range(1..=300);
        let mut queue = self.mirror.queue();
        let mut pending = BTreeSet::new();
        let mut last = (0, 4096);
        let mut writing = BTreeSet::new();
        for tag in 0..requests {
            let Some(request) = self.request(&mut last, &mut writing) else { continue };
            pending.insert(tag);
            queue.push(tag, request);
            if self.random.random_range(0..4) == 0 {
                self.pop(&mut *queue, &mut pending, round);
            }
        }
        while !pending.is_empty() {
            self.pop(&mut *queue, &mut pending, round);
        }
        assert!(queue.pop().is_none(), "seed {}, round {round}: one too many", self.seed);
        requests
    }

    fn pop(&self, queue: &mut dyn IoQueue, pending: &mut BTreeSet<u64>, round: u64) {
        let seed = self.seed;
        let Some(completion) = queue.pop() else {
            assert!(pending.is_empty(), "seed {seed}, round {round}: lost {pending:?}");
            return;
        };
        let tag = completion.tag;
        assert!(pending.remove(&tag), "seed {seed}, round {round}: tag {tag} was not pending");
        if let Err(error) = completion.result {
            let kind = error.kind();
            assert_eq!(kind, ErrorKind::UnexpectedEof, "seed {seed}, round {round}: {error}");
        }
    }

    /// A random request. A file in place is either read or written by one queue, and written at
    /// disjoint ranges, since requests are not ordered.
    fn request(
        &mut self,
        last: &mut (u64, usize),
        writing: &mut BTreeSet<(usize, u64)>,
    ) -> Option<Request> {
        if !self.in_place.is_empty() && self.random.random_range(0..10) == 0 {
            let at = self.random.random_range(0..self.in_place.len());
            let file = Arc::clone(&self.in_place[at]);
            if at % 2 == 1 {
                let offset = self.random.random_range(0..80_000);
                return Some(Request::Read { file, offset, len: 500 });
            }
            let slot = self.random.random_range(0..20_u64);
            let data = Buffer::from(&self.bytes(4096)[..]);
            let free = writing.insert((at, slot));
            return free.then_some(Request::Write { file, offset: slot * 4096, data });
        }
        if self.files.is_empty() {
            return None;
        }
        let at = self.random.random_range(0..self.files.len());
        let file = Arc::clone(&self.files[at]);
        let size = file.size();
        let (offset, len) = match self.random.random_range(0..8) {
            0 => *last,
            1 => (last.0 + last.1 as u64, last.1),
            2 => (size.saturating_sub(self.random.random_range(0..100)), 50),
            3 => (size + self.random.random_range(0..10_000), self.random.random_range(0..9)),
            4 => (self.random.random_range(0..=size) / 4096 * 4096, 4096),
            5 => (self.random.random_range(0..=size), 0),
            _ => (self.random.random_range(0..=size), self.random.random_range(0..30_000)),
        };
        *last = (offset, len);
        Some(Request::Read { file, offset, len })
    }
}

/// Writes a file's dirty pages and drops them from the cache. Best effort: on file systems that
/// live in memory it does nothing.
fn evict(path: &Path) {
    let Ok(file) = std::fs::File::open(path) else { return };
    let _ = file.sync_all();
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
}

pub(crate) fn posix(batch_reads: BatchReads, scratch: &Scratch) -> Side {
    let env = PosixEnv::builder().batch_reads(batch_reads).build().unwrap();
    Side { env: Arc::new(env), root: scratch.dir(), on_disk: true }
}

#[test]
fn serial_and_prefetching_posix_agree() {
    let scratch = Scratch::new();
    run(60, [posix(BatchReads::Serial, &scratch), posix(BatchReads::Prefetch, &scratch)]);
}

#[test]
fn memory_and_posix_agree() {
    let scratch = Scratch::new();
    let memory = Side { env: Arc::new(MemEnv::new()), root: PathBuf::new(), on_disk: false };
    run(60, [posix(BatchReads::Serial, &scratch), memory]);
}
