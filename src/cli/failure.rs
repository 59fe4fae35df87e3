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
            import the batches that were stored stay";

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
        Self::Failed(format!("cannot {verb} {}: {error}", path.display()))
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
        let message = match advice(&error) {
            Some(advice) => format!("{text}\n  {advice}"),
            None => text,
        };
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
        _ => Failure::Failed(format!("cannot write the output: {error}")),
    }
}

fn no_descriptors(errno: i32) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|none_left| none_left.raw_os_error() == errno)
}

fn advice(error: &Error) -> Option<&'static str> {
    use crate::env::ErrorKind;
    Some(match error {
        Error::Locked(_) => {
            "one process at a time can open a database: stop the other one, then try again"
        }
        Error::NotADatabase { .. } => {
            "check the path; `treering put` and `treering import` create a database"
        }
        Error::NoSpace(_) => "make room on that file system, then try again; nothing was lost",
        Error::Corruption { .. } => {
            "`treering verify DATABASE` lists every damaged place; restore the file from a copy"
        }
        Error::Poisoned(_) => "fix the cause, then run the command again: opening recovers",
        Error::Io(cause) if cause.errno().is_some_and(no_descriptors) => {
            "allow more open files (`ulimit -n 1024`, or LimitNOFILE= of a service), or use --env \
             posix, which needs fewer"
        }
        Error::Io(cause) => match cause.kind() {
            ErrorKind::NotFound => "check the path",
            ErrorKind::Denied => "check who owns the files and whether the disk is read-only",
            ErrorKind::Unsupported => "try another file system, or another --env",
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
    }
}
