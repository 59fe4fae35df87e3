//! What a batch of direct reads costs a queue that finds no free ring: with a ring of its own,
//! through the reactor, and with neither.
//!
//! ```sh
//! cargo run --release -p treering-env --example without_a_ring -- DIR 9
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use treering_env::{
    Access, Env, FileKind, IoQueue, IoUringEnv, RandomAccessFile, Request, WritePath,
};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

const FILE: u64 = 256 << 20;
const PAGE: usize = 4096;
const BATCH: u64 = 64;
const BATCHES: u32 = 50;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Who reads, and the counter that must have moved, by the batches of one turn.
const ARMS: [(&str, WritePath, bool, &str); 3] = [
    ("a ring of its own", WritePath::Auto, false, "ring_reads"),
    ("the reactor's ring", WritePath::Auto, true, "reactor_reads"),
    ("no ring", WritePath::Caller, true, "fallback_preads"),
];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("usage: without_a_ring DIR [TURNS]")?);
    let turns: usize = args.next().map_or(Ok(5), |turns| turns.parse())?;
    let path = dir.join("without_a_ring.data");
    let _removed = Removed(&path);
    write(&path)?;
    measure(&path, turns.max(1))
}

fn write(path: &Path) -> Result<()> {
    let env = IoUringEnv::new()?;
    let mut file = env.create(path, FileKind::Table)?;
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251).to_le_bytes()[0]).collect();
    for _ in 0..FILE >> 20 {
        file.append(&block)?;
    }
    file.finish()?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn measure(path: &Path, turns: usize) -> Result<()> {
    let mut times: [Vec<f64>; 3] = Default::default();
    for turn in 0..turns {
        for which in order(turn, ARMS.len()) {
            let time = run(path, ARMS[which], turn as u64)?;
            times[which].push(time.as_secs_f64() * 1e6 / f64::from(BATCHES));
        }
    }
    println!("{BATCH} direct reads of 4 KiB, medians of {turns} turns of {BATCHES} batches");
    let spreads = times.map(spread);
    for ((name, ..), [least, middle, most]) in ARMS.iter().zip(spreads) {
        let ratio = middle / spreads[0][1];
        println!("{name:>20}: {middle:8.0} us a batch ({least:.0}..{most:.0}), {ratio:.2} x");
    }
    Ok(())
}

fn run(path: &Path, arm: (&str, WritePath, bool, &str), seed: u64) -> Result<Duration> {
    let (name, writes, held, counter) = arm;
    let env = IoUringEnv::builder().rings(1).direct_reads(true).write_path(writes).build()?;
    let file = env.open(path, Access::Random)?;
    let mut holder = env.queue();
    if held {
        read(&mut *holder, &file, seed, BATCH);
        // The first answer may be that of the look which tells what the file can do.
        for _ in 0..2 {
            holder.pop().ok_or("the holder was asked for more")?.result?;
        }
    }
    let before = env.report();
    let begun = Instant::now();
    for batch in 0..BATCHES {
        let mut queue = env.queue();
        read(&mut *queue, &file, seed + u64::from(batch) * BATCH, BATCH);
        let mut popped = 0;
        while let Some(completion) = queue.pop() {
            completion.result?;
            popped += 1;
        }
        assert_eq!(popped, BATCH);
    }
    let time = begun.elapsed();
    let moved = env.report().since(&before).counter(counter);
    // A few are left to the look that tells what the file can do, or lie next to each other.
    assert!(
        moved >= BATCH * u64::from(BATCHES) * 9 / 10,
        "{name}: {counter} moved by {moved} only"
    );
    Ok(time)
}

/// Pushes reads of scattered pages.
fn read(queue: &mut dyn IoQueue, file: &Arc<dyn RandomAccessFile>, seed: u64, count: u64) {
    for n in 0..count {
        let page = (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let offset = page % (FILE / PAGE as u64) * PAGE as u64;
        queue.push(n, Request::Read { file: Arc::clone(file), offset, len: PAGE });
    }
}
