//! Printing a file: what kind it is, where the items go, and how bytes look in their text.

use std::fmt::{self, Write as _};
use std::path::Path;

use treering_env::{Access, Env};

use super::file::{Kind, kind_of};
use super::item::{Field, Item};
use super::{records, table};
use crate::record::FileRole;
use crate::{Error, Result};

/// Bytes of a key or value that are shown.
const SHOWN: usize = 1024;

/// See [`super::dump`].
pub(super) fn dump(
    env: &dyn Env,
    path: &Path,
    limit: u64,
    sink: &mut dyn FnMut(&Item<'_>) -> bool,
) -> Result<()> {
    let kind = kind_of(env, path)?;
    let mut sink = Sink { out: sink, left: limit, open: true };
    match kind {
        Kind::Log => records::print(env, path, FileRole::Log, &mut sink),
        Kind::Manifest => records::print(env, path, FileRole::Manifest, &mut sink),
        Kind::Table => table::print(env, path, &mut sink),
        Kind::Current => current(env, path, &mut sink),
    }
}

/// Prints a `CURRENT`.
fn current(env: &dyn Env, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let file = env.open(path, Access::Sequential)?;
    let size = usize::try_from(file.size()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; size.min(SHOWN)];
    file.read_exact_at(&mut bytes, 0)?;
    sink.give("current", &[("text", Field::Bytes(&bytes))], format_args!("{}", Quoted(&bytes)));
    match crate::version::current::decode(&bytes) {
        Some(number) if size <= SHOWN => {
            let text = format_args!("names manifest {number:06}");
            sink.give("names_manifest", &[("number", Field::Number(number))], text);
            Ok(())
        }
        _ => Err(Error::corruption(path, None, "it does not name a manifest")),
    }
}

/// Where the items go, and how many things may still be printed.
pub(super) struct Sink<'a> {
    out: &'a mut dyn FnMut(&Item<'_>) -> bool,
    left: u64,
    open: bool,
}

impl Sink<'_> {
    /// Gives one item on; whether more is wanted.
    pub(super) fn give(
        &mut self,
        what: &'static str,
        fields: &[(&'static str, Field<'_>)],
        text: fmt::Arguments<'_>,
    ) -> bool {
        if self.open {
            self.open = (self.out)(&Item { what, fields, text });
        }
        self.open
    }

    /// Whether nothing more is to be printed.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0 || !self.open
    }

    /// Counts one record or entry against the limit.
    pub(super) fn count(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

/// Bytes in quotes: printable ASCII as it is, everything else as `\x` and two digits, and what is
/// beyond the first 1024 bytes only counted.
pub(super) struct Quoted<'a>(pub(super) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..SHOWN).unwrap_or(self.0);
        f.write_char('"')?;
        for &byte in shown {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", char::from(byte))?,
                b' '..=b'~' => f.write_char(char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        f.write_char('"')?;
        let hidden = self.0.len() - shown.len();
        if hidden > 0 { write!(f, " and {hidden} bytes more") } else { Ok(()) }
    }
}
