//! Looks into the files of a database that nobody has open: [`verify`] reads everything and
//! reports every damage, [`dump`] tells what is in one file. Neither changes anything.

mod dump;
mod file;
mod item;
mod records;
mod table;
mod verify;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::Env;

pub use self::item::{Field, Item};
use crate::{Error, Result};

/// What [`verify`] went over and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Data blocks of tables and records of logs and the manifest, damaged ones included.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Everything that is wrong. Empty: every answer of the database is the one that was written.
    pub damages: Vec<Damage>,
    /// Where the newest log or the manifest ends in a write that never finished, as a power loss
    /// leaves it. The next open cuts it off. Damage to the very last synced write that nothing
    /// after it witnesses looks the same.
    pub tails: Vec<Damage>,
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in it, if known.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// If the place is in a data block of a table, or nothing of the table can be read: no key
    /// below the first or above the second is concerned.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
}

impl Damage {
    /// What `error`, met in `path`, says.
    fn new(path: &Path, error: &Error) -> Self {
        let (path, offset, what) = match error {
            Error::Corruption { path, offset, what } => (path.as_path(), *offset, what.to_string()),
            Error::MissingFile(path) => (path.as_path(), None, "the file is missing".to_owned()),
            Error::Io(error) => (error.path(), error.offset(), error.to_string()),
            other => (path, None, other.to_string()),
        };
        Self { path: path.to_path_buf(), offset, what, keys: None }
    }
}

/// Reads the whole database in the directory `path`: `CURRENT`, every record of the manifest and of
/// the logs that are still needed, every block of every table that the manifest names.
///
/// Each damage is reported, a failed read among them, and the reading goes on with the next place
/// that can be told apart. Files that the database does not need are passed over. Takes the
/// database's lock if the environment lets it, so an open one is refused with [`Error::Locked`].
///
/// # Errors
/// Only if there is nothing to verify, or it cannot be looked at: [`Error::NotADatabase`],
/// [`Error::Locked`], [`Error::UnsupportedVersion`], a directory that cannot be listed.
pub fn verify(env: Arc<dyn Env>, path: impl AsRef<Path>) -> Result<VerifyReport> {
    verify::verify(env, path.as_ref())
}

/// Gives what is in the file `file`, a log segment, manifest, table or `CURRENT`, to `sink` item by
/// item, at most `limit` records or entries of it. In the text of an item keys and values are
/// quoted, bytes that are not printable ASCII escaped, long ones shortened; its fields hold them
/// whole. `sink` returns whether it wants more.
///
/// # Errors
/// Damage is an error, after the items of everything before it; so is a file that is none of
/// these kinds.
#[expect(clippy::needless_pass_by_value, reason = "every way in takes the environment like this")]
pub fn dump(
    env: Arc<dyn Env>,
    file: impl AsRef<Path>,
    limit: u64,
    sink: &mut dyn FnMut(&Item<'_>) -> bool,
) -> Result<()> {
    dump::dump(&*env, file.as_ref(), limit, sink)
}
