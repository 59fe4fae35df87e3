//! Real input end to end: icons of an npm package (see `tests/data/README.md`), imported on one
//! environment, read on another, looked up from a file of keys, exported, compared byte for byte.

use std::fs;

use crate::tool::{Scratch, environments, repository};

fn sorted_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

#[test]
fn icons_come_back_byte_for_byte_whatever_environment_wrote_them() {
    let input = repository("tests/data/feather.jsonl");
    let original = fs::read(&input).unwrap();
    let input = input.to_str().unwrap();
    let json = ["--format", "jsonl", "--key", "id"];
    let envs = environments();
    for (turn, env) in envs.iter().enumerate() {
        let scratch = Scratch::new();
        let other = envs[(turn + 1) % envs.len()];
        let on = |args: &[&str], env: &str| {
            [args, &["--env", env]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut import = on(&json, env);
        import.push(input.to_owned());
        scratch.on_db("import", &import).ends_with(0).says(&["286 rows stored, 0 skipped"]);

        // The keys, in an order that is not theirs.
        let text = String::from_utf8(original.clone()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.reverse();
        let id = |line: &str| line.split('"').nth(3).unwrap().to_owned() + "\n";
        let keys = scratch.file("keys", lines.iter().map(|line| id(line)).collect::<String>());
        let mut lookup = on(&["--values-only", "--batch", "100"], other);
        lookup.extend(["--keys-file".to_owned(), keys.to_str().unwrap().to_owned()]);
        let found = scratch.on_db("multi-get", &lookup).ends_with(0).text();
        assert!(found.lines().eq(lines.iter().copied()), "{env} then {other}");

        scratch.on_db("compact", &on(&[], other)).ends_with(0);
        let exported = scratch.on_db("export", &on(&json, env)).ends_with(0).out;
        assert_eq!(sorted_lines(&exported), sorted_lines(&original), "{env} then {other}");
        scratch.on_db("verify", &on(&[], env)).ends_with(0);
    }
}
