//! The command line's grammar.

pub(crate) mod device;
pub(crate) mod memory;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use self::device::{BENCH_DEVICE, BenchDevice};
use self::memory::Memory;
use super::encoding::Encoding;
use super::environment::EnvName;
use super::failure::{EXIT_CODES, Failure, Result};
use super::layout::Format;
use super::size::{
    parse_cache_size, parse_count, parse_keys, parse_memory_limit, parse_seconds, parse_value_size,
};
use crate::Durability as EngineDurability;

/// An embeddable key-value store on a pluggable storage environment.
#[derive(Debug, Parser)]
#[command(name = "treering", version, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Store a value under a key, creating the database if the directory is absent or empty.
    Put(Put),
    /// Print the value of a key.
    Get(Get),
    /// Delete a key. Succeeds whether or not it is there.
    Delete(Delete),
    /// Print the entries of a range of keys, in order.
    Scan(Scan),
    /// Look up many keys in one call, from arguments or a file.
    MultiGet(MultiGet),
    /// Store the lines of a file or of standard input.
    #[command(long_about = IMPORT)]
    Import(Import),
    /// Write the entries as lines that `import` takes.
    #[command(long_about = EXPORT)]
    Export(Export),
    /// Print the engine's figures, what recovery found, and what the environment really uses.
    Stats(Report),
    /// Read every block of every file and report each damage with file and offset.
    Verify(Report),
    /// Print what is in a table, a log segment or a manifest.
    #[command(long_about = DUMP)]
    Dump(Dump),
    /// Flush, then compact a range of keys (all of them by default) into the deepest level.
    Compact(Compact),
    /// Say what this machine offers, which environment is advised, and why.
    Doctor(Doctor),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
}

const IMPORT: &str = "\
Store the lines of a file or of standard input.

TSV: the key is what stands before the first tab, the value all that follows. With --key COLUMN \
(a number from 1, or a name if the first line is a --header) the value is the whole line, or \
--value COLUMN.

JSON lines: the key is the field --key FIELD of the object on each line; a string stands for its \
text, anything else for its JSON. The value is the whole line, or the field --value FIELD.

A key that comes again replaces the value stored before, so the last line of a key wins. Lines \
are stored in batches. When the command stops at a bad line, the entries of all lines before it \
are stored; when it fails otherwise, those of the batches before. At the end everything is made \
durable, whatever --durability says for the batches.

A CR before the line feed belongs to the last column, unless the --header line ends in CR LF too.";

const EXPORT: &str = "\
Write the entries as lines that `import` takes.

Give the same --format, --key, --value and --encoding as to `import`: the lines are then the \
imported ones byte for byte, in the order of their keys, without those that a later line of the \
same key replaced (and each with a line feed, the last one too). To compare files, sort both \
with LC_ALL=C. A --header line is not stored and so not written.";

const DUMP: &str = "\
Print what is in a table, a log segment, a manifest or CURRENT.

With --json each line is an object whose field `what` says what it is. Keys, values and names are \
whole, as `scan --json` prints them (a string, or {\"hex\": \"..\"} for what is no UTF-8); ids and \
epochs are 16 hexadecimal digits; what is absent is null. Damage ends the lines with an error.

  Records of logs and manifests: begin, data, end, marker, edit, each with offset, record, bytes, \
durable_below; begin also with role, number, epoch, after, after_end, after_record; data with \
sequence, operations; end with next, next_epoch, next_prepared. What is in a record follows it.
  put and delete (logs and tables): family (null in tables), sequence, key, value of put.
  no_more_records: offset, zeros.  spare: nothing.
  Parts of an edit: format: format.  next_file_number, last_sequence, next_family_id: number.
  log: number, epoch, prepared, first_record, end, last_record.
  drop_family: family.  add_family: family, name.
  family_log: family, needs_logs_from, flushed_sequence.
  remove_table: family, level, number.
  add_table: family, level, number, bytes, id, entries, smallest_sequence, largest_sequence, \
smallest_key, largest_key.
  table: id, bytes, entries, deletions, smallest_sequence, largest_sequence, key_bytes, \
value_bytes, data_end, largest_block, block_size, restart_interval, bloom_bits_per_key, \
compression, smallest_key, largest_key.
  block, before its entries: offset, bytes.
  current: text.  names_manifest: number.";

/// The database and the environment to open it on.
#[derive(Args, Debug)]
pub(crate) struct Store {
    /// The directory of the database.
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) on: On,
}

/// The environment.
#[derive(Args, Debug)]
pub(crate) struct On {
    /// The environment for all file operations. `mem` starts empty and ends with the command.
    /// Without this the variable `TREERING_ENV` decides, and without that `auto`.
    #[arg(long, value_enum)]
    env: Option<EnvName>,
    #[command(flatten)]
    pub(crate) memory: Memory,
}

/// The variable that names the environment where `--env` does not.
const ENV_VARIABLE: &str = "TREERING_ENV";

impl On {
    /// The environment to use.
    pub(crate) fn env(&self) -> Result<EnvName> {
        Ok(asked(self.env)?.unwrap_or(EnvName::Auto))
    }
}

/// The environment that `--env`, or else the variable, names, if one does. An empty variable counts
/// as none.
pub(crate) fn asked(env: Option<EnvName>) -> Result<Option<EnvName>> {
    let named = std::env::var_os(ENV_VARIABLE).filter(|name| !name.is_empty());
    let (None, Some(named)) = (env, named) else { return Ok(env) };
    let named = named.to_string_lossy();
    EnvName::from_str(&named, false).map(Some).map_err(|_| {
        let all: Vec<&str> = EnvName::value_variants().iter().map(|env| env.name()).collect();
        Failure::usage(format!(
            "the variable {ENV_VARIABLE} is `{named}`; set it to one of {}, or unset it",
            all.join(", ")
        ))
    })
}

/// How bytes are written.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Bytes {
    /// How keys and values are written, in arguments, files and output.
    #[arg(long, value_enum, default_value_t = Encoding::Text)]
    encoding: Encoding,
    /// Short for --encoding hex.
    #[arg(long, conflicts_with = "encoding")]
    hex: bool,
}

impl Bytes {
    /// The encoding asked for.
    pub(crate) fn encoding(self) -> Encoding {
        if self.hex { Encoding::Hex } else { self.encoding }
    }
}

/// How long a write lasts once the command returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// In memory; handed to the system when the command ends.
    Buffered,
    /// Survives the death of the process, not a power loss.
    Flushed,
    /// Survives a power loss.
    Synced,
}

impl From<Durability> for EngineDurability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Buffered => Self::Buffered,
            Durability::Flushed => Self::Flushed,
            Durability::Synced => Self::Synced,
        }
    }
}

/// A database and one of its keys.
#[derive(Args, Debug)]
pub(crate) struct Entry {
    #[command(flatten)]
    pub(crate) store: Store,
    /// The key; at most 65,535 bytes.
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) bytes: Bytes,
}

/// How long a single write lasts.
#[derive(Args, Debug)]
pub(crate) struct Lasting {
    /// How long the write lasts once the command returned.
    #[arg(long, value_enum, default_value_t = Durability::Synced)]
    pub(crate) durability: Durability,
}

/// Whether the answer is for a program.
#[derive(Args, Debug)]
pub(crate) struct Json {
    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) entry: Entry,
    /// The value; at most 1 GiB.
    #[arg(required_unless_present = "value_file", conflicts_with = "value_file")]
    pub(crate) value: Option<OsString>,
    /// Take the value from this file, byte for byte; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) value_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) lasting: Lasting,
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) entry: Entry,
    /// Write the value's bytes and nothing else, not even a line feed.
    #[arg(long, conflicts_with_all = ["json", "hex", "encoding"])]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) output: Json,
}

#[derive(Args, Debug)]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) entry: Entry,
    #[command(flatten)]
    pub(crate) lasting: Lasting,
}

/// A range of keys.
#[derive(Args, Debug)]
pub(crate) struct Keys {
    /// The first key of the range.
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// The end of the range; this key itself is not in it.
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Only keys that start with this.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// Stop after this many entries.
    #[arg(long, value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    /// From the last key to the first.
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print keys only.
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Print a JSON object on each line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) bytes: Bytes,
}

#[derive(Args, Debug)]
pub(crate) struct MultiGet {
    #[command(flatten)]
    pub(crate) store: Store,
    /// The keys.
    #[arg(required_unless_present = "keys_file", conflicts_with = "keys_file")]
    pub(crate) keys: Vec<OsString>,
    /// Take the keys from this file, one a line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_file: Option<PathBuf>,
    /// Keys looked up in one call.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 1024)]
    pub(crate) batch: u32,
    /// Print values only.
    #[arg(long, conflicts_with = "json")]
    pub(crate) values_only: bool,
    /// Print a JSON object on each line, for missing keys too.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) bytes: Bytes,
}

/// How lines and entries correspond.
#[derive(Args, Debug)]
pub(crate) struct LineFormat {
    /// The format of the lines.
    #[arg(long, value_enum, default_value_t = Format::Tsv)]
    pub(crate) format: Format,
    /// The key's field (JSON lines) or column (TSV).
    #[arg(long, value_name = "FIELD")]
    pub(crate) key: Option<String>,
    /// The value's field or column; without it the value is the whole line.
    #[arg(long, value_name = "FIELD")]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) bytes: Bytes,
}

/// What to do with a line that cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// End with an error that names the line.
    Stop,
    /// Report the line, go on, and count.
    Skip,
}

#[derive(Args, Debug)]
pub(crate) struct Import {
    #[command(flatten)]
    pub(crate) store: Store,
    /// The file; `-` is standard input.
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) lines: LineFormat,
    /// The first line of a TSV file names its columns.
    #[arg(long)]
    pub(crate) header: bool,
    /// What to do with a line that cannot be stored.
    #[arg(long, value_enum, default_value_t = OnError::Stop)]
    pub(crate) on_error: OnError,
    /// Lines stored in one batch (a batch also ends at 1 MiB).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 1000)]
    pub(crate) batch: u32,
    /// How long each batch lasts once it is stored. At the end everything is synced.
    #[arg(long, value_enum, default_value_t = Durability::Flushed)]
    pub(crate) durability: Durability,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) store: Store,
    /// The file to create; `-` is standard output.
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) lines: LineFormat,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

/// What `stats` and `verify` take.
#[derive(Args, Debug)]
pub(crate) struct Report {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) output: Json,
}

#[derive(Args, Debug)]
pub(crate) struct Dump {
    /// The file: a table (*.sst), a log segment (*.log), a manifest (MANIFEST-*) or CURRENT.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) on: On,
    /// Stop after this many entries, records or edits.
    #[arg(long, value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
    /// Print a JSON object on each line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Compact {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) keys: Keys,
    #[command(flatten)]
    pub(crate) bytes: Bytes,
    /// Print the figures afterwards as a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The directory whose file system is looked at; a database's, or where one will be.
    #[arg(default_value = ".")]
    pub(crate) directory: PathBuf,
    /// Also try this environment there: write, sync and read two small files. If it does not
    /// work the command fails (3) and says why. Without this the variable `TREERING_ENV` names
    /// it, and without that none is tried.
    #[arg(long, value_enum)]
    pub(crate) env: Option<EnvName>,
    #[command(flatten)]
    pub(crate) output: Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The same database on each environment, side by side.
    #[command(long_about = BENCH_ENVS)]
    Envs(Box<BenchEnvs>),
    /// Random reads and writes straight on a file, beside plain calls and fio.
    #[command(long_about = BENCH_DEVICE)]
    Device(Box<BenchDevice>),
    /// Perform one run, described as JSON on standard input (what `envs` starts).
    #[command(hide = true)]
    Run,
}

const BENCH_ENVS: &str = "\
The same database on each environment, side by side.

A database of --keys random-looking keys is built once, without compression, and fully compacted. \
Each run is a process of its own that opens it on one environment and works for --seconds; the \
environments take turns within each --repeat. Every value read is compared with what it must be.

Cold runs join a memory cgroup of --memory-limit (where that is allowed; otherwise the report \
says so) and then drop the tables from the page cache. Hot runs read them into it first. fill and \
fill-sync write to a database of their own and count as hot.

ops/s and CPU count keys (rows for scan); latencies are per call: one key for get and the fills, \
one batch for multiget, up to 1000 rows for scan. The table shows medians over the repeats, the \
least and the most ops/s of them, and ratios to posix-serial; below it stands how the reads were \
served. Ctrl-C removes what is unfinished.";

/// The work a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Puts of new keys in random order, flushed to the system.
    Fill,
    /// Puts of new keys in random order, each synced to the device.
    FillSync,
    /// Look-ups of random keys, one a call.
    Get,
    /// Look-ups of random keys, --batch a call.
    #[value(name = "multiget")]
    #[serde(rename = "multiget")]
    MultiGet,
    /// Reading all entries in order.
    Scan,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchEnvs {
    /// What to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t =
        [Workload::Fill, Workload::FillSync, Workload::Get, Workload::MultiGet, Workload::Scan])]
    pub(crate) workloads: Vec<Workload>,
    /// The environments. `mem` cannot be compared: its database would be gone with the process
    /// that built it.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t =
        [EnvName::PosixSerial, EnvName::Posix, EnvName::IoUring])]
    pub(crate) envs: Vec<EnvName>,
    /// Keys in the database, 1 to 1000M [default: 4M; quick: 400k].
    #[arg(long, value_parser = parse_keys)]
    pub(crate) keys: Option<u64>,
    /// Bytes of each value, 8 to 1GiB.
    #[arg(long, value_parser = parse_value_size, default_value = "400")]
    pub(crate) value_size: u64,
    /// Keys in one multiget.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 128)]
    pub(crate) batch: u32,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Vec<u32>,
    /// How long each run works [default: 5; quick: 0.5].
    #[arg(long, value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// How often each run is done [default: 5; quick: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Where keys, values and the order of look-ups come from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where the database is; kept, and used again if it is the one asked for. Without this it
    /// is in a new directory here, which is removed afterwards.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Only cold runs of the reading workloads (with --hot too: both, the default).
    #[arg(long)]
    pub(crate) cold: bool,
    /// Only hot runs of the reading workloads.
    #[arg(long)]
    pub(crate) hot: bool,
    /// The memory a cold run may use, page cache included, 16MiB at least [default: a third of the
    /// data, at least 48 MiB].
    #[arg(long, value_parser = parse_memory_limit)]
    pub(crate) memory_limit: Option<u64>,
    /// Bytes of block cache. None by default, so that every read reaches the environment.
    #[arg(long, value_parser = parse_cache_size, default_value = "0")]
    pub(crate) block_cache: u64,
    /// A small database and short runs: under two minutes in all.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write all runs to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_are_comma_separated_and_sizes_have_units() {
        let line = "treering bench envs --workloads get,multiget --envs posix,io_uring \
                    --threads 1,8 --value-size 4KiB --memory-limit 500MiB --keys 4M";
        let Command::Bench(Bench::Envs(bench)) =
            Cli::try_parse_from(line.split_whitespace()).unwrap().command
        else {
            panic!("another command was parsed");
        };
        assert_eq!(bench.workloads, [Workload::Get, Workload::MultiGet]);
        assert_eq!(bench.envs, [EnvName::Posix, EnvName::IoUring]);
        assert_eq!(bench.threads, [1, 8]);
        assert_eq!((bench.value_size, bench.memory_limit), (4096, Some(500 << 20)));
        assert_eq!(bench.keys, Some(4_000_000));
    }
}
