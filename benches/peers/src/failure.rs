//! Errors of this program: each ends as one message to a person.

use std::path::Path;

/// What went wrong, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A result of this program.
pub type Result<T> = std::result::Result<T, Failure>;

/// Says what was being done, and to which file, when `error` came.
pub fn on_file(doing: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    format!("cannot {doing} {}: {error}", path.display()).into()
}
