//! The workloads, and one turn of one of them. Every value that comes back is compared with what
//! it must be, and every key that was asked for must be found.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::data::{Data, Key, Stream, shuffled};
use crate::failure::{Failure, Result};
use crate::peer::{self, Name, Open, Peer};
use crate::place;

/// Look-ups between two looks at the clock.
const BETWEEN_LOOKS: usize = 8;
/// Keys looked up after opening and before anything is measured, so that tables are open.
const WARM_UP: usize = 512;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Batches of random keys; nothing in memory but indexes and filters.
    ColdMultiget,
    /// Single random keys, likewise.
    ColdGet,
    /// Batches of random keys that are all in the block cache.
    HotMultigetBlockCache,
    /// Batches of random keys that are all in the page cache and not in the block cache.
    HotMultigetPageCache,
    /// Single random keys that are all in the block cache.
    HotGetBlockCache,
    /// Single random keys that are all in the page cache and not in the block cache.
    HotGetPageCache,
    /// All entries in order, from the page cache.
    Scan,
    /// Opening a database that is not in memory, one look-up included.
    Open,
    /// Putting all entries in random order, flushing and compacting.
    Load,
    /// The same in the order of the keys.
    LoadSorted,
}

impl Workload {
    /// The name as on the command line.
    pub fn text(self) -> String {
        self.to_possible_value().expect("no name is hidden").get_name().to_owned()
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Scan => "entries/s",
            Self::Open => "opens/s",
            _ => "keys/s",
        }
    }

    /// Whether the page cache is emptied and memory is limited.
    pub fn is_cold(self) -> bool {
        matches!(self, Self::ColdMultiget | Self::ColdGet | Self::Open)
    }

    /// Whether it builds databases.
    pub fn loads(self) -> bool {
        matches!(self, Self::Load | Self::LoadSorted)
    }

    /// Whether all it reads is in the block cache.
    pub fn in_block_cache(self) -> bool {
        matches!(self, Self::HotMultigetBlockCache | Self::HotGetBlockCache)
    }

    /// Whether `peer` can do it as it is meant.
    pub fn suits(self, peer: Name) -> bool {
        match self {
            Self::Load | Self::LoadSorted => peer.loads(),
            Self::Open => !peer.is_floor(),
            Self::ColdGet | Self::ColdMultiget => true,
            Self::HotMultigetBlockCache | Self::HotGetBlockCache => !peer.is_floor(),
            _ => !peer.is_direct(),
        }
    }

    fn is_batched(self) -> bool {
        matches!(
            self,
            Self::ColdMultiget | Self::HotMultigetBlockCache | Self::HotMultigetPageCache
        )
    }
}

/// What a process is to do, turn by turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub peer: Name,
    pub workload: Workload,
    /// The database; for loads, a directory that holds nothing.
    pub dir: std::path::PathBuf,
    pub seed: u64,
    pub keys: u64,
    pub sizes: String,
    /// Look-ups and scans touch the first so many keys only.
    pub hot: u64,
    pub batch: usize,
    pub threads: usize,
    pub seconds: f64,
    pub cache: usize,
    /// The memory cgroup to join.
    pub door: Option<std::path::PathBuf>,
}

/// The outcome of one turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Units a second.
    pub rate: f64,
    /// Processor time for each, in microseconds, kernel and background threads included.
    pub cpu_us: f64,
    /// Keys asked for or put.
    pub requested: u64,
    /// Those of them that came with the right value.
    pub found: u64,
    /// Of a load: bytes written for each byte put.
    pub amplification: Option<f64>,
}

/// A peer at work in this process.
pub struct Bench {
    pub spec: Spec,
    data: Data,
    peer: Option<Box<dyn Peer>>,
    rings: AtomicU64,
}

impl Bench {
    /// Opens the peer and warms it up as the workload asks for.
    pub fn new(spec: Spec) -> Result<Self> {
        let data = Data::new(spec.seed, spec.keys, spec.sizes.parse()?);
        let mut bench = Self { spec, data, peer: None, rings: AtomicU64::new(0) };
        if bench.spec.workload.loads() {
            return Ok(bench);
        }
        if !bench.spec.workload.is_cold() {
            place::read_into_cache(&bench.spec.dir)?;
        }
        bench.peer = Some(bench.open(&bench.spec.dir)?);
        let warm: Vec<u64> = match bench.spec.workload.in_block_cache() {
            true => (0..bench.spec.hot).collect(),
            false => {
                let mut random = Stream::new(!bench.spec.seed);
                (0..WARM_UP).map(|_| random.below(bench.spec.hot)).collect()
            }
        };
        let mut tally = Tally::default();
        for indexes in warm.chunks(bench.spec.batch) {
            bench.multi_get(indexes, &mut tally)?;
        }
        tally.check()?;
        Ok(bench)
    }

    /// One turn.
    pub fn turn(&mut self, seed: u64) -> Result<Sample> {
        match self.spec.workload {
            Workload::Load | Workload::LoadSorted => return self.load(seed),
            Workload::Open => return self.reopen(seed),
            workload if workload.is_cold() => place::drop_from_cache(&self.spec.dir)?,
            // Again for each turn: a kernel may take back pages that nobody touched meanwhile.
            _ => place::read_into_cache(&self.spec.dir)?,
        }
        let (start, cpu) = (Instant::now(), process_cpu());
        let deadline = start + Duration::from_secs_f64(self.spec.seconds);
        let this = &*self;
        let tally = if this.spec.threads == 1 {
            this.run(Stream::new(seed), deadline)?
        } else {
            thread::scope(|scope| {
                let run = |number: usize| {
                    let random = Stream::new(seed.wrapping_add(number as u64) << 8);
                    scope.spawn(move || this.run(random, deadline))
                };
                let threads: Vec<_> = (0..this.spec.threads).map(run).collect();
                threads.into_iter().try_fold(Tally::default(), |sum, thread| {
                    let tally = thread.join().map_err(|_| Failure::from("a thread panicked"))??;
                    Ok::<_, Failure>(Tally {
                        requested: sum.requested + tally.requested,
                        found: sum.found + tally.found,
                        wrong: sum.wrong + tally.wrong,
                    })
                })
            })?
        };
        tally.check()?;
        Ok(sample(tally.requested, start.elapsed(), process_cpu() - cpu, tally, None))
    }

    /// What is really in use.
    pub fn facts(&self) -> Vec<String> {
        let rings = self.rings.load(Ordering::Relaxed);
        let mut facts = vec![format!("io_uring descriptors in the process: {rings}")];
        facts.extend(self.peer.iter().flat_map(|peer| peer.facts()));
        facts
    }

    /// Closes the peer.
    pub fn close(mut self) -> Result<()> {
        self.peer.take().map_or(Ok(()), Peer::close)
    }

    fn open(&self, dir: &Path) -> Result<Box<dyn Peer>> {
        peer::open(self.spec.peer, Open { dir, cache: self.spec.cache }, &self.data)
    }

    fn run(&self, mut random: Stream, deadline: Instant) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut indexes = vec![0; self.spec.batch];
        while Instant::now() < deadline {
            if self.spec.workload == Workload::Scan {
                self.scan(deadline, &mut tally)?;
            } else if self.spec.workload.is_batched() {
                indexes.fill_with(|| random.below(self.spec.hot));
                self.multi_get(&indexes, &mut tally)?;
            } else {
                for _ in 0..BETWEEN_LOOKS {
                    self.get(random.below(self.spec.hot), &mut tally)?;
                }
            }
        }
        self.count_rings();
        Ok(tally)
    }

    fn count_rings(&self) {
        self.rings.fetch_max(rings_of_this_process(), Ordering::Relaxed);
    }

    fn peer(&self) -> &dyn Peer {
        self.peer.as_deref().expect("it was opened before the first turn")
    }

    fn get(&self, index: u64, tally: &mut Tally) -> Result<()> {
        tally.requested += 1;
        let see = &mut |_, value: Option<&[u8]>| tally.see(&self.data, index, value);
        self.peer().get(&self.data.key(index), see)
    }

    fn multi_get(&self, indexes: &[u64], tally: &mut Tally) -> Result<()> {
        tally.requested += indexes.len() as u64;
        let keys: Vec<Key> = indexes.iter().map(|&index| self.data.key(index)).collect();
        let see = &mut |number: usize, value: Option<&[u8]>| {
            tally.see(&self.data, indexes[number], value);
        };
        self.peer().multi_get(&keys, see)
    }

    fn scan(&self, deadline: Instant, tally: &mut Tally) -> Result<()> {
        let mut index = 0;
        let mut ended = false;
        self.peer().scan(&mut |key, value| {
            tally.requested += 1;
            match *key == self.data.key(index) {
                true => tally.see(&self.data, index, Some(value)),
                false => tally.wrong += 1,
            }
            index += 1;
            ended = index % 1024 == 0 && Instant::now() >= deadline || index == self.spec.hot;
            !ended
        })?;
        // A scan that came to its end too early missed entries.
        tally.requested += if ended { 0 } else { self.spec.hot - index };
        Ok(())
    }

    /// Closes, empties the page cache, opens and looks one key up; as often as time allows.
    fn reopen(&mut self, seed: u64) -> Result<Sample> {
        let mut random = Stream::new(seed);
        let (mut opens, mut tally) = (0, Tally::default());
        let (mut time, mut cpu) = (Duration::ZERO, Duration::ZERO);
        while opens < 3 || time.as_secs_f64() < self.spec.seconds && opens < 100 {
            self.peer.take().map_or(Ok(()), Peer::close)?;
            place::drop_from_cache(&self.spec.dir)?;
            let (start, before) = (Instant::now(), process_cpu());
            self.peer = Some(self.open(&self.spec.dir)?);
            self.get(random.below(self.spec.hot), &mut tally)?;
            time += start.elapsed();
            cpu += process_cpu() - before;
            opens += 1;
            self.count_rings();
        }
        tally.check()?;
        Ok(sample(opens, time, cpu, tally, None))
    }

    /// Builds the database anew in the directory, and reads some of it back.
    fn load(&mut self, seed: u64) -> Result<Sample> {
        let order = match self.spec.workload {
            Workload::LoadSorted => (0..u32::try_from(self.spec.keys)?).collect(),
            _ => shuffled(self.spec.keys, seed),
        };
        let scratch = place::Scratch::new(self.spec.dir.join("load"))?;
        let written = written_by_this_process();
        let (start, cpu) = (Instant::now(), process_cpu());
        let peer = self.open(scratch.path())?;
        peer.load(&self.data, &order)?;
        self.count_rings();
        peer.close()?;
        let (time, cpu) = (start.elapsed(), process_cpu() - cpu);
        let written = written_by_this_process() - written;
        let amplification = written as f64 / self.data.bytes() as f64;
        self.peer = Some(self.open(scratch.path())?);
        let mut tally = Tally::default();
        for index in (0..self.spec.keys).step_by(97) {
            self.get(index, &mut tally)?;
        }
        self.peer.take().map_or(Ok(()), Peer::close)?;
        tally.check()?;
        Ok(sample(self.spec.keys, time, cpu, tally, Some(amplification)))
    }
}

/// Builds a database for the other workloads in `dir`.
pub fn build(name: Name, dir: &Path, data: &Data, seed: u64) -> Result<()> {
    let peer = peer::open(name, Open { dir, cache: 64 << 20 }, data)?;
    peer.load(data, &shuffled(data.len(), seed))?;
    peer.close()
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requested: u64,
    found: u64,
    wrong: u64,
}

impl Tally {
    fn see(&mut self, data: &Data, index: u64, value: Option<&[u8]>) {
        match value {
            Some(value) if data.is_value(index, value) => self.found += 1,
            Some(_) => self.wrong += 1,
            None => {}
        }
    }

    fn check(&self) -> Result<()> {
        if self.wrong == 0 && self.found == self.requested && self.requested > 0 {
            return Ok(());
        }
        let Self { requested, found, wrong } = self;
        Err(format!("of {requested} entries {found} were found, {wrong} came wrong").into())
    }
}

fn sample(
    units: u64,
    time: Duration,
    cpu: Duration,
    tally: Tally,
    amplification: Option<f64>,
) -> Sample {
    Sample {
        rate: units as f64 / time.as_secs_f64().max(1e-9),
        cpu_us: cpu.as_secs_f64() * 1e6 / units as f64,
        requested: tally.requested,
        found: tally.found,
        amplification,
    }
}

fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Descriptors of this process that are rings: a peer that fell back to plain reads has none.
fn rings_of_this_process() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("[io_uring]")).count() as u64
}

/// Bytes this process caused to be written to the disk so far.
fn written_by_this_process() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}
