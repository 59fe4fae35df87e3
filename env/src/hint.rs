//! A hint to the processor, safe for crates that deny unsafe code.

/// Asks the processor to load the cache line in which `items[index]` begins, because it will be
/// read soon. Does nothing if the index is out of range or the processor has no such instruction;
/// never faults, never waits.
#[inline]
pub fn prefetch_cache_line<T>(items: &[T], index: usize) {
    if let Some(item) = items.get(index) {
        prefetch(std::ptr::from_ref(item).cast());
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86_64, and a prefetch neither reads nor writes memory as the program
    // sees it, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn prefetch(address: *const u8) {
    // SAFETY: the instruction neither reads nor writes memory as the program sees it, whatever the
    // address, and it changes no register, flag or stack.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn prefetch(_address: *const u8) {}

#[cfg(test)]
mod tests {
    use super::prefetch_cache_line;

    #[test]
    fn any_index_may_be_prefetched() {
        let bytes = [1, 2, 3];
        for index in [0, 2, 3, usize::MAX] {
            prefetch_cache_line(&bytes, index);
        }
        prefetch_cache_line::<u64>(&[], 0);
        assert_eq!(bytes, [1, 2, 3]);
    }
}
