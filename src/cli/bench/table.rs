//! What a person sees of the runs: medians, ratios to the baseline, and what was really in use.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;

use super::run::{Mode, Run};
use crate::cli::args::{BenchEnvs, Workload};
use crate::cli::environment::EnvName;
use crate::cli::size::{human_size, to_f64};

/// The baseline of every ratio.
const BASELINE: EnvName = EnvName::PosixSerial;

/// With fewer calls the thousandth slowest is no percentile but a single accident.
const CALLS_FOR_P999: u64 = 1000;

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

/// Three lines above the table: the machine and the database.
pub(crate) fn heading(machine: &Value, args: &BenchEnvs, bytes: u64, runs: &[Run]) -> String {
    let text = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    let keys = runs.first().map_or(0, |run| run.keys);
    format!(
        "Linux {}, {} cores, {} on {}\n{keys} keys with {} B values, {} in tables, no \
         compression; block cache {}\nmedians of the repeats; min..max and ratio are of ops/s, \
         CPU is for each op and a latency for each call",
        text("kernel"),
        machine["cores"],
        text("filesystem"),
        text("device"),
        args.value_size,
        human_size(bytes),
        human_size(args.block_cache),
    )
}

/// A table of figures without rows: lines above and below its header only, and the columns in
/// `right` end at the right.
pub(crate) fn table_with<const N: usize>(header: [&str; N], right: &[usize]) -> Table {
    let mut table = Table::new();
    let mut style = presets::UTF8_HORIZONTAL_ONLY;
    style.row_separator = presets::NOTHING.row_separator;
    table.load_style(style);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The table: one line for each environment in each case. Narrow enough for 120 columns.
pub(crate) fn table(runs: &[Run]) -> Table {
    let header = [
        "workload", "mode", "thr.", "env", "ops/s", "min..max", "ratio", "CPU us", "p50 us",
        "p99 us", "p99.9 us",
    ];
    let mut table = table_with(header, &[2, 4, 5, 6, 7, 8, 9, 10]);
    for group in groups(runs) {
        let first = group[0];
        let of = |pick: fn(&Run) -> f64| median(group.iter().map(|run| pick(run))).unwrap_or(0.0);
        let (least, most) = spread(&group);
        let enough = group.iter().all(|run| run.calls >= CALLS_FOR_P999);
        table.add_row([
            name(first.workload).to_owned(),
            first.mode.name().to_owned(),
            first.threads.to_string(),
            first.env.name().to_owned(),
            format!("{:.0}", of(|run| run.ops_per_sec)),
            format!("{least:.0}..{most:.0}"),
            ratio(runs, &group).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            figure(of(|run| run.cpu_us_per_op)),
            figure(of(|run| run.latency_us.p50)),
            figure(of(|run| run.latency_us.p99)),
            if enough { figure(of(|run| run.latency_us.p999)) } else { "-".to_owned() },
        ]);
    }
    table
}

/// What follows from the table, and how the reads were served: for each case a sentence that
/// compares the environments with the baseline, then a line for each of them.
pub(crate) fn summary(runs: &[Run]) -> Vec<String> {
    let groups = groups(runs);
    let mut lines = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let first = group[0];
        if groups[..index].iter().any(|earlier| same_case(earlier[0], first)) {
            continue;
        }
        let case: Vec<&Vec<&Run>> =
            groups.iter().filter(|group| same_case(group[0], first)).collect();
        lines.push(format!("{}: {}", case_name(first), comparison(runs, &case)));
        for group in case {
            let used = in_use(group[0], group);
            if !used.is_empty() {
                lines.push(format!("  {}: {used}", group[0].env.name()));
            }
        }
    }
    lines
}

/// `multiget, cold, 8 threads, 128 keys a call`.
fn case_name(run: &Run) -> String {
    let threads = if run.threads == 1 { "thread" } else { "threads" };
    let mut text =
        format!("{}, {}, {} {threads}", name(run.workload), run.mode.name(), run.threads);
    if run.batch > 1 {
        let _ = write!(text, ", {} keys a call", run.batch);
    }
    text
}

/// The ratio of each environment to the baseline, in words.
fn comparison(runs: &[Run], case: &[&Vec<&Run>]) -> String {
    let Some(base) = case.iter().find(|group| group[0].env == BASELINE) else {
        return format!("nothing to compare with, since {} did not run", BASELINE.name());
    };
    let (base_least, base_most) = spread(base);
    let others = case.iter().filter(|group| group[0].env != BASELINE);
    let parts: Vec<String> = others
        .filter_map(|group| {
            let (least, most) = spread(group);
            let apart = least > base_most || most < base_least;
            let doubt = if apart { "" } else { " (the spreads overlap)" };
            Some(format!("{} {:.2}{doubt}", group[0].env.name(), ratio(runs, group)?))
        })
        .collect();
    if parts.is_empty() {
        return format!("only {} ran", BASELINE.name());
    }
    format!("times the ops/s of {}: {}", BASELINE.name(), parts.join(", "))
}

/// The ops/s of a group over those of the baseline in the same case, medians both.
fn ratio(runs: &[Run], group: &[&Run]) -> Option<f64> {
    let base = runs.iter().filter(|run| same_case(run, group[0]) && run.env == BASELINE);
    let base = median(base.map(|run| run.ops_per_sec))?;
    Some(median(group.iter().map(|run| run.ops_per_sec))? / base)
}

/// The least and the most ops/s of the repeats.
fn spread(group: &[&Run]) -> (f64, f64) {
    let ops = || group.iter().map(|run| run.ops_per_sec);
    (ops().fold(f64::INFINITY, f64::min), ops().fold(0.0, f64::max))
}

/// What has to be said about the figures: limits that could not be set, environments left out.
pub(crate) fn remarks(machine: &Value, runs: &[Run]) -> Vec<String> {
    let mut remarks = Vec::new();
    if runs.iter().any(|run| run.calls < CALLS_FOR_P999) {
        remarks.push(format!(
            "p99.9 is `-` where a run made fewer than {CALLS_FOR_P999} calls: give it more --seconds"
        ));
    }
    let (load, cores) = (machine["load_average"].as_f64(), machine["cores"].as_f64());
    if let (Some(load), Some(cores)) = (load, cores)
        && load > cores / 2.0
    {
        remarks.push(format!(
            "the machine was BUSY before the start (load {load:.1} on {cores} cores): compare CPU us, \
             measure again later"
        ));
    }
    if let Some(remark) = in_memory(machine) {
        remarks.push(remark);
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

/// What has to be said where the files are in memory.
pub(crate) fn in_memory(machine: &Value) -> Option<String> {
    let filesystem = machine["filesystem"].as_str().unwrap_or("?");
    machine["in_memory"].as_bool()?.then(|| {
        format!(
            "NOTHING WAS COLD: {filesystem} keeps its files in memory; name a directory on a disk \
             with --dir"
        )
    })
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
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// Three figures or so, whatever the magnitude.
pub(crate) fn figure(value: f64) -> String {
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

/// Counters shown below the table; the JSON file has all of them.
const IN_USE: &[(&str, &str, Kind)] = &[
    ("ring_reads", "ring reads", Kind::PerOp),
    ("in_flight_peak", "in flight", Kind::Level),
    ("nowait_hit", "nowait hits", Kind::PerOp),
    ("nowait_miss", "nowait misses", Kind::PerOp),
    ("preads", "preads", Kind::PerOp),
    ("read_ahead_hits", "reads from read-ahead", Kind::PerOp),
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
            in_memory: false,
            threads: 1,
            batch: 128,
            keys: 1000,
            value_size: 400,
            requested: 100,
            found: 100,
            calls: 2000,
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
    fn each_environment_is_one_line_of_medians_and_spread_with_its_ratio_to_the_baseline() {
        let mut runs = Vec::new();
        for (serial, ring) in [(100.0, 900.0), (120.0, 200.0), (90.0, 800.0)] {
            runs.push(run(EnvName::PosixSerial, Mode::Cold, serial, 0));
            runs.push(run(EnvName::IoUring, Mode::Cold, ring, 50));
        }
        runs.push(run(EnvName::IoUring, Mode::Hot, 7.0, 0));
        let text = table(&runs).to_string();
        let line = |parts: &[&str]| {
            let all = |line: &&str| parts.iter().all(|part| line.contains(part));
            assert_eq!(text.lines().filter(all).count(), 1, "{parts:?}\n{text}");
        };
        line(&["cold", "posix-serial", " 100 ", " 90..120 ", "1.00x", " 300 "]);
        line(&["cold", "io_uring", " 800 ", " 200..900 ", "8.00x"]);
        // No baseline in this case, so no ratio.
        line(&["hot", "io_uring", " 7 ", " - "]);
    }

    #[test]
    fn each_case_ends_with_a_sentence_that_compares_and_with_what_was_in_use() {
        let mut runs = Vec::new();
        for (serial, posix, ring) in [(100.0, 110.0, 900.0), (120.0, 115.0, 200.0)] {
            runs.push(run(EnvName::PosixSerial, Mode::Cold, serial, 0));
            runs.push(run(EnvName::Posix, Mode::Cold, posix, 0));
            runs.push(run(EnvName::IoUring, Mode::Cold, ring, 50));
        }
        runs.push(run(EnvName::IoUring, Mode::Hot, 7.0, 0));
        let lines = summary(&runs);
        let said = "multiget, cold, 1 thread, 128 keys a call: times the ops/s of posix-serial: \
                    posix 1.02 (the spreads overlap), io_uring 5.00";
        assert_eq!(lines[0], said);
        let used = "  io_uring: ring reads 0.50/op, in flight 64";
        assert!(lines.iter().any(|line| line == used), "{lines:?}");
        let alone = lines.iter().find(|line| line.starts_with("multiget, hot")).unwrap();
        assert!(alone.contains("posix-serial did not run"), "{alone}");
    }

    #[test]
    fn the_table_fits_a_terminal_of_120_columns_with_figures_of_any_size() {
        let mut wide = run(EnvName::PosixSerial, Mode::Cold, 1_234_567.8, 0);
        wide.workload = Workload::FillSync;
        wide.threads = 1024;
        wide.cpu_us_per_op = 123_456.0;
        wide.latency_us = Latency { p50: 1e6, p99: 1e7, p999: 1e7, max: 1e7 };
        let text = table(&[wide]).to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 120), "{widest:?}\n{text}");
    }

    #[test]
    fn too_few_calls_give_no_percentile_of_a_thousand() {
        let mut few = run(EnvName::Posix, Mode::Hot, 5.0, 0);
        few.calls = 999;
        let text = table(std::slice::from_ref(&few)).to_string();
        assert!(!text.contains("300") && text.contains("20.0"), "{text}");
        let remarks = remarks(&json!({}), &[few]).join("\n");
        assert!(remarks.contains("fewer than 1000 calls"), "{remarks}");
    }

    #[test]
    fn what_spoils_the_figures_is_said_with_its_reason() {
        let runs = [run(EnvName::Posix, Mode::Cold, 1.0, 0)];
        let machine = json!({
            "cores": 2,
            "load_average": 7.7,
            "filesystem": "tmpfs",
            "in_memory": true,
            "left_out": [{ "env": "io_uring", "why": "seccomp" }],
        });
        let remarks = remarks(&machine, &runs).join("\n");
        assert!(remarks.contains("BUSY") && remarks.contains("load 7.7 on 2 cores"), "{remarks}");
        assert!(remarks.contains("NOTHING WAS COLD: tmpfs"), "{remarks}");
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
