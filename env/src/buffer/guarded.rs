//! Memory that notices what is done to it too late or too far, for tests.
//!
//! Where `TREERING_GUARD_BUFFERS` is set, every buffer of every pool is a mapping of its own that
//! ends at a page which may not be touched. Given back, it is filled with a pattern and may not be
//! touched either: a kernel that writes to it late gets EFAULT, and if it had pinned the pages
//! before, the pattern is broken. That is looked at when the memory is unmapped, much later, and
//! when the process ends.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use memmap2::{MmapMut, MmapRaw};

use super::block::ALIGN as PAGE;

/// What memory without an owner holds, and memory of which nothing was written.
const PATTERN: u8 = 0xDE;
/// Bytes of memory that was given back and is still watched.
const WATCHED: usize = 128 << 20;
/// Mappings of it, each of which counts against the limit of the process.
const WATCHED_MAPPINGS: usize = 8 << 10;

/// Everything that was given back and is watched.
static QUARANTINE: Mutex<Quarantine> = Mutex::new(Quarantine::new());

/// Whether buffers are guarded in this process.
pub(super) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let on = std::env::var_os("TREERING_GUARD_BUFFERS").is_some();
        if on {
            // SAFETY: registering a function of the program takes no memory of ours.
            let registered = unsafe { libc::atexit(look_at_everything) };
            assert_eq!(registered, 0, "the end of the process can be watched");
        }
        on
    })
}

/// The last thing the process does: says how much was guarded, and fails if any of it was touched.
extern "C" fn look_at_everything() {
    let quarantine = QUARANTINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let touched = quarantine.regions.iter().filter(|region| !region.is_untouched()).count();
    let seen = quarantine.seen;
    let _ = writeln!(std::io::stderr(), "guarded: {seen} buffers, {touched} touched too late");
    if touched > 0 {
        std::process::abort();
    }
}

/// Pages of memory, and one behind them that may not be touched.
#[derive(Debug)]
struct Region {
    map: MmapRaw,
    /// Bytes before the guard.
    len: usize,
}

impl Region {
    fn new(len: usize) -> Self {
        let mut map = MmapMut::map_anon(len + PAGE).expect("there is memory");
        map[..len].fill(PATTERN);
        let region = Self { map: MmapRaw::from(map), len };
        region.protect(len, PAGE, libc::PROT_NONE);
        region
    }

    fn protect(&self, offset: usize, len: usize, how: c_int) {
        assert!(offset <= self.map.len() && len <= self.map.len() - offset);
        // SAFETY: the range lies in the mapping by the assertion. No reference to it exists: a
        // region lends its memory by a pointer, to one owner, and changes it only before and after.
        let done =
            unsafe { libc::mprotect(self.map.as_mut_ptr().wrapping_add(offset).cast(), len, how) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// The bytes before the guard.
    ///
    /// # Safety
    /// They may be read, and nobody changes them meanwhile.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long, initialised, and quiet by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len) }
    }

    /// Takes the memory out of use.
    fn close(&self) {
        // SAFETY: the owner is gone, so that nobody else uses the memory, and it may be written.
        unsafe { self.map.as_mut_ptr().write_bytes(PATTERN, self.len) };
        self.protect(0, self.len, libc::PROT_NONE);
    }

    /// Whether closed memory is as it was left.
    fn is_untouched(&self) -> bool {
        self.protect(0, self.len, libc::PROT_READ);
        // SAFETY: just made readable, and closed memory has no owner who could change it. If the
        // kernel does, which is what is looked for, any answer but yes is right.
        let untouched = unsafe { self.bytes() }.iter().all(|&byte| byte == PATTERN);
        self.protect(0, self.len, libc::PROT_NONE);
        untouched
    }
}

/// Regions without an owner, the oldest first.
#[derive(Debug)]
struct Quarantine {
    regions: VecDeque<Region>,
    bytes: usize,
    seen: usize,
}

impl Quarantine {
    const fn new() -> Self {
        Self { regions: VecDeque::new(), bytes: 0, seen: 0 }
    }

    /// Watches a closed region; unmaps the oldest if that are too many.
    fn watch(&mut self, region: Region) {
        self.seen += 1;
        self.bytes += region.len;
        self.regions.push_back(region);
        while self.bytes > WATCHED || self.regions.len() > WATCHED_MAPPINGS {
            let oldest = self.regions.pop_front().expect("there are bytes, so there is a region");
            self.bytes -= oldest.len;
            assert!(oldest.is_untouched(), "a buffer was written to after it was given back");
        }
    }
}

/// The memory of one guarded buffer.
#[derive(Debug)]
pub(super) struct Guarded {
    region: Option<Region>,
    /// Where the owner's part of the region begins, and its length.
    start: usize,
    len: usize,
}

impl Guarded {
    /// Memory of at least `len` bytes: pages that end at the guard, or the last bytes of one.
    pub(super) fn new(len: usize) -> Self {
        let region = Region::new(len.next_multiple_of(PAGE).max(PAGE));
        let start = PAGE.saturating_sub(len);
        Self { region: Some(region), start, len }
    }

    /// Where the memory is, and all of its length up to the guard. It is valid as long as this, and
    /// reached by this pointer only.
    pub(super) fn memory(&self) -> (NonNull<u8>, usize) {
        let region = self.region.as_ref().expect("there until this is dropped");
        let memory = region.map.as_mut_ptr().wrapping_add(self.start);
        (NonNull::new(memory).expect("a mapping is not at address 0"), region.len - self.start)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let region = self.region.take().expect("dropped once");
        // SAFETY: the owner is gone, and nobody has closed the memory yet.
        let bytes = unsafe { region.bytes() };
        let around = bytes[..self.start].iter().chain(&bytes[self.start + self.len..]);
        let intact = around.copied().all(|byte| byte == PATTERN);
        region.close();
        QUARANTINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).watch(region);
        assert!(intact || std::thread::panicking(), "a buffer was written to beyond its length");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn closed(len: usize) -> Region {
        let region = Region::new(len);
        region.close();
        region
    }

    /// Reads a page of a file to an address, as the kernel does for a request that is too late.
    fn read_to(address: *mut u8) -> Result<usize, i32> {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        // SAFETY: the address is of a mapping that lives and that Rust has no reference to; where
        // it may not be written, the kernel says so and writes nothing.
        let got = unsafe { libc::pread(file.as_raw_fd(), address.cast(), PAGE, 0) };
        usize::try_from(got).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
    }

    #[test]
    fn a_write_that_comes_late_or_goes_too_far_is_refused() {
        let open = Region::new(PAGE);
        assert_eq!(read_to(open.map.as_mut_ptr()), Ok(PAGE));
        assert_eq!(read_to(open.map.as_mut_ptr().wrapping_add(PAGE)), Err(libc::EFAULT));
        let closed = closed(PAGE);
        assert_eq!(read_to(closed.map.as_mut_ptr()), Err(libc::EFAULT));
        assert!(closed.is_untouched());
    }

    #[test]
    fn a_write_to_memory_that_was_pinned_before_is_noticed_at_the_end() {
        let mut quarantine = Quarantine::new();
        for touched in [false, true] {
            let region = closed(4 * PAGE);
            if touched {
                region.protect(PAGE, PAGE, libc::PROT_READ | libc::PROT_WRITE);
                read_to(region.map.as_mut_ptr().wrapping_add(PAGE)).unwrap();
            }
            assert_eq!(region.is_untouched(), !touched);
            quarantine.watch(region);
        }
        let more = std::panic::AssertUnwindSafe(|| {
            (0..WATCHED_MAPPINGS).for_each(|_| quarantine.watch(closed(PAGE)));
        });
        assert!(std::panic::catch_unwind(more).is_err(), "the touched one was not noticed");
    }

    #[test]
    fn memory_ends_at_its_guard() {
        for len in [1, 100, PAGE - 1, PAGE, 3 * PAGE] {
            let guarded = Guarded::new(len);
            let (memory, all) = guarded.memory();
            assert_eq!(all, len);
            assert!((memory.as_ptr().addr() + len).is_multiple_of(PAGE));
            assert_eq!(read_to(memory.as_ptr().wrapping_add(len)), Err(libc::EFAULT));
        }
        let (_, all) = Guarded::new(PAGE + 1).memory();
        assert_eq!(all, 2 * PAGE, "pages from their beginning, for direct I/O");
    }
}
