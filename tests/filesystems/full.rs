//! Devices that are full: what was written before stays, the error says what it is, and there is a
//! life after it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use treering::env::{Env, Error, ErrorKind, FileKind, IoUringEnv, WritePath};
use treering::{Db, Error as DbError};

use crate::engine::{assert_sound, small};
use crate::image::Mounted;
use crate::{bytes, uring};

/// Takes all the room of a file system but so many bytes, and gives it back when it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn new(mounted: &Mounted, left: u64) -> Self {
        let path = mounted.path().join("filler");
        let file = File::create(&path).unwrap();
        let mut size = 0;
        // In steps that become smaller: how much a file system keeps for itself is its own affair.
        for step in [32 << 20, 4 << 20, 512 << 10] {
            while free(mounted) >= left + step {
                let mode = rustix::fs::FallocateFlags::empty();
                if rustix::fs::fallocate(&file, mode, size, step).is_err() {
                    break;
                }
                size += step;
            }
        }
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
        // Some file systems give room back when they have written what they know.
        let dir = File::open(self.0.parent().unwrap()).unwrap();
        rustix::fs::syncfs(dir).unwrap();
    }
}

fn free(mounted: &Mounted) -> u64 {
    let found = rustix::fs::statvfs(mounted.path()).unwrap();
    found.f_bavail * found.f_frsize
}

fn environments(direct: bool) -> Vec<IoUringEnv> {
    let paths = [WritePath::Auto, WritePath::Reactor, WritePath::Caller];
    let make = |path| uring(|builder| builder.write_path(path).direct_writes(direct));
    paths.into_iter().filter_map(make).collect()
}

fn assert_full(error: &Error, path: &Path) {
    assert_eq!((error.kind(), error.path()), (ErrorKind::NoSpace, path), "{error}");
}

/// Appends pieces of `data` until the device is full; gives how much was appended before the call
/// that failed, which is the last one.
fn append_until_full(
    env: &IoUringEnv,
    path: &Path,
    kind: FileKind,
    data: &[u8],
    piece: usize,
) -> usize {
    let mut file = env.create(path, kind).unwrap();
    for (n, part) in data.chunks(piece).enumerate() {
        let flush = kind == FileKind::Log || n % 8 == 7;
        let result = file.append(part).and_then(|()| if flush { file.flush() } else { Ok(()) });
        if let Err(error) = result {
            assert_full(&error, path);
            assert!(file.append(part).is_err() && file.flush().is_err() && file.sync().is_err());
            assert!(file.finish().is_err());
            // What was flushed is there, whatever came after.
            return if kind == FileKind::Log { n * piece } else { n / 8 * 8 * piece };
        }
    }
    panic!("{} bytes fit on a device that should be full", data.len());
}

fn a_full_device_leaves_prefixes(mounted: &Mounted, direct: bool) {
    let data = bytes(1, 24 << 20);
    for env in environments(direct) {
        for (kind, piece) in [(FileKind::Table, 100_000), (FileKind::Log, 10_000)] {
            let path = mounted.dir().join("file");
            let filler = Filler::new(mounted, 4 << 20);
            let kept = append_until_full(&env, &path, kind, &data, piece);
            let there = std::fs::read(&path).unwrap();
            let is_prefix = there.len() <= data.len() && there[..] == data[..there.len()];
            assert!(is_prefix, "{kind:?}, direct {direct}: {} bytes differ", there.len());
            assert!(there.len() >= kept, "{kind:?}: {} of {kept} flushed bytes", there.len());
            assert!(kept > 0, "the device was full before anything was written");
            drop(filler);
            std::fs::remove_file(&path).unwrap();
            // With room again another file takes all of it.
            let mut file = env.create(&path, kind).unwrap();
            for part in data[..8 << 20].chunks(piece) {
                file.append(part).unwrap();
            }
            file.finish().unwrap();
            assert!(std::fs::read(&path).unwrap() == data[..8 << 20], "{kind:?} after it was full");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

fn put(db: &Db, number: u64) -> treering::Result<()> {
    db.put(number.to_be_bytes(), bytes(number, 2000))
}

/// The numbers of a database, each with its value.
fn numbers(db: &Db) -> Vec<u64> {
    let number = |entry: treering::Result<(bytes::Bytes, bytes::Bytes)>| {
        let (key, value) = entry.unwrap();
        let number = u64::from_be_bytes(key[..].try_into().unwrap());
        assert!(value[..] == bytes(number, 2000)[..], "the value of {number}");
        number
    };
    db.iter().map(number).collect()
}

/// Does something until there is room for it, which must be soon. A manifest that met the full
/// device stops all writes until the next open, so the database is opened again then.
fn again_while_full(
    db: &mut Option<Db>,
    open: impl Fn() -> Db,
    attempt: impl Fn(&Db) -> treering::Result<()>,
) {
    let done = (0..600).any(|_| match attempt(db.as_ref().unwrap()) {
        Ok(()) => true,
        Err(DbError::Poisoned(cause)) if matches!(*cause, DbError::NoSpace(_)) => {
            drop(db.take());
            *db = Some(open());
            false
        }
        Err(DbError::NoSpace(_)) => {
            std::thread::sleep(Duration::from_millis(50));
            false
        }
        Err(error) => panic!("{error}"),
    });
    assert!(done, "there is room again");
}

fn a_database_lives_through_a_full_device(mounted: &Mounted) {
    for (env, threads) in environments(false).into_iter().zip([&[0, 1][..], &[1], &[0]]) {
        for &background_threads in threads {
            let dir = mounted.dir().join("db");
            let env: Arc<dyn Env> = Arc::new(env.clone());
            let open = || Db::open(Arc::clone(&env), &dir, small(background_threads)).unwrap();
            let db = open();
            let filler = Filler::new(mounted, 6 << 20);
            let mut acknowledged = Vec::new();
            let full = (0..20_000).find_map(|number| match put(&db, number) {
                Ok(()) => {
                    acknowledged.push(number);
                    None
                }
                Err(error) => Some(error),
            });
            let full = full.expect("forty megabytes do not fit");
            let cause = if let DbError::Poisoned(cause) = &full { cause } else { &full };
            assert!(matches!(cause, DbError::NoSpace(_)), "{full}");
            assert!(acknowledged.len() > 100, "{} writes", acknowledged.len());
            assert_eq!(numbers(&db), acknowledged, "reads go on");
            drop(filler);
            // What waits for room tries again in a while, and the writes behind it wait for that.
            let mut db = Some(db);
            for number in 30_000..30_500 {
                again_while_full(&mut db, open, |db| put(db, number));
                acknowledged.push(number);
            }
            again_while_full(&mut db, open, Db::flush);
            let db = db.unwrap();
            assert_eq!(numbers(&db), acknowledged);
            db.close().unwrap();
            drop(db);
            assert_sound(&env, &dir);
            let db = Db::open(Arc::clone(&env), &dir, small(0)).unwrap();
            assert_eq!(numbers(&db), acknowledged, "after the next open");
            drop(db);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}

/// ENV-04: the prefix, the error, and what comes after.
#[test]
fn a_full_ext4_leaves_prefixes_and_databases_go_on_when_there_is_room() {
    let Some(mounted) = Mounted::image("ext4", 48) else { return };
    a_full_device_leaves_prefixes(&mounted, false);
    a_full_device_leaves_prefixes(&mounted, true);
    a_database_lives_through_a_full_device(&mounted);
}

/// ENV-04
#[test]
fn a_full_xfs_leaves_prefixes_and_databases_go_on_when_there_is_room() {
    let Some(mounted) = Mounted::image("xfs", 320) else { return };
    a_full_device_leaves_prefixes(&mounted, false);
    a_full_device_leaves_prefixes(&mounted, true);
    a_database_lives_through_a_full_device(&mounted);
}
