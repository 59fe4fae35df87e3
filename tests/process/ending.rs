//! Processes that end without closing their database.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use treering::Db;
use treering::env::PosixEnv;

use crate::child::{Child, role, say};
use crate::{database, key, numbers, open, scratch, small};

static SHARED: OnceLock<Db> = OnceLock::new();

thread_local! {
    static OWN: RefCell<Option<Db>> = const { RefCell::new(None) };
}

fn fill(db: &Db, from: u64) {
    for number in from..from + 1500 {
        db.put(key(number), "v".repeat(100)).unwrap();
    }
    say(&(from + 1500).to_string());
}

/// Ends as the role says, while flushes and compactions are under way.
fn play(role: &str, dir: &Path) {
    let db = Db::open(Arc::new(PosixEnv::new()), dir, small(2)).unwrap();
    fill(&db, 0);
    if role.starts_with("thread") {
        OWN.set(Some(db));
    } else {
        SHARED.set(db).expect("set once");
    }
    let shared = || SHARED.get().expect("just set");
    if role.ends_with("exit") {
        std::thread::spawn(|| std::process::exit(7));
        if role == "static exit" {
            for number in 1500.. {
                shared().put(key(number), "more").unwrap();
            }
        }
        loop {
            std::thread::park();
        }
    }
    assert!(!role.ends_with("panic"), "as asked");
}

/// LIFE-10
#[test]
fn a_database_in_a_static_or_a_thread_lets_the_process_end_and_opens_again() {
    const TEST: &str =
        "ending::a_database_in_a_static_or_a_thread_lets_the_process_end_and_opens_again";
    if let Some((role, dir)) = role() {
        return play(&role, &dir);
    }
    for (role, code) in [
        ("static return", 0),
        ("thread return", 0),
        ("static exit", 7),
        ("thread exit", 7),
        ("static panic", 101),
        ("thread panic", 101),
    ] {
        let scratch = scratch();
        let dir = database(&scratch);
        let mut child = Child::start(TEST, role, &dir);
        let said: usize = child.hears().expect("it wrote").parse().unwrap();
        let (status, other) = child.end();
        assert_eq!(status.code(), Some(code), "{role}: {status}: {other}");
        let db = open(&dir);
        let found = numbers(&db);
        assert!(found.len() >= said, "{role}: {} of {said}", found.len());
        db.put("later", "1").unwrap();
    }
}
