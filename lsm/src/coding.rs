//! Integers and length-prefixed slices as bytes: little-endian, and varints of seven bits a byte.
//!
//! Decoders take a slice, cut what they read off its front, and return `None` when it is too
//! short or malformed; the caller knows the path and offset to report.

/// Appends `value` as a varint: seven bits a byte, least significant first.
pub(crate) fn put_varint32(out: &mut Vec<u8>, value: u32) {
    put_varint64(out, u64::from(value));
}

/// Appends `value` as a varint: seven bits a byte, least significant first.
pub(crate) fn put_varint64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends the length of `bytes` as a varint, then the bytes.
pub(crate) fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Cuts a varint of at most 32 bits off the front of `input`.
pub(crate) fn get_varint32(input: &mut &[u8]) -> Option<u32> {
    get_varint64(input).and_then(|value| u32::try_from(value).ok())
}

/// Cuts a varint off the front of `input`. Values that need more than ten bytes or 64 bits, and
/// encodings longer than needed, are refused: one value has one encoding.
pub(crate) fn get_varint64(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, &byte) in input.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return None;
            }
            *input = input.get(index + 1..)?;
            return Some(value);
        }
    }
    None
}

/// Cuts a length-prefixed slice off the front of `input`.
pub(crate) fn get_slice<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(get_varint64(input)?).ok()?;
    take(input, length)
}

/// Cuts `length` bytes off the front of `input`.
pub(crate) fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (front, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(front)
}

/// Cuts a little-endian 32-bit integer off the front of `input`.
pub(crate) fn get_u32(input: &mut &[u8]) -> Option<u32> {
    let (front, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    Some(u32::from_le_bytes(*front))
}

/// Cuts a little-endian 64-bit integer off the front of `input`.
pub(crate) fn get_u64(input: &mut &[u8]) -> Option<u64> {
    let (front, rest) = input.split_first_chunk::<8>()?;
    *input = rest;
    Some(u64::from_le_bytes(*front))
}

/// Cuts one byte off the front of `input`.
pub(crate) fn get_u8(input: &mut &[u8]) -> Option<u8> {
    let (front, rest) = input.split_first()?;
    *input = rest;
    Some(*front)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let mut bytes = Vec::new();
                put_varint64(&mut bytes, value);
                let mut input = &bytes[..];
                assert_eq!(get_varint64(&mut input), Some(value));
                assert!(input.is_empty());
                for cut in 0..bytes.len() {
                    assert_eq!(get_varint64(&mut &bytes[..cut]), None);
                }
            }
        }
    }

    #[test]
    fn overlong_and_overflowing_varints_are_refused() {
        assert_eq!(get_varint64(&mut &[0x80, 0x00][..]), None);
        assert_eq!(get_varint64(&mut &[0xff; 11][..]), None);
        let mut too_large = [0xff; 10];
        too_large[9] = 2;
        assert_eq!(get_varint64(&mut &too_large[..]), None);
        assert_eq!(get_varint32(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None);
    }

    #[test]
    fn a_slice_longer_than_the_input_is_refused() {
        let mut bytes = Vec::new();
        put_slice(&mut bytes, b"abc");
        assert_eq!(get_slice(&mut &bytes[..]), Some(&b"abc"[..]));
        assert_eq!(get_slice(&mut &bytes[..3]), None);
        assert_eq!(get_slice(&mut &[0xff; 10][..]), None);
    }
}
