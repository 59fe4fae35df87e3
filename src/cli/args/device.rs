//! What `bench device` takes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::size::{human_size, parse_seconds, parse_size, size_within};

/// Direct transfers of any device fit multiples of this.
pub(crate) const UNIT: u64 = 4096;
const LARGEST_BLOCK: u64 = 4 << 20;
const SMALLEST_FILE: u64 = 1 << 20;
const LARGEST_FILE: u64 = 1 << 40;

pub(crate) const BENCH_DEVICE: &str = "\
Random reads and writes straight on a file, through the environment's queue.

No database is involved. Each thread keeps --depth operations in one queue of an io_uring \
environment. Beside it, on the same file, run `pread` (each thread one plain call after another), \
`pread-pool` (depth x threads threads of plain calls, at most 1024) and `fio`, where it is \
installed, with the same block size, depth, threads and direct flag. Lists are swept: every \
combination is a case, and in each the engines take turns within each --repeat.

A new file is written from start to end and synced first, because holes and unwritten extents \
read too fast; every sector says which it is, and is looked at after every read. Some of the \
blocks written are read back. fio does not look at what it reads. Before each run the file is \
dropped from the page cache.

randread is direct unless --direct says otherwise; randwrite goes through the page cache. Writes \
are synced after each run, outside its time, so without --direct true they tell what the calls \
cost, not what the device does.

The table shows medians over the repeats; the ratios are medians of the pairs of one repeat. CPU \
is of all threads, the kernel's work for them included. `depth` is what was reached for each \
thread: the average by Little's law, and for the queue no more than the peak that the environment \
reports. Where it differs from --depth by more than 10 % the table says so aloud. A latency is \
from handing an operation over until its result is taken.

--registered, --sqpoll, --iopoll and --rings are options of the queue's environment. Each takes a \
list, and every combination takes its turn beside the engines within each --repeat, as `queue+reg`, \
`queue+sq`, `queue+io`, `queue/RINGS`. Below the table stands, by the counters of the environment, \
what was really in use. One that this machine refuses is left out, with the reason.

Presets (options beside them win; reads are direct, so that the device is measured):
  garnet   a store with one ring for each submitting thread and at most 128 operations of each in \
flight: randread 4KiB, depth 128, twice as many threads as cores (at most 32)
  ganesha  a file server with 2 rings of 64 entries, whose gain in operations cost tail latency: \
randread 32KiB, depth 64, 2 threads; look at p99.9 and p99.99
  lmcache  a cache of blocks that puts and gets batches of at most 64 entries: randread,randwrite \
64KiB, depth 64, 1 thread
  chunks   random chunks of sharded arrays, as a matrix: randread 4KiB,16KiB,64KiB, depth \
8,32,128, threads 1,2,4

Ctrl-C removes what was made, but not a --file that is complete.";

/// What is done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeviceWorkload {
    /// Reads of random blocks.
    #[value(name = "randread")]
    RandRead,
    /// Writes of random blocks in place.
    #[value(name = "randwrite")]
    RandWrite,
}

/// Who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    /// The queue of an `io_uring` environment.
    Queue,
    /// One pread or pwrite after another in each thread.
    Pread,
    /// As many threads of plain calls as operations are to be in flight.
    PreadPool,
    /// The program fio.
    Fio,
}

impl Engine {
    /// The name as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Pread => "pread",
            Self::PreadPool => "pread-pool",
            Self::Fio => "fio",
        }
    }
}

impl DeviceWorkload {
    /// The name as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
        }
    }
}

/// A shape of work; see [`BENCH_DEVICE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// A ring for each submitting thread.
    Garnet,
    /// A file server.
    Ganesha,
    /// A cache of blocks, in batches.
    Lmcache,
    /// A matrix of chunk sizes.
    Chunks,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchDevice {
    /// A shape of work, for what is not given.
    #[arg(long, value_enum)]
    pub(crate) preset: Option<Preset>,
    /// What is done [default: randread]. Reads come first, whatever the order.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) workloads: Vec<DeviceWorkload>,
    /// Who does it.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t =
        [Engine::Queue, Engine::Pread, Engine::PreadPool, Engine::Fio])]
    pub(crate) engines: Vec<Engine>,
    /// Bytes of each operation, multiples of 4KiB up to 4MiB [default: 4KiB].
    #[arg(long, value_delimiter = ',', value_parser = parse_block_size)]
    pub(crate) block_size: Vec<u64>,
    /// Operations that each thread keeps in flight, 1 to 4096 [default: 32].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: Vec<u32>,
    /// Numbers of threads, 1 to 256 [default: 1].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Vec<u32>,
    /// Past the page cache or not [default: true for randread, false for randwrite].
    #[arg(long, value_delimiter = ',')]
    pub(crate) direct: Vec<bool>,
    /// The queue with 16MiB of registered buffers, for direct reads [default: false; alone: true].
    #[arg(long, value_delimiter = ',', num_args = 0..=1, default_missing_value = "true")]
    pub(crate) registered: Vec<bool>,
    /// The queue with a thread of the kernel that takes its entries, however few the processors
    /// [default: false; alone: true].
    #[arg(long, value_delimiter = ',', num_args = 0..=1, default_missing_value = "true")]
    pub(crate) sqpoll: Vec<bool>,
    /// The queue with rings that ask the device for completions [default: false; alone: true].
    #[arg(long, value_delimiter = ',', num_args = 0..=1, default_missing_value = "true")]
    pub(crate) iopoll: Vec<bool>,
    /// Rings of the queue's environment, 1 to 256 [default: as many as threads].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) rings: Vec<u32>,
    /// How long each run works.
    #[arg(long, value_parser = parse_seconds, default_value = "2")]
    pub(crate) seconds: f64,
    /// How often each run is done.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    pub(crate) repeat: u32,
    /// Bytes of a new file, 1MiB to 1024GiB, rounded down to 4KiB.
    #[arg(long, value_parser = parse_file_size, default_value = "2GiB")]
    pub(crate) file_size: u64,
    /// The file. One that is there is used as it is, and never written to by randread; one that
    /// is not is made, and stays.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) file: Option<PathBuf>,
    /// Where a file is made that is removed afterwards [default: here].
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Let randwrite destroy a --file that this benchmark did not make.
    #[arg(long, requires = "file")]
    pub(crate) overwrite: bool,
    /// Where the order of offsets comes from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write all runs to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

fn parse_block_size(text: &str) -> Result<u64, String> {
    let range = "it must be a multiple of 4KiB from 4KiB to 4MiB";
    let size = parse_size(text).map_err(|what| format!("{what}; {range}"))?;
    let fits = (UNIT..=LARGEST_BLOCK).contains(&size) && size.is_multiple_of(UNIT);
    if fits { Ok(size) } else { Err(format!("{} does not fit: {range}", human_size(size))) }
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    let size = size_within(text, SMALLEST_FILE, LARGEST_FILE, "from 1MiB to 1024GiB")?;
    Ok(size - size % UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks_and_files_are_told_their_range() {
        assert_eq!(parse_block_size("64KiB"), Ok(64 << 10));
        for text in ["0", "512", "5000", "8MiB", "x"] {
            let why = parse_block_size(text).unwrap_err();
            assert!(why.contains("a multiple of 4KiB from 4KiB to 4MiB"), "{text}: {why}");
        }
        assert_eq!(parse_file_size("1048577"), Ok(1 << 20));
        for text in ["0", "1023KiB", "2000GiB", "x"] {
            assert!(parse_file_size(text).unwrap_err().contains("from 1MiB to 1024GiB"), "{text}");
        }
    }
}
