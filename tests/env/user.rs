//! An environment as a user would write it: a wrapper with the required methods only.

use std::path::Path;
use std::sync::Arc;

use treering_env::{
    Access, DirEntry, Env, EnvReport, FileKind, FileLock, MemEnv, Metadata, RandomAccessFile,
    RandomRwFile, Request, Result, WritableFile, read_batch,
};

/// Forwards everything but `queue`, which stays the default, and wraps the files it opens.
#[derive(Debug)]
pub(crate) struct UserEnv {
    inner: Arc<dyn Env>,
}

impl UserEnv {
    pub(crate) fn new(inner: Arc<dyn Env>) -> Self {
        Self { inner }
    }
}

#[derive(Debug)]
struct UserFile {
    inner: Arc<dyn RandomAccessFile>,
}

impl RandomAccessFile for UserFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_exact_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

impl Env for UserEnv {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let inner = self.inner.open(path, access)?;
        Ok(Arc::new(UserFile { inner }))
    }

    fn open_rw(&self, path: &Path) -> Result<Arc<dyn RandomRwFile>> {
        self.inner.open_rw(path)
    }

    fn create(&self, path: &Path, kind: FileKind) -> Result<Box<dyn WritableFile>> {
        self.inner.create(path, kind)
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        self.inner.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.inner.free_space(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        self.inner.lock(path)
    }

    fn report(&self) -> EnvReport {
        let mut report = self.inner.report();
        report.fact("queue", "serial", Some("this wrapper does not forward queues".into()));
        report
    }
}

/// ENV-11: right, one deep, and `report()` says so.
#[test]
fn a_wrapper_without_a_queue_of_its_own_reads_right_through_its_own_files() {
    let env = UserEnv::new(Arc::new(MemEnv::new()));
    let mut file = env.create(Path::new("f"), FileKind::Table).unwrap();
    file.append(&[3; 1000]).unwrap();
    file.finish().unwrap();
    let file = env.open(Path::new("f"), Access::Random).unwrap();
    let before = env.report();
    let request = Request::Read { file, offset: 10, len: 100 };
    for result in read_batch(&env, vec![request; 20]) {
        assert_eq!(*result.unwrap(), [3; 100]);
    }
    let report = env.report();
    assert_eq!(report.since(&before).counter("reads"), 20, "one read for each request");
    assert!(report.to_string().contains("serial"), "{report}");
}
