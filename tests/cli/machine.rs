//! `doctor`, `stats` and `compact`.

use crate::tool::{Scratch, environments, reported, run};

#[test]
fn doctor_says_what_works_here_and_what_to_use() {
    let dir = env!("CARGO_TARGET_TMPDIR");
    let report = run(["doctor", dir, "--json"]).ends_with(0).json();
    assert!(report["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{report}");
    let available = report["io_uring"]["available"].as_bool().unwrap();
    assert_eq!(available, report["io_uring"]["why_not"].is_null(), "{report}");
    assert!(report["file_system"].is_string(), "{report}");
    let kinds = ["starts", "only_looks", "unsupported", "unknown"];
    assert!(kinds.contains(&report["nowait_miss"].as_str().unwrap()), "{report}");
    let options = report["io_uring"]["options"].as_array().unwrap();
    let names: Vec<_> = options.iter().map(|option| option["option"].as_str().unwrap()).collect();
    assert_eq!(names, ["fixed_buffers", "sqpoll", "iopoll"]);
    assert!(options.iter().all(|o| o["possible"].is_boolean() && o["why"].is_string()), "{report}");
    let cgroup = &report["memory_cgroup"];
    assert_eq!(cgroup["allowed"].as_bool().unwrap(), cgroup["why_not"].is_null(), "{report}");
    let advised = report["advised"].as_str().unwrap();
    assert!(environments().contains(&advised), "{report}");
    let text = run(["doctor", dir]).ends_with(0).text();
    assert!(text.contains(&format!("use: --env {advised}")), "{text}");
    assert!(text.contains("memory cgroups: "), "{text}");
    assert_eq!(text.matches("\n  option ").count(), 3, "{text}");
}

#[test]
fn doctor_tries_the_environment_asked_for_and_leaves_nothing() {
    let scratch = Scratch::new();
    let dir = scratch.path("dir");
    std::fs::create_dir(&dir).unwrap();
    let doctor = |more: &[&str]| {
        let args = ["doctor", dir.to_str().unwrap()];
        run(args.iter().chain(more))
    };
    for env in environments().into_iter().chain(["mem"]) {
        let text = doctor(&["--env", env]).ends_with(0).text();
        assert!(text.contains(&format!("tried --env {env}: wrote, synced and read")), "{text}");
        assert!(text.contains("use: --env "), "{text}");
        assert_eq!(text.contains("--env auto took environment: "), env == "auto", "{text}");
        let report = doctor(&["--env", env, "--json"]).ends_with(0).json();
        let tried = &report["tried"];
        assert_eq!((&tried["env"], &tried["works"]), (&env.into(), &true.into()), "{report}");
        assert!(tried["why_not"].is_null(), "{report}");
        let used = tried["environment"]["env"].as_str().unwrap();
        assert!(reported(env) == used || env == "auto", "{report}");
        if env == "io_uring-direct" {
            let reads = &tried["environment"]["counters"]["ring_reads"];
            assert!(reads.as_u64().unwrap() > 0, "{report}");
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{env}");
    }
    assert!(doctor(&["--json"]).ends_with(0).json()["tried"].is_null());
    doctor(&["--env", "posixx"]).ends_with(2);
    // `/proc` takes no new file, whoever asks.
    let refused = run(["doctor", "/proc", "--env", "posix"]).ends_with(3);
    let refused = refused.says(&["--env posix does not work here: create /proc/"]);
    let text = refused.text();
    assert!(text.contains("file system of /proc") && !text.contains("use: --env"), "{text}");
    let report = run(["doctor", "/proc", "--env", "posix", "--json"]).ends_with(3).json();
    assert_eq!(report["tried"]["works"], false, "{report}");
    assert!(report["tried"]["why_not"].as_str().unwrap().contains("create /proc/"), "{report}");
}

#[test]
fn doctor_needs_a_directory_that_is_there() {
    let scratch = Scratch::new();
    let absent = scratch.path("absent");
    run(["doctor".as_ref(), absent.as_os_str()]).ends_with(3).says(&["does not exist"]);
    let file = scratch.file("file", "");
    run(["doctor".as_ref(), file.as_os_str()]).ends_with(3).says(&["not a directory"]);
}

#[test]
fn stats_tell_of_the_tables_the_recovery_and_the_environment() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\nb\t2\n");
    scratch.on_db("put", &["c", "3"]).ends_with(0);
    for env in environments() {
        let stats = scratch.on_db("stats", &["--env", env, "--json"]).ends_with(0).json();
        let family = &stats["stats"]["families"][0];
        assert_eq!(family["name"], "default", "{stats}");
        assert_eq!(stats["recovery"]["created"], false, "{stats}");
        let used = stats["environment"]["env"].as_str().unwrap();
        assert!(reported(env) == used || env == "auto", "{stats}");
        assert_eq!(env == "auto", stats["auto"].is_string(), "{stats}");
        assert!(stats["environment"]["counters"].is_object(), "{stats}");
    }
    let text = scratch.on_db("stats", &["--env", "posix"]).ends_with(0).text();
    assert_eq!(text.matches("recovery: ").count(), 1, "{text}");
    // The log and the manifest of before are replaced at every open.
    assert!(!text.contains("left-over"), "{text}");
    for part in ["recovery: ", "family default", "environment: posix"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_environment_can_come_from_the_surroundings() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\n");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_treering"))
        .arg("stats")
        .arg(scratch.db())
        .arg("--json")
        .env("TREERING_ENV", "posix-serial")
        .output()
        .unwrap();
    assert!(output.status.success());
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stats["environment"]["env"], "posix-serial");
}

/// The rings once took the descriptors that the files then lacked.
#[test]
fn few_descriptors_are_left_to_the_files_and_too_few_are_explained() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\n");
    let limited = |limit: u32, command: &str, env: &str| {
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let output = std::process::Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_treering"), command])
            .arg(scratch.db())
            .args(if command == "get" { &["a"][..] } else { &[] })
            .args(["--env", env])
            .env_remove("TREERING_ENV")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    for env in environments() {
        for limit in [24, 31, 32, 64] {
            let (code, out, said) = limited(limit, "get", env);
            assert_eq!((code, out.as_str()), (Some(0), "1\n"), "{env} {limit}: {said}");
        }
    }
    if environments().contains(&"io_uring") {
        let (code, out, said) = limited(32, "stats", "io_uring");
        assert_eq!(code, Some(0), "{said}");
        let rings = out.lines().find(|line| line.contains("rings: 8 of ")).unwrap();
        assert!(rings.contains("Too many open files"), "{rings}");
    }
    let (code, _, said) = limited(5, "get", "posix");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("ulimit -n"), "{said}");
}

#[test]
fn a_wrong_variable_is_named_and_an_empty_one_is_none() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\n");
    let get = |value: &str, more: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_treering"))
            .arg("get")
            .arg(scratch.db())
            .arg("a")
            .args(more)
            .env("TREERING_ENV", value)
            .output()
            .unwrap()
    };
    let wrong = get("posixx", &[]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("TREERING_ENV is `posixx`") && said.contains("io_uring"), "{said}");
    assert_eq!(get("posixx", &["--env", "posix"]).stdout, b"1\n");
    assert_eq!(get("", &[]).stdout, b"1\n");
}

#[test]
fn compact_leaves_one_sorted_level_without_what_was_deleted() {
    let scratch = Scratch::new();
    let lines =
        (0..3000).map(|n| format!("key{n:05}\t{}\n", "v".repeat(100))).collect::<Vec<_>>().concat();
    scratch.fill(&lines);
    let bytes = |json: serde_json::Value| -> u64 {
        let levels = json["families"][0]["levels"].as_array().unwrap().clone();
        levels.iter().map(|level| level["bytes"].as_u64().unwrap()).sum()
    };
    let before = bytes(scratch.on_db("compact", &["--json"]).ends_with(0).json());
    for n in 0..30 {
        scratch.on_db("delete", &[format!("key{n:05}")]).ends_with(0);
    }
    let stats = scratch.on_db("compact", &["--json"]).ends_with(0).json();
    assert_eq!(stats["families"][0]["levels"][0]["files"], 0, "{stats}");
    assert!(bytes(stats) < before);
    let rest = scratch.on_db("scan", &["--limit", "1", "--keys-only"]).ends_with(0).text();
    assert_eq!(rest, "key00030\n");
}

#[test]
fn the_memory_of_an_environment_is_set_and_what_makes_no_sense_is_refused() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["k", "v"]).ends_with(0);
    for env in environments() {
        let args = ["--env", env, "--buffer-pool", "3MiB"];
        let text = scratch.on_db("stats", &args).ends_with(0).text();
        assert!(text.contains("at most 3072 KiB kept"), "{env}: {text}");
        let ahead = scratch.on_db("stats", &["--env", env, "--read-ahead", "5MiB"]);
        if env == "io_uring-direct" {
            let text = ahead.ends_with(0).text();
            assert!(text.contains("direct files read ahead: 0 of at most 5120 KiB"), "{text}");
        } else {
            ahead.ends_with(2).says(&["--read-ahead", env]);
        }
    }
    for option in ["--buffer-pool", "--read-ahead"] {
        let ran = scratch.on_db("get", &["k", option, "65GiB"]).ends_with(2);
        ran.says(&[option, "from 0 to 64GiB"]);
    }
}
