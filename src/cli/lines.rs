//! Lines of bytes from a file or standard input, numbered, with a limit on their length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::failure::{Failure, Result};
use crate::MAX_VALUE_SIZE;

/// The longest line taken: the longest value and key the engine takes, and room for escapes.
pub(crate) const MAX_LINE: usize = MAX_VALUE_SIZE + (1 << 20);

/// One line without its line feed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The bytes.
    Bytes(&'a [u8]),
    /// The line is longer than the limit; it was passed over.
    TooLong,
}

/// A source of lines.
pub(crate) struct Lines {
    name: PathBuf,
    inner: Box<dyn BufRead>,
    total: Option<u64>,
    limit: usize,
    buffer: Vec<u8>,
    number: u64,
    read: u64,
}

impl Lines {
    /// Opens a file that `place`, an option or an argument, names; standard input for `-`.
    pub(crate) fn open(place: &str, path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::new("standard input", Box::new(io::stdin().lock()), None, MAX_LINE));
        }
        let fail = |error| Failure::input(place, path, &error);
        let file = File::open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        let total = metadata.is_file().then_some(metadata.len());
        let reader = BufReader::with_capacity(256 << 10, file);
        Ok(Self::new(path, Box::new(reader), total, MAX_LINE))
    }

    fn new(
        name: impl Into<PathBuf>,
        inner: Box<dyn BufRead>,
        total: Option<u64>,
        limit: usize,
    ) -> Self {
        Self { name: name.into(), inner, total, limit, buffer: Vec::new(), number: 0, read: 0 }
    }

    /// The next line; `None` at the end. The last line may lack its line feed.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>> {
        self.buffer.clear();
        let fail = |error| Failure::file("read", &self.name, &error);
        let mut limited = (&mut self.inner).take(self.limit as u64 + 1);
        let mut read = limited.read_until(b'\n', &mut self.buffer).map_err(fail)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let ended = self.buffer.last() == Some(&b'\n');
        if ended {
            self.buffer.pop();
        }
        let too_long = !ended && self.buffer.len() > self.limit;
        if too_long {
            read += self.inner.skip_until(b'\n').map_err(fail)?;
        }
        self.read += read as u64;
        Ok(Some(if too_long { Line::TooLong } else { Line::Bytes(&self.buffer) }))
    }

    /// Bytes read so far, line feeds included.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read
    }

    /// The size of the file, if the source is one.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Where the line last returned is: `file:number`.
    pub(crate) fn position(&self) -> String {
        format!("{}:{}", self.name.display(), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static [u8], limit: usize) -> Lines {
        Lines::new("input", Box::new(text), None, limit)
    }

    #[test]
    fn lines_come_without_their_line_feed_and_the_last_may_lack_it() {
        let mut source = lines(b"a\n\nb\r\nc", 10);
        for expected in [&b"a"[..], b"", b"b\r", b"c"] {
            assert_eq!(source.next_line().unwrap(), Some(Line::Bytes(expected)));
        }
        assert_eq!(source.position(), "input:4");
        assert_eq!(source.next_line().unwrap(), None);
        assert_eq!((source.position().as_str(), source.bytes_read()), ("input:4", 7));
    }

    #[test]
    fn a_line_over_the_limit_is_passed_over_and_the_next_one_is_whole() {
        let mut source = lines(b"12345\n123456\n1234567890\nok\n123456", 5);
        assert_eq!(source.next_line().unwrap(), Some(Line::Bytes(b"12345")));
        assert_eq!(source.next_line().unwrap(), Some(Line::TooLong));
        assert_eq!(source.next_line().unwrap(), Some(Line::TooLong));
        assert_eq!(source.next_line().unwrap(), Some(Line::Bytes(b"ok")));
        assert_eq!(source.next_line().unwrap(), Some(Line::TooLong));
        assert_eq!(source.next_line().unwrap(), None);
        assert_eq!(source.bytes_read(), 33);
    }
}
