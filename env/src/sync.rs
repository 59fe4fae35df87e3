//! The one place that names the primitives of shared state, so that a model checker's can be put
//! in their stead by editing this file alone.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Arc, OnceLock, Weak};

/// How often who waits for the reactor looks whether a shutdown has given it up.
pub(crate) const LOOKS_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// The primitives of protocols that have a model: loom's under `--cfg loom`.
pub(crate) mod modelled {
    #[cfg(not(loom))]
    pub(crate) use parking_lot::Mutex;

    /// loom's mutex behind the interface of the real one, which knows no poison.
    #[cfg(loom)]
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    #[cfg(loom)]
    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no thread of a model panics while it holds a lock")
        }
    }
}
