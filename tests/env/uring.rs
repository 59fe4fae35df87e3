//! The conformance suite over io_uring: with defaults, past the page cache, with every read on a
//! ring, and with rings that are too few and too small.

use std::sync::Arc;

use treering_env::{
    Access, CountEnv, Env, ErrorKind, IoUringEnv, IoUringEnvBuilder, MirrorEnv, PosixEnv,
    conformance,
};

use crate::scratch::Scratch;

fn uring(change: impl FnOnce(IoUringEnvBuilder) -> IoUringEnvBuilder) -> Arc<dyn Env> {
    match change(IoUringEnv::builder()).build() {
        Ok(env) => Arc::new(env),
        Err(cause) => panic!("this test needs a machine that allows io_uring\n{cause}"),
    }
}

/// Runs the suite; what the rings did must add up, and they must have done something if
/// `reads_on_rings`.
fn run_on_disk(env: &Arc<dyn Env>, reads_on_rings: bool) {
    let scratch = Scratch::new();
    conformance::run(|| (Arc::clone(env), scratch.dir()));
    let report = env.report();
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
    assert_eq!(report.counter("ring_retired"), 0, "{report}");
    if reads_on_rings {
        assert!(report.counter("ring_reads") > 0, "{report}");
        assert!(report.counter("in_flight_peak") > 1, "{report}");
    }
}

#[test]
fn io_uring_env_conforms() {
    run_on_disk(&uring(|builder| builder), false);
}

/// URING-28
#[test]
fn io_uring_env_with_every_queued_read_on_a_ring_conforms() {
    run_on_disk(&uring(|builder| builder.nowait(false)), true);
}

/// URING-06, URING-27
#[test]
fn io_uring_env_with_one_small_ring_conforms() {
    run_on_disk(&uring(|builder| builder.nowait(false).rings(1).ring_entries(8)), true);
}

#[test]
fn io_uring_env_with_direct_reads_conforms() {
    let env = uring(|builder| builder.direct_reads(true).direct_writes(true));
    let scratch = Scratch::new();
    let path = scratch.dir().join("probe");
    std::fs::write(&path, b"x").expect("the scratch directory can be written");
    match env.open(&path, Access::Random) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("SKIPPED: no direct reads on the file system of {}", path.display());
        }
        _ => run_on_disk(&env, true),
    }
}

/// ENV-11: our own wrappers forward to the ring queue.
#[test]
fn wrappers_over_io_uring_conform_and_keep_their_reads_on_the_ring() {
    let inner = uring(|builder| builder.nowait(false));
    let counted: Arc<dyn Env> = Arc::new(CountEnv::new(Arc::clone(&inner)));
    let scratch = Scratch::new();
    conformance::run(|| (Arc::clone(&counted), scratch.dir()));
    assert!(inner.report().counter("ring_reads") > 0, "{}", inner.report());
}

/// ENV-11: every call that the suite makes has the same answer with and without rings.
#[test]
fn a_mirror_of_io_uring_and_posix_conforms_and_finds_no_difference() {
    let (ours, theirs) = (Scratch::new(), Scratch::new());
    let env = uring(|builder| builder.nowait(false));
    conformance::run(|| {
        let posix: Arc<dyn Env> = Arc::new(PosixEnv::new());
        let mirror = MirrorEnv::new((Arc::clone(&env), ours.dir()), (posix, theirs.dir()));
        (Arc::new(mirror), std::path::PathBuf::new())
    });
}
