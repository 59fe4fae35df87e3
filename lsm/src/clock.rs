//! The engine's only source of time, so that tests and simulation can replace it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A monotonic clock. Time is used for delays and statistics only: nothing is ever deleted or
/// decided because of it.
pub trait Clock: Send + Sync + Debug {
    /// Time since an arbitrary start. May stand still; a step back counts as no time.
    fn now(&self) -> Duration;

    /// Waits for about this long.
    fn sleep(&self, duration: Duration);
}

/// The system's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
