//! What the options of environments change about batches of reads: a few values of each beside
//! the default, in turns.
//!
//! ```sh
//! cargo run --release -p treering-env --example read_options -- DIR 9
//! ```

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use treering_env::{
    Access, Env, IoUringEnv, IoUringEnvBuilder, PosixEnv, RandomAccessFile, Request, read_batch,
};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

const FILE: usize = 256 << 20;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Reads that all arms of a group make.
#[derive(Clone, Copy)]
struct Work {
    title: &'static str,
    /// Bytes of a read.
    len: usize,
    /// Reads of a batch.
    batch: usize,
    batches: u32,
    threads: usize,
    /// Distance from one read to the next; 0: all over the file.
    stride: usize,
    /// The part of the file that is read from, from its beginning.
    within: usize,
}

struct Arm {
    name: &'static str,
    env: Arc<dyn Env>,
    /// Microseconds for a batch.
    times: Vec<f64>,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("usage: read_options DIR [TURNS]")?);
    let turns: usize = args.next().map_or(Ok(5), |turns| turns.parse())?;
    let path = dir.join("read_options.data");
    let _removed = Removed(&path);
    fs::write(&path, vec![7; FILE])?;
    fs::File::open(&path)?.sync_all()?;
    groups()?.into_iter().try_for_each(|(work, arms)| measure(&path, turns.max(1), work, arms))
}

fn groups() -> Result<Vec<(Work, Vec<Arm>)>> {
    let arm = |name, env| Arm { name, env, times: Vec::new() };
    let ring = |name, set: &dyn Fn(IoUringEnvBuilder) -> IoUringEnvBuilder| {
        let env = set(IoUringEnv::builder()).build()?;
        Ok::<_, treering_env::Unavailable>(arm(name, Arc::new(env)))
    };
    let hot = Work {
        title: "64 cached reads of 16 KiB",
        len: 16 << 10,
        batch: 64,
        batches: 300,
        threads: 1,
        stride: 0,
        within: 32 << 20,
    };
    let mapped = PosixEnv::builder().mmap_reads(true).build()?;
    let unringed = PosixEnv::builder().direct_reads(true).build()?;
    let direct = Work {
        title: "128 direct reads of 4 KiB",
        len: 4096,
        batch: 128,
        batches: 50,
        within: FILE,
        ..hot
    };
    let gaps = Work { title: "128 direct reads of every other page", stride: 8192, ..direct };
    let crowd =
        Work { title: "128 direct reads of 4 KiB in each of 4 threads", threads: 4, ..direct };
    Ok(vec![
        (
            hot,
            vec![
                ring("default", &|b| b)?,
                ring("buffer_pool(0)", &|b| b.buffer_pool(0))?,
                ring("buffer_pool(256 MiB)", &|b| b.buffer_pool(256 << 20))?,
                arm("PosixEnv", Arc::new(PosixEnv::new())),
                arm("PosixEnv mmap_reads", Arc::new(mapped)),
            ],
        ),
        (
            direct,
            vec![
                ring("ring_entries(256)", &|b| b.direct_reads(true))?,
                ring("ring_entries(32)", &|b| b.direct_reads(true).ring_entries(32))?,
                ring("ring_entries(1024)", &|b| b.direct_reads(true).ring_entries(1024))?,
                arm("PosixEnv direct_reads", Arc::new(unringed)),
            ],
        ),
        (
            gaps,
            vec![
                ring("merge_gap(0)", &|b| b.direct_reads(true))?,
                ring("merge_gap(4 KiB)", &|b| b.direct_reads(true).merge_gap(4096))?,
                ring("merge_gap(16 KiB)", &|b| b.direct_reads(true).merge_gap(16 << 10))?,
            ],
        ),
        (
            crowd,
            vec![
                ring("rings(16)", &|b| b.direct_reads(true).rings(16))?,
                ring("rings(4)", &|b| b.direct_reads(true).rings(4))?,
                ring("rings(1)", &|b| b.direct_reads(true).rings(1))?,
            ],
        ),
    ])
}

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn measure(path: &Path, turns: usize, work: Work, mut arms: Vec<Arm>) -> Result<()> {
    for turn in 0..turns {
        for which in order(turn, arms.len()) {
            let Arm { env, times, .. } = &mut arms[which];
            let time = run(path, env, work, turn)?;
            times.push(time.as_secs_f64() * 1e6 / f64::from(work.batches));
        }
    }
    println!("{}, medians of {turns} turns of {} batches", work.title, work.batches);
    let mut first = None;
    for Arm { name, env, times } in arms {
        let [least, middle, most] = spread(times);
        let ratio = middle / *first.get_or_insert(middle);
        let report = env.report();
        let [made, merged, reactor] =
            ["buffer_bytes_made", "merged_reads", "reactor_reads"].map(|name| report.counter(name));
        println!(
            "{name:>22}: {middle:6.0} us a batch ({least:.0}..{most:.0}), {ratio:.2} x; {} MiB made, \
             {merged} merged, {reactor} by the reactor",
            made >> 20,
        );
    }
    Ok(())
}

fn run(path: &Path, env: &Arc<dyn Env>, work: Work, turn: usize) -> Result<Duration> {
    let file = env.open(path, Access::Random)?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..work.threads)
            .map(|thread| {
                let file = Arc::clone(&file);
                scope.spawn(move || read(&**env, &file, work, turn * work.threads + thread))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no reader panics"))
    })?;
    Ok(begun.elapsed())
}

fn read(env: &dyn Env, file: &Arc<dyn RandomAccessFile>, work: Work, seed: usize) -> Result<()> {
    let places = work.within / work.len;
    for batch in 0..work.batches as usize {
        let number = (seed * work.batches as usize + batch) * work.batch;
        let request = |n: usize| {
            let offset = if work.stride > 0 {
                (number + n) * work.stride % work.within
            } else {
                (number + n) * 40_503 % places * work.len
            };
            Request::Read { file: Arc::clone(file), offset: offset as u64, len: work.len }
        };
        for result in read_batch(env, (0..work.batch).map(request).collect()) {
            assert_eq!(result?[0], 7, "the bytes that were written");
        }
    }
    Ok(())
}
