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
    let wrong = scratch.file("wrong", "00\n0g\n");
    let args = ["--hex", "--keys-file", wrong.to_str().unwrap()];
    scratch.on_db("multi-get", &args).ends_with(3).says(&["wrong:2", "hexadecimal"]);
}

#[test]
fn memory_starts_empty_and_ends_with_the_command() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["k", "v", "--env", "mem"]).ends_with(0);
    assert!(!scratch.db().exists());
    scratch.on_db("get", &["k", "--env", "mem"]).ends_with(1);
}
