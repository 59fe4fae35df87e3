//! The engines of this process: the environment's queue, and plain calls from any number of
//! threads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::Value;

use super::target::{Target, noise, stamp};
use super::variant::{Runner, Variant};
use super::{Case, Measured};
use crate::cli::args::device::{DeviceWorkload, Engine};
use crate::cli::bench::data::Stream;
use crate::cli::bench::run::process_cpu;
use crate::cli::environment::report_json;
use crate::cli::failure::{Failure, Result};
use crate::cli::size::to_f64;
use crate::env::{self, Access, Buffer, RandomAccessFile, RandomRwFile, Request, WritePath};
use crate::{Env, IoUringEnv};

/// Threads of the pool at most: beyond this the machine is measured and not the device.
const LARGEST_POOL: u32 = 1024;
/// The range of a ring's entries.
const RING_ENTRIES: (u32, u32) = (8, 4096);
/// Bytes of registered buffers.
const REGISTERED: usize = 16 << 20;
/// How long the poll thread stays awake without work; no run leaves it that long.
const POLL_IDLE: Duration = Duration::from_secs(1);
/// Blocks that each thread remembers to be read back.
const READ_BACK: usize = 64;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) case: Case,
    pub(crate) target: &'a Target,
    /// Of the sectors it writes; no other run has the same.
    pub(crate) generation: u64,
    /// Where the order of offsets comes from.
    pub(crate) order_seed: u64,
    pub(crate) time: Duration,
}

impl Job<'_> {
    fn writes(&self) -> bool {
        self.case.workload == DeviceWorkload::RandWrite
    }

    fn block(&self) -> usize {
        usize::try_from(self.case.block_size).expect("at most 4 MiB by its parser")
    }
}

/// Does the job with an engine of this process.
pub(crate) fn perform(job: &Job<'_>, runner: Runner) -> Result<Measured> {
    let Case { threads, depth, .. } = job.case;
    match runner.engine {
        Engine::Queue => through_queue(job, runner.variant),
        Engine::PreadPool => {
            let pool = depth.saturating_mul(threads).min(LARGEST_POOL).max(threads);
            plain(job, pool)
        }
        Engine::Pread => plain(job, threads),
        Engine::Fio => unreachable!("fio is a program of its own"),
    }
}

fn plain(job: &Job<'_>, threads: u32) -> Result<Measured> {
    let file = job.target.open(job.writes(), job.case.direct)?;
    measure(job, threads, |worker| worker.plain(&file))
}

/// The environment that a case is done on, or why there is none.
pub(crate) fn environment(case: Case, variant: Variant) -> Result<IoUringEnv> {
    let writes = case.workload == DeviceWorkload::RandWrite;
    let mut builder = IoUringEnv::builder()
        .rings(variant.rings.unwrap_or(case.threads) as usize)
        .ring_entries(case.depth.clamp(RING_ENTRIES.0, RING_ENTRIES.1))
        .max_in_flight(case.depth as usize)
        .direct_reads(case.direct)
        .direct_rw(case.direct)
        // Buffered writes in place reach a ring with this choice only.
        .write_path(if writes { WritePath::Reactor } else { WritePath::Caller });
    if variant.registered {
        builder = builder.fixed_buffers(REGISTERED);
    }
    if variant.sqpoll {
        builder = builder.sqpoll(POLL_IDLE).allow_few_cores(true);
    }
    builder = builder.iopoll(variant.iopoll);
    builder.build().map_err(|why| Failure::failed(format!("io_uring cannot be used here: {why}")))
}

/// A file of the environment, opened for what the job does.
#[derive(Clone, Debug)]
enum Opened {
    Read(Arc<dyn RandomAccessFile>),
    Write(Arc<dyn RandomRwFile>),
}

fn through_queue(job: &Job<'_>, variant: Variant) -> Result<Measured> {
    let env = environment(job.case, variant)?;
    let path = job.target.path();
    let fail = |error: env::Error| Failure::failed(error.to_string());
    let file = if job.writes() {
        Opened::Write(env.open_rw(path).map_err(fail)?)
    } else {
        Opened::Read(env.open(path, Access::Random).map_err(fail)?)
    };
    let before = env.report();
    let mut measured = measure(job, job.case.threads, |worker| worker.queue(&env, &file))?;
    let report = env.report().since(&before);
    let counter = |name: &str| report.counters.get(name).copied().unwrap_or(0);
    // What no ring carried was done one after another.
    measured.peak = Some(counter("in_flight_peak").max(1));
    measured.report = report_json(&report);
    Ok(measured)
}

/// Runs the workers together and adds up what they did.
fn measure(
    job: &Job<'_>,
    threads: u32,
    work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
) -> Result<Measured> {
    // Held until all threads are there; false means that one could not be made.
    let gate = RwLock::new(false);
    let mut cpu = Duration::ZERO;
    let workers: Result<Vec<Worker<'_>>> = thread::scope(|scope| {
        let mut go = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut started = Vec::with_capacity(threads as usize);
        for number in 0..threads {
            let (gate, work) = (&gate, &work);
            let run = move || {
                let mut worker = Worker::new(job, number);
                if *gate.read().unwrap_or_else(PoisonError::into_inner) {
                    worker.start = Instant::now();
                    work(&mut worker)?;
                    worker.time = worker.start.elapsed();
                }
                Ok(worker)
            };
            let made = thread::Builder::new().spawn_scoped(scope, run);
            started.push(made.map_err(|error| {
                Failure::failed(format!("thread {number} of {threads} cannot be made: {error}"))
            })?);
        }
        *go = true;
        cpu = process_cpu();
        drop(go);
        started.into_iter().map(|thread| thread.join().expect("workers do not panic")).collect()
    });
    let workers = workers?;
    let cpu = process_cpu().saturating_sub(cpu);
    let mut measured = Measured::new(cpu);
    for worker in &workers {
        measured.ops += worker.ops;
        measured.time = measured.time.max(worker.time);
        measured.latency.add(&worker.latency).expect("the histogram grows as needed");
        measured.mean_depth += worker.waited.as_secs_f64() / worker.time.as_secs_f64().max(1e-9);
        if job.writes() {
            job.target.read_back(&worker.written, job.block(), job.generation)?;
            measured.verified += worker.written.len() as u64;
        } else {
            measured.verified += worker.verified;
        }
    }
    measured.mean_depth /= to_f64(u64::from(job.case.threads));
    Ok(measured)
}

/// One thread of a run.
struct Worker<'a> {
    job: &'a Job<'a>,
    random: Stream,
    start: Instant,
    time: Duration,
    ops: u64,
    verified: u64,
    /// The latencies, summed.
    waited: Duration,
    latency: Histogram<u64>,
    /// Some of the offsets written.
    written: Vec<u64>,
}

impl<'a> Worker<'a> {
    fn new(job: &'a Job<'a>, number: u32) -> Self {
        let seed = job.order_seed.wrapping_add(u64::from(number) << 32);
        Self {
            job,
            random: Stream::new(seed),
            start: Instant::now(),
            time: Duration::ZERO,
            ops: 0,
            verified: 0,
            waited: Duration::ZERO,
            latency: super::histogram(),
            written: Vec::with_capacity(READ_BACK),
        }
    }

    fn offset(&mut self) -> u64 {
        let block = self.job.case.block_size;
        self.random.below(self.job.target.size() / block) * block
    }

    fn time_is_up(&self) -> bool {
        self.start.elapsed() >= self.job.time
    }

    /// Counts an operation at `offset` and looks at what it read.
    fn done(&mut self, offset: u64, took: Duration, block: &[u8]) -> Result<()> {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.record(nanoseconds).expect("the histogram grows as needed");
        self.waited += took;
        self.ops += 1;
        if self.job.writes() {
            if self.written.len() < READ_BACK {
                self.written.push(offset);
            }
            return Ok(());
        }
        self.job.target.check(block, offset)?;
        self.verified += u64::from(self.job.target.can_be_checked());
        Ok(())
    }

    /// One call after another.
    fn plain(&mut self, file: &File) -> Result<()> {
        let mut block = noise(self.job.block());
        // At least one operation, however short the run.
        while self.ops == 0 || !self.time_is_up() {
            let offset = self.offset();
            let bytes = block.as_mut_slice();
            let begun;
            let result = if self.job.writes() {
                stamp(bytes, offset, self.job.generation);
                begun = Instant::now();
                file.write_all_at(bytes, offset)
            } else {
                begun = Instant::now();
                file.read_exact_at(bytes, offset)
            };
            let took = begun.elapsed();
            result.map_err(|error| {
                let name = self.job.case.workload.name();
                Failure::file(name, self.job.target.path(), &error)
            })?;
            self.done(offset, took, &block)?;
        }
        Ok(())
    }

    /// As many operations in a queue as the depth says, each replaced when it is done.
    fn queue(&mut self, env: &IoUringEnv, file: &Opened) -> Result<()> {
        let mut queue = env.queue();
        let depth = self.job.case.depth as usize;
        let mut under_way = Vec::with_capacity(depth);
        for tag in 0..depth {
            let buffer = self.job.writes().then(|| noise(self.job.block()));
            let (offset, request) = self.request(file, buffer);
            under_way.push((offset, Instant::now()));
            queue.push(tag as u64, request);
        }
        while let Some(completion) = queue.pop() {
            let tag = usize::try_from(completion.tag).expect("tags are positions");
            let (offset, begun) = under_way[tag];
            let took = begun.elapsed();
            let buffer = completion.result.map_err(|error| Failure::failed(error.to_string()))?;
            self.done(offset, took, &buffer)?;
            if !self.time_is_up() {
                let buffer = self.job.writes().then_some(buffer);
                let (offset, request) = self.request(file, buffer);
                under_way[tag] = (offset, Instant::now());
                queue.push(completion.tag, request);
            }
        }
        Ok(())
    }

    fn request(&mut self, file: &Opened, buffer: Option<Buffer>) -> (u64, Request) {
        let offset = self.offset();
        let request = match file {
            Opened::Read(file) => {
                Request::Read { file: Arc::clone(file), offset, len: self.job.block() }
            }
            Opened::Write(file) => {
                let mut data = buffer.unwrap_or_else(|| noise(self.job.block()));
                stamp(data.as_mut_slice(), offset, self.job.generation);
                Request::Write { file: Arc::clone(file), offset, data }
            }
        };
        (offset, request)
    }
}

impl Measured {
    fn new(cpu: Duration) -> Self {
        Self {
            ops: 0,
            verified: 0,
            time: Duration::ZERO,
            cpu,
            mean_depth: 0.0,
            peak: None,
            latency: super::histogram(),
            report: Value::Null,
        }
    }
}
