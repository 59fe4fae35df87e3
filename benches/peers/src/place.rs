//! Directories of databases: their size, views that share their tables, and the page cache.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use crate::failure::{Result, on_file};

/// Calls `act` with every file below `dir`.
fn each_file(dir: &Path, act: &mut dyn FnMut(&Path) -> io::Result<()>) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|error| on_file("list", dir, error))?;
    for entry in entries {
        let path = entry.map_err(|error| on_file("list", dir, error))?.path();
        if path.is_dir() {
            each_file(&path, act)?;
        } else if path.is_file() {
            act(&path).map_err(|error| on_file("read", &path, error))?;
        }
    }
    Ok(())
}

/// The bytes that the files below `dir` take on the disk: what a file was given ahead of use but
/// never wrote counts too, what it skipped does not.
pub fn size(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    each_file(dir, &mut |path| {
        bytes += path.metadata()?.blocks() * 512;
        Ok(())
    })?;
    Ok(bytes)
}

/// Writes the files below `dir` back and drops them from the page cache.
pub fn drop_from_cache(dir: &Path) -> Result<()> {
    each_file(dir, &mut |path| {
        let file = File::open(path)?;
        file.sync_data()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    })
}

/// Reads the files below `dir` from start to end.
pub fn read_into_cache(dir: &Path) -> Result<()> {
    each_file(dir, &mut |path| io::copy(&mut File::open(path)?, &mut io::sink()).map(|_| ()))
}

/// A directory that is removed when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory; whatever was at `path` is removed.
    pub fn new(path: PathBuf) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|error| on_file("remove", &path, error))?;
        }
        fs::create_dir_all(&path).map_err(|error| on_file("create", &path, error))?;
        Ok(Self(path))
    }

    /// A directory with the files of `database`: its tables, which are never changed, are the
    /// same files under a second name, everything else is copied. So several engines that would
    /// lock each other out read the very same blocks.
    pub fn view(database: &Path, path: PathBuf) -> Result<Self> {
        let view = Self::new(path)?;
        each_file(database, &mut |file| {
            let name = file.strip_prefix(database).expect("it was found below");
            let to = view.0.join(name);
            fs::create_dir_all(to.parent().expect("it is below the view"))?;
            let is_table = file.extension().is_some_and(|end| end == "sst")
                || file.parent().is_some_and(|dir| dir.ends_with("tables"));
            match is_table {
                true => fs::hard_link(file, to),
                false => fs::copy(file, to).map(|_| ()),
            }
        })?;
        Ok(view)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_shares_tables_and_copies_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("database");
        fs::create_dir_all(database.join("inner")).unwrap();
        fs::write(database.join("inner/1.sst"), "table").unwrap();
        fs::write(database.join("CURRENT"), "one").unwrap();
        let view = Scratch::view(&database, dir.path().join("view")).unwrap();
        fs::write(view.path().join("CURRENT"), "two").unwrap();
        assert_eq!(fs::read_to_string(database.join("CURRENT")).unwrap(), "one");
        assert_eq!(fs::read_to_string(view.path().join("inner/1.sst")).unwrap(), "table");
        drop_from_cache(view.path()).unwrap();
        read_into_cache(view.path()).unwrap();
        let path = view.path().to_path_buf();
        drop(view);
        assert!(!path.exists() && database.join("inner/1.sst").exists());
    }
}
