//! Appended files, files written in place, and writes through the queue.

use std::fs;

use super::*;
use crate::posix::outlet::WRITE_BACK;
use crate::posix::writable::TABLE_BUFFER;
use crate::sys::scripted::{Call, Fault, When};
use crate::{ErrorKind, Outcome, RandomRwFile, WritableFile};

const KINDS: [FileKind; 4] = [FileKind::Log, FileKind::Manifest, FileKind::Table, FileKind::Other];

fn create(stage: &Stage, kind: FileKind) -> Box<dyn WritableFile> {
    stage.env.create(&stage.path("w"), kind).unwrap()
}

fn content(stage: &Stage) -> Vec<u8> {
    fs::read(stage.path("w")).unwrap()
}

#[test]
fn an_append_to_a_log_is_one_write_and_in_the_file_when_it_returns() {
    let stage = Stage::prefetch();
    for kind in [FileKind::Log, FileKind::Manifest, FileKind::Other] {
        let mut file = create(&stage, kind);
        for i in 1..=10 {
            file.append(&pattern(1000)).unwrap();
            assert_eq!(content(&stage).len(), i * 1000);
        }
        assert_eq!(file.len(), 10_000);
        stage.env.remove(&stage.path("w")).unwrap();
    }
    assert_eq!(stage.count("pwrites"), 30);
}

#[test]
fn a_table_is_written_in_large_pieces_and_its_write_back_begins_early() {
    let stage = Stage::prefetch();
    let bytes = pattern(3 << 20);
    let failing = stage.sys.rule(Call::FlushRange, "w", When::Nth(1), Fault::Errno(libc::EIO));
    let mut file = create(&stage, FileKind::Table);
    for part in bytes.chunks(1000) {
        file.append(part).unwrap();
    }
    assert_eq!(stage.count("pwrites"), ((3 << 20) / TABLE_BUFFER) as u64);
    file.append(b"tail").unwrap();
    assert_eq!(file.len(), (3 << 20) + 4);
    file.append(&pattern(2 << 20)).unwrap();
    assert_eq!(file.finish().unwrap(), (5 << 20) + 4);
    assert_eq!(content(&stage), [&bytes[..], b"tail", &pattern(2 << 20)].concat());
    assert!(stage.count("range_flushes") >= (5 << 20) / WRITE_BACK - 1);
    assert_eq!((stage.count("range_flush_failed"), failing.fired()), (1, 1));
}

#[test]
fn a_flush_or_sync_of_a_table_puts_its_buffer_into_the_file() {
    let stage = Stage::prefetch();
    let mut file = create(&stage, FileKind::Table);
    file.append(b"one").unwrap();
    assert_eq!((content(&stage).len(), file.len()), (0, 3));
    file.flush().unwrap();
    assert_eq!(content(&stage), b"one");
    file.append(b"two").unwrap();
    file.sync().unwrap();
    assert_eq!(content(&stage), b"onetwo");
    file.append(b"three").unwrap();
    assert_eq!(file.finish().unwrap(), 11);
    assert_eq!(content(&stage), b"onetwothree");
}

/// ENV-02, ENV-03
#[test]
fn short_and_interrupted_writes_go_on_until_all_bytes_are_there() {
    for (call, fault) in [
        (Call::Pwrite, Fault::Short(1)),
        (Call::Pwrite, Fault::Short(777)),
        (Call::Pwrite, Fault::Errno(libc::EINTR)),
        (Call::Pwrite, Fault::Errno(libc::EAGAIN)),
        (Call::Open, Fault::Errno(libc::EINTR)),
        (Call::Fsync, Fault::Errno(libc::EINTR)),
        (Call::Fdatasync, Fault::Errno(libc::EINTR)),
        (Call::Ftruncate, Fault::Errno(libc::EINTR)),
        (Call::Fallocate, Fault::Errno(libc::EINTR)),
    ] {
        let stage = Stage::prefetch();
        let rule = stage.sys.rule(call, "w", When::EveryOther, fault);
        let mut file = create(&stage, FileKind::Log);
        file.append(&pattern(2000)).unwrap();
        file.handle().prepare(10_000).unwrap();
        file.append(&pattern(2000)).unwrap();
        file.sync().unwrap();
        assert_eq!(file.finish().unwrap(), 4000);
        assert_eq!(content(&stage), [pattern(2000), pattern(2000)].concat());
        assert!(rule.fired() > 0, "{call:?} {fault:?}");
    }
}

#[test]
fn a_write_that_makes_no_progress_is_an_error() {
    let stage = Stage::prefetch();
    stage.sys.rule(Call::Pwrite, "w", When::From(1), Fault::Short(0));
    let mut file = create(&stage, FileKind::Log);
    file.append(b"fine").unwrap();
    let error = file.append(b"stuck").unwrap_err();
    assert_eq!((error.op(), error.offset()), ("append", Some(4)));
    assert!(error.to_string().contains("no progress"), "{error}");
}

/// ENV-04
#[test]
fn after_a_full_disk_the_file_is_a_prefix_and_takes_nothing_more() {
    for kind in KINDS {
        let stage = Stage::prefetch();
        stage.sys.rule(Call::Pwrite, "w", When::Nth(0), Fault::Short(4000));
        let full = stage.sys.rule(Call::Pwrite, "w", When::From(1), Fault::Errno(libc::ENOSPC));
        let mut file = create(&stage, kind);
        let appended = file.append(&pattern(10_000));
        let error = appended.and_then(|()| file.flush()).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(4000)));
        assert_eq!(error.outcome(), Outcome::MaybeApplied);
        assert_eq!(file.len(), 4000);
        full.lift();
        assert!(same_failure(&file.append(b"more").unwrap_err(), &error));
        assert!(same_failure(&file.sync().unwrap_err(), &error));
        assert!(same_failure(&file.handle().sync().unwrap_err(), &error));
        assert!(same_failure(&file.finish().unwrap_err(), &error));
        assert_eq!(content(&stage), pattern(10_000)[..4000]);
    }
}

/// ENV-05
#[test]
fn after_a_failed_sync_no_sync_succeeds_and_nothing_is_appended() {
    for by_handle in [false, true] {
        for kind in KINDS {
            let stage = Stage::prefetch();
            let failing = stage.sys.rule(Call::Fsync, "w", When::Nth(0), Fault::Errno(libc::EIO));
            let mut file = create(&stage, kind);
            let handle = file.handle();
            file.append(b"lost").unwrap();
            file.flush().unwrap();
            let first = if by_handle { handle.sync() } else { file.sync() }.unwrap_err();
            assert_eq!((first.errno(), first.op()), (Some(libc::EIO), "sync"));
            for later in [
                file.sync(),
                handle.sync(),
                file.append(b"x"),
                file.flush(),
                handle.prepare(1 << 20),
                file.finish().map(drop),
                handle.sync(),
            ] {
                assert!(same_failure(&later.unwrap_err(), &first));
            }
            assert_eq!(failing.fired(), 1);
            assert_eq!(stage.sys.calls(Call::Fsync), 1, "the kernel is not asked a second time");
            assert_eq!(stage.sys.calls(Call::Fdatasync), 0);
        }
    }
}

/// MAN-22
#[test]
fn a_sync_is_full_after_the_file_grew_and_of_data_only_in_prepared_space() {
    let stage = Stage::prefetch();
    let calls = || (stage.sys.calls(Call::Fsync), stage.sys.calls(Call::Fdatasync));
    let mut file = create(&stage, FileKind::Log);
    file.append(b"grows").unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (1, 0));
    file.sync().unwrap();
    assert_eq!(calls(), (1, 1));
    file.append(b"grows").unwrap();
    file.handle().sync().unwrap();
    assert_eq!(calls(), (2, 1));
    file.handle().prepare(200_000).unwrap();
    assert_eq!(calls(), (3, 1));
    for _ in 0..5 {
        file.append(b"inside").unwrap();
        file.sync().unwrap();
    }
    assert_eq!(calls(), (3, 6));
    file.append(&pattern(200_000)).unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (4, 6));
    assert_eq!(file.finish().unwrap(), 200_040);
    assert_eq!(calls(), (5, 6));
    assert_eq!(stage.count("syncs"), 11);
}

#[test]
fn prepared_space_is_zeros_and_is_cut_off_at_the_end() {
    let stage = Stage::prefetch();
    let mut file = create(&stage, FileKind::Log);
    file.append(b"data").unwrap();
    let handle = file.handle();
    handle.prepare(100_000).unwrap();
    assert_eq!(file.len(), 4);
    let now = content(&stage);
    assert!(now.len() == 100_000 && now[..4] == *b"data" && now[4..].iter().all(|&b| b == 0));
    let writes = stage.count("pwrites");
    handle.prepare(50_000).unwrap();
    assert_eq!(stage.count("pwrites"), writes, "it is prepared already");
    assert_eq!(file.finish().unwrap(), 4);
    assert_eq!(content(&stage), b"data");
    assert_eq!(handle.prepare(200_000).unwrap_err().outcome(), Outcome::NotApplied);
    handle.sync().unwrap();
    assert_eq!(content(&stage), b"data");
}

#[test]
fn zeros_never_land_on_bytes_appended_meanwhile() {
    let stage = Stage::prefetch();
    let mut file = create(&stage, FileKind::Log);
    let handle = file.handle();
    let bytes = pattern(3 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..=60_u64 {
                handle.prepare(step * 50_000).unwrap();
            }
        });
        // Sizes that fall short of the prepared end, end at it, cross it and overtake it.
        let mut rest = &bytes[..];
        for size in [100, 5000, 131_072, 1, 70_000, 50_000].into_iter().cycle() {
            let (now, later) = rest.split_at(size.min(rest.len()));
            file.append(now).unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    });
    assert_eq!(file.finish().unwrap(), 3 << 20);
    assert!(content(&stage) == bytes, "appended bytes were overwritten");
}

#[test]
fn a_disk_too_full_to_prepare_leaves_the_file_as_it_was() {
    for (call, when) in [(Call::Fallocate, When::Nth(0)), (Call::Pwrite, When::Nth(2))] {
        let stage = Stage::prefetch();
        let full = stage.sys.rule(call, "w", when, Fault::Errno(libc::ENOSPC));
        let mut file = create(&stage, FileKind::Log);
        file.append(b"kept").unwrap();
        let error = file.handle().prepare(1 << 20).unwrap_err();
        assert_eq!((error.kind(), error.op()), (ErrorKind::NoSpace, "prepare"));
        assert_eq!((error.outcome(), full.fired()), (Outcome::NotApplied, 1));
        let end = content(&stage).len();
        assert!(end <= 4 + (64 << 10), "what was allocated in vain is given back, not {end}");
        file.append(b" and more").unwrap();
        file.sync().unwrap();
        file.handle().prepare(1 << 20).unwrap();
        assert_eq!(file.finish().unwrap(), 13);
        assert_eq!(content(&stage), b"kept and more");
    }
}

#[test]
fn a_file_system_that_cannot_allocate_gets_zeros_all_the_same() {
    let stage = Stage::prefetch();
    stage.sys.rule(Call::Fallocate, "w", When::Always, Fault::Errno(libc::EOPNOTSUPP));
    let file = create(&stage, FileKind::Log);
    file.handle().prepare(300_000).unwrap();
    assert_eq!(content(&stage), vec![0; 300_000]);
}

#[test]
fn direct_tables_have_the_same_bytes_whatever_is_flushed_between() {
    let stage = Stage::new(PosixEnv::builder().direct_writes(true));
    let bytes = pattern((9 << 20) + 12_345);
    let mut file = match stage.env.create(&stage.path("w"), FileKind::Table) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(!stage.path("w").exists(), "no empty file is left in the way");
            return;
        }
    };
    let short = stage.sys.rule(Call::Pwrite, "w", When::EveryOther, Fault::Short(24 * 4096));
    let mut at = 0;
    for (i, size) in [1, 4096, 300_000, 77, 262_144, 1_000_003].into_iter().cycle().enumerate() {
        let end = (at + size).min(bytes.len());
        file.append(&bytes[at..end]).unwrap();
        at = end;
        match i % 5 {
            1 => file.flush().unwrap(),
            3 => file.sync().unwrap(),
            _ => {}
        }
        assert_eq!(file.len(), at as u64);
        if matches!(i % 5, 1 | 3) {
            assert_eq!(fs::metadata(stage.path("w")).unwrap().len(), at as u64);
        }
        if at == bytes.len() {
            break;
        }
    }
    assert_eq!(file.finish().unwrap(), bytes.len() as u64);
    assert!(content(&stage) == bytes, "the bytes differ");
    assert!(short.fired() > 10);
    // The other kinds stay buffered: they are small, and appended byte by byte.
    write_file(&stage, "log", FileKind::Log, &[b"a", b"bc"]).unwrap();
    assert_eq!(fs::read(stage.path("log")).unwrap(), b"abc");
}

#[test]
fn a_direct_table_allocates_ahead_and_again_after_a_flush_gave_the_rest_back() {
    let stage = Stage::new(PosixEnv::builder().direct_writes(true));
    let Ok(mut file) = stage.env.create(&stage.path("w"), FileKind::Table) else {
        // What a refusal must look like is asserted above.
        return;
    };
    let allocations = || stage.sys.calls(Call::Fallocate);
    file.append(&pattern(2 << 20)).unwrap();
    assert_eq!(allocations(), 1);
    file.flush().unwrap();
    file.append(&pattern(TABLE_BUFFER)).unwrap();
    assert_eq!(allocations(), 2);
    file.finish().unwrap();
}

/// ENV-04: the last block is written again with what follows it. If that fails, what a sync made
/// durable is still the file's.
#[test]
fn a_failed_write_over_synced_bytes_of_a_direct_table_takes_none_of_them_away() {
    let stage = Stage::new(PosixEnv::builder().direct_writes(true));
    let Ok(mut file) = stage.env.create(&stage.path("w"), FileKind::Table) else {
        // What a refusal must look like is asserted above.
        return;
    };
    let bytes = pattern(2 * TABLE_BUFFER);
    let synced = TABLE_BUFFER + 37_856;
    file.append(&bytes[..synced]).unwrap();
    file.sync().unwrap();
    let failing = stage.sys.rule(Call::Pwrite, "w", When::Always, Fault::Errno(libc::EIO));
    let appended = file.append(&bytes[synced..]);
    let error = appended.and_then(|()| file.flush()).unwrap_err();
    assert_eq!((error.errno(), failing.fired()), (Some(libc::EIO), 1));
    assert_eq!(file.len(), synced as u64);
    drop(file);
    assert!(content(&stage) == bytes[..synced], "synced bytes are gone, or more is left");
}

#[test]
fn a_file_system_without_direct_writes_leaves_no_file_behind() {
    let stage = Stage::new(PosixEnv::builder().direct_writes(true));
    stage.sys.rule(Call::Open, "w", When::Always, Fault::Errno(libc::EINVAL));
    let error = stage.env.create(&stage.path("w"), FileKind::Table).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotApplied));
    assert!(!stage.path("w").exists());
}

fn open_rw(stage: &Stage) -> Arc<dyn RandomRwFile> {
    stage.env.open_rw(&stage.path("w")).unwrap()
}

#[test]
fn a_file_written_in_place_reads_its_own_writes_and_knows_its_size() {
    let stage = Stage::prefetch();
    let file = open_rw(&stage);
    assert_eq!(file.size(), 0);
    file.write_all_at(b"world", 6).unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    assert_eq!(file.size(), 11);
    let as_reader: Arc<dyn RandomAccessFile> = Arc::clone(&file) as _;
    assert_eq!(read_both(&stage.env, &as_reader, 0, 11).unwrap(), b"hello\0world");
    file.set_size(3).unwrap();
    assert_eq!(file.size(), 3);
    let error = read_both(&stage.env, &as_reader, 0, 11).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    file.set_size(5).unwrap();
    assert_eq!(read_both(&stage.env, &as_reader, 0, 5).unwrap(), b"hel\0\0");
    let again = open_rw(&stage);
    assert_eq!(again.size(), 5);
}

#[test]
fn a_file_written_in_place_syncs_fully_after_it_grew_and_never_after_a_failure() {
    let stage = Stage::prefetch();
    let file = open_rw(&stage);
    let calls = || (stage.sys.calls(Call::Fsync), stage.sys.calls(Call::Fdatasync));
    file.write_all_at(&pattern(100), 0).unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (1, 0));
    file.write_all_at(b"inside", 50).unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (1, 1));
    file.set_size(1000).unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (2, 1));
    let failing = stage.sys.rule(Call::Fdatasync, "w", When::Nth(0), Fault::Errno(libc::EIO));
    let first = file.sync().unwrap_err();
    assert!(same_failure(&file.sync().unwrap_err(), &first));
    assert_eq!((failing.fired(), calls()), (1, (2, 2)));
}

#[test]
fn a_size_that_cannot_be_asked_for_is_an_error_and_no_end_of_file() {
    let stage = Stage::prefetch();
    let file = open_rw(&stage);
    file.write_all_at(&pattern(100), 0).unwrap();
    stage.sys.rule(Call::StatFd, "w", When::Always, Fault::Errno(libc::EIO));
    let error = file.read_exact_at(&mut [0; 10], 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
}

#[test]
fn queued_writes_have_a_result_each() {
    for mode in [BatchReads::Serial, BatchReads::Prefetch] {
        let stage = Stage::new(PosixEnv::builder().batch_reads(mode));
        let file = open_rw(&stage);
        let full = stage.sys.rule(Call::Pwrite, "w", When::Nth(3), Fault::Errno(libc::ENOSPC));
        let mut queue = stage.env.queue();
        for i in 0..10 {
            let data = Buffer::from(&pattern(1000)[..]);
            queue.push(i, Request::Write { file: Arc::clone(&file), offset: i * 1000, data });
        }
        let (mut good, mut bad) = (0, 0);
        while let Some(completion) = queue.pop() {
            match completion.result {
                Ok(data) => {
                    assert_eq!(data[..], pattern(1000));
                    good += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    assert_eq!(error.offset(), Some(completion.tag * 1000));
                    bad += 1;
                }
            }
        }
        assert_eq!((good, bad, full.fired()), (9, 1, 1));
        assert_eq!(file.size(), 10_000);
    }
}
