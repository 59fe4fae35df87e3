//! `put`, `get`, `delete`, `scan` and `multi-get`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

use super::args::{Delete, Get, Keys, MultiGet, Put, Scan};
use super::encoding::Encoding;
use super::environment::{Purpose, open};
use super::failure::{Exit, Failure, Result};
use super::lines::{Line, Lines};
use super::output::{Output, note};
use crate::{Db, MAX_KEY_SIZE, MAX_VALUE_SIZE, Range, WriteBatch, WriteOptions};

/// Stores one value.
pub(crate) fn put(args: &Put) -> Result {
    let encoding = args.entry.bytes.encoding();
    let key = argument("key", &args.entry.key, encoding)?;
    check_key(&key).map_err(Failure::Failed)?;
    let value = match (&args.value, &args.value_file) {
        (Some(value), _) => argument("value", value, encoding)?,
        (None, Some(file)) => whole_file(file)?,
        (None, None) => return Err(Failure::usage("give a VALUE or --value-file FILE")),
    };
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    let db = open(&args.entry.store, Purpose::Create)?;
    db.write_opt(batch, &WriteOptions { durability: Some(args.lasting.durability.into()) })?;
    db.close()?;
    Ok(Exit::Done)
}

/// Prints one value.
pub(crate) fn get(args: &Get) -> Result {
    let encoding = args.entry.bytes.encoding();
    let key = argument("key", &args.entry.key, encoding)?;
    let db = open(&args.entry.store, Purpose::Read)?;
    let value = db.get(&key)?;
    let mut out = Output::new();
    if args.output.json {
        out.json_line(&answer(encoding, &key, value.as_deref()))?;
    } else if let Some(value) = &value {
        if args.raw {
            out.bytes(value)?;
        } else {
            let mut line = Vec::with_capacity(value.len() + 1);
            encoding.encode(value, &mut line);
            line.push(b'\n');
            out.bytes(&line)?;
        }
    } else {
        note(format_args!("not found: {}", shown(encoding, &key)));
    }
    out.finish()?;
    db.close()?;
    Ok(if value.is_some() { Exit::Done } else { Exit::No })
}

/// Deletes one key.
pub(crate) fn delete(args: &Delete) -> Result {
    let key = argument("key", &args.entry.key, args.entry.bytes.encoding())?;
    check_key(&key).map_err(Failure::Failed)?;
    let mut batch = WriteBatch::new();
    batch.delete(key);
    let db = open(&args.entry.store, Purpose::Change)?;
    db.write_opt(batch, &WriteOptions { durability: Some(args.lasting.durability.into()) })?;
    db.close()?;
    Ok(Exit::Done)
}

/// Prints a range.
pub(crate) fn scan(args: &Scan) -> Result {
    let encoding = args.bytes.encoding();
    let span = Span::new(&args.keys, encoding)?;
    let db = open(&args.store, Purpose::Read)?;
    let mut entries = span.entries(&db);
    let mut out = Output::new();
    let mut line = Vec::new();
    for _ in 0..args.limit.unwrap_or(u64::MAX) {
        let next = if args.reverse { entries.next_back() } else { entries.next() };
        let Some(entry) = next else { break };
        let (key, value) = entry?;
        if args.json {
            let mut object = json!({ "key": encoding.to_json(&key) });
            if !args.keys_only {
                object["value"] = encoding.to_json(&value);
            }
            out.json_line(&object)?;
            continue;
        }
        line.clear();
        encoding.encode(&key, &mut line);
        if !args.keys_only {
            line.push(b'\t');
            encoding.encode(&value, &mut line);
        }
        line.push(b'\n');
        out.bytes(&line)?;
    }
    out.finish()?;
    drop(entries);
    db.close()?;
    Ok(Exit::Done)
}

/// Looks many keys up and prints them in the order given.
pub(crate) fn multi_get(args: &MultiGet) -> Result {
    let encoding = args.bytes.encoding();
    let db = open(&args.store, Purpose::Read)?;
    let mut lookup = Lookup::new(&db, args, encoding);
    let batch = args.batch as usize;
    let mut keys: Vec<Vec<u8>> = Vec::with_capacity(batch.min(1 << 16));
    if let Some(file) = &args.keys_file {
        let mut lines = Lines::open("--keys-file", file)?;
        while let Some(line) = lines.next_line()? {
            let key = match line {
                Line::Bytes(line) => encoding.decode(line),
                Line::TooLong => {
                    Err(format!("the line is longer than any key; the limit is {MAX_KEY_SIZE}"))
                }
            };
            match key {
                Ok(key) => keys.push(key),
                Err(what) => {
                    // Answers keep the order of the lines.
                    lookup.run(&mut keys)?;
                    lookup.no_key(&format!("{}: {what}", lines.position()))?;
                }
            }
            if keys.len() == batch {
                lookup.run(&mut keys)?;
            }
        }
    } else {
        for key in &args.keys {
            keys.push(argument("key", key, encoding)?);
        }
    }
    while !keys.is_empty() {
        let mut rest = keys.split_off(keys.len().min(batch));
        lookup.run(&mut keys)?;
        std::mem::swap(&mut keys, &mut rest);
    }
    let ended = lookup.end();
    db.close()?;
    ended
}

/// Keys looked up so far. A key that cannot be looked up is reported and does not keep the others
/// from their answers.
struct Lookup<'a> {
    db: &'a Db,
    args: &'a MultiGet,
    encoding: Encoding,
    out: Output,
    asked: u64,
    missing: u64,
    failed: u64,
    /// The failure that decides how the command ends: damage before anything else.
    worst: Option<Failure>,
}

impl<'a> Lookup<'a> {
    fn new(db: &'a Db, args: &'a MultiGet, encoding: Encoding) -> Self {
        let out = Output::new();
        Self { db, args, encoding, out, asked: 0, missing: 0, failed: 0, worst: None }
    }

    /// Reports something that stands in place of a key.
    fn no_key(&mut self, message: &str) -> Result<()> {
        note(message);
        self.asked += 1;
        self.failed += 1;
        self.worst.get_or_insert_with(|| Failure::failed("check the encoding of the keys"));
        self.print_failure(&Value::Null, message)
    }

    /// The line of `--json` for what has no answer.
    fn print_failure(&mut self, key: &Value, message: &str) -> Result<()> {
        if !self.args.json {
            return Ok(());
        }
        self.out.json_line(&json!({ "key": key, "found": null, "value": null, "error": message }))
    }

    fn fail(&mut self, key: &[u8], error: &crate::Error) -> Result<()> {
        note(format_args!("{}: {error}", shown(self.encoding, key)));
        self.failed += 1;
        let failure = Failure::from(error.clone());
        if self.worst.as_ref().is_none_or(|worst| worst.code() < failure.code()) {
            self.worst = Some(failure);
        }
        self.print_failure(&self.encoding.to_json(key), &error.to_string())
    }

    /// Says how many keys had no answer, and ends the command accordingly.
    fn end(self) -> Result {
        let Self { out, asked, missing, failed, worst, .. } = self;
        out.finish()?;
        if missing > 0 {
            note(format_args!("{missing} of {asked} keys not found"));
        }
        match worst {
            None if missing > 0 => Ok(Exit::No),
            None => Ok(Exit::Done),
            Some(worst) => {
                let message =
                    format!("{failed} of {asked} keys could not be looked up, among them: {worst}");
                Err(match worst {
                    Failure::Damaged(_) => Failure::Damaged(message),
                    _ => Failure::Failed(message),
                })
            }
        }
    }

    /// Looks `keys` up in one call and prints the answers; `keys` is empty afterwards.
    fn run(&mut self, keys: &mut Vec<Vec<u8>>) -> Result<()> {
        let answers = self.db.multi_get(&*keys);
        let mut line = Vec::new();
        for (key, value) in keys.drain(..).zip(answers) {
            self.asked += 1;
            let value = match value {
                Ok(value) => value,
                Err(error) => {
                    self.fail(&key, &error)?;
                    continue;
                }
            };
            self.missing += u64::from(value.is_none());
            if self.args.json {
                self.out.json_line(&answer(self.encoding, &key, value.as_deref()))?;
            } else if let Some(value) = value {
                line.clear();
                if !self.args.values_only {
                    self.encoding.encode(&key, &mut line);
                    line.push(b'\t');
                }
                self.encoding.encode(&value, &mut line);
                line.push(b'\n');
                self.out.bytes(&line)?;
            }
        }
        Ok(())
    }
}

/// A range of keys, decoded.
pub(crate) enum Span {
    /// Keys that start with these bytes.
    Prefix(Vec<u8>),
    /// Keys between these bounds.
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Span {
    /// The range that the arguments ask for.
    pub(crate) fn new(keys: &Keys, encoding: Encoding) -> Result<Self> {
        let decode = |name, key: &Option<_>| {
            key.as_ref().map(|key: &std::ffi::OsString| argument(name, key, encoding)).transpose()
        };
        if let Some(prefix) = decode("--prefix", &keys.prefix)? {
            return Ok(Self::Prefix(prefix));
        }
        let from = decode("--from", &keys.from)?.map_or(Bound::Unbounded, Bound::Included);
        let to = decode("--to", &keys.to)?.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(Self::Between(from, to))
    }

    /// The first key and the end of the range.
    pub(crate) fn bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        match self {
            Self::Prefix(prefix) => {
                let end = after_prefix(&prefix).map_or(Bound::Unbounded, Bound::Excluded);
                (Bound::Included(prefix), end)
            }
            Self::Between(from, to) => (from, to),
        }
    }

    /// The entries of the range.
    pub(crate) fn entries(self, db: &Db) -> Range {
        db.range::<Vec<u8>>(self.bounds())
    }
}

/// The least key above all that start with `prefix`; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The bytes of an argument.
pub(crate) fn argument(name: &str, written: &OsStr, encoding: Encoding) -> Result<Vec<u8>> {
    encoding.decode(written.as_bytes()).map_err(|what| Failure::usage(format!("{name}: {what}")))
}

/// The key as a person may read it.
pub(crate) fn shown(encoding: Encoding, key: &[u8]) -> String {
    let mut text = Vec::new();
    let readable = if encoding == Encoding::Text { Encoding::Escape } else { encoding };
    readable.encode(key, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn answer(encoding: Encoding, key: &[u8], value: Option<&[u8]>) -> Value {
    json!({
        "key": encoding.to_json(key),
        "found": value.is_some(),
        "value": value.map(|value| encoding.to_json(value)),
    })
}

/// Says what is wrong with a key that is too long to be stored.
pub(crate) fn check_key(key: &[u8]) -> std::result::Result<(), String> {
    match key.len() {
        0..=MAX_KEY_SIZE => Ok(()),
        len => Err(format!("the key has {len} bytes; the limit is {MAX_KEY_SIZE}")),
    }
}

/// Says what is wrong with a value that is too long to be stored.
pub(crate) fn check_value(value: &[u8]) -> std::result::Result<(), String> {
    match value.len() {
        0..=MAX_VALUE_SIZE => Ok(()),
        len => Err(format!("the value has {len} bytes; the limit is {MAX_VALUE_SIZE}")),
    }
}

/// The content of a file, or of standard input for `-`, if it can be a value.
fn whole_file(path: &Path) -> Result<Vec<u8>> {
    let fail = |error| Failure::input("--value-file", path, &error);
    let too_long = || {
        let name = path.display();
        Failure::failed(format!(
            "the value in {name} has more than {MAX_VALUE_SIZE} bytes, which is the limit"
        ))
    };
    let bytes = if path == Path::new("-") {
        at_most(std::io::stdin().lock(), MAX_VALUE_SIZE)
    } else {
        let file = File::open(path).map_err(fail)?;
        // Told by its size, a file that is too large is not read at all.
        if file.metadata().map_err(fail)?.len() > MAX_VALUE_SIZE as u64 {
            return Err(too_long());
        }
        at_most(file, MAX_VALUE_SIZE)
    };
    bytes.map_err(fail)?.ok_or_else(too_long)
}

/// All of `reader`, or nothing if it has more than `limit` bytes.
fn at_most(reader: impl Read, limit: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= limit).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_have_it() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    #[test]
    fn what_is_read_to_be_a_value_is_bounded() {
        assert_eq!(at_most(&b"12345"[..], 5).unwrap().as_deref(), Some(&b"12345"[..]));
        assert_eq!(at_most(&b"123456"[..], 5).unwrap(), None);
        assert_eq!(at_most(std::io::repeat(0), 5).unwrap(), None, "it need not end");
        assert!(check_key(&vec![0; MAX_KEY_SIZE]).is_ok());
        let said = check_key(&vec![0; MAX_KEY_SIZE + 1]).unwrap_err();
        assert_eq!(said, "the key has 65536 bytes; the limit is 65535");
    }

    #[test]
    fn keys_are_shown_readably_and_answers_say_whether_they_were_found() {
        assert_eq!(shown(Encoding::Text, b"a\tb\xff"), "a\\tb\\xff");
        assert_eq!(shown(Encoding::Hex, b"a"), "61");
        let found = answer(Encoding::Text, b"k", Some(b"v"));
        assert_eq!(found, json!({ "key": "k", "found": true, "value": "v" }));
        let missing = answer(Encoding::Text, b"k", None);
        assert_eq!(missing, json!({ "key": "k", "found": false, "value": null }));
    }
}
