//! One run, in a process of its own: the limit of the memory cgroup, the block cache and the
//! counters then belong to this run alone. `docs/decisions/bench-processes.md` says more.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cgroup;
use super::data::{Data, Stream};
use super::database::{drop_from_cache, options, read_into_cache};
use super::work::{Tally, Work, work};
use crate::cli::args::Workload;
use crate::cli::environment::{EnvName, open_with, report_json};
use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::output::Output;
use crate::cli::size::{human_size, to_f64};
use crate::{Db, Env, Options};

/// Keys looked up before the measurement.
const WARM_UP: u32 = 512;

/// Where the tables are when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// On the device only, and memory is limited.
    Cold,
    /// In the page cache.
    Hot,
}

impl Mode {
    /// The mode's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Hot => "hot",
        }
    }
}

/// What a run is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) workload: Workload,
    pub(crate) env: EnvName,
    pub(crate) mode: Mode,
    pub(crate) threads: u32,
    pub(crate) batch: u32,
    pub(crate) keys: u64,
    pub(crate) value_size: u64,
    /// Where keys and values come from.
    pub(crate) seed: u64,
    /// Where the order of look-ups comes from: the same for every environment of a repeat.
    pub(crate) order_seed: u64,
    pub(crate) seconds: f64,
    pub(crate) block_cache: u64,
    /// The database; for the fills, a directory that does not exist yet.
    pub(crate) database: PathBuf,
    /// The memory limit, or why there is none. Hot runs have none.
    pub(crate) limit: Option<Limit>,
}

/// The memory limit of a cold run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Limit {
    /// Join the cgroup through this file.
    Group { door: PathBuf, version: u8, bytes: u64 },
    /// There is no limit, for this reason.
    None(String),
}

/// The outcome of a run, as in the JSON file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) workload: Workload,
    pub(crate) env: EnvName,
    pub(crate) mode: Mode,
    /// Whether the files are in memory, where a cold run is hot too.
    #[serde(default)]
    pub(crate) in_memory: bool,
    pub(crate) threads: u32,
    pub(crate) batch: u32,
    pub(crate) keys: u64,
    pub(crate) value_size: u64,
    /// Keys asked for or put, rows that had to come.
    pub(crate) requested: u64,
    /// Those of them that came with the right value.
    pub(crate) found: u64,
    /// Calls timed; latencies are of these.
    pub(crate) calls: u64,
    pub(crate) ops_per_sec: f64,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) latency_us: Latency,
    /// The environment's facts, and its counters over the run.
    pub(crate) report: Value,
}

/// Microseconds a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latency {
    fn new(nanoseconds: &Histogram<u64>) -> Self {
        let micros = |value: u64| to_f64(value) / 1e3;
        Self {
            p50: micros(nanoseconds.value_at_quantile(0.5)),
            p99: micros(nanoseconds.value_at_quantile(0.99)),
            p999: micros(nanoseconds.value_at_quantile(0.999)),
            max: micros(nanoseconds.max()),
        }
    }
}

/// Performs the run described on standard input and prints its outcome.
pub(crate) fn child() -> Result {
    // A run without the command that asked for it is of no use, however that one ended.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut text)
        .map_err(|error| Failure::failed(format!("cannot read the run: {error}")))?;
    let spec: Spec = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("not a run as `bench envs` sends it: {error}")))?;
    let run = perform(&spec)?;
    let mut out = Output::new();
    out.json_line(&serde_json::to_value(&run).expect("a run is plain data"))?;
    out.finish()?;
    Ok(Exit::Done)
}

fn perform(spec: &Spec) -> Result<Run> {
    let mut facts = Vec::new();
    if let Some(limit) = &spec.limit {
        facts.push(enter(limit)?);
    }
    let writes = matches!(spec.workload, Workload::Fill | Workload::FillSync);
    if !writes {
        facts.push(set_cache(spec)?);
    }
    let env = spec.env.make()?;
    let create = Options { create_if_missing: writes, ..options(spec.block_cache) };
    let db = open_with(Arc::clone(&env), &spec.database, create)?;
    let data = Data::new(spec.seed, spec.keys, value_size(spec)?);
    if !writes {
        warm_up(&db, data, spec)?;
    }
    let run = measure(spec, &db, &env, data, facts)?;
    db.close()?;
    Ok(run)
}

fn value_size(spec: &Spec) -> Result<usize> {
    usize::try_from(spec.value_size).map_err(|_| Failure::usage("--value-size is too large"))
}

/// Joins the memory cgroup, before anything is read that it should count.
fn enter(limit: &Limit) -> Result<Value> {
    match limit {
        Limit::Group { door, version, bytes } => {
            cgroup::join(door).map_err(|error| Failure::file("join", door, &error))?;
            let value = human_size(*bytes);
            Ok(json!({
                "name": "memory limit", "value": value, "why": format!("cgroup v{version}")
            }))
        }
        Limit::None(why) => Ok(json!({ "name": "memory limit", "value": "none", "why": why })),
    }
}

fn set_cache(spec: &Spec) -> Result<Value> {
    let (verb, moved) = match spec.mode {
        Mode::Cold => ("dropped", drop_from_cache(&spec.database)?),
        Mode::Hot => ("read in", read_into_cache(&spec.database)?),
    };
    let value = format!("{verb}: {} files, {}", moved.files, human_size(moved.bytes));
    Ok(json!({ "name": "page cache", "value": value, "why": null }))
}

/// Opens the tables (their indexes and filters stay in memory) by looking up some keys that the
/// run itself does not choose; one by one, so that the peaks in the report are the run's own.
fn warm_up(db: &Db, data: Data, spec: &Spec) -> Result<()> {
    let mut random = Stream::new(!spec.order_seed);
    for _ in 0..WARM_UP {
        if db.get(data.key(random.below(data.len())))?.is_none() {
            return Err(Failure::failed("a key of the benchmark's database is missing"));
        }
    }
    Ok(())
}

fn measure(spec: &Spec, db: &Db, env: &Arc<dyn Env>, data: Data, facts: Vec<Value>) -> Result<Run> {
    let before = env.report();
    let cpu = process_cpu();
    let tally = work(
        db,
        data,
        &Work {
            workload: spec.workload,
            threads: spec.threads,
            batch: spec.batch as usize,
            order_seed: spec.order_seed,
            time: Duration::from_secs_f64(spec.seconds),
        },
    )?;
    let cpu = process_cpu().saturating_sub(cpu);
    let mut report = report_json(&env.report().since(&before));
    if let Some(all) = report["facts"].as_array_mut() {
        all.extend(facts);
        let cache = human_size(spec.block_cache);
        all.push(json!({ "name": "block cache", "value": cache, "why": null }));
    }
    let Tally { requested, found, time, latency } = tally;
    if requested == 0 {
        return Err(Failure::failed("the run did nothing; give it more --seconds"));
    }
    Ok(Run {
        workload: spec.workload,
        env: spec.env,
        mode: spec.mode,
        in_memory: false,
        threads: spec.threads,
        batch: spec.batch,
        keys: spec.keys,
        value_size: spec.value_size,
        requested,
        found,
        calls: latency.len(),
        ops_per_sec: to_f64(requested) / time.as_secs_f64().max(1e-9),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / to_f64(requested),
        latency_us: Latency::new(&latency),
        report,
    })
}

/// The processor time of all threads of this process, the kernel's work for them included; the
/// same sum as `getrusage` gives, in nanoseconds.
pub(crate) fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("processor time is not negative");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("below a second");
    Duration::new(seconds, nanoseconds)
}
