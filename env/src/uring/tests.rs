//! The environment on the real kernel: cold pages, many threads, panics, children.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::{Buffer, Request, read_batch};

mod ahead;
mod crowd;
mod denied;
mod fixed;
mod forced;
mod fork;
mod guarded;
mod iopoll;
mod merged;
mod sqpoll;
mod storms;
mod writes;

/// Whether the kernel refuses io_uring here, so that there is nothing to test; says so past the
/// test harness, which would hide it. Where that must not be, `TREERING_REQUIRE_IO_URING` is set.
pub(super) fn refused() -> bool {
    let Err(why) = IoUringEnv::builder().rings(1).build() else { return false };
    assert!(std::env::var_os("TREERING_REQUIRE_IO_URING").is_none(), "{why}");
    writeln!(std::io::stderr(), "SKIPPED: {why}").unwrap();
    true
}

/// How many times as much a run does of what is seldom seen: 1, or what `TREERING_SOAK` says.
fn soak() -> u64 {
    std::env::var("TREERING_SOAK").map_or(1, |times| times.parse().unwrap())
}

/// A directory on the disk that the crate is built on, which is a real one more often than `/tmp`.
fn on_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn byte_at(offset: u64) -> u8 {
    u8::try_from((offset % 251) ^ (offset / 4096 % 241)).expect("two values below 256")
}

fn bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(byte_at).collect()
}

/// Writes a file of known bytes and drops it from the page cache.
fn cold_file(dir: &TempDir, name: &str, len: usize) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes(0, len)).unwrap();
    evict(&path);
    path
}

fn evict(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    rustix::fs::fdatasync(file.as_fd()).unwrap();
    // Right after it was written a page may be held by the kernel for a while and is then passed
    // over; so the last one is looked at, read in full, and all are dropped again.
    let last = file.metadata().unwrap().len().saturating_sub(1);
    for _ in 0..100 {
        rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut byte = [0];
        let look = &mut [std::io::IoSliceMut::new(&mut byte)];
        let nowait = rustix::io::ReadWriteFlags::NOWAIT;
        if rustix::io::preadv2(file.as_fd(), look, last, nowait).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::io::pread(file.as_fd(), &mut [0], last).unwrap();
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Repeats `round` until the report says what `happened` asks for. What a single round finds in the
/// page cache is the kernel's affair: a look that misses starts the read, and on a busy machine the
/// page may be there before the look ends.
fn until(env: &IoUringEnv, happened: impl Fn(&EnvReport) -> bool, mut round: impl FnMut()) {
    for _ in 0..100 {
        round();
        if happened(&env.report()) {
            return;
        }
    }
    panic!("not in a hundred rounds: {}", env.report());
}

/// Waits until this process has no worker thread of a ring left. One that a busy device called for
/// ends when it has been idle for some seconds; a kind of read that needs workers makes new ones in
/// every round.
fn without_workers(env: &IoUringEnv, mut round: impl FnMut()) {
    until(
        env,
        |report| report.counter("worker_threads_alive") == 0,
        || {
            if env.report().counter("worker_threads_alive") > 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            round();
        },
    );
}

fn requests(file: &Arc<dyn RandomAccessFile>, ranges: &[(u64, usize)]) -> Vec<Request> {
    let read =
        |&(offset, len): &(u64, usize)| Request::Read { file: Arc::clone(file), offset, len };
    ranges.iter().map(read).collect()
}

fn assert_right(results: &[Result<Buffer>], ranges: &[(u64, usize)]) {
    assert_eq!(results.len(), ranges.len());
    for (result, (offset, len)) in results.iter().zip(ranges) {
        assert!(**result.as_ref().unwrap() == bytes(*offset, *len)[..], "wrong bytes at {offset}");
    }
}

/// A read that takes the device so long that a look seldom finds all of it.
const BLOCK: usize = 128 << 10;

/// So many long reads that touch each other, in an order that is not theirs in the file.
fn blocks(count: u64) -> Vec<(u64, usize)> {
    (0..count).map(|block| (block * 7 % count * BLOCK as u64, BLOCK)).collect()
}

/// So many pages far from each other.
fn scattered(count: u64) -> Vec<(u64, usize)> {
    (0..count).map(|page| (page * 7 % count * 4096 * 4, 4096)).collect()
}

/// URING-28
#[test]
fn a_cold_batch_goes_through_the_ring_and_the_report_proves_it() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * BLOCK);
    let env = IoUringEnv::new().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = blocks(64);
    assert_eq!(env.report().env, "io_uring");
    let on_the_ring = |report: &EnvReport| {
        let [reads, deep, at_once] =
            ["ring_reads", "in_flight_peak", "sqes_per_enter_peak"].map(|c| report.counter(c));
        reads > 32 && deep > 1 && at_once >= 15
    };
    until(&env, on_the_ring, || {
        evict(&path);
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        let report = env.report();
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    });
    // Warm, nothing reaches the ring.
    let before = Cell::new(env.report());
    let warm = |report: &EnvReport| {
        let since = report.since(&before.replace(report.clone()));
        (since.counter("ring_reads"), since.counter("nowait_hit")) == (0, 64)
    };
    until(&env, warm, || {
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    });
}

/// URING-29
#[test]
fn long_requests_equal_what_pread_gives() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let len = 4 * 1024 * 1024 + 4097;
    let path = cold_file(&dir, "t", len);
    for direct in [false, true] {
        let env = IoUringEnv::builder().direct_reads(direct).nowait(false).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let ranges = [(0, len), (4095, 4 * 1024 * 1024), (1, 1), (512 * 1024 - 1, 512 * 1024 + 2)];
        let in_pieces = |report: &EnvReport| {
            report.counter("ring_reads") >= 18 && report.counter("in_flight_peak") > 1
        };
        until(&env, in_pieces, || {
            evict(&path);
            assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        });
    }
}

/// URING-29
#[test]
fn one_request_of_64_mebibytes_equals_what_pread_gives() {
    const LEN: usize = 64 << 20;
    if refused() {
        return;
    }
    let dir = on_disk();
    let piece = bytes(0, 1 << 20);
    let path = cold_file(&dir, "t", 0);
    std::fs::write(&path, piece.repeat(65)).unwrap();
    for direct in [false, true] {
        let env = IoUringEnv::builder().direct_reads(direct).nowait(false).build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let in_pieces = |report: &EnvReport| {
            report.counter("ring_reads") >= 128 && report.counter("in_flight_peak") > 1
        };
        until(&env, in_pieces, || {
            evict(&path);
            let result = read_batch(&env, requests(&file, &[(4095, LEN), (0, 1)]));
            let long = result[0].as_ref().unwrap();
            assert_eq!(long.len(), LEN);
            let same = |(n, part): (usize, &[u8])| {
                let skip = if n == 0 { 4095 } else { 0 };
                *part == piece[skip..skip + part.len()]
            };
            let (first, rest) = long.split_at((1 << 20) - 4095);
            assert!(same((0, first)) && rest.chunks(1 << 20).all(|part| same((1, part))));
        });
        assert_eq!(env.report().counter("retried_eagain"), 0, "{}", env.report());
    }
}

#[test]
fn direct_reads_of_any_alignment_are_exact_and_end_at_the_end() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let len = 100 * 4096 + 123;
    let path = cold_file(&dir, "t", len);
    let env = IoUringEnv::builder().direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let mut ranges: Vec<(u64, usize)> = (0..60).map(|n| (n * 6007, 4096 + 3)).collect();
    ranges.extend([(0, 1), (len as u64 - 1, 1), (len as u64 - 123, 123), (100 * 4096 - 8, 16)]);
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    let report = env.report();
    assert!(report.counter("ring_reads") + report.counter("merged_reads") >= 60, "{report}");
    assert!(report.counter("in_flight_peak") > 1, "{report}");
    without_workers(&env, || {
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    });
}

/// ENV-17
#[test]
fn a_block_of_which_one_page_is_cached_is_exact() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * BLOCK);
    let env = IoUringEnv::new().unwrap();
    let posix = PosixEnv::new();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = blocks(64);
    let both =
        |report: &EnvReport| report.counter("nowait_short") > 0 && report.counter("ring_reads") > 0;
    until(&env, both, || {
        evict(&path);
        for (offset, _) in &ranges {
            file.read_exact_at(&mut [0; 4096], *offset).unwrap();
        }
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    });
    evict(&path);
    for (offset, _) in &ranges {
        file.read_exact_at(&mut [0; 4096], *offset).unwrap();
    }
    assert_right(&read_batch(&posix, requests(&file, &ranges)), &ranges);
}

/// URING-12: a popped buffer is the caller's, to leak, to move and to keep, while the rest is read.
#[test]
fn popped_buffers_may_be_leaked_and_moved_while_others_are_in_flight() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    let mut kept: Vec<Option<(u64, Box<Buffer>)>> = Vec::new();
    let mut queue = env.queue();
    for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
        queue.push(tag as u64, request);
    }
    while let Some(completion) = queue.pop() {
        let buffer = completion.result.unwrap();
        match completion.tag % 3 {
            0 => std::mem::forget(buffer),
            1 => kept.insert(0, Some((completion.tag, Box::new(buffer)))),
            _ => drop(buffer),
        }
    }
    for (tag, buffer) in kept.iter_mut().map(|kept| kept.take().unwrap()) {
        let (offset, len) = ranges[usize::try_from(tag).unwrap()];
        assert!(**buffer == bytes(offset, len)[..]);
    }
    assert!(env.report().counter("ring_reads") >= 63, "{}", env.report());
}

/// URING-09, URING-11, URING-13
#[test]
fn dropping_and_unwinding_with_reads_in_flight_wait_for_them() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let ranges = scattered(64);
    for round in 0..30 {
        let file = env.open(&path, Access::Random).unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut queue = env.queue();
            for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
                queue.push(tag as u64, request);
            }
            drop(file);
            for _ in 0..round {
                queue.pop().unwrap().result.unwrap();
            }
            assert!(round % 2 == 0, "decoding failed");
        }));
        assert_eq!(unwound.is_ok(), round % 2 == 0);
        let report = env.report();
        assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    }
    let file = env.open(&path, Access::Random).unwrap();
    let before = env.report();
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    let since = env.report().since(&before);
    assert!(since.counter("ring_reads") >= 63, "{since}");
    assert_eq!(since.counter("pool_empty") + since.counter("ring_retired"), 0, "{since}");
}

/// ENV-18
#[test]
fn files_without_nowait_reads_never_meet_a_ring_and_others_still_do() {
    if refused() {
        return;
    }
    let disk = on_disk();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        panic!("/dev/shm is needed: a file system without NOWAIT reads");
    };
    let path = cold_file(&disk, "t", 64 * 4 * 4096);
    let in_memory = cold_file(&memory, "t", 64 * 4 * 4096);
    for nowait in [true, false] {
        let env = IoUringEnv::builder().nowait(nowait).build().unwrap();
        let cold = env.open(&path, Access::Random).unwrap();
        let latched = env.open(&in_memory, Access::Random).unwrap();
        let ranges = scattered(64);
        let twice: Vec<(u64, usize)> = ranges.iter().flat_map(|range| [*range, *range]).collect();
        let round = || {
            let before = env.report();
            let mixed: Vec<Request> = requests(&cold, &ranges)
                .into_iter()
                .zip(requests(&latched, &ranges))
                .flat_map(|(one, two)| [one, two])
                .collect();
            assert_right(&read_batch(&env, mixed), &twice);
            let since = env.report().since(&before);
            let on_rings = since.counter("ring_reads");
            assert!(if nowait { on_rings <= 64 } else { (16..=64).contains(&on_rings) }, "{since}");
        };
        without_workers(&env, round);
        let report = env.report();
        assert_eq!(report.counter("nowait_unsupported"), 1, "{report}");
        let looks = ["nowait_hit", "nowait_short", "nowait_miss", "nowait_skipped"]
            .map(|name| report.counter(name));
        assert!(looks.iter().sum::<u64>() > 0, "the other file is asked: {report}");
    }
}

/// URING-31
#[test]
fn a_descriptor_number_used_again_does_not_mix_files_up() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let first = cold_file(&dir, "first", 64 * 4 * 4096);
    let second = dir.path().join("second");
    std::fs::write(&second, vec![0xEE; 64 * 4 * 4096]).unwrap();
    let ranges = scattered(64);
    let rounds = 500 * soak();
    for _ in 0..rounds {
        let mut queue = env.queue();
        let file = env.open(&first, Access::Random).unwrap();
        for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
            queue.push(tag as u64, request);
        }
        drop(file);
        let other = env.open(&second, Access::Random).unwrap();
        let mut tags = HashSet::new();
        while let Some(completion) = queue.pop() {
            let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
            assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
            tags.insert(completion.tag);
        }
        assert_eq!(tags.len(), 64);
        drop(other);
    }
    // The first read of a file is a look that tells what its file system can do.
    assert!(env.report().counter("ring_reads") >= 63 * rounds, "{}", env.report());
}

/// URING-25
#[test]
fn rings_are_given_back_when_an_environment_is_dropped() {
    if refused() {
        return;
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    drop(IoUringEnv::new().unwrap());
    let before = descriptors();
    for _ in 0..30 {
        let env = IoUringEnv::builder().rings(16).build().unwrap();
        assert!(env.report().counter("rings_alive") >= 1);
    }
    // Other tests open files and rings meanwhile, and close them again.
    let given_back = (0..600).any(|_| {
        let few = descriptors() < before + 240;
        if !few {
            std::thread::sleep(Duration::from_millis(100));
        }
        few
    });
    assert!(given_back, "{} descriptors, and {before} before", descriptors());
}

#[test]
fn the_report_says_what_is_in_use() {
    if refused() {
        return;
    }
    let env = IoUringEnv::builder().rings(2).ring_entries(100).build().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    env.open(file.path(), Access::Random).unwrap();
    let device = std::os::unix::fs::MetadataExt::dev(&file.as_file().metadata().unwrap());
    let chunk = format!("longest ring read on device: {device:#x}: ");
    let text = env.report().to_string();
    for part in
        ["environment: io_uring", "rings: 2 of 2", "ring entries: 128", "breaker: closed", &chunk]
    {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(text.contains("ring flags: "), "{text}");
}
