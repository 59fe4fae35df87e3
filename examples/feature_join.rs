//! A join against a database, as analytics does it: a column of ids in, columns of features out.
//!
//! ```sh
//! cargo run --release --example feature_join
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what it is for")]

use treering::{Db, FixedColumn, KeyColumn, Options, Result, WriteBatch};

/// Users in the database, each with a score; every tenth has no name.
const USERS: u32 = 100_000;
/// Visits to be joined with them.
const VISITS: u32 = 10_000;

fn fill(db: &Db) -> Result<()> {
    let names = db.create_column_family("names", Options::default().cf)?;
    let mut batch = WriteBatch::new();
    for user in 0..USERS {
        // Big-endian keys sort as their numbers do, so ids that are near share blocks.
        batch.put(user.to_be_bytes(), (f64::from(user) / 2.0).to_le_bytes());
        if user % 10 != 0 {
            batch.put_in(&names, user.to_be_bytes(), format!("user {user}"));
        }
    }
    db.write(batch)?;
    db.flush()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (env, choice) = treering::auto();
    println!("{choice}");
    let db = Db::open(env, dir.path().join("db"), Options::default())?;
    fill(&db)?;

    // The column of ids: what an Arrow array of fixed width holds in its buffer of values. Ids may
    // come in any order, more than once, and may be unknown.
    let ids = (0..VISITS).map(|visit| visit * 7919 % (USERS + 500));
    let packed: Vec<[u8; 4]> = ids.map(u32::to_be_bytes).collect();
    let keys = KeyColumn::fixed(packed.as_flattened(), 4)?;
    // Both columns as of one moment, whatever is written meanwhile.
    let snapshot = db.snapshot();

    // Features of one width go straight into memory of ours, which the next batch can use again.
    let (mut scores, mut validity) = (vec![0; keys.len() * 8], vec![0; keys.len().div_ceil(8)]);
    let out = FixedColumn { values: &mut scores, width: 8, validity: &mut validity };
    snapshot.multi_get_fixed(keys, out)?.into_result()?;
    let known: u32 = validity.iter().map(|byte: &u8| byte.count_ones()).sum();
    // What is missing is zero, and so adds nothing.
    let total: f64 = scores.as_chunks().0.iter().map(|score| f64::from_le_bytes(*score)).sum();
    println!(
        "{known} of {VISITS} visits are of users we know; mean score {}",
        total / f64::from(known)
    );

    // Features of any length: `data`, `offsets` and `validity` are the three buffers of an Arrow
    // array of type LargeBinary, as they are.
    let names = db.column_family("names").ok_or("the family is there")?;
    let (column, failed) = snapshot.multi_get_columns_in(&names, keys)?;
    for (visit, error) in failed {
        eprintln!("the name of visit {visit} cannot be read: {error}");
    }
    let bytes = column.data.len();
    let first = column.get(1).map(String::from_utf8_lossy);
    println!("{bytes} bytes of names; that of visit 1 is {first:?}");
    Ok(db.close()?)
}
