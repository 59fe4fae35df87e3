//! One database, several openers, one of them in another process.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use treering::env::PosixEnv;
use treering::{Db, Error};

use crate::child::{Child, role, say};
use crate::{database, open, scratch, small};

fn try_open(dir: &Path) -> Result<Db, Error> {
    Db::open(Arc::new(PosixEnv::new()), dir, small(0))
}

/// The same place, told from where this process stands.
fn relative(dir: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    up.join(dir.strip_prefix("/").unwrap())
}

fn assert_locked(result: Result<Db, Error>, what: &str) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, Error::Locked(_)), "{what}: {error}");
}

/// MAN-15
#[test]
fn only_one_process_has_a_database_and_its_death_sets_it_free() {
    const TEST: &str = "locking::only_one_process_has_a_database_and_its_death_sets_it_free";
    if let Some((role, dir)) = role() {
        match try_open(&dir) {
            Ok(db) if role == "keep" => {
                db.put("theirs", "2").unwrap();
                say("open");
                loop {
                    std::thread::park();
                }
            }
            Ok(_) => say("open"),
            Err(Error::Locked(_)) => say("locked"),
            Err(error) => say(&error.to_string()),
        }
        return;
    }
    let scratch = scratch();
    let dir = database(&scratch);
    let link = scratch.path().join("link");
    symlink(&dir, &link).unwrap();
    let db = open(&dir);
    db.put("ours", "1").unwrap();
    let elsewhere = |role: &str| {
        let mut child = Child::start(TEST, role, &dir);
        (child.hears().expect("it says how it went"), child)
    };
    for _ in 0..2 {
        for path in [dir.clone(), relative(&dir), link.clone()] {
            assert_locked(try_open(&path), &path.display().to_string());
        }
        let (said, child) = elsewhere("try");
        assert_eq!(said, "locked");
        assert!(child.end().0.success());
    }
    db.put("ours too", "1").unwrap();
    drop(db);
    let (said, child) = elsewhere("keep");
    assert_eq!(said, "open");
    assert_locked(try_open(&dir), "while another process has it");
    assert_eq!(elsewhere("try").0, "locked");
    child.kill(Signal::KILL);
    child.end();
    let db = open(&dir);
    assert_eq!(db.get("theirs").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(db.iter().count(), 3);
}
