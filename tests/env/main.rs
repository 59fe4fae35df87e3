//! Every environment keeps the contract: the conformance suite over each of them and over wrappers
//! of them, and long random runs of two side by side.

mod mirrored;
mod power;
mod scratch;
mod suite;
#[cfg(target_os = "linux")]
mod uring;
mod user;
