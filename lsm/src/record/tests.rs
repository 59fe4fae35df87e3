//! Tests of the record layer on real bytes.
