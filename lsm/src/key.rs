//! Internal keys: a user key with the sequence number and kind of the write that made it.
//!
//! An internal key is the user key followed by an eight-byte trailer, `sequence << 8 | kind`,
//! little-endian. Order: user keys ascending by bytes, then trailers descending, so that of one
//! user key the newest version comes first.

use std::cmp::Ordering;

/// The largest sequence number: 56 bits.
pub(crate) const MAX_SEQUENCE: u64 = (1 << 56) - 1;
/// Bytes of a trailer.
pub(crate) const TRAILER_SIZE: usize = 8;
/// The longest key in bytes. A longer one is refused when it is written, and never found.
pub const MAX_KEY_SIZE: usize = 65_535;
/// The longest value in bytes. A longer one is refused when it is written.
pub const MAX_VALUE_SIZE: usize = 1 << 30;

/// What a version of a key is. Zero is invalid on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueKind {
    /// A tombstone: the key is deleted.
    Deletion = 1,
    /// The key has a value.
    Put = 2,
}

impl ValueKind {
    /// The kind of a byte from disk.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Deletion),
            2 => Some(Self::Put),
            _ => None,
        }
    }
}

/// The trailer of a version.
pub(crate) fn trailer(sequence: u64, kind: ValueKind) -> u64 {
    debug_assert!(sequence <= MAX_SEQUENCE, "sequence numbers have 56 bits");
    sequence << 8 | kind as u64
}

/// The trailer that sorts at or before every version visible at `sequence`, and after every newer
/// one: what a look-up seeks.
pub(crate) fn seek_trailer(sequence: u64) -> u64 {
    debug_assert!(sequence <= MAX_SEQUENCE, "sequence numbers have 56 bits");
    sequence << 8 | 0xff
}

/// Appends the internal key of (`user_key`, `trailer`) to `out`.
pub(crate) fn append(out: &mut Vec<u8>, user_key: &[u8], trailer: u64) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&trailer.to_le_bytes());
}

/// The internal key of (`user_key`, `trailer`).
pub(crate) fn encode(user_key: &[u8], trailer: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(user_key.len() + TRAILER_SIZE);
    append(&mut out, user_key, trailer);
    out
}

/// Bytes of the longest internal key that a look-up builds without an allocation.
const SHORT: usize = 64;

/// The internal key that a look-up seeks; on the stack if it is short.
#[derive(Debug)]
pub(crate) enum SeekKey {
    Short([u8; SHORT], usize),
    Long(Vec<u8>),
}

impl SeekKey {
    /// What finds the newest version visible at `sequence`.
    pub(crate) fn new(user_key: &[u8], sequence: u64) -> Self {
        let (trailer, end) = (seek_trailer(sequence), user_key.len() + TRAILER_SIZE);
        if end > SHORT {
            return Self::Long(encode(user_key, trailer));
        }
        let mut bytes = [0; SHORT];
        bytes[..user_key.len()].copy_from_slice(user_key);
        bytes[user_key.len()..end].copy_from_slice(&trailer.to_le_bytes());
        Self::Short(bytes, end)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..*len],
            Self::Long(bytes) => bytes,
        }
    }
}

/// An internal key taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedKey<'a> {
    /// The key the user gave.
    pub(crate) user_key: &'a [u8],
    /// The sequence number of the write.
    pub(crate) sequence: u64,
    /// What the write was.
    pub(crate) kind: ValueKind,
}

/// Takes an internal key from disk apart; `None` if it is too short or its kind is unknown.
pub(crate) fn parse(internal_key: &[u8]) -> Option<ParsedKey<'_>> {
    let (user_key, trailer) = internal_key.split_last_chunk::<TRAILER_SIZE>()?;
    let trailer = u64::from_le_bytes(*trailer);
    let kind = ValueKind::from_byte((trailer & 0xff) as u8)?;
    Some(ParsedKey { user_key, sequence: trailer >> 8, kind })
}

/// The user key and trailer of an internal key that is known to be long enough.
pub(crate) fn split(internal_key: &[u8]) -> (&[u8], u64) {
    let (user_key, trailer) =
        internal_key.split_last_chunk::<TRAILER_SIZE>().expect("an internal key has a trailer");
    (user_key, u64::from_le_bytes(*trailer))
}

/// The user key of an internal key that is known to be long enough.
pub(crate) fn user_key(internal_key: &[u8]) -> &[u8] {
    split(internal_key).0
}

/// The order of internal keys that are known to be long enough.
pub(crate) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a_key, a_trailer) = split(a);
    let (b_key, b_trailer) = split(b);
    a_key.cmp(b_key).then(b_trailer.cmp(&a_trailer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_of_a_key_come_first_and_prefixes_before_longer_keys() {
        let key = |k: &[u8], s| encode(k, trailer(s, ValueKind::Put));
        let ordered = [key(b"", 9), key(b"a", 3), key(b"a", 2), key(b"a\0", 7), key(b"ab", 1)];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j));
            }
        }
    }

    #[test]
    fn a_seek_key_sorts_before_what_is_visible_and_after_what_is_newer() {
        let seek = encode(b"k", seek_trailer(5));
        for kind in [ValueKind::Deletion, ValueKind::Put] {
            assert_eq!(compare(&seek, &encode(b"k", trailer(5, kind))), Ordering::Less);
            assert_eq!(compare(&seek, &encode(b"k", trailer(6, kind))), Ordering::Greater);
        }
    }

    #[test]
    fn a_seek_key_is_the_same_on_the_stack_and_beyond() {
        for len in [0, 1, 16, SHORT - TRAILER_SIZE, SHORT - TRAILER_SIZE + 1, SHORT, 300] {
            let user_key = vec![7; len];
            let seek = SeekKey::new(&user_key, 9);
            assert_eq!(seek.as_slice(), encode(&user_key, seek_trailer(9)));
            assert_eq!(matches!(seek, SeekKey::Long(_)), len + TRAILER_SIZE > SHORT);
        }
    }

    #[test]
    fn short_keys_and_unknown_kinds_do_not_parse() {
        assert_eq!(parse(b"1234567"), None);
        assert_eq!(parse(&encode(b"k", 5 << 8)), None);
        let parsed = parse(&encode(b"k", trailer(5, ValueKind::Put)).clone()).unwrap().sequence;
        assert_eq!(parsed, 5);
    }
}
