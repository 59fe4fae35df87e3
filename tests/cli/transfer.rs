//! `import` and `export`.

use std::fs;
use std::io::BufRead;
use std::process::Command;

use crate::tool::{Scratch, run, run_with};

/// Runs an import of `lines` and gives what a plain export says afterwards.
fn round_trip(lines: &[u8], args: &[&str]) -> Vec<u8> {
    let scratch = Scratch::new();
    let mut import = vec!["-"];
    import.extend(args);
    scratch.on_db_with("import", &import, lines).ends_with(0);
    scratch.on_db("export", &import).ends_with(0).out
}

#[test]
fn what_was_imported_is_exported_byte_for_byte_in_key_order() {
    let text = b"b\t2\twith a tab \\n\na\t\xffnot UTF-8\r\n\tno key\n";
    assert_eq!(round_trip(text, &[]), b"\tno key\na\t\xffnot UTF-8\r\nb\t2\twith a tab \\n\n");
    let hex = b"00\t0a\nff\t\n";
    assert_eq!(round_trip(hex, &["--hex"]), hex);
    let escaped = b"\\n\t\\x00\na\\\\\tb\\t\n";
    assert_eq!(round_trip(escaped, &["--encoding", "escape"]), escaped);
    let second = b"x\ta\n b\tb\t\n";
    assert_eq!(round_trip(second, &["--key", "2"]), second);
    let json = b"{\"n\": 1.50, \"id\":\"a\"}\n{\"id\":\"b\\u0000\"}\n";
    assert_eq!(round_trip(json, &["--format", "jsonl", "--key", "id"]), json);
    let fields = b"{\"k\":\"\\\"\",\"v\":\"x\\\\xff\"}\n";
    let args = ["--format", "jsonl", "--key", "k", "--value", "v", "--encoding", "escape"];
    assert_eq!(round_trip(fields, &args), fields);
}

/// Numbers as keys keep their digits: these differ beyond what a 64-bit float holds.
#[test]
fn long_numbers_are_different_keys() {
    let lines = b"{\"id\":123456789012345678901}\n{\"id\":123456789012345678902}\n";
    let scratch = Scratch::new();
    let import = ["-", "--format", "jsonl", "--key", "id"];
    scratch.on_db_with("import", &import, lines).ends_with(0);
    let keys = scratch.on_db("scan", &["--keys-only"]).ends_with(0).out;
    assert_eq!(keys, b"123456789012345678901\n123456789012345678902\n");
}

#[test]
fn the_last_line_of_a_key_wins_and_a_missing_last_line_feed_is_added() {
    assert_eq!(round_trip(b"k\t1\nk\t2\nk\t3", &[]), b"k\t3\n");
    let many = (0..5000).map(|n| format!("key{}\t{n}\n", n % 10)).collect::<Vec<_>>().concat();
    let exported = round_trip(many.as_bytes(), &[]);
    assert_eq!(exported.lines().count(), 10);
    assert!(exported.starts_with(b"key0\t4990\n"));
}

#[test]
fn a_bad_line_stops_the_import_with_its_number_and_what_came_before_is_kept() {
    let scratch = Scratch::new();
    let file = scratch.file("input.tsv", "a\t1\nb\t2\nno tab here\nc\t3\n");
    let file = file.to_str().unwrap();
    let stopped = scratch.on_db("import", &[file]).ends_with(3);
    stopped.says(&["input.tsv:3: no tab", "--on-error skip"]);
    assert_eq!(scratch.on_db("scan", &[] as &[&str]).ends_with(0).text(), "a\t1\nb\t2\n");
}

#[test]
fn skipping_goes_on_names_each_line_and_counts() {
    let scratch = Scratch::new();
    let lines = "{\"id\":\"a\"}\nnot json\n{\"no\":1}\n{\"id\":\"b\"}\n\n";
    let args = ["-", "--format", "jsonl", "--key", "id", "--on-error", "skip", "--json"];
    let skipped = scratch.on_db_with("import", &args, lines.as_bytes()).ends_with(1);
    let outcome = skipped.json();
    assert_eq!((outcome["rows"].as_u64(), outcome["skipped"].as_u64()), (Some(2), Some(3)));
    assert_eq!(outcome["bytes"].as_u64(), Some(lines.len() as u64));
    skipped.says(&[
        "standard input:2: not a JSON object",
        "standard input:3: no field `id`",
        "standard input:5:",
    ]);
    assert_eq!(scratch.on_db("scan", &["--keys-only"]).ends_with(0).text(), "a\nb\n");
}

#[test]
fn a_key_above_the_limit_is_a_bad_line_and_one_at_the_limit_is_not() {
    let scratch = Scratch::new();
    let longest = "k".repeat(65_535);
    let lines = format!("{longest}\t1\n{longest}x\t2\nz\t3\n");
    let args = ["-", "--on-error", "skip"];
    let skipped = scratch.on_db_with("import", &args, lines.as_bytes()).ends_with(1);
    skipped.says(&["standard input:2:", "65536 bytes", "65535"]);
    assert_eq!(scratch.on_db("get", &[longest.as_str()]).ends_with(0).text(), "1\n");
    assert_eq!(scratch.on_db("get", &["z"]).ends_with(0).text(), "3\n");
}

#[test]
fn a_header_names_the_columns() {
    let scratch = Scratch::new();
    let lines = b"city\tpopulation\r\nOslo\t709\nBergen\t291\n";
    let args = ["-", "--header", "--key", "city", "--value", "population"];
    scratch.on_db_with("import", &args, lines).ends_with(0);
    assert_eq!(scratch.on_db("get", &["Bergen"]).ends_with(0).text(), "291\n");
    let wrong = ["-", "--header", "--key", "town"];
    scratch.on_db_with("import", &wrong, lines).ends_with(2).says(&["no column `town`"]);
}

/// In a file whose first line ends in CR LF, the CR once became part of the last column.
#[test]
fn a_header_that_ends_in_cr_lf_takes_the_cr_from_every_line() {
    let lines = b"city\tpopulation\r\nOslo\t709\r\nBergen\t291\r\nRoros\t\r\n";
    let import = |args: &[&str]| {
        let scratch = Scratch::new();
        let all = [&["-", "--header"], args].concat();
        scratch.on_db_with("import", &all, lines).ends_with(0);
        scratch
    };
    let columns = import(&["--key", "city", "--value", "population"]);
    assert_eq!(columns.on_db("get", &["Bergen", "--raw"]).ends_with(0).out, b"291");
    assert_eq!(columns.on_db("get", &["Roros", "--raw"]).ends_with(0).out, b"");
    let by_last = import(&["--key", "population", "--value", "city"]);
    assert_eq!(by_last.on_db("get", &["709", "--raw"]).ends_with(0).out, b"Oslo");
    let pairs = import(&[]);
    assert_eq!(pairs.on_db("get", &["Oslo", "--raw"]).ends_with(0).out, b"709");
    // The whole line stays what it is.
    let whole = import(&["--key", "population"]);
    assert_eq!(whole.on_db("get", &["709", "--raw"]).ends_with(0).out, b"Oslo\t709\r");
    let exported = whole.on_db("export", &["-", "--key", "2"]).ends_with(0).out;
    assert_eq!(exported, b"Roros\t\r\nBergen\t291\r\nOslo\t709\r\n");
}

#[test]
fn an_export_refuses_what_its_format_cannot_hold_and_an_existing_file() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["6b0a", "76", "--hex"]).ends_with(0);
    scratch.on_db("export", &[] as &[&str]).ends_with(3).says(&["k\\n", "--hex"]);
    let jsonl = ["-", "--format", "jsonl"];
    scratch.on_db("export", &jsonl).ends_with(3).says(&["no JSON", "--value FIELD"]);
    let file = scratch.file("there", "precious");
    let file = file.to_str().unwrap();
    scratch.on_db("export", &[file, "--hex"]).ends_with(3).says(&["there exists"]);
    assert_eq!(fs::read(file).unwrap(), b"precious");
    let new = scratch.path("new");
    let args = [new.to_str().unwrap(), "--hex"];
    scratch.on_db("export", &args).ends_with(0).says(&["1 row written"]);
    assert_eq!(fs::read(new).unwrap(), b"6b0a\t76\n");
}

/// A failed export once left a part of its file, which then stood in the way of the next one.
#[test]
fn a_failed_export_leaves_nothing_and_can_be_done_again() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["61", "76", "--hex"]).ends_with(0);
    scratch.on_db("put", &["6b0a", "76", "--hex"]).ends_with(0);
    fs::create_dir(scratch.path("to")).unwrap();
    let file = scratch.path("to/file");
    let name = file.to_str().unwrap();
    scratch.on_db("export", &[name]).ends_with(3).says(&["k\\n", "--hex"]);
    assert_eq!(fs::read_dir(scratch.path("to")).unwrap().count(), 0);
    scratch.on_db("export", &[name, "--hex"]).ends_with(0);
    assert_eq!(fs::read(&file).unwrap(), b"61\t76\n6b0a\t76\n");
    assert_eq!(fs::read_dir(scratch.path("to")).unwrap().count(), 1);
    let nowhere = scratch.path("absent/file");
    let nowhere = nowhere.to_str().unwrap();
    scratch.on_db("export", &[nowhere, "--hex"]).ends_with(3).says(&[nowhere]);
}

#[test]
fn an_export_can_be_limited_to_a_range() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\nb\t2\nc\t3\n");
    let exported = scratch.on_db("export", &["-", "--from", "b"]).ends_with(0);
    assert_eq!(exported.text(), "b\t2\nc\t3\n");
}

#[test]
fn the_key_s_field_must_be_named_for_json_lines() {
    let scratch = Scratch::new();
    let args = ["-", "--format", "jsonl"];
    scratch.on_db("import", &args).ends_with(2).says(&["--key FIELD"]);
    let header = ["-", "--format", "jsonl", "--key", "k", "--header"];
    scratch.on_db("import", &header).ends_with(2).says(&["--header"]);
    assert!(!scratch.db().exists());
}

#[test]
fn an_absent_input_file_is_named() {
    let scratch = Scratch::new();
    let db = scratch.db();
    let absent = scratch.path("absent.tsv");
    let ran = run_with(["import".as_ref(), db.as_os_str(), absent.as_os_str()], b"");
    ran.ends_with(3).says(&["absent.tsv", "No such file", "FILE", "`-` stands for standard input"]);
    // A directory once left an empty database behind.
    let ran = run(["import".as_ref(), db.as_os_str(), scratch.path("").as_os_str()]);
    ran.ends_with(3).says(&["irectory", "name a file"]);
    assert!(!db.exists());
    scratch.on_db("put", &["k", "v"]).ends_with(0);
    for (command, option) in [("put", "--value-file"), ("multi-get", "--keys-file")] {
        let args: &[&str] = if command == "put" { &["k", option] } else { &[option] };
        let missing = scratch.on_db(command, &[args, &["nowhere"]].concat());
        missing.ends_with(3).says(&["cannot read nowhere", option, "standard input"]);
    }
}

/// The device is full, as far as the command can tell: a limit on the size of files.
#[test]
fn an_import_that_fails_says_how_many_entries_it_has_stored() {
    let scratch = Scratch::new();
    let value = "x".repeat(1000);
    let lines: Vec<String> = (0..24_000).map(|n| format!("{n:08}\t{value}")).collect();
    let file = scratch.path("lines.tsv");
    fs::write(&file, lines.join("\n")).unwrap();
    // In blocks of 512 bytes, 12 MB, of which the log needs more. The signal is ignored: an error.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 24000; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_treering"), "import", "--env", "posix", "--batch", "100"])
        .args([scratch.db(), file])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.windows(3).position(|three| three == ["entries", "stored", "before"]);
    let stored: usize = words[at.unwrap_or_else(|| panic!("{said}")) - 1].parse().unwrap();
    assert!(stored > 0 && stored < 24_000, "{said}");
    let scanned = run(["scan".as_ref(), scratch.db().as_os_str()]).ends_with(0);
    assert!(scanned.text().lines().count() >= stored, "{said}");
}
