//! The durability table, row by row, for environments that can lose power on command.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Site, StopOnDrop, done, pattern, run_all, to_usize};
use crate::{Access, CrashPolicy, Env, FileKind, MemEnv};

/// An environment that can lose power on command, with an empty, durable directory in it.
pub trait PowerLoss {
    /// The environment and the directory.
    fn site(&self) -> (Arc<dyn Env>, PathBuf);

    /// What a power loss now may leave: as many different images as the environment can make, each
    /// with the words that say how it was made. The environment goes on untouched.
    fn images(&self) -> Vec<(String, Arc<dyn Env>)>;

    /// What the death of the process leaves now. The environment goes on untouched.
    fn killed(&self) -> Arc<dyn Env>;
}

impl PowerLoss for MemEnv {
    fn site(&self) -> (Arc<dyn Env>, PathBuf) {
        (Arc::new(self.clone()), PathBuf::new())
    }

    fn images(&self) -> Vec<(String, Arc<dyn Env>)> {
        let mut seen = BTreeSet::new();
        let mut images: Vec<(String, Arc<dyn Env>)> = Vec::new();
        for policy in (0..40).flat_map(CrashPolicy::all) {
            let how = format!("{policy:?}");
            if seen.insert(how.clone()) {
                images.push((how, Arc::new(self.crash(policy))));
            }
        }
        images
    }

    fn killed(&self) -> Arc<dyn Env> {
        Arc::new(self.kill())
    }
}

/// A row of the table: its name, and its check, which panics if the row does not hold.
pub type DurabilityCase = (&'static str, fn(&dyn PowerLoss, &Site));

/// Every case of [`durability`], by name.
pub const DURABILITY: &[DurabilityCase] = &[
    ("flushed_bytes_survive_the_process_and_any_part_of_them_a_power_loss", flushed),
    ("synced_bytes_survive_and_their_name_needs_the_directory", synced),
    ("finished_files_survive_at_their_exact_length", finished),
    ("prepared_zeros_survive_with_their_length", prepared),
    ("a_sync_covers_every_append_that_returned_before_it", sync_covers_what_returned),
    ("a_replaced_file_is_wholly_old_or_wholly_new", replaced),
    ("a_removed_file_is_there_or_not_until_the_directory_is_synced", removed),
    ("a_link_survives_with_its_directory", linked),
    ("made_directories_survive_at_once", directories),
    ("writes_in_place_survive_when_synced_and_in_sectors_before", in_place),
    ("locks_do_not_survive_the_process", locks),
    ("an_image_is_an_environment_like_any_other", images_work),
];

/// Runs every durability case, each on what `make` gives.
///
/// The cases check both sides of the table: what must survive does in every image, and what may
/// be lost is lost in some; an environment that never loses anything would hide the engine's
/// mistakes.
///
/// # Panics
/// If a case fails, after all have run, with the names of those that did.
pub fn durability<P: PowerLoss>(make: impl Fn() -> P) {
    run_all(DURABILITY.iter().map(|(name, check)| {
        let make = &make;
        (*name, move || {
            let power = make();
            let (env, dir) = power.site();
            check(&power, &Site { env, dir });
        })
    }));
}

/// The bytes of a file in an image; `None` if its name is not there.
fn surviving(env: &dyn Env, path: &Path) -> Option<Vec<u8>> {
    done("metadata", env.metadata(path))?;
    let file = done("open", env.open(path, Access::Random));
    Some(super::read_all(&*file))
}

/// Everything that images show of one file, for questions over all of them.
fn outcomes(power: &dyn PowerLoss, path: &Path) -> BTreeSet<Option<Vec<u8>>> {
    power.images().into_iter().map(|(_, image)| surviving(&*image, path)).collect()
}

/// Checks that in every image the file is there with exactly these bytes.
fn assert_kept(power: &dyn PowerLoss, path: &Path, bytes: &[u8]) {
    for (how, image) in power.images() {
        let found = surviving(&*image, path);
        assert!(found.as_deref() == Some(bytes), "{}: not whole after {how}", path.display());
    }
}

/// ENV-13
fn flushed(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(1, 5_000);
    let path = site.path("f");
    let mut file = done("create", site.env.create(&path, FileKind::Log));
    done("sync_dir", site.env.sync_dir(&site.dir));
    done("append", file.append(&bytes));
    done("flush", file.flush());
    assert!(surviving(&*power.killed(), &path).as_deref() == Some(&bytes[..]), "after a kill");
    for (how, image) in power.images() {
        let found = surviving(&*image, &path).unwrap_or_else(|| panic!("no name after {how}"));
        assert!(found.len() <= bytes.len(), "{how}: {} bytes", found.len());
        for (sector, expected) in found.chunks(512).zip(bytes.chunks(512)) {
            let is_old = sector.iter().all(|byte| *byte == 0);
            assert!(is_old || *sector == expected[..sector.len()], "{how}: a foreign sector");
        }
    }
    let seen = outcomes(power, &path);
    assert!(seen.contains(&Some(Vec::new())), "losing everything must be possible");
    assert!(seen.contains(&Some(bytes)), "losing nothing must be possible");
    assert!(seen.len() > 3, "losing a part must be possible");
}

fn synced(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(2, 3_000);
    let path = site.path("f");
    let mut file = done("create", site.env.create(&path, FileKind::Log));
    done("append", file.append(&bytes));
    done("sync", file.sync());
    let seen = outcomes(power, &path);
    assert_eq!(seen, BTreeSet::from([None, Some(bytes.clone())]), "before sync_dir");
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_kept(power, &path, &bytes);
    let handle = file.handle();
    done("append", file.append(&bytes));
    done("flush", file.flush());
    done("sync through the handle", handle.sync());
    assert_kept(power, &path, &[&bytes[..], &bytes[..]].concat());
    let killed = surviving(&*power.killed(), &path).expect("the name is durable");
    assert_eq!(killed.len(), 6_000);
}

fn finished(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(3, 100_000);
    let path = site.path("f");
    let mut file = done("create", site.env.create(&path, FileKind::Table));
    done("prepare", file.handle().prepare(200_000));
    for part in bytes.chunks(7_000) {
        done("append", file.append(part));
    }
    done("finish", file.finish());
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_kept(power, &path, &bytes);
}

fn prepared(power: &dyn PowerLoss, site: &Site) {
    let path = site.path("f");
    let mut file = done("create", site.env.create(&path, FileKind::Log));
    done("prepare", file.handle().prepare(10_000));
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_kept(power, &path, &[0; 10_000]);
    let bytes = pattern(4, 3_000);
    done("append", file.append(&bytes));
    done("flush", file.flush());
    for (how, image) in power.images() {
        let found = surviving(&*image, &path).unwrap_or_else(|| panic!("no name after {how}"));
        assert_eq!(found.len(), 10_000, "the length was durable, yet after {how}");
        assert!(found[3_000..].iter().all(|byte| *byte == 0), "{how}");
    }
    done("sync", file.sync());
    let whole = [&bytes[..], &[0; 7_000]].concat();
    assert_kept(power, &path, &whole);
}

/// ENV-06
fn sync_covers_what_returned(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(5, 60_000);
    let path = site.path("f");
    let mut file = done("create", site.env.create(&path, FileKind::Log));
    done("sync_dir", site.env.sync_dir(&site.dir));
    let returned = AtomicU64::new(0);
    let synced = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let appending = StopOnDrop(&stop);
        for _ in 0..3 {
            let handle = file.handle();
            let (returned, synced, stop) = (&returned, &synced, &stop);
            // SeqCst throughout: the test is about order, not about speed.
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let before = returned.load(Ordering::SeqCst);
                    done("sync", handle.sync());
                    synced.fetch_max(before, Ordering::SeqCst);
                }
            });
        }
        for (i, part) in bytes.chunks(300).enumerate() {
            done("append", file.append(part));
            done("flush", file.flush());
            returned.store(file.len(), Ordering::SeqCst);
            if i % 20 == 19 {
                let promised = to_usize(synced.load(Ordering::SeqCst));
                for (how, image) in power.images() {
                    let found = surviving(&*image, &path).unwrap_or_default();
                    let kept = found.len() >= promised && found[..promised] == bytes[..promised];
                    assert!(kept, "{promised} bytes were synced, not all kept after {how}");
                }
            }
        }
        drop(appending);
    });
    done("sync", file.sync());
    assert_kept(power, &path, &bytes);
}

/// ENV-07
fn replaced(power: &dyn PowerLoss, site: &Site) {
    let (old, new) = (pattern(6, 2_000), pattern(7, 3_000));
    let (target, source) = (site.path("X"), site.path("T"));
    site.write("X", &old);
    done("sync_dir", site.env.sync_dir(&site.dir));
    let reader = site.open("X");
    site.write("T", &new);
    done("rename", site.env.rename(&source, &target));
    assert!(super::read_all(&*reader) == old, "the open reader keeps the old file");
    let seen = outcomes(power, &target);
    assert_eq!(seen, BTreeSet::from([Some(old), Some(new.clone())]), "before sync_dir");
    for (how, image) in power.images() {
        let found = surviving(&*image, &source);
        assert!(found.is_none() || found.as_ref() == Some(&new), "the source after {how}");
    }
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_kept(power, &target, &new);
    assert_eq!(outcomes(power, &source), BTreeSet::from([None]));
}

fn removed(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(8, 2_000);
    site.write("f", &bytes);
    done("sync_dir", site.env.sync_dir(&site.dir));
    done("remove", site.env.remove(&site.path("f")));
    assert_eq!(surviving(&*power.killed(), &site.path("f")), None);
    let seen = outcomes(power, &site.path("f"));
    assert_eq!(seen, BTreeSet::from([None, Some(bytes)]), "before sync_dir");
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_eq!(outcomes(power, &site.path("f")), BTreeSet::from([None]));
}

fn linked(power: &dyn PowerLoss, site: &Site) {
    let bytes = pattern(9, 2_000);
    site.write("a", &bytes);
    done("sync_dir", site.env.sync_dir(&site.dir));
    done("link", site.env.link(&site.path("a"), &site.path("b")));
    let seen = outcomes(power, &site.path("b"));
    assert_eq!(seen, BTreeSet::from([None, Some(bytes.clone())]), "before sync_dir");
    done("remove", site.env.remove(&site.path("a")));
    done("sync_dir", site.env.sync_dir(&site.dir));
    assert_kept(power, &site.path("b"), &bytes);
}

fn directories(power: &dyn PowerLoss, site: &Site) {
    let deep = site.path("a/b");
    done("create_dir_all", site.env.create_dir_all(&deep));
    for (how, image) in power.images() {
        let found = done("metadata", image.metadata(&deep));
        assert!(found.is_some_and(|found| found.is_dir), "the directory after {how}");
    }
    done("remove_dir", site.env.remove_dir(&deep));
    done("sync_dir", site.env.sync_dir(&site.path("a")));
    for (how, image) in power.images() {
        assert_eq!(done("metadata", image.metadata(&deep)), None, "removed, after {how}");
    }
}

fn in_place(power: &dyn PowerLoss, site: &Site) {
    let (old, new) = (pattern(10, 4_096), pattern(11, 4_096));
    let path = site.path("f");
    site.write("f", &old);
    done("sync_dir", site.env.sync_dir(&site.dir));
    let file = site.open_rw("f");
    done("write", file.write_all_at(&new, 0));
    for (how, image) in power.images() {
        let found = surviving(&*image, &path).unwrap_or_else(|| panic!("no name after {how}"));
        assert_eq!(found.len(), 4_096, "{how}");
        for (i, sector) in found.chunks(512).enumerate() {
            let range = i * 512..(i + 1) * 512;
            assert!(
                *sector == old[range.clone()] || *sector == new[range],
                "{how}: sector {i} is neither old nor new"
            );
        }
    }
    assert!(outcomes(power, &path).len() > 3, "a mixture must be possible");
    done("sync", file.sync());
    assert_kept(power, &path, &new);
    done("set_size", file.set_size(100));
    assert!(outcomes(power, &path).len() > 1, "either length must be possible");
    done("sync", file.sync());
    assert_kept(power, &path, &new[..100]);
}

fn locks(power: &dyn PowerLoss, site: &Site) {
    let path = site.path("LOCK");
    let held = done("lock", site.env.lock(&path));
    done("sync_dir", site.env.sync_dir(&site.dir));
    let mut images = power.images();
    images.push(("a kill".into(), power.killed()));
    for (how, image) in images {
        drop(image.lock(&path).unwrap_or_else(|error| panic!("lock after {how}: {error}")));
    }
    assert!(site.env.lock(&path).is_err(), "the holder still has it");
    drop(held);
}

/// An engine opens what a power loss left, and works on it.
fn images_work(power: &dyn PowerLoss, site: &Site) {
    site.write("f", b"kept");
    done("sync_dir", site.env.sync_dir(&site.dir));
    for (how, env) in power.images().into_iter().take(10) {
        let image = Site { env, dir: site.dir.clone() };
        image.write("g", how.as_bytes());
        done("rename", image.env.rename(&image.path("g"), &image.path("f")));
        done("sync_dir", image.env.sync_dir(&image.dir));
        assert_eq!(image.read("f"), how.as_bytes());
    }
    assert_eq!(site.read("f"), b"kept", "the original is untouched");
    assert_eq!(site.size("g"), None);
}
