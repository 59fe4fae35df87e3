//! Backpressure: writes are delayed in proportion to the work that waits for the background, and
//! held back when it waits too long.
//!
//! The pressure is computed under the state lock whenever the state changes and kept in one
//! atomic, so that a write that need not wait takes no lock for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Shared;
use super::state::{Family, State};
use crate::compaction::pending_bytes;
use crate::{Result, trace};

/// The delay, in nanoseconds, of a write just before writes are held back altogether.
const LONGEST_DELAY: u64 = 1_000_000;
/// Bytes that wait for compaction from which writes are delayed, in level base sizes.
const SLOW_DEBT: u64 = 16;
/// Bytes that wait for compaction at which the delay is longest, in level base sizes.
const LARGEST_DEBT: u64 = 64;
/// Full pressure: delays are counted in shares of it.
const FULL: u64 = 1000;
/// The stored value that stands for "hold writes back".
const STOPPED: u64 = u64::MAX;

/// The pressure on writes, readable without a lock.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// The delay in nanoseconds, or [`STOPPED`].
    value: AtomicU64,
}

impl Pressure {
    /// Takes the pressure of `state`.
    pub(crate) fn refresh(&self, state: &State) {
        let share = state.families.values().map(share).max().unwrap_or(0);
        let value = if share >= FULL { STOPPED } else { LONGEST_DELAY * share / FULL };
        // Relaxed: a write that sees the value late is delayed late, and those that must wait
        // look at the state itself.
        self.value.store(value, Ordering::Relaxed);
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.value.load(Ordering::Relaxed))
    }

    /// Whether writes are held back.
    pub(crate) fn is_stopped(&self) -> bool {
        self.value.load(Ordering::Relaxed) == STOPPED
    }
}

/// How far a family is on the way from free writing (0) to none at all ([`FULL`]).
fn share(family: &Family) -> u64 {
    let options = &family.options;
    let files = family.version.files(0).len();
    if files >= options.level0_stop_trigger {
        return FULL;
    }
    let between = |value: u64, low: u64, high: u64| -> u64 {
        if value < low { 0 } else { ((value - low).min(high - low) + 1) * FULL / (high - low + 1) }
    };
    let slow = options.level0_slowdown_trigger as u64;
    let by_files = between(files as u64, slow, options.level0_stop_trigger as u64);
    // A full queue of frozen memtables: the next switch would wait.
    let by_memory =
        if family.frozen.len() >= options.max_immutable_memtables { FULL / 2 } else { 0 };
    let base = options.level_base_size;
    let (low, high) = (base.saturating_mul(SLOW_DEBT), base.saturating_mul(LARGEST_DEBT));
    let by_debt = between(pending_bytes(&family.version, options), low, high);
    // Only level 0 stops writes: debt alone ends at the longest delay.
    by_files.max(by_memory).max(by_debt).min(FULL - 1)
}

impl Shared {
    /// Lets a write in, after the delay that the pressure asks for; or refuses it with the error
    /// of the job that it would have to wait for.
    pub(crate) fn admit(&self) -> Result<()> {
        if self.inline() {
            self.admit_inline()?;
        } else if self.pressure.is_stopped() {
            let start = self.clock.now();
            let result = self.wait_while_stopped();
            trace::held_back(self.clock.now().saturating_sub(start), result.as_ref().err());
            return result;
        }
        let delay = self.pressure.delay();
        if delay > Duration::ZERO && !self.pressure.is_stopped() {
            self.stats.slowed_writes.add(1);
            self.clock.sleep(delay);
        }
        Ok(())
    }

    fn wait_while_stopped(&self) -> Result<()> {
        self.stats.stopped_writes.add(1);
        let mut state = self.state.lock();
        loop {
            self.check_writable()?;
            self.pressure.refresh(&state);
            if !self.pressure.is_stopped() {
                return Ok(());
            }
            if let Some(error) = state.compaction.error() {
                return Err(error);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Without threads nobody else can end the wait: what is due is tried here, and if that does
    /// not help the write is refused.
    fn admit_inline(&self) -> Result<()> {
        if !self.is_blocked_inline() {
            return Ok(());
        }
        self.stats.stopped_writes.add(1);
        self.run_due(super::background::Patience::None);
        self.check_writable()?;
        if !self.is_blocked_inline() {
            return Ok(());
        }
        let state = self.state.lock();
        let error = state.flush.error().or_else(|| state.compaction.error());
        drop(state);
        let Some(error) = error else { return Ok(()) };
        trace::held_back(Duration::ZERO, Some(&error));
        Err(error)
    }

    fn is_blocked_inline(&self) -> bool {
        let view = self.view.load();
        let memory = view.families().iter().any(|family| {
            family.is_full() && family.immutables.len() >= family.options.max_immutable_memtables
        });
        memory || self.pressure.is_stopped()
    }
}
