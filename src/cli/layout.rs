//! How an entry is written as a line: TSV or JSON lines, which field is the key, which the value.
//!
//! What `parse` makes of a line, `write` turns back into the same line, as long as the line holds
//! nothing beside the key and the value, or the value is the whole line.

use std::borrow::Cow;
use std::fmt;

use clap::ValueEnum;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::encoding::Encoding;

/// The formats of files of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines of columns separated by tabs.
    Tsv,
    /// A JSON object on each line.
    Jsonl,
}

/// How lines and entries correspond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The key up to the first tab, the value after it.
    Pair(Encoding),
    /// TSV: the key in one column (from 0), the value in another or the whole line.
    Columns { key: usize, value: Option<usize>, encoding: Encoding },
    /// JSON lines: the key in one field, the value in another or the whole line.
    Fields { key: String, value: Option<String>, encoding: Encoding },
    /// JSON lines, for writing only: the value is the whole line.
    WholeObject,
}

/// A key and its value.
type Entry<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

impl Layout {
    /// The layout of `format` with the fields the user named. `header` is the first line of a TSV
    /// file whose columns are given by name; without it they are given by number, from 1.
    pub(crate) fn new(
        format: Format,
        key: Option<&str>,
        value: Option<&str>,
        encoding: Encoding,
        header: Option<&[u8]>,
    ) -> Result<Self, String> {
        match (format, key) {
            (Format::Tsv, None) if value.is_none() => Ok(Self::Pair(encoding)),
            (Format::Tsv, key) => Ok(Self::Columns {
                key: key.map_or(Ok(0), |name| column(name, header))?,
                value: value.map(|name| column(name, header)).transpose()?,
                encoding,
            }),
            (Format::Jsonl, Some(key)) => {
                Ok(Self::Fields { key: key.to_owned(), value: value.map(str::to_owned), encoding })
            }
            (Format::Jsonl, None) if value.is_none() => Ok(Self::WholeObject),
            (Format::Jsonl, None) => Err("name the key's field with --key FIELD".to_owned()),
        }
    }

    /// The key and value of a line. The error says what is wrong with it.
    pub(crate) fn parse<'a>(&self, line: &'a [u8]) -> Result<Entry<'a>, String> {
        match self {
            Self::Pair(encoding) => {
                let tab = line.iter().position(|&byte| byte == b'\t');
                let tab = tab.ok_or("no tab between key and value")?;
                Ok((decoded(*encoding, &line[..tab])?, decoded(*encoding, &line[tab + 1..])?))
            }
            Self::Columns { key, value, encoding } => {
                let field = |index: usize| {
                    let field = line.split(|&byte| byte == b'\t').nth(index);
                    decoded(*encoding, field.ok_or(format!("no column {}", index + 1))?)
                };
                let value = value.map_or(Ok(Cow::Borrowed(line)), field)?;
                Ok((field(*key)?, value))
            }
            Self::Fields { key, value, encoding } => {
                let (key_field, value_field) = pick(line, key, value.as_deref())?;
                let key = field_bytes(key_field, key, *encoding)?;
                let value = match value {
                    Some(name) => Cow::Owned(field_bytes(value_field, name, *encoding)?),
                    None => Cow::Borrowed(line),
                };
                Ok((Cow::Owned(key), value))
            }
            Self::WholeObject => Err("name the key's field with --key FIELD".to_owned()),
        }
    }

    /// Whether the value of an entry is its whole line.
    pub(crate) fn value_is_line(&self) -> bool {
        match self {
            Self::Pair(_) => false,
            Self::Columns { value, .. } => value.is_none(),
            Self::Fields { value, .. } => value.is_none(),
            Self::WholeObject => true,
        }
    }

    /// Appends the line of an entry, with its line feed. The error says why it has none.
    pub(crate) fn write(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Pair(encoding) => {
                write_cell(*encoding, "key", key, true, out)?;
                out.push(b'\t');
                write_cell(*encoding, "value", value, false, out)?;
            }
            Self::Columns { value: None, .. } => write_whole(value, out)?,
            Self::Columns { key: key_at, value: Some(value_at), encoding } => {
                for at in 0..=*key_at.max(value_at) {
                    if at > 0 {
                        out.push(b'\t');
                    }
                    if at == *value_at {
                        write_cell(*encoding, "value", value, true, out)?;
                    } else if at == *key_at {
                        write_cell(*encoding, "key", key, true, out)?;
                    }
                }
            }
            Self::Fields { value: None, .. } | Self::WholeObject => {
                if serde_json::from_slice::<IgnoredAny>(value).is_err() {
                    return Err("its value is no JSON; write it as a string in a field with \
                                --key FIELD --value FIELD"
                        .to_owned());
                }
                write_whole(value, out)?;
            }
            Self::Fields { key: key_name, value: Some(value_name), encoding } => {
                let object = [
                    (key_name, json_text(*encoding, "key", key)?),
                    (value_name, json_text(*encoding, "value", value)?),
                ];
                out.push(b'{');
                for (index, (name, text)) in object.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
                    out.push(b':');
                    out.extend_from_slice(Value::String(text).to_string().as_bytes());
                }
                out.push(b'}');
            }
        }
        out.push(b'\n');
        Ok(())
    }
}

fn column(name: &str, header: Option<&[u8]>) -> Result<usize, String> {
    match header {
        Some(header) => header
            .split(|&byte| byte == b'\t')
            .position(|column| column == name.as_bytes())
            .ok_or_else(|| format!("the first line names no column `{name}`")),
        None => match name.parse::<usize>() {
            Ok(number) if (1..=1 << 16).contains(&number) => Ok(number - 1),
            _ => Err(format!(
                "`{name}` is no column number (from 1); with --header columns have names"
            )),
        },
    }
}

fn decoded(encoding: Encoding, field: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    match encoding {
        Encoding::Text => Ok(Cow::Borrowed(field)),
        _ => encoding.decode(field).map(Cow::Owned),
    }
}

fn write_whole(value: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    if value.contains(&b'\n') {
        return Err("its value has a line feed, so it is no whole line; write it apart from the \
                    key with --key, --value and --encoding escape"
            .to_owned());
    }
    out.extend_from_slice(value);
    Ok(())
}

fn write_cell(
    encoding: Encoding,
    what: &str,
    bytes: &[u8],
    tab_ends_it: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let breaks = |&byte: &u8| byte == b'\n' || (tab_ends_it && byte == b'\t');
    if encoding == Encoding::Text && bytes.iter().any(breaks) {
        let byte = if tab_ends_it { "a tab or line feed" } else { "a line feed" };
        return Err(format!("its {what} has {byte}; use --encoding escape or --hex"));
    }
    encoding.encode(bytes, out);
    Ok(())
}

fn json_text(encoding: Encoding, what: &str, bytes: &[u8]) -> Result<String, String> {
    let mut written = Vec::with_capacity(bytes.len());
    encoding.encode(bytes, &mut written);
    String::from_utf8(written)
        .map_err(|_| format!("its {what} is not UTF-8; use --encoding escape or --hex"))
}

/// The bytes a JSON field stands for: of a string its text, of anything else its JSON.
fn field_bytes(field: Option<Value>, name: &str, encoding: Encoding) -> Result<Vec<u8>, String> {
    match field {
        None => Err(format!("no field `{name}`")),
        Some(Value::String(text)) => encoding.decode(text.as_bytes()),
        Some(other) => Ok(other.to_string().into_bytes()),
    }
}

/// The two named fields of the object on `line`; everything else is checked but not kept.
fn pick(
    line: &[u8],
    key: &str,
    value: Option<&str>,
) -> Result<(Option<Value>, Option<Value>), String> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let picked = Pick { key, value }.deserialize(&mut json).and_then(|picked| {
        json.end()?;
        Ok(picked)
    });
    picked.map_err(|error| format!("not a JSON object: {}", without_line(&error)))
}

/// A JSON error without its line number, which is always 1 here and would only mislead.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => text,
    }
}

struct Pick<'n> {
    key: &'n str,
    value: Option<&'n str>,
}

impl<'de> DeserializeSeed<'de> for Pick<'_> {
    type Value = (Option<Value>, Option<Value>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = (Option<Value>, Option<Value>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let (mut key, mut value) = (None, None);
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let is_key = name == self.key;
            let is_value = Some(name.as_ref()) == self.value;
            if is_key || is_value {
                let field: Value = map.next_value()?;
                if is_value {
                    value = Some(field.clone());
                }
                if is_key {
                    key = Some(field);
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(format: Format, key: Option<&str>, value: Option<&str>, e: Encoding) -> Layout {
        Layout::new(format, key, value, e, None).unwrap()
    }

    fn entry(layout: &Layout, line: &str) -> Result<(String, String), String> {
        let (key, value) = layout.parse(line.as_bytes())?;
        let text = |bytes: Cow<'_, [u8]>| String::from_utf8(bytes.into_owned()).unwrap();
        Ok((text(key), text(value)))
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn a_tsv_line_is_the_key_up_to_the_first_tab_and_the_rest() {
        let plain = layout(Format::Tsv, None, None, Encoding::Text);
        assert_eq!(entry(&plain, "k\tv\tw\\n"), Ok(pair("k", "v\tw\\n")));
        assert_eq!(entry(&plain, "\t"), Ok(pair("", "")));
        assert!(entry(&plain, "no tab").unwrap_err().contains("no tab"));
        let escaped = layout(Format::Tsv, None, None, Encoding::Escape);
        assert_eq!(entry(&escaped, "k\\t\tv\\n"), Ok(pair("k\t", "v\n")));
    }

    #[test]
    fn tsv_columns_go_by_number_or_by_the_name_in_the_first_line() {
        let second = layout(Format::Tsv, Some("2"), None, Encoding::Text);
        assert_eq!(entry(&second, "a\tb\tc"), Ok(pair("b", "a\tb\tc")));
        assert_eq!(entry(&second, "a"), Err("no column 2".to_owned()));
        let header = Some(&b"id\tname\tage"[..]);
        let named =
            Layout::new(Format::Tsv, Some("name"), Some("id"), Encoding::Text, header).unwrap();
        assert_eq!(entry(&named, "7\tann\t30"), Ok(pair("ann", "7")));
        for (key, header) in [("0", None), ("name", None), ("x", header)] {
            assert!(Layout::new(Format::Tsv, Some(key), None, Encoding::Text, header).is_err());
        }
    }

    #[test]
    fn a_json_line_gives_the_named_field_and_itself_or_another_field() {
        let whole = layout(Format::Jsonl, Some("id"), None, Encoding::Text);
        let line = " {\"x\": [1, {\"id\": 2}], \"id\":\"caf\\u00e9\"} ";
        assert_eq!(entry(&whole, line), Ok(pair("caf\u{e9}", line)));
        let field = layout(Format::Jsonl, Some("n"), Some("v"), Encoding::Text);
        assert_eq!(entry(&field, r#"{"v":{"a":1.50},"n":17}"#), Ok(pair("17", "{\"a\":1.50}")));
        let same = layout(Format::Jsonl, Some("n"), Some("n"), Encoding::Text);
        assert_eq!(entry(&same, r#"{"n":"x"}"#), Ok(pair("x", "x")));
    }

    #[test]
    fn what_is_no_json_object_with_the_key_is_refused_with_the_reason() {
        let whole = layout(Format::Jsonl, Some("id"), None, Encoding::Text);
        for (line, reason) in [
            ("", "EOF"),
            ("[1]", "expected an object"),
            ("{\"id\":1} x", "trailing characters"),
            ("{\"id\":", "EOF while parsing a value at column 6"),
            ("{\"other\":1}", "no field `id`"),
        ] {
            let error = entry(&whole, line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn what_was_read_is_written_back_byte_for_byte() {
        let cases = [
            (layout(Format::Tsv, None, None, Encoding::Text), "k\tv\tw\\\r\u{e9}"),
            (layout(Format::Tsv, None, None, Encoding::Hex), "00ff\t0a09"),
            (layout(Format::Tsv, None, None, Encoding::Escape), "a\\n\\xff\t\\\\\\t"),
            (layout(Format::Tsv, Some("2"), None, Encoding::Text), "a\tb\t c"),
            (layout(Format::Tsv, Some("2"), Some("1"), Encoding::Text), "value\tkey"),
            (
                layout(Format::Jsonl, Some("id"), None, Encoding::Text),
                "{ \"id\" : 1.0, \"id2\":1 }",
            ),
            (
                layout(Format::Jsonl, Some("k"), Some("v"), Encoding::Escape),
                r#"{"k":"a\\xff","v":"\"\\\\"}"#,
            ),
        ];
        for (layout, line) in cases {
            let (key, value) = layout.parse(line.as_bytes()).unwrap();
            let mut written = Vec::new();
            layout.write(&key, &value, &mut written).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), format!("{line}\n"), "{layout:?}");
        }
    }

    #[test]
    fn an_entry_that_would_break_its_line_is_refused_and_names_the_way_out() {
        let plain = layout(Format::Tsv, None, None, Encoding::Text);
        let columns = layout(Format::Tsv, Some("1"), Some("2"), Encoding::Text);
        let object = layout(Format::Jsonl, Some("k"), Some("v"), Encoding::Text);
        let whole = Layout::WholeObject;
        let cases: [(&Layout, &[u8], &[u8]); 6] = [
            (&plain, b"a\tb", b"v"),
            (&plain, b"k", b"v\nw"),
            (&columns, b"k", b"v\tw"),
            (&object, b"\xff", b"v"),
            (&object, b"k", b"\xff"),
            (&whole, b"k", b"{\n}"),
        ];
        for (layout, key, value) in cases {
            let error = layout.write(key, value, &mut Vec::new()).unwrap_err();
            assert!(error.contains("--encoding escape"), "{layout:?}: {error}");
        }
        assert!(whole.write(b"k", b"text", &mut Vec::new()).unwrap_err().contains("--value"));
    }
}
