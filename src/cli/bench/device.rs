//! `bench device`: random reads and writes straight on a file, through the environment's queue,
//! beside plain calls and fio.

mod engine;
mod fio;
mod report;
mod target;
mod variant;

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};

use self::engine::Job;
use self::fio::Fio;
use self::target::{Origin, Target};
use self::variant::{Runner, Variant};
use super::{machine, progress, write_report};
use crate::cli::args::device::{BenchDevice, DeviceWorkload, Engine, Preset};
use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::new_file::NewFile;
use crate::cli::output::{Output, note};
use crate::cli::size::{human_size, to_f64};

/// One combination of the options: what the engines are compared on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) workload: DeviceWorkload,
    pub(crate) block_size: u64,
    pub(crate) depth: u32,
    pub(crate) threads: u32,
    pub(crate) direct: bool,
}

/// What an engine of this process did.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) ops: u64,
    /// Operations whose bytes were looked at.
    pub(crate) verified: u64,
    /// Of the thread that took longest.
    pub(crate) time: Duration,
    pub(crate) cpu: Duration,
    /// Operations under way on average, for each thread of the case.
    pub(crate) mean_depth: f64,
    /// The most that were in flight at once, where something counts it.
    pub(crate) peak: Option<u64>,
    /// Nanoseconds of each operation.
    pub(crate) latency: Histogram<u64>,
    pub(crate) report: Value,
}

/// The outcome of a run, as in the JSON file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) workload: DeviceWorkload,
    pub(crate) engine: Engine,
    /// Of the queue only.
    pub(crate) options: Option<Variant>,
    pub(crate) block_size: u64,
    /// What was asked for.
    pub(crate) depth: u32,
    /// What was reached: `mean_depth`, and for the queue no more than the peak of its environment.
    pub(crate) achieved_depth: f64,
    /// Operations under way on average, by Little's law, for each thread.
    pub(crate) mean_depth: f64,
    pub(crate) threads: u32,
    pub(crate) direct: bool,
    pub(crate) repeat: u32,
    pub(crate) ops: u64,
    /// Reads compared, or writes read back; 0 for fio.
    pub(crate) verified: u64,
    pub(crate) ops_per_sec: f64,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) latency_us: Latency,
    /// The environment's facts and counters for the queue; which fio it was.
    pub(crate) report: Value,
}

/// Microseconds from handing an operation over until its result is taken.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) p9999: f64,
    pub(crate) max: f64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three figures are within the library's range")
}

impl Latency {
    fn new(nanoseconds: &Histogram<u64>) -> Self {
        let at = |quantile| to_f64(nanoseconds.value_at_quantile(quantile)) / 1e3;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: to_f64(nanoseconds.max()) / 1e3,
        }
    }
}

impl Run {
    fn new(case: Case, runner: Runner, repeat: u32, measured: Measured) -> Self {
        let Measured { ops, verified, time, cpu, mean_depth, peak, latency, report } = measured;
        Self {
            workload: case.workload,
            engine: runner.engine,
            options: (runner.engine == Engine::Queue).then_some(runner.variant),
            block_size: case.block_size,
            depth: case.depth,
            achieved_depth: peak.map_or(mean_depth, |peak| mean_depth.min(to_f64(peak))),
            mean_depth,
            threads: case.threads,
            direct: case.direct,
            repeat,
            ops,
            verified,
            ops_per_sec: to_f64(ops) / time.as_secs_f64().max(1e-9),
            cpu_us_per_op: cpu.as_secs_f64() * 1e6 / to_f64(ops),
            latency_us: Latency::new(&latency),
            report,
        }
    }

    /// Who did it.
    pub(crate) fn runner(&self) -> Runner {
        Runner { engine: self.engine, variant: self.options.unwrap_or_default() }
    }
}

/// An engine that does not run, in all cases or in some, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) runner: Runner,
    pub(crate) why: String,
}

/// The engines that run, and why the others do not.
struct Engines {
    run: Vec<Runner>,
    fio: Option<Fio>,
    skipped: Vec<Skipped>,
}

/// Runs the command.
pub(crate) fn device(args: &BenchDevice) -> Result {
    let cases = cases(args);
    // Begun before the work, so that a wrong path does not cost the results.
    let json = args.json.as_deref().map(NewFile::replace).transpose()?;
    let engines = Engines::new(args, &cases);
    for skipped in &engines.skipped {
        note(format_args!("{}: skipped: {}", skipped.runner.name(), skipped.why));
    }
    if engines.run.is_empty() {
        return Err(Failure::failed(
            "every engine named by --engines is skipped; pread and pread-pool work everywhere",
        ));
    }
    if args.file.as_ref().is_none_or(|file| !file.exists()) {
        let made = args.file.as_deref().unwrap_or(Path::new("a file"));
        blocks_fit(&cases, made, args.file_size)?;
        note(format_args!("writing a file of {}", human_size(args.file_size)));
    }
    let target = match &args.file {
        Some(file) => Target::named(file, args.file_size)?,
        None => Target::temporary(args.dir.as_deref(), args.file_size)?,
    };
    check(args, &cases, &target)?;
    let mut machine = machine::describe(target.path().parent().unwrap_or(target.path()));
    let runs = run_all(args, &cases, &engines, &target)?;
    machine["file_size"] = json!(target.size());
    machine["file_was_there"] = json!(target.origin() != Origin::New);
    machine["seconds"] = json!(args.seconds);
    machine["seed"] = json!(args.seed);
    let skipped = engines.skipped.iter();
    machine["left_out"] = skipped
        .map(|Skipped { runner, why }| {
            let options = (runner.engine == Engine::Queue).then_some(runner.variant);
            json!({ "engine": runner.engine, "options": options, "why": why })
        })
        .collect();
    finish(&machine, &target, &runs, &engines.skipped, json)?;
    let queue_is_missing =
        engines.skipped.iter().any(|skipped| skipped.runner.engine == Engine::Queue);
    Ok(if queue_is_missing { Exit::No } else { Exit::Done })
}

fn finish(
    machine: &Value,
    target: &Target,
    runs: &[Run],
    skipped: &[Skipped],
    json: Option<NewFile>,
) -> Result<()> {
    write_report(json, machine, runs)?;
    let mut out = Output::new();
    out.line(report::heading(machine, target))?;
    for case in report::cases(runs) {
        out.line("")?;
        out.line(report::case_name(&case))?;
        out.line(report::table(&case))?;
        for line in report::depths(&case).into_iter().chain(report::options(&case)) {
            out.line(line)?;
        }
    }
    for line in report::remarks(machine, target, runs, skipped) {
        out.line(line)?;
    }
    out.finish()
}

impl Engines {
    fn new(args: &BenchDevice, cases: &[Case]) -> Self {
        let mut engines = Self { run: Vec::new(), fio: None, skipped: Vec::new() };
        for runner in Runner::all(args) {
            let why = match runner.engine {
                Engine::Queue => {
                    let cases = cases.iter();
                    let mut made = cases.map(|case| engine::environment(*case, runner.variant));
                    made.find_map(Result::err).map(|why| why.to_string())
                }
                Engine::Fio => match Fio::find(crate::IoUringEnv::new().is_ok()) {
                    Ok(fio) => {
                        engines.fio = Some(fio);
                        None
                    }
                    Err(why) => Some(why),
                },
                Engine::Pread | Engine::PreadPool => None,
            };
            match why {
                Some(why) => engines.skipped.push(Skipped { runner, why }),
                None => engines.run.push(runner),
            }
        }
        engines
    }
}

/// The combinations of the options, reads first: fio writes blocks that no read could be compared
/// with.
fn cases(args: &BenchDevice) -> Vec<Case> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shape = Shape::of(args.preset, u32::try_from(cores).unwrap_or(32));
    let or = |given: &[u32], shape: &[u32]| {
        if given.is_empty() { shape.to_vec() } else { given.to_vec() }
    };
    let mut workloads =
        if args.workloads.is_empty() { shape.workloads } else { args.workloads.clone() };
    workloads.sort_unstable();
    workloads.dedup();
    let blocks = if args.block_size.is_empty() { &shape.block_sizes } else { &args.block_size };
    let mut cases = Vec::new();
    for workload in workloads {
        let direct = match &args.direct[..] {
            [] => vec![workload == DeviceWorkload::RandRead],
            given => given.to_vec(),
        };
        for direct in direct {
            for &block_size in blocks {
                for depth in or(&args.depth, &shape.depths) {
                    for threads in or(&args.threads, &shape.threads) {
                        let case = Case { workload, block_size, depth, threads, direct };
                        if !cases.contains(&case) {
                            cases.push(case);
                        }
                    }
                }
            }
        }
    }
    cases
}

/// What a preset stands for; without one, the defaults.
struct Shape {
    workloads: Vec<DeviceWorkload>,
    block_sizes: Vec<u64>,
    depths: Vec<u32>,
    threads: Vec<u32>,
}

impl Shape {
    fn of(preset: Option<Preset>, cores: u32) -> Self {
        use DeviceWorkload::{RandRead, RandWrite};
        let kib = |sizes: &[u64]| sizes.iter().map(|size| size << 10).collect();
        let one = |block, depth, threads| Self {
            workloads: vec![RandRead],
            block_sizes: kib(&[block]),
            depths: vec![depth],
            threads: vec![threads],
        };
        match preset {
            None => one(4, 32, 1),
            Some(Preset::Garnet) => one(4, 128, cores.saturating_mul(2).min(32)),
            Some(Preset::Ganesha) => one(32, 64, 2),
            Some(Preset::Lmcache) => {
                Self { workloads: vec![RandRead, RandWrite], ..one(64, 64, 1) }
            }
            Some(Preset::Chunks) => Self {
                workloads: vec![RandRead],
                block_sizes: kib(&[4, 16, 64]),
                depths: vec![8, 32, 128],
                threads: vec![1, 2, 4],
            },
        }
    }
}

/// Refuses what would destroy a file of somebody else, and blocks that do not fit.
fn check(args: &BenchDevice, cases: &[Case], target: &Target) -> Result<()> {
    let writes = cases.iter().any(|case| case.workload == DeviceWorkload::RandWrite);
    if writes && target.origin() == Origin::Foreign && !args.overwrite {
        return Err(Failure::usage(format!(
            "{} was not made by this benchmark, and randwrite would destroy what is in it\n  \
             name a file that is not there, or allow it with --overwrite",
            target.path().display()
        )));
    }
    blocks_fit(cases, target.path(), target.size())
}

/// Whether a file of `size` bytes has room for a block of each case.
fn blocks_fit(cases: &[Case], path: &Path, size: u64) -> Result<()> {
    let largest = cases.iter().map(|case| case.block_size).max().unwrap_or(0);
    if largest <= size {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--block-size {} does not fit {} of {}: it must be at most the file's size",
        human_size(largest),
        path.display(),
        human_size(size)
    )))
}

/// All runs, the engines taking turns within each repeat; who goes first changes from repeat to
/// repeat.
fn run_all(
    args: &BenchDevice,
    cases: &[Case],
    engines: &Engines,
    target: &Target,
) -> Result<Vec<Run>> {
    let total = cases.len() as u64 * u64::from(args.repeat) * engines.run.len() as u64;
    let progress = progress(total);
    let mut runs = Vec::new();
    let done = all_turns(args, cases, engines, |case, runner, repeat| {
        progress.set_message(format!("{} {}", case.workload.name(), runner.name()));
        let job = Job {
            case,
            target,
            generation: runs.len() as u64 + 1,
            // Of each run its own: what one read is in nobody's cache for the next.
            order_seed: args.seed ^ (runs.len() as u64 + 1) << 40,
            time: Duration::from_secs_f64(args.seconds),
        };
        runs.push(run_one(&job, runner, repeat, engines.fio.as_ref())?);
        progress.inc(1);
        Ok(())
    });
    let fio_wrote = runs
        .iter()
        .any(|run: &Run| run.engine == Engine::Fio && run.workload == DeviceWorkload::RandWrite);
    // Also after an error: the next call has to know the file again.
    let restored = if fio_wrote { target.restore() } else { Ok(()) };
    ProgressBar::finish_and_clear(&progress);
    done.and(restored)?;
    Ok(runs)
}

fn all_turns(
    args: &BenchDevice,
    cases: &[Case],
    engines: &Engines,
    mut run: impl FnMut(Case, Runner, u32) -> Result<()>,
) -> Result<()> {
    let count = engines.run.len();
    for &case in cases {
        for repeat in 0..args.repeat {
            for turn in 0..count {
                let runner = engines.run[(turn + repeat as usize) % count];
                run(case, runner, repeat)?;
            }
        }
    }
    Ok(())
}

fn run_one(job: &Job<'_>, runner: Runner, repeat: u32, fio: Option<&Fio>) -> Result<Run> {
    job.target.drop_from_cache()?;
    let run = match fio.filter(|_| runner.engine == Engine::Fio) {
        Some(fio) => fio.perform(job, repeat)?,
        None => Run::new(job.case, runner, repeat, engine::perform(job, runner)?),
    };
    if job.case.workload == DeviceWorkload::RandWrite {
        // The next run does not pay for what this one left in memory.
        job.target.drop_from_cache()?;
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Bench, Cli, Command};

    fn parse(line: &str) -> BenchDevice {
        let line = format!("treering bench device {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Bench(Bench::Device(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_are_swept_reads_come_first_and_only_reads_are_direct() {
        let cases = cases(&parse(
            "--workloads randwrite,randread --block-size 4KiB,64KiB --depth 1,8 --threads 2",
        ));
        assert_eq!(cases.len(), 8);
        assert!(cases[..4].iter().all(|c| c.workload == DeviceWorkload::RandRead && c.direct));
        assert!(cases[4..].iter().all(|c| c.workload == DeviceWorkload::RandWrite && !c.direct));
        assert!(cases.iter().all(|case| case.threads == 2));
        let both = super::cases(&parse("--direct true,false --depth 4,4"));
        assert_eq!(both.iter().map(|case| case.direct).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn what_is_given_beside_a_preset_wins_over_its_shape() {
        let ganesha = cases(&parse("--preset ganesha --depth 8"));
        let expected = Case {
            workload: DeviceWorkload::RandRead,
            block_size: 32 << 10,
            depth: 8,
            threads: 2,
            direct: true,
        };
        assert_eq!(ganesha, [expected]);
        assert_eq!(cases(&parse("--preset chunks")).len(), 27);
        assert_eq!(cases(&parse("--preset lmcache")).len(), 2);
        assert_eq!(Shape::of(Some(Preset::Garnet), 4).threads, [8]);
        assert_eq!(Shape::of(Some(Preset::Garnet), 100).threads, [32]);
    }

    #[test]
    fn what_the_queue_does_is_no_deeper_than_its_peak() {
        let case = cases(&parse("--workloads randwrite --direct true"))[0];
        let measured = Measured {
            ops: 10,
            verified: 10,
            time: Duration::from_secs(1),
            cpu: Duration::from_micros(50),
            mean_depth: 31.5,
            peak: Some(12),
            latency: histogram(),
            report: Value::Null,
        };
        let run = Run::new(case, Runner::plain(Engine::Queue), 0, measured);
        assert!((run.achieved_depth - 12.0).abs() < 1e-9, "{run:?}");
        assert!((run.cpu_us_per_op - 5.0).abs() < 1e-9, "{run:?}");
    }
}
