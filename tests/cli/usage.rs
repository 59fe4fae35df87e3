//! Wrong command lines and wrong places.

use std::fs;

use crate::tool::{Scratch, run};

const COMMANDS: &[&str] = &[
    "put",
    "get",
    "delete",
    "scan",
    "multi-get",
    "import",
    "export",
    "stats",
    "verify",
    "dump",
    "compact",
    "doctor",
    "bench",
];

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = run(["--help"]).ends_with(0).text();
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in {help}");
        let own = run([*command, "--help"]).ends_with(0).text();
        assert!(own.contains("Usage: treering"), "{own}");
    }
    for exit in ["Exit codes:\n  0  done", "\n  1  no: ", "\n  2  ", "\n  3  ", "\n  4  damage"] {
        assert!(help.contains(exit), "{exit}: {help}");
    }
    assert!(run(["bench", "envs", "--help"]).ends_with(0).text().contains("--memory-limit"));
    assert!(run(["--version"]).ends_with(0).text().starts_with("treering "));
}

#[test]
fn a_wrong_command_line_ends_with_2_and_touches_nothing() {
    let scratch = Scratch::new();
    let db = scratch.db();
    let db = db.to_str().unwrap();
    let wrong: &[&[&str]] = &[
        &[],
        &["frobnicate"],
        &["put", db],
        &["put", db, "k"],
        &["put", db, "k", "v", "--value-file", "f"],
        &["put", db, "0g", "00", "--hex"],
        &["put", db, "k", "v", "--env", "posixx"],
        &["put", db, "k", "v", "--durability", "forever"],
        &["get", db],
        &["get", db, "k", "--raw", "--json"],
        &["scan", db, "--limit", "x"],
        &["scan", db, "--prefix", "a", "--from", "b"],
        &["multi-get", db],
        &["multi-get", db, "k", "--keys-file", "f"],
        &["multi-get", db, "k", "--batch", "0"],
        &["import", db, "--format", "xml"],
        &["import", db, "--hex", "--encoding", "text"],
        &["export", db, "--format", "jsonl", "--value", "v"],
        &["bench"],
        &["bench", "envs", "--workloads", "get,dance"],
        &["bench", "envs", "--value-size", "4KB"],
        &["bench", "envs", "--value-size", "7"],
        &["bench", "envs", "--keys", "0"],
        &["bench", "envs", "--threads", "0"],
        &["bench", "envs", "--seconds", "0"],
        &["bench", "envs", "--memory-limit", "0"],
    ];
    for args in wrong {
        let ran = run(*args).ends_with(2);
        assert!(!ran.err.is_empty() && ran.out.is_empty(), "{args:?}");
        assert!(!scratch.db().exists(), "{args:?}");
    }
    run(["put", db, "k", "v", "--env", "posixx"]).ends_with(2).says(&["posix-serial", "io_uring"]);
}

#[test]
fn a_number_out_of_range_is_told_the_option_and_the_range() {
    let huge = "99999999999999999999";
    for (args, range) in [
        (&["scan", "db", "--limit", huge][..], "18446744073709551615"),
        (&["bench", "envs", "--keys", "0"], "1 to 1,000,000,000"),
        (&["bench", "envs", "--keys", huge], "1 to 1,000,000,000"),
        (&["bench", "envs", "--memory-limit", "0"], "16MiB to 1024GiB"),
        (&["bench", "envs", "--value-size", "2GiB"], "8 B to 1GiB"),
        (&["bench", "envs", "--block-cache", huge], "0 to 1024GiB"),
        (&["bench", "envs", "--batch", "0"], "1..=1000000"),
        (&["bench", "envs", "--batch", "-5"], "1..=1000000"),
        (&["bench", "envs", "--keys", "-1"], "1 to 1,000,000,000"),
        (&["bench", "device", "--seconds", "-1"], "above 0"),
        (&["scan", "db", "--limit", "-1"], "must not be negative"),
    ] {
        run(args).ends_with(2).says(&[args[args.len() - 2], range]);
    }
}

#[test]
fn a_missing_directory_is_no_database_and_is_not_created_by_reading() {
    let scratch = Scratch::new();
    for (command, rest) in [
        ("get", &["k"][..]),
        ("delete", &["k"]),
        ("scan", &[]),
        ("multi-get", &["k"]),
        ("export", &[]),
        ("stats", &[]),
        ("verify", &[]),
        ("compact", &[]),
    ] {
        let ran = scratch.on_db(command, rest).ends_with(3);
        assert!(ran.err.contains(scratch.db().to_str().unwrap()), "{command}: {}", ran.err);
        // What to set in a program is no advice to a user of the command line.
        assert!(!ran.err.contains("create_if_missing"), "{command}: {}", ran.err);
        assert!(ran.err.contains("`treering put`"), "{command}: {}", ran.err);
        assert!(!scratch.db().exists(), "{command}");
    }
    fs::create_dir(scratch.db()).unwrap();
    let ran = scratch.on_db("get", &["k"]).ends_with(3).says(&["CURRENT", "`treering import`"]);
    assert!(!ran.err.contains("create_if_missing"), "{}", ran.err);
}

#[test]
fn a_directory_of_other_files_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.db()).unwrap();
    let note = scratch.file("db/notes.txt", "mine");
    for (command, rest) in [("put", &["k", "v"][..]), ("get", &["k"]), ("verify", &[])] {
        let ran = scratch.on_db(command, rest).ends_with(3);
        assert!(ran.err.contains("not a Treering database"), "{command}: {}", ran.err);
    }
    assert_eq!(fs::read(&note).unwrap(), b"mine");
    assert_eq!(fs::read_dir(scratch.db()).unwrap().count(), 1);
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.file("db", "text");
    let ran = scratch.on_db("put", &["k", "v"]).ends_with(3);
    assert!(ran.err.contains(file.to_str().unwrap()), "{}", ran.err);
    assert!(!ran.err.contains("`treering put`"), "{}", ran.err);
    ran.says(&["a database is a directory"]);
    assert_eq!(fs::read(file).unwrap(), b"text");
}

#[test]
fn a_link_that_leads_nowhere_is_told_with_where_it_leads() {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink("gone", scratch.db()).unwrap();
    for (command, rest) in [("put", &["k", "v"][..]), ("get", &["k"]), ("verify", &[])] {
        let ran = scratch.on_db(command, rest).ends_with(3);
        ran.says(&["a symbolic link to gone", "make that directory"]);
    }
}

#[test]
fn a_missing_directory_for_what_is_to_be_made_is_named() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["-1", "-2"]).ends_with(0);
    let there = scratch.path("nowhere/file");
    let there = there.to_str().unwrap();
    scratch.on_db("export", &[there]).ends_with(3).says(&["there is no directory", "make it"]);
    let bench = ["bench", "envs", "--quick", "--json", there];
    run(bench).ends_with(3).says(&["there is no directory", "make it"]);
    let bench = ["bench", "device", "--file-size", "1MiB", "--dir", there];
    run(bench).ends_with(3).says(&["there is no directory", "--dir"]);
    let short = scratch.file("short", "1234");
    let bench = ["bench", "device", "--file", short.to_str().unwrap()];
    run(bench).ends_with(2).says(&["has 4 bytes", "4.0 KiB", "--file-size"]);
}

#[test]
fn a_database_that_is_open_elsewhere_says_what_to_do() {
    let scratch = Scratch::new();
    scratch.fill("k\tv\n");
    let held = treering::Db::open_default(scratch.db()).unwrap();
    scratch.on_db("get", &["k"]).ends_with(3).says(&["in use", "stop the other one"]);
    held.close().unwrap();
    scratch.on_db("get", &["k"]).ends_with(0);
}

#[test]
fn an_oversized_key_is_refused_with_its_limit() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["k", "v"]).ends_with(0);
    let file = scratch.file("keys", format!("{}\n", "k".repeat(70_000)));
    let args = ["--keys-file", file.to_str().unwrap()];
    // A key that cannot be stored is not there.
    scratch.on_db("multi-get", &args).ends_with(1).says(&["1 of 1 keys not found"]);
    let key = "k".repeat(70_000);
    let limit = &["the key has 70000 bytes; the limit is 65535"];
    let absent = scratch.path("absent");
    for command in ["put", "delete"] {
        let args = if command == "put" { &[key.as_str(), "v"][..] } else { &[key.as_str()] };
        scratch.on_db(command, args).ends_with(3).says(limit);
        let elsewhere = [&[command, absent.to_str().unwrap()], args].concat();
        run(elsewhere).ends_with(3).says(limit);
        assert!(!absent.exists(), "{command} made a database for a key that cannot be stored");
    }
    let longest = "k".repeat(65_535);
    scratch.on_db("put", &[longest.as_str(), "v"]).ends_with(0);
    assert_eq!(scratch.on_db("get", &[longest.as_str()]).ends_with(0).text(), "v\n");
    let line = format!("{key}\tv\n");
    scratch.on_db_with("import", &[] as &[&str], line.as_bytes()).ends_with(3).says(limit);
}

#[test]
fn an_oversized_value_is_refused_with_its_limit_before_anything_is_read_or_made() {
    let scratch = Scratch::new();
    // A hole: nothing of it is on the disk.
    let large = scratch.file("large", "");
    fs::OpenOptions::new().write(true).open(&large).unwrap().set_len((1 << 30) + 1).unwrap();
    let args = ["k", "--value-file", large.to_str().unwrap()];
    let said = scratch.on_db("put", &args).ends_with(3);
    said.says(&[large.to_str().unwrap(), "1073741824 bytes, which is the limit"]);
    assert!(!scratch.db().exists());
}
