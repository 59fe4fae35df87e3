//! The options of the io_uring environment, each with its range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::thread;

use super::{IoUringEnv, Unavailable, WritePath};
use crate::sync::Arc;
use crate::sys::KernelSys;

const RING_ENTRIES: RangeInclusive<u32> = 8..=4096;
const RINGS: RangeInclusive<usize> = 1..=256;
const MAX_IN_FLIGHT: RangeInclusive<usize> = 1..=4096;
const WRITE_BUDGET: RangeInclusive<usize> = 256 << 10..=64 << 30;

/// Makes an [`IoUringEnv`] with other than the default options.
#[derive(Clone, Debug)]
#[must_use]
pub struct IoUringEnvBuilder {
    pub(super) ring_entries: u32,
    pub(super) rings: Option<usize>,
    pub(super) max_in_flight: usize,
    pub(super) direct_reads: bool,
    pub(super) direct_writes: bool,
    pub(super) nowait: bool,
    pub(super) write_path: WritePath,
    pub(super) write_budget: usize,
}

impl Default for IoUringEnvBuilder {
    fn default() -> Self {
        Self {
            ring_entries: 256,
            rings: None,
            max_in_flight: 64,
            direct_reads: false,
            direct_writes: false,
            nowait: true,
            write_path: WritePath::Auto,
            write_budget: 32 << 20,
        }
    }
}

impl IoUringEnvBuilder {
    /// Entries of each ring, 8 to 4096, rounded up to a power of two. Default: 256. One ring of
    /// 256 entries takes about 50 KiB of locked memory since Linux 6.14.
    pub fn ring_entries(mut self, entries: u32) -> Self {
        self.ring_entries = entries;
        self
    }

    /// How many rings are made, 1 to 256. Default: twice the cores, at least 16 and at most 64.
    /// Each queue with reads in flight holds one; a queue that finds none reads without. Fewer are
    /// made if the kernel refuses more, and the report says so.
    pub fn rings(mut self, rings: usize) -> Self {
        self.rings = Some(rings);
        self
    }

    /// How many reads one queue has issued or ready at once, 1 to 4096. Default: 64, which is what
    /// one fast drive does in parallel; 128 suits the fastest. More of them take more memory.
    pub fn max_in_flight(mut self, reads: usize) -> Self {
        self.max_in_flight = reads;
        self
    }

    /// Reads files opened for random access past the page cache, through the ring. Default: off.
    /// Halves the CPU time of a read from the device and makes every read one: for use with a block
    /// cache as good as the page cache would be. Opening a file on a file system without direct
    /// I/O is an error of kind `Unsupported`.
    pub fn direct_reads(mut self, on: bool) -> Self {
        self.direct_reads = on;
        self
    }

    /// Writes tables past the page cache, into space allocated ahead; see
    /// [`PosixEnvBuilder::direct_writes`](crate::PosixEnvBuilder::direct_writes). Default: off.
    /// Creating a table on a file system without direct I/O is an error of kind `Unsupported`.
    pub fn direct_writes(mut self, on: bool) -> Self {
        self.direct_writes = on;
        self
    }

    /// Looks for batched reads in the page cache, until one is not there, before they go to a ring.
    /// Default: on. Off, every read goes to the ring, and one that is cached costs a ring entry:
    /// meant for comparing.
    pub fn nowait(mut self, on: bool) -> Self {
        self.nowait = on;
        self
    }

    /// Who makes the writes of appended files. Default: [`WritePath::Auto`].
    pub fn write_path(mut self, path: WritePath) -> Self {
        self.write_path = path;
        self
    }

    /// Bytes of buffers that writers may have with the reactor, 256 KiB to 64 GiB. Default: 32 MiB,
    /// enough for 32 tables being written at once. A writer that finds it used waits for one of its
    /// own writes, or, if none is out, writes on its own thread; `reactor_budget_full` counts that.
    pub fn write_budget(mut self, bytes: usize) -> Self {
        self.write_budget = bytes;
        self
    }

    /// Finds out whether io_uring works here, with a real read, and makes the rings. Takes a few
    /// milliseconds; up to 160 more where locked memory is short.
    pub fn build(self) -> Result<IoUringEnv, Unavailable> {
        IoUringEnv::with_sys(Arc::new(KernelSys), &self)
    }

    /// Whether every option is in its range.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        in_range("ring_entries", &self.ring_entries, &RING_ENTRIES)?;
        in_range("max_in_flight", &self.max_in_flight, &MAX_IN_FLIGHT)?;
        in_range("write_budget", &self.write_budget, &WRITE_BUDGET)?;
        self.rings.map_or(Ok(()), |rings| in_range("rings", &rings, &RINGS))
    }

    /// How many rings to make.
    pub(super) fn ring_count(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        self.rings.unwrap_or((2 * cores).clamp(16, 64))
    }
}

fn in_range<T: PartialOrd + Display>(
    name: &'static str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), Unavailable> {
    if range.contains(value) {
        return Ok(());
    }
    let allowed = format!("{} to {}", range.start(), range.end());
    Err(Unavailable::InvalidOption { name, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_out_of_range_is_named_with_its_value_and_range() {
        let wrong = [
            (IoUringEnv::builder().ring_entries(4), "ring_entries", "4", "8 to 4096"),
            (IoUringEnv::builder().ring_entries(4097), "ring_entries", "4097", "8 to 4096"),
            (IoUringEnv::builder().rings(0), "rings", "0", "1 to 256"),
            (IoUringEnv::builder().max_in_flight(0), "max_in_flight", "0", "1 to 4096"),
            (IoUringEnv::builder().write_budget(1), "write_budget", "1", "262144 to 68719476736"),
        ];
        for (builder, name, value, allowed) in wrong {
            let (value, allowed) = (value.to_owned(), allowed.to_owned());
            let expected = Unavailable::InvalidOption { name, value, allowed };
            assert_eq!(builder.build().unwrap_err(), expected);
        }
    }

    #[test]
    fn the_default_number_of_rings_lies_between_16_and_64() {
        assert!((16..=64).contains(&IoUringEnv::builder().ring_count()));
        assert_eq!(IoUringEnv::builder().rings(3).ring_count(), 3);
    }
}
