//! `bench envs`: the same database on each environment, side by side. `bench device` is in a
//! module of its own.

mod cgroup;
mod data;
mod database;
mod device;
mod machine;
mod run;
mod table;
mod work;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

use self::cgroup::MemoryGroup;
use self::data::Data;
use self::database::Place;
use self::run::{Limit, Mode, Run, Spec};
use super::args::{Bench, BenchEnvs, Workload};
use super::environment::EnvName;
use super::failure::{Exit, Failure, Result};
use super::interrupt::{self, Leftover, on_interrupt};
use super::new_file::NewFile;
use super::output::{Output, note, talks_to_a_terminal};
use super::size::human_size;

/// The least memory a cold run gets by default: below this the process itself runs short.
const LEAST_MEMORY: u64 = 48 << 20;

/// Runs a benchmark command.
pub(crate) fn bench(command: &Bench) -> Result {
    match command {
        Bench::Envs(args) => envs(args),
        Bench::Device(args) => device::device(args),
        Bench::Run => run::child(),
    }
}

/// Whether cold runs can be given a memory limit here: the cgroup version, or why not. Makes a
/// group and removes it.
pub(crate) fn memory_group() -> std::result::Result<u8, String> {
    MemoryGroup::create(LEAST_MEMORY).map(|group| group.version().number())
}

fn envs(args: &BenchEnvs) -> Result {
    let settings = Settings::new(args);
    // Begun before the work, so that a wrong path does not cost the results.
    let json = args.json.as_deref().map(NewFile::replace).transpose()?;
    let (available, missing) = available(&args.envs);
    for (env, why) in &missing {
        note(format_args!("{} is left out: {why}", env.name()));
    }
    if available.is_empty() {
        return Err(Failure::failed(
            "there is nothing to compare: every environment named by --envs is left out; \
             posix-serial and posix work everywhere",
        ));
    }
    let place = Place::new(args.dir.as_deref())?;
    // Described before the work, whose own load is not meant.
    let mut machine = machine::describe(place.path());
    let data = Data::new(args.seed, settings.keys, settings.value_size);
    let reads = args.workloads.iter().any(|workload| !writes(*workload));
    let database = if reads {
        let prepared =
            database::prepare(place.path(), args.seed, data, args.value_size, |text| note(text))?;
        Some(prepared)
    } else {
        None
    };
    let bytes = database.as_deref().map_or(Ok(0), database::table_bytes)?;
    let limit = args.memory_limit.unwrap_or_else(|| (bytes / 3).max(LEAST_MEMORY));
    let bench = Comparison { args, settings, place: &place, database, limit };
    let mut runs = bench.run_all(&available)?;
    for run in &mut runs {
        run.in_memory = machine["in_memory"] == true;
    }
    machine["database_bytes"] = json!(bytes);
    machine["memory_limit"] = json!(limit);
    machine["seconds"] = json!(bench.settings.seconds);
    machine["seed"] = json!(args.seed);
    machine["left_out"] =
        missing.iter().map(|(env, why)| json!({ "env": env.name(), "why": why })).collect();
    finish(args, &machine, &runs, bytes, json)?;
    Ok(if missing.is_empty() { Exit::Done } else { Exit::No })
}

fn finish(
    args: &BenchEnvs,
    machine: &Value,
    runs: &[Run],
    bytes: u64,
    json: Option<NewFile>,
) -> Result<()> {
    // First, so that a reader who closes the output early does not cost the report.
    write_report(json, machine, runs)?;
    let mut out = Output::new();
    out.line(table::heading(machine, args, bytes, runs))?;
    out.line(table::table(runs))?;
    for line in table::summary(runs).into_iter().chain(table::remarks(machine, runs)) {
        out.line(line)?;
    }
    out.finish()
}

/// Writes the report to the file of `--json`, if there is one.
fn write_report(json: Option<NewFile>, machine: &Value, runs: &[impl Serialize]) -> Result<()> {
    let Some(mut file) = json else { return Ok(()) };
    let report = json!({ "schema": 1, "machine": machine, "runs": runs });
    file.write(format!("{report:#}\n").as_bytes())?;
    file.finish()
}

fn writes(workload: Workload) -> bool {
    matches!(workload, Workload::Fill | Workload::FillSync)
}

/// The environments that can be made here, and why each of the others cannot.
fn available(asked: &[EnvName]) -> (Vec<EnvName>, Vec<(EnvName, String)>) {
    let (mut available, mut missing) = (Vec::new(), Vec::new());
    for &env in asked {
        if env == EnvName::Mem {
            let why = "each run is a process of its own, in which memory starts empty";
            missing.push((env, why.into()));
        } else {
            match env.make() {
                Ok(_) if available.contains(&env) => {}
                Ok(_) => available.push(env),
                Err(why) => missing.push((env, why.to_string())),
            }
        }
    }
    (available, missing)
}

/// What the arguments leave to `--quick`.
#[derive(Clone, Copy, Debug)]
struct Settings {
    keys: u64,
    value_size: usize,
    seconds: f64,
    repeat: u32,
}

impl Settings {
    fn new(args: &BenchEnvs) -> Self {
        let (keys, seconds, repeat) =
            if args.quick { (400_000, 0.5, 3) } else { (4_000_000, 5.0, 5) };
        let keys = args.keys.unwrap_or(keys);
        Self {
            keys,
            value_size: usize::try_from(args.value_size).expect("at most 1 GiB by its parser"),
            seconds: args.seconds.unwrap_or(seconds),
            repeat: args.repeat.unwrap_or(repeat),
        }
    }
}

/// One workload in one mode with one number of threads: what the environments are compared on.
#[derive(Clone, Copy, Debug)]
struct Case {
    workload: Workload,
    mode: Mode,
    threads: u32,
}

struct Comparison<'a> {
    args: &'a BenchEnvs,
    settings: Settings,
    place: &'a Place,
    database: Option<PathBuf>,
    limit: u64,
}

impl Comparison<'_> {
    fn cases(&self) -> Vec<Case> {
        let both = self.args.cold == self.args.hot;
        let mut cases = Vec::new();
        for &workload in &self.args.workloads {
            for mode in [Mode::Cold, Mode::Hot] {
                let asked = match mode {
                    Mode::Cold => !writes(workload) && (both || self.args.cold),
                    Mode::Hot => writes(workload) || both || self.args.hot,
                };
                if asked {
                    let threads = self.args.threads.iter();
                    cases.extend(threads.map(|&threads| Case { workload, mode, threads }));
                }
            }
        }
        cases
    }

    /// All runs, the environments taking turns within each repeat. Who goes first changes from
    /// repeat to repeat, so that nobody always profits from what the one before left behind.
    fn run_all(&self, envs: &[EnvName]) -> Result<Vec<Run>> {
        let cases = self.cases();
        let total = cases.len() * envs.len() * self.settings.repeat as usize;
        let progress = progress(total as u64);
        let mut runs = Vec::with_capacity(total);
        for case in cases {
            for repeat in 0..self.settings.repeat {
                for turn in 0..envs.len() {
                    let env = envs[(turn + repeat as usize) % envs.len()];
                    progress.set_message(format!("{} {}", table::name(case.workload), env.name()));
                    runs.push(self.run_one(case, env, repeat)?);
                    progress.inc(1);
                }
            }
        }
        progress.finish_and_clear();
        Ok(runs)
    }

    fn run_one(&self, case: Case, env: EnvName, repeat: u32) -> Result<Run> {
        let fill = self.place.path().join(format!("treering-bench-fill-{}", std::process::id()));
        let database = match (&self.database, writes(case.workload)) {
            (Some(database), false) => database.clone(),
            _ => fill.clone(),
        };
        let group = (case.mode == Mode::Cold).then(|| MemoryGroup::create(self.limit));
        let limit = group.as_ref().map(|group| match group {
            Ok(group) => Limit::Group {
                door: group.door(),
                version: group.version().number(),
                bytes: self.limit,
            },
            Err(why) => Limit::None(why.clone()),
        });
        let batch = if case.workload == Workload::MultiGet { self.args.batch } else { 1 };
        let spec = Spec {
            workload: case.workload,
            env,
            mode: case.mode,
            threads: case.threads,
            batch,
            keys: self.settings.keys,
            value_size: self.args.value_size,
            seed: self.args.seed,
            order_seed: self.args.seed ^ u64::from(repeat + 1) << 40,
            seconds: self.settings.seconds,
            block_cache: self.args.block_cache,
            database,
            limit,
        };
        let _fill = on_interrupt(Leftover::Tree(fill.clone()));
        let run = in_child(&spec);
        if writes(case.workload) {
            remove(&fill)?;
        }
        let run = run?;
        if run.found != run.requested {
            return Err(Failure::Damaged(format!(
                "{} on {}: {} of {} keys were found",
                table::name(case.workload),
                env.name(),
                run.found,
                run.requested
            )));
        }
        Ok(run)
    }
}

/// Performs a run in a process of its own.
fn in_child(spec: &Spec) -> Result<Run> {
    let what = format!("{} on {}", table::name(spec.workload), spec.env.name());
    let fail = |error: &dyn std::fmt::Display| Failure::failed(format!("{what}: {error}"));
    let program = std::env::current_exe().map_err(|error| fail(&error))?;
    let mut command = Command::new(program);
    command
        .args(["bench", "run"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (mut child, _running) = interrupt::start(&mut command).map_err(|error| fail(&error))?;
    let text = serde_json::to_string(spec).expect("a run's description is plain data");
    let mut stdin = child.stdin.take().expect("the child's standard input is a pipe");
    // A child that ends before reading has said why on its standard error.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| fail(&error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        let said = said.strip_prefix("treering: ").unwrap_or(said);
        let message = format!("{what}: {said} ({})", output.status);
        return Err(match output.status.code() {
            Some(4) => Failure::Damaged(message),
            Some(_) => Failure::Failed(message),
            None => Failure::Failed(format!(
                "{message}\n  if the kernel ended it for want of memory, give a larger \
                 --memory-limit than {}",
                spec_limit(spec)
            )),
        });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| fail(&error))
}

fn spec_limit(spec: &Spec) -> String {
    match &spec.limit {
        Some(Limit::Group { bytes, .. }) => human_size(*bytes),
        _ => "none".to_owned(),
    }
}

fn remove(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    fs::remove_dir_all(dir).map_err(|error| Failure::file("remove", dir, &error))
}

fn progress(runs: u64) -> ProgressBar {
    if !talks_to_a_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} eta {eta}");
    ProgressBar::new(runs).with_style(style.expect("the template is well formed"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command as Line};
    use super::*;

    fn parse(line: &str) -> BenchEnvs {
        let line = format!("treering bench envs {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Line::Bench(Bench::Envs(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn cases(line: &str) -> Vec<(Workload, Mode, u32)> {
        let args = parse(line);
        let settings = Settings::new(&args);
        let place = Place::Kept(PathBuf::new());
        let bench = Comparison { args: &args, settings, place: &place, database: None, limit: 0 };
        bench.cases().iter().map(|case| (case.workload, case.mode, case.threads)).collect()
    }

    #[test]
    fn reading_is_cold_and_hot_unless_one_is_asked_for_and_filling_is_hot() {
        let (fill, get) = (Workload::Fill, Workload::Get);
        let (cold, hot) = (Mode::Cold, Mode::Hot);
        let both = "--workloads fill,get";
        assert_eq!(cases(both), [(fill, hot, 1), (get, cold, 1), (get, hot, 1)]);
        assert_eq!(cases(&format!("{both} --cold --hot")), cases(both));
        assert_eq!(cases(&format!("{both} --cold")), [(fill, hot, 1), (get, cold, 1)]);
        assert_eq!(cases(&format!("{both} --hot")), [(fill, hot, 1), (get, hot, 1)]);
        let threads = cases("--workloads get --hot --threads 1,8");
        assert_eq!(threads, [(get, hot, 1), (get, hot, 8)]);
    }

    #[test]
    fn quick_is_smaller_and_shorter_and_what_is_named_counts() {
        let settings = |line: &str| Settings::new(&parse(line));
        let (quick, full) = (settings("--quick"), settings(""));
        assert!(quick.keys < full.keys && quick.seconds < full.seconds);
        assert!(quick.repeat < full.repeat);
        let named = settings("--quick --keys 7 --seconds 2 --repeat 9");
        assert_eq!((named.keys, named.seconds, named.repeat), (7, 2.0, 9));
    }
}
