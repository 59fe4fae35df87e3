//! The public behaviour of a database, on `MemEnv` unless a test says otherwise.
//!
//! Most tests run without background threads, where the whole engine is deterministic; what
//! depends on threads is in `threads`.

mod basics;
mod costs;
mod families;
mod multi_get;
mod opening;
mod poison;
mod reopen;
mod snapshots;
mod support;
mod threads;
