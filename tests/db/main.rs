//! The public behaviour of a database, on `MemEnv` unless a test says otherwise.
//!
//! Most tests run without background threads, where the whole engine is deterministic; what
//! depends on threads is in `threads`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test by panicking")]

mod allocator;
mod basics;
mod buffered;
mod closing;
mod columns;
mod costs;
mod crash;
mod damage_cases;
mod events;
mod families;
mod held;
mod locks;
mod manifest_cases;
mod multi_get;
mod neighbours;
mod opening;
mod order;
mod panics;
mod planted;
mod poison;
mod read_cases;
mod removals;
mod reopen;
mod scans;
mod short_transfers;
mod snapshots;
mod stalls;
mod support;
mod threads;
mod wal_cases;
