//! How long it takes to write tables, by every way of writing, one after another in turns.
//!
//! One writer spends some processor time on each block of 256 KiB, as compression and checksums
//! do, appends it, and finishes the table with a sync. What other programs do meanwhile disturbs
//! all ways alike, so look at the ratios.
//!
//! ```sh
//! cargo run --release -p treering-env --example table_output -- DIR [MIB] [MICROSECONDS] [REPEATS]
//! ```

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use treering_env::{Env, FileKind, IoUringEnv, PosixEnv, WritePath};

const BLOCK: usize = 256 << 10;

/// Works for about `rounds` units that no compiler can leave out.
fn work(rounds: u64) {
    let mut state = 1_u64;
    for _ in 0..rounds {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7) | 1);
    }
    black_box(state);
}

/// How many units take so long, when nothing disturbs.
fn units(duration: Duration) -> u64 {
    const PROBE: u64 = 100_000;
    let once = || {
        let begun = Instant::now();
        work(PROBE);
        begun.elapsed()
    };
    let best = (0..50).map(|_| once()).min().unwrap_or_default();
    PROBE * u64::try_from(duration.as_nanos()).unwrap_or(0)
        / u64::try_from(best.as_nanos()).unwrap_or(1).max(1)
}

fn write_table(
    env: &dyn Env,
    path: &Path,
    block: &[u8],
    blocks: usize,
    units: u64,
) -> treering_env::Result<Duration> {
    let begun = Instant::now();
    let mut file = env.create(path, FileKind::Table)?;
    for _ in 0..blocks {
        work(units);
        file.append(block)?;
    }
    file.finish()?;
    let took = begun.elapsed();
    env.remove(path)?;
    Ok(took)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (mib, micros, repeats) = (number(64)?, number(150)?, number(5)?);
    let blocks = usize::try_from((mib << 20) / BLOCK as u64)?;
    let units = units(Duration::from_micros(micros));
    let block: Vec<u8> = (0..BLOCK).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();

    let ring = |path| IoUringEnv::builder().rings(1).write_path(path).build();
    let arms: [(&str, Arc<dyn Env>); 4] = [
        ("posix", Arc::new(PosixEnv::new())),
        ("io_uring, Caller", Arc::new(ring(WritePath::Caller)?)),
        ("io_uring, Auto", Arc::new(ring(WritePath::Auto)?)),
        ("io_uring, Reactor", Arc::new(ring(WritePath::Reactor)?)),
    ];
    let path = Path::new(&dir).join("table_output.tmp");
    let mut times = vec![Vec::new(); arms.len()];
    for _ in 0..repeats {
        for ((_, env), times) in arms.iter().zip(&mut times) {
            times.push(write_table(&**env, &path, &block, blocks, units)?);
        }
    }
    println!("{mib} MiB in blocks of 256 KiB, {micros} us of work each; medians of {repeats}");
    let base = median(&mut times[1]).as_secs_f64();
    for ((name, env), times) in arms.iter().zip(&mut times) {
        let (middle, report) = (median(times).as_secs_f64(), env.report());
        println!(
            "{name:<18} {:7.1} ms, {:.2} of Caller; {:?}; {} writes by the reactor, {} taken back, \
             at most {} in flight",
            middle * 1e3,
            middle / base,
            times.iter().map(Duration::as_millis).collect::<Vec<_>>(),
            report.counter("reactor_writes"),
            report.counter("taken_back"),
            report.counter("reactor_in_flight_peak"),
        );
    }
    Ok(())
}
