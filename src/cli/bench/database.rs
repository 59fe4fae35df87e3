//! The database that all environments read: built once, fully compacted, and moved into or out
//! of the page cache before a run.

use std::fs::{self, File};
use std::io;
use std::ops::RangeFull;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::data::Data;
use crate::cli::failure::{Failure, Result, absent_directory};
use crate::cli::interrupt::{self, Guard, Leftover, on_interrupt};
use crate::{CfOptions, Compression, Db, Durability, Options, PosixEnv, WriteBatch, WriteOptions};

/// Entries in one batch while building.
const BUILD_BATCH: u64 = 1000;

/// Where the benchmark keeps its databases.
#[derive(Debug)]
pub(crate) enum Place {
    /// A directory of the user's; the database stays for the next time.
    Kept(PathBuf),
    /// A new directory, removed at the end.
    Temporary {
        /// The directory.
        dir: TempDir,
        /// While it is there.
        _guard: Guard,
    },
}

impl Place {
    /// The user's directory, or a new one in the working directory: the system's temporary
    /// directory is often in memory, where nothing can be cold.
    pub(crate) fn new(dir: Option<&Path>) -> Result<Self> {
        if let Some(dir) = dir {
            fs::create_dir_all(dir).map_err(|error| {
                let what = format!("cannot create {}, which --dir names", dir.display());
                Failure::system(what, &error)
            })?;
            return Ok(Self::Kept(dir.to_path_buf()));
        }
        Self::temporary(None)
    }

    /// A new directory in `parent`, or in the working directory.
    pub(crate) fn temporary(parent: Option<&Path>) -> Result<Self> {
        let here = parent.unwrap_or(Path::new("."));
        let made = interrupt::make(
            || tempfile::Builder::new().prefix("treering-bench-").tempdir_in(here),
            |dir| Leftover::Tree(dir.path().to_path_buf()),
        );
        let (dir, guard) = made.map_err(|error| match parent {
            Some(parent) => match absent_directory(parent, "name another place with --dir") {
                Some(absent) => Failure::failed(absent),
                None => Failure::file("create a directory in", parent, &error),
            },
            None => Failure::failed(format!(
                "cannot create a directory here: {error}\n  name a place with --dir"
            )),
        })?;
        Ok(Self::Temporary { dir, _guard: guard })
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Kept(dir) => dir,
            Self::Temporary { dir, .. } => dir.path(),
        }
    }
}

/// The options every benchmark database is opened with. Values cannot be compressed, so
/// compression would only cost.
pub(crate) fn options(block_cache: u64) -> Options {
    Options {
        block_cache_size: usize::try_from(block_cache).unwrap_or(usize::MAX),
        cf: CfOptions { compression: Compression::None, ..CfOptions::default() },
        ..Options::default()
    }
}

/// The database of this data set in `place`, built if it is not there. `note` is told what is
/// being done.
pub(crate) fn prepare(
    place: &Path,
    seed: u64,
    data: Data,
    value_size: u64,
    note: impl Fn(&str),
) -> Result<PathBuf> {
    let keys = data.len();
    let name = format!("treering-bench-db-{keys}-{value_size}-{seed}");
    let path = place.join(&name);
    // Written when the database is complete; another version may have built it another way.
    let marker = place.join(format!("{name}.complete"));
    if path.is_dir() && fs::read(&marker).is_ok_and(|text| text == MARK.as_bytes()) {
        note("using the database that is there");
        return Ok(path);
    }
    if path.exists() {
        fs::remove_dir_all(&path).map_err(|error| Failure::file("remove", &path, &error))?;
    }
    note(&format!("building a database of {keys} keys"));
    let building = on_interrupt(Leftover::Tree(path.clone()));
    build(&path, data)?;
    drop(building);
    fs::write(&marker, MARK).map_err(|error| Failure::file("write", &marker, &error))?;
    Ok(path)
}

const MARK: &str = concat!("treering ", env!("CARGO_PKG_VERSION"), "\n");

fn build(path: &Path, data: Data) -> Result<()> {
    let env = std::sync::Arc::new(PosixEnv::new());
    let db = Db::open(env, path, options(0))?;
    let unsynced = WriteOptions { durability: Some(Durability::Buffered) };
    let mut value = Vec::new();
    let mut next = 0;
    while next < data.len() {
        let end = data.len().min(next + BUILD_BATCH);
        let mut batch = WriteBatch::new();
        for index in next..end {
            data.value(index, &mut value);
            batch.put(data.key(index), &value);
        }
        db.write_opt(batch, &unsynced)?;
        next = end;
    }
    db.flush()?;
    db.compact_range::<Vec<u8>>(RangeFull)?;
    db.wait_for_compact()?;
    Ok(db.close()?)
}

/// What moving a database into or out of the page cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Writes the files of `dir` back and drops them from the page cache.
pub(crate) fn drop_from_cache(dir: &Path) -> Result<Moved> {
    each_file(dir, |file| {
        file.sync_data()?;
        Ok(fadvise(file, 0, None, Advice::DontNeed)?)
    })
}

/// Reads the files of `dir` from start to end.
pub(crate) fn read_into_cache(dir: &Path) -> Result<Moved> {
    each_file(dir, |file| io::copy(&mut &*file, &mut io::sink()).map(|_| ()))
}

fn each_file(dir: &Path, act: impl Fn(&File) -> io::Result<()>) -> Result<Moved> {
    let mut moved = Moved::default();
    let fail = |error: io::Error| Failure::file("list", dir, &error);
    for entry in fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let mut visit = || {
            // Asked before it is opened: opening a named pipe would wait for its other end.
            let metadata = path.metadata()?;
            if metadata.is_file() {
                act(&File::open(&path)?)?;
                moved.files += 1;
                moved.bytes += metadata.len();
            }
            Ok(())
        };
        visit().map_err(|error| Failure::file("read", &path, &error))?;
    }
    Ok(moved)
}

/// The bytes of the tables in `dir`.
pub(crate) fn table_bytes(dir: &Path) -> Result<u64> {
    let fail = |error: io::Error| Failure::file("list", dir, &error);
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if Path::new(&entry.file_name()).extension().is_some_and(|end| end == "sst") {
            bytes += entry.metadata().map_err(fail)?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_a_directory_counts_its_files_and_leaves_them_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), vec![7; 10_000]).unwrap();
        fs::write(dir.path().join("b"), b"").unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        let all = Moved { files: 2, bytes: 10_000 };
        assert_eq!(drop_from_cache(dir.path()).unwrap(), all);
        assert_eq!(read_into_cache(dir.path()).unwrap(), all);
        fs::write(dir.path().join("inner.sst"), b"12345").unwrap();
        assert_eq!(table_bytes(dir.path()).unwrap(), 5);
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), vec![7; 10_000]);
        assert!(drop_from_cache(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn a_temporary_place_is_gone_afterwards() {
        let kept = tempfile::tempdir().unwrap();
        let inner = kept.path().join("a/b");
        assert_eq!(Place::new(Some(&inner)).unwrap().path(), inner);
        assert!(inner.is_dir());
        let place = Place::new(None).unwrap();
        let path = place.path().to_path_buf();
        assert!(path.is_dir());
        drop(place);
        assert!(!path.exists());
    }
}
