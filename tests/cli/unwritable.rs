//! Databases that cannot be written: what reads them works, says so and changes nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::getuid;
use tempfile::TempDir;

use crate::tool::{Ran, Scratch, run};

/// A user who is not root, for whom permissions count.
const NOBODY: u32 = 65_534;

/// A directory that every user can reach, with the program and a database that nobody may write.
struct Foreign {
    place: TempDir,
}

impl Foreign {
    fn new() -> Self {
        let place = TempDir::new().unwrap();
        let foreign = Self { place };
        fs::copy(env!("CARGO_BIN_EXE_treering"), foreign.path("treering")).unwrap();
        let db = foreign.path("db");
        let on_db = |args: &[&str]| {
            let args = [args[0].as_ref(), db.as_os_str()]
                .into_iter()
                .chain(args[1..].iter().map(AsRef::as_ref));
            run(args).ends_with(0);
        };
        on_db(&["put", "a", "1"]);
        on_db(&["compact"]);
        on_db(&["put", "b", "2"]);
        for file in fs::read_dir(&db).unwrap() {
            fs::set_permissions(file.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
        }
        for dir in [&db, foreign.place.path()] {
            fs::set_permissions(dir, Permissions::from_mode(0o555)).unwrap();
        }
        foreign
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Runs a command as a user who may not write here.
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(self.path("treering"));
        if getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.args(args).current_dir(self.place.path()).output().unwrap();
        Ran {
            code: output.status.code().expect("the command ends by itself"),
            out: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Names and bytes of the database's files.
    fn state(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.path("db"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort_unstable();
        files
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for dir in [self.place.path(), &self.path("db")] {
            let _ = fs::set_permissions(dir, Permissions::from_mode(0o755));
        }
    }
}

#[test]
fn reading_commands_need_no_right_to_write_and_leave_everything_as_it_is() {
    let foreign = Foreign::new();
    let before = foreign.state();
    for env in ["auto", "posix"] {
        for (args, answer) in [
            (&["get", "db", "b"][..], "2\n"),
            (&["scan", "db"], "a\t1\nb\t2\n"),
            (&["multi-get", "db", "b", "a"], "b\t2\na\t1\n"),
            (&["export", "db"], "a\t1\nb\t2\n"),
        ] {
            let ran = foreign.run(&[args, &["--env", env]].concat()).ends_with(0);
            assert_eq!(ran.text(), answer, "{args:?}");
            ran.says(&["note: db cannot be written", "LOCK", "it is read as it is"]);
        }
        let stats = foreign.run(&["stats", "db", "--env", env]).ends_with(0).text();
        assert!(stats.contains("changes: kept in memory"), "{stats}");
    }
    foreign.run(&["verify", "db"]).ends_with(0);
    foreign.run(&["dump", "db/CURRENT"]).ends_with(0);
    let refused: &[&[&str]] =
        &[&["put", "db", "c", "3"], &["delete", "db", "a"], &["import", "db"], &["compact", "db"]];
    for args in refused {
        foreign.run(args).ends_with(3).says(&["LOCK", "Permission denied", "who may use it"]);
    }
    assert!(foreign.state() == before, "a file has changed");
}

/// What may not even be read is an error and no missing key.
#[test]
fn a_database_that_may_not_be_read_is_an_error() {
    let foreign = Foreign::new();
    let db = foreign.path("db");
    let mode = if getuid().is_root() { 0o700 } else { 0o000 };
    fs::set_permissions(&db, Permissions::from_mode(mode)).unwrap();
    foreign.run(&["get", "db", "a"]).ends_with(3).says(&["CURRENT", "Permission denied"]);
    // It once gave advice for a directory that it had not seen.
    let doctor = foreign.run(&["doctor", "db"]).ends_with(3);
    assert!(doctor.out.is_empty());
    doctor.says(&["cannot look into db: Permission denied", "who may use it"]);
}

/// A process that writes keeps readers out, also those that may not write.
#[test]
fn whoever_may_not_write_waits_for_nobody_and_is_told_of_the_one_who_does() {
    let foreign = Foreign::new();
    let lock = foreign.path("db/LOCK");
    if getuid().is_root() {
        chown(&lock, Some(NOBODY), None).unwrap();
    }
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    foreign.run(&["get", "db", "a"]).ends_with(3).says(&["in use", "stop the other one"]);
    drop(held);
    foreign.run(&["get", "db", "a"]).ends_with(0);
}

/// Runs a command where no file may grow.
fn without_growth(args: &[&Path]) -> Ran {
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_treering")])
        .args(args)
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The signal of the limit once ended the command without a word.
#[test]
fn where_no_file_may_grow_reading_works_and_writing_says_what_to_do() {
    let scratch = Scratch::new();
    scratch.on_db("put", &["a", "1"]).ends_with(0);
    let db = scratch.db();
    let got = without_growth(&["get".as_ref(), &db, "a".as_ref()]).ends_with(0);
    assert_eq!(got.text(), "1\n");
    got.says(&["cannot be written", "File too large"]);
    let put = without_growth(&["put".as_ref(), &db, "b".as_ref(), "2".as_ref()]);
    put.ends_with(3).says(&["File too large", "ulimit -f unlimited"]);
    scratch.on_db("get", &["b"]).ends_with(1);
}
