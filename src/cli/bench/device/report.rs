//! What a person sees of the runs on a device: a table for each case, and what spoils it.

use comfy_table::Table;
use serde_json::Value;

use super::target::{Origin, Target};
use super::variant::Runner;
use super::{Run, Skipped};
use crate::cli::args::device::{DeviceWorkload, Engine};
use crate::cli::bench::table::{figure, in_memory, median, table_with};
use crate::cli::size::human_size;

/// How far the depth that was reached may be from the one asked for.
const TOLERANCE: f64 = 0.1;
/// With fewer operations the slowest of ten thousand is a single accident.
const OPS_FOR_P9999: u64 = 10_000;

/// The machine and the file.
pub(crate) fn heading(machine: &Value, target: &Target) -> String {
    let text = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    format!(
        "Linux {}, {} cores, {} on {}\na file of {}, {}\nmedians of the repeats; min..max is of \
         ops/s; ratios are medians of the pairs of one repeat; CPU is for each operation",
        text("kernel"),
        machine["cores"],
        text("filesystem"),
        text("device"),
        human_size(target.size()),
        match target.origin() {
            Origin::New => "written just before",
            Origin::Ours | Origin::Foreign => "which was there",
        },
    )
}

/// The runs of each case, in the order of the first ones.
pub(crate) fn cases(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut cases: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        match cases.iter_mut().find(|case| key(case[0]) == key(run)) {
            Some(case) => case.push(run),
            None => cases.push(vec![run]),
        }
    }
    cases
}

fn key(run: &Run) -> (DeviceWorkload, u64, u32, u32, bool) {
    (run.workload, run.block_size, run.depth, run.threads, run.direct)
}

/// `randread of 4.0 KiB, depth 32, 1 thread, direct`.
pub(crate) fn case_name(case: &[&Run]) -> String {
    let run = case[0];
    format!(
        "{} of {}, depth {}, {} {}, {}",
        run.workload.name(),
        human_size(run.block_size),
        run.depth,
        run.threads,
        if run.threads == 1 { "thread" } else { "threads" },
        if run.direct { "direct" } else { "through the page cache" },
    )
}

/// One line for each engine, narrow enough for 120 columns.
pub(crate) fn table(case: &[&Run]) -> Table {
    let header = [
        "engine", "ops/s", "min..max", "of fio", "of pread", "CPU us", "p50 us", "p99", "p99.9",
        "p99.99", "depth",
    ];
    let mut table = table_with(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for runner in runners(case) {
        table.add_row(row(case, runner));
    }
    table
}

fn row(case: &[&Run], runner: Runner) -> Vec<String> {
    let group = of(case, runner);
    let middle = |pick: fn(&Run) -> f64| median(group.iter().map(|run| pick(run))).unwrap_or(0.0);
    let ops = || group.iter().map(|run| run.ops_per_sec);
    let (least, most) = (ops().fold(f64::INFINITY, f64::min), ops().fold(0.0, f64::max));
    let share =
        |base| ratio(case, runner, Runner::plain(base)).map_or_else(|| "-".to_owned(), times);
    let enough = group.iter().all(|run| run.ops >= OPS_FOR_P9999);
    let depth = middle(|run| run.achieved_depth);
    let loud = if misses(group[0], depth) { "!" } else { "" };
    vec![
        runner.name(),
        format!("{:.0}", middle(|run| run.ops_per_sec)),
        format!("{least:.0}..{most:.0}"),
        share(Engine::Fio),
        share(Engine::Pread),
        figure(middle(|run| run.cpu_us_per_op)),
        figure(middle(|run| run.latency_us.p50)),
        figure(middle(|run| run.latency_us.p99)),
        figure(middle(|run| run.latency_us.p999)),
        if enough { figure(middle(|run| run.latency_us.p9999)) } else { "-".to_owned() },
        format!("{}{loud}", figure(depth)),
    ]
}

/// What has to be said about the depths that were not the ones asked for.
pub(crate) fn depths(case: &[&Run]) -> Vec<String> {
    let lines = runners(case).into_iter().filter_map(|runner| {
        let group = of(case, runner);
        let depth = median(group.iter().map(|run| run.achieved_depth))?;
        let asked = group[0].depth;
        misses(group[0], depth).then(|| {
            format!(
                "  DEPTH NOT AS ASKED: {} had {} in flight for each thread, not {asked}; its \
                 figures are those of that depth",
                runner.name(),
                figure(depth)
            )
        })
    });
    lines.collect()
}

/// What was really in use of the options of the queue.
pub(crate) fn options(case: &[&Run]) -> Vec<String> {
    let mut lines = Vec::new();
    for runner in runners(case) {
        let group = of(case, runner);
        let reports: Vec<_> = group.iter().map(|run| &run.report).collect();
        let said = runner.variant.in_use(&reports);
        lines.extend(said.into_iter().map(|line| format!("  {}: {line}", runner.name())));
    }
    lines
}

/// Whether a depth is not the one asked for. A serial engine is asked for one at a time.
fn misses(run: &Run, depth: f64) -> bool {
    let asked = f64::from(run.depth);
    run.engine != Engine::Pread && (depth - asked).abs() > TOLERANCE * asked
}

/// What spoils the figures, and who did not run.
pub(crate) fn remarks(
    machine: &Value,
    target: &Target,
    runs: &[Run],
    skipped: &[Skipped],
) -> Vec<String> {
    let mut remarks = vec![String::new()];
    let skipped = skipped.iter();
    remarks.extend(skipped.map(|skip| format!("{}: skipped: {}", skip.runner.name(), skip.why)));
    remarks.extend(in_memory(machine));
    let verified: u64 = runs.iter().map(|run| run.verified).sum();
    remarks.push(match target.origin() {
        Origin::Foreign => {
            "NO READ WAS VERIFIED: the file was not made by this benchmark".to_owned()
        }
        Origin::New | Origin::Ours => {
            let fio = runs.iter().any(|run| run.engine == Engine::Fio);
            let fio = if fio { ", none of fio's" } else { "" };
            format!("{verified} operations were verified (of writes a sample){fio}")
        }
    });
    if target.origin() != Origin::New {
        remarks.push(
            "the file was there before: a host that has not touched it for long reads it slower, \
             and holes in it read faster, than a file written anew"
                .to_owned(),
        );
    }
    if runs.iter().any(|run| run.ops < OPS_FOR_P9999) {
        remarks.push(format!(
            "p99.99 is `-` where a run made fewer than {OPS_FOR_P9999} operations: give it more \
             --seconds"
        ));
    }
    if runs.iter().any(|run| run.workload == DeviceWorkload::RandWrite && !run.direct) {
        remarks.push(
            "writes through the page cache are synced after each run, outside its time".to_owned(),
        );
    }
    let (load, cores) = (machine["load_average"].as_f64(), machine["cores"].as_f64());
    if let (Some(load), Some(cores)) = (load, cores)
        && load > cores / 2.0
    {
        remarks.push(format!(
            "the machine was BUSY before the start (load {load:.1} on {cores} cores): only ratios \
             say something; measure again later"
        ));
    }
    remarks
}

fn runners(case: &[&Run]) -> Vec<Runner> {
    let mut runners = Vec::new();
    for run in case {
        if !runners.contains(&run.runner()) {
            runners.push(run.runner());
        }
    }
    runners
}

fn of<'r>(case: &[&'r Run], runner: Runner) -> Vec<&'r Run> {
    case.iter().copied().filter(|run| run.runner() == runner).collect()
}

/// The median of the ratios within each repeat.
fn ratio(case: &[&Run], runner: Runner, base: Runner) -> Option<f64> {
    let base = of(case, base);
    let pairs = of(case, runner).into_iter().filter_map(|run| {
        let other = base.iter().find(|other| other.repeat == run.repeat)?;
        Some(run.ops_per_sec / other.ops_per_sec)
    });
    median(pairs)
}

fn times(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.0}x") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Latency;
    use super::*;

    fn run(engine: Engine, repeat: u32, ops_per_sec: f64, achieved_depth: f64) -> Run {
        Run {
            workload: DeviceWorkload::RandRead,
            engine,
            options: None,
            block_size: 4096,
            depth: 32,
            achieved_depth,
            mean_depth: achieved_depth,
            threads: 1,
            direct: true,
            repeat,
            ops: 20_000,
            verified: 5,
            ops_per_sec,
            cpu_us_per_op: 3.0,
            latency_us: Latency { p50: 1.0, p90: 2.0, p99: 3.0, p999: 4.0, p9999: 5.5, max: 6.0 },
            report: Value::Null,
        }
    }

    #[test]
    fn ratios_are_medians_of_pairs_and_not_of_all() {
        let runs = [
            run(Engine::Queue, 0, 100.0, 32.0),
            run(Engine::Fio, 0, 100.0, 32.0),
            run(Engine::Queue, 1, 50.0, 32.0),
            run(Engine::Fio, 1, 40.0, 32.0),
            run(Engine::Queue, 2, 10.0, 32.0),
            run(Engine::Fio, 2, 8.0, 32.0),
        ];
        let cases = cases(&runs);
        assert_eq!(cases.len(), 1);
        assert_eq!(case_name(&cases[0]), "randread of 4.0 KiB, depth 32, 1 thread, direct");
        let text = table(&cases[0]).to_string();
        let queue = text.lines().find(|line| line.contains("queue")).unwrap();
        for part in [" 50 ", " 10..100 ", " 1.25x ", " - ", " 5.50 ", " 32.0 "] {
            assert!(queue.contains(part), "{part}: {text}");
        }
        assert!(depths(&cases[0]).is_empty());
    }

    #[test]
    fn a_depth_that_was_not_reached_is_said_aloud() {
        for (depth, loud) in [(28.7, true), (28.9, false), (35.1, false), (35.3, true)] {
            let runs = [run(Engine::Queue, 0, 1.0, depth), run(Engine::Pread, 0, 1.0, 1.0)];
            let case: Vec<&Run> = runs.iter().collect();
            let said = depths(&case);
            assert_eq!(said.len(), usize::from(loud), "{depth}: {said:?}");
            assert_eq!(table(&case).to_string().contains('!'), loud, "{depth}");
            assert!(said.iter().all(|line| line.contains("DEPTH NOT AS ASKED: queue had")));
        }
    }

    #[test]
    fn the_table_fits_a_terminal_of_120_columns_with_figures_of_any_size() {
        let mut wide = run(Engine::PreadPool, 0, 1_234_567.0, 4096.0);
        wide.cpu_us_per_op = 123_456.0;
        wide.latency_us = Latency { p50: 1e5, p90: 1e6, p99: 1e7, p999: 1e7, p9999: 1e7, max: 1e7 };
        let text = table(&[&wide]).to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 120), "{widest:?}\n{text}");
    }

    #[test]
    fn what_spoils_the_figures_and_who_is_missing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("foreign");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let target = Target::named(&path, 1 << 20).unwrap();
        let skipped = [Skipped {
            runner: Runner::plain(Engine::Fio),
            why: "fio is not installed".to_owned(),
        }];
        let mut few = run(Engine::Queue, 0, 1.0, 32.0);
        few.ops = 3;
        let machine = json!({ "cores": 2, "load_average": 7.7 });
        let said = remarks(&machine, &target, &[few], &skipped).join("\n");
        for part in [
            "fio: skipped: fio is not installed",
            "NO READ WAS VERIFIED",
            "was there before",
            "fewer than 10000",
            "BUSY",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let heading = heading(&machine, &target);
        assert!(heading.contains("8.0 KiB, which was there"), "{heading}");
    }
}
