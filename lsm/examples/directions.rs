//! What a scan backward costs beside one forward: whole databases whose blocks are all in the block
//! cache, in turns, the best of several.
//!
//! ```sh
//! cargo run --release -p treering-lsm --example directions -- [KEYS] [REPEATS]
//! ```
#![expect(clippy::print_stdout, reason = "this is what it is for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use treering_env::MemEnv;
use treering_lsm::{Db, Options, Result};

fn timed(run: impl FnOnce() -> Result<usize>, keys: usize) -> Result<Duration> {
    let begun = Instant::now();
    assert_eq!(run()?, keys, "every key is seen");
    Ok(begun.elapsed())
}

/// Counts the items of a scan; an error ends it.
fn count(mut items: impl Iterator<Item = Result<(bytes::Bytes, bytes::Bytes)>>) -> Result<usize> {
    items.try_fold(0, |count, item| item.map(|_| count + 1))
}

/// Counts the keys of a cursor, without a copy of any.
fn walk(db: &Db, forward: bool) -> Result<usize> {
    let (mut cursor, mut count) = (db.cursor()?, 0);
    if forward {
        cursor.seek_to_first()?;
    } else {
        cursor.seek_to_last()?;
    }
    while cursor.valid() {
        count += 1;
        if forward { cursor.next() } else { cursor.prev() }?;
    }
    Ok(count)
}

fn compare(name: &str, db: &Db, keys: usize, repeats: usize) -> Result<()> {
    let mut best = [Duration::MAX; 4];
    for _ in 0..=repeats {
        let runs = [
            timed(|| count(db.iter()), keys)?,
            timed(|| count(db.iter().rev()), keys)?,
            timed(|| walk(db, true), keys)?,
            timed(|| walk(db, false), keys)?,
        ];
        best = std::array::from_fn(|index| best[index].min(runs[index]));
    }
    let ns = best.map(|time| time.as_nanos() / keys as u128);
    let ratio = |a: Duration, b: Duration| b.as_secs_f64() / a.as_secs_f64();
    let [next, back, forward, backward] = ns;
    let (range, cursor) = (ratio(best[0], best[1]), ratio(best[2], best[3]));
    println!(
        "{name}: iterator {next} ns a key, backward {back} ns ({range:.2}x); \
         cursor {forward} ns, backward {backward} ns ({cursor:.2}x)"
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let keys = args.next().unwrap_or(400_000);
    let repeats = args.next().unwrap_or(5);
    for value_size in [16, 100, 400] {
        let options = || Options { block_cache_size: 1 << 30, ..Options::default() };
        let db = Db::open(Arc::new(MemEnv::new()), "db", options())?;
        for n in 0..keys {
            db.put(format!("key{n:012}"), n.to_string().repeat(value_size / 5))?;
        }
        compare(&format!("memtable, values of {value_size} bytes"), &db, keys, repeats)?;
        db.compact_range::<&str>(..)?;
        compare(&format!("one level, values of {value_size} bytes"), &db, keys, repeats)?;
        for part in 0..3 {
            for n in (part..keys).step_by(7) {
                db.put(format!("key{n:012}"), n.to_string().repeat(value_size / 5))?;
            }
            db.flush()?;
        }
        compare(
            &format!("with three of level 0, values of {value_size} bytes"),
            &db,
            keys,
            repeats,
        )?;
    }
    Ok(())
}
