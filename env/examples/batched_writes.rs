//! How long a batch of direct positional writes takes: through the queue of `IoUringEnv`, by one
//! `pwrite` after another, and by threads that share them.
//!
//! The file is allocated and written once before, so no write changes its size. Each batch goes to
//! places of its own, in an order that is not that of the file. The ways take turns, each turn
//! begins with another one, and what each wrote in the first is read back and compared. What other
//! programs do meanwhile disturbs all ways alike, so look at the ratios.
//!
//! ```sh
//! cargo run --release -p treering-env --example batched_writes -- DIR [REPEATS]
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use treering_env::{Buffer, Completion, Env, IoUringEnv, PosixEnv, RandomRwFile, Request};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

/// The file is at most so long.
const FILE: usize = 256 << 20;
const COUNTS: [usize; 3] = [10, 100, 1000];
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 256 << 10];
/// Threads of the widest way.
const MANY_THREADS: usize = 16;

/// The writes of one turn.
struct Batch {
    size: usize,
    /// Where each goes; no two overlap.
    offsets: Vec<u64>,
    /// Tells the bytes of this turn from all others.
    stamp: u64,
}

impl Batch {
    fn new(count: usize, size: usize, stamp: u64) -> Self {
        let places = FILE / size;
        // An odd stride visits each of the places, whose number is a power of two, once.
        let stride = (places * 5 / 8) | 1;
        let first = usize::try_from(stamp).unwrap_or(0) * 7919;
        let place = |n: usize| (first + n * stride) % places;
        Self { size, offsets: (0..count).map(|n| (place(n) * size) as u64).collect(), stamp }
    }

    /// The bytes of one write.
    fn data(&self, offset: u64) -> Buffer {
        let mut data = Buffer::zeroed(self.size);
        let word = (offset ^ self.stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
        data.as_mut_slice().chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
        data
    }

    fn all_data(&self) -> Vec<(u64, Buffer)> {
        self.offsets.iter().map(|offset| (*offset, self.data(*offset))).collect()
    }
}

/// A way to make all writes of a batch.
#[derive(Clone, Copy)]
enum Way {
    Queue,
    Serial,
    Threads(usize),
}

/// Makes the writes; their memory is ready before the clock starts.
fn run(way: Way, env: &dyn Env, file: &Arc<dyn RandomRwFile>, batch: &Batch, sync: bool) -> Took {
    let data = batch.all_data();
    let begun = Instant::now();
    let done = match way {
        Way::Queue => through_queue(env, file, data),
        Way::Serial => data.iter().try_for_each(|(at, data)| file.write_all_at(data, *at)),
        Way::Threads(threads) => by_threads(file, &data, threads),
    };
    let done = done.and_then(|()| if sync { file.sync() } else { Ok(()) });
    done.map(|()| begun.elapsed())
}

type Took = treering_env::Result<Duration>;

fn through_queue(
    env: &dyn Env,
    file: &Arc<dyn RandomRwFile>,
    data: Vec<(u64, Buffer)>,
) -> treering_env::Result<()> {
    let mut queue = env.queue();
    for (tag, (offset, data)) in (0..).zip(data) {
        queue.push(tag, Request::Write { file: Arc::clone(file), offset, data });
    }
    while let Some(Completion { result, .. }) = queue.pop() {
        result?;
    }
    Ok(())
}

fn by_threads(
    file: &Arc<dyn RandomRwFile>,
    data: &[(u64, Buffer)],
    threads: usize,
) -> treering_env::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((offset, data)) = data.get(next.fetch_add(1, Ordering::Relaxed)) {
            file.write_all_at(data, *offset)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("no writer panics"))
    })
}

/// Reads back what a batch wrote and compares.
fn verify(file: &Arc<dyn RandomRwFile>, batch: &Batch) -> Result<(), Box<dyn Error>> {
    let mut there = Buffer::zeroed(batch.size);
    for offset in &batch.offsets {
        file.read_exact_at(there.as_mut_slice(), *offset)?;
        if *there != *batch.data(*offset) {
            return Err(format!("other bytes at {offset} than were written").into());
        }
    }
    Ok(())
}

/// Allocates the file and writes all of it once.
fn prepare(env: &dyn Env, path: &Path) -> treering_env::Result<Arc<dyn RandomRwFile>> {
    let file = env.open_rw(path)?;
    let zeros = Buffer::zeroed(1 << 20);
    (0..FILE >> 20).try_for_each(|mib| file.write_all_at(&zeros, (mib << 20) as u64))?;
    file.sync()?;
    Ok(file)
}

/// One line: the median time with its spread, and how many times as fast as the serial loop, as the
/// median of the turns.
#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn show(name: &str, times: &[Duration], serial: &[Duration], notes: &str) {
    let [least, middle, most] = spread(times.iter().map(|time| time.as_secs_f64() * 1e6));
    let pairs = serial.iter().zip(times).map(|(serial, time)| serial.div_duration_f64(*time));
    let [_, ratio, _] = spread(pairs);
    println!("  {name:<14} {middle:>9.0} us {least:>9.0}..{most:<9.0} {ratio:>5.2}{notes}");
}

const USAGE: &str = "usage: batched_writes DIR [REPEATS]";

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().filter(|dir| Path::new(dir).is_dir()).ok_or(USAGE)?;
    let repeats = arguments.next().map_or(Ok(5), |text| text.parse()).map_err(|_| USAGE)?;
    if repeats == 0 || arguments.next().is_some() {
        return Err(USAGE.into());
    }
    let cores = std::thread::available_parallelism()?.get();
    let ways = [
        ("serial loop", Way::Serial),
        ("queue", Way::Queue),
        ("threads 2x", Way::Threads(2 * cores)),
        ("threads 16", Way::Threads(MANY_THREADS)),
    ];
    let plain = PosixEnv::builder().direct_rw(true).build()?;
    let path = Path::new(&dir).join("batched_writes.tmp");
    let _removed = Removed(&path);
    let file = prepare(&plain, &path)?;
    let mut stamp = 0;
    println!("{cores} processors, medians of {repeats}, min..max, times as fast as the loop");
    for (sync, size, count) in cases() {
        let mut times = vec![Vec::new(); ways.len()];
        let ring = IoUringEnv::builder().direct_rw(true).build()?;
        for turn in 0..repeats {
            for which in order(turn, ways.len()) {
                stamp += 1;
                let batch = Batch::new(count, size, stamp);
                times[which].push(run(ways[which].1, &ring, &file, &batch, sync)?);
                if turn == 0 {
                    verify(&file, &batch)?;
                }
            }
        }
        let end = if sync { ", one sync" } else { "" };
        println!("{count} x {} KiB{end}", size >> 10);
        let report = ring.report();
        for ((name, way), ours) in ways.iter().zip(&times) {
            let notes = format!(
                "  ({} on the ring, {} enters, {} at once, {} deep)",
                report.counter("ring_writes") / repeats as u64,
                report.counter("ring_enters") / repeats as u64,
                report.counter("sqes_per_enter_peak"),
                report.counter("in_flight_peak"),
            );
            show(name, ours, &times[0], if matches!(way, Way::Queue) { &notes } else { "" });
        }
    }
    Ok(())
}

/// What is measured: with one sync at the end or none, the size of a write, how many.
fn cases() -> impl Iterator<Item = (bool, usize, usize)> {
    let of = |sync| SIZES.into_iter().flat_map(move |size| COUNTS.map(|count| (sync, size, count)));
    [false, true].into_iter().flat_map(of)
}
