//! The engine's error: what failed, where, and what the caller can do about it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env as env;

/// The result of every engine call. A missing key is `Ok(None)`, never an error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed engine operation. Cheap to clone: one cause can be reported to many waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment failed; the error names operation, path and cause.
    #[error(transparent)]
    Io(env::Error),

    /// The device or quota is full. Nothing was applied; works again when there is room.
    #[error("no space left: {0}")]
    NoSpace(env::Error),

    /// Bytes on disk are not what was written.
    #[error("corruption: {}{}: {what}", path.display(), at(*offset))]
    Corruption {
        /// The damaged file.
        path: PathBuf,
        /// Where in the file, if known.
        offset: Option<u64>,
        /// What is wrong with it.
        what: Cow<'static, str>,
    },

    /// Another process, or another handle in this one, has the database open.
    #[error("the database is in use: {0}")]
    Locked(env::Error),

    /// An argument or option is out of its range; nothing was done.
    #[error("invalid argument: {0}")]
    InvalidArgument(Cow<'static, str>),

    /// The directory holds something else, or nothing and creation was not allowed.
    #[error("{} is not a Treering database: {what}{}", path.display(), advised(*advice))]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// Why it is not taken for a database.
        what: Cow<'static, str>,
        /// What the program that opened it can do, if it can do something.
        advice: Option<&'static str>,
    },

    /// The file was written by a newer (or unknown) format version.
    #[error("{}: format version {found} is not supported (this build reads up to {supported}); \
             open it with a newer Treering", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version it carries.
        found: u32,
        /// The newest version this build reads.
        supported: u32,
    },

    /// A file that the database needs is not there.
    #[error(
        "{} is missing, though the database needs it; restore the whole directory from one copy",
        .0.display()
    )]
    MissingFile(PathBuf),

    /// The column family was dropped.
    #[error("the column family with id {id} was dropped")]
    FamilyDropped {
        /// The family's id, which no other family of the database ever gets.
        id: u32,
    },

    /// The database handle was closed.
    #[error("the database is closed")]
    Closed,

    /// The operation cannot run now; try again later.
    #[error("busy: {0}")]
    Busy(Cow<'static, str>),

    /// A user's callback failed or panicked.
    #[error("callback {name}: {message}")]
    Callback {
        /// The callback's name.
        name: String,
        /// What it said.
        message: String,
    },

    /// The log failed while it held writes in memory that had been acknowledged as
    /// [`Durability::Buffered`](crate::Durability::Buffered): the latest of them may be gone at
    /// the next open.
    #[error(
        "{cause}; up to {writes} earlier writes that were acknowledged as buffered may be lost"
    )]
    BufferedLost {
        /// How many writes were in memory.
        writes: u64,
        /// What failed.
        cause: Arc<Error>,
    },

    /// An earlier log or manifest failure stopped all writes; reads go on. Reopen to recover.
    #[error("writes stopped by an earlier error: {0}")]
    Poisoned(Arc<Error>),
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

fn advised(advice: Option<&str>) -> String {
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

impl Error {
    /// Damage in `path` at `offset`.
    pub(crate) fn corruption(
        path: &Path,
        offset: impl Into<Option<u64>>,
        what: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Corruption { path: path.to_path_buf(), offset: offset.into(), what: what.into() }
    }

    /// An argument out of its range.
    pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidArgument(what.into())
    }

    /// A handle to a column family of another open database than the one it was given to.
    pub(crate) fn foreign_family() -> Self {
        Self::invalid("the column family belongs to another open database")
    }

    /// A failed read of a file whose recorded end lies beyond it: an unexpected end is damage
    /// there, everything else stays what it was.
    pub(crate) fn from_read(error: env::Error) -> Self {
        if error.kind() == env::ErrorKind::UnexpectedEof {
            let what = "the file ends before its recorded end";
            return Self::corruption(error.path(), error.offset(), what);
        }
        Self::from(error)
    }
}

impl From<env::Error> for Error {
    fn from(error: env::Error) -> Self {
        match error.kind() {
            env::ErrorKind::NoSpace => Self::NoSpace(error),
            env::ErrorKind::Locked => Self::Locked(error),
            // Only files of the database are opened: whoever put this there took one away.
            env::ErrorKind::NotAFile if error.op() == "open" => {
                let what = match error.errno() {
                    Some(_) => {
                        "a directory stands in its place; restore the whole database from one copy"
                    }
                    None => "a named pipe, socket or device stands in its place",
                };
                Self::corruption(error.path(), None, what)
            }
            _ => Self::Io(error),
        }
    }
}
