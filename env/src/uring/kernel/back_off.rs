//! Waiting for locked memory: the kernel gives it back some time after the ring that held it was
//! closed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::SetupError;

/// Pauses before each further attempt after `ENOMEM`.
const PAUSES_MS: [u64; 5] = [5, 10, 20, 40, 80];

/// No wait was in vain yet.
const NEVER: u64 = u64::MAX;

/// What this process knows of locked memory.
static OF_THE_PROCESS: BackOff = BackOff::new();

/// Whether it makes sense to wait. Where a whole wait was in vain and this process gave nothing
/// back since, another one would be too: a process that makes a hundred environments under a small
/// limit waits once, not a hundred times.
#[derive(Debug)]
struct BackOff {
    /// How often a ring, or registered memory, was given back.
    given_back: AtomicU64,
    /// How often that was when a whole wait in vain began.
    in_vain: AtomicU64,
}

impl BackOff {
    const fn new() -> Self {
        Self { given_back: AtomicU64::new(0), in_vain: AtomicU64::new(NEVER) }
    }

    fn give_back(&self) {
        // Relaxed, like all of it: who misses a change waits once too often or not at all.
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }

    fn run<R>(
        &self,
        mut attempt: impl FnMut() -> Result<R, SetupError>,
        mut pause: impl FnMut(Duration),
    ) -> Result<R, SetupError> {
        let given_back = self.given_back.load(Ordering::Relaxed);
        let mut result = attempt();
        for milliseconds in PAUSES_MS {
            let short = matches!(result, Err(SetupError::Setup(libc::ENOMEM)));
            if !short || self.in_vain.load(Ordering::Relaxed) == given_back {
                return result;
            }
            pause(Duration::from_millis(milliseconds));
            result = attempt();
        }
        if matches!(result, Err(SetupError::Setup(libc::ENOMEM))) {
            self.in_vain.store(given_back, Ordering::Relaxed);
        }
        result
    }
}

/// Repeats an attempt that failed for want of locked memory, a bounded number of times, if that
/// can be of use.
pub(crate) fn with_memory_back_off<R>(
    attempt: impl FnMut() -> Result<R, SetupError>,
) -> Result<R, SetupError> {
    OF_THE_PROCESS.run(attempt, thread::sleep)
}

/// Locked memory is about to be given back.
pub(super) fn give_memory_back() {
    OF_THE_PROCESS.give_back();
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SHORT: Result<u32, SetupError> = Err(SetupError::Setup(libc::ENOMEM));

    #[test]
    fn want_of_memory_is_tried_again_a_bounded_number_of_times() {
        let (calls, pauses) = (Cell::new(0), Cell::new(0));
        let enough_after = |needed: u32| {
            calls.set(0);
            pauses.set(0);
            let attempt = || {
                calls.set(calls.get() + 1);
                if calls.get() < needed { SHORT } else { Ok(calls.get()) }
            };
            BackOff::new().run(attempt, |_| pauses.set(pauses.get() + 1))
        };
        assert_eq!((enough_after(4), pauses.get()), (Ok(4), 3));
        assert_eq!((enough_after(u32::MAX), calls.get(), pauses.get()), (SHORT, 6, 5));
    }

    /// URING-25
    #[test]
    fn a_hundred_refused_environments_wait_once_until_memory_is_given_back() {
        let pauses = Cell::new(0);
        let back_off = BackOff::new();
        let refused = || {
            for _ in 0..100 {
                assert_eq!(back_off.run(|| SHORT, |_| pauses.set(pauses.get() + 1)), SHORT);
            }
            pauses.get()
        };
        assert_eq!(refused(), 5);
        back_off.give_back();
        assert_eq!(refused(), 10, "a ring was closed: its memory may come");
        back_off.give_back();
        let mut left = 3;
        let attempt = || {
            left -= 1;
            if left > 0 { SHORT } else { Ok(7) }
        };
        assert_eq!(back_off.run(attempt, |_| ()), Ok(7));
        assert_eq!(refused(), 15, "a wait that was of use says nothing about the next");
    }
}
