//! What a person sees of the runs: medians, ratios to the baseline, and what was really in use.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;

use super::run::{Mode, Run};
use crate::cli::args::{BenchEnvs, Workload};
use crate::cli::environment::EnvName;
use crate::cli::size::{human_size, to_f64};

/// The baseline of every ratio.
const BASELINE: EnvName = EnvName::PosixSerial;

/// A workload's name as on the command line.
pub(crate) fn name(workload: Workload) -> &'static str {
    match workload {
        Workload::Fill => "fill",
        Workload::FillSync => "fill-sync",
        Workload::Get => "get",
        Workload::MultiGet => "multiget",
        Workload::Scan => "scan",
    }
}

/// Two lines above the table: the machine and the database.
pub(crate) fn heading(machine: &Value, args: &BenchEnvs, bytes: u64, runs: &[Run]) -> String {
    let text = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    let keys = runs.first().map_or(0, |run| run.keys);
    format!(
        "Linux {}, {} cores, {} on {}\n{keys} keys with {} B values, {} in tables, no \
         compression; block cache {}; medians of the repeats",
        text("kernel"),
        machine["cores"],
        text("filesystem"),
        text("device"),
        args.value_size,
        human_size(bytes),
        human_size(args.block_cache),
    )
}

/// The table: one line for each environment in each case.
pub(crate) fn table(runs: &[Run]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "workload",
        "mode",
        "threads",
        "batch",
        "env",
        "ops/s",
        "ratio",
        "CPU us/op",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "in use",
    ]);
    for index in 3..11 {
        if let Some(column) = table.column_mut(index).filter(|_| index != 4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for group in groups(runs) {
        let first = group[0];
        let base = runs.iter().filter(|run| same_case(run, first) && run.env == BASELINE);
        let base = median(base.map(|run| run.ops_per_sec));
        let of = |pick: fn(&Run) -> f64| median(group.iter().map(|run| pick(run))).unwrap_or(0.0);
        let ops = of(|run| run.ops_per_sec);
        table.add_row([
            name(first.workload).to_owned(),
            first.mode.name().to_owned(),
            first.threads.to_string(),
            first.batch.to_string(),
            first.env.name().to_owned(),
            format!("{ops:.0}"),
            base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}x", ops / base)),
            figure(of(|run| run.cpu_us_per_op)),
            figure(of(|run| run.latency_us.p50)),
            figure(of(|run| run.latency_us.p99)),
            figure(of(|run| run.latency_us.p999)),
            in_use(first, &group),
        ]);
    }
    table
}

/// What has to be said about the figures: limits that could not be set, environments left out.
pub(crate) fn remarks(machine: &Value, runs: &[Run]) -> Vec<String> {
    let mut remarks = vec!["ratio: ops/s over posix-serial's in the same case".to_owned()];
    let (load, cores) = (machine["load_average"].as_f64(), machine["cores"].as_f64());
    if let (Some(load), Some(cores)) = (load, cores)
        && load > cores / 2.0
    {
        remarks.push(format!(
            "the machine was BUSY before the start (load {load:.1} on {cores} cores): compare CPU \
             us/op, and measure again when it is quiet"
        ));
    }
    let cold: Vec<&Run> = runs.iter().filter(|run| run.mode == Mode::Cold).collect();
    if let Some(run) = cold.first() {
        let limit = fact(run, "memory limit");
        let value = limit.and_then(|fact| fact["value"].as_str()).unwrap_or("none");
        let why = limit.and_then(|fact| fact["why"].as_str()).unwrap_or("unknown");
        remarks.push(if value == "none" {
            format!(
                "cold runs had NO memory limit, so they grow hot as they go: no memory cgroup \
                 ({why})"
            )
        } else {
            format!("cold runs: memory limited to {value} ({why}), tables dropped from the cache")
        });
    }
    for left_out in machine["left_out"].as_array().into_iter().flatten() {
        let text = |name: &str| left_out[name].as_str().unwrap_or("?").to_owned();
        remarks.push(format!("{} was left out: {}", text("env"), text("why")));
    }
    remarks
}

/// The runs of each environment in each case, in the order of the first ones.
fn groups(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let member = |group: &&mut Vec<&Run>| same_case(group[0], run) && group[0].env == run.env;
        match groups.iter_mut().find(member) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

fn same_case(a: &Run, b: &Run) -> bool {
    (a.workload, a.mode, a.threads) == (b.workload, b.mode, b.threads)
}

/// The median; of an even number of values the mean of the middle two.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// Three figures or so, whatever the magnitude.
fn figure(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn fact<'r>(run: &'r Run, name: &str) -> Option<&'r Value> {
    run.report["facts"].as_array()?.iter().find(|fact| fact["name"] == name)
}

/// The counters that tell how reads were served, as shares of the keys or as peaks.
fn in_use(first: &Run, group: &[&Run]) -> String {
    let counter = |run: &Run, name: &str| run.report["counters"][name].as_u64();
    let known = IN_USE.iter().filter(|(name, ..)| counter(first, name).is_some());
    let shown = known.filter_map(|(name, label, kind)| {
        let values = group.iter().map(|run| {
            let value = to_f64(counter(run, name).unwrap_or(0));
            match kind {
                Kind::Level => value,
                Kind::PerOp => value / to_f64(run.requested),
            }
        });
        let value = median(values).filter(|&value| value > 0.0)?;
        Some(match kind {
            Kind::Level => format!("{label} {value:.0}"),
            Kind::PerOp => format!("{label} {value:.2}/op"),
        })
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Copy)]
enum Kind {
    Level,
    PerOp,
}

/// Counters shown in the table; the JSON file has all of them.
const IN_USE: &[(&str, &str, Kind)] = &[
    ("ring_reads", "ring reads", Kind::PerOp),
    ("in_flight_peak", "in flight", Kind::Level),
    ("nowait_hit", "nowait hits", Kind::PerOp),
    ("nowait_miss", "nowait misses", Kind::PerOp),
    ("preads", "preads", Kind::PerOp),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run::Latency;
    use super::*;

    fn run(env: EnvName, mode: Mode, ops_per_sec: f64, ring_reads: u64) -> Run {
        Run {
            workload: Workload::MultiGet,
            env,
            mode,
            threads: 1,
            batch: 128,
            keys: 1000,
            value_size: 400,
            requested: 100,
            found: 100,
            ops_per_sec,
            cpu_us_per_op: 5.0,
            latency_us: Latency { p50: 1.0, p99: 20.0, p999: 300.0, max: 400.0 },
            report: json!({
                "env": env.name(),
                "facts": [{ "name": "memory limit", "value": "none", "why": "not root" }],
                "counters": { "ring_reads": ring_reads, "in_flight_peak": 64, "preads": 0 },
            }),
        }
    }

    #[test]
    fn each_environment_is_one_line_of_medians_with_its_ratio_to_the_baseline() {
        let mut runs = Vec::new();
        for (serial, ring) in [(100.0, 900.0), (120.0, 200.0), (90.0, 800.0)] {
            runs.push(run(EnvName::PosixSerial, Mode::Cold, serial, 0));
            runs.push(run(EnvName::IoUring, Mode::Cold, ring, 50));
        }
        runs.push(run(EnvName::IoUring, Mode::Hot, 7.0, 0));
        let table = table(&runs).to_string();
        let line = |parts: &[&str]| {
            let all = |line: &&str| parts.iter().all(|part| line.contains(part));
            assert_eq!(table.lines().filter(all).count(), 1, "{parts:?}\n{table}");
        };
        line(&["cold", "posix-serial", " 100 ", "1.00x"]);
        line(&["cold", "io_uring", " 800 ", "8.00x", "ring reads 0.50/op, in flight 64"]);
        // No baseline in this case, so no ratio.
        line(&["hot", "io_uring", " 7 ", " - "]);
    }

    #[test]
    fn what_spoils_the_figures_is_said_with_its_reason() {
        let runs = [run(EnvName::Posix, Mode::Cold, 1.0, 0)];
        let machine = json!({
            "cores": 2,
            "load_average": 7.7,
            "left_out": [{ "env": "io_uring", "why": "seccomp" }],
        });
        let remarks = remarks(&machine, &runs).join("\n");
        assert!(remarks.contains("BUSY") && remarks.contains("load 7.7 on 2 cores"), "{remarks}");
        assert!(remarks.contains("NO memory limit") && remarks.contains("not root"), "{remarks}");
        assert!(remarks.contains("io_uring was left out: seccomp"), "{remarks}");
    }

    #[test]
    fn medians_are_the_middle_or_between_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
