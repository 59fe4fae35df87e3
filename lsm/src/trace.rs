//! What a database tells the program's `tracing` subscriber, with the feature of that name: what an
//! open recovered, jobs that end, writes that are held back, and the failure that ends writing.
//! Without the feature these functions do nothing.
//!
//! Nothing is told of single operations, nor under the state lock. `docs/tuning.md` lists the
//! events.

use std::path::Path;
use std::time::Duration;

use crate::{Error, RecoveryReport};

/// One event; values are shown as they display.
macro_rules! tell {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)*) => {{
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "treering_lsm", tracing::Level::$level, $($name = %$value,)* $message
        );
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = &$value;)*
        }
    }};
}

/// An open has come to its end.
pub(crate) fn opened(path: &Path, report: &RecoveryReport) {
    if report.created {
        return tell!(INFO, "a database is created", path = path.display());
    }
    for cut in &report.cuts {
        tell!(
            WARN,
            "the end of a file is left out",
            path = cut.path.display(),
            offset = cut.offset,
            bytes = cut.dropped_bytes,
            reason = cut.reason
        );
    }
    tell!(
        INFO,
        "a database is open",
        path = path.display(),
        segments = report.segments,
        records = report.records,
        operations = report.operations,
        tables = report.tables,
        removed_files = report.removed_files
    );
}

/// A memtable is in a table, or had nothing for one.
pub(crate) fn flushed(family: u32, bytes: u64) {
    tell!(DEBUG, "a memtable is flushed", family = family, bytes = bytes);
}

/// A compaction has replaced tables.
pub(crate) fn compacted(tables: usize, read: u64, written: u64) {
    tell!(DEBUG, "tables are compacted", tables = tables, read = read, written = written);
}

/// A flush or compaction failed; it is tried again. One that gave up for a close did not fail.
pub(crate) fn job_failed(job: &str, error: &Error) {
    if matches!(error, Error::Closed) {
        return;
    }
    tell!(WARN, "a job failed", job = job, error = error);
}

/// The first failure of the log or the manifest.
pub(crate) fn poisoned(path: &Path, error: &Error) {
    tell!(
        ERROR,
        "writing has ended until the database is opened again",
        path = path.display(),
        error = error
    );
}

/// A write was held back until jobs caught up, or was refused with this error. One that a close
/// ended, or that found that it need not wait after all, was neither.
pub(crate) fn held_back(waited: Duration, refused: Option<&Error>) {
    if matches!(refused, Some(Error::Closed)) || refused.is_none() && waited.is_zero() {
        return;
    }
    let refused = refused.is_some();
    tell!(WARN, "a write was held back", waited_ms = waited.as_millis(), refused = refused);
}
