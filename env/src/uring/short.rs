//! Rings of which each entry transfers little at a time, for tests from outside the crate: what
//! comes back short must be asked for again until everything is there.

use std::num::NonZeroUsize;

use super::kernel::Registered;
use super::pool::MakeRing;
use super::ring::{Completed, Entry, Errno, Ring, Took, Work};
use crate::sync::Arc;

/// Another [`Ring`] of which each read or write transfers at most so many bytes.
#[derive(Debug)]
struct ShortRing {
    inner: Box<dyn Ring>,
    most: u32,
}

/// The first ring of a pool and those to come, with entries of at most so many bytes.
pub(super) fn shortened(
    most: Option<NonZeroUsize>,
    first: Box<dyn Ring>,
    make: Box<MakeRing>,
) -> (Box<dyn Ring>, Box<MakeRing>) {
    let Some(most) = most else { return (first, make) };
    let most = u32::try_from(most.get()).unwrap_or(u32::MAX);
    let short = move |inner| Box::new(ShortRing { inner, most }) as Box<dyn Ring>;
    (short(first), Box::new(move || make().map(short)))
}

impl Ring for ShortRing {
    fn entries(&self) -> usize {
        self.inner.entries()
    }

    unsafe fn push(&mut self, mut entry: Entry) -> bool {
        // Of a vectored read the length counts pieces; with a limit there are none.
        if matches!(entry.work, Work::Read | Work::Write) {
            entry.len = entry.len.min(self.most);
        }
        // SAFETY: the caller's promise is for more memory than the shortened entry names.
        unsafe { self.inner.push(entry) }
    }

    fn enter(&mut self, submit: bool, wait: usize) -> Result<Took, Errno> {
        self.inner.enter(submit, wait)
    }

    fn learn(&mut self, memory: &Arc<Registered>) {
        self.inner.learn(memory);
    }

    fn knows(&self, entry: &Entry) -> bool {
        self.inner.knows(entry)
    }

    fn drain(&mut self, into: &mut Vec<Completed>) {
        self.inner.drain(into);
    }
}
