//! House rules that a machine can check.
//!
//! Goal: what `docs/STYLE.md` asks of the text of the sources holds at every commit.
//! Method: read every source file of the workspace as text and look.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines a file may have. The soft limit is a ratchet: files above it are listed with the length
/// they may not outgrow.
const SOFT_LIMIT: usize = 600;
const HARD_LIMIT: usize = 800;
const ABOVE_SOFT_LIMIT: &[(&str, usize)] = &[];

/// The only files that may contain `unsafe`.
const MAY_HOLD_UNSAFE: &[&str] = &[
    "env/src/buffer/block.rs",
    "env/src/buffer/guarded.rs",
    "env/src/hint.rs",
    "env/src/os_file/mapped.rs",
    "env/src/process.rs",
    "env/src/sys/filter.rs",
    "env/src/sys/kernel/linux.rs",
    "env/src/uring/flight.rs",
    "env/src/uring/kernel.rs",
    "env/src/uring/kernel/memory.rs",
    "env/src/uring/lane.rs",
    "env/src/uring/queue/ring_side.rs",
    "env/src/uring/queue/writes.rs",
    "env/src/uring/reactor/machine.rs",
    "env/src/uring/reactor/signals.rs",
    "env/src/uring/ring.rs",
    "env/src/uring/scripted.rs",
    "env/src/uring/scripted/owed.rs",
    "env/src/uring/short.rs",
    "env/src/uring/setup.rs",
    "env/src/uring/tests/fork.rs",
    "env/src/uring/tests/storms.rs",
    "tests/db/allocator.rs",
];

/// The layer of each module of the engine; a module imports only from layers below its own.
const LAYERS: &[(u8, &[&str])] = &[
    (0, &["checksum", "clock", "coding", "cursor", "error", "filename", "key", "options"]),
    (1, &["batch", "block_cache", "memtable", "record"]),
    (2, &["table", "table_cache"]),
    (3, &["merge_iter", "version", "wal"]),
    (4, &["compaction", "stats", "trace"]),
    (5, &["db", "inspect", "iter"]),
];

/// Modules of one layer that know each other, in the one direction that they do.
const SAME_LAYER: &[(&str, &str)] = &[("db", "iter"), ("table_cache", "table")];

/// Files whose constants are part of a format, so that each stands in `docs/format/` by name.
const FORMAT_FILES: &[&str] = &["lsm/src/table/format.rs"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files_under(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files_under(&path, extension, found);
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// Every file with `extension`, by its path from the root.
fn files(extension: &str) -> BTreeMap<String, String> {
    let mut found = Vec::new();
    files_under(&root(), extension, &mut found);
    let files: BTreeMap<_, _> = found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(!files.is_empty(), "no .{extension} file found: the walk is broken");
    files
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The code of a line: without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

/// `cargo fmt` wraps code only. What cannot be wrapped is a row of a table, or a command.
#[test]
fn comments_are_no_wider_than_code() {
    let mut problems = Vec::new();
    for (name, text) in files("rs") {
        for (number, line) in (1..).zip(text.lines()) {
            let said = line.trim_start().trim_start_matches(['/', '!', ' ']);
            let wraps = line.trim_start().starts_with("//") && !said.starts_with(['|', '`']);
            if wraps && line.chars().count() > 100 && !said.starts_with("cargo run ") {
                problems.push(format!("{name}:{number}: a comment beyond column 100"));
            }
        }
    }
    report(&problems);
}

#[test]
fn files_have_a_subject_and_a_bounded_length() {
    let mut problems = Vec::new();
    for (name, text) in files("rs") {
        let lines = text.lines().count();
        let allowed = ABOVE_SOFT_LIMIT.iter().find(|(file, _)| *file == name);
        let limit = allowed.map_or(SOFT_LIMIT, |(_, limit)| *limit).min(HARD_LIMIT);
        if lines > limit {
            problems.push(format!("{name}: {lines} lines; at most {limit}: split it by subject"));
        }
        if allowed.is_some() && lines <= SOFT_LIMIT {
            problems.push(format!("{name}: {lines} lines; take it off ABOVE_SOFT_LIMIT"));
        }
        let first = text.lines().find(|line| !line.starts_with("#!"));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            problems.push(format!("{name}: begins without //! that says what the file is for"));
        }
        if name.ends_with("/mod.rs") {
            problems.push(format!("{name}: name the file after its module"));
        }
    }
    report(&problems);
}

#[test]
fn sources_are_ascii_and_hold_no_leftovers() {
    let mut problems = Vec::new();
    let leftovers = ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "X".repeat(3)];
    for (name, text) in files("rs") {
        for (number, line) in text.lines().enumerate() {
            if !line.is_ascii() {
                problems.push(format!("{name}:{}: not ASCII", number + 1));
            }
            if leftovers.iter().any(|word| line.contains(word.as_str())) {
                problems.push(format!("{name}:{}: unfinished business", number + 1));
            }
            if line.contains(&("#[ig".to_owned() + "nore")) {
                problems.push(format!("{name}:{}: a test that does not run", number + 1));
            }
        }
    }
    report(&problems);
}

#[test]
fn unsafe_code_stands_in_the_listed_files_only_and_is_justified() {
    let mut problems = Vec::new();
    let mut holders = Vec::new();
    for (name, text) in files("rs") {
        let lines: Vec<_> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let mut words = code(line).split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if !words.any(|word| word == "unsafe") || line.contains('"') {
                continue;
            }
            holders.push(name.clone());
            let before = &lines[number.saturating_sub(10)..number];
            let declared = line.contains("unsafe fn") || line.contains("unsafe extern");
            if !declared && !before.iter().any(|line| line.contains("SAFETY:")) {
                problems.push(format!("{name}:{}: unsafe without SAFETY:", number + 1));
            }
        }
    }
    holders.dedup();
    for name in &holders {
        if !MAY_HOLD_UNSAFE.contains(&name.as_str()) {
            problems.push(format!("{name}: holds unsafe and is not on the list"));
        }
    }
    for name in MAY_HOLD_UNSAFE {
        if !holders.iter().any(|holder| holder == name) {
            problems.push(format!("{name}: holds no unsafe any more; take it off the list"));
        }
    }
    report(&problems);
}

#[test]
fn the_engine_reaches_files_through_the_environment_only() {
    let mut problems = Vec::new();
    for (name, text) in files("rs") {
        if !name.starts_with("lsm/src/") && !name.starts_with("src/raft_log") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for word in ["std::fs", "std::os", "libc"] {
                if line.contains(word) {
                    problems.push(format!("{name}:{}: {word}", number + 1));
                }
            }
        }
    }
    report(&problems);
}

fn layer_of(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(_, modules)| modules.contains(&module)).map(|(layer, _)| *layer)
}

/// The modules named as `crate::module` in a line, `use crate::{a, b::c}` included.
fn imported(line: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        let list = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for item in list.unwrap_or(rest).split(',') {
            let word: String =
                item.trim().chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            modules.push(word);
            if list.is_none() {
                break;
            }
        }
    }
    modules
}

#[test]
fn modules_of_the_engine_import_from_below_only() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for (name, text) in files("rs") {
        let Some(path) = name.strip_prefix("lsm/src/") else { continue };
        let module = path.split('/').next().unwrap().trim_end_matches(".rs");
        if module == "lib" || path.ends_with("tests.rs") {
            continue;
        }
        let Some(own) = layer_of(module) else {
            problems.push(format!("{name}: module {module} is in no layer"));
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            if line.trim_start() == "mod tests {" {
                break;
            }
            for other in imported(code(line)) {
                let Some(layer) = layer_of(&other) else { continue };
                seen += 1;
                let together = SAME_LAYER.contains(&(module, other.as_str()));
                // Layer 0 knows itself: errors, options and coding are small and used by each
                // other.
                let below = layer < own || (own == 0 && layer == 0);
                if other != module && !below && !together {
                    let line = number + 1;
                    problems
                        .push(format!("{name}:{line}: {module} ({own}) uses {other} ({layer})"));
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} imports found: the search is broken");
    report(&problems);
}

#[test]
fn crates_import_one_way() {
    let manifest = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let env = manifest("env/Cargo.toml");
    assert!(!env.contains("treering-lsm"), "env must not know the engine");
    let lsm = manifest("lsm/Cargo.toml");
    assert!(!lsm.contains("path = \"..\""), "the engine must not know the facade");
}

#[test]
fn every_format_constant_is_described_in_docs_format() {
    let docs: String = files("md")
        .into_iter()
        .filter(|(name, _)| name.starts_with("docs/format/"))
        .map(|(_, text)| text)
        .collect();
    let mut problems = Vec::new();
    for name in FORMAT_FILES {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let constants: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_once("const ")?.1.split_once(':'))
            .map(|(constant, _)| constant.trim())
            .filter(|constant| constant.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
            .collect();
        for constant in constants {
            if !docs.contains(constant) {
                problems.push(format!("{name}: {constant} is not in docs/format/"));
            }
        }
    }
    report(&problems);
}

/// Links between the pages of the project lead somewhere.
#[test]
fn links_in_the_docs_resolve() {
    let mut problems = Vec::new();
    for (name, text) in files("md") {
        let dir = root().join(&name).parent().unwrap().to_path_buf();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#', ' ']).next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !dir.join(target).exists() {
                problems.push(format!("{name}: link to {target}, which is not there"));
            }
        }
    }
    report(&problems);
}

/// The areas of the case catalogue, and how many cases each has.
const CASES: &[(&str, usize)] = &[
    ("ENV", 21),
    ("URING", 37),
    ("WAL", 39),
    ("MAN", 25),
    ("WR", 11),
    ("BG", 9),
    ("ITER", 13),
    ("SNAP", 11),
    ("RDEL", 9),
    ("MGET", 11),
    ("MRG", 7),
    ("CKPT", 15),
    ("HOST", 9),
    ("LIFE", 13),
];

/// The cases named in a text, such as `WAL-04`; `CKPT-01..13` names thirteen.
fn cases_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('-') {
        let before = text[..at].rsplit(|c: char| !c.is_ascii_uppercase()).next().unwrap();
        let number = |at: usize| text.get(at..at + 2).and_then(|digits| digits.parse().ok());
        let (true, Some(first)) = (CASES.iter().any(|(area, _)| *area == before), number(at + 1))
        else {
            continue;
        };
        let many = text[at + 3..].starts_with("..");
        let last: usize = if many { number(at + 5).unwrap() } else { first };
        found.extend((first..=last).map(|number| format!("{before}-{number:02}")));
    }
    found
}

/// Each case stands once in the table of `docs/testing.md`; a case with a test is named in the
/// source of one, a case without a test in none, and the tests that the page names exist.
#[test]
fn the_table_of_cases_agrees_with_the_tests() {
    let mut problems = Vec::new();
    let mut sources = files("rs");
    sources.remove("tests/tidy.rs").unwrap();
    let in_tests: BTreeMap<String, &String> = sources
        .iter()
        .flat_map(|(name, text)| cases_in(text).into_iter().map(move |case| (case, name)))
        .collect();
    let page = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let mut in_table = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let named = cases_in(cells[1]);
        for case in &named {
            match (cells[3], in_tests.get(case)) {
                ("covered" | "partly", Some(_)) | ("not yet", None) => {}
                ("covered" | "partly", None) => problems.push(format!("{case}: in no test")),
                ("not yet", Some(name)) => problems.push(format!("{case}: in {name} though")),
                (state, _) => problems.push(format!("{case}: what is {state}?")),
            }
        }
        let tests = line.split('`').skip(1).step_by(2);
        for test in tests.filter(|_| !named.is_empty()) {
            let function = format!("fn {test}(");
            if test.contains('_') && !sources.values().any(|text| text.contains(&function)) {
                problems.push(format!("{}: no test is called {test}", cells[1]));
            }
        }
        in_table.extend(named);
    }
    let all: Vec<String> = CASES
        .iter()
        .flat_map(|(area, count)| (1..=*count).map(move |number| format!("{area}-{number:02}")))
        .collect();
    assert_eq!(in_table, all, "the table has every case once, in order");
    for (case, name) in in_tests {
        if !all.contains(&case) {
            problems.push(format!("{name}: there is no case {case}"));
        }
    }
    report(&problems);
}

/// The rules of the engine: properties of records, orders of operations; and how many there are.
const RULES: &[(char, usize)] = &[('P', 12), ('O', 14)];

/// The rules, in order.
fn rules() -> Vec<String> {
    RULES.iter().flat_map(|(kind, count)| (1..=*count).map(move |n| format!("{kind}{n}"))).collect()
}

/// The words of the comment above the function called `name`, with its attributes, if it is there.
fn comment_above(text: &str, name: &str) -> Option<Vec<String>> {
    let before = &text[..text.find(&format!("fn {name}("))?];
    let lines = before.lines().rev().skip(1).map(str::trim);
    let above = lines.take_while(|line| line.starts_with("///") || line.starts_with("#["));
    Some(above.flat_map(words).collect())
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
}

/// Each rule stands once in the table of rules; the tests that the table names for it are there and
/// name it, and a rule without a test is named by none.
#[test]
fn the_table_of_rules_agrees_with_the_tests() {
    let mut problems = Vec::new();
    let mut sources = files("rs");
    sources.remove("tests/tidy.rs").unwrap();
    let comments = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.trim_start().starts_with("//")).flat_map(words).collect()
    };
    let named: Vec<String> = sources.values().flat_map(|text| comments(text)).collect();
    let page = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let mut in_table = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let rule = cells[1].to_owned();
        if !rules().contains(&rule) {
            continue;
        }
        let tests: Vec<&str> = cells[4].split('`').skip(1).step_by(2).collect();
        match cells[3] {
            "covered" | "partly" if !tests.is_empty() => {}
            "not yet" if tests.is_empty() && !named.contains(&rule) => {}
            state => problems.push(format!("{rule}: {state}, by {} tests", tests.len())),
        }
        for test in tests {
            let above = sources.values().find_map(|text| comment_above(text, test));
            match above {
                None => problems.push(format!("{rule}: no test is called {test}")),
                Some(words) if !words.contains(&rule) => {
                    problems.push(format!("{rule}: {test} does not say that it holds it"));
                }
                Some(_) => {}
            }
        }
        in_table.push(rule);
    }
    assert_eq!(in_table, rules(), "the table has every rule once, in order");
    report(&problems);
}
