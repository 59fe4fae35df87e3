//! Names: files, directories, links and locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Site, StopOnDrop, done, failed, names_file, pattern, read_all};
use crate::{ErrorKind, FileKind};

pub(super) fn create_never_touches_an_existing_file(site: &Site) {
    site.write("f", b"old");
    for kind in [FileKind::Log, FileKind::Manifest, FileKind::Table, FileKind::Other] {
        let error = failed("create", site.env.create(&site.path("f"), kind));
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(names_file(&error, "f"), "{error}");
    }
    assert_eq!(site.read("f"), b"old");
    done("create_dir_all", site.env.create_dir_all(&site.path("d")));
    let error = failed("create", site.env.create(&site.path("d"), FileKind::Log));
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let error = failed("create", site.env.create(&site.path("none/f"), FileKind::Log));
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// ENV-07, without the power loss.
pub(super) fn a_rename_replaces_the_target_and_spares_its_readers(site: &Site) {
    let (old, new) = (pattern(1, 20_000), pattern(2, 30_000));
    site.write("x", &old);
    site.write("t", &new);
    let reader = site.open("x");
    done("rename", site.env.rename(&site.path("t"), &site.path("x")));
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert!(read_all(&*reader) == old, "the open reader keeps the old file");
    assert!(site.read("x") == new);
    assert_eq!(site.size("t"), None);
    // A writer keeps its file through a rename, too.
    let mut file = site.create("w");
    done("append", file.append(b"one"));
    done("flush", file.flush());
    done("rename", site.env.rename(&site.path("w"), &site.path("v")));
    done("append", file.append(b" two"));
    done("finish", file.finish());
    assert_eq!(site.read("v"), b"one two");
    assert_eq!(site.size("w"), None);
}

/// ENV-08, for a reader; the queue's part is with the queues.
pub(super) fn a_removed_file_stays_readable_where_it_is_open(site: &Site) {
    let (old, new) = (pattern(1, 20_000), pattern(2, 10_000));
    site.write("f", &old);
    let reader = site.open("f");
    done("remove", site.env.remove(&site.path("f")));
    assert_eq!(site.size("f"), None);
    site.write("f", &new);
    assert!(read_all(&*reader) == old);
    assert!(site.read("f") == new);
}

pub(super) fn removing_and_renaming_what_is_not_there_is_not_found(site: &Site) {
    let (none, other) = (site.path("none"), site.path("other"));
    let errors = [
        failed("remove", site.env.remove(&none)),
        failed("rename", site.env.rename(&none, &other)),
        failed("link", site.env.link(&none, &other)),
        failed("remove_dir", site.env.remove_dir(&none)),
        failed("list", site.env.list(&none)),
        failed("sync_dir", site.env.sync_dir(&none)),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    done("create_dir_all", site.env.create_dir_all(&site.path("d")));
    let error = failed("remove of a directory", site.env.remove(&site.path("d")));
    assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(site.size("d").is_some());
}

pub(super) fn a_listing_names_everything_once(site: &Site) {
    assert_eq!(done("list", site.env.list(&site.dir)), []);
    let mut expected = BTreeSet::new();
    for i in 0..100 {
        let name = format!("{i:06}.log");
        drop(site.create(&name));
        expected.insert((name.into(), false));
    }
    done("create_dir_all", site.env.create_dir_all(&site.path("lost/found")));
    expected.insert(("lost".into(), true));
    let listed = done("list", site.env.list(&site.dir));
    assert_eq!(listed.len(), expected.len());
    let listed: BTreeSet<_> = listed.into_iter().map(|e| (e.name, e.is_dir)).collect();
    assert_eq!(listed, expected);
    drop(site.create("f"));
    assert!(site.env.list(&site.path("f")).is_err(), "a file has no listing");
}

/// ENV-09, without the failing device.
pub(super) fn a_listing_survives_files_that_come_and_go(site: &Site) {
    for i in 0..20 {
        site.write(&format!("stays{i}"), b"12345");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = StopOnDrop(&stop);
        scope.spawn(|| {
            for i in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("goes{}", i % 7);
                drop(site.create(&name));
                done("remove", site.env.remove(&site.path(&name)));
            }
        });
        for _ in 0..50 {
            let mut stayed = 0;
            for entry in done("list", site.env.list(&site.dir)) {
                let found = done("metadata", site.env.metadata(&site.dir.join(&entry.name)));
                if entry.name.to_string_lossy().starts_with("stays") {
                    stayed += 1;
                    assert_eq!(found.map(|found| found.size), Some(5), "{entry:?}");
                }
            }
            assert_eq!(stayed, 20, "names that were there throughout");
        }
        drop(looking);
    });
}

/// ENV-10, the part that needs no other user and no broken device.
pub(super) fn metadata_tells_absence_from_failure(site: &Site) {
    site.write("f", &pattern(1, 1234));
    done("create_dir_all", site.env.create_dir_all(&site.path("d")));
    let metadata = |name: &str| site.env.metadata(&site.path(name));
    let file = done("metadata", metadata("f")).expect("the file is there");
    assert_eq!((file.size, file.is_dir), (1234, false));
    assert!(done("metadata", metadata("d")).expect("the directory is there").is_dir);
    assert_eq!(done("metadata", metadata("none")), None);
    assert_eq!(done("metadata", metadata("d/none")), None);
    assert_eq!(done("metadata", metadata("none/f")), None);
    let error = failed("metadata below a file", metadata("f/x"));
    assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
}

pub(super) fn a_link_is_a_second_name_for_the_same_bytes(site: &Site) {
    let bytes = pattern(1, 5_000);
    site.write("a", &bytes);
    site.write("taken", b"x");
    match site.env.link(&site.path("a"), &site.path("b")) {
        Ok(()) => {}
        Err(error) => {
            let allowed = [ErrorKind::Unsupported, ErrorKind::CrossDevice];
            assert!(allowed.contains(&error.kind()), "{error}");
            return;
        }
    }
    let error = failed("link", site.env.link(&site.path("a"), &site.path("taken")));
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(site.read("taken"), b"x");
    done("remove", site.env.remove(&site.path("a")));
    assert!(site.read("b") == bytes);
    assert_eq!(site.size("a"), None);
}

pub(super) fn directories_are_made_with_parents_and_removed_when_empty(site: &Site) {
    let deep = site.path("a/b/c");
    for _ in 0..2 {
        done("create_dir_all", site.env.create_dir_all(&deep));
    }
    site.write("a/b/c/f", b"x");
    assert!(site.env.remove_dir(&deep).is_err(), "it is not empty");
    assert_eq!(site.read("a/b/c/f"), b"x");
    done("remove", site.env.remove(&deep.join("f")));
    done("remove_dir", site.env.remove_dir(&deep));
    done("sync_dir", site.env.sync_dir(&site.path("a/b")));
    assert_eq!(site.size("a/b/c"), None);
    site.write("f", b"x");
    for path in ["f", "f/below"] {
        let error = failed("create_dir_all", site.env.create_dir_all(&site.path(path)));
        assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(site.env.remove_dir(&site.path("f")).is_err(), "it is a file");
    assert_eq!(site.read("f"), b"x");
}

/// A failed attempt never disturbs the holder.
pub(super) fn a_lock_excludes_a_second_one_until_it_is_dropped(site: &Site) {
    let path = site.path("LOCK");
    let held = done("lock", site.env.lock(&path));
    for _ in 0..2 {
        let error = failed("a second lock", site.env.lock(&path));
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert!(names_file(&error, "LOCK"), "{error}");
    }
    let other = done("another lock", site.env.lock(&site.path("LOCK2")));
    drop(held);
    assert!(site.size("LOCK").is_some(), "the file stays");
    let held = done("lock after drop", site.env.lock(&path));
    let env = Arc::clone(&site.env);
    let elsewhere = std::thread::spawn(move || env.lock(&path).map(drop)).join();
    let error = failed("lock in a thread", elsewhere.expect("locking does not panic"));
    assert_eq!(error.kind(), ErrorKind::Locked);
    drop((held, other));
}

pub(super) fn free_space_is_told_for_a_directory(site: &Site) {
    assert!(done("free_space", site.env.free_space(&site.dir)) > 0);
    assert!(site.env.free_space(&site.path("none")).is_err());
}

pub(super) fn a_synced_directory_can_be_synced_again(site: &Site) {
    site.write("f", b"x");
    for _ in 0..2 {
        done("sync_dir", site.env.sync_dir(&site.dir));
    }
    assert_eq!(site.read("f"), b"x");
}

pub(super) fn a_report_names_the_environment(site: &Site) {
    let before = site.env.report();
    site.write("f", b"x");
    let after = site.env.report();
    assert!(!before.env.is_empty());
    assert_eq!(before.env, after.env);
    assert!(after.to_string().contains(after.env));
}
