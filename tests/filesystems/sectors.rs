//! Devices whose sectors are pages: what is not in whole pages past the page cache is served
//! through aligned memory or refused, and nothing goes through the page cache unseen.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Signal, getpid, kill_process};
use treering::env::{
    Access, Buffer, DirEntry, Env, EnvReport, ErrorKind, FileKind, FileLock, IoQueue, Metadata,
    Outcome, RandomAccessFile, RandomRwFile, Request, Result, WritableFile, read_batch,
};
use treering::{Db, Durability, WriteBatch, WriteOptions};

use crate::engine::{assert_sound, small};
use crate::image::{Mounted, admin};
use crate::suite::{DISK, posix, whole_suite};
use crate::{bytes, evict, skipped, uring};

const SECTOR: usize = 4096;

/// Every environment that reads and writes past the page cache.
fn direct_environments() -> Vec<Arc<dyn Env>> {
    let posix = posix(|builder| builder.direct_reads(true).direct_writes(true).direct_rw(true));
    let rings = uring(|builder| {
        builder.direct_reads(true).direct_writes(true).direct_rw(true).merge_limit(0)
    });
    let registered = uring(|builder| {
        let builder = builder.direct_reads(true).direct_writes(true).direct_rw(true);
        builder.fixed_buffers(8 << 20)
    });
    let rings = [rings, registered].into_iter().flatten().map(|env| Arc::new(env) as Arc<dyn Env>);
    std::iter::once(posix).chain(rings).collect()
}

/// How many pages of a file are in the page cache. To look by a read would start reads.
fn cached_pages(path: &Path) -> u64 {
    let mut command = admin("fincore");
    let output = command.args(["--bytes", "--noheadings", "--output", "PAGES"]).arg(path).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn assert_past_the_cache(path: &Path, report: &EnvReport) {
    assert_eq!(cached_pages(path), 0, "pages of {} are cached: {report}", path.display());
}

/// Takes a file out of the page cache.
fn evict_all(path: &Path) {
    let gone = (0..200).any(|_| {
        evict(path);
        cached_pages(path) == 0
    });
    assert!(gone, "pages of {} stay in the page cache", path.display());
}

/// The kernel's word for it: whole pages, and no less.
fn pages_are_asked_for(mounted: &Mounted) {
    let path = mounted.dir().join("file");
    std::fs::write(&path, b"x").unwrap();
    let stat = statx(CWD, &path, AtFlags::empty(), StatxFlags::DIOALIGN).unwrap();
    assert_eq!(stat.stx_dio_offset_align as usize, SECTOR);
    for env in direct_environments() {
        let alignment = env.open_rw(&path).unwrap().alignment();
        assert_eq!(alignment.offset, SECTOR);
        assert_eq!(alignment.memory, stat.stx_dio_mem_align as usize);
    }
}

fn reads_begin_and_end_anywhere_and_leave_the_cache_alone(mounted: &Mounted) {
    const LEN: usize = 64 * SECTOR + 1234;
    let (path, data) = (mounted.dir().join("file"), bytes(1, LEN));
    std::fs::write(&path, &data).unwrap();
    let mut ranges = vec![(8, SECTOR), (512, 2 * SECTOR), (SECTOR - 8, 16), (0, SECTOR)];
    ranges.extend([(64 * SECTOR, 1234), (64 * SECTOR + 512, 700), (LEN - 1, 1), (3, LEN - 3)]);
    ranges.extend((0..32).map(|n| (n * 2 * SECTOR + 512 * (n % 8), 3000)));
    for env in direct_environments() {
        evict_all(&path);
        let file = env.open(&path, Access::Random).unwrap();
        let before = env.report();
        let mut single = vec![0; LEN];
        for (offset, len) in &ranges {
            file.read_exact_at(&mut single[..*len], *offset as u64).unwrap();
            assert!(single[..*len] == data[*offset..offset + len], "{len} bytes at {offset}");
        }
        let request = |&(offset, len): &(usize, usize)| Request::Read {
            file: Arc::clone(&file),
            offset: offset as u64,
            len,
        };
        let results = read_batch(&*env, ranges.iter().map(request).collect());
        for (result, (offset, len)) in results.iter().zip(&ranges) {
            let found = result.as_ref().unwrap();
            assert!(**found == data[*offset..offset + len], "{len} bytes at {offset}");
        }
        let beyond = file.read_exact_at(&mut single[..2], LEN as u64 - 1).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
        let report = env.report().since(&before);
        assert_past_the_cache(&path, &report);
        assert!(report.counter("bounce_bytes") > 0, "some are not aligned: {report}");
        if report.env == "io_uring" {
            let reads = report.counter("ring_reads") + report.counter("merged_reads");
            assert!(reads > 30, "{report}");
            assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
        }
        let refused = ["fallback_preads", "merge_refused"].map(|name| report.counter(name));
        assert_eq!(refused, [0; 2], "{report}");
    }
}

fn tables_are_written_past_the_cache(mounted: &Mounted) {
    let data = bytes(2, (3 << 20) + 777);
    for env in direct_environments() {
        let path = mounted.dir().join("table");
        let mut file = env.create(&path, FileKind::Table).unwrap();
        data.chunks(100_000).for_each(|part| file.append(part).unwrap());
        assert_eq!(file.finish().unwrap(), data.len() as u64);
        // The last page is cut, and to cut it the kernel reads it.
        let cached = cached_pages(&path);
        assert!(cached <= 1, "{cached} pages: {}", env.report());
        assert!(std::fs::read(&path).unwrap() == data);
    }
}

/// Writes in place: those of whole pages are made, and those that are off by 512 bytes are told
/// what is asked for, beside them in a queue as well.
fn writes_that_are_off_by_512_bytes_are_told_what_is_asked_for(mounted: &Mounted) {
    const PAGES: usize = 48;
    for env in direct_environments() {
        let path = mounted.dir().join("in place");
        let file = env.open_rw(&path).unwrap();
        file.write_all_at(&Buffer::zeroed(PAGES * SECTOR), 0).unwrap();
        file.sync().unwrap();
        let mut expected = vec![0; PAGES * SECTOR];
        let check = |error: &treering::env::Error, offset: u64, told: &str| {
            let found = (error.kind(), error.outcome(), error.offset());
            assert_eq!(found, (ErrorKind::Misaligned, Outcome::NotApplied, Some(offset)));
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(error.path(), path);
        };
        let off = "the offset is no multiple of 4096";
        let long = "the length is no multiple of 4096";
        for (offset, len, told) in [(512, SECTOR, off), (0, 512, long), (0, SECTOR + 512, long)] {
            let error = file.write_all_at(&Buffer::zeroed(len.max(SECTOR))[..len], offset);
            check(&error.unwrap_err(), offset, told);
        }
        let before = env.report();
        let offset = |page: usize| (page * SECTOR + if page % 12 == 5 { 512 } else { 0 }) as u64;
        let writes = (0..PAGES).map(|page| Request::Write {
            file: Arc::clone(&file),
            offset: offset(page),
            data: Buffer::from(&bytes(page as u64, SECTOR)[..]),
        });
        for (page, result) in read_batch(&*env, writes.collect()).into_iter().enumerate() {
            match result {
                Ok(_) => {
                    let data = bytes(page as u64, SECTOR);
                    expected[page * SECTOR..][..SECTOR].copy_from_slice(&data);
                    assert_ne!(page % 12, 5);
                }
                Err(error) => {
                    assert_eq!(page % 12, 5, "{error}");
                    check(&error, offset(page), off);
                }
            }
        }
        let since = env.report().since(&before);
        if since.env == "io_uring" {
            let written = ["ring_writes", "fallback_pwrites"].map(|name| since.counter(name));
            assert_eq!(written, [PAGES as u64 - 4, 0], "{since}");
        }
        assert_past_the_cache(&path, &since);
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}

/// Has every file read as tables are, logs and manifests too.
#[derive(Debug)]
struct AllDirect(Arc<dyn Env>);

impl Env for AllDirect {
    fn open(&self, path: &Path, _: Access) -> Result<Arc<dyn RandomAccessFile>> {
        self.0.open(path, Access::Random)
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.0.open_rw(path)
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        self.0.create(path, kind)
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.0.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.0.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.link(from, to)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.0.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.0.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.0.sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.0.free_space(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.0.lock(path)
    }

    fn queue(&self) -> Box<dyn IoQueue> {
        self.0.queue()
    }

    fn report(&self) -> EnvReport {
        self.0.report()
    }
}

const ROLE: &str = "TREERING_TEST_ROLE";
/// In tables, then only in the log.
const NUMBERS: [u64; 2] = [500, 600];

fn value(number: u64) -> Vec<u8> {
    bytes(number, 777)
}

fn put(db: &Db, number: u64) {
    let durability =
        if number.is_multiple_of(10) { Durability::Synced } else { Durability::Flushed };
    let mut batch = WriteBatch::new();
    batch.put(number.to_be_bytes(), value(number));
    db.write_opt(batch, &WriteOptions { durability: Some(durability) }).unwrap();
}

fn assert_numbers(db: &Db, count: u64) {
    let found: Vec<_> = db.iter().map(std::result::Result::unwrap).collect();
    assert_eq!(found.len() as u64, count);
    for (number, (key, found)) in (0..).zip(&found) {
        assert_eq!(key[..], u64::to_be_bytes(number));
        assert!(found[..] == value(number)[..], "the value of {number}");
    }
    let answers = db.multi_get((0..count).map(u64::to_be_bytes));
    for (number, answer) in (0..).zip(answers) {
        assert!(answer.unwrap().unwrap()[..] == value(number)[..], "the value of {number}");
    }
}

/// Fills a database and dies.
fn fill_and_die(role: &str) -> ! {
    let (env, dir) = role.split_once('=').unwrap();
    let env = Arc::clone(&direct_environments()[env.parse::<usize>().unwrap()]);
    let db = Db::open(env, dir, small(0)).unwrap();
    (0..NUMBERS[0]).for_each(|number| put(&db, number));
    db.flush().unwrap();
    db.compact_range::<&[u8]>(..).unwrap();
    (NUMBERS[0]..NUMBERS[1]).for_each(|number| put(&db, number));
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("it is dead")
}

fn a_killed_database_is_replayed_past_the_cache(mounted: &Mounted, test: &str) {
    for (n, env) in direct_environments().into_iter().enumerate() {
        let dir = mounted.dir().join("db");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("sectors::{test}"), "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{n}={}", dir.display()))
            .stdout(Stdio::null())
            .status();
        assert_eq!(child.unwrap().signal(), Some(Signal::KILL.as_raw()), "it was to be killed");
        let files = |extension: &str| -> Vec<PathBuf> {
            let paths = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
            let is_one =
                |path: &PathBuf| path.file_name().unwrap().to_string_lossy().contains(extension);
            paths.filter(is_one).collect()
        };
        let read: Vec<PathBuf> = ["MANIFEST", ".log", "CURRENT"].map(files).concat();
        assert!(read.len() >= 3 && !files(".sst").is_empty(), "{read:?}");
        read.iter().map(PathBuf::as_path).for_each(evict_all);
        let before = env.report();
        let all_direct = Arc::new(AllDirect(Arc::clone(&env)));
        let db = Db::open(all_direct, &dir, small(0)).unwrap();
        let since = env.report().since(&before);
        // More than the log's hundred values, which are aligned to 8 bytes and no more.
        let replayed = (NUMBERS[1] - NUMBERS[0]) * 777;
        assert!(since.counter("bounce_bytes") > replayed, "{since}");
        assert_numbers(&db, NUMBERS[1]);
        put(&db, NUMBERS[1]);
        db.flush().unwrap();
        db.compact_range::<&[u8]>(..).unwrap();
        db.close().unwrap();
        drop(db);
        assert_sound(&env, &dir);
        let before = env.report();
        let db = Db::open(Arc::clone(&env), &dir, small(0)).unwrap();
        let tables = files(".sst");
        tables.iter().map(PathBuf::as_path).for_each(evict_all);
        assert_numbers(&db, NUMBERS[1] + 1);
        let since = env.report().since(&before);
        for path in &tables {
            assert_past_the_cache(path, &since);
        }
        db.close().unwrap();
    }
}

fn whole_pages_or_nothing(kind: &str, size: u64, test: &str) {
    if let Ok(role) = std::env::var(ROLE) {
        fill_and_die(&role);
    }
    if admin("fincore").arg("--version").output().is_err() {
        return skipped("fincore is needed: it tells what is in the page cache");
    }
    let Some(mounted) = Mounted::image_in_sectors_of(4096, kind, size) else { return };
    pages_are_asked_for(&mounted);
    reads_begin_and_end_anywhere_and_leave_the_cache_alone(&mounted);
    tables_are_written_past_the_cache(&mounted);
    writes_that_are_off_by_512_bytes_are_told_what_is_asked_for(&mounted);
    a_killed_database_is_replayed_past_the_cache(&mounted, test);
    whole_suite(&mounted, &DISK);
}

/// ENV-20
#[test]
fn ext4_on_sectors_of_a_page_takes_whole_pages_or_says_what_it_asks_for() {
    whole_pages_or_nothing(
        "ext4",
        256,
        "ext4_on_sectors_of_a_page_takes_whole_pages_or_says_what_it_asks_for",
    );
}

/// ENV-20
#[test]
fn xfs_on_sectors_of_a_page_takes_whole_pages_or_says_what_it_asks_for() {
    whole_pages_or_nothing(
        "xfs",
        320,
        "xfs_on_sectors_of_a_page_takes_whole_pages_or_says_what_it_asks_for",
    );
}
