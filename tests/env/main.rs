//! Every environment keeps the contract: the conformance suite over each of them and over wrappers
//! of them, and long random runs of two side by side.

#[cfg(test)]
mod mirrored;
#[cfg(test)]
mod power;
#[cfg(test)]
mod scratch;
#[cfg(test)]
mod suite;
#[cfg(all(test, target_os = "linux"))]
mod uring;
#[cfg(test)]
mod user;
