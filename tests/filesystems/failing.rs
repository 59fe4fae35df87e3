//! A real file system on a disk that fails or stalls: what fails is told, once and exactly, and
//! what stalls holds nothing else up.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use treering::env::{
    Access, Buffer, Env, ErrorKind, FileKind, IoUringEnv, RandomAccessFile, RandomRwFile, Request,
    WritePath, read_batch,
};
use treering::{
    CfOptions, Compression, Db, Durability, Error as DbError, Options, WriteBatch, WriteOptions,
};

use crate::disk::{Control, MARKER, Trouble};
use crate::engine::{assert_sound, small};
use crate::image::Mounted;
use crate::{bytes, evict, uring};

const EIO: i32 = 5;
/// How far the pages that are read lie from each other: nothing reads ahead so far, and no device
/// makes one request of two.
const STRIDE: usize = 64 << 10;
const PAGE: usize = 4096;
/// The page that is in trouble, of so many.
const BAD: usize = 17;
const PAGES: usize = 64;

/// A file whose page `BAD` carries the marker, or all of them do.
fn marked_file(mounted: &Mounted, all: bool) -> (PathBuf, Vec<u8>) {
    let mut data = bytes(3, PAGES * STRIDE);
    let marked = if all { 0..PAGES } else { BAD..BAD + 1 };
    for page in marked {
        data[page * STRIDE..][..MARKER.len()].copy_from_slice(MARKER);
    }
    let path = mounted.dir().join("marked");
    std::fs::write(&path, &data).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    (path, data)
}

fn requests(file: &Arc<dyn RandomAccessFile>) -> Vec<Request> {
    let read =
        |page| Request::Read { file: Arc::clone(file), offset: (page * STRIDE) as u64, len: PAGE };
    (0..PAGES).map(read).collect()
}

fn assert_page(data: &[u8], page: usize, found: &Buffer) {
    assert!(found[..] == data[page * STRIDE..][..PAGE], "page {page}");
}

/// Reads all pages; every one but `BAD` must be right. Whether that one failed, as it must fail.
fn failed_alone(env: &IoUringEnv, file: &Arc<dyn RandomAccessFile>, data: &[u8]) -> bool {
    let mut failed = false;
    for (page, result) in read_batch(env, requests(file)).into_iter().enumerate() {
        match result {
            Ok(found) => assert_page(data, page, &found),
            Err(error) => {
                assert_eq!((page, error.kind()), (BAD, ErrorKind::Other), "{error}");
                assert_eq!(error.errno(), Some(EIO), "{error}");
                assert_eq!(
                    (error.path(), error.offset()),
                    (file.path(), Some((BAD * STRIDE) as u64))
                );
                failed = true;
            }
        }
    }
    failed
}

fn read_errors_are_their_own(mounted: &Mounted, disk: &Control) {
    let (path, data) = marked_file(mounted, false);
    for (direct, nowait) in [(true, true), (false, false), (false, true)] {
        let Some(env) = uring(|builder| builder.direct_reads(direct).nowait(nowait)) else {
            return;
        };
        let file = env.open(&path, Access::Random).unwrap();
        disk.set(Trouble::Fail, Trouble::None);
        let before = disk.failed();
        let mut failed = 0;
        // What the page cache keeps is read from it.
        let told = (0..100).any(|_| {
            evict(&path);
            failed += u64::from(failed_alone(&env, &file, &data));
            failed > 0 && env.report().counter("ring_reads") > 16
        });
        let report = env.report();
        assert!(told, "direct {direct}: {failed} errors, {report}");
        assert!(disk.failed() - before >= failed, "an error that the disk did not make");
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
        assert_eq!(report.counter("breaker_opened"), 0, "a file's own error: {report}");
        disk.set(Trouble::None, Trouble::None);
        assert!(!failed_alone(&env, &file, &data), "the disk is well again");
    }
}

/// A key fails if its block does, and no other: what `get` says, `multi_get` says.
fn lookups_fail_alone(mounted: &Mounted, disk: &Control) {
    let Some(env) = uring(|builder| builder.direct_reads(true)) else { return };
    let cf = CfOptions { compression: Compression::None, ..CfOptions::default() };
    let options = Options { block_cache_size: 0, background_threads: 0, cf, ..Options::default() };
    let dir = mounted.dir().join("db");
    let db = Db::open(Arc::new(env.clone()), &dir, options).unwrap();
    let is_bad = |key: u64| key % 80 == 56;
    for key in 0..1024_u64 {
        let mut value = bytes(key, 4000);
        if is_bad(key) {
            value[..MARKER.len()].copy_from_slice(MARKER);
        }
        db.put(key.to_be_bytes(), value).unwrap();
    }
    db.flush().unwrap();
    // Neighbours and all: the kernel joins their reads on the way to the device.
    let keys: Vec<u64> = (0..1024).collect();
    disk.set(Trouble::Fail, Trouble::None);
    let single: Vec<_> = keys.iter().map(|key| db.get(key.to_be_bytes())).collect();
    let before = env.report();
    let many = db.multi_get(keys.iter().map(|key| key.to_be_bytes()));
    for ((key, single), many) in keys.iter().zip(single).zip(many) {
        match (single, many) {
            (Ok(single), Ok(many)) => {
                assert!(!is_bad(*key) && single == many, "key {key}");
                assert!(many.unwrap()[..] == bytes(*key, 4000)[..], "key {key}");
            }
            (Err(DbError::Io(single)), Err(DbError::Io(many))) => {
                assert!(is_bad(*key), "key {key}: {many}");
                assert_eq!((single.errno(), many.errno()), (Some(EIO), Some(EIO)), "key {key}");
            }
            (single, many) => panic!("key {key}: {:?} and {:?}", single.err(), many.err()),
        }
    }
    let since = env.report().since(&before);
    // An entry is up to 128 KiB of neighbours; one that fails is read again by plain calls.
    assert!(since.counter("ring_reads") >= 16, "{since}");
    disk.set(Trouble::None, Trouble::None);
    assert!(db.get(56_u64.to_be_bytes()).unwrap().is_some(), "the disk is well again");
}

/// Bytes of a table with a marker in each MiB.
fn marked_table() -> Vec<u8> {
    let mut data = bytes(4, 3 << 20);
    for at in (700_000..data.len()).step_by(1 << 20) {
        data[at..at + MARKER.len()].copy_from_slice(MARKER);
    }
    data
}

fn write_errors_are_final(mounted: &Mounted, disk: &Control) {
    let data = marked_table();
    for direct in [false, true] {
        for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
            let Some(env) = uring(|builder| builder.write_path(path).direct_writes(direct)) else {
                return;
            };
            let name = mounted.dir().join("table");
            let mut file = env.create(&name, FileKind::Table).unwrap();
            let handle = file.handle();
            let before = disk.failed();
            disk.set(Trouble::None, Trouble::Fail);
            let appended = data.chunks(100_000).try_for_each(|part| file.append(part));
            let error = appended.and_then(|()| file.sync()).unwrap_err();
            assert_eq!((error.errno(), error.path()), (Some(EIO), &*name), "{path:?}: {error}");
            assert!(disk.failed() > before, "an error that the disk did not make");
            disk.set(Trouble::None, Trouble::None);
            // The disk is well again, and still nothing that was lost is called durable.
            assert!(file.append(b"more").is_err() && file.flush().is_err());
            assert!(file.sync().is_err() && handle.sync().is_err());
            assert!(file.finish().is_err());
            let mut next = env.create(&mounted.dir().join("next"), FileKind::Table).unwrap();
            next.append(&data).unwrap();
            assert_eq!(next.finish().unwrap(), data.len() as u64, "another file");
        }
    }
}

/// A file in place past the page cache, whose pages `write_all` writes: one that was written once.
fn open_in_place(env: &IoUringEnv, mounted: &Mounted) -> Arc<dyn RandomRwFile> {
    let file = env.open_rw(&mounted.dir().join("in place")).unwrap();
    file.write_all_at(&Buffer::zeroed(PAGES * PAGE), 0).unwrap();
    file.sync().unwrap();
    file
}

/// The page with the marker if it is one of `marked`.
fn page_in_place(page: usize, marked: &Range<usize>) -> Buffer {
    let mut data = Buffer::from(&bytes(page as u64, PAGE)[..]);
    if marked.contains(&page) {
        data.as_mut_slice()[..MARKER.len()].copy_from_slice(MARKER);
    }
    data
}

fn writes_of_all_pages(file: &Arc<dyn RandomRwFile>, marked: &Range<usize>) -> Vec<Request> {
    let write = |page| Request::Write {
        file: Arc::clone(file),
        offset: (page * PAGE) as u64,
        data: page_in_place(page, marked),
    };
    (0..PAGES).map(write).collect()
}

/// The pages lie side by side: the kernel joins them, and a bad one takes others with it.
fn a_queued_write_to_a_bad_block_fails_alone(mounted: &Mounted, disk: &Control) {
    let Some(env) = uring(|builder| builder.direct_rw(true)) else { return };
    let (file, marked) = (open_in_place(&env, mounted), BAD..BAD + 1);
    disk.set(Trouble::None, Trouble::Fail);
    let results = read_batch(&env, writes_of_all_pages(&file, &marked));
    disk.set(Trouble::None, Trouble::None);
    for (page, result) in results.into_iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(page, BAD),
            Err(error) => {
                assert_eq!((page, error.errno(), error.op()), (BAD, Some(EIO), "write"));
                assert_eq!(
                    (error.path(), error.offset()),
                    (file.path(), Some((BAD * PAGE) as u64))
                );
            }
        }
        let mut there = vec![0; PAGE];
        file.read_exact_at(&mut there, (page * PAGE) as u64).unwrap();
        assert!(page == BAD || there[..] == page_in_place(page, &marked)[..], "page {page}");
    }
    let report = env.report();
    let peaks = ["ring_writes", "sqes_per_enter_peak"].map(|name| report.counter(name));
    assert_eq!(peaks, [PAGES as u64; 2], "{report}");
    file.sync().unwrap();
}

fn all_writes_of_a_submission_are_with_the_device_at_once(mounted: &Mounted, disk: &Control) {
    let Some(env) = uring(|builder| builder.direct_rw(true)) else { return };
    let file = open_in_place(&env, mounted);
    let marked = 0..PAGES;
    disk.set(Trouble::None, Trouble::Hold);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| read_batch(&env, writes_of_all_pages(&file, &marked)));
        disk.wait_until_some_are_held();
        assert!(!written.is_finished(), "all pages are marked");
        disk.set(Trouble::None, Trouble::None);
        disk.release();
        assert!(written.join().unwrap().iter().all(Result::is_ok));
    });
    let report = env.report();
    let peaks = ["in_flight_peak", "sqes_per_enter_peak"].map(|name| report.counter(name));
    assert_eq!(peaks, [PAGES as u64; 2], "{report}");
}

fn put_synced(db: &Db, number: u64, value: &[u8]) -> treering::Result<()> {
    let mut batch = WriteBatch::new();
    batch.put(number.to_be_bytes(), value);
    db.write_opt(batch, &WriteOptions { durability: Some(Durability::Synced) })
}

fn a_failed_log_poisons(mounted: &Mounted, disk: &Control) {
    for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
        let Some(env) = uring(|builder| builder.write_path(path)) else { return };
        let env: Arc<dyn Env> = Arc::new(env);
        let dir = mounted.dir().join("db");
        let db = Db::open(Arc::clone(&env), &dir, small(1)).unwrap();
        (0..50).for_each(|number| put_synced(&db, number, b"well").unwrap());
        disk.set(Trouble::None, Trouble::Fail);
        let error = put_synced(&db, 50, MARKER).unwrap_err();
        let DbError::Io(cause) = &error else { panic!("{error}") };
        assert_eq!(cause.errno(), Some(EIO), "{error}");
        disk.set(Trouble::None, Trouble::None);
        for number in 51..60 {
            let error = put_synced(&db, number, b"well").unwrap_err();
            assert!(matches!(error, DbError::Poisoned(_)), "{error}");
        }
        assert!(matches!(db.flush(), Err(DbError::Poisoned(_))));
        assert_eq!(db.iter().map(Result::unwrap).count(), 50, "reads go on");
        drop(db);
        let db = Db::open(Arc::clone(&env), &dir, small(1)).unwrap();
        // What failed may be there, whole.
        let found: Vec<_> = db.iter().map(Result::unwrap).collect();
        assert!((50..=51).contains(&found.len()), "{} of 50", found.len());
        for (number, (key, value)) in found.iter().enumerate() {
            assert_eq!(key[..], (number as u64).to_be_bytes());
            assert_eq!(value[..], if number == 50 { &MARKER[..] } else { b"well" }[..]);
        }
        put_synced(&db, 60, b"well").unwrap();
        db.close().unwrap();
        drop(db);
        assert_sound(&env, &dir);
    }
}

fn push_all(env: &IoUringEnv, path: &Path) -> Box<dyn treering::env::IoQueue> {
    let file = env.open(path, Access::Random).unwrap();
    // The first read of a file shows what its file system can do, and waits for the device.
    let first = Request::Read { file: Arc::clone(&file), offset: STRIDE as u64 / 2, len: PAGE };
    assert!(read_batch(env, vec![first])[0].is_ok());
    let mut queue = env.queue();
    for (page, request) in requests(&file).into_iter().enumerate() {
        queue.push(page as u64, request);
    }
    queue
}

fn a_stalled_read_holds_nothing_else_up(mounted: &Mounted, disk: &Control) {
    let (path, data) = marked_file(mounted, false);
    let Some(env) = uring(|builder| builder.rings(2).direct_reads(true)) else { return };
    disk.set(Trouble::Hold, Trouble::None);
    let mut queue = push_all(&env, &path);
    for _ in 0..PAGES - 1 {
        let done = queue.pop().unwrap();
        let page = usize::try_from(done.tag).unwrap();
        assert_ne!(page, BAD, "it is held");
        assert_page(&data, page, &done.result.unwrap());
    }
    disk.wait_until_held(1);
    let report = env.report();
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes") + 1, "{report}");
    // The reactor does not care, and neither do other queues.
    env.shutdown(Duration::from_mins(1)).unwrap();
    let (other, other_data) = (mounted.dir().join("other"), bytes(9, PAGE));
    std::fs::write(&other, &other_data).unwrap();
    let file = env.open(&other, Access::Random).unwrap();
    let read = |_| Request::Read { file: Arc::clone(&file), offset: 0, len: PAGE };
    for result in read_batch(&env, (0..8).map(read).collect()) {
        assert!(result.unwrap()[..] == other_data[..]);
    }
    disk.set(Trouble::None, Trouble::None);
    disk.release();
    let done = queue.pop().unwrap();
    assert_eq!(done.tag, BAD as u64);
    assert_page(&data, BAD, &done.result.unwrap());
    assert!(queue.pop().is_none());
}

/// Whatever is dropped meanwhile, the memory and the file of a read stay until it has ended.
fn dropping_waits_for_a_stalled_read(mounted: &Mounted, disk: &Control) {
    let (path, _) = marked_file(mounted, false);
    let Some(env) = uring(|builder| builder.rings(1).direct_reads(true)) else { return };
    disk.set(Trouble::Hold, Trouble::None);
    let path = &path;
    std::thread::scope(|scope| {
        let dropped = scope.spawn(move || {
            let queue = push_all(&env, path);
            let kept = env.clone();
            drop(env);
            drop(queue);
            let report = kept.report();
            assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
            assert!(report.counter("ring_reads") > 16, "{report}");
        });
        disk.wait_until_held(1);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropped.is_finished(), "a queue was dropped with a read in flight");
        disk.set(Trouble::None, Trouble::None);
        disk.release();
    });
}

fn all_reads_of_a_window_are_with_the_device_at_once(mounted: &Mounted, disk: &Control) {
    let (path, data) = marked_file(mounted, true);
    let Some(env) = uring(|builder| builder.direct_reads(true)) else { return };
    let file = env.open(&path, Access::Random).unwrap();
    assert!(read_batch(&env, requests(&file)).iter().all(Result::is_ok));
    disk.set(Trouble::Hold, Trouble::None);
    let mut queue = env.queue();
    for (page, request) in requests(&file).into_iter().enumerate() {
        queue.push(page as u64, request);
    }
    disk.wait_until_held(PAGES);
    assert_eq!(env.report().counter("in_flight_peak"), PAGES as u64);
    disk.set(Trouble::None, Trouble::None);
    disk.release();
    let mut pages: Vec<u64> = Vec::new();
    while let Some(done) = queue.pop() {
        assert_page(&data, usize::try_from(done.tag).unwrap(), &done.result.unwrap());
        pages.push(done.tag);
    }
    pages.sort_unstable();
    assert_eq!(pages, (0..PAGES as u64).collect::<Vec<_>>());
}

fn a_shutdown_does_not_wait_for_a_stalled_write(mounted: &Mounted, disk: &Control) {
    let reactor = |builder: treering::env::IoUringEnvBuilder| {
        builder.rings(1).write_path(WritePath::Reactor).direct_writes(true)
    };
    let Some(env) = uring(reactor) else { return };
    let data = marked_table();
    let path = mounted.dir().join("table");
    let mut file = env.create(&path, FileKind::Table).unwrap();
    disk.set(Trouble::None, Trouble::Hold);
    // Up to the end of the block with the first marker, and one more.
    file.append(&data[..1 << 20]).unwrap();
    disk.wait_until_held(1);
    let error = env.shutdown(Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains("still in the kernel"), "{error}");
    disk.set(Trouble::None, Trouble::None);
    disk.release();
    file.append(&data[1 << 20..]).unwrap();
    assert_eq!(file.finish().unwrap(), data.len() as u64);
    assert!(std::fs::read(&path).unwrap() == data, "what was held is there too");
}

/// A table is seen when all of it is written: until then what it holds is read from memory.
fn readers_see_the_old_state_until_a_write_has_ended(mounted: &Mounted, disk: &Control) {
    let reactor = |builder: treering::env::IoUringEnvBuilder| {
        builder.write_path(WritePath::Reactor).direct_writes(true)
    };
    let Some(env) = uring(reactor) else { return };
    let cf = CfOptions { compression: Compression::None, ..CfOptions::default() };
    let options = Options { background_threads: 1, cf, ..Options::default() };
    let db = Db::open(Arc::new(env), mounted.dir().join("db"), options).unwrap();
    let value = |key: u64| {
        let mut value = bytes(key, 4000);
        value[..MARKER.len()].copy_from_slice(MARKER);
        value
    };
    (0..256_u64).for_each(|key| db.put(key.to_be_bytes(), value(key)).unwrap());
    db.sync_wal().unwrap();
    let right = || {
        let answers = db.multi_get((0..256_u64).map(u64::to_be_bytes));
        (0..).zip(answers).all(|(key, found)| found.unwrap().unwrap()[..] == value(key)[..])
    };
    let tables = || db.stats().families[0].levels.iter().map(|level| level.files).sum::<usize>();
    disk.set(Trouble::None, Trouble::Hold);
    std::thread::scope(|scope| {
        let flushed = scope.spawn(|| db.flush());
        disk.wait_until_some_are_held();
        assert!(right() && tables() == 0 && !flushed.is_finished());
        disk.set(Trouble::None, Trouble::None);
        disk.release();
        flushed.join().unwrap().unwrap();
    });
    assert!(right() && tables() == 1);
}

/// URING-04, ENV-15: on the kernel's own errors.
#[test]
fn errors_of_an_ext4_disk_are_told_where_they_belong() {
    let Some((mounted, disk)) = Mounted::on_disk_in_trouble("ext4", 128) else { return };
    read_errors_are_their_own(&mounted, &disk);
    lookups_fail_alone(&mounted, &disk);
    write_errors_are_final(&mounted, &disk);
    a_queued_write_to_a_bad_block_fails_alone(&mounted, &disk);
    a_failed_log_poisons(&mounted, &disk);
}

/// URING-04, ENV-05
#[test]
fn errors_of_an_xfs_disk_are_told_where_they_belong() {
    let Some((mounted, disk)) = Mounted::on_disk_in_trouble("xfs", 320) else { return };
    read_errors_are_their_own(&mounted, &disk);
    lookups_fail_alone(&mounted, &disk);
    write_errors_are_final(&mounted, &disk);
    a_queued_write_to_a_bad_block_fails_alone(&mounted, &disk);
    a_failed_log_poisons(&mounted, &disk);
}

/// URING-11, URING-21, URING-34: a device that has no answer.
#[test]
fn a_disk_that_stalls_holds_up_its_own_requests_only() {
    let Some((mounted, disk)) = Mounted::on_disk_in_trouble("ext4", 128) else { return };
    a_stalled_read_holds_nothing_else_up(&mounted, &disk);
    dropping_waits_for_a_stalled_read(&mounted, &disk);
    all_reads_of_a_window_are_with_the_device_at_once(&mounted, &disk);
    all_writes_of_a_submission_are_with_the_device_at_once(&mounted, &disk);
    a_shutdown_does_not_wait_for_a_stalled_write(&mounted, &disk);
    readers_see_the_old_state_until_a_write_has_ended(&mounted, &disk);
}
