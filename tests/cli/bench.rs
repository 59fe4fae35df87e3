//! `bench envs` on a tiny database: every run is in the report with everything the schema asks
//! for, and what was asked for was found.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::tool::{Scratch, environments, reported, run};

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn check_run(run: &Value) {
    let expected = [
        "workload",
        "env",
        "mode",
        "in_memory",
        "threads",
        "batch",
        "keys",
        "value_size",
        "requested",
        "found",
        "calls",
        "ops_per_sec",
        "cpu_us_per_op",
        "latency_us",
        "report",
    ];
    assert_eq!(keys(run), expected);
    assert_eq!(keys(&run["latency_us"]), ["p50", "p99", "p999", "max"]);
    assert_eq!(keys(&run["report"]), ["env", "facts", "counters"]);
    let requested = run["requested"].as_u64().unwrap();
    assert!(requested > 0, "{run}");
    assert_eq!(run["found"].as_u64(), Some(requested), "{run}");
    assert!(run["ops_per_sec"].as_f64().unwrap() > 0.0, "{run}");
    assert!(run["cpu_us_per_op"].as_f64().unwrap() > 0.0, "{run}");
    let latency = |name: &str| run["latency_us"][name].as_f64().unwrap();
    assert!(latency("p50") > 0.0 && latency("p50") <= latency("p99"), "{run}");
    assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"), "{run}");
    assert_eq!(run["report"]["env"], reported(run["env"].as_str().unwrap()), "{run}");
}

#[test]
fn a_tiny_benchmark_reports_every_run_and_finds_every_key() {
    let scratch = Scratch::new();
    let (dir, json) = (scratch.path("bench"), scratch.path("runs.json"));
    let envs: Vec<&str> = environments().into_iter().filter(|env| *env != "auto").collect();
    let list = envs.join(",");
    let args = |json: &str| {
        let line = format!(
            "bench envs --envs {list} --keys 20000 --value-size 100 --batch 32 --threads 1,2 \
             --seconds 0.05 --repeat 2 --memory-limit 64MiB --json {json} --dir {}",
            dir.display()
        );
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let ran = run(args(json.to_str().unwrap())).ends_with(0);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(keys(&report), ["schema", "machine", "runs"]);
    assert_eq!(report["schema"], 1);
    assert!(report["machine"]["kernel"].is_string());
    let runs = report["runs"].as_array().unwrap();
    // Two fills hot, three reading workloads cold and hot; two thread counts, two repeats.
    assert_eq!(runs.len(), 8 * 2 * 2 * envs.len());
    runs.iter().for_each(check_run);
    let text = ran.text();
    let rows = text.lines().filter(|line| line.starts_with(' ') && !line.starts_with("  "));
    let widest = rows.map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= 120), "{text}");
    for part in ["fill-sync", "multiget", "cold", "hot", "ratio", "1.00x", "times the ops/s"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for env in &envs {
        let of_env = runs.iter().filter(|run| run["env"] == *env).count();
        assert_eq!(of_env, runs.len() / envs.len(), "{env}");
    }
    // The environments take turns, and the first changes from repeat to repeat.
    let turns: Vec<&str> =
        runs.iter().take(2 * envs.len()).map(|r| r["env"].as_str().unwrap()).collect();
    assert_eq!(turns[..envs.len()], envs);
    assert_eq!(turns[envs.len()], envs[1 % envs.len()]);
    let mut cold = runs.clone();
    for _ in 0..20 {
        if !envs.contains(&"io_uring") || a_ring_was_used(&cold) {
            break;
        }
        let line = format!(
            "bench envs --envs io_uring --workloads multiget --cold --keys 20000 \
             --value-size 100 --batch 32 --seconds 0.05 --repeat 1 --memory-limit 64MiB \
             --json {} --dir {}",
            json.display(),
            dir.display()
        );
        run(line.split_whitespace()).ends_with(0);
        let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        cold = report["runs"].as_array().unwrap().clone();
    }
    assert!(!envs.contains(&"io_uring") || a_ring_was_used(&cold), "{cold:?}");
    // A second call finds the database and builds nothing.
    let again = run(args("/dev/null")).ends_with(0);
    assert!(again.err.contains("using the database that is there"), "{}", again.err);
    let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// Whether a ring carried reads in one of the cold runs. On a busy machine a page may be in the
/// cache before the look for it ends, and such a run needs no ring.
fn a_ring_was_used(runs: &[Value]) -> bool {
    let is_cold = |run: &&Value| {
        run["env"] == "io_uring" && run["mode"] == "cold" && run["workload"] == "multiget"
    };
    let count = |run: &Value, name: &str| run["report"]["counters"][name].as_u64().unwrap();
    runs.iter()
        .filter(is_cold)
        .any(|run| count(run, "ring_reads") > 0 && count(run, "in_flight_peak") > 1)
}

#[test]
fn cold_runs_say_whether_memory_was_limited() {
    let scratch = Scratch::new();
    let (dir, json) = (scratch.path("bench"), scratch.path("runs.json"));
    let line = format!(
        "bench envs --envs posix --workloads get --cold --keys 5000 --seconds 0.05 --repeat 1 \
         --dir {} --json {}",
        dir.display(),
        json.display()
    );
    let text = run(line.split_whitespace()).ends_with(0).text();
    assert!(text.contains("cold runs"), "{text}");
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let run = &report["runs"][0];
    let facts = run["report"]["facts"].as_array().unwrap();
    let limit = facts.iter().find(|fact| fact["name"] == "memory limit").unwrap();
    assert!(limit["why"].is_string(), "{limit}");
    let dropped = facts.iter().find(|fact| fact["name"] == "page cache").unwrap();
    assert!(dropped["value"].as_str().unwrap().starts_with("dropped: "), "{dropped}");
}

#[test]
fn an_environment_that_cannot_be_compared_is_left_out_aloud() {
    let scratch = Scratch::new();
    let line = format!(
        "bench envs --envs posix-serial,mem --workloads fill --keys 1000 --seconds 0.05 \
         --repeat 1 --dir {}",
        scratch.path("bench").display()
    );
    let ran = run(line.split_whitespace()).ends_with(1).says(&["mem is left out"]);
    assert!(ran.text().contains("mem was left out"), "{}", ran.text());
    let alone = run(["bench", "envs", "--envs", "mem"]).ends_with(3);
    alone.says(&["mem is left out: each run is a process of its own", "nothing to compare"]);
}

#[test]
fn a_temporary_database_is_removed_afterwards() {
    let scratch = Scratch::new();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_treering"))
        .args("bench envs --envs posix --workloads get --hot --keys 1000 --seconds 0.05".split(' '))
        .args(["--repeat", "1"])
        .current_dir(scratch.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
}

/// What is in memory was once reported as cold.
#[test]
fn where_files_are_in_memory_nothing_is_called_cold() {
    let memory = Path::new("/dev/shm");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let Some(dir) =
        mounts.contains(" /dev/shm ").then(|| tempfile::tempdir_in(memory).ok()).flatten()
    else {
        return crate::tool::skipped("no directory in memory");
    };
    let json = dir.path().join("runs.json");
    let line =
        "bench envs --envs posix --workloads get --cold --keys 1000 --seconds 0.01 --repeat 1";
    let ran = run(line.split(' ').map(AsRef::<std::ffi::OsStr>::as_ref).chain([
        "--dir".as_ref(),
        dir.path().as_os_str(),
        "--json".as_ref(),
        json.as_os_str(),
    ]))
    .ends_with(0);
    assert!(ran.text().contains("NOTHING WAS COLD: tmpfs"), "{}", ran.text());
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["machine"]["in_memory"], true);
    assert_eq!(report["runs"][0]["in_memory"], true);
}
