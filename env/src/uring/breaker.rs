//! The circuit breaker of an environment: when rings keep failing requests that plain calls can
//! serve, it keeps reads and writes off the rings for a while.
//!
//! It has no clock: it opens and closes by counting operations, so a simulation replays it.

use crate::sync::{Arc, AtomicU64, Ordering};
use crate::trace;

/// What one failed completion, or a ring that is given up, adds, in units of one good operation.
const FAULT: u64 = 1000;
/// The level at which it opens.
const OPENS: u64 = 3000;
/// The level never exceeds this, so that a burst does not keep rings away for very long.
const HIGHEST: u64 = 8 * OPENS;
/// Set while it is open; the level is in the other bits.
const OPEN: u64 = 1 << 63;

/// See the module. Clones are the same breaker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    state: Arc<AtomicU64>,
}

impl Breaker {
    /// Whether reads and writes keep off the rings.
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed, here and below: the state guards no other memory.
        self.state.load(Ordering::Relaxed) & OPEN != 0
    }

    /// The present level: zero means that nothing went wrong lately.
    pub(crate) fn level(&self) -> u64 {
        self.state.load(Ordering::Relaxed) & !OPEN
    }

    /// Counts a completion that failed for a passing reason, or a ring that is given up; true if
    /// that opened the breaker.
    pub(crate) fn fault(&self) -> bool {
        let before = self.change(|state| {
            let level = ((state & !OPEN) + FAULT).min(HIGHEST);
            if level >= OPENS { level | OPEN } else { level | state & OPEN }
        });
        let opened = before & OPEN == 0 && before + FAULT >= OPENS;
        if opened {
            trace::breaker_opened();
        }
        opened
    }

    /// Counts a good completion, or an operation served by a plain call.
    pub(crate) fn good(&self) {
        // The usual case writes nothing, so threads do not meet here.
        if self.state.load(Ordering::Relaxed) == 0 {
            return;
        }
        let before = self.change(|state| match (state & !OPEN).saturating_sub(1) {
            0 => 0,
            level => level | state & OPEN,
        });
        if before == 1 | OPEN {
            trace::breaker_closed();
        }
    }

    fn change(&self, edit: impl Fn(u64) -> u64) -> u64 {
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(edit(state)))
            .expect("the edit always gives a state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_at_three_faults_and_closes_only_when_all_are_worked_off() {
        let breaker = Breaker::default();
        assert!(!breaker.fault() && !breaker.fault() && !breaker.is_open());
        assert!(breaker.fault() && breaker.is_open());
        assert!(!breaker.fault(), "it opens once");
        for _ in 0..3999 {
            breaker.good();
        }
        assert!(breaker.is_open());
        breaker.good();
        assert!(!breaker.is_open());
        assert_eq!(breaker.level(), 0);
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn opening_and_closing_are_told_once_each() {
        let breaker = Breaker::default();
        let told = trace::told_by(|| assert_eq!((0..9).filter(|_| breaker.fault()).count(), 1));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("WARN message=rings fail again and again"), "{told:?}");
        let told = trace::told_by(|| (0..20_000).for_each(|_| breaker.good()));
        assert_eq!(told, ["INFO message=rings are used again"]);
    }

    #[test]
    fn good_operations_between_faults_keep_it_closed() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.fault());
            (0..1000).for_each(|_| breaker.good());
        }
        assert_eq!(breaker.level(), 0);
    }
}
