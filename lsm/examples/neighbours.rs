//! What it brings to read neighbouring blocks by one entry of a ring: batches of keys that follow
//! one another and of keys from anywhere, with merging and without, in turns.
//!
//! "cold" drops the tables from the page cache before each measurement (with `dd`); nothing is kept
//! in a block cache. What other programs do meanwhile disturbs both sides of a pair, so look at
//! the ratios. ONLY is a part of the name of what is to be measured, such as "cold Random".
//!
//! ```sh
//! cargo run --release -p treering-lsm --example neighbours -- DIR [KEYS] [CALLS] [REPEATS] [ONLY]
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use treering_env::{Env, IoUringEnv, PosixEnv};
use treering_lsm::{Compression, Db, Options};

type Failure = Box<dyn std::error::Error>;

/// Keys of one call.
const BATCH: u64 = 128;

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    Consecutive,
    Random,
}

/// What a measurement needs to know.
struct Plan {
    dir: PathBuf,
    keys: u64,
    calls: u64,
    repeats: usize,
    only: String,
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn key(n: u64) -> String {
    format!("key{n:012}")
}

/// 400 bytes that do not compress.
fn value(n: u64) -> Vec<u8> {
    let mut state = n;
    (0..50)
        .flat_map(|_| next(&mut state).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .collect()
}

fn options() -> Options {
    let mut options = Options { block_cache_size: 0, ..Options::default() };
    options.cf.compression = Compression::None;
    options
}

fn fill(plan: &Plan) -> Result<(), Failure> {
    let db = Db::open(Arc::new(PosixEnv::new()), &plan.dir, options())?;
    if db.get(key(plan.keys - 1))?.is_none() {
        for n in 0..plan.keys {
            db.put(key(n), value(n))?;
        }
        db.flush()?;
        db.compact_range::<&str>(..)?;
        db.wait_for_compact()?;
    }
    Ok(db.close()?)
}

/// Drops every table from the page cache.
fn evict(dir: &Path) -> Result<(), Failure> {
    for entry in PosixEnv::new().list(dir)? {
        let path = dir.join(entry.name);
        if path.extension().is_some_and(|extension| extension == "sst") {
            let input = format!("if={}", path.display());
            Command::new("dd")
                .args([&input, "iflag=nocache", "count=0", "status=none"])
                .status()?;
        }
    }
    Ok(())
}

/// Keys per second, and entries given to the ring per call.
fn measure(
    plan: &Plan,
    env: &Arc<dyn Env>,
    keys: Keys,
    cold: bool,
    seed: u64,
) -> Result<(f64, f64), Failure> {
    let db = Db::open(Arc::clone(env), &plan.dir, options())?;
    let mut state = seed;
    let mut call = || -> Vec<String> {
        let start = next(&mut state) % (plan.keys - BATCH);
        let chosen =
            |n| if keys == Keys::Random { next(&mut state) % plan.keys } else { start + n };
        (0..BATCH).map(chosen).map(key).collect()
    };
    let batches: Vec<Vec<String>> = (0..plan.calls).map(|_| call()).collect();
    if !cold {
        for batch in &batches {
            drop(db.multi_get(batch));
        }
    }
    if cold {
        evict(&plan.dir)?;
    }
    let before = env.report();
    let begun = Instant::now();
    for batch in &batches {
        for found in db.multi_get(batch) {
            if found?.is_none_or(|value| value.len() != 400) {
                return Err("a key is missing".into());
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    let (count, calls) = ((plan.calls * BATCH) as f64, plan.calls as f64);
    let took = begun.elapsed().as_secs_f64();
    let since = env.report().since(&before);
    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    let entries = since.counter("ring_reads") as f64;
    db.close()?;
    Ok((count / took, entries / calls))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::print_stdout, reason = "this is what it is for")]
fn compare(plan: &Plan, direct: bool, keys: Keys, cold: bool) -> Result<(), Failure> {
    let how = if direct { "direct" } else { "buffered" };
    let cache = if cold { "cold" } else { "hot" };
    let name = format!("{how} {cache} {keys:?}");
    if !name.contains(&plan.only) {
        return Ok(());
    }
    let mut sides = [Vec::new(), Vec::new()];
    let (mut ratios, mut entries) = (Vec::new(), [0.0; 2]);
    for repeat in 0..plan.repeats {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            // Who comes first changes.
            let side = (turn + repeat) % 2;
            let limit = if side == 0 { 0 } else { 128 << 10 };
            let env = IoUringEnv::builder().direct_reads(direct).merge_limit(limit).build()?;
            let env: Arc<dyn Env> = Arc::new(env);
            let seed = repeat as u64 + 1;
            (pair[side], entries[side]) = measure(plan, &env, keys, cold, seed)?;
            sides[side].push(pair[side]);
        }
        ratios.push(pair[1] / pair[0]);
    }
    let [off, on] = sides.map(median);
    let (low, high) = ratios.iter().fold((f64::MAX, 0.0_f64), |(l, h), r| (l.min(*r), h.max(*r)));
    println!(
        "{name:25} off {off:9.0} keys/s, {:6.1} entries; on {on:9.0}, {:6.1}; \
         ratio {:.2} ({low:.2}..{high:.2})",
        entries[0],
        entries[1],
        median(ratios)
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let plan = Plan {
        dir: arguments.first().ok_or("a directory is needed")?.into(),
        keys: number(1, 400_000)?,
        calls: number(2, 200)?,
        repeats: usize::try_from(number(3, 5)?)?,
        only: arguments.get(4).cloned().unwrap_or_default(),
    };
    fill(&plan)?;
    for (direct, cold) in [(true, true), (false, true), (false, false)] {
        for keys in [Keys::Consecutive, Keys::Random] {
            compare(&plan, direct, keys, cold)?;
        }
    }
    Ok(())
}
