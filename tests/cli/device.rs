//! `bench device` with tiny files and runs: what it reports, and that it destroys nothing.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::tool::{Scratch, environments, fio_is_installed, run, skipped};

const RUN: [&str; 16] = [
    "workload",
    "engine",
    "options",
    "block_size",
    "depth",
    "achieved_depth",
    "mean_depth",
    "threads",
    "direct",
    "repeat",
    "ops",
    "verified",
    "ops_per_sec",
    "cpu_us_per_op",
    "latency_us",
    "report",
];

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The engines that work here.
fn engines() -> Vec<&'static str> {
    let mut engines = vec!["pread", "pread-pool"];
    if environments().contains(&"io_uring") {
        engines.insert(0, "queue");
    }
    if fio_is_installed() {
        engines.push("fio");
    }
    engines
}

fn device(line: &str) -> crate::tool::Ran {
    run(format!("bench device --seconds 0.02 --repeat 1 {line}").split_whitespace())
}

fn check_run(run: &Value) {
    assert_eq!(keys(run), RUN);
    let latency = &run["latency_us"];
    assert_eq!(keys(latency), ["p50", "p90", "p99", "p999", "p9999", "max"]);
    let figures: Vec<f64> = keys(latency).iter().map(|n| latency[n].as_f64().unwrap()).collect();
    assert!(figures[0] > 0.0, "{run}");
    let fio = run["engine"] == "fio";
    assert!(fio || figures.is_sorted(), "{run}");
    assert!(run["ops_per_sec"].as_f64().unwrap() > 0.0, "{run}");
    let (ops, verified) = (run["ops"].as_u64().unwrap(), run["verified"].as_u64().unwrap());
    match (fio, run["workload"].as_str().unwrap()) {
        (true, _) => assert_eq!(verified, 0, "{run}"),
        (false, "randread") => assert_eq!(verified, ops, "{run}"),
        (false, _) => assert!((1..=ops).contains(&verified), "{run}"),
    }
    let depth = run["achieved_depth"].as_f64().unwrap();
    assert!(depth > 0.0, "{run}");
    if run["engine"] == "queue" && run["workload"] == "randwrite" {
        // All are pushed before the first is popped, and then they go to the ring together.
        let peak = &run["report"]["counters"]["in_flight_peak"];
        assert_eq!(*peak, run["depth"], "{run}");
    }
}

#[test]
fn a_tiny_sweep_reports_every_run_verifies_it_and_leaves_nothing() {
    let scratch = Scratch::new();
    let json = scratch.path("runs.json");
    let dir = scratch.path("dir");
    fs::create_dir(&dir).unwrap();
    let engines = engines();
    let line = format!(
        "--workloads randwrite,randread --engines {} --block-size 4KiB,16KiB --depth 4,8 \
         --threads 1,2 --direct false --repeat 2 --file-size 4MiB --dir {} --json {}",
        engines.join(","),
        dir.display(),
        json.display()
    );
    let line = format!("bench device --seconds 0.02 {line}");
    let ran = run(line.split_whitespace()).ends_with(0);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(keys(&report), ["schema", "machine", "runs"]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["machine"]["file_size"], 4 << 20);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 16 * 2 * engines.len());
    runs.iter().for_each(check_run);
    // Reads first; the engines take turns, and the first changes from repeat to repeat.
    assert!(runs[..runs.len() / 2].iter().all(|run| run["workload"] == "randread"));
    let turns: Vec<&str> =
        runs.iter().take(2 * engines.len()).map(|r| r["engine"].as_str().unwrap()).collect();
    assert_eq!(turns[..engines.len()], engines);
    assert_eq!(turns[engines.len()], engines[1]);
    let text = ran.text();
    let widest = text.lines().filter(|line| line.starts_with(' ')).map(|l| l.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= 120), "{text}");
    for part in ["randwrite of 16.0 KiB, depth 8, 2 threads", "of pread", "1.00x", "verified"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn direct_reads_and_writes_go_through_the_ring() {
    if !environments().contains(&"io_uring-direct") {
        return skipped("no io_uring, or no direct I/O on this file system");
    }
    let scratch = Scratch::new();
    let json = scratch.path("runs.json");
    let (dir, file) = (scratch.path(""), json.display());
    let line = format!("--engines queue,pread --file-size 4MiB --dir {}", dir.display());
    for (workload, counter) in [("randread", "ring_reads"), ("randwrite", "ring_writes")] {
        let options = format!("--workloads {workload} --direct true --depth 16 --json {file}");
        device(&format!("{line} {options}")).ends_with(0);
        let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        report["runs"].as_array().unwrap().iter().for_each(check_run);
        let counters = &report["runs"][0]["report"]["counters"];
        assert!(counters[counter].as_u64().unwrap() > 0, "{counters}");
        assert_eq!(report["runs"][0]["direct"], true);
        fs::remove_file(&json).unwrap();
    }
}

#[test]
fn options_of_the_queue_take_turns_and_the_counters_say_what_was_in_use() {
    if !environments().contains(&"io_uring-direct") {
        return skipped("no io_uring, or no direct I/O on this file system");
    }
    let scratch = Scratch::new();
    let json = scratch.path("runs.json");
    let (dir, file) = (scratch.path(""), json.display());
    let line = format!(
        "--engines queue,pread --file-size 4MiB --dir {} --depth 16 --registered false,true \
         --sqpoll false,true --json {file}",
        dir.display()
    );
    let text = device(&line).ends_with(0).text();
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 5);
    for run in runs {
        check_run(run);
        let (options, counters) = (&run["options"], &run["report"]["counters"]);
        assert_eq!(options.is_null(), run["engine"] == "pread", "{run}");
        for (option, counter) in [("registered", "fixed_used"), ("sqpoll", "sqpoll_sqes")] {
            let used = counters[counter].as_u64().unwrap_or(0);
            assert_eq!(used > 0, options[option] == true, "{option}: {run}");
        }
    }
    for part in ["queue+reg+sq ", "queue+sq: sqpoll used by ", "queue+reg: registered buffers used"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Through the page cache registered buffers are of no use, and that is told.
    let line = format!("--engines queue --file-size 4MiB --dir {}", dir.display());
    let text = device(&format!("{line} --direct false --registered")).ends_with(0).text();
    assert!(text.contains("registered buffers NOT IN USE: fixed_used stayed 0"), "{text}");
    let refused = device(&format!("{line} --direct false --iopoll")).ends_with(3);
    refused.says(&["queue+io: skipped", "only with direct_reads"]);
}

#[test]
fn without_fio_the_rest_runs_and_fio_is_said_to_be_skipped() {
    let scratch = Scratch::new();
    let run = |engines: &str| {
        Command::new(env!("CARGO_BIN_EXE_treering"))
            .args("bench device --seconds 0.02 --repeat 1 --direct false".split(' '))
            .args(["--file-size", "1MiB", "--engines", engines])
            .current_dir(scratch.path(""))
            .env("PATH", "")
            .output()
            .unwrap()
    };
    let output = run("pread,fio");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(out.contains("fio: skipped: fio is not installed"), "{out}");
    assert!(err.contains("fio: skipped: fio is not installed"), "{err}");
    let alone = run("fio");
    assert_eq!(alone.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("pread-pool work everywhere"));
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
}

#[test]
fn a_file_of_somebody_else_is_read_as_it_is_and_written_only_when_that_is_allowed() {
    let scratch = Scratch::new();
    let mine: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let file = scratch.file("mine", &mine);
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    let engines = engines().join(",");
    let line = format!("--engines {engines} --direct false --file {}", file.display());
    let ran = device(&line).ends_with(0);
    assert!(ran.text().contains("NO READ WAS VERIFIED"), "{}", ran.text());
    let refused = device(&format!("{line} --workloads randread,randwrite")).ends_with(2);
    refused.says(&[file.to_str().unwrap(), "--overwrite"]);
    assert_eq!(fs::read(&file).unwrap(), mine);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
    device(&format!("{line} --workloads randwrite --overwrite")).ends_with(0);
    let after = fs::read(&file).unwrap();
    assert!(after.len() == mine.len() && after != mine);
}

#[test]
fn a_file_that_was_made_stays_is_known_again_and_its_damage_is_found() {
    let scratch = Scratch::new();
    let file = scratch.path("kept");
    let engines = engines().join(",");
    let line = format!("--direct false --file-size 1MiB --file {}", file.display());
    device(&format!("{line} --engines {engines} --workloads randwrite")).ends_with(0);
    assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
    let again = device(&format!("{line} --engines {engines} --workloads randread,randwrite"));
    assert!(again.ends_with(0).text().contains("was there before"));
    // In a place that no look at the file as a whole takes in; a block of the file's size does.
    let mut bytes = fs::read(&file).unwrap();
    bytes[4096 + 512 + 8] ^= 1;
    fs::write(&file, &bytes).unwrap();
    for engine in engines.split(',').filter(|engine| *engine != "fio") {
        let ran = device(&format!("{line} --engines {engine} --block-size 1MiB")).ends_with(4);
        ran.says(&[file.to_str().unwrap(), "at offset 4608"]);
    }
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_option_and_its_range() {
    let scratch = Scratch::new();
    for (line, parts) in [
        ("--block-size 512", ["--block-size", "a multiple of 4KiB from 4KiB to 4MiB"]),
        ("--block-size 4KiB,8MiB", ["--block-size", "from 4KiB to 4MiB"]),
        ("--depth 0", ["--depth", "1..=4096"]),
        ("--rings 0", ["--rings", "1..=256"]),
        ("--sqpoll maybe", ["--sqpoll", "true"]),
        ("--depth 8,4097", ["--depth", "1..=4096"]),
        ("--threads 257", ["--threads", "1..=256"]),
        ("--file-size 1000", ["--file-size", "from 1MiB to 1024GiB"]),
        ("--workloads write", ["--workloads", "randwrite"]),
        ("--engines libaio", ["--engines", "pread-pool"]),
        ("--preset oracle", ["--preset", "ganesha"]),
        ("--direct maybe", ["--direct", "true"]),
        ("--overwrite", ["--overwrite", "--file"]),
        ("--file a --dir b", ["--file", "--dir"]),
    ] {
        device(line).ends_with(2).says(&parts);
    }
    let small = scratch.file("small", [0; 5000]);
    let line = format!("--engines pread --block-size 64KiB --file {}", small.display());
    device(&line).ends_with(2).says(&["--block-size 64.0 KiB", "small", "4.0 KiB"]);
    let dir = scratch.path("");
    let line = format!("--engines pread --file {}", dir.display());
    device(&line).ends_with(2).says(&["is no regular file"]);
    let help = run(["bench", "device", "--help"]).ends_with(0).text();
    for part in ["garnet", "ganesha", "lmcache", "chunks", "Little", "--overwrite"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
