//! The conformance suite on every environment, and on wrappers over them (ENV-11).

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use treering_env::{
    Access, BatchReads, CountEnv, Env, ErrorKind, FaultEnv, MemEnv, MirrorEnv, PosixEnv,
    PosixEnvBuilder, conformance,
};

use crate::scratch::Scratch;
use crate::user::UserEnv;

/// Runs the suite on one environment over real directories.
pub(crate) fn run_on_disk(env: &Arc<dyn Env>) {
    let scratch = Scratch::new();
    conformance::run(|| (Arc::clone(env), scratch.dir()));
}

/// Runs the suite on an environment made afresh over memory for each case.
fn run_in_memory<E: Env + 'static>(wrap: impl Fn(Arc<dyn Env>) -> E) {
    conformance::run(|| (Arc::new(wrap(Arc::new(MemEnv::new()))), PathBuf::new()));
}

fn posix(change: impl FnOnce(PosixEnvBuilder) -> PosixEnvBuilder) -> Arc<dyn Env> {
    Arc::new(change(PosixEnv::builder()).build().expect("the options go together"))
}

/// Whether the scratch file system offers what `env` needs; says so if it does not.
pub(crate) fn is_supported(what: &str, env: &Arc<dyn Env>) -> bool {
    let dir = Scratch::new();
    let path = dir.dir().join("probe");
    std::fs::write(&path, b"x").expect("the scratch directory can be written");
    match env.open(&path, Access::Random) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            skipped(&format!("{what} is not offered by the file system of {}", path.display()));
            false
        }
        _ => true,
    }
}

/// Says that something was not tested here. Written past the test harness, which would hide it.
pub(crate) fn skipped(why: &str) {
    let said = writeln!(std::io::stderr(), "SKIPPED: {why}");
    said.expect("standard error can be written");
}

#[test]
fn mem_env_conforms() {
    conformance::run(|| (Arc::new(MemEnv::new()), PathBuf::new()));
}

#[test]
fn posix_env_with_serial_queues_conforms() {
    run_on_disk(&posix(|builder| builder.batch_reads(BatchReads::Serial)));
}

#[test]
fn posix_env_with_prefetching_queues_conforms() {
    run_on_disk(&posix(|builder| builder.batch_reads(BatchReads::Prefetch)));
}

#[test]
fn posix_env_with_mapped_reads_conforms() {
    run_on_disk(&posix(|builder| builder.mmap_reads(true)));
}

#[test]
fn posix_env_with_direct_reads_conforms() {
    let env = posix(|builder| builder.direct_reads(true));
    if is_supported("direct reading", &env) {
        run_on_disk(&env);
    }
}

#[test]
fn posix_env_with_direct_writes_conforms() {
    let probe = posix(|builder| builder.direct_reads(true));
    if is_supported("direct writing", &probe) {
        run_on_disk(&posix(|builder| builder.direct_writes(true)));
    }
}

/// ENV-20
#[test]
fn posix_env_with_direct_files_in_place_conforms_and_so_do_wrappers_over_it() {
    let probe = posix(|builder| builder.direct_reads(true));
    if is_supported("direct writing in place", &probe) {
        let env = posix(|builder| builder.direct_rw(true));
        run_on_disk(&env);
        run_on_disk(&(Arc::new(CountEnv::new(Arc::clone(&env))) as Arc<dyn Env>));
        run_on_disk(&(Arc::new(FaultEnv::new(env)) as Arc<dyn Env>));
    }
}

/// ENV-11
#[test]
fn wrappers_over_memory_conform() {
    run_in_memory(CountEnv::new);
    run_in_memory(FaultEnv::new);
    run_in_memory(FaultEnv::holding);
    run_in_memory(|inner| CountEnv::new(Arc::new(CountEnv::new(inner))));
    run_in_memory(UserEnv::new);
}

/// ENV-11
#[test]
fn wrappers_over_posix_conform() {
    let env: Arc<dyn Env> = Arc::new(PosixEnv::new());
    let fault: Arc<dyn Env> = Arc::new(FaultEnv::new(Arc::clone(&env)));
    run_on_disk(&(Arc::new(CountEnv::new(fault)) as Arc<dyn Env>));
    run_on_disk(&(Arc::new(FaultEnv::holding(Arc::clone(&env))) as Arc<dyn Env>));
    run_on_disk(&(Arc::new(UserEnv::new(env)) as Arc<dyn Env>));
}

/// ENV-11: every call that the suite makes has the same answer in memory and on disk.
#[test]
fn a_mirror_of_memory_and_posix_conforms_and_finds_no_difference() {
    let scratch = Scratch::new();
    conformance::run(|| {
        let memory: Arc<dyn Env> = Arc::new(MemEnv::new());
        let disk: Arc<dyn Env> = Arc::new(PosixEnv::new());
        let mirror = MirrorEnv::new((memory, PathBuf::new()), (disk, scratch.dir()));
        (Arc::new(mirror), PathBuf::new())
    });
}
