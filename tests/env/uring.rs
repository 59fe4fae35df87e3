//! The same suite and the same mirrored runs on io_uring, on the kernel's own rings.
//!
//! Each run asserts that a ring was really used: a test that ran on plain calls proves nothing
//! about rings. Where io_uring cannot be set up the tests say so on standard error; with
//! `TREERING_REQUIRE_IO_URING` set they fail instead.

use std::path::PathBuf;
use std::sync::Arc;

use treering_env::{
    BatchReads, CountEnv, Env, EnvReport, FaultEnv, IoUringEnv, IoUringEnvBuilder, MemEnv,
    MirrorEnv, PosixEnv, WritePath, conformance,
};

use crate::mirrored::{self, Side};
use crate::scratch::Scratch;
use crate::suite::{is_supported, run_on_disk, skipped};
use crate::user::UserEnv;

/// The environment, or `None` where this machine has no io_uring.
fn uring(change: impl FnOnce(IoUringEnvBuilder) -> IoUringEnvBuilder) -> Option<Arc<dyn Env>> {
    match change(IoUringEnv::builder()).build() {
        Ok(env) => Some(Arc::new(env)),
        Err(cause) => {
            assert!(
                std::env::var_os("TREERING_REQUIRE_IO_URING").is_none(),
                "io_uring is required here: {cause}"
            );
            skipped(&format!("io_uring cannot be used here: {cause}"));
            None
        }
    }
}

/// What the rings did adds up, and it is something.
fn assert_rings_were_used(report: &EnvReport) {
    let pushed = report.counter("ring_reads") + report.counter("ring_writes");
    assert_eq!(pushed, report.counter("ring_cqes"), "{report}");
    assert_eq!(report.counter("ring_retired"), 0, "{report}");
    assert!(report.counter("ring_reads") > 0, "no read went through a ring:\n{report}");
    assert!(report.counter("in_flight_peak") > 1, "never two reads at once:\n{report}");
}

#[test]
fn io_uring_env_conforms() {
    let Some(env) = uring(|builder| builder) else { return };
    run_on_disk(&env);
}

/// URING-28
#[test]
fn io_uring_env_with_every_queued_read_on_a_ring_conforms() {
    let Some(env) = uring(|builder| builder.nowait(false)) else { return };
    run_on_disk(&env);
    assert_rings_were_used(&env.report());
}

/// URING-06, URING-27: one small ring for many queues, and more requests than it has entries.
#[test]
fn io_uring_env_with_one_small_ring_conforms() {
    let small = |builder: IoUringEnvBuilder| {
        builder.ring_entries(8).rings(1).max_in_flight(5).nowait(false)
    };
    let Some(env) = uring(small) else { return };
    run_on_disk(&env);
    assert_rings_were_used(&env.report());
}

#[test]
fn io_uring_env_with_direct_files_conforms() {
    let Some(env) = uring(|builder| builder.direct_reads(true).direct_writes(true)) else { return };
    if is_supported("direct reading", &env) {
        run_on_disk(&env);
        assert_rings_were_used(&env.report());
    }
}

/// ENV-20, URING-28: written in place past the page cache, by every way of writing.
#[test]
fn io_uring_env_with_direct_files_in_place_conforms() {
    for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
        let Some(env) = uring(|builder| builder.direct_rw(true).write_path(path)) else { return };
        let probe: Arc<dyn Env> = match PosixEnv::builder().direct_reads(true).build() {
            Ok(env) => Arc::new(env),
            Err(error) => panic!("{error}"),
        };
        if !is_supported("direct writing in place", &probe) {
            return;
        }
        run_on_disk(&env);
        let report = env.report();
        let on_a_ring = report.counter("ring_writes") > 0;
        assert_eq!(on_a_ring, path != WritePath::Caller, "{report}");
    }
}

/// Every way of writing, each for all that the suite writes.
#[test]
fn io_uring_env_conforms_by_every_way_of_writing() {
    for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
        let Some(env) = uring(|builder| builder.write_path(path)) else { return };
        run_on_disk(&env);
        let report = env.report();
        let alive = u64::from(path == WritePath::Reactor);
        assert!(report.counter("reactor_alive") >= alive, "{report}");
        if path == WritePath::Reactor {
            assert!(report.counter("reactor_writes") > 0, "nothing went through:\n{report}");
            assert!(report.counter("ring_writes") > 0, "no queued write on a ring:\n{report}");
        }
    }
}

/// The least room: one block with the reactor, whichever table it is of.
#[test]
fn io_uring_env_with_the_smallest_write_budget_conforms() {
    let small = |builder: IoUringEnvBuilder| {
        builder.write_path(WritePath::Reactor).write_budget(1 << 20).ring_entries(8)
    };
    let Some(env) = uring(small) else { return };
    run_on_disk(&env);
    let peak = env.report().counter("reactor_bytes_peak");
    assert!(peak > 0 && peak <= 1 << 20, "{peak} bytes");
}

#[test]
fn io_uring_env_with_direct_tables_through_the_reactor_conforms() {
    let direct = |builder: IoUringEnvBuilder| {
        builder.direct_reads(true).direct_writes(true).write_path(WritePath::Reactor)
    };
    let Some(env) = uring(direct) else { return };
    if is_supported("direct writing", &env) {
        run_on_disk(&env);
    }
}

/// ENV-11: faults above the reactor, and bytes held back above it.
#[test]
fn faults_over_every_way_of_writing_conform() {
    for path in [WritePath::Auto, WritePath::Reactor, WritePath::Caller] {
        let Some(inner) = uring(|builder| builder.write_path(path)) else { return };
        run_on_disk(&(Arc::new(FaultEnv::new(Arc::clone(&inner))) as Arc<dyn Env>));
        run_on_disk(&(Arc::new(FaultEnv::holding(inner)) as Arc<dyn Env>));
    }
}

/// ENV-11: queues are forwarded, so that reads through wrappers reach the rings.
#[test]
fn wrappers_over_io_uring_conform_and_reach_the_rings() {
    let Some(inner) = uring(|builder| builder.nowait(false)) else { return };
    let fault = Arc::new(FaultEnv::new(inner));
    let env: Arc<dyn Env> = Arc::new(CountEnv::new(fault));
    run_on_disk(&env);
    assert_rings_were_used(&env.report());
}

/// ENV-11: without forwarded queues everything is right and no ring is used.
#[test]
fn a_users_wrapper_over_io_uring_conforms_one_deep() {
    let Some(inner) = uring(|builder| builder.nowait(false)) else { return };
    let env: Arc<dyn Env> = Arc::new(UserEnv::new(inner));
    run_on_disk(&env);
    assert!(env.report().to_string().contains("serial"));
}

/// ENV-11: every call that the suite makes has the same answer from plain calls and from rings.
#[test]
fn a_mirror_of_posix_and_io_uring_conforms_and_finds_no_difference() {
    let Some(ring) = uring(|builder| builder.nowait(false)) else { return };
    let scratch = Scratch::new();
    conformance::run(|| {
        let plain: Arc<dyn Env> = Arc::new(PosixEnv::new());
        let sides = [(plain, scratch.dir()), (Arc::clone(&ring), scratch.dir())];
        let [first, second] = sides;
        (Arc::new(MirrorEnv::new(first, second)), PathBuf::new())
    });
    assert_rings_were_used(&ring.report());
}

/// ENV-14: the long run. Files are dropped from the page cache again and again, so that queues
/// meet hits, misses and short prefixes in one batch.
#[test]
fn posix_and_io_uring_agree() {
    let Some(env) = uring(|builder| builder) else { return };
    let scratch = Scratch::new();
    let ring = Side { env: Arc::clone(&env), root: scratch.dir(), on_disk: true };
    mirrored::run(100, [mirrored::posix(BatchReads::Serial, &scratch), ring]);
    assert_rings_were_used(&env.report());
}

/// ENV-14: every write goes through the reactor.
#[test]
fn posix_and_io_uring_writing_through_the_reactor_agree() {
    let Some(env) = uring(|builder| builder.write_path(WritePath::Reactor)) else { return };
    let scratch = Scratch::new();
    let ring = Side { env: Arc::clone(&env), root: scratch.dir(), on_disk: true };
    mirrored::run(40, [mirrored::posix(BatchReads::Serial, &scratch), ring]);
    assert!(env.report().counter("reactor_writes") > 0);
}

/// ENV-14: the other side is memory, this side reads past the page cache through little room.
#[test]
fn memory_and_direct_io_uring_agree() {
    let direct = |builder: IoUringEnvBuilder| {
        builder.direct_reads(true).ring_entries(16).rings(2).max_in_flight(7)
    };
    let Some(env) = uring(direct) else { return };
    if !is_supported("direct reading", &env) {
        return;
    }
    let scratch = Scratch::new();
    let ring = Side { env: Arc::clone(&env), root: scratch.dir(), on_disk: true };
    let memory = Side { env: Arc::new(MemEnv::new()), root: PathBuf::new(), on_disk: false };
    mirrored::run(60, [memory, ring]);
    assert_rings_were_used(&env.report());
}
