//! Appended files on the real kernel, by every way of writing.

use super::*;
use crate::uring::reactor::HANDED as BLOCK;

const PATHS: [WritePath; 3] = [WritePath::Auto, WritePath::Reactor, WritePath::Caller];
const KINDS: [FileKind; 4] = [FileKind::Log, FileKind::Manifest, FileKind::Table, FileKind::Other];

pub(super) fn env(path: WritePath) -> IoUringEnv {
    IoUringEnv::builder().rings(2).write_path(path).build().unwrap()
}

/// An environment whose reactor serves; by default one processor alone has none.
pub(super) fn env_with_reactor() -> IoUringEnv {
    let env = env(WritePath::Auto);
    if env.report().counter("reactor_alive") == 1 { env } else { self::env(WritePath::Reactor) }
}

/// Everything the reactor's ring was given has come back, once the thread has ended.
fn assert_conserved(env: &IoUringEnv) {
    env.shutdown(Duration::from_mins(1)).unwrap();
    let report = env.report();
    let pushed =
        ["reactor_writes", "reactor_range_flushes", "early_syncs"].map(|n| report.counter(n));
    assert_eq!(report.counter("reactor_cqes"), pushed.iter().sum::<u64>(), "{report}");
    assert_eq!(report.counter("reactor_alive"), 0, "{report}");
}

/// Writes a table of so many blocks and a bit.
pub(super) fn write_table(env: &IoUringEnv, path: &Path, blocks: usize) {
    let data = bytes(0, blocks * BLOCK + 1234);
    let mut file = env.create(path, FileKind::Table).unwrap();
    for part in data.chunks(70_001) {
        file.append(part).unwrap();
    }
    assert_eq!(file.finish().unwrap(), data.len() as u64);
    assert!(std::fs::read(path).unwrap() == data, "the bytes differ");
}

/// URING-28
#[test]
fn blocks_of_a_table_go_through_the_reactor_and_the_report_proves_it() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = env_with_reactor();
    let mut n = 0;
    let used = |report: &EnvReport| {
        report.counter("reactor_writes") >= 32
            && report.counter("reactor_in_flight_peak") > 1
            && report.counter("reactor_range_flushes") > 0
            && report.counter("reactor_wakeups") > 0
    };
    until(&env, used, || {
        n += 1;
        write_table(&env, &dir.path().join(n.to_string()), 16);
    });
    let report = env.report();
    assert!(report.counter("reactor_in_flight_peak") <= 16, "{report}");
    assert!(report.counter("reactor_bytes_peak") <= 4 * BLOCK as u64, "{report}");
    assert!(report.counter("reactor_worker_threads_alive") > 0, "warmed up: {report}");
    assert_conserved(&env);
    write_table(&env, &dir.path().join("later"), 5);
}

#[test]
fn every_kind_of_file_has_the_same_bytes_by_every_way_of_writing() {
    if refused() {
        return;
    }
    let dir = on_disk();
    for (p, path) in PATHS.into_iter().enumerate() {
        let env = env(path);
        for (k, kind) in KINDS.into_iter().enumerate() {
            let name = dir.path().join(format!("{p}-{k}"));
            let data = bytes(0, 900_001);
            let mut file = env.create(&name, kind).unwrap();
            file.handle().prepare(400_000).unwrap();
            let mut end = 0;
            for (n, size) in [1, 4096, 300_000, 77, 262_144, 99_999].into_iter().cycle().enumerate()
            {
                let next = data.len().min(end + size);
                file.append(&data[end..next]).unwrap();
                end = next;
                match n % 4 {
                    1 => file.flush().unwrap(),
                    2 => file.sync().unwrap(),
                    _ => {}
                }
                if end == data.len() {
                    break;
                }
            }
            assert_eq!(file.finish().unwrap(), data.len() as u64);
            assert!(std::fs::read(&name).unwrap() == data, "{path:?} {kind:?}");
        }
        assert_conserved(&env);
    }
}

#[test]
fn direct_tables_have_the_same_bytes_by_every_way_of_writing() {
    if refused() {
        return;
    }
    let dir = on_disk();
    for (p, path) in PATHS.into_iter().enumerate() {
        let env = IoUringEnv::builder().rings(1).direct_writes(true).write_path(path);
        let env = env.build().unwrap();
        let name = dir.path().join(p.to_string());
        let data = bytes(0, 40 * BLOCK + 4097);
        let mut file = match env.create(&name, FileKind::Table) {
            Ok(file) => file,
            // What a refusal must look like is asserted where direct writes are.
            Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported),
        };
        for (n, part) in data.chunks(1_000_003).enumerate() {
            file.append(part).unwrap();
            if n % 3 == 1 {
                file.flush().unwrap();
            }
        }
        assert_eq!(file.finish().unwrap(), data.len() as u64);
        assert!(std::fs::read(&name).unwrap() == data, "{path:?}");
        assert_conserved(&env);
    }
}

/// URING-30
#[test]
fn no_append_to_a_log_goes_through_the_reactor_unless_it_was_asked_for() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let record = bytes(0, 300);
    let auto = env_with_reactor();
    let mut log = auto.create(&dir.path().join("auto"), FileKind::Log).unwrap();
    let before = auto.report();
    if before.facts.iter().any(|fact| fact.value.starts_with("blocks of tables")) {
        for _ in 0..10_000 {
            log.append(&record).unwrap();
        }
        let since = auto.report().since(&before);
        assert_eq!(since.counter("reactor_writes") + since.counter("ring_writes"), 0, "{since}");
        assert_eq!(since.counter("pwrites"), 10_000, "{since}");
    }

    let env = env(WritePath::Reactor);
    let path = dir.path().join("reactor");
    let mut log = env.create(&path, FileKind::Log).unwrap();
    let handle = log.handle();
    handle.prepare(1 << 20).unwrap();
    let mut expected = Vec::new();
    let through = |report: &EnvReport| report.counter("reactor_writes") >= 100;
    let mut n = 0;
    until(&env, through, || {
        for _ in 0..20 {
            n += 1;
            let record = bytes(n, 300);
            log.append(&record).unwrap();
            expected.extend_from_slice(&record);
            let there = std::fs::read(&path).unwrap();
            assert!(there[..expected.len()] == expected, "acknowledged after its completion");
        }
        handle.sync().unwrap();
    });
    assert_eq!(log.finish().unwrap(), expected.len() as u64);
    assert!(std::fs::read(&path).unwrap() == expected);
    assert!(env.report().counter("reactor_in_flight_peak") == 1, "one after another");
}

/// URING-29
#[test]
fn an_append_of_many_megabytes_is_written_in_pieces_the_device_takes() {
    if refused() {
        return;
    }
    let dir = on_disk();
    for path in PATHS {
        let env = env(path);
        let name = dir.path().join(format!("{path:?}"));
        let data = bytes(0, (8 << 20) + 17);
        let mut file = env.create(&name, FileKind::Table).unwrap();
        file.append(&data).unwrap();
        file.append(&data).unwrap();
        file.finish().unwrap();
        let there = std::fs::read(&name).unwrap();
        assert!(there[..data.len()] == data && there[data.len()..] == data, "{path:?}");
        assert_conserved(&env);
    }
}

#[test]
fn a_full_device_leaves_a_prefix_by_every_way_of_writing() {
    if refused() {
        return;
    }
    // A limit on the size of files fails writes as a full device does, with another number, but
    // it is the whole process's: a device that is always full stands in. It takes no bytes at all.
    let full = Path::new("/dev/full");
    let Ok(file) = std::fs::OpenOptions::new().write(true).open(full) else { return };
    for path in [WritePath::Auto, WritePath::Reactor] {
        let env = env(path);
        let Some(reactor) = env.writes.reactor() else { continue };
        let shared = crate::posix::writable::Shared::new(
            env.posix.os(),
            full,
            file.try_clone().unwrap().into(),
            None,
        );
        let manner =
            reactor::Manner { depth: 4, shortest: 0, waits: false, rests: false, early_sync: None };
        let mut outlet = reactor::Handover::new(&reactor, &shared, manner);
        let mut buffer = env.posix.os().pool.take(BLOCK);
        let put = crate::posix::outlet::Outlet::put_buffer(&mut outlet, &mut buffer, BLOCK, 0);
        let stopped = put.and_then(|()| crate::posix::outlet::Outlet::settle(&mut outlet, 1));
        let stopped = stopped.unwrap_err();
        assert_eq!((stopped.error.kind(), stopped.end), (ErrorKind::NoSpace, Some(0)));
    }
}

#[test]
fn many_tables_at_once_share_the_reactor_and_its_budget() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = IoUringEnv::builder().rings(1).write_path(WritePath::Reactor);
    let env = env.write_budget(2 * BLOCK).build().unwrap();
    // A reactor that is fast enough gives each block's share back before the next is asked for.
    let used_up = |report: &EnvReport| report.counter("reactor_budget_full") > 0;
    let mut round = 0;
    until(&env, used_up, || {
        round += 1;
        std::thread::scope(|scope| {
            for n in 0..6 {
                let (env, path) = (&env, dir.path().join(format!("{round}-{n}")));
                scope.spawn(move || write_table(env, &path, 12));
            }
        });
    });
    let report = env.report();
    assert!(report.counter("reactor_bytes_peak") <= 2 * BLOCK as u64, "{report}");
    assert_conserved(&env);
}

/// URING-15: the reactor lives on when the thread that handed a write over exits.
#[test]
fn threads_that_hand_writes_over_and_exit_lose_none() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = env_with_reactor();
    let name = dir.path().join("t");
    // What the reactor has not come to is taken back by the owner of the file.
    let some = |report: &EnvReport| report.counter("reactor_writes") > 0;
    until(&env, some, || {
        for n in 0..50 {
            let mut file = env.create(&name, FileKind::Table).unwrap();
            let data = bytes(n, 3 * BLOCK);
            let file = std::thread::scope(|scope| {
                let append = scope.spawn(|| {
                    file.append(&data).unwrap();
                    file
                });
                append.join().unwrap()
            });
            assert_eq!(file.finish().unwrap(), data.len() as u64);
            assert!(std::fs::read(&name).unwrap() == data);
            std::fs::remove_file(&name).unwrap();
        }
    });
    assert_eq!(env.report().counter("retried_efault"), 0);
    assert_conserved(&env);
}

#[test]
fn a_file_outlives_its_environment_and_the_reactor_serves_it_to_the_end() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = env_with_reactor();
    let name = dir.path().join("t");
    let mut file = env.create(&name, FileKind::Table).unwrap();
    let data = bytes(0, 9 * BLOCK);
    file.append(&data[..5 * BLOCK]).unwrap();
    drop(env);
    file.append(&data[5 * BLOCK..]).unwrap();
    assert_eq!(file.finish().unwrap(), data.len() as u64);
    assert!(std::fs::read(&name).unwrap() == data);
}

#[test]
fn the_report_says_who_writes_and_why() {
    if refused() {
        return;
    }
    let text = env(WritePath::Caller).report().to_string();
    assert!(text.contains("writes: on the calling thread"), "{text}");
    let env = env(WritePath::Reactor);
    let text = env.report().to_string();
    assert!(text.contains("writes: all through the reactor, 4 of a table at once"), "{text}");
    assert!(text.contains("write budget: 0 of 32768 KiB in use"), "{text}");
    env.shutdown(Duration::from_mins(1)).unwrap();
    let text = env.report().to_string();
    assert!(text.contains("the reactor has ended"), "{text}");
}

/// The flush at the end is made in any case; the early ones show in the report alone.
#[test]
fn tables_are_flushed_while_they_are_written_if_that_was_asked_for() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let builder = IoUringEnv::builder().write_path(WritePath::Reactor);
    let with = builder.clone().early_sync(Some(1 << 20)).build().unwrap();
    let mut n = 0;
    until(
        &with,
        |report| report.counter("early_syncs") >= 2,
        || {
            n += 1;
            write_table(&with, &dir.path().join(n.to_string()), 24);
        },
    );
    assert_eq!(with.report().counter("early_syncs_skipped"), 0);
    assert_eq!(with.report().counter("syncs"), n, "one for each table, by its owner");
    assert_conserved(&with);
    let without = builder.early_sync(None).build().unwrap();
    write_table(&without, &dir.path().join("without"), 24);
    assert_eq!(without.report().counter("early_syncs"), 0);
}

/// ENV-20, URING-28: what is pushed together goes out together, with a result for each.
#[test]
fn direct_writes_in_place_go_out_in_one_submission_and_the_report_proves_it() {
    const LEN: usize = 16 << 10;
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = IoUringEnv::builder().rings(1).direct_rw(true).build().unwrap();
    let path = dir.path().join("w");
    let file = match env.open_rw(&path) {
        Ok(file) => file,
        // What a refusal must look like is asserted where direct writes are.
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported),
    };
    let data = bytes(0, 64 * LEN);
    file.write_all_at(&Buffer::from(&data.iter().map(|b| !b).collect::<Vec<_>>()[..]), 0).unwrap();
    file.sync().unwrap();
    let before = env.report();
    let write = |n: usize| {
        // One in the middle is misaligned, and it alone fails.
        let skip = if n == 33 { 8 } else { 0 };
        let (offset, data) = ((n * LEN + skip) as u64, Buffer::from(&data[n * LEN..][..LEN]));
        Request::Write { file: Arc::clone(&file), offset, data }
    };
    let results = read_batch(&env, (0..64).map(write).collect());
    let mut expected = data.clone();
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(given_back) => assert!(n != 33 && *given_back == data[n * LEN..][..LEN], "{n}"),
            Err(error) => assert_eq!((n, error.kind()), (33, ErrorKind::Misaligned)),
        }
    }
    expected[33 * LEN..34 * LEN].iter_mut().for_each(|byte| *byte = !*byte);
    file.sync().unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
    let since = env.report().since(&before);
    assert_eq!((since.counter("ring_writes"), since.counter("ring_cqes")), (63, 63), "{since}");
    let peaks = ["sqes_per_enter_peak", "in_flight_peak"].map(|name| since.counter(name));
    assert_eq!(peaks, [63, 63], "{since}");
    assert_eq!((since.counter("pwrites"), since.counter("fallback_pwrites")), (0, 0), "{since}");
    assert!(since.counter("ring_enters") < 32, "{since}");
}
