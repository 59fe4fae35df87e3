//! Checksums: CRC-32 (IEEE) over context and bytes.
//!
//! Every checksum on disk mixes in where the bytes belong (a file's random id and the offset), so
//! that a valid piece in the wrong place does not pass.

use rand::TryRng;
use rand::rngs::SysRng;

/// The CRC-32 of `parts`, one after another, in the context of (`id`, `offset`).
pub(crate) fn crc(id: u64, offset: u64, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// A fresh random id for a file, never zero, from the operating system's generator: the context of
/// the file's checksums. Two files share one by a chance of 2^-64.
pub(crate) fn random_id() -> u64 {
    loop {
        let drawn = SysRng.try_next_u64();
        let id = drawn.expect("an operating system that runs this can draw random numbers");
        if id != 0 {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_and_bytes_all_count() {
        let base = crc(1, 2, &[b"abc"]);
        assert_eq!(base, crc(1, 2, &[b"a", b"bc"]));
        assert_ne!(base, crc(2, 2, &[b"abc"]));
        assert_ne!(base, crc(1, 3, &[b"abc"]));
        assert_ne!(base, crc(1, 2, &[b"abd"]));
    }
}
