//! The one place that names the primitives of shared state, so that a model checker's can be put
//! in their stead by editing this file alone.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, OnceLock};
