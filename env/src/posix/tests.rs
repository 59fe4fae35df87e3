//! `PosixEnv` on the real kernel, and on a scripted one that answers as real ones sometimes do.

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

use super::{BatchReads, PosixEnv, PosixEnvBuilder};
use crate::sys::KernelSys;
use crate::sys::scripted::ScriptedSys;
use crate::{Access, Buffer, Env, Error, FileKind, RandomAccessFile, Request, Result, read_batch};

mod direct_rw;
mod interrupted;
mod names;
mod reads;
mod writes;

/// An environment on scripted system calls, and a directory to work in.
struct Stage {
    dir: TempDir,
    sys: Arc<ScriptedSys>,
    env: PosixEnv,
}

impl Stage {
    fn new(builder: PosixEnvBuilder) -> Self {
        let sys = ScriptedSys::new(Arc::new(KernelSys));
        let env = PosixEnv::with_sys(Arc::clone(&sys) as _, builder).unwrap();
        Self { dir: TempDir::new().unwrap(), sys, env }
    }

    fn prefetch() -> Self {
        Self::new(PosixEnv::builder())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of `len` bytes of [`pattern`], synced so that its pages can be dropped, and open.
    fn file(&self, name: &str, len: usize) -> Arc<dyn RandomAccessFile> {
        let path = self.path(name);
        std::fs::write(&path, pattern(len)).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        self.env.open(&path, Access::Random).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        let report = self.env.report();
        assert!(report.counters.contains_key(name), "there is no counter {name}");
        report.counter(name)
    }
}

/// The four ways of reading. The direct one needs a file system that offers it; a file that it
/// cannot open is left out by [`open_or_refused`], which asserts a clear error instead.
fn read_modes() -> [(&'static str, PosixEnvBuilder); 4] {
    [
        ("serial", PosixEnv::builder().batch_reads(BatchReads::Serial)),
        ("prefetch", PosixEnv::builder()),
        ("mmap", PosixEnv::builder().mmap_reads(true)),
        ("direct", PosixEnv::builder().direct_reads(true)),
    ]
}

/// The file, or `None` after checking that its file system's refusal of direct I/O is put clearly.
fn open_or_refused(stage: &Stage, name: &str) -> Option<Arc<dyn RandomAccessFile>> {
    match stage.env.open(&stage.path(name), Access::Random) {
        Ok(file) => Some(file),
        Err(error) => {
            assert_eq!(error.kind(), crate::ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("direct I/O"), "{error}");
            None
        }
    }
}

/// Bytes of which no short run occurs twice near by, so that a shifted read shows.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes()[..6]);
    }
    bytes.truncate(len);
    bytes
}

fn read(file: &Arc<dyn RandomAccessFile>, offset: u64, len: usize) -> Request {
    Request::Read { file: Arc::clone(file), offset, len }
}

/// Reads a range singly and through a queue; both must agree.
fn read_both(
    env: &dyn Env,
    file: &Arc<dyn RandomAccessFile>,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    let mut single = vec![0xee; len];
    let single = file.read_exact_at(&mut single, offset).map(|()| single);
    let queued: Result<Buffer> = read_batch(env, vec![read(file, offset, len)]).remove(0);
    match (&single, &queued) {
        (Ok(a), Ok(b)) => assert_eq!(a[..], b[..], "at {offset}, {len} bytes"),
        (Err(a), Err(b)) => assert_eq!((a.kind(), a.path()), (b.kind(), b.path())),
        (a, b) => panic!("at {offset}, {len} bytes: single {a:?}, queued {b:?}"),
    }
    single
}

fn same_failure(error: &Error, first: &Error) -> bool {
    (error.kind(), error.errno(), error.op()) == (first.kind(), first.errno(), first.op())
}

/// Creates a file of one kind and appends the parts.
fn write_file(stage: &Stage, name: &str, kind: FileKind, parts: &[&[u8]]) -> Result<u64> {
    let mut file = stage.env.create(&stage.path(name), kind)?;
    for part in parts {
        file.append(part)?;
    }
    file.finish()
}
