//! Standard output: buffered, and closed by its reader without harm.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde_json::Value;

use super::failure::{Result, output_failure};

/// Standard output. What was written appears at the latest with [`Output::finish`].
pub(crate) struct Output {
    inner: BufWriter<StdoutLock<'static>>,
}

impl Output {
    /// Locks standard output for the command.
    pub(crate) fn new() -> Self {
        Self { inner: BufWriter::with_capacity(64 << 10, io::stdout().lock()) }
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.write_all(bytes).map_err(|error| output_failure(&error))
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> Result<()> {
        writeln!(self.inner, "{text}").map_err(|error| output_failure(&error))
    }

    /// Writes text that brings its own line ends.
    pub(crate) fn text(&mut self, text: &impl std::fmt::Display) -> Result<()> {
        write!(self.inner, "{text}").map_err(|error| output_failure(&error))
    }

    /// Writes a JSON value on one line.
    pub(crate) fn json_line(&mut self, value: &Value) -> Result<()> {
        self.line(value)
    }

    /// Writes a JSON value for people: one field a line.
    pub(crate) fn json(&mut self, value: &Value) -> Result<()> {
        self.line(format_args!("{value:#}"))
    }

    /// Hands everything to the system.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.inner.flush().map_err(|error| output_failure(&error))
    }
}

/// Writes a line to standard error. A closed standard error is nobody's problem.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether standard error is a terminal, where progress may be shown.
pub(crate) fn talks_to_a_terminal() -> bool {
    io::stderr().is_terminal()
}
