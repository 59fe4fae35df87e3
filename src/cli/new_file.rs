//! A file that appears under its name when it is complete, and otherwise not at all: a command
//! that fails or is interrupted can simply be run again.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, PersistError};

use super::failure::{Failure, Result, absent_directory};
use super::interrupt::{self, Guard, Leftover};

const BUFFER: usize = 256 << 10;

/// A file being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    inner: Inner,
    path: PathBuf,
}

#[derive(Debug)]
enum Inner {
    /// Beside its place, under another name.
    Aside { file: BufWriter<NamedTempFile>, replace: bool, _guard: Guard },
    /// A pipe or a device is written to as it is.
    InPlace(BufWriter<File>),
}

impl NewFile {
    /// Begins a file that must not be there yet.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        Self::aside(path.to_path_buf(), false)
    }

    /// Begins a file that takes the place of the one that may be there.
    pub(crate) fn replace(path: &Path) -> Result<Self> {
        // The file is replaced and not a link to it.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = fs::OpenOptions::new().write(true).open(&path);
            let file = file.map_err(|error| Failure::file("write", &path, &error))?;
            return Ok(Self { inner: Inner::InPlace(BufWriter::new(file)), path });
        }
        Self::aside(path, true)
    }

    fn aside(path: PathBuf, replace: bool) -> Result<Self> {
        let fail = |error: &io::Error| Failure::file("create", &path, error);
        let Some(name) = path.file_name() else {
            return Err(fail(&io::ErrorKind::IsADirectory.into()));
        };
        if let Some(why) = absent_directory(directory(&path), "name another file") {
            return Err(Failure::failed(format!("cannot create {}: {why}", path.display())));
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        // As for any new file, less what the user's umask forbids.
        builder.permissions(Permissions::from_mode(0o666));
        let made = interrupt::make(
            || builder.tempfile_in(directory(&path)),
            |file| Leftover::File(file.path().to_path_buf()),
        );
        let (file, guard) = made.map_err(|error| fail(&error))?;
        let file = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { inner: Inner::Aside { file, replace, _guard: guard }, path })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.inner {
            Inner::Aside { file, .. } => file.write_all(bytes),
            Inner::InPlace(file) => file.write_all(bytes),
        };
        written.map_err(|error| Failure::file("write", &self.path, &error))
    }

    /// Makes the file durable and gives it its name. What took the name meanwhile is kept, unless
    /// it is to be replaced.
    pub(crate) fn finish(self) -> Result<()> {
        let path = self.path;
        let fail = |error: io::Error| Failure::file("write", &path, &error);
        match self.inner {
            Inner::InPlace(mut file) => file.flush().map_err(fail),
            Inner::Aside { file, replace, _guard } => {
                let file = file.into_inner().map_err(|error| fail(error.into_error()))?;
                file.as_file().sync_all().map_err(fail)?;
                let named =
                    if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
                let named = match named {
                    // Some file systems have neither links nor a rename that keeps what is there.
                    Err(PersistError { file, .. }) if path.symlink_metadata().is_err() => {
                        file.persist(&path)
                    }
                    named => named,
                };
                named.map_err(|PersistError { error, .. }| match error.kind() {
                    io::ErrorKind::AlreadyExists => exists(&path),
                    _ => fail(error),
                })?;
                // Not every file system syncs directories; the file itself is durable.
                let _ = File::open(directory(&path)).and_then(|dir| dir.sync_all());
                Ok(())
            }
        }
    }
}

fn exists(path: &Path) -> Failure {
    Failure::failed(format!("{} exists; remove it first or name another file", path.display()))
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_finished_and_otherwise_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut left = NewFile::create(&path).unwrap();
        left.write(b"half").unwrap();
        assert!(!path.exists());
        drop(left);
        assert!(names(dir.path()).is_empty());
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn a_name_that_is_taken_before_or_meanwhile_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let file = NewFile::create(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert!(file.finish().unwrap_err().to_string().contains("out exists"));
        assert!(NewFile::create(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn a_replaced_file_is_the_old_one_until_the_end_and_a_link_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("out"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink("out", &link).unwrap();
        let mut file = NewFile::replace(&link).unwrap();
        file.write(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let mut null = NewFile::replace(Path::new("/dev/null")).unwrap();
        null.write(b"gone").unwrap();
        null.finish().unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }
}
