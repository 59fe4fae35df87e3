//! `put`, `get`, `delete`, `scan` and `multi-get`.

use serde_json::json;

use crate::tool::{Scratch, environments};

#[test]
fn what_was_put_is_got_on_every_environment_and_gone_after_delete() {
    let scratch = Scratch::new();
    for env in environments() {
        scratch.on_db("put", &["fig", "green", "--env", env]).ends_with(0);
        let got = scratch.on_db("get", &["fig", "--env", env]).ends_with(0);
        assert_eq!(got.text(), "green\n", "{env}");
        scratch.on_db("delete", &["fig", "--env", env]).ends_with(0);
        let gone = scratch.on_db("get", &["fig", "--env", env]).ends_with(1).says(&["fig"]);
        assert_eq!(gone.out, b"", "{env}");
    }
}

#[test]
fn any_bytes_can_be_put_and_got_in_hex_as_escapes_and_raw() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["00ff0a", "0d09FF", "--hex"]).ends_with(0);
    let hex = scratch.on_db("get", &["00ff0a", "--hex"]).ends_with(0);
    assert_eq!(hex.text(), "0d09ff\n");
    let escaped = scratch.on_db("get", &["\\x00\\xff\\n", "--encoding", "escape"]).ends_with(0);
    assert_eq!(escaped.text(), "\\r\\t\\xff\n");
    let file = scratch.file("value", b"\x00\nany\xff");
    let put = ["k", "--value-file", file.to_str().unwrap()];
    scratch.on_db("put", &put).ends_with(0);
    assert_eq!(scratch.on_db("get", &["k", "--raw"]).ends_with(0).out, b"\x00\nany\xff");
    scratch.on_db_with("put", &["k", "--value-file", "-"], b"from input").ends_with(0);
    assert_eq!(scratch.on_db("get", &["k", "--raw"]).ends_with(0).out, b"from input");
    let json = scratch.on_db("get", &["00ff0a", "--hex", "--json"]).ends_with(0).json();
    assert_eq!(json, json!({ "key": "00ff0a", "found": true, "value": "0d09ff" }));
}

#[test]
fn a_scan_is_in_order_within_its_bounds_and_from_either_end() {
    let scratch = Scratch::new();
    scratch.fill("b\t2\na\t1\nab\t3\nc\t4\n");
    let scan = |args: &[&str]| scratch.on_db("scan", args).ends_with(0).text();
    assert_eq!(scan(&[]), "a\t1\nab\t3\nb\t2\nc\t4\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "c\t4\nb\t2\n");
    assert_eq!(scan(&["--from", "ab", "--to", "c"]), "ab\t3\nb\t2\n");
    assert_eq!(scan(&["--prefix", "a", "--keys-only"]), "a\nab\n");
    assert_eq!(scan(&["--from", "x", "--to", "b"]), "");
    let json = scratch.on_db("scan", &["--prefix", "b", "--json"]).ends_with(0).json_lines();
    assert_eq!(json, [json!({ "key": "b", "value": "2" })]);
}

#[test]
fn a_scan_into_a_closed_pipe_ends_in_silence() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    let scratch = Scratch::new();
    let lines =
        (0..20_000).map(|n| format!("{n:08}\t{}\n", "x".repeat(50))).collect::<Vec<_>>().concat();
    scratch.fill(&lines);
    let mut child = Command::new(env!("CARGO_BIN_EXE_treering"))
        .arg("scan")
        .arg(scratch.db())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 9];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(&start, b"00000000\t");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
}

#[test]
fn multi_get_answers_in_the_order_of_the_keys_and_tells_what_is_missing() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\nb\t2\nc\t3\n");
    let some = scratch.on_db("multi-get", &["c", "x", "a", "c"]).ends_with(1);
    assert_eq!(some.text(), "c\t3\na\t1\nc\t3\n");
    assert!(some.err.contains("1 of 4 keys not found"), "{}", some.err);
    let all = scratch.on_db("multi-get", &["b", "a", "--values-only"]).ends_with(0);
    assert_eq!(all.text(), "2\n1\n");
    let json = scratch.on_db("multi-get", &["x", "a", "--json"]).ends_with(1).json_lines();
    assert_eq!(json[0], json!({ "key": "x", "found": false, "value": null }));
    assert_eq!(json[1], json!({ "key": "a", "found": true, "value": "1" }));
}

#[test]
fn multi_get_takes_keys_from_a_file_in_batches_of_any_size() {
    let scratch = Scratch::new();
    let lines = (0..1000).map(|n| format!("key{n:04}\tvalue{n}\n")).collect::<Vec<_>>().concat();
    scratch.fill(&lines);
    let keys = (0..1000).rev().map(|n| format!("key{n:04}\n")).collect::<Vec<_>>().concat();
    let keys = scratch.file("keys", keys);
    let keys = keys.to_str().unwrap();
    let expected = (0..1000).rev().map(|n| format!("value{n}\n")).collect::<Vec<_>>().concat();
    for env in environments() {
        for batch in ["1", "7", "1000", "100000"] {
            let args = ["--keys-file", keys, "--values-only", "--batch", batch, "--env", env];
            let got = scratch.on_db("multi-get", &args).ends_with(0);
            assert_eq!(got.text(), expected, "{env} {batch}");
        }
    }
    let wrong = scratch.file("wrong", "6b6579\n0g\n6b657930303037\n");
    let args = ["--hex", "--keys-file", wrong.to_str().unwrap()];
    let got = scratch.on_db("multi-get", &args).ends_with(3);
    assert_eq!(got.text(), "6b657930303037\t76616c756537\n");
    got.says(&["wrong:2", "hexadecimal", "1 of 3 keys not found"]);
}

/// One key that cannot be read once kept all later ones from their answers.
#[test]
fn multi_get_answers_what_it_can_and_names_each_key_that_it_could_not_read() {
    let scratch = Scratch::new();
    let line = |n| format!("key{n:05}\tvalue {n} {}\n", "x".repeat(40));
    scratch.fill(&(0..2000).map(line).collect::<Vec<_>>().concat());
    let table = scratch.db_files(".sst").remove(0);
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let name = table.file_name().unwrap().to_str().unwrap();
    let keys = ["key01999", "key00000", "absent", "key00001", "key01998"];
    for batch in ["1", "1024"] {
        let got = scratch.on_db("multi-get", &[&keys[..], &["--batch", batch]].concat());
        let got = got.ends_with(4);
        let text = got.text();
        let answered: Vec<&str> = text.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(answered, ["key01999", "key01998"]);
        for key in ["key00000", "key00001"] {
            let said = got.err.lines().find(|line| line.starts_with(key)).unwrap();
            assert!(said.contains(name) && said.contains("at offset 0"), "{said}");
        }
        got.says(&["1 of 5 keys not found", "2 of 5 keys could not be looked up"]);
    }
    let json = scratch.on_db("multi-get", &[&keys[..], &["--json"]].concat()).ends_with(4);
    let lines = json.json_lines();
    assert_eq!(lines.len(), keys.len());
    assert_eq!(lines[1]["key"], "key00000");
    assert!(lines[1]["found"].is_null() && lines[1]["error"].as_str().unwrap().contains(name));
    assert_eq!(lines[4]["found"], true);
}

#[test]
fn memory_starts_empty_and_ends_with_the_command() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["k", "v", "--env", "mem"]).ends_with(0);
    assert!(!scratch.db().exists());
    scratch.on_db("get", &["k", "--env", "mem"]).ends_with(1);
}
