//! Calls that signals interrupt many times in a row, or for ever.

use std::fs;

use super::*;
use crate::Outcome;
use crate::sys::INTERRUPTIONS;
use crate::sys::scripted::{Call, Fault, When};

const EINTR: Fault = Fault::Errno(libc::EINTR);

/// How often a call is made before its interruption is reported.
const ATTEMPTS: u64 = INTERRUPTIONS as u64 + 1;

/// A call, the operation that makes it by name, and the operation.
type Operation<'a> = (Call, &'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// Everything that a file for appending, one written in place and one for reading do once.
fn use_all_calls(stage: &Stage) {
    let mut log = stage.env.create(&stage.path("w"), FileKind::Log).unwrap();
    log.append(&pattern(2000)).unwrap();
    log.handle().prepare(10_000).unwrap();
    log.append(&pattern(1000)).unwrap();
    log.sync().unwrap();
    assert_eq!(log.finish().unwrap(), 3000);
    assert_eq!(fs::read(stage.path("w")).unwrap(), [pattern(2000), pattern(1000)].concat());

    let place = stage.env.open_rw(&stage.path("w")).unwrap();
    place.write_all_at(b"in place", 0).unwrap();
    place.sync().unwrap();
    stage.env.sync_dir(stage.dir.path()).unwrap();
    drop(place);

    let file = stage.env.open(&stage.path("w"), Access::Random).unwrap();
    let got = read_both(&stage.env, &file, 0, 3000).unwrap();
    assert_eq!(got, [b"in place", &pattern(2000)[8..], &pattern(1000)[..]].concat());
}

/// ENV-03
#[test]
fn calls_interrupted_many_times_in_a_row_are_repeated_until_they_are_done() {
    let quiet = Stage::new(PosixEnv::builder().batch_reads(BatchReads::Serial));
    use_all_calls(&quiet);
    for call in [
        Call::Open,
        Call::Stat,
        Call::StatFd,
        Call::Pread,
        Call::Pwrite,
        Call::Fdatasync,
        Call::Fsync,
        Call::Fallocate,
        Call::Ftruncate,
    ] {
        // The longest row that is endured, before each call that does its work.
        let stage = Stage::new(PosixEnv::builder().batch_reads(BatchReads::Serial));
        let rule = stage.sys.rule(call, "", When::AllButEvery(ATTEMPTS), EINTR);
        use_all_calls(&stage);
        let worked = stage.sys.calls(call) - rule.fired();
        assert_eq!(worked, quiet.sys.calls(call), "{call:?} does its work as often as undisturbed");
        assert!(worked > 0, "{call:?}");
        assert_eq!(rule.fired(), worked * u64::from(INTERRUPTIONS), "{call:?}");
        assert_eq!(stage.count("retried_eintr"), rule.fired(), "{call:?}");
        for name in ["syncs", "full_syncs"] {
            assert_eq!(stage.count(name), quiet.count(name), "{call:?}: {name}");
        }
    }
}

/// ENV-03
#[test]
fn a_sync_that_is_interrupted_for_ever_is_an_error_and_the_last_word_of_its_file() {
    for call in [Call::Fsync, Call::Fdatasync] {
        let stage = Stage::prefetch();
        let mut file = stage.env.create(&stage.path("w"), FileKind::Log).unwrap();
        let handle = file.handle();
        if call == Call::Fdatasync {
            // Appends within prepared space need no full flush.
            handle.prepare(10_000).unwrap();
        }
        file.append(b"not known to be durable").unwrap();
        let rule = stage.sys.rule(call, "w", When::Always, EINTR);
        let before = stage.sys.calls(call);
        let first = file.sync().unwrap_err();
        assert_eq!((first.op(), first.errno()), ("sync", Some(libc::EINTR)));
        assert_eq!(first.outcome(), Outcome::MaybeApplied);
        assert_eq!(rule.fired(), ATTEMPTS, "{call:?}");
        rule.lift();
        for later in [
            file.sync(),
            handle.sync(),
            file.append(b"x"),
            handle.prepare(1 << 20),
            file.finish().map(drop),
        ] {
            assert!(same_failure(&later.unwrap_err(), &first), "{call:?}");
        }
        assert_eq!(stage.sys.calls(call) - before, ATTEMPTS, "the kernel is not asked again");
    }
}

/// ENV-03
#[test]
fn an_append_that_is_interrupted_for_ever_leaves_a_prefix_and_is_the_last_one() {
    let stage = Stage::prefetch();
    let mut file = stage.env.create(&stage.path("w"), FileKind::Log).unwrap();
    stage.sys.rule(Call::Pwrite, "w", When::Nth(0), Fault::Short(700));
    let rule = stage.sys.rule(Call::Pwrite, "w", When::From(1), EINTR);
    let first = file.append(&pattern(2000)).unwrap_err();
    assert_eq!((first.op(), first.errno()), ("append", Some(libc::EINTR)));
    assert_eq!((first.offset(), first.outcome()), (Some(700), Outcome::MaybeApplied));
    assert_eq!((rule.fired(), file.len()), (ATTEMPTS, 700));
    rule.lift();
    for later in [file.append(b"x"), file.sync(), file.finish().map(drop)] {
        assert!(same_failure(&later.unwrap_err(), &first));
    }
    assert_eq!(fs::read(stage.path("w")).unwrap(), pattern(700));
}

/// ENV-03
#[test]
fn other_calls_that_are_interrupted_for_ever_are_errors_that_end_with_the_signals() {
    let stage = Stage::new(PosixEnv::builder().batch_reads(BatchReads::Serial));
    let path = stage.path("w");
    let file = stage.file("w", 1000);
    let place = stage.env.open_rw(&path).unwrap();
    let operations: Vec<Operation<'_>> = vec![
        (Call::Open, "open", Box::new(|| stage.env.open(&path, Access::Random).map(drop))),
        (Call::Stat, "metadata", Box::new(|| stage.env.metadata(&path).map(drop))),
        (Call::Pread, "read", Box::new(|| file.read_exact_at(&mut [0; 100], 7))),
        (Call::Pwrite, "write", Box::new(|| place.write_all_at(b"here", 7))),
        (Call::Ftruncate, "set_size", Box::new(|| place.set_size(900))),
        (Call::Fsync, "sync_dir", Box::new(|| stage.env.sync_dir(stage.dir.path()))),
    ];
    for (call, op, operation) in operations {
        let rule = stage.sys.rule(call, "", When::Always, EINTR);
        let error = operation().unwrap_err();
        assert_eq!((error.op(), error.errno()), (op, Some(libc::EINTR)));
        assert_eq!(rule.fired(), ATTEMPTS, "{op}");
        rule.lift();
        operation().unwrap();
    }
    assert_eq!(fs::read(&path).unwrap().len(), 900);
}

/// ENV-03
#[test]
fn space_that_cannot_be_allocated_for_interruptions_is_taken_by_zeros() {
    let stage = Stage::prefetch();
    let file = stage.env.create(&stage.path("w"), FileKind::Log).unwrap();
    let rule = stage.sys.rule(Call::Fallocate, "w", When::Always, EINTR);
    file.handle().prepare(300_000).unwrap();
    assert_eq!(rule.fired(), ATTEMPTS);
    assert_eq!(fs::read(stage.path("w")).unwrap(), vec![0; 300_000]);
}
