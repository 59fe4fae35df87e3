//! Direct I/O: what a file needs, the window that a read must be widened to and the loop that fills
//! it, and the refusal of a write that does not fit.

use std::path::Path;

use crate::counters::{Count, Counters};
use crate::os_file::{Os, OsFile};
use crate::sys::{DirectSupport, settled};
use crate::{Alignment, Buffer, Error, ErrorKind, Outcome, RandomAccessFile, Result};

/// What a kernel that does not say is taken to need: the largest block size in use.
const DEFAULT_ALIGN: u32 = 4096;

/// The multiples that direct I/O on one file needs. Both are powers of two, that of the memory at
/// most 4096 bytes, that of the offset at most 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    pub(crate) memory: usize,
    pub(crate) offset: u64,
}

impl DirectAlign {
    /// From the file system's answer; `None` if it refuses direct I/O or wants more than a
    /// [`Buffer`] is aligned to.
    pub(crate) fn of(support: DirectSupport) -> Option<Self> {
        let (memory, offset) = match support {
            DirectSupport::No => return None,
            DirectSupport::Unknown => (DEFAULT_ALIGN, DEFAULT_ALIGN),
            DirectSupport::Aligned { memory, offset } => (memory, offset),
        };
        let fits = |n: u32| n.is_power_of_two() && n as usize <= Buffer::ALIGN;
        (fits(memory) && offset.is_power_of_two() && offset <= 1 << 16)
            .then(|| Self { memory: memory as usize, offset: offset.into() })
    }

    /// The same in public terms.
    pub(super) fn of_writes(self) -> Alignment {
        Alignment { memory: self.memory, offset: self.block() }
    }

    fn block(self) -> usize {
        usize::try_from(self.offset).expect("at most 64 KiB")
    }

    /// How far apart the places of one transfer are from which it can be gone on with: neither
    /// the offset nor the memory may be misaligned there. Both are powers of two.
    pub(crate) fn step(self) -> usize {
        self.block().max(self.memory)
    }

    /// The smallest aligned range that holds `offset..offset + len`, as start and length.
    pub(crate) fn window(self, offset: u64, len: usize) -> (u64, usize) {
        let mask = self.offset - 1;
        let start = offset & !mask;
        let end = (offset + len as u64 + mask) & !mask;
        (start, usize::try_from(end - start).expect("at most two blocks more than a usize"))
    }

    /// Whether a range can be read into that memory, or written from it, as it is.
    pub(crate) fn fits(self, buf: &[u8], offset: u64) -> bool {
        let block = self.offset - 1;
        buf.as_ptr().addr() & (self.memory - 1) == 0
            && offset & block == 0
            && buf.len() as u64 & block == 0
    }
}

/// Refuses a write of `data` at `offset` that cannot go past the page cache as it is. Nothing else
/// would tell what is wrong: kernels answer with a bare `EINVAL`, or write through the page cache.
pub(super) fn check_write(align: DirectAlign, path: &Path, data: &[u8], offset: u64) -> Result<()> {
    if data.is_empty() || align.fits(data, offset) {
        return Ok(());
    }
    let DirectAlign { memory, offset: block } = align;
    let (len, address) = (data.len(), data.as_ptr().addr());
    let mut wrong = Vec::new();
    if !offset.is_multiple_of(block) {
        wrong.push(format!("the offset is no multiple of {block}"));
    }
    if !(len as u64).is_multiple_of(block) {
        wrong.push(format!("the length is no multiple of {block}"));
    }
    if !address.is_multiple_of(memory) {
        wrong.push(format!("the memory, at {address:#x}, is not at a multiple of {memory}"));
    }
    let message = format!(
        "a direct write of {len} bytes is misaligned: {}; write whole blocks from a Buffer of at \
         least 4096 bytes, or open the file without direct_rw",
        wrong.join(", "),
    );
    let error = Error::new(ErrorKind::Misaligned, "write", path, message);
    Err(error.at(offset).with_outcome(Outcome::NotApplied))
}

/// Fills `buf` from a file opened for direct I/O; the range is known to be inside the file.
pub(super) fn read_exact(
    file: &OsFile,
    align: DirectAlign,
    buf: &mut [u8],
    offset: u64,
    counters: &Counters,
) -> Result<()> {
    if align.fits(buf, offset) {
        let len = buf.len();
        return fill_window(file, align, buf, offset, len, counters);
    }
    let window = read_window(file, align, &file.os, offset, buf.len())?;
    buf.copy_from_slice(&window);
    counters.add(Count::BounceBytes, buf.len() as u64);
    Ok(())
}

/// Reads the aligned window around a range into memory from the pool of `os`, and shows the range.
pub(super) fn read_window(
    file: &OsFile,
    align: DirectAlign,
    os: &Os,
    offset: u64,
    len: usize,
) -> Result<Buffer> {
    let (start, window_len) = align.window(offset, len);
    let skip = usize::try_from(offset - start).expect("less than a block");
    // Never shorter than a page, so that the memory is aligned whatever the block size.
    let mut window = os.pool.take(window_len.max(Buffer::ALIGN));
    fill_window(
        file,
        align,
        &mut window.as_mut_slice()[..window_len],
        start,
        skip + len,
        &os.counters,
    )?;
    Ok(window.narrowed(skip, len))
}

/// Reads an aligned window until its first `wanted` bytes are there. A short read resumes at the
/// last aligned offset below what arrived, since a direct read cannot begin anywhere else.
fn fill_window(
    file: &OsFile,
    align: DirectAlign,
    window: &mut [u8],
    start: u64,
    wanted: usize,
    counters: &Counters,
) -> Result<()> {
    let block = align.block();
    let mut filled = 0;
    let mut stuck = 0;
    while filled < wanted {
        let from = filled & !(block - 1);
        let at = start + from as u64;
        let tail = &mut window[from..];
        counters.bump(Count::Preads);
        let got = settled(counters, || file.os.sys.pread(file.fd(), tail, at))
            .map_err(|errno| direct_error("read", &file.path, align, errno).at(at))?;
        if from + got > filled {
            filled = from + got;
            stuck = 0;
        } else {
            stuck += 1;
        }
        if filled < wanted {
            counters.bump(Count::ShortReads);
        }
        if stuck == 2 {
            return Err(Error::unexpected_eof(&file.path, start, wanted, file.size()));
        }
    }
    Ok(())
}

/// The error of a direct read or write that was aligned to what the file system said it needs.
pub(super) fn direct_error(op: &'static str, path: &Path, align: DirectAlign, errno: i32) -> Error {
    if errno != libc::EINVAL {
        return Error::from_errno(errno, op, path);
    }
    let (memory, offset) = (align.memory, align.offset);
    let message = format!(
        "the file system refused a direct {op} aligned to {offset} bytes in the file and {memory} \
         in memory"
    );
    Error::new(ErrorKind::Unsupported, op, path, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_smallest_aligned_range_around_the_bytes() {
        let align = DirectAlign { memory: 512, offset: 512 };
        assert_eq!(align.window(0, 512), (0, 512));
        assert_eq!(align.window(511, 2), (0, 1024));
        assert_eq!(align.window(8 + 4096, 512), (4096, 1024));
        assert_eq!(align.window(1024, 0), (1024, 0));
    }

    #[test]
    fn alignments_that_a_buffer_cannot_keep_are_refused() {
        let of = |memory, offset| DirectAlign::of(DirectSupport::Aligned { memory, offset });
        assert_eq!(of(4, 512), Some(DirectAlign { memory: 4, offset: 512 }));
        assert_eq!(of(8192, 512), None);
        assert_eq!(of(512, 3000), None);
        assert_eq!(DirectAlign::of(DirectSupport::No), None);
        let default = DirectAlign { memory: 4096, offset: 4096 };
        assert_eq!(DirectAlign::of(DirectSupport::Unknown), Some(default));
    }
}
