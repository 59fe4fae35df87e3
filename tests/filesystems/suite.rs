//! Each file system in turn: the conformance suite and the engine in every environment, and what
//! cold batched reads do there, by the counters.

use std::sync::Arc;

use treering::env::{
    Access, BatchReads, Env, ErrorKind, IoUringEnv, IoUringEnvBuilder, PosixEnv, PosixEnvBuilder,
    WritePath, conformance,
};

use crate::engine::{ColdDb, model_run};
use crate::image::Mounted;
use crate::uring;

/// What is known of a file system.
pub(crate) struct Traits {
    /// It has reads that never wait, and asynchronous ones on a ring.
    asynchronous: bool,
    /// Files on it can be read and written past the page cache; `None` if that depends on the
    /// kernel's version.
    direct: Option<bool>,
}

pub(crate) fn posix(change: impl FnOnce(PosixEnvBuilder) -> PosixEnvBuilder) -> Arc<dyn Env> {
    Arc::new(change(PosixEnv::builder()).build().unwrap())
}

/// Whether files can be read past the page cache here.
fn has_direct(mounted: &Mounted) -> bool {
    let path = mounted.dir().join("probe");
    std::fs::write(&path, b"x").unwrap();
    match posix(|builder| builder.direct_reads(true)).open(&path, Access::Random) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            false
        }
    }
}

fn conforms(mounted: &Mounted, env: &Arc<dyn Env>) {
    conformance::run(|| (Arc::clone(env), mounted.dir()));
    model_run(env, &mounted.dir().join("db"));
    mounted.clear();
}

/// Everything of this module on one file system.
pub(crate) fn whole_suite(mounted: &Mounted, traits: &Traits) {
    let direct = has_direct(mounted);
    assert!(traits.direct.is_none_or(|expected| expected == direct), "direct files: {direct}");
    conforms(mounted, &posix(|builder| builder.batch_reads(BatchReads::Serial)));
    conforms(mounted, &posix(|builder| builder.batch_reads(BatchReads::Prefetch)));
    conforms(mounted, &posix(|builder| builder.mmap_reads(true)));
    if direct {
        let all = |builder: PosixEnvBuilder| {
            builder.direct_reads(true).direct_writes(true).direct_rw(true)
        };
        conforms(mounted, &posix(all));
    }
    for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
        let Some(env) = uring(|builder| builder.write_path(path)) else { return };
        conforms(mounted, &(Arc::new(env.clone()) as Arc<dyn Env>));
        let report = env.report();
        assert!(path != WritePath::Reactor || report.counter("reactor_writes") > 0, "{report}");
        assert_eq!(report.counter("ring_retired") + report.counter("ring_stale"), 0, "{report}");
    }
    cold(mounted, traits, &uring(|builder| builder).unwrap());
    if direct {
        let all = |builder: IoUringEnvBuilder| {
            builder.direct_reads(true).direct_writes(true).direct_rw(true)
        };
        let env = uring(all).unwrap();
        conforms(mounted, &(Arc::new(env.clone()) as Arc<dyn Env>));
        let report = env.report();
        assert!(report.counter("ring_writes") > 0, "{report}");
        cold(mounted, traits, &uring(|builder| builder.direct_reads(true)).unwrap());
    }
}

/// Workers that the kernel has made for what this thread gave to rings.
fn own_workers() -> usize {
    let name = format!("iou-wrk-{}\n", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|comm| *comm == name).count()
}

/// A cold `multi_get`: what goes to a ring, and that no worker of the kernel is needed for it.
///
/// What one round finds in the page cache is the kernel's affair, and a device that is busy may
/// once need a worker; so where rings are used there are several rounds, each in a thread of its
/// own, whose workers are its own too.
fn cold(mounted: &Mounted, traits: &Traits, env: &IoUringEnv) {
    let db = ColdDb::new(env, &mounted.dir().join("db"));
    let round = || {
        let before = env.report();
        let workers = std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                db.evict();
                db.multi_get();
                own_workers()
            });
            reads.join().unwrap()
        });
        (env.report().since(&before), workers)
    };
    if !traits.asynchronous {
        for _ in 0..3 {
            let (since, workers) = round();
            let rings = ["ring_reads", "ring_enters", "pool_empty"].map(|name| since.counter(name));
            assert_eq!((rings, workers), ([0; 3], 0), "{since}");
        }
        let report = env.report();
        assert!(report.counter("nowait_unsupported") > 0, "{report}");
        let answers = ["nowait_hit", "nowait_short", "nowait_miss"].map(|n| report.counter(n));
        assert_eq!(answers, [0; 3], "{report}");
        assert!(report.counter("preads") > 0, "{report}");
        return;
    }
    let mut last = None;
    let used = (0..100).any(|_| {
        let (since, workers) = round();
        assert_eq!(since.counter("ring_reads"), since.counter("ring_cqes"), "{since}");
        let used = since.counter("ring_reads") > 16 && workers == 0;
        last = Some((workers, since));
        used
    });
    assert!(used, "never many reads on a ring without a worker: {last:?}");
    let report = env.report();
    assert!(report.counter("in_flight_peak") > 1, "{report}");
    assert_eq!(report.counter("nowait_unsupported"), 0, "{report}");
}

pub(crate) const DISK: Traits = Traits { asynchronous: true, direct: Some(true) };

/// ENV-01, ENV-08, ENV-20, URING-28: and all else that the suite checks.
#[test]
fn ext4_keeps_the_contract_and_its_cold_reads_go_through_rings() {
    let Some(mounted) = Mounted::image("ext4", 256) else { return };
    whole_suite(&mounted, &DISK);
}

/// URING-28
#[test]
fn xfs_keeps_the_contract_and_its_cold_reads_go_through_rings() {
    let Some(mounted) = Mounted::image("xfs", 320) else { return };
    whole_suite(&mounted, &DISK);
}

/// URING-28, ENV-20: it asks for whole pages, though its device has shorter sectors.
#[test]
fn btrfs_keeps_the_contract_and_its_cold_reads_go_through_rings() {
    let Some(mounted) = Mounted::image("btrfs", 512) else { return };
    let file = posix(|builder| builder.direct_rw(true)).open_rw(&mounted.dir().join("file"));
    assert_eq!(file.unwrap().alignment().offset, 4096);
    whole_suite(&mounted, &DISK);
}

/// ENV-18
#[test]
fn an_overlay_keeps_the_contract_and_meets_no_ring_for_reads() {
    let Some(mounted) = Mounted::overlay() else { return };
    whole_suite(&mounted, &Traits { asynchronous: false, direct: None });
}

/// ENV-18
#[test]
fn a_file_system_in_memory_keeps_the_contract_and_meets_no_ring_for_reads() {
    let Some(mounted) = Mounted::memory(512) else { return };
    whole_suite(&mounted, &Traits { asynchronous: false, direct: None });
}
