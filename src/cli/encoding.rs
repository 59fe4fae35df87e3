//! How keys and values, which are any bytes, are written on the command line, in files of lines
//! and on the terminal.

use clap::ValueEnum;
use serde_json::{Value, json};

/// The ways to write bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    /// The bytes as they are. Tabs in keys and line ends cannot be told from separators.
    #[default]
    Text,
    /// Text with backslash escapes: \t \n \r \\ and \xHH. Any bytes.
    Escape,
    /// Two hexadecimal digits a byte. Any bytes.
    Hex,
}

impl Encoding {
    /// The bytes that `written` stands for.
    pub(crate) fn decode(self, written: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Text => Ok(written.to_vec()),
            Self::Escape => unescape(written),
            Self::Hex => unhex(written),
        }
    }

    /// Appends `bytes` as they are written in this encoding.
    pub(crate) fn encode(self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Text => out.extend_from_slice(bytes),
            Self::Escape => escape(bytes, out),
            Self::Hex => bytes.iter().for_each(|&byte| push_hex(byte, out)),
        }
    }

    /// `bytes` as a JSON value: a string, or `{"hex": "..."}` for text that is not UTF-8.
    pub(crate) fn to_json(self, bytes: &[u8]) -> Value {
        let mut written = Vec::with_capacity(bytes.len());
        self.encode(bytes, &mut written);
        if let Ok(text) = String::from_utf8(written) {
            return Value::String(text);
        }
        let mut digits = Vec::with_capacity(2 * bytes.len());
        Self::Hex.encode(bytes, &mut digits);
        json!({ "hex": String::from_utf8_lossy(&digits) })
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\\' => out.extend_from_slice(b"\\\\"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    escape_bytes(c.encode_utf8(&mut utf8).as_bytes(), out);
                }
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape_bytes(chunk.invalid(), out);
    }
}

fn escape_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.extend_from_slice(b"\\x");
        push_hex(byte, out);
    }
}

fn unescape(written: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(written.len());
    let mut rest = written;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&kind, after)) = rest.split_first() else {
            return Err("a backslash at the end escapes nothing; write `\\\\`".to_owned());
        };
        rest = after;
        match kind {
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b'\\' => out.push(b'\\'),
            b'x' => {
                let digits = rest.get(..2).ok_or("`\\x` needs two hexadecimal digits")?;
                out.extend(unhex(digits)?);
                rest = &rest[2..];
            }
            other => {
                let shown = other.escape_ascii();
                return Err(format!("`\\{shown}` is no escape; use \\t \\n \\r \\\\ or \\xHH"));
            }
        }
    }
    Ok(out)
}

fn unhex(digits: &[u8]) -> Result<Vec<u8>, String> {
    let (pairs, odd) = digits.as_chunks::<2>();
    if !odd.is_empty() {
        return Err("an odd number of hexadecimal digits: two make a byte".to_owned());
    }
    pairs
        .iter()
        .map(|pair| Some(hex_value(pair[0])? << 4 | hex_value(pair[1])?))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| "not hexadecimal: use the digits 0-9 and a-f".to_owned())
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back_from_escapes_and_hex() {
        let all: Vec<u8> = (0..=255).chain("h\u{e9}llo \u{85}\\".bytes()).collect();
        for encoding in [Encoding::Escape, Encoding::Hex] {
            let mut written = Vec::new();
            encoding.encode(&all, &mut written);
            assert!(!written.contains(&b'\t') && !written.contains(&b'\n'));
            assert!(std::str::from_utf8(&written).is_ok());
            assert_eq!(encoding.decode(&written).unwrap(), all);
        }
    }

    #[test]
    fn escaped_text_stays_readable() {
        let mut written = Vec::new();
        Encoding::Escape.encode("caf\u{e9}\tau lait\\".as_bytes(), &mut written);
        assert_eq!(String::from_utf8(written).unwrap(), "caf\u{e9}\\tau lait\\\\");
    }

    #[test]
    fn a_wrong_escape_or_digit_is_refused_with_what_would_be_right() {
        for written in ["\\", "\\q", "\\x", "\\x1", "\\xzz"] {
            assert!(Encoding::Escape.decode(written.as_bytes()).is_err(), "{written}");
        }
        for written in ["0", "0g", "0x00"] {
            assert!(Encoding::Hex.decode(written.as_bytes()).is_err(), "{written}");
        }
        assert!(Encoding::Escape.decode(b"\\q").unwrap_err().contains("\\xHH"));
        assert_eq!(Encoding::Text.decode(b"\\q").unwrap(), b"\\q");
    }

    #[test]
    fn bytes_that_are_no_text_are_hex_in_json() {
        assert_eq!(Encoding::Text.to_json(b"k"), json!("k"));
        assert_eq!(Encoding::Text.to_json(b"\xff\x00"), json!({ "hex": "ff00" }));
        assert_eq!(Encoding::Hex.to_json(b"\xff\x00"), json!("ff00"));
    }
}
