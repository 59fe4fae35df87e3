//! Telling a process from those that were forked from it. Its id does not: ids are used again, and
//! in a namespace of its own a child may have the one of its parent.

use crate::sync::{AtomicU64, Ordering};

/// The process that made something: none of its children, nor theirs, is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// None that there is.
    #[cfg(test)]
    pub(crate) const OTHER: Self = Self(0);

    /// This one. Costs a load once it was asked for.
    pub(crate) fn current() -> Self {
        // The last number that this process or an ancestor had: one more is new to all that a child
        // has inherited. Relaxed, here and below: the numbers guard no other memory.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let Some(mark) = mark::of_process() else { return Self(std::process::id().into()) };
        let known = mark.load(Ordering::Relaxed);
        if known > 0 {
            return Self(known);
        }
        let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let set = mark.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        Self(set.map_or_else(|other| other, |_| new))
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

#[cfg(target_os = "linux")]
mod mark {
    use std::ptr;

    use memmap2::MmapMut;

    use crate::sync::{AtomicPtr, AtomicU64, Ordering};

    /// What [`MARK`] leads to where there can be none.
    static NONE: AtomicU64 = AtomicU64::new(0);
    /// Null until it was asked for. No lock: a child could inherit one that is held.
    static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

    /// A number that is zero again in every forked child; `None` before Linux 4.14.
    pub(super) fn of_process() -> Option<&'static AtomicU64> {
        let mut mark = MARK.load(Ordering::Acquire);
        if mark.is_null() {
            mark = make();
        }
        // SAFETY: it leads to `NONE`, or to the start of a page of zeros that nobody unmaps:
        // aligned, valid for ever, and used as an atomic number only.
        (!ptr::eq(mark, &raw const NONE)).then(|| unsafe { &*mark })
    }

    fn make() -> *mut AtomicU64 {
        let mut map = MmapMut::map_anon(size_of::<AtomicU64>()).ok();
        let made = map.as_mut().map(|map| map.as_mut_ptr()).filter(|page| {
            // SAFETY: the page is our own, and changes only in a child.
            unsafe {
                libc::madvise(page.cast(), size_of::<AtomicU64>(), libc::MADV_WIPEONFORK) == 0
            }
        });
        let none = (&raw const NONE).cast_mut();
        let mark = made.map_or(none, <*mut u8>::cast);
        let (release, acquire) = (Ordering::AcqRel, Ordering::Acquire);
        match MARK.compare_exchange(ptr::null_mut(), mark, release, acquire) {
            Ok(_) if made.is_some() => std::mem::forget(map),
            Ok(_) => {}
            // Another thread was faster.
            Err(other) => return other,
        }
        mark
    }
}

#[cfg(not(target_os = "linux"))]
mod mark {
    pub(super) fn of_process() -> Option<&'static crate::sync::AtomicU64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_itself_on_all_its_threads() {
        let first = Process::current();
        let ids = [(); 8].map(|()| std::thread::spawn(Process::current));
        assert!(ids.into_iter().all(|id| id.join().unwrap() == first));
        assert!(first.is_current() && !Process::OTHER.is_current());
    }
}
