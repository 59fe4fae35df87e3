//! Tests of verification and dumps.
