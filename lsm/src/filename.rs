//! The names of a database's files, made from numbers and parsed back to numbers.
//!
//! A name is never joined from file content: a number read from disk is turned into a name here,
//! and a name found in the directory into a number, or it is foreign and left alone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The largest number in the name of a file that may be ours. No counter comes so far, and the
/// format has numbers beyond it, so that a stray name cannot use up the numbers that are left.
pub(crate) const MAX_NUMBER: u64 = 1 << 55;

/// A file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FileName {
    /// `000012.log`: a write-ahead log segment.
    Log(u64),
    /// `000012.sst`: a table.
    Table(u64),
    /// `MANIFEST-000012`.
    Manifest(u64),
    /// `CURRENT`: names the manifest.
    Current,
    /// `CURRENT.tmp`: the next `CURRENT` before its rename.
    CurrentTemp,
    /// `LOCK`: held while the database is open.
    Lock,
}

impl FileName {
    /// The file's path in `dir`.
    pub(crate) fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }

    /// The file's name.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Log(number) => format!("{number:06}.log"),
            Self::Table(number) => format!("{number:06}.sst"),
            Self::Manifest(number) => format!("MANIFEST-{number:06}"),
            Self::Current => "CURRENT".to_owned(),
            Self::CurrentTemp => "CURRENT.tmp".to_owned(),
            Self::Lock => "LOCK".to_owned(),
        }
    }

    /// The file that `name` stands for; `None` for a foreign name, which is never touched. A
    /// number that no counter reaches makes a name foreign.
    pub(crate) fn parse(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        let parsed = match name {
            "CURRENT" => Self::Current,
            "CURRENT.tmp" => Self::CurrentTemp,
            "LOCK" => Self::Lock,
            _ => {
                if let Some(digits) = name.strip_suffix(".log") {
                    Self::Log(number(digits)?)
                } else if let Some(digits) = name.strip_suffix(".sst") {
                    Self::Table(number(digits)?)
                } else {
                    Self::Manifest(number(name.strip_prefix("MANIFEST-")?)?)
                }
            }
        };
        // Only the one spelling that we write counts: `12.log` and `+00012.log` are foreign.
        (parsed.name() == name).then_some(parsed)
    }
}

fn number(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|number| (1..=MAX_NUMBER).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_the_numbers_they_were_made_from() {
        for number in [1, 999_999, 1_000_000, MAX_NUMBER] {
            for file in [FileName::Log(number), FileName::Table(number), FileName::Manifest(number)]
            {
                assert_eq!(FileName::parse(OsStr::new(&file.name())), Some(file));
            }
        }
        for file in [FileName::Current, FileName::CurrentTemp, FileName::Lock] {
            assert_eq!(FileName::parse(OsStr::new(&file.name())), Some(file));
        }
    }

    #[test]
    fn foreign_names_are_nobody_s_file() {
        for name in [
            "",
            "._000012.sst",
            "notes.txt",
            "000012.sst.bak",
            "12.log",
            "0000012.log",
            "+00012.log",
            "-00012.log",
            ".log",
            "MANIFEST-",
            "MANIFEST-x",
            "current",
            "000018446744073709551616.log",
            "000000.log",
            "36028797018963969.sst",
            "MANIFEST-18446744073709551615",
        ] {
            assert_eq!(FileName::parse(OsStr::new(name)), None, "{name}");
        }
    }
}
