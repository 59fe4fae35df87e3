//! The version set on an environment in memory.
