//! Dumps: what the lines say, and that damage is an error after them.

use super::*;
use crate::Error;

fn dumped(env: &MemEnv, path: &Path, limit: u64) -> (Vec<String>, Result<()>) {
    let mut lines = Vec::new();
    let result = dump(Arc::new(env.clone()), path, limit, &mut |item| {
        lines.extend(item.to_string().lines().map(str::to_owned));
        true
    });
    (lines, result)
}

fn has(lines: &[String], wanted: &str) -> bool {
    lines.iter().any(|line| line.contains(wanted))
}

#[test]
fn a_log_is_printed_record_by_record() {
    let sample = sample();
    let (lines, result) = dumped(&sample.env, &sample.logs[1], u64::MAX);
    result.unwrap();
    for wanted in [
        "begin   record 5, 48 bytes, durable below 0: log segment",
        "which ended at",
        "data    record 6",
        "sequence 705, 2 operations",
        "put in family 0: \"key00705\" = \"logged\\x0a705\"",
        "delete in family 0: \"gone\"",
        "end     record 8",
        "goes on in",
    ] {
        assert!(has(&lines, wanted), "{wanted}\n{}", lines.join("\n"));
    }
    assert_eq!(lines.len(), 1 + 2 * 3 + 1);
    let (lines, result) = dumped(&sample.env, &sample.logs[2], u64::MAX);
    result.unwrap();
    assert!(has(&lines, "no more records"), "{}", lines.join("\n"));
}

#[test]
fn a_manifest_is_printed_edit_by_edit() {
    let sample = sample();
    let (lines, result) = dumped(&sample.env, &sample.manifest, u64::MAX);
    result.unwrap();
    for wanted in [
        "manifest 0",
        "whole state, format 0",
        "add family 0: \"default\"",
        "flushed up to sequence 700",
        "400 entries, sequences 1 to 400, keys \"key00001\" to \"key00400\"",
        "4096 bytes prepared, first record 1, not ended",
        "with record 4",
    ] {
        assert!(has(&lines, wanted), "{wanted}\n{}", lines.join("\n"));
    }
}

#[test]
fn a_table_is_printed_block_by_block() {
    let sample = sample();
    let (lines, result) = dumped(&sample.env, &sample.tables[0], u64::MAX);
    result.unwrap();
    for wanted in [
        "400 entries, 40 of them deletions, sequences 1 to 400",
        "smallest key \"key00001\" at 1",
        "block at 0,",
        "block at 4096,",
        "  \"key00008\" at 8 = \"value of 8 value of 8 value of 8 value of 8 \"",
        "  \"key00009\" at 9 deleted",
        "  \"key00400\" at 400 = ",
    ] {
        assert!(has(&lines, wanted), "{wanted}\n{}", lines.join("\n"));
    }
}

#[test]
fn current_is_printed_with_what_it_names() {
    let sample = sample();
    let (lines, result) = dumped(&sample.env, &sample.current, u64::MAX);
    result.unwrap();
    assert!(lines[0].starts_with("\"MANIFEST-0"), "{lines:?}");
    assert!(lines[1].starts_with("names manifest 0"), "{lines:?}");
}

/// The fields are those that the documentation of `Item` names, in its order, and say what the
/// text says; keys and values are whole in them.
#[test]
fn items_have_the_documented_fields_for_programs() {
    let sample = sample();
    let mut documented = std::collections::BTreeMap::new();
    let rows = include_str!("../item.rs").lines().filter_map(|line| line.strip_prefix("/// | `"));
    // The first row is the head of the table.
    for row in rows.skip(1) {
        let mut cells = row.split(" | ");
        let (kinds, fields) = (cells.next().unwrap(), cells.nth(1).unwrap());
        // Words in parentheses explain a field.
        let mut names = Vec::new();
        if fields.starts_with("a record's") {
            names.extend(["offset", "record", "bytes", "durable_below"]);
        }
        for part in fields.split(['(', ')']).step_by(2) {
            names.extend(part.split('`').skip(1).step_by(2));
        }
        for kind in kinds.split([',', ' ', '`']).filter(|kind| !kind.is_empty()) {
            documented.insert(kind, names.clone());
        }
    }
    let paths = [&sample.logs[0], &sample.logs[1], &sample.logs[2], &sample.manifest];
    let mut met = std::collections::BTreeSet::new();
    for path in paths.into_iter().chain(&sample.tables).chain([&sample.current]) {
        let mut sequence = 0;
        dump(Arc::new(sample.env.clone()), path, u64::MAX, &mut |item| {
            let mut expected = documented.get(item.what).expect("it is documented").clone();
            if item.what == "delete" {
                assert_eq!(expected.pop(), Some("value"));
            }
            let names: Vec<&str> = item.fields.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, expected, "{}", item.what);
            met.insert(item.what);
            let field = |name| item.fields.iter().find(|(found, _)| *found == name).unwrap().1;
            if item.what == "data" {
                let Field::Number(first) = field("sequence") else { panic!("{item:?}") };
                sequence = first;
            }
            if item.what == "put" && sequence > 0 {
                let key = format!("key{sequence:05}");
                let value = format!("logged\n{sequence}");
                assert_eq!(field("sequence"), Field::Number(sequence));
                assert_eq!(field("key"), Field::Bytes(key.as_bytes()));
                assert_eq!(field("value"), Field::Bytes(value.as_bytes()));
            }
            if item.what == "delete" && sequence > 0 {
                assert_eq!(field("sequence"), Field::Number(sequence + 1));
            }
            true
        })
        .unwrap();
    }
    for kind in ["spare", "marker", "drop_family", "remove_table"] {
        assert!(documented.remove(kind).is_some(), "{kind}");
    }
    assert_eq!(met, documented.keys().copied().collect());
}

#[test]
fn the_limit_counts_records_and_entries() {
    let sample = sample();
    let (lines, result) = dumped(&sample.env, &sample.logs[1], 2);
    result.unwrap();
    assert_eq!(lines.len(), 1 + 3, "a first record, and a write of two operations");
    let entries = |limit| {
        let (lines, result) = dumped(&sample.env, &sample.tables[0], limit);
        result.unwrap();
        lines.iter().filter(|line| line.starts_with("  \"")).count()
    };
    assert_eq!((entries(0), entries(3), entries(u64::MAX)), (0, 3, 400));
}

#[test]
fn a_sink_that_has_enough_ends_the_dump() {
    let sample = sample();
    for path in [&sample.logs[1], &sample.manifest, &sample.tables[0]] {
        for enough in 1..6 {
            let mut count = 0;
            dump(Arc::new(sample.env.clone()), path, u64::MAX, &mut |_| {
                count += 1;
                count < enough
            })
            .unwrap();
            assert_eq!(count, enough);
        }
    }
}

/// A name says what a file is; without one of ours, its content does.
#[test]
fn a_copy_under_another_name_is_recognized() {
    let sample = sample();
    for (path, wanted) in [
        (&sample.logs[1], "log segment"),
        (&sample.manifest, "whole state"),
        (&sample.tables[0], "bits of filter"),
    ] {
        let copy = with_bytes(&sample.env, Path::new("copy.bak"), &bytes_of(&sample.env, path));
        let (lines, result) = dumped(&copy, Path::new("copy.bak"), u64::MAX);
        result.unwrap();
        assert!(has(&lines, wanted), "{wanted}\n{}", lines.join("\n"));
    }
}

#[test]
fn a_spare_is_named_as_such() {
    let sample = sample();
    Spare::create(&sample.env, dir(), 99, &LOG_OPTIONS).unwrap();
    let (lines, result) = dumped(&sample.env, &FileName::Log(99).path(dir()), u64::MAX);
    result.unwrap();
    assert_eq!(lines, ["a spare: prepared, without a first record"]);
}

/// HOST-09: every damage ends a dump with an error that names the file; what stands before it
/// was printed.
#[test]
fn a_dump_of_a_damaged_file_is_an_error() {
    let sample = sample();
    let cases = [
        (&sample.logs[0], sample.log_ends[0]),
        (&sample.logs[2], sample.log_ends[2]),
        (&sample.manifest, bytes_of(&sample.env, &sample.manifest).len() as u64),
        (&sample.tables[0], bytes_of(&sample.env, &sample.tables[0]).len() as u64),
        (&sample.current, bytes_of(&sample.env, &sample.current).len() as u64),
    ];
    for (path, end) in cases {
        let end = usize::try_from(end).unwrap();
        for offset in (0..end).step_by(31) {
            let (_, result) = dumped(&flipped(&sample.env, path, offset), path, u64::MAX);
            match result {
                Err(Error::Corruption { path: found, .. }) => assert_eq!(&found, path),
                other => {
                    // Padding between the blocks of a table is nobody's.
                    let between =
                        path == &sample.tables[0] && bytes_of(&sample.env, path)[offset] == 0;
                    assert!(between, "{} offset {offset}: {other:?}", path.display());
                }
            }
        }
    }
    let (lines, _) = dumped(&flipped(&sample.env, &sample.tables[0], 5000), &sample.tables[0], 999);
    assert!(has(&lines, "key00008"), "the first block was printed");
}

/// HOST-09: a text file, a missing file, a directory, a file of another kind under our name.
#[test]
fn what_is_no_file_of_ours_is_a_clear_error() {
    let sample = sample();
    let text = b"Dear reader, this is a text file and nothing else, as anyone can see at once.\n";
    let env = with_bytes(&sample.env, Path::new("notes.txt"), text);
    let message = |env: &MemEnv, path: &str| {
        dumped(env, Path::new(path), u64::MAX).1.unwrap_err().to_string()
    };
    assert!(message(&env, "notes.txt").contains("is no file of a Treering database"));
    assert!(message(&env, "db").contains("it is a directory"));
    assert!(message(&env, "db/LOCK").contains("a lock file holds nothing"));
    assert!(message(&env, "nowhere.sst").contains("nowhere.sst"));
    let empty = with_bytes(&sample.env, Path::new("empty"), b"");
    assert!(message(&empty, "empty").contains("is no file of a Treering database"));
    for name in ["db/000901.log", "db/MANIFEST-000902", "db/000903.sst", "db/CURRENT"] {
        let env = with_bytes(&sample.env, Path::new(name), text);
        let result = dumped(&env, Path::new(name), u64::MAX).1;
        assert!(matches!(result, Err(Error::Corruption { .. })), "{name}: {result:?}");
    }
    // A manifest under a log's name.
    let manifest = bytes_of(&sample.env, &sample.manifest);
    let env = with_bytes(&sample.env, Path::new("db/000901.log"), &manifest);
    let error = message(&env, "db/000901.log");
    assert!(error.contains("another kind of file"), "{error}");
}

#[test]
fn bytes_are_quoted_escaped_and_shortened() {
    let quoted = |bytes: &[u8]| dump::Quoted(bytes).to_string();
    assert_eq!(quoted(b"plain key"), "\"plain key\"");
    assert_eq!(quoted(b"\"\\\n\x00\xff~\x7f"), "\"\\\"\\\\\\x0a\\x00\\xff~\\x7f\"");
    assert_eq!(quoted(&[b'a'; 1025]), format!("\"{}\" and 1 bytes more", "a".repeat(1024)));
}
