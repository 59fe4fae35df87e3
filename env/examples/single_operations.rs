//! What single operations cost in each environment over the operating system, one environment after
//! another in turns.
//!
//! A batch of each operation is timed in every environment before the next turn, and each turn
//! begins with another environment. A ratio is the median of those of one turn. What other programs
//! do meanwhile disturbs all alike.
//!
//! ```sh
//! cargo run --release -p treering-env --example single_operations -- DIR [ROUNDS]
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use treering_env::{Access, Env, FileKind, IoUringEnv, PosixEnv, WritePath};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

/// Bytes of a table whose appends are timed.
const TABLE: usize = 16 << 20;

/// One kind of operation.
#[derive(Clone, Copy)]
enum Operation {
    /// Appends of so many bytes, so many times, to a log with prepared space.
    Log(usize, usize),
    /// Appends of so many bytes to a table of [`TABLE`]: what its writer spends on each.
    Table(usize),
    /// The same, flushed: all of it is with the operating system.
    FlushedTable(usize),
    /// A whole table, finished: all of it is on the medium.
    WholeTable(usize),
    /// An append of a page to such a log, and a sync.
    Sync(usize),
    /// A read of a page from the page cache.
    Read(usize),
    /// An open of a file that is there, and its close.
    Open(usize),
}

impl Operation {
    const ALL: [(&str, Self); 11] = [
        ("log append 256 B", Self::Log(256, 8192)),
        ("log append 4 KiB", Self::Log(4 << 10, 1024)),
        ("log append 64 KiB", Self::Log(64 << 10, 128)),
        ("table append 256 B", Self::Table(256)),
        ("table append 4 KiB", Self::Table(4 << 10)),
        ("table append 64 KiB", Self::Table(64 << 10)),
        ("table of 16 MiB, flushed", Self::FlushedTable(4 << 10)),
        ("table of 16 MiB, finished", Self::WholeTable(4 << 10)),
        ("4 KiB append, sync", Self::Sync(256)),
        ("read 4 KiB, hot", Self::Read(8192)),
        ("open and close", Self::Open(2048)),
    ];

    /// The time of one, in a batch of its kind.
    fn run(self, env: &dyn Env, place: &Place) -> treering_env::Result<Duration> {
        let (took, count) = match self {
            Self::Log(len, count) => (place.append_to_log(env, len, count, false)?, count),
            Self::Sync(count) => (place.append_to_log(env, 4 << 10, count, true)?, count),
            Self::Table(len) => (place.append_to_table(env, len)?[0], TABLE / len),
            Self::FlushedTable(len) => (place.append_to_table(env, len)?[1], 1),
            Self::WholeTable(len) => (place.append_to_table(env, len)?[2], 1),
            Self::Read(count) => (place.read(env, count)?, count),
            Self::Open(count) => (place.open(env, count)?, count),
        };
        Ok(took / u32::try_from(count).expect("batches are small"))
    }
}

/// Where the files are.
struct Place {
    /// A file of a MiB, in the page cache.
    there: PathBuf,
    /// Where new ones go.
    new: PathBuf,
    data: Vec<u8>,
}

impl Place {
    fn append_to_log(
        &self,
        env: &dyn Env,
        len: usize,
        count: usize,
        sync: bool,
    ) -> treering_env::Result<Duration> {
        let mut file = env.create(&self.new, FileKind::Log)?;
        file.handle().prepare((len * count) as u64)?;
        let begun = Instant::now();
        for _ in 0..count {
            file.append(&self.data[..len])?;
            if sync {
                file.sync()?;
            }
        }
        let took = begun.elapsed();
        // Nothing is left to be written back while others are timed.
        file.finish()?;
        env.remove(&self.new)?;
        Ok(took)
    }

    /// How long the appends took, with the flush, and with the end of the table.
    fn append_to_table(&self, env: &dyn Env, len: usize) -> treering_env::Result<[Duration; 3]> {
        let mut file = env.create(&self.new, FileKind::Table)?;
        let begun = Instant::now();
        for _ in 0..TABLE / len {
            file.append(&self.data[..len])?;
        }
        let appended = begun.elapsed();
        file.flush()?;
        let flushed = begun.elapsed();
        // It also leaves nothing to be written back while others are timed.
        file.finish()?;
        let finished = begun.elapsed();
        env.remove(&self.new)?;
        Ok([appended, flushed, finished])
    }

    fn read(&self, env: &dyn Env, count: usize) -> treering_env::Result<Duration> {
        let file = env.open(&self.there, Access::Random)?;
        let mut page = vec![0; 4 << 10];
        let pages = file.size() / page.len() as u64;
        let begun = Instant::now();
        for n in 0..count as u64 {
            file.read_exact_at(&mut page, n * 7 % pages * (4 << 10))?;
        }
        Ok(begun.elapsed())
    }

    fn open(&self, env: &dyn Env, count: usize) -> treering_env::Result<Duration> {
        let begun = Instant::now();
        for _ in 0..count {
            drop(env.open(&self.there, Access::Random)?);
        }
        Ok(begun.elapsed())
    }
}

const USAGE: &str = "usage: single_operations DIR [ROUNDS]";

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().filter(|dir| Path::new(dir).is_dir()).ok_or(USAGE)?;
    let rounds: usize = arguments.next().map_or(Ok(9), |text| text.parse()).map_err(|_| USAGE)?;
    if rounds == 0 || arguments.next().is_some() {
        return Err(USAGE.into());
    }
    let all_by_reactor = IoUringEnv::builder().write_path(WritePath::Reactor);
    let arms: [(&str, Arc<dyn Env>); 3] = [
        ("posix", Arc::new(PosixEnv::new())),
        ("io_uring", Arc::new(IoUringEnv::new()?)),
        ("Reactor", Arc::new(all_by_reactor.build()?)),
    ];
    let dir = Path::new(&dir);
    let data = vec![7; 64 << 10];
    let (there, new) = (dir.join("single_operations.there"), dir.join("single_operations.new"));
    let place = Place { there, new, data };
    let _removed = [Removed(&place.there), Removed(&place.new)];
    std::fs::write(&place.there, place.data.repeat(16))?;
    println!("{rounds} rounds; us for one, min..max, median of the ratios to posix in a round");
    for (name, operation) in Operation::ALL {
        let mut micros = vec![Vec::new(); arms.len()];
        for round in 0..rounds {
            for which in order(round, arms.len()) {
                let took = operation.run(&*arms[which].1, &place)?;
                micros[which].push(took.as_secs_f64() * 1e6);
            }
        }
        println!("{name}");
        for ((arm, _), ours) in arms.iter().zip(&micros) {
            let ratios = ours.iter().zip(&micros[0]).map(|(ours, posix)| ours / posix);
            let [_, ratio, _] = spread(ratios);
            let [least, middle, most] = spread(ours.iter().copied());
            println!("  {arm:<10} {middle:>9.2} {least:>9.2}..{most:<9.2} {ratio:>6.3}");
        }
    }
    Ok(())
}
