//! Names, directories and locks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::sys::scripted::{Call, Fault, When};
use crate::{ErrorKind, Metadata, Outcome};

/// ENV-09
#[test]
fn a_listing_beside_changes_has_every_name_that_was_there_throughout() {
    let stage = Stage::prefetch();
    for i in 0..200 {
        fs::write(stage.path(&format!("stays{i}")), b"x").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..50).cycle() {
                let path = stage.path(&format!("comes{i}"));
                if path.exists() {
                    fs::remove_file(&path).unwrap();
                } else {
                    fs::write(&path, b"y").unwrap();
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..50 {
            let entries = stage.env.list(stage.dir.path()).unwrap();
            let mut stayed = 0;
            for entry in entries {
                let name = entry.name.to_str().unwrap().to_owned();
                // A name that vanished since is absent, not an error.
                let metadata = stage.env.metadata(&stage.path(&name)).unwrap();
                stayed += usize::from(name.starts_with("stays") && metadata.is_some());
            }
            assert_eq!(stayed, 200);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// ENV-09
#[test]
fn a_listing_that_fails_half_way_is_an_error_and_never_a_shorter_list() {
    let stage = Stage::prefetch();
    (0..10).for_each(|i| fs::write(stage.path(&i.to_string()), b"").unwrap());
    for fault in [Fault::EntriesThen(5, libc::EIO), Fault::Errno(libc::EIO)] {
        let rule = stage.sys.rule(Call::ReadDir, "", When::Nth(0), fault);
        let error = stage.env.list(stage.dir.path()).unwrap_err();
        assert_eq!((error.errno(), error.op()), (Some(libc::EIO), "list"));
        rule.lift();
    }
    let fault = Fault::EntriesThen(5, libc::EINTR);
    let interrupted = stage.sys.rule(Call::ReadDir, "", When::Nth(0), fault);
    let open = stage.sys.rule(Call::Open, "", When::Nth(0), Fault::Errno(libc::EINTR));
    assert_eq!(stage.env.list(stage.dir.path()).unwrap().len(), 10, "no name twice");
    assert_eq!((interrupted.fired(), open.fired()), (1, 1));
}

/// ENV-10
#[test]
fn only_what_is_not_there_is_absent() {
    let stage = Stage::prefetch();
    fs::write(stage.path("plain"), b"12345").unwrap();
    fs::create_dir(stage.path("dir")).unwrap();
    let at = |name: &str| stage.path(name);
    let (open, metadata) =
        (|p: &Path| stage.env.open(p, Access::Random), |p: &Path| stage.env.metadata(p));
    assert_eq!(metadata(&at("missing")).unwrap(), None);
    assert_eq!(open(&at("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    let there = Metadata { size: 5, is_dir: false };
    assert_eq!(metadata(&at("plain")).unwrap(), Some(there));
    assert!(metadata(&at("dir")).unwrap().unwrap().is_dir);
    let through_plain = at("plain/below");
    assert_eq!(metadata(&through_plain).unwrap_err().errno(), Some(libc::ENOTDIR));
    assert_eq!(open(&through_plain).unwrap_err().errno(), Some(libc::ENOTDIR));
    for errno in [libc::EACCES, libc::EIO, libc::ENAMETOOLONG, libc::ELOOP] {
        let rules = [Call::Stat, Call::Open]
            .map(|call| stage.sys.rule(call, "plain", When::Always, Fault::Errno(errno)));
        for error in [metadata(&at("plain")).unwrap_err(), open(&at("plain")).unwrap_err()] {
            assert_eq!(error.errno(), Some(errno));
            assert_ne!(error.kind(), ErrorKind::NotFound);
            assert_eq!(error.outcome(), Outcome::NotApplied);
        }
        for rule in &rules {
            rule.lift();
        }
    }
}

#[test]
fn a_directory_cannot_be_opened_as_a_file() {
    let stage = Stage::prefetch();
    fs::create_dir(stage.path("d")).unwrap();
    let path = stage.path("d");
    assert_eq!(stage.env.open(&path, Access::Random).unwrap_err().errno(), Some(libc::EISDIR));
    assert_eq!(stage.env.open_rw(&path).unwrap_err().errno(), Some(libc::EISDIR));
    fs::write(stage.path("f"), b"").unwrap();
    assert_eq!(stage.env.list(&stage.path("f")).unwrap_err().errno(), Some(libc::ENOTDIR));
}

#[test]
fn a_taken_name_is_not_created_again_and_new_files_are_private() {
    let stage = Stage::prefetch();
    fs::write(stage.path("old"), b"kept").unwrap();
    symlink(stage.path("nowhere"), stage.path("link")).unwrap();
    for name in ["old", "link"] {
        let error = stage.env.create(&stage.path(name), FileKind::Log).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(error.outcome(), Outcome::NotApplied);
    }
    assert_eq!(fs::read(stage.path("old")).unwrap(), b"kept");
    assert!(!stage.path("nowhere").exists());
    write_file(&stage, "new", FileKind::Other, &[b"x"]).unwrap();
    stage.env.create_dir_all(&stage.path("a")).unwrap();
    let mode = |name| fs::metadata(stage.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("new") & 0o177, mode("a") & 0o77), (0, 0));
}

#[test]
fn a_lock_conflicts_inside_one_process_and_ends_with_its_holder() {
    let stage = Stage::prefetch();
    let path = stage.path("LOCK");
    let held = stage.env.lock(&path).unwrap();
    let second = PosixEnv::new();
    for env in [&stage.env, &second] {
        let error = env.lock(&path).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, path.as_path()));
        assert!(error.to_string().contains("another process"), "{error}");
    }
    drop(held);
    drop(second.lock(&path).unwrap());
    stage.sys.rule(Call::TryLock, "", When::Always, Fault::Errno(libc::ENOLCK));
    let error = stage.env.lock(&path).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Other, Some(libc::ENOLCK)));
}

/// MAN-17
#[test]
fn every_new_directory_is_durable_in_its_parent() {
    let stage = Stage::prefetch();
    let deep = stage.path("a/b/c");
    stage.env.create_dir_all(&deep).unwrap();
    assert!(deep.is_dir());
    assert_eq!(stage.count("dir_syncs"), 4, "three were made, one was found");
    // Whoever made it may have died before the sync of the parent.
    stage.env.create_dir_all(&deep).unwrap();
    assert_eq!(stage.count("dir_syncs"), 5, "what is found is made durable, too");
    // A directory whose name could not be made durable is not left for a second try to trust.
    stage.sys.rule(Call::Fsync, "a/b/c", When::Nth(0), Fault::Errno(libc::EIO));
    assert_eq!(
        stage.env.create_dir_all(&stage.path("a/b/c/d")).unwrap_err().errno(),
        Some(libc::EIO)
    );
    assert!(!stage.path("a/b/c/d").exists());
    stage.env.create_dir_all(&stage.path("a/b/c/d")).unwrap();
    fs::write(stage.path("plain"), b"").unwrap();
    for below in ["plain", "plain/x"] {
        let error = stage.env.create_dir_all(&stage.path(below)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOTDIR));
    }
}

/// LIFE-01: a child has a copy of every descriptor until it starts its program.
#[test]
fn a_lock_is_free_when_it_was_dropped_though_programs_are_being_started() {
    let stage = Stage::prefetch();
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            for _ in 0..100 {
                std::process::Command::new("true").status().unwrap();
            }
        });
        let mut rounds = 0;
        while !starting.is_finished() || rounds == 0 {
            drop(stage.env.lock(&stage.path("LOCK")).unwrap());
            rounds += 1;
        }
    });
}

/// As on procfs, and where somebody takes away whatever is made.
#[test]
fn a_directory_that_cannot_be_made_in_one_that_is_there_is_an_error() {
    let stage = Stage::prefetch();
    let refused = stage.sys.rule(Call::Mkdir, "a/nope", When::Always, Fault::Errno(libc::ENOENT));
    let error = stage.env.create_dir_all(&stage.path("a/nope")).unwrap_err();
    assert_eq!((error.op(), error.errno()), ("create_dir_all", Some(libc::ENOENT)));
    assert_eq!(refused.fired(), 2, "once before the one above it was made, and once after");
    let error = stage.env.create_dir_all("/proc/nope/deeper".as_ref()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
}

#[test]
fn a_file_system_without_links_says_unsupported_and_another_device_says_so() {
    let stage = Stage::prefetch();
    fs::write(stage.path("t"), b"x").unwrap();
    for (errno, kind) in [
        (libc::EPERM, ErrorKind::Unsupported),
        (libc::EOPNOTSUPP, ErrorKind::Unsupported),
        (libc::EMLINK, ErrorKind::Unsupported),
        (libc::EXDEV, ErrorKind::CrossDevice),
        (libc::EACCES, ErrorKind::Denied),
        (libc::ENOSPC, ErrorKind::NoSpace),
    ] {
        let rule = stage.sys.rule(Call::Link, "t", When::Nth(0), Fault::Errno(errno));
        let error = stage.env.link(&stage.path("t"), &stage.path("u")).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (kind, Some(errno)));
        rule.lift();
    }
    stage.env.link(&stage.path("t"), &stage.path("u")).unwrap();
    let taken = stage.env.link(&stage.path("t"), &stage.path("u")).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    stage.env.remove(&stage.path("t")).unwrap();
    assert_eq!(fs::read(stage.path("u")).unwrap(), b"x");
}

#[test]
fn names_are_renamed_removed_and_synced_or_the_call_says_why_not() {
    let stage = Stage::prefetch();
    let (a, b, dir) = (stage.path("a"), stage.path("b"), stage.dir.path());
    fs::write(&a, b"new").unwrap();
    fs::write(&b, b"old").unwrap();
    stage.env.rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"new");
    for missing in [
        stage.env.rename(&a, &b),
        stage.env.remove(&a),
        stage.env.remove_dir(&a),
        stage.env.sync_dir(&a),
        stage.env.list(&a).map(drop),
        stage.env.free_space(&a).map(drop),
    ] {
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    }
    let interrupted = [Call::Open, Call::Fsync]
        .map(|call| stage.sys.rule(call, "", When::Nth(0), Fault::Errno(libc::EINTR)));
    stage.env.sync_dir(dir).unwrap();
    assert!(interrupted.iter().all(|rule| rule.fired() == 1));
    stage.sys.rule(Call::Fsync, "", When::From(0), Fault::Errno(libc::EIO));
    assert_eq!(stage.env.sync_dir(dir).unwrap_err().errno(), Some(libc::EIO));
    assert!(stage.env.free_space(dir).unwrap() > 0);
    assert!(stage.env.remove_dir(dir).unwrap_err().errno() == Some(libc::ENOTEMPTY));
}

/// LIFE-04
#[test]
fn running_out_of_descriptors_is_a_clean_error() {
    let stage = Stage::prefetch();
    fs::write(stage.path("t"), b"x").unwrap();
    let full = stage.sys.rule(Call::Open, "", When::Always, Fault::Errno(libc::EMFILE));
    assert_eq!(
        stage.env.open(&stage.path("t"), Access::Random).unwrap_err().errno(),
        Some(libc::EMFILE)
    );
    assert_eq!(
        stage.env.create(&stage.path("n"), FileKind::Log).unwrap_err().errno(),
        Some(libc::EMFILE)
    );
    assert_eq!(stage.env.lock(&stage.path("LOCK")).unwrap_err().errno(), Some(libc::EMFILE));
    full.lift();
    stage.env.open(&stage.path("t"), Access::Random).unwrap();
}

/// Opening a named pipe would wait for somebody at its other end.
#[test]
fn what_is_no_regular_file_is_refused_at_once_and_by_its_kind() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let stage = Stage::prefetch();
    fs::create_dir(stage.path("dir")).unwrap();
    mknodat(CWD, stage.path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(stage.path("socket")).unwrap();
    symlink("pipe", stage.path("link")).unwrap();
    for name in ["dir", "pipe", "socket", "link"] {
        let path = stage.path(name);
        let opened = stage.env.open(&path, Access::Random).map(|_| ());
        let opened_rw = stage.env.open_rw(&path).map(|_| ());
        for error in [opened.unwrap_err(), opened_rw.unwrap_err()] {
            assert_eq!((error.kind(), error.op()), (ErrorKind::NotAFile, "open"), "{error}");
            assert_eq!(error.outcome(), Outcome::NotApplied);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    for name in ["dir", "pipe", "socket"] {
        let error = stage.env.lock(&stage.path(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAFile, "{error}");
    }
}
