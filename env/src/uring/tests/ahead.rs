//! Direct files that are read ahead by a real ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::RandomAccessFile;

const RANGE: u64 = 64 << 10;

fn open(env: &IoUringEnv, path: &Path) -> Option<Arc<dyn RandomAccessFile>> {
    match env.open(path, Access::Random) {
        Ok(file) => Some(file),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            None
        }
    }
}

fn fact(env: &IoUringEnv) -> String {
    let report = env.report();
    let fact = report.facts.iter().find(|fact| fact.name == "direct files read ahead");
    fact.map(|fact| fact.value.clone()).unwrap_or_default()
}

#[test]
fn a_direct_scan_that_announces_what_it_will_read_makes_no_read_of_its_own() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 4 << 20);
    let env = IoUringEnv::builder().rings(1).direct_reads(true).build().unwrap();
    let Some(file) = open(&env, &path) else { return };
    // Most blocks of a table end a little before their pages do.
    let (mut announced, mut page) = (0, vec![0; 4000]);
    for offset in (0..file.size()).step_by(4096) {
        while announced < file.size() && announced < offset + 2 * RANGE {
            file.will_need(announced, RANGE);
            announced += RANGE;
        }
        file.read_exact_at(&mut page, offset).unwrap();
        assert!(page == bytes(offset, 4000), "{offset}");
    }
    let report = env.report();
    assert_eq!(report.counter("preads"), 0, "{report}");
    assert_eq!(report.counter("read_ahead_ranges"), 64);
    assert_eq!(report.counter("read_ahead_hits"), 1024);
    assert!(report.counter("reactor_reads") >= 64, "{report}");
    assert_eq!(fact(&env), "64 of at most 32768 KiB kept", "the last range lacks its last bytes");
    drop(file);
    assert_eq!(fact(&env), "0 of at most 32768 KiB kept");
}

#[test]
fn without_memory_or_a_reactor_for_it_nothing_is_read_ahead_and_the_report_says_so() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 1 << 20);
    let builder = || IoUringEnv::builder().rings(1).direct_reads(true);
    for env in [builder().read_ahead(0), builder().write_path(WritePath::Caller)] {
        let env = env.build().unwrap();
        let Some(file) = open(&env, &path) else { return };
        file.will_need(0, RANGE);
        let mut got = vec![0; 4096];
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got == bytes(0, 4096));
        let report = env.report();
        assert_eq!((report.counter("read_ahead_ranges"), report.counter("preads")), (0, 1));
        assert_eq!(fact(&env), "off");
    }
    let buffered = IoUringEnv::builder().rings(1).build().unwrap();
    assert_eq!(fact(&buffered), "");
}

/// Reads and announcements of many threads in few files, some of which are opened anew all the
/// time, with memory for a small part of it.
#[test]
fn threads_that_announce_and_read_anything_get_the_right_bytes_and_bounded_memory() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let size = 2_u64 << 20;
    let paths = ["a", "b", "c"].map(|name| cold_file(&dir, name, 2 << 20));
    let limit = 300 << 10;
    let env = IoUringEnv::builder().rings(1).direct_reads(true).read_ahead(limit).build().unwrap();
    if open(&env, &paths[0]).is_none() {
        return;
    }
    let seed = std::process::id();
    let hits = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (env, paths, hits) = (&env, &paths, &hits);
            scope.spawn(move || {
                let mut state = u64::from(seed) * 4 + thread + 1;
                let mut draw = move |below: u64| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) % below
                };
                let mut files: Vec<_> = paths.iter().map(|p| open(env, p).unwrap()).collect();
                for _ in 0..400 * soak() {
                    let n = usize::try_from(draw(3)).unwrap();
                    if draw(20) == 0 {
                        files[n] = open(env, &paths[n]).unwrap();
                    }
                    let (offset, len) = (draw(size), draw(100_000));
                    files[n].will_need(offset, len);
                    let (kept, most) = env.ahead.as_ref().expect("reads ahead").bytes();
                    assert!(kept <= most && most == limit, "{kept} bytes");
                    let offset = (offset + draw(3000)).min(size - 1);
                    let len = usize::try_from(draw(20_000).min(size - offset)).unwrap();
                    let mut got = vec![0; len];
                    files[n].read_exact_at(&mut got, offset).unwrap();
                    assert!(got == bytes(offset, len), "seed {seed}: {len} bytes at {offset}");
                }
                hits.fetch_add(env.report().counter("read_ahead_hits"), Ordering::Relaxed);
            });
        }
    });
    assert!(hits.into_inner() > 0, "{}", env.report());
    let report = env.report();
    assert!(report.counter("preads") > 0 && report.counter("read_ahead_ranges") > 0, "{report}");
    // What was on its way when its file was closed comes back soon.
    until(&env, |_| fact(&env).starts_with("0 of"), || thread::sleep(Duration::from_millis(5)));
}
