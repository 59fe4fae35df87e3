//! How a command ends: the exit codes, and errors that say what to do.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::Error;

/// The exit codes, as printed by `--help` and in the README.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done; everything asked for was there
  1  no: a key was not found, an import skipped lines, a benchmark left an environment out
  2  the command line is wrong; nothing was done
  3  the command failed; the message says why and what to do
  4  damage: bytes on disk are not what was written, or a file is missing
  130, 143  interrupted by Ctrl-C, ended by SIGTERM; unfinished files were removed, and of an
            import the batches that were stored stay, as many as it says

get, scan, multi-get, export and stats write when they open a database (they make tables of its
log). Where it cannot be written, on a read-only or full disk or as another user, they say so and
read it as it is; the others fail. verify and dump never write.";

/// How a command ends when it does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done and found.
    Done,
    /// The answer is no.
    No,
    /// Damage was found and reported.
    Damaged,
}

impl Exit {
    /// The process's exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Damaged => 4,
        }
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for something that makes no sense.
    Usage(String),
    /// Something went wrong; the message says what.
    Failed(String),
    /// Bytes on disk are damaged.
    Damaged(String),
    /// The reader of our output went away: nothing is left to do or to say.
    OutputClosed,
}

/// The result of a command or a part of one.
pub(crate) type Result<T = Exit> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure described by `message`.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// A wrong command line, described by `message`.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// A file of the user's (not of the database) that cannot be used.
    pub(crate) fn file(verb: &str, path: &Path, error: &io::Error) -> Self {
        Self::system(format_args!("cannot {verb} {}", path.display()), error)
    }

    /// A file to be read that `place`, an option or an argument, names.
    pub(crate) fn input(place: &str, path: &Path, error: &io::Error) -> Self {
        let what = format!("cannot read {}: {}", path.display(), cause(error));
        match error.kind() {
            io::ErrorKind::NotFound => Self::Failed(format!(
                "{what}\n  check the path that {place} names; `-` stands for standard input"
            )),
            _ => Self::Failed(advised(what, remedy(error))),
        }
    }

    /// What the system refused, why, and what helps.
    pub(crate) fn system(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::Failed(advised(format!("{what}: {}", cause(error)), remedy(error)))
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Usage(_) => 2,
            Self::Failed(_) => 3,
            Self::Damaged(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Damaged(message) => {
                f.write_str(message)
            }
            Self::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = match &error {
            // What the library's caller would set is not the command line's to set.
            Error::NotADatabase { path, what, .. } => {
                format!("{} is not a Treering database: {what}", path.display())
            }
            error => error.to_string(),
        };
        let message = advised(text, advice(&error));
        match error {
            Error::Corruption { .. } | Error::MissingFile(_) => Self::Damaged(message),
            _ => Self::Failed(message),
        }
    }
}

impl From<crate::env::Error> for Failure {
    fn from(error: crate::env::Error) -> Self {
        Self::from(Error::from(error))
    }
}

/// A failed write to standard output. Readers such as `head` close it early and mean no harm.
pub(crate) fn output_failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::system("cannot write the output", error),
    }
}

/// A message with what to do, if that is known, on a line of its own.
fn advised(message: String, advice: Option<&str>) -> String {
    match advice {
        Some(advice) => format!("{message}\n  {advice}"),
        None => message,
    }
}

/// What to say where something is to be made in a directory that is not there. Of one that may not
/// be looked into nothing is known.
pub(crate) fn absent_directory(dir: &Path, instead: &str) -> Option<String> {
    matches!(dir.try_exists(), Ok(false))
        .then(|| format!("there is no directory {}\n  make it first, or {instead}", dir.display()))
}

/// An error without the path that `tempfile` adds: one of a file that nobody has named.
fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}

/// What helps against an error of the system.
fn remedy(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    let none_left = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    if none_left.contains(&error.raw_os_error()) {
        return Some(
            "allow more open files (`ulimit -n 1024`, or LimitNOFILE= of a service), or use --env \
             posix, which needs fewer",
        );
    }
    Some(match error.kind() {
        Kind::NotFound => "check the path",
        Kind::NotADirectory => "a part of the path is a file: check the path",
        Kind::IsADirectory => "it is a directory: name a file",
        Kind::PermissionDenied => "check who owns it and who may use it (`ls -ld`)",
        Kind::ReadOnlyFilesystem => "the disk is read-only: name another place, or remount it",
        Kind::StorageFull | Kind::QuotaExceeded => "make room on that file system, then try again",
        Kind::FileTooLarge => {
            "the size of files is limited here: raise it (`ulimit -f unlimited`, or LimitFSIZE= of \
             a service)"
        }
        Kind::Unsupported => "try another file system",
        _ => return None,
    })
}

fn advice(error: &Error) -> Option<&'static str> {
    use crate::env::ErrorKind;
    Some(match error {
        Error::Locked(_) => {
            "one process at a time can open a database: stop the other one, then try again"
        }
        Error::NotADatabase { path, .. } if path.metadata().is_ok_and(|found| !found.is_dir()) => {
            "a database is a directory: name one, or one that is not there to create it"
        }
        Error::NotADatabase { .. } => {
            "check the path; `treering put` and `treering import` create a database"
        }
        Error::Corruption { .. } => {
            "`treering verify DATABASE` lists every damaged place; restore the whole directory from \
             one copy: every open replaces files, so those of different times do not fit together"
        }
        Error::Poisoned(_) => "fix the cause, then run the command again: opening recovers",
        Error::NoSpace(_) => "make room on that file system, then try again; nothing was lost",
        Error::Io(cause) if cause.kind() == ErrorKind::Unsupported => {
            "try another file system, or another --env"
        }
        Error::Io(cause) => match (cause.errno(), cause.kind()) {
            (Some(errno), _) => return remedy(&io::Error::from_raw_os_error(errno)),
            (None, ErrorKind::NotFound) => return remedy(&io::ErrorKind::NotFound.into()),
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_has_an_exit_code_of_its_own_and_names_file_and_offset() {
        let error = Error::Corruption {
            path: "db/000007.sst".into(),
            offset: Some(8192),
            what: "block checksum".into(),
        };
        let failure = Failure::from(error);
        assert_eq!(failure.code(), 4);
        assert!(failure.to_string().contains("db/000007.sst at offset 8192: block checksum"));
        assert!(failure.to_string().contains("treering verify"));
    }

    #[test]
    fn a_closed_output_is_no_failure_of_ours() {
        let closed = output_failure(&io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.code(), 0);
        let full = output_failure(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.code(), 3);
        let said = full.to_string();
        assert!(said.contains("make room") && !said.contains("lost"), "{said}");
    }

    #[test]
    fn only_a_directory_that_is_not_there_is_called_absent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(absent_directory(dir.path(), "go home"), None);
        let absent = dir.path().join("absent");
        let said = absent_directory(&absent, "go home").unwrap();
        assert!(
            said.contains(&*absent.to_string_lossy()) && said.ends_with("or go home"),
            "{said}"
        );
    }
}
