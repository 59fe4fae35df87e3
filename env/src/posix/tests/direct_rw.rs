//! Files written in place past the page cache: what is taken, what is refused, and with which
//! words.

use std::fs;

use super::*;
use crate::sys::scripted::{Call, Fault, When};
use crate::{Alignment, ErrorKind, Outcome, RandomRwFile};

const BLOCK: usize = 4096;

fn stage() -> Stage {
    Stage::new(PosixEnv::builder().direct_rw(true))
}

/// The file, or `None` after checking that its file system's refusal of direct I/O is put clearly.
fn open(stage: &Stage) -> Option<Arc<dyn RandomRwFile>> {
    match stage.env.open_rw(&stage.path("w")) {
        Ok(file) => Some(file),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("writes in place"), "{error}");
            None
        }
    }
}

/// ENV-20: also where the file system asks for more than its device's blocks.
#[test]
fn a_write_that_is_not_aligned_is_refused_before_the_kernel_sees_it() {
    for (memory, block) in [(512, 512), (4096, 4096), (16, 4096)] {
        let stage = stage();
        stage.sys.rule(Call::StatFd, "w", When::Always, Fault::Aligned(memory, block));
        let Some(file) = open(&stage) else { return };
        let (in_memory, in_file) = (memory as usize, block as usize);
        assert_eq!(file.alignment(), Alignment { memory: in_memory, offset: in_file });
        let mut data = Buffer::from(&pattern(4 * BLOCK)[..]);
        file.write_all_at(&data, 0).unwrap();
        data.as_mut_slice().fill(1);
        let (asked, at) = (stage.sys.calls(Call::Pwrite), BLOCK as u64);
        let memory_told = format!("is not at a multiple of {memory}");
        let offset_told = format!("the offset is no multiple of {block}");
        let length_told = format!("the length is no multiple of {block}");
        for (skip, offset, len, told) in [
            (0, at + 8, BLOCK, &offset_told),
            (0, at - 8, BLOCK, &offset_told),
            (0, at, BLOCK + 8, &length_told),
            (0, at, BLOCK - 8, &length_told),
            (8, at, BLOCK, &memory_told),
            (BLOCK - 8, at, BLOCK, &memory_told),
        ] {
            let error = file.write_all_at(&data[skip..skip + len], offset).unwrap_err();
            let found = (error.kind(), error.outcome(), error.offset(), error.errno());
            assert_eq!(found, (ErrorKind::Misaligned, Outcome::NotApplied, Some(offset), None));
            assert_eq!((error.op(), error.path()), ("write", &*stage.path("w")));
            let text = error.to_string();
            for part in [told.as_str(), &format!("of {len} bytes"), "Buffer", "without direct_rw"] {
                assert!(text.contains(part), "{part}: {text}");
            }
            let told_of =
                [&memory_told, &offset_told, &length_told].map(|part| text.contains(part.as_str()));
            assert_eq!(told_of.iter().filter(|told| **told).count(), 1, "one is wrong: {text}");
        }
        assert_eq!(stage.sys.calls(Call::Pwrite), asked);
        assert_eq!(fs::read(stage.path("w")).unwrap(), pattern(4 * BLOCK));
        file.write_all_at(&data[BLOCK..2 * BLOCK], at).unwrap();
        file.write_all_at(&data[..0], 3).unwrap();
        assert_eq!(stage.sys.calls(Call::Pwrite), asked + 1);
    }
}

/// ENV-20
#[test]
fn reads_of_a_direct_file_in_place_begin_and_end_anywhere() {
    let stage = stage();
    let Some(file) = open(&stage) else { return };
    let bytes = pattern(3 * BLOCK);
    file.write_all_at(&Buffer::from(&bytes[..]), 0).unwrap();
    file.set_size(2 * BLOCK as u64 + 1234).unwrap();
    let reader: Arc<dyn RandomAccessFile> = Arc::clone(&file) as _;
    for (offset, len) in [(0, 1), (8, BLOCK), (BLOCK - 8, 16), (2 * BLOCK + 1000, 234), (100, 0)] {
        let got = read_both(&stage.env, &reader, offset as u64, len).unwrap();
        assert_eq!(got, bytes[offset..offset + len], "{len} bytes at {offset}");
    }
    let beyond = read_both(&stage.env, &reader, 2 * BLOCK as u64 + 1230, 5).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_short_direct_write_goes_on_at_a_whole_block() {
    let stage = stage();
    stage.sys.rule(Call::StatFd, "w", When::Always, Fault::Aligned(512, 4096));
    let Some(file) = open(&stage) else { return };
    file.set_size(4 * BLOCK as u64).unwrap();
    let short = stage.sys.rule(Call::Pwrite, "w", When::Nth(0), Fault::Short(BLOCK + 512));
    let bytes = pattern(3 * BLOCK);
    stage.sys.take_transfers();
    file.write_all_at(&Buffer::from(&bytes[..]), BLOCK as u64).unwrap();
    let at = BLOCK as u64;
    let expected = [(Call::Pwrite, at, 3 * BLOCK), (Call::Pwrite, 2 * at, 2 * BLOCK)];
    assert_eq!(stage.sys.take_transfers(), expected);
    assert_eq!(short.fired(), 1);
    assert_eq!(fs::read(stage.path("w")).unwrap()[BLOCK..], bytes);
}

#[test]
fn an_aligned_write_that_the_kernel_calls_invalid_has_an_error_that_says_more() {
    let stage = stage();
    let Some(file) = open(&stage) else { return };
    stage.sys.rule(Call::Pwrite, "w", When::Nth(0), Fault::Errno(libc::EINVAL));
    let error = file.write_all_at(&Buffer::zeroed(BLOCK), BLOCK as u64).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Unsupported, Some(BLOCK as u64)));
    assert!(error.to_string().contains("refused a direct write aligned to"), "{error}");
    file.write_all_at(&Buffer::zeroed(BLOCK), 0).unwrap();
}

#[test]
fn a_file_system_without_direct_files_in_place_is_a_clear_error_that_removes_nothing() {
    let refusals = [(Call::Open, Fault::Errno(libc::EINVAL)), (Call::StatFd, Fault::Aligned(0, 0))];
    for (call, fault) in refusals {
        for there in [None, Some(&b"kept"[..])] {
            let stage = stage();
            if let Some(bytes) = there {
                fs::write(stage.path("w"), bytes).unwrap();
            }
            let rule = stage.sys.rule(call, "w", When::Always, fault);
            assert!(open(&stage).is_none());
            assert!(rule.fired() <= 1);
            // What is new may be another opener's too.
            assert_eq!(stage.sys.calls(Call::Unlink), 0);
            let left = fs::read(stage.path("w")).unwrap_or_default();
            assert_eq!(left, there.unwrap_or_default());
        }
    }
}

#[test]
fn a_direct_file_in_place_is_made_where_a_dangling_link_points() {
    let stage = stage();
    std::os::unix::fs::symlink("target", stage.path("w")).unwrap();
    let Some(file) = open(&stage) else { return };
    file.write_all_at(&Buffer::from(&pattern(BLOCK)[..]), 0).unwrap();
    assert_eq!(fs::read(stage.path("target")).unwrap(), pattern(BLOCK));
}

#[test]
fn a_direct_file_in_place_syncs_fully_after_it_grew_and_never_after_a_failure() {
    let stage = stage();
    let Some(file) = open(&stage) else { return };
    let calls = || (stage.sys.calls(Call::Fsync), stage.sys.calls(Call::Fdatasync));
    file.write_all_at(&Buffer::zeroed(2 * BLOCK), 0).unwrap();
    file.sync().unwrap();
    assert_eq!((calls(), file.size()), ((1, 0), 2 * BLOCK as u64));
    file.write_all_at(&Buffer::zeroed(BLOCK), BLOCK as u64).unwrap();
    file.sync().unwrap();
    assert_eq!(calls(), (1, 1));
    let failing = stage.sys.rule(Call::Fdatasync, "w", When::Nth(0), Fault::Errno(libc::EIO));
    let first = file.sync().unwrap_err();
    assert!(same_failure(&file.sync().unwrap_err(), &first));
    assert_eq!((failing.fired(), calls()), (1, (1, 2)));
}

/// ENV-15, ENV-20
#[test]
fn one_misaligned_write_in_a_queue_fails_alone() {
    for mode in [BatchReads::Serial, BatchReads::Prefetch] {
        let stage = Stage::new(PosixEnv::builder().batch_reads(mode).direct_rw(true));
        let Some(file) = open(&stage) else { return };
        let requests = (0..10_u64).map(|n| {
            let data = Buffer::from(&pattern(BLOCK)[..]);
            let offset = n * BLOCK as u64 + if n == 3 { 8 } else { 0 };
            Request::Write { file: Arc::clone(&file), offset, data }
        });
        for (n, result) in read_batch(&stage.env, requests.collect()).into_iter().enumerate() {
            match result {
                Ok(data) => assert!(n != 3 && data[..] == pattern(BLOCK)),
                Err(error) => assert_eq!((n, error.kind()), (3, ErrorKind::Misaligned)),
            }
        }
        assert_eq!((file.size(), stage.count("pwrites")), (10 * BLOCK as u64, 9));
    }
}

#[test]
fn the_report_says_how_files_in_place_are_written() {
    let text = |direct| PosixEnv::builder().direct_rw(direct).build().unwrap().report().to_string();
    assert!(text(true).contains("files in place: direct"), "{}", text(true));
    assert!(text(false).contains("files in place: through the page cache"), "{}", text(false));
}

/// The part of a write that an injected fault lets through is as aligned as the write was.
#[cfg(feature = "test-util")]
#[test]
fn an_injected_short_write_writes_whole_blocks_that_are_less_than_a_page() {
    use crate::{Fault as Injected, FaultEnv, FaultKind, Op, Request, read_batch};
    const SMALL: usize = 512;
    let Stage { dir, sys, env } = stage();
    let path = dir.path().join("w");
    sys.rule(Call::StatFd, "w", When::Always, Fault::Aligned(512, 512));
    let env = FaultEnv::new(Arc::new(env));
    let Ok(file) = env.open_rw(&path) else { return };
    file.set_size(BLOCK as u64).unwrap();
    // In blocks of a page the kernel itself would refuse it.
    let Ok(()) = file.write_all_at(&Buffer::zeroed(BLOCK)[..SMALL], 0) else { return };
    let kind = FaultKind::Short { bytes: 1000, errno: libc::ENOSPC };
    let short = env.add(Injected::new(kind).on(Op::Write));
    for _ in 0..2 {
        let (file, data) = (Arc::clone(&file), Buffer::from(&pattern(BLOCK)[..]));
        let results = read_batch(&env, vec![Request::Write { file, offset: 0, data }]);
        let error = results[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
    assert_eq!(short.fired(), 2);
    let there = fs::read(path).unwrap();
    assert!(there[..SMALL] == pattern(SMALL) && there[SMALL..] == [0; BLOCK - SMALL]);
}
