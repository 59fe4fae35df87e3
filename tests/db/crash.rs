//! Power cut at every operation of a small workload.
//!
//! Goal: whatever was acknowledged as synced is there, and what is there is a prefix of the
//! commit order with whole batches over both families.
//! Method: run the workload with the power cut before, inside or after operation n, for every n;
//! build the images that several policies allow; open each and compare with the list of batches.
//! `cargo test` runs every third operation; the larger suites run more.

use std::collections::HashSet;

use treering_env::{CrashPolicy, MemEnv, When};
use treering_lsm::{Durability, Error, Options, WriteBatch, WriteOptions};

use crate::support::{DIR, small};

fn options() -> Options {
    let mut options = small();
    options.cf.memtable_size = 4 << 10;
    options
}

/// What a run acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Acked {
    any: u32,
    synced: u32,
}

/// Batch `i` sets `n` to `i` in both families and adds one key to each.
fn batch(i: u32, family: &treering_lsm::ColumnFamily) -> WriteBatch {
    let mut batch = WriteBatch::new();
    let value = format!("{i}");
    batch.put(format!("key{i:03}"), format!("{value}{}", "v".repeat(60)));
    batch.put("n", &value);
    batch.put_in(family, format!("key{i:03}"), &value);
    batch.put_in(family, "n", &value);
    batch
}

/// Opens twice, writes, flushes and compacts. Ends at the first error.
fn workload(env: &MemEnv, acked: &mut Acked) -> Result<(), Error> {
    let mut next = 1;
    for round in 0..2 {
        let db = treering_lsm::Db::open(std::sync::Arc::new(env.clone()), DIR, options())?;
        let family = match db.column_family("f") {
            Some(family) => family,
            None => db.create_column_family("f", options().cf)?,
        };
        for _ in 0..45 {
            let synced = next % 4 == 0;
            let durability = Some(if synced { Durability::Synced } else { Durability::Flushed });
            db.write_opt(batch(next, &family), &WriteOptions { durability })?;
            acked.any = next;
            if synced {
                acked.synced = next;
            }
            next += 1;
        }
        match round {
            0 => db.compact_range::<&str>(..)?,
            _ => db.flush()?,
        }
        acked.synced = acked.any;
        let extra = db.create_column_family("extra", options().cf)?;
        extra.put("k", "v")?;
        db.drop_column_family(&extra)?;
        db.close()?;
    }
    Ok(())
}

/// Opens an image and returns how many batches it holds. Ends with a write, which must work.
fn surviving(env: &MemEnv, context: &str) -> u32 {
    let db = treering_lsm::Db::open(std::sync::Arc::new(env.clone()), DIR, options())
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let number = |value: Option<bytes::Bytes>| -> u32 {
        value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
    };
    let last = number(db.get("n").unwrap());
    let keys: Vec<String> = (1..=100).map(|i| format!("key{i:03}")).collect();
    for (i, answer) in (1..).zip(db.multi_get(&keys)) {
        assert_eq!(answer.unwrap().is_some(), i <= last, "{context}: batch {i} of {last}");
    }
    let Some(family) = db.column_family("f") else {
        assert_eq!(last, 0, "{context}: the family is gone");
        return 0;
    };
    assert_eq!(number(family.get("n").unwrap()), last, "{context}: half a batch");
    let expected = if last == 0 { 0 } else { last as usize + 1 };
    assert_eq!(family.iter().count(), expected, "{context}");
    assert_eq!(db.iter().count(), expected, "{context}");
    db.delete("later").unwrap_or_else(|error| panic!("{context}: {error}"));
    last
}

#[test]
fn a_power_cut_at_any_operation_leaves_a_prefix_with_all_synced_batches() {
    let env = MemEnv::new();
    workload(&env, &mut Acked::default()).unwrap();
    let total = env.operations();
    let mut images = HashSet::new();
    for operation in (0..total).step_by(3) {
        for when in [When::Before, When::Inside, When::After] {
            let env = MemEnv::new();
            env.cut_power_at(operation, when);
            let mut acked = Acked::default();
            // The last operations may be removals, whose failure nobody hears of.
            let _ended = workload(&env, &mut acked);
            for policy in CrashPolicy::all(operation) {
                let image = env.crash(policy);
                if !images.insert((image.fingerprint(), acked.synced)) {
                    continue;
                }
                let context = format!("operation {operation} {when:?}, {policy:?}, {acked:?}");
                let last = surviving(&image, &context);
                assert!(last >= acked.synced, "{context}: only {last} batches are left");
                let again = surviving_again(&image, &context);
                assert!(again >= last, "{context}: {last} batches, then {again}");
            }
        }
    }
    assert!(images.len() > 500, "{} images only", images.len());
}

/// The same image after a second power loss, right after its first open.
fn surviving_again(image: &MemEnv, context: &str) -> u32 {
    let again = image.crash(CrashPolicy::DropAll);
    surviving(&again, &format!("{context}, and again"))
}

#[test]
fn a_kill_at_any_operation_keeps_every_acknowledged_batch() {
    let env = MemEnv::new();
    workload(&env, &mut Acked::default()).unwrap();
    for operation in (0..env.operations()).step_by(5) {
        let env = MemEnv::new();
        env.cut_power_at(operation, When::After);
        let mut acked = Acked::default();
        let _ended = workload(&env, &mut acked);
        let context = format!("operation {operation}, {acked:?}");
        let last = surviving(&env.kill(), &context);
        assert!(last >= acked.any, "{context}: only {last} batches are left");
    }
}
