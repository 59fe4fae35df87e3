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
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use treering_env::{Env, FileKind, IoUringEnv, PosixEnv, WritePath};

use turns::{Removed, order, spread};

#[path = "shared/turns.rs"]
mod turns;

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

/// The times of one table.
#[derive(Clone, Copy)]
struct Took {
    /// Until every byte was with the operating system.
    written: Duration,
    /// Until the table was on the medium.
    synced: Duration,
}

fn write_table(
    env: &dyn Env,
    path: &Path,
    block: &[u8],
    blocks: usize,
    units: u64,
) -> treering_env::Result<Took> {
    let begun = Instant::now();
    let mut file = env.create(path, FileKind::Table)?;
    for _ in 0..blocks {
        work(units);
        file.append(block)?;
    }
    file.flush()?;
    let written = begun.elapsed();
    file.finish()?;
    let synced = begun.elapsed();
    env.remove(path)?;
    Ok(Took { written, synced })
}

/// The same with plain writes, and nothing that starts the write-back before the sync.
fn write_plainly(path: &Path, block: &[u8], blocks: usize, units: u64) -> std::io::Result<Took> {
    let begun = Instant::now();
    let mut file = std::fs::File::create(path)?;
    for _ in 0..blocks {
        work(units);
        file.write_all(block)?;
    }
    let written = begun.elapsed();
    file.sync_all()?;
    let synced = begun.elapsed();
    std::fs::remove_file(path)?;
    Ok(Took { written, synced })
}

/// How many times as fast `ours` are as `base`: the median of the pairs of one turn.
fn ratio(base: &[Took], ours: &[Took], of: impl Fn(&Took) -> Duration) -> f64 {
    let pairs = base.iter().zip(ours).map(|(base, ours)| of(base).div_duration_f64(of(ours)));
    spread(pairs)[1]
}

#[expect(clippy::print_stdout, reason = "a program for people to read")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (mib, micros, repeats) = (number(64)?, number(150)?, usize::try_from(number(5)?)?);
    let blocks = usize::try_from((mib << 20) / BLOCK as u64)?;
    let units = units(Duration::from_micros(micros));
    let block: Vec<u8> = (0..BLOCK).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();

    let ring = || IoUringEnv::builder().rings(1);
    let arms: [(&str, Arc<dyn Env>); 8] = [
        ("posix", Arc::new(PosixEnv::new())),
        ("posix direct", Arc::new(PosixEnv::builder().direct_writes(true).build()?)),
        ("io_uring, Caller", Arc::new(ring().write_path(WritePath::Caller).build()?)),
        ("io_uring, no early", Arc::new(ring().early_sync(None).build()?)),
        ("io_uring, Auto", Arc::new(ring().build()?)),
        ("io_uring, Reactor", Arc::new(ring().write_path(WritePath::Reactor).build()?)),
        ("io_uring, 1 MiB", Arc::new(ring().write_budget(1 << 20).build()?)),
        ("io_uring, direct", Arc::new(ring().direct_writes(true).build()?)),
    ];
    let path = Path::new(&dir).join("table_output.tmp");
    let _removed = Removed(&path);
    // Plain writes are the last of the ways.
    let mut times = vec![Vec::new(); arms.len() + 1];
    for turn in 0..repeats {
        for which in order(turn, times.len()) {
            times[which].push(match arms.get(which) {
                Some((_, env)) => write_table(&**env, &path, &block, blocks, units)?,
                None => write_plainly(&path, &block, blocks, units)?,
            });
        }
    }
    let plain = times.pop().expect("it was put there");
    println!("{mib} MiB in blocks of 256 KiB, {micros} us of work each; medians of {repeats}");
    println!(
        "{:18} {:>10}  throughput of posix, of plain {:>12}  of posix",
        "", "ms", "unsynced ms"
    );
    let posix = &times[0];
    let show = |name: &str, ours: &[Took], notes: &str| {
        let millis =
            |of: fn(&Took) -> Duration| spread(ours.iter().map(|t| of(t).as_secs_f64() * 1e3))[1];
        println!(
            "{name:<18} {:10.1}  {:>19.2} {:>9.2} {:>12.1} {:>9.2}{notes}",
            millis(|took| took.synced),
            ratio(posix, ours, |took| took.synced),
            ratio(&plain, ours, |took| took.synced),
            millis(|took| took.written),
            ratio(posix, ours, |took| took.written),
        );
    };
    show("plain writes", &plain, "");
    for ((name, env), times) in arms.iter().zip(&times) {
        let report = env.report();
        let notes = format!(
            "  ({} writes by the reactor, {} taken back, {} in flight, {} early syncs)",
            report.counter("reactor_writes"),
            report.counter("taken_back"),
            report.counter("reactor_in_flight_peak"),
            report.counter("early_syncs"),
        );
        show(name, times, &notes);
    }
    Ok(())
}
