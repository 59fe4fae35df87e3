//! Registered memory on the real kernel.

use super::*;
use crate::os_file::OsFile;

const ARENA: usize = 8 << 20;

fn env_with(bytes: usize) -> IoUringEnv {
    let builder = IoUringEnv::builder().rings(2).direct_reads(true).merge_limit(0);
    builder.fixed_buffers(bytes).build().unwrap()
}

/// URING-37
#[test]
fn direct_reads_use_registered_memory_and_the_counters_prove_it() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let len = 256 * 4 * 4096 + 77;
    let path = cold_file(&dir, "t", len);
    let env = env_with(ARENA);
    assert!(env.report().to_string().contains("registered buffers: 8192 of 8192 KiB\n"));
    let file = env.open(&path, Access::Random).unwrap();
    let mut ranges = scattered(200);
    ranges.extend([(len as u64 - 1, 1), (3, 9000), (4095, 2), (0, 300 << 10)]);
    for _ in 0..20 {
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    }
    let report = env.report();
    assert!(report.counter("ring_reads") > 1000, "{report}");
    assert_eq!(report.counter("fixed_used"), report.counter("ring_reads"), "{report}");
    assert_eq!(report.counter("fixed_refused"), 0, "{report}");
    assert_eq!(report.counter("ring_retired"), 0, "{report}");
    let restricted = "rings restricted to reads and writes: yes";
    assert!(report.to_string().contains(restricted), "{report}");
}

/// URING-37
#[test]
fn reads_that_find_no_registered_memory_use_other_memory_and_are_counted() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    let env = env_with(2 << 20);
    let file = env.open(&path, Access::Random).unwrap();
    // Each is one entry, and a slab holds eight of them; all are kept.
    OsFile::of(&*file).unwrap().device().pretend_chunk(512 << 10);
    let ranges: Vec<(u64, usize)> = (0..16).map(|n| (n << 18, 256 << 10)).collect();
    let kept = read_batch(&env, requests(&file, &ranges));
    assert_right(&kept, &ranges);
    let report = env.report();
    let [used, refused] = ["fixed_used", "fixed_refused"].map(|name| report.counter(name));
    assert_eq!(used + refused, report.counter("ring_reads"), "{report}");
    assert!((7..=8).contains(&used) && refused > 0, "{report}");
    assert_right(&kept, &ranges);
    drop(kept);
    let before = env.report();
    let few = scattered(64);
    assert_right(&read_batch(&env, requests(&file, &few)), &few);
    let since = env.report().since(&before);
    assert_eq!(since.counter("fixed_refused"), 0, "what was given back is used again: {since}");
    assert!(since.counter("fixed_used") > 0, "{since}");
}

/// URING-37: a buffer is its holder's, whoever registered the memory.
#[test]
fn buffers_in_registered_memory_outlive_the_environment() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    let env = env_with(ARENA);
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    let kept = read_batch(&env, requests(&file, &ranges));
    assert!(env.report().counter("fixed_used") > 0);
    drop((env, file));
    for _ in 0..10 {
        let other = env_with(ARENA);
        let file = other.open(&path, Access::Random).unwrap();
        assert_right(&read_batch(&other, requests(&file, &ranges)), &ranges);
    }
    assert_right(&kept, &ranges);
}

/// URING-31: with memory that stays registered, the kernel still takes the file by its descriptor.
#[test]
fn a_descriptor_number_used_again_does_not_mix_files_up_in_registered_memory() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let env = env_with(ARENA);
    let first = cold_file(&dir, "first", 64 * 4 * 4096);
    let second = dir.path().join("second");
    std::fs::write(&second, vec![0xEE; 64 * 4 * 4096]).unwrap();
    let ranges = scattered(64);
    for _ in 0..50 {
        let file = env.open(&first, Access::Random).unwrap();
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        drop(file);
        let other = env.open(&second, Access::Random).unwrap();
        for result in read_batch(&env, requests(&other, &ranges)) {
            assert!(result.unwrap().iter().all(|&byte| byte == 0xEE));
        }
    }
    let report = env.report();
    assert!(report.counter("fixed_used") > 50 * 100, "{report}");
}

/// URING-37
#[test]
fn many_threads_and_rings_share_one_registration() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 256 * 4 * 4096);
    let env =
        IoUringEnv::builder().rings(4).direct_reads(true).merge_limit(0).fixed_buffers(8 << 20);
    let env = env.build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (env, file) = (&env, &file);
            scope.spawn(move || {
                for round in 0..20 {
                    let page = |n: u64| ((n * 7 + thread * 4 + round) % 256 * 4 * 4096, 4096);
                    let ranges: Vec<(u64, usize)> = (0..60).map(page).collect();
                    assert_right(&read_batch(env, requests(file, &ranges)), &ranges);
                }
            });
        }
    });
    let report = env.report();
    // The reactor's among them, which reads for who finds no ring.
    let reads = report.counter("ring_reads") + report.counter("reactor_reads");
    assert_eq!(report.counter("fixed_used"), reads, "{report}");
    assert_eq!((report.counter("fixed_refused"), report.counter("fallback_preads")), (0, 0));
    assert!(report.counter("fixed_used") > 16, "{report}");
}

/// URING-37
#[test]
fn blocks_of_direct_tables_are_written_from_registered_memory() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let builder = IoUringEnv::builder().rings(1).direct_writes(true).direct_reads(true);
    let env = builder.write_path(WritePath::Reactor).fixed_buffers(16 << 20).build().unwrap();
    let path = dir.path().join("t");
    let data = bytes(0, 3 << 20);
    for round in 0..100 {
        let mut table = env.create(&path, FileKind::Table).unwrap();
        for part in data.chunks(100_000) {
            table.append(part).unwrap();
        }
        assert_eq!(table.finish().unwrap(), data.len() as u64);
        assert!(std::fs::read(&path).unwrap() == data, "round {round}");
        std::fs::remove_file(&path).unwrap();
        // A block that its owner takes back goes by a plain call.
        if env.report().counter("fixed_used") > 12 {
            break;
        }
    }
    let report = env.report();
    assert_eq!(report.counter("fixed_used"), report.counter("reactor_writes"), "{report}");
    assert!(report.counter("fixed_used") > 12, "{report}");
    assert_eq!(report.counter("fixed_refused"), 0, "{report}");
}

/// URING-37: buffered files have no use for it.
#[test]
fn reads_through_the_page_cache_leave_registered_memory_alone() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(1).nowait(false).fixed_buffers(ARENA).build().unwrap();
    let file = env.open(&path, Access::Random).unwrap();
    let ranges = scattered(64);
    assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
    let report = env.report();
    assert!(report.counter("ring_reads") > 32, "{report}");
    assert_eq!(report.counter("fixed_used") + report.counter("fixed_refused"), 0, "{report}");
}

/// URING-37: what was read into registered memory may be what is written next, by a ring that is
/// restricted to what queues do; other memory is written too, and counted where it costs more.
#[test]
fn a_buffer_in_registered_memory_is_written_by_a_queue_like_any_other() {
    if refused() {
        return;
    }
    for direct in [false, true] {
        let dir = on_disk();
        let path = cold_file(&dir, "t", 256 * 4 * 4096);
        let write_path = if direct { WritePath::Auto } else { WritePath::Reactor };
        let builder = IoUringEnv::builder().rings(2).direct_reads(true).merge_limit(0);
        let builder = builder.direct_rw(direct).write_path(write_path).fixed_buffers(ARENA);
        let env = builder.build().unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        let copy = dir.path().join("copy");
        let to = env.open_rw(&copy).unwrap();
        let ranges = scattered(64);
        let read = read_batch(&env, requests(&file, &ranges));
        let before = env.report();
        assert!(before.counter("fixed_used") > 0, "{before}");
        let write = |(data, (offset, _)): (Result<Buffer>, &(u64, usize))| Request::Write {
            file: Arc::clone(&to),
            offset: *offset,
            data: data.unwrap(),
        };
        let writes = read.into_iter().zip(&ranges).map(write).collect();
        assert_right(&read_batch(&env, writes), &ranges);
        let since = env.report().since(&before);
        assert!(since.counter("ring_writes") > 0, "{since}");
        assert_eq!(since.counter("fixed_used"), since.counter("ring_writes"), "{since}");
        let there = std::fs::read(&copy).unwrap();
        for (offset, len) in &ranges {
            let at = usize::try_from(*offset).unwrap();
            assert!(there[at..at + len] == bytes(*offset, *len)[..], "at {offset}");
        }
        let before = env.report();
        let own = ranges.iter().map(|&(offset, len)| Ok(Buffer::from(&bytes(offset, len)[..])));
        let writes = own.zip(&ranges).map(write).collect();
        assert_right(&read_batch(&env, writes), &ranges);
        let since = env.report().since(&before);
        let [used, refused] = ["fixed_used", "fixed_refused"].map(|name| since.counter(name));
        assert_eq!((used, refused), (0, if direct { 64 } else { 0 }), "{since}");
    }
}
