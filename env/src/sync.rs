//! The one place that names the primitives of shared state, so that a model checker's can be put
//! in their stead by editing this file alone.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};
pub(crate) use std::sync::{Arc, OnceLock, Weak};

/// How often who waits for the reactor looks whether a shutdown has given it up.
pub(crate) const LOOKS_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// The primitives of protocols that have a model: under `--cfg loom` such as it can follow.
#[cfg(not(loom))]
pub(crate) mod modelled {
    pub(crate) use parking_lot::{Condvar, Mutex, Mutex as LooseMutex};
    pub(crate) use std::sync::atomic::{AtomicUsize, fence};
}
#[cfg(loom)]
pub(crate) mod modelled;
