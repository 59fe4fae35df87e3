//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::data::Sizes;
use crate::peer::Name;
use crate::work::Workload;

/// Treering beside other embedded key-value stores: the same keys, the same work, in turns, in one
/// run. Every value that is read is compared with what was written.
///
/// Databases are built once and kept in --dir for the next run. As root, cold workloads run in a
/// memory cgroup; otherwise their files are dropped from the page cache before each turn, and the
/// table says so. README.md beside the sources says how each peer is set and why.
#[derive(Debug, Parser)]
#[command(name = "peers", version)]
pub struct Args {
    /// What to measure [default: all but hot-get-page-cache and load-sorted]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workloads: Vec<Workload>,
    /// What to compare [default: all that can run here]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub peers: Vec<Name>,
    /// Number of keys, such as 300k or 4M
    #[arg(long, default_value = "1M", value_parser = count)]
    pub keys: u64,
    /// Bytes of a value, or the smallest and largest of values evenly in between
    #[arg(long, default_value = "100..1000", value_name = "BYTES")]
    pub value_size: Sizes,
    /// Keys in a batch
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Threads that look keys up or scan
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Seconds of a turn
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Turns of each peer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Memory of a process in cold workloads [default: 0.3 of the data, at least 96 MiB]
    #[arg(long, value_parser = count, value_name = "BYTES")]
    pub memory: Option<u64>,
    /// Keys that hot workloads touch [default: all, at most 1M]
    #[arg(long, value_parser = count, value_name = "KEYS")]
    pub hot_keys: Option<u64>,
    /// Keys that loads put [default: a quarter of --keys]
    #[arg(long, value_parser = count, value_name = "KEYS")]
    pub load_keys: Option<u64>,
    /// Where keys, values and orders come from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the databases are kept
    #[arg(long, default_value = "target/peers-data")]
    pub dir: PathBuf,
    /// Only build the databases that are missing
    #[arg(long)]
    pub prepare: bool,
    /// Build the databases anew
    #[arg(long)]
    pub rebuild: bool,
    /// Write settings, machine, every turn and what was in use to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A first look, figures of little weight: 200k keys of 400 bytes, turns of 0.1 s
    #[arg(long, conflicts_with_all = ["keys", "value_size", "seconds"])]
    pub quick: bool,
}

impl Args {
    /// The command line, with what it implies filled in.
    pub fn read() -> Self {
        let mut args = Self::parse();
        if args.quick {
            args.keys = 200_000;
            args.value_size = Sizes { least: 400, most: 400 };
            args.seconds = 0.1;
        }
        if args.workloads.is_empty() {
            let rare = [Workload::HotGetPageCache, Workload::LoadSorted];
            let all = Workload::value_variants().iter().copied();
            args.workloads = all.filter(|workload| !rare.contains(workload)).collect();
        }
        args
    }
}

/// A number with an optional unit: k, M, G are powers of a thousand, KiB, MiB, GiB of 1024.
fn count(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("k", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("", 1),
    ];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*factor)
    });
    match parsed {
        Some(0) | None => Err("a positive number such as 300k, 4M or 500MiB is needed".to_owned()),
        Some(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn counts_have_units() {
        assert_eq!(count("300k"), Ok(300_000));
        assert_eq!(count("500MiB"), Ok(500 << 20));
        assert_eq!(count("7"), Ok(7));
        assert!(count("0").is_err() && count("1T").is_err() && count("-1").is_err());
    }
}
