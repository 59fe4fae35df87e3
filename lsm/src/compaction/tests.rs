//! Picker and jobs on an environment in memory.
