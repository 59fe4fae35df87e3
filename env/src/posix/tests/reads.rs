//! Reads, single and batched.

use std::collections::HashMap;
use std::os::fd::AsFd;

use super::*;
use crate::os_file::{Kick, OsFile};
use crate::posix::prefetch_queue::{WINDOW, WINDOW_BYTES};
use crate::sys::scripted::{Call, Fault, When};
use crate::sys::{Advice, Sys};
use crate::{ErrorKind, IoQueue};

const BLOCK: usize = 16 << 10;

/// Drops a file's pages from the cache.
fn evict(file: &Arc<dyn RandomAccessFile>) {
    let fd = OsFile::of(&**file).unwrap().fd();
    KernelSys.fadvise(fd.as_fd(), 0, 0, Advice::DontNeed).unwrap();
}

/// How many NOWAIT reads were made, whatever they found.
fn looks(stage: &Stage) -> u64 {
    ["nowait_hit", "nowait_short", "nowait_miss"].map(|name| stage.count(name)).iter().sum()
}

/// Pops everything and checks each answer against the file's pattern by its tag, which is the
/// offset.
fn drain_and_check(queue: &mut dyn IoQueue, bytes: &[u8], len: usize) -> usize {
    let mut done = 0;
    while let Some(completion) = queue.pop() {
        let offset = usize::try_from(completion.tag).unwrap();
        let buffer = completion.result.unwrap();
        assert_eq!(buffer[..], bytes[offset..offset + len], "at {offset}");
        done += 1;
    }
    done
}

/// ENV-01
#[test]
fn ranges_inside_the_file_are_exact_and_others_are_unexpected_ends() {
    for (mode, builder) in read_modes() {
        let stage = Stage::new(builder);
        let bytes = pattern(10_000);
        std::fs::write(stage.path("t"), &bytes).unwrap();
        let Some(file) = open_or_refused(&stage, "t") else { continue };
        assert_eq!(file.size(), 10_000);
        for (offset, len) in [(9_900, 100), (0, 10_000), (4_095, 2), (1, 4_096), (9_999, 1)] {
            let got = read_both(&stage.env, &file, offset, len).unwrap();
            let from = usize::try_from(offset).unwrap();
            assert_eq!(got, bytes[from..from + len], "{mode}: {len} bytes at {offset}");
        }
        for (offset, len) in [(9_995, 10), (10_000, 1), (10_000 + (1 << 20), 10), (u64::MAX, 1)] {
            let error = read_both(&stage.env, &file, offset, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{mode}");
            assert_eq!((error.offset(), error.path()), (Some(offset), file.path()), "{mode}");
        }
        for offset in [0, 5_000, 10_000] {
            assert_eq!(read_both(&stage.env, &file, offset, 0).unwrap(), b"", "{mode}");
        }
    }
}

#[test]
fn a_wild_length_is_an_error_and_no_allocation() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 100);
    let wild = read(&file, 0, usize::MAX / 2);
    let results = read_batch(&stage.env, vec![wild, read(&file, 0, 100)]);
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(results[1].as_ref().unwrap()[..], pattern(100));
}

/// ENV-02
#[test]
fn short_reads_go_on_until_all_bytes_are_there() {
    for mode in [BatchReads::Serial, BatchReads::Prefetch] {
        let stage = Stage::new(PosixEnv::builder().batch_reads(mode));
        let file = stage.file("t", 3 * BLOCK);
        let bytes = pattern(3 * BLOCK);
        let miss = stage.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Errno(libc::EAGAIN));
        let single = stage.sys.rule(Call::Pread, "t", When::Always, Fault::Short(1));
        assert_eq!(read_both(&stage.env, &file, 100, 500).unwrap(), bytes[100..600]);
        assert!(single.fired() >= 1000);
        single.lift();
        for split in (1..BLOCK).step_by(61).chain([4095, 4096, 4097, BLOCK - 1]) {
            // Both the single and the queued read are cut there once.
            let cut = stage.sys.rule(Call::Pread, "t", When::EveryOther, Fault::Short(split));
            let got = read_both(&stage.env, &file, 4096, BLOCK).unwrap();
            assert_eq!(got, bytes[4096..4096 + BLOCK], "cut at {split}");
            assert_eq!(cut.fired(), 2);
            cut.lift();
        }
        assert_eq!(miss.fired() > 0, mode == BatchReads::Prefetch);
        assert!(stage.count("short_reads") > 1000);
    }
}

#[test]
fn a_read_of_nothing_below_the_size_is_asked_again_once_and_then_an_unexpected_end() {
    let stage = Stage::new(PosixEnv::builder().batch_reads(BatchReads::Serial));
    let file = stage.file("t", BLOCK);
    stage.sys.rule(Call::Pread, "t", When::Nth(0), Fault::Short(0));
    assert_eq!(read_both(&stage.env, &file, 0, BLOCK).unwrap(), pattern(BLOCK));
    stage.sys.rule(Call::Pread, "t", When::Always, Fault::Short(0));
    let error = read_both(&stage.env, &file, 0, BLOCK).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

/// ENV-03
#[test]
fn interrupted_reads_are_repeated_and_a_busy_read_a_bounded_number_of_times() {
    for when in [When::Nth(0), When::Nth(1), When::EveryOther] {
        let stage = Stage::prefetch();
        let interrupted = [Call::Open, Call::Pread, Call::ReadNowait, Call::StatFd]
            .map(|call| stage.sys.rule(call, "t", when, Fault::Errno(libc::EINTR)));
        for _ in 0..2 {
            let file = stage.file("t", BLOCK);
            assert_eq!(read_both(&stage.env, &file, 0, BLOCK).unwrap(), pattern(BLOCK));
        }
        let fired: u64 = interrupted.iter().map(|rule| rule.fired()).sum();
        assert!(interrupted.iter().all(|rule| rule.fired() > 0));
        assert_eq!(stage.count("retried_eintr"), fired, "each interruption is counted");
    }
    let stage = Stage::new(PosixEnv::builder().batch_reads(BatchReads::Serial));
    let file = stage.file("t", BLOCK);
    let busy = stage.sys.rule(Call::Pread, "t", When::AllButEvery(5), Fault::Errno(libc::EAGAIN));
    assert_eq!(read_both(&stage.env, &file, 0, BLOCK).unwrap(), pattern(BLOCK));
    busy.lift();
    let busy = stage.sys.rule(Call::Pread, "t", When::Always, Fault::Errno(libc::EAGAIN));
    let error = file.read_exact_at(&mut [0; 10], 7).unwrap_err();
    assert_eq!((error.errno(), error.offset()), (Some(libc::EAGAIN), Some(7)));
    assert_eq!(busy.fired(), 17);
}

/// ENV-16
#[test]
fn a_nowait_read_of_nothing_is_a_miss_and_never_an_end() {
    let stage = Stage::prefetch();
    let file = stage.file("t", BLOCK + 100);
    let bytes = pattern(BLOCK + 100);
    let zero = stage.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Short(0));
    for (offset, len) in [(0, 4096), (4096, 4096), (BLOCK, 100), (BLOCK + 99, 1)] {
        let got = read_both(&stage.env, &file, offset as u64, len).unwrap();
        assert_eq!(got, bytes[offset..offset + len]);
    }
    assert_eq!(zero.fired(), 4);
    assert_eq!(stage.count("nowait_miss"), 4);
}

/// ENV-17
#[test]
fn after_a_nowait_prefix_only_the_rest_is_fetched() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 2 * BLOCK);
    let bytes = pattern(2 * BLOCK);
    for (prefix, offset) in
        (1..BLOCK).step_by(97).chain([4096, BLOCK - 1]).zip([0, 1, 4095, 4096, 8192].iter().cycle())
    {
        let rule = stage.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Short(prefix));
        stage.sys.take_transfers();
        let got = read_batch(&stage.env, vec![read(&file, *offset, BLOCK)]).remove(0).unwrap();
        let from = usize::try_from(*offset).unwrap();
        assert_eq!(got[..], bytes[from..from + BLOCK]);
        let rest = (Call::Pread, offset + prefix as u64, BLOCK - prefix);
        assert_eq!(stage.sys.take_transfers(), [(Call::ReadNowait, *offset, BLOCK), rest]);
        rule.lift();
    }
    assert!(stage.count("nowait_short") > 100);
}

/// ENV-17
#[test]
fn a_file_with_only_its_first_page_cached_is_read_right() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 1 << 20);
    let bytes = pattern(1 << 20);
    for offset in [0_u64, 8, 4000] {
        evict(&file);
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        let got = read_batch(&stage.env, vec![read(&file, offset, BLOCK)]).remove(0).unwrap();
        let from = usize::try_from(offset).unwrap();
        assert_eq!(got[..], bytes[from..from + BLOCK]);
    }
}

/// ENV-18
#[test]
fn missing_nowait_support_is_remembered_for_the_file_that_showed_it() {
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL, libc::EPERM] {
        let stage = Stage::prefetch();
        let (old, new) = (stage.file("old", BLOCK), stage.file("new", BLOCK));
        let refused = stage.sys.rule(Call::ReadNowait, "old", When::Always, Fault::Errno(errno));
        let mut queue = stage.env.queue();
        for offset in (0..10).map(|i| i * 100) {
            queue.push(offset, read(&old, offset, 100));
            queue.push(offset, read(&new, offset, 100));
        }
        assert_eq!(drain_and_check(&mut *queue, &pattern(BLOCK), 100), 20);
        assert_eq!(refused.fired(), 1, "asked once, and not again");
        assert_eq!(stage.count("nowait_unsupported"), 1);
        let second = stage.count("kick_probe_yes") + stage.count("kick_probe_no");
        assert_eq!(looks(&stage), 10 + second, "the other file is asked every time");
        assert!(stage.count("willneed") >= 10, "the other file's reads are started by hints");
    }
}

/// ENV-19
#[test]
fn a_cache_that_never_answers_is_asked_at_most_once_a_read_and_then_rarely() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 1 << 20);
    let bytes = pattern(1 << 20);
    let never = stage.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Errno(libc::EAGAIN));
    let mut queue = stage.env.queue();
    for _ in 0..100 {
        for i in 0..100 {
            queue.push(i * 4096, read(&file, i * 4096, 4096));
        }
        assert_eq!(drain_and_check(&mut *queue, &bytes, 4096), 100);
    }
    let (probes, skipped) = (stage.count("kick_probe_no"), stage.count("nowait_skipped"));
    assert_eq!(never.fired() + skipped, 10_000 + probes);
    assert_eq!(stage.count("preads"), 10_000);
    assert!(skipped > 5_000, "skipped only {skipped}");
    assert!((4..20).contains(&probes), "{probes} second looks");
}

/// The plain read that follows has the last word, so an error of the cache's is nobody's error.
#[test]
fn an_error_of_a_nowait_read_is_left_to_the_plain_read() {
    for errno in [libc::EIO, libc::ENOMEM, libc::EFAULT, libc::ESTALE] {
        let stage = Stage::prefetch();
        let file = stage.file("t", BLOCK);
        let rule = stage.sys.rule(Call::ReadNowait, "t", When::Nth(0), Fault::Errno(errno));
        let got = read_batch(&stage.env, vec![read(&file, 0, BLOCK)]).remove(0).unwrap();
        assert_eq!((&got[..], rule.fired()), (&pattern(BLOCK)[..], 1));
        let again = read_batch(&stage.env, vec![read(&file, 0, BLOCK)]).remove(0).unwrap();
        assert_eq!(again[..], pattern(BLOCK));
        assert_eq!(stage.count("nowait_hit"), 1, "the file is not latched by it");
    }
}

/// ENV-15
#[test]
fn one_failed_read_is_that_requests_own_error() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 64 * 4096);
    stage.sys.rule(Call::ReadNowait, "t", When::Always, Fault::Errno(libc::EAGAIN));
    let bad = stage.sys.rule(Call::Pread, "t", When::Nth(17), Fault::Errno(libc::EIO));
    let requests = (0..64).map(|i| read(&file, i * 4096, 4096)).collect();
    let bytes = pattern(64 * 4096);
    let mut failed = Vec::new();
    for (i, result) in read_batch(&stage.env, requests).into_iter().enumerate() {
        match result {
            Ok(buffer) => assert_eq!(buffer[..], bytes[i * 4096..(i + 1) * 4096]),
            Err(error) => failed.push((i, error)),
        }
    }
    assert_eq!((failed.len(), bad.fired()), (1, 1));
    let (index, error) = &failed[0];
    assert_eq!(error.errno(), Some(libc::EIO));
    assert_eq!((error.offset(), error.path()), (Some(*index as u64 * 4096), file.path()));
}

#[test]
fn the_window_bounds_what_is_issued_whatever_the_number_of_pushes() {
    // Every look misses: while they hit, reads wait until they are asked for.
    let missing = || {
        let stage = Stage::prefetch();
        stage.sys.rule(Call::ReadNowait, "", When::Always, Fault::Errno(libc::EAGAIN));
        stage
    };
    let stage = missing();
    let file = stage.file("t", 16 << 20);
    let bytes = pattern(16 << 20);
    let mut queue = stage.env.queue();
    for i in 0..1000 {
        queue.push(i * 4096, read(&file, i * 4096, 4096));
    }
    assert_eq!(stage.sys.calls(Call::ReadNowait), WINDOW as u64);
    assert_eq!(drain_and_check(&mut *queue, &bytes, 4096), 1000);
    assert_eq!(stage.count("in_flight_peak"), WINDOW as u64);
    let (stage, len) = (missing(), 512 << 10);
    let file = stage.file("t", 16 << 20);
    let mut queue = stage.env.queue();
    for i in 0..32 {
        queue.push(i * len as u64, read(&file, i * len as u64, len));
    }
    let issued = stage.sys.calls(Call::ReadNowait);
    assert_eq!(issued, (WINDOW_BYTES / len) as u64);
    assert_eq!(drain_and_check(&mut *queue, &bytes, len), 32);
}

#[test]
fn a_long_read_is_started_by_hints_that_the_kernel_does_not_cut() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 10 << 20);
    let got = read_batch(&stage.env, vec![read(&file, 1, (10 << 20) - 1)]).remove(0).unwrap();
    assert_eq!(got[..], pattern(10 << 20)[1..]);
    assert_eq!(stage.sys.calls(Call::ReadNowait), 0);
    assert_eq!(stage.count("willneed"), 40);
}

#[test]
fn a_device_whose_misses_start_reads_gets_no_more_hints() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 1 << 20);
    let bytes = pattern(1 << 20);
    // Of each four looks three miss; the fourth is the second look at the first, and hits.
    stage.sys.rule(Call::ReadNowait, "t", When::AllButEvery(4), Fault::Errno(libc::EAGAIN));
    let device = Arc::clone(OsFile::of(&*file).unwrap().device());
    let mut hints = Vec::new();
    for _ in 0..6 {
        let mut queue = stage.env.queue();
        for i in 0..3 {
            queue.push(i * 8192, read(&file, i * 8192, 4096));
        }
        assert_eq!(drain_and_check(&mut *queue, &bytes, 4096), 3);
        hints.push(stage.count("willneed"));
    }
    assert_eq!(device.kick(), Kick::Kicks);
    assert_eq!(hints, [2, 4, 6, 8, 8, 8]);
    assert_eq!(stage.count("kick_probe_yes"), 4);
}

#[test]
fn cold_batches_are_right_and_settle_what_a_miss_does_on_this_device() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 8 << 20);
    let bytes = pattern(8 << 20);
    for round in 0..12_u64 {
        evict(&file);
        let mut queue = stage.env.queue();
        for i in 0..64 {
            let offset = (i * 31 + round) % 2048 * 4096;
            queue.push(offset, read(&file, offset, 4096));
        }
        assert_eq!(drain_and_check(&mut *queue, &bytes, 4096), 64);
    }
    let looked = looks(&stage);
    let again = stage.count("kick_probe_yes") + stage.count("kick_probe_no");
    assert_eq!(looked + stage.count("nowait_unsupported"), stage.sys.calls(Call::ReadNowait));
    assert!(stage.count("nowait_unsupported") > 0 || looked == 12 * 64 + again);
}

#[test]
fn files_of_other_types_and_files_of_another_environment_are_served_too() {
    #[derive(Debug)]
    struct Wrapper(Arc<dyn RandomAccessFile>);
    impl RandomAccessFile for Wrapper {
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.0.read_exact_at(buf, offset)
        }
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn path(&self) -> &std::path::Path {
            self.0.path()
        }
    }
    let (stage, other) = (Stage::prefetch(), Stage::prefetch());
    let ours = stage.file("t", BLOCK);
    let foreign: Arc<dyn RandomAccessFile> = Arc::new(Wrapper(stage.file("w", BLOCK)));
    let theirs = other.file("t", BLOCK);
    let mut queue = stage.env.queue();
    for (i, file) in (0..30).zip([&ours, &foreign, &theirs].into_iter().cycle()) {
        queue.push(i * 100, read(file, i * 100, 64));
    }
    assert_eq!(drain_and_check(&mut *queue, &pattern(BLOCK), 64), 30);
    let second = stage.count("kick_probe_yes") + stage.count("kick_probe_no");
    assert_eq!(looks(&stage), 20 + second, "counted where the queue is");
}

#[test]
fn dropping_a_queue_with_reads_pending_is_harmless() {
    let stage = Stage::prefetch();
    let file = stage.file("t", 1 << 20);
    evict(&file);
    let mut queue = stage.env.queue();
    for i in 0..200 {
        queue.push(i, read(&file, i * 4096, 4096));
    }
    queue.pop().unwrap().result.unwrap();
    drop(queue);
    assert_eq!(read_both(&stage.env, &file, 0, 4096).unwrap(), pattern(1 << 20)[..4096]);
}

/// ENV-20
#[test]
fn misaligned_direct_reads_are_served_through_an_aligned_window() {
    let stage = Stage::new(PosixEnv::builder().direct_reads(true));
    let size = 3 * BLOCK + 1234;
    let bytes = pattern(size);
    std::fs::write(stage.path("t"), &bytes).unwrap();
    let Some(file) = open_or_refused(&stage, "t") else { return };
    let mut aligned = Buffer::zeroed(2 * BLOCK);
    file.read_exact_at(&mut aligned.as_mut_slice()[..BLOCK], BLOCK as u64).unwrap();
    assert_eq!(aligned[..BLOCK], bytes[BLOCK..2 * BLOCK]);
    assert_eq!(stage.count("bounce_bytes"), 0);
    for (skip, offset, len) in [
        (8, 0, BLOCK),
        (0, 8, BLOCK),
        (0, 0, BLOCK + 8),
        (8, BLOCK - 8, BLOCK - 8),
        (0, 3 * BLOCK, 1234),
        (0, size - 1, 1),
    ] {
        let memory = &mut aligned.as_mut_slice()[skip..skip + len];
        file.read_exact_at(memory, offset as u64).unwrap();
        assert_eq!(memory, &bytes[offset..offset + len]);
        let got = read_both(&stage.env, &file, offset as u64, len).unwrap();
        assert_eq!(got, bytes[offset..offset + len]);
    }
    assert!(stage.count("bounce_bytes") >= BLOCK as u64);
    for cut in [1, 511, 512, 4096, 5000] {
        let rule = stage.sys.rule(Call::Pread, "t", When::EveryOther, Fault::Short(cut));
        let short = read_both(&stage.env, &file, 100, 3 * BLOCK);
        // Every other read is cut, also below a block, where no progress counts once.
        assert_eq!(short.unwrap(), bytes[100..100 + 3 * BLOCK], "cut at {cut}");
        assert!(rule.fired() >= 2);
        rule.lift();
    }
}

#[test]
fn a_direct_read_of_nothing_is_asked_again_once_and_then_an_unexpected_end() {
    let stage = Stage::new(PosixEnv::builder().direct_reads(true));
    std::fs::write(stage.path("t"), pattern(BLOCK)).unwrap();
    let Some(file) = open_or_refused(&stage, "t") else { return };
    let once = stage.sys.rule(Call::Pread, "t", When::EveryOther, Fault::Short(0));
    assert_eq!(read_both(&stage.env, &file, 0, BLOCK).unwrap(), pattern(BLOCK));
    assert_eq!(once.fired(), 2);
    once.lift();
    let always = stage.sys.rule(Call::Pread, "t", When::Always, Fault::Short(0));
    let error = read_both(&stage.env, &file, 0, BLOCK).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(always.fired(), 4);
}

#[test]
fn a_direct_open_that_the_file_system_refuses_is_a_clear_error() {
    let stage = Stage::new(PosixEnv::builder().direct_reads(true));
    std::fs::write(stage.path("t"), b"x").unwrap();
    stage.sys.rule(Call::Open, "t", When::Always, Fault::Errno(libc::EINVAL));
    assert!(open_or_refused(&stage, "t").is_none());
}

#[test]
fn mapped_reads_are_views_and_need_no_system_call() {
    let stage = Stage::new(PosixEnv::builder().mmap_reads(true));
    let file = stage.file("t", BLOCK);
    let mut got = read_batch(&stage.env, vec![read(&file, 5, 1000)]).remove(0).unwrap();
    assert_eq!(got[..], pattern(BLOCK)[5..1005]);
    assert_eq!(got.capacity(), 0);
    drop(file);
    got.as_mut_slice().fill(1);
    assert_eq!(std::fs::read(stage.path("t")).unwrap(), pattern(BLOCK), "the file is not changed");
    assert_eq!(stage.sys.calls(Call::Pread) + stage.sys.calls(Call::ReadNowait), 0);
    assert_eq!(stage.count("mmap_reads"), 1);
    let empty = stage.file("empty", 0);
    assert_eq!(read_both(&stage.env, &empty, 0, 0).unwrap(), b"");
    assert_eq!(read_both(&stage.env, &empty, 0, 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

/// ENV-12
#[test]
fn threads_that_read_one_file_at_once_get_their_own_ranges() {
    for (mode, builder) in read_modes() {
        let stage = Stage::new(builder);
        let bytes = pattern(1 << 20);
        std::fs::write(stage.path("t"), &bytes).unwrap();
        let Some(file) = open_or_refused(&stage, "t") else { continue };
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (file, bytes, env) = (&file, &bytes, &stage.env);
                scope.spawn(move || {
                    let mut ranges = HashMap::new();
                    let mut queue = env.queue();
                    for i in 0..200_usize {
                        let offset = (i * 7919 + thread * 104_729) % (bytes.len() - 9000);
                        let len = 1 + (i * 37) % 9000;
                        let mut single = vec![0; len];
                        file.read_exact_at(&mut single, offset as u64).unwrap();
                        assert_eq!(single, bytes[offset..offset + len], "{mode}");
                        ranges.insert(i as u64, (offset, len));
                        queue.push(i as u64, read(file, offset as u64, len));
                    }
                    while let Some(done) = queue.pop() {
                        let (offset, len) = ranges.remove(&done.tag).unwrap();
                        assert_eq!(done.result.unwrap()[..], bytes[offset..offset + len], "{mode}");
                    }
                    assert!(ranges.is_empty(), "{mode}");
                });
            }
        });
    }
}

#[test]
fn options_that_exclude_each_other_are_refused_with_a_reason() {
    let error = PosixEnv::builder().mmap_reads(true).direct_reads(true).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("exclude each other"), "{error}");
    let report = PosixEnv::builder().batch_reads(BatchReads::Serial).build().unwrap().report();
    assert_eq!((report.env, PosixEnv::new().report().env), ("posix-serial", "posix"));
}

#[test]
fn a_buffer_pool_of_nothing_makes_each_buffer_anew_and_the_report_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    std::fs::write(&path, vec![7; 64 << 10]).unwrap();
    let made_by = |env: PosixEnv, rounds: usize| {
        let file = env.open(&path, Access::Random).unwrap();
        for _ in 0..rounds {
            let read =
                |n: u64| Request::Read { file: Arc::clone(&file), offset: n << 14, len: 16 << 10 };
            for result in read_batch(&env, (0..4_u64).map(read).collect()) {
                assert_eq!(*result.unwrap(), vec![7; 16 << 10][..]);
            }
        }
        env.report().counter("buffer_bytes_made")
    };
    let kept = || PosixEnv::builder().build().unwrap();
    assert_eq!(made_by(kept(), 100), made_by(kept(), 1));
    let anew = || PosixEnv::builder().buffer_pool(0).build().unwrap();
    assert_eq!(made_by(anew(), 100), 100 * 4 * (16 << 10));
}
