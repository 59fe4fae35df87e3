//! Named pipes, sockets and directories where files should be: nothing waits for them, nothing
//! takes them for data, and the rest is still looked at.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::tool::{Scratch, run};

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn directory(path: &Path) {
    fs::create_dir(path).unwrap();
}

/// A database with two tables and a log, on the environments' plain files.
fn database() -> Scratch {
    let scratch = Scratch::new();
    let lines = |range: std::ops::Range<u32>| -> String {
        range.map(|n| format!("key{n:05}\tvalue {n}\n")).collect::<Vec<_>>().concat()
    };
    scratch.fill(&lines(0..1000));
    scratch.on_db_with("import", &[] as &[&str], lines(1000..1100).as_bytes()).ends_with(0);
    // Opening makes a table of what the log holds.
    scratch.on_db("put", &["last", "one"]).ends_with(0);
    assert_eq!(scratch.db_files(".sst").len(), 2);
    scratch
}

fn manifest(scratch: &Scratch) -> PathBuf {
    let current = fs::read_to_string(scratch.path("db/CURRENT")).unwrap();
    scratch.path("db").join(current.split_whitespace().next().unwrap())
}

/// HOST-09
#[test]
fn what_stands_in_place_of_a_file_is_damage_and_nobody_waits_for_it() {
    let scratch = database();
    let log = scratch.db_files(".log").pop().unwrap();
    let table = scratch.db_files(".sst").remove(0);
    let aside = scratch.path("aside");
    for file in [scratch.path("db/CURRENT"), manifest(&scratch), table, log] {
        for put in [pipe, directory] {
            fs::rename(&file, &aside).unwrap();
            put(&file);
            let name = file.file_name().unwrap().to_str().unwrap();
            let found = scratch.on_db("verify", &[] as &[&str]).ends_with(4);
            assert!(found.text().contains(name), "{name}: {}", found.text());
            let got = scratch.on_db("scan", &[] as &[&str]).ends_with(4);
            assert!(got.err.contains(name), "{name}: {}", got.err);
            if file.is_dir() {
                fs::remove_dir(&file).unwrap();
            } else {
                fs::remove_file(&file).unwrap();
            }
            fs::rename(&aside, &file).unwrap();
        }
    }
    scratch.on_db("verify", &[] as &[&str]).ends_with(0);
}

/// HOST-09
#[test]
fn verify_goes_on_behind_a_table_that_is_a_directory() {
    let scratch = database();
    let tables = scratch.db_files(".sst");
    fs::remove_file(&tables[0]).unwrap();
    directory(&tables[0]);
    let mut bytes = fs::read(&tables[1]).unwrap();
    bytes[10] ^= 1;
    fs::write(&tables[1], bytes).unwrap();
    let report = scratch.on_db("verify", &["--json"]).ends_with(4).json();
    let damages = report["damages"].as_array().unwrap();
    for table in &tables {
        let found = damages.iter().any(|damage| damage["path"].as_str() == table.to_str());
        assert!(found, "{table:?}: {damages:?}");
    }
}

#[test]
fn only_regular_files_are_dumped() {
    let scratch = Scratch::new();
    let (fifo, socket) = (scratch.path("000007.sst"), scratch.path("000008.log"));
    pipe(&fifo);
    let _socket = UnixListener::bind(&socket).unwrap();
    for path in [fifo, socket, scratch.path(".")] {
        run(["dump".as_ref(), path.as_os_str()]).ends_with(3).says(&["not a regular file"]);
    }
}

#[test]
fn a_lock_file_that_is_none_is_refused_at_once() {
    let scratch = database();
    fs::remove_file(scratch.path("db/LOCK")).unwrap();
    pipe(&scratch.path("db/LOCK"));
    scratch.on_db("get", &["last"]).ends_with(3).says(&["LOCK", "not a regular file"]);
}

#[test]
fn an_import_may_come_from_a_named_pipe() {
    let scratch = Scratch::new();
    let fifo = scratch.path("fifo");
    pipe(&fifo);
    let writer = {
        let fifo = fifo.clone();
        std::thread::spawn(move || fs::write(fifo, "a\t1\nb\t2\n").unwrap())
    };
    scratch.on_db("import", &[fifo]).ends_with(0);
    writer.join().unwrap();
    assert_eq!(scratch.on_db("get", &["b"]).ends_with(0).text(), "2\n");
}
