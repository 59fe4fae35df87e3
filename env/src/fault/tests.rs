//! Each kind of fault does what it says, and no other operation notices.

use std::path::Path;

use super::*;
use crate::{Access, CrashPolicy, ErrorKind, FileKind, MemEnv, Request, read_batch};

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn over_mem() -> (MemEnv, FaultEnv) {
    let mem = MemEnv::new();
    let env = FaultEnv::new(Arc::new(mem.clone()));
    (mem, env)
}

fn write(env: &dyn Env, name: &str, bytes: &[u8]) {
    let mut file = env.create(path(name), FileKind::Table).unwrap();
    file.append(bytes).unwrap();
    file.finish().unwrap();
}

fn read(env: &dyn Env, name: &str) -> Vec<u8> {
    let file = env.open(path(name), Access::Random).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_rule_fires_at_the_operation_the_path_and_the_count_it_names() {
    let (_, env) = over_mem();
    let rule = env
        .add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::Create).path(".log").skip(1).times(2));
    let outcomes: Vec<bool> = ["a.log", "a.sst", "b.log", "c.log", "d.log"]
        .map(|name| env.create(path(name), FileKind::Log).is_ok())
        .to_vec();
    assert_eq!(outcomes, [true, true, false, false, true]);
    assert_eq!((rule.seen(), rule.fired()), (4, 2));
    let again = env.add(Fault::new(FaultKind::Error(libc::EDQUOT)).path("CURRENT"));
    let error = env.rename(path("a.log"), path("CURRENT")).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::NoSpace, "rename"));
    again.remove();
    env.rename(path("a.log"), path("CURRENT")).unwrap();
}

/// ENV-05: the first failure is final for the file and its handles, although the device below
/// would report success from then on.
#[test]
fn after_a_failed_sync_no_append_and_no_sync_succeeds() {
    let (mem, env) = over_mem();
    let mut file = env.create(path("a.log"), FileKind::Log).unwrap();
    env.sync_dir(path("")).unwrap();
    let handle = file.handle();
    file.append(b"lost").unwrap();
    file.flush().unwrap();
    let rule = env.add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::Sync).nth(1));
    let first = handle.sync().unwrap_err().to_string();
    assert_eq!(first, "sync a.log: Input/output error (os error 5)");
    assert_eq!(handle.sync().unwrap_err().to_string(), first);
    assert_eq!(file.append(b"x").unwrap_err().to_string(), first);
    assert_eq!(file.flush().unwrap_err().to_string(), first);
    assert_eq!(file.sync().unwrap_err().to_string(), first);
    assert_eq!(handle.prepare(100).unwrap_err().to_string(), first);
    assert_eq!(file.finish().unwrap_err().to_string(), first);
    assert_eq!(rule.fired(), 1);
    assert_eq!(read(&mem.crash(CrashPolicy::DropAll), "a.log"), b"");
}

#[test]
fn after_a_failed_sync_in_place_no_sync_of_the_handle_succeeds() {
    let (_, env) = over_mem();
    let file = env.open_rw(path("a")).unwrap();
    env.add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::Sync).nth(1));
    assert!(file.sync().is_err());
    assert!(file.sync().is_err());
}

#[test]
fn a_dropped_operation_reports_success_and_leaves_no_trace() {
    let (mem, env) = over_mem();
    let rule = env.add(Fault::new(FaultKind::Drop).on(Op::Sync).on(Op::Finish).on(Op::SyncDir));
    let mut file = env.create(path("a"), FileKind::Log).unwrap();
    file.append(b"one").unwrap();
    file.sync().unwrap();
    env.sync_dir(path("")).unwrap();
    write(&env, "b", b"two");
    assert_eq!(read(&env, "a"), b"one");
    assert_eq!(rule.fired(), 3);
    assert_eq!(mem.crash(CrashPolicy::DropAll).list(path("")).unwrap(), []);
    let image = mem.crash(CrashPolicy::NamesFirst);
    assert_eq!((read(&image, "a"), read(&image, "b")), (Vec::new(), Vec::new()));
}

/// As in the environments inside: only a prepare whose sync failed may have touched the file.
#[test]
fn a_prepare_that_fails_before_its_sync_is_not_applied_and_a_full_device_ends_nothing() {
    let (_, env) = over_mem();
    let mut file = env.create(path("a.log"), FileKind::Log).unwrap();
    let handle = file.handle();
    let full = env.add(Fault::new(FaultKind::Error(libc::ENOSPC)).on(Op::Prepare).times(1));
    let error = handle.prepare(100).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NoSpace, Outcome::NotApplied));
    assert_eq!(full.fired(), 1);
    handle.prepare(100).unwrap();
    env.add(Fault::new(FaultKind::ErrorAfter(libc::ENOSPC)).on(Op::Prepare).times(1));
    assert_eq!(handle.prepare(200).unwrap_err().outcome(), Outcome::MaybeApplied);
    file.append(b"fine").unwrap();
}

#[test]
fn a_short_append_leaves_its_first_bytes() {
    let (_, env) = over_mem();
    let short = FaultKind::Short { bytes: 3, errno: libc::ENOSPC };
    env.add(Fault::new(short).on(Op::Append).nth(2));
    let mut file = env.create(path("a"), FileKind::Log).unwrap();
    file.append(b"whole ").unwrap();
    let error = file.append(b"torn").unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(6)));
    assert!(file.append(b"x").is_err());
    assert_eq!(read(&env, "a"), b"whole tor");
}

#[test]
fn an_error_after_the_fact_leaves_the_effect() {
    let (_, env) = over_mem();
    write(&env, "a", b"x");
    env.add(Fault::new(FaultKind::ErrorAfter(libc::EIO)).on(Op::Rename));
    assert!(env.rename(path("a"), path("b")).is_err());
    assert_eq!(read(&env, "b"), b"x");
}

/// ENV-15
#[test]
fn in_a_queue_only_the_requests_that_a_rule_names_fail() {
    let (mem, env) = over_mem();
    for i in 0..8_u8 {
        write(&env, &format!("t{i}"), &[i; 4096]);
    }
    let files: Vec<_> =
        (0..8).map(|i| env.open(path(&format!("t{i}")), Access::Random).unwrap()).collect();
    mem.open_rw(path("t5")).unwrap().set_size(100).unwrap();
    env.add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::Read).nth(18));
    env.add(Fault::new(FaultKind::Error(libc::EACCES)).on(Op::Read).path("t7"));
    let requests = (0..64_usize)
        .map(|i| Request::Read { file: Arc::clone(&files[i % 8]), offset: i as u64, len: 64 })
        .collect();
    for (i, result) in read_batch(&env, requests).into_iter().enumerate() {
        let kind = result.as_ref().map_err(Error::kind).map(|bytes| bytes[0]);
        let expected = match i {
            17 => Err(ErrorKind::Other),
            _ if i % 8 == 7 => Err(ErrorKind::Denied),
            _ if i % 8 == 5 && i + 64 > 100 => Err(ErrorKind::UnexpectedEof),
            _ => Ok(u8::try_from(i % 8).unwrap()),
        };
        assert_eq!(kind, expected, "request {i}");
        if let Err(error) = result {
            assert_eq!(error.path(), path(&format!("t{}", i % 8)));
            assert_eq!(error.offset(), Some(i as u64));
        }
    }
}

#[test]
fn a_flipped_bit_is_in_the_answer_and_not_in_the_file() {
    let (_, env) = over_mem();
    write(&env, "a", &[0; 100]);
    let rule = env.add(Fault::new(FaultKind::FlipBit(8 * 10 + 3)));
    let mut expected = vec![0; 100];
    expected[10] = 8;
    assert_eq!(read(&env, "a"), expected);
    let file = env.open(path("a"), Access::Random).unwrap();
    let batch = read_batch(&env, vec![Request::Read { file, offset: 0, len: 100 }]);
    assert_eq!(**batch[0].as_ref().unwrap(), *expected);
    rule.remove();
    assert_eq!(read(&env, "a"), [0; 100]);
}

#[test]
fn a_blocked_operation_waits_until_it_is_released() {
    let (_, env) = over_mem();
    let rule = env.add(Fault::new(FaultKind::Block).on(Op::Sync).nth(1));
    let mut file = env.create(path("a"), FileKind::Log).unwrap();
    let handle = file.handle();
    let thread = std::thread::spawn(move || handle.sync());
    rule.wait_until_blocked(1);
    assert!(!thread.is_finished());
    file.append(b"meanwhile").unwrap();
    file.flush().unwrap();
    rule.release();
    thread.join().unwrap().unwrap();
    assert_eq!(read(&env, "a"), b"meanwhile");
}

#[test]
fn held_bytes_are_visible_here_and_reach_the_inner_file_when_synced() {
    let mem = MemEnv::new();
    let env = FaultEnv::holding(Arc::new(mem.clone()));
    let mut file = env.create(path("a"), FileKind::Log).unwrap();
    let handle = file.handle();
    handle.prepare(20).unwrap();
    file.append(b"one").unwrap();
    file.flush().unwrap();
    let reader = env.open(path("a"), Access::Random).unwrap();
    assert_eq!(read(&env, "a"), b"one\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(read(&mem, "a"), [0; 20]);
    handle.sync().unwrap();
    assert_eq!(read(&mem, "a")[..4], *b"one\0");
    file.append(b" two").unwrap();
    file.flush().unwrap();
    env.rename(path("a"), path("b")).unwrap();
    let mut bytes = [0; 5];
    reader.read_exact_at(&mut bytes, 2).unwrap();
    assert_eq!(&bytes, b"e two");
    assert_eq!(read(&env, "b")[..8], *b"one two\0");
    assert_eq!(read(&mem, "b")[..8], *b"one\0\0\0\0\0");
    assert_eq!(file.finish().unwrap(), 7);
    assert_eq!(read(&mem, "b"), b"one two");
    assert_eq!(env.metadata(path("b")).unwrap().unwrap().size, 7);
}

#[test]
fn held_bytes_outlive_their_writer_but_not_the_process() {
    let mem = MemEnv::new();
    let env = FaultEnv::holding(Arc::new(mem.clone()));
    let mut file = env.create(path("a"), FileKind::Log).unwrap();
    file.append(b"flushed").unwrap();
    file.flush().unwrap();
    drop(file);
    assert_eq!(read(&env, "a"), b"flushed");
    drop(env);
    assert_eq!(read(&mem, "a"), b"");
}
