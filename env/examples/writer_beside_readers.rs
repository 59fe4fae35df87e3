//! What a writer gets done beside twice as many busy readers as there are processors, in each
//! environment over the operating system.
//!
//! The writer appends records of 256 bytes to a log and syncs after every so many, as puts do, or
//! writes tables in blocks of 256 KiB. The readers do nothing but push batches of reads to a queue
//! of the same environment and pop them, from a file that is in the page cache, or from one that
//! was dropped from it before and of which they read no page twice. The environments take turns.
//! What other programs do meanwhile disturbs both alike, so look at the ratios.
//!
//! ```sh
//! cargo run --release -p treering-env --example writer_beside_readers -- DIR [MILLISECONDS] [ROUNDS]
//! ```

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use treering_env::{Access, Env, FileKind, IoUringEnv, PosixEnv, RandomAccessFile, Request};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

const RECORD: usize = 256;
/// Records between two syncs.
const SYNC_EACH: usize = 32;
/// Space of a log; a full one is followed by another.
const LOG: u64 = 4 << 20;
const BLOCK: usize = 256 << 10;
/// Blocks of a table.
const BLOCKS: usize = 64;
/// Reads of one batch, of a page each.
const BATCH: usize = 64;
const PAGE: usize = 4 << 10;
/// From one page that is read to the next.
const STRIDE: u64 = 40_503;
/// The file that stays in the page cache, and the one that does not.
const HOT: usize = 32 << 20;
const COLD: usize = 512 << 20;

/// What the readers read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    Hot,
    Cold,
}

/// What the writer writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Log,
    Tables,
}

struct Place {
    hot: PathBuf,
    cold: PathBuf,
    new: PathBuf,
}

/// Bytes written, and pages read, in a second.
#[derive(Clone, Copy)]
struct Rates {
    written: f64,
    read: f64,
}

/// Writes for that long, beside readers that begin before and end after.
fn run(
    env: &dyn Env,
    place: &Place,
    readers: Readers,
    writer: Writer,
    time: Duration,
) -> treering_env::Result<Rates> {
    let (stop, pages) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = match readers {
        Readers::None => 0,
        Readers::Hot | Readers::Cold => {
            2 * std::thread::available_parallelism().map_or(1, usize::from) as u64
        }
    };
    std::thread::scope(|scope| {
        let work = |first| read_until(env, place, readers, (first, count), &stop, &pages);
        let threads: Vec<_> = (0..count).map(|first| scope.spawn(move || work(first))).collect();
        while count > 0 && pages.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let (before, begun) = (pages.load(Ordering::Relaxed), Instant::now());
        let written = match writer {
            Writer::Log => write_logs(env, &place.new, begun, time),
            Writer::Tables => write_tables(env, &place.new, begun, time),
        };
        let took = begun.elapsed().as_secs_f64();
        let read = pages.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("no reader panics"))?;
        Ok(Rates { written: to_f64(written?) / took, read: to_f64(read) / took })
    })
}

/// Exact enough for a rate.
fn to_f64(count: u64) -> f64 {
    Duration::from_nanos(count).as_secs_f64() * 1e9
}

fn write_logs(
    env: &dyn Env,
    path: &Path,
    begun: Instant,
    time: Duration,
) -> treering_env::Result<u64> {
    let record = [7; RECORD];
    let mut written = 0;
    while begun.elapsed() < time {
        let mut log = env.create(path, FileKind::Log)?;
        log.handle().prepare(LOG)?;
        while begun.elapsed() < time && log.len() < LOG {
            (0..SYNC_EACH).try_for_each(|_| log.append(&record))?;
            log.sync()?;
        }
        written += log.len();
        drop(log);
        env.remove(path)?;
    }
    Ok(written)
}

fn write_tables(
    env: &dyn Env,
    path: &Path,
    begun: Instant,
    time: Duration,
) -> treering_env::Result<u64> {
    let block = vec![7; BLOCK];
    let mut written = 0;
    while begun.elapsed() < time {
        let mut table = env.create(path, FileKind::Table)?;
        (0..BLOCKS).try_for_each(|_| table.append(&block))?;
        written += table.finish()?;
        env.remove(path)?;
    }
    Ok(written)
}

fn read_until(
    env: &dyn Env,
    place: &Place,
    readers: Readers,
    (first, step): (u64, u64),
    stop: &AtomicBool,
    pages: &AtomicU64,
) -> treering_env::Result<()> {
    let path = if readers == Readers::Cold { &place.cold } else { &place.hot };
    let file: Arc<dyn RandomAccessFile> = env.open(path, Access::Random)?;
    let count = file.size() / PAGE as u64;
    let mut queue = env.queue();
    let mut next = first;
    while !stop.load(Ordering::Relaxed) {
        for tag in 0..BATCH as u64 {
            // An odd stride visits each of the pages, whose number is a power of two, once.
            let offset = (next * STRIDE) % count * PAGE as u64;
            next += step;
            queue.push(tag, Request::Read { file: Arc::clone(&file), offset, len: PAGE });
        }
        while let Some(completion) = queue.pop() {
            completion.result?;
        }
        pages.fetch_add(BATCH as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Drops a file from the page cache. Advice: what stays is read from there.
fn evict(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    Ok(rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed)?)
}

/// A line for one environment: rates, and how many times the writer of the first it got done.
#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn show(name: &str, ours: &[Rates], first: &[Rates], unit: f64) {
    let [least, middle, most] = spread(ours.iter().map(|rates| rates.written / unit));
    let [_, ratio, _] = spread(ours.iter().zip(first).map(|(a, b)| a.written / b.written));
    let [_, read, _] = spread(ours.iter().map(|rates| rates.read / 1e3));
    println!("  {name:<10} {middle:>9.1} {least:>9.1}..{most:<9.1} {ratio:>6.2} {read:>9.1}");
}

const USAGE: &str = "usage: writer_beside_readers DIR [MILLISECONDS] [ROUNDS]";

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().filter(|dir| Path::new(dir).is_dir()).ok_or(USAGE)?;
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.parse().ok().filter(|number| *number > 0).ok_or(USAGE),
        None => Ok(default),
    };
    let (time, rounds) = (Duration::from_millis(number(300)?), number(5)?);
    if arguments.next().is_some() {
        return Err(USAGE.into());
    }
    let dir = Path::new(&dir);
    let at = |name: &str| dir.join(format!("writer_beside_readers.{name}"));
    let place = Place { hot: at("hot"), cold: at("cold"), new: at("new") };
    let _removed = [&place.hot, &place.cold, &place.new].map(|path| Removed(path));
    for (path, size) in [(&place.hot, HOT), (&place.cold, COLD)] {
        std::fs::write(path, vec![7; size])?;
        File::open(path)?.sync_all()?;
    }
    let arms: [(&str, Arc<dyn Env>); 2] =
        [("posix", Arc::new(PosixEnv::new())), ("io_uring", Arc::new(IoUringEnv::new()?))];
    println!("{rounds} rounds of {time:?}; medians, min..max, of posix; thousands of pages read/s");
    let (none, hot, cold) = (Readers::None, Readers::Hot, Readers::Cold);
    for (what, writer, unit) in [
        ("records of 256 B/s, a sync each 32", Writer::Log, to_f64(RECORD as u64)),
        ("MiB/s of tables of 16 MiB", Writer::Tables, to_f64(1 << 20)),
    ] {
        for (beside, readers) in [("no reader", none), ("hot readers", hot), ("cold readers", cold)]
        {
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..usize::try_from(rounds)? {
                for which in order(round, arms.len()) {
                    evict(&place.cold)?;
                    rates[which].push(run(&*arms[which].1, &place, readers, writer, time)?);
                }
            }
            println!("{what}, beside {beside}");
            for ((name, _), ours) in arms.iter().zip(&rates) {
                show(name, ours, &rates[0], unit);
            }
        }
    }
    Ok(())
}
