//! `MemEnv`'s own promises: what images may hold, and that taking them changes nothing.

use std::collections::BTreeSet;
use std::path::Path;

use super::crash::Random;
use super::*;
use crate::Outcome;

fn write(env: &MemEnv, path: &str, bytes: &[u8]) -> Box<dyn WritableFile> {
    let mut file = env.create(Path::new(path), FileKind::Other).unwrap();
    file.append(bytes).unwrap();
    file.flush().unwrap();
    file
}

fn write_durable(env: &MemEnv, path: &str, bytes: &[u8]) {
    write(env, path, bytes).finish().unwrap();
    env.sync_dir(Path::new("")).unwrap();
}

fn read(env: &MemEnv, path: &str) -> Option<Vec<u8>> {
    env.metadata(Path::new(path)).unwrap()?;
    let file = env.open(Path::new(path), Access::Random).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn an_image_is_independent_of_the_environment_it_was_taken_from() {
    let env = MemEnv::new();
    write_durable(&env, "a", b"old");
    let rw = env.open_rw(Path::new("a")).unwrap();
    rw.write_all_at(b"new", 0).unwrap();
    let image = env.crash(CrashPolicy::DropAll);
    assert_eq!(read(&image, "a").unwrap(), b"old");
    image.remove(Path::new("a")).unwrap();
    rw.sync().unwrap();
    assert_eq!(read(&env, "a").unwrap(), b"new");
    assert_eq!(read(&env.crash(CrashPolicy::DropAll), "a").unwrap(), b"new");
}

#[test]
fn every_version_of_an_unsynced_sector_can_survive_and_no_other() {
    let env = MemEnv::new();
    write_durable(&env, "a", &[0; 1024]);
    let rw = env.open_rw(Path::new("a")).unwrap();
    for value in 1..=3 {
        rw.write_all_at(&[value; 1024], 0).unwrap();
    }
    let mut seen = BTreeSet::new();
    for seed in 0..2000 {
        let bytes = read(&env.crash(CrashPolicy::Seeded(seed)), "a").unwrap();
        assert_eq!(bytes.len(), 1024);
        assert!(bytes[..512].iter().all(|b| *b == bytes[0]), "seed {seed}: a torn sector");
        assert!(bytes[512..].iter().all(|b| *b == bytes[512]), "seed {seed}: a torn sector");
        seen.insert((bytes[0], bytes[512]));
    }
    assert_eq!(seen.len(), 16, "each sector in each of four versions: {seen:?}");
}

#[test]
fn lengths_come_from_the_history_of_lengths() {
    let env = MemEnv::new();
    let mut file = write(&env, "a", b"");
    for part in [100_usize, 200, 300] {
        file.append(&vec![9; part]).unwrap();
        file.flush().unwrap();
    }
    env.sync_dir(Path::new("")).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        seen.insert(read(&env.crash(CrashPolicy::Seeded(seed)), "a").unwrap().len());
    }
    assert_eq!(seen, BTreeSet::from([0, 100, 300, 600]));
    assert_eq!(read(&env.crash(CrashPolicy::SizeFirst), "a").unwrap(), vec![0; 600]);
}

#[test]
fn a_cut_that_survives_exposes_no_old_bytes_when_the_file_grows_again() {
    let env = MemEnv::new();
    write_durable(&env, "a", &[5; 2000]);
    let rw = env.open_rw(Path::new("a")).unwrap();
    rw.set_size(100).unwrap();
    rw.write_all_at(&[6; 10], 1990).unwrap();
    for seed in 0..300 {
        let bytes = read(&env.crash(CrashPolicy::Seeded(seed)), "a").unwrap();
        assert!(bytes[..100].iter().all(|b| *b == 5), "seed {seed}");
        if bytes.len() == 2000 && bytes[1995] != 5 {
            // The length is the old one or the one after growing again; the first tells nothing.
            assert!(bytes[1995] == 6 || bytes[1995] == 0, "seed {seed}");
        }
    }
    let everything = read(&env.crash(CrashPolicy::KeepAll), "a").unwrap();
    assert!(everything[100..1990].iter().all(|b| *b == 0));
    assert_eq!(everything, read(&env, "a").unwrap());
}

#[test]
fn keep_all_is_what_everybody_sees_and_drop_all_is_what_was_synced() {
    for seed in 0..20 {
        let env = MemEnv::new();
        let mut random = Random::new(seed);
        let mut synced = env.fingerprint();
        for round in 0..200 {
            let path = format!("f{}", random.below(6));
            match random.below(8) {
                0 => drop(env.rename(Path::new(&path), Path::new("f0"))),
                1 => drop(env.remove(Path::new(&path))),
                2 => env.open_rw(Path::new(&path)).unwrap().set_size(random.below(9000)).unwrap(),
                3 => {
                    for entry in env.list(Path::new("")).unwrap() {
                        env.open_rw(Path::new(&entry.name)).unwrap().sync().unwrap();
                    }
                    env.sync_dir(Path::new("")).unwrap();
                    synced = env.fingerprint();
                }
                _ => {
                    let data = vec![round; usize::try_from(random.below(3000)).unwrap()];
                    let file = env.open_rw(Path::new(&path)).unwrap();
                    file.write_all_at(&data, random.below(9000)).unwrap();
                }
            }
            let what = format!("seed {seed}, round {round}");
            assert_eq!(env.crash(CrashPolicy::KeepAll).fingerprint(), env.fingerprint(), "{what}");
            assert_eq!(env.crash(CrashPolicy::DropAll).fingerprint(), synced, "{what}");
            assert_eq!(env.kill().fingerprint(), env.fingerprint(), "{what}");
            let by_hand = env.crash_with(|c| c.operations.len());
            assert_eq!(by_hand.fingerprint(), env.fingerprint(), "{what}");
            let image = env.crash(CrashPolicy::Seeded(seed)).fingerprint();
            assert_eq!(image, env.crash(CrashPolicy::Seeded(seed)).fingerprint(), "{what}");
        }
    }
}

#[test]
fn a_rename_may_decay_to_a_link_and_never_loses_the_file() {
    let env = MemEnv::new();
    write_durable(&env, "x", b"old");
    write_durable(&env, "t", b"new");
    env.rename(Path::new("t"), Path::new("x")).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let image = env.crash(CrashPolicy::Seeded(seed));
        seen.insert((read(&image, "t"), read(&image, "x").unwrap()));
    }
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    let before = (Some(new.clone()), old);
    let both = (Some(new.clone()), new.clone());
    assert_eq!(seen, BTreeSet::from([before, both, (None, new.clone())]));
    env.sync_dir(Path::new("")).unwrap();
    let image = env.crash(CrashPolicy::DropAll);
    assert_eq!((read(&image, "t"), read(&image, "x")), (None, Some(new)));
}

#[test]
fn names_and_bytes_survive_apart() {
    let env = MemEnv::new();
    let mut file = write(&env, "a", b"bytes");
    file.sync().unwrap();
    write(&env, "b", b"bytes");
    assert_eq!(read(&env.crash(CrashPolicy::DropAll), "a"), None);
    let image = env.crash(CrashPolicy::NamesFirst);
    assert_eq!(read(&image, "a").unwrap(), b"bytes");
    assert_eq!(read(&image, "b").unwrap(), b"");
    assert_eq!(env.crash(CrashPolicy::NamesLast).list(Path::new("")).unwrap(), []);
    env.sync_dir(Path::new("")).unwrap();
    env.remove(Path::new("a")).unwrap();
    file.append(b"more").unwrap();
    file.flush().unwrap();
    let image = env.crash(CrashPolicy::UnlinkEarly);
    assert_eq!(read(&image, "a"), None);
    assert_eq!(read(&image, "b").unwrap(), b"");
}

#[test]
fn prefix_and_last_only_count_operations_over_all_files() {
    let env = MemEnv::new();
    let a = env.open_rw(Path::new("a")).unwrap();
    let b = env.open_rw(Path::new("b")).unwrap();
    env.sync_dir(Path::new("")).unwrap();
    a.write_all_at(&[1; 512], 0).unwrap();
    b.write_all_at(&[2; 512], 0).unwrap();
    a.write_all_at(&[3; 512], 512).unwrap();
    let image = env.crash(CrashPolicy::Prefix(2));
    assert_eq!(read(&image, "a").unwrap(), vec![1; 512]);
    assert_eq!(read(&image, "b").unwrap(), vec![2; 512]);
    let image = env.crash(CrashPolicy::LastOnly(1));
    assert_eq!(read(&image, "b").unwrap(), b"");
    assert_eq!(read(&image, "a").unwrap(), [[0; 512], [3; 512]].concat());
    let torn: BTreeSet<_> =
        (0..20).map(|seed| read(&env.crash(CrashPolicy::Tear(seed)), "a").unwrap()).collect();
    assert!(torn.iter().all(|bytes| bytes[..512] == [1; 512]) && torn.len() > 1, "{}", torn.len());
}

#[test]
fn power_can_be_cut_before_inside_and_after_an_operation() {
    let lengths = [(When::Before, 0), (When::Inside, 500), (When::After, 1000)];
    for (when, expected) in lengths {
        let env = MemEnv::new();
        let file = env.open_rw(Path::new("a")).unwrap();
        env.cut_power_at(env.operations(), when);
        let error = file.write_all_at(&[1; 1000], 0).unwrap_err();
        assert!(error.to_string().contains("power is off"), "{error}");
        assert_eq!(env.cut_operation().unwrap(), "write a");
        assert!(env.power_is_off());
        assert!(env.open(Path::new("a"), Access::Random).is_err());
        assert!(file.read_exact_at(&mut [0], 0).is_err());
        assert!(env.create(Path::new("b"), FileKind::Log).is_err());
        assert!(env.metadata(Path::new("a")).is_err());
        let image = env.crash(CrashPolicy::KeepAll);
        assert_eq!(read(&image, "a").unwrap().len(), expected, "{when:?}");
    }
}

#[test]
fn a_create_that_is_cut_off_leaves_the_name_and_no_deadlock() {
    for (when, exists) in [(When::Before, false), (When::Inside, true), (When::After, true)] {
        let env = MemEnv::new();
        env.cut_power_at(0, when);
        assert!(env.create(Path::new("a"), FileKind::Log).is_err());
        assert_eq!(read(&env.crash(CrashPolicy::KeepAll), "a").is_some(), exists, "{when:?}");
        assert_eq!(read(&env.crash(CrashPolicy::DropAll), "a"), None, "{when:?}");
    }
}

#[test]
fn half_a_sync_makes_the_older_half_durable() {
    let env = MemEnv::new();
    let file = env.open_rw(Path::new("a")).unwrap();
    env.sync_dir(Path::new("")).unwrap();
    for i in 0..4 {
        file.write_all_at(&[1; 512], i * 512).unwrap();
    }
    env.cut_power_at(env.operations(), When::Inside);
    assert!(file.sync().is_err());
    assert_eq!(read(&env.crash(CrashPolicy::DropAll), "a").unwrap(), vec![1; 1024]);
    assert_eq!(read(&env.crash(CrashPolicy::KeepAll), "a").unwrap(), vec![1; 2048]);
}

#[test]
fn a_killed_process_keeps_flushed_bytes_and_loses_its_writers_and_locks() {
    let env = MemEnv::new();
    let _lock = env.lock(Path::new("LOCK")).unwrap();
    let mut file = write(&env, "a", b"flushed");
    file.append(b" and not").unwrap();
    assert_eq!(file.len(), 15);
    let next = env.kill();
    assert_eq!(read(&next, "a").unwrap(), b"flushed");
    assert_eq!(env.lock(Path::new("LOCK")).unwrap_err().kind(), ErrorKind::Locked);
    drop(next.lock(Path::new("LOCK")).unwrap());
    assert_eq!(read(&next.crash(CrashPolicy::DropAll), "a"), None, "still unsynced");
}

/// ENV-04
#[test]
fn a_full_device_leaves_a_prefix_and_the_writer_refuses_what_follows() {
    let env = MemEnv::with_capacity(4000);
    let mut file = env.create(Path::new("a"), FileKind::Log).unwrap();
    let data: Vec<u8> = (0..10_000_u32).map(|i| (i % 251) as u8).collect();
    let first = file.append(&data).and_then(|()| file.flush()).unwrap_err();
    assert_eq!(first.kind(), ErrorKind::NoSpace);
    assert_eq!(read(&env, "a").unwrap(), data[..4000]);
    assert_eq!(env.free_space(Path::new("")).unwrap(), 0);
    env.set_capacity(1 << 20);
    assert_eq!(file.append(b"x").unwrap_err().to_string(), first.to_string());
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(read(&env, "a").unwrap(), data[..4000]);
}

#[test]
fn space_comes_back_when_the_last_name_and_the_last_reader_are_gone() {
    let env = MemEnv::with_capacity(1000);
    let root = Path::new("");
    write(&env, "a", &[1; 600]).finish().unwrap();
    env.link(Path::new("a"), Path::new("b")).unwrap();
    env.remove(Path::new("a")).unwrap();
    assert_eq!(env.free_space(root).unwrap(), 400);
    let reader = env.open(Path::new("b"), Access::Random).unwrap();
    env.remove(Path::new("b")).unwrap();
    assert_eq!(env.free_space(root).unwrap(), 400);
    drop(reader);
    assert_eq!(env.free_space(root).unwrap(), 1000);
}

#[test]
fn preparing_without_room_is_no_space_and_the_file_goes_on() {
    let env = MemEnv::with_capacity(1000);
    let mut file = env.create(Path::new("a"), FileKind::Log).unwrap();
    let handle = file.handle();
    handle.prepare(800).unwrap();
    let error = handle.prepare(2000).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NoSpace, Outcome::NotApplied));
    file.append(&[1; 800]).unwrap();
    file.sync().unwrap();
    assert_eq!(file.finish().unwrap(), 800);
    assert_eq!(read(&env, "a").unwrap(), vec![1; 800]);
}

#[test]
fn a_directory_can_be_renamed_with_what_is_in_it() {
    let env = MemEnv::new();
    env.create_dir_all(Path::new("t/sub")).unwrap();
    write(&env, "t/sub/f", b"x").finish().unwrap();
    env.sync_dir(Path::new("t/sub")).unwrap();
    env.rename(Path::new("t"), Path::new("final")).unwrap();
    assert_eq!(read(&env, "final/sub/f").unwrap(), b"x");
    assert_eq!(read(&env.crash(CrashPolicy::DropAll), "t/sub/f").unwrap(), b"x");
    env.sync_dir(Path::new("")).unwrap();
    let image = env.crash(CrashPolicy::DropAll);
    assert_eq!(read(&image, "final/sub/f").unwrap(), b"x");
    assert_eq!(image.metadata(Path::new("t")).unwrap(), None);
}
