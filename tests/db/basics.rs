//! Writing and reading.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use treering_lsm::{Durability, Error, ReadOptions, WriteBatch, WriteOptions};

use crate::support::{all, get, open_new, roomy, small};

#[test]
fn what_was_written_is_read_and_what_was_deleted_is_not() {
    let (_env, db) = open_new(roomy());
    db.put("b", "1").unwrap();
    db.put("a", "2").unwrap();
    db.put("b", "3").unwrap();
    db.put("", "empty").unwrap();
    db.delete("a").unwrap();
    db.delete("never there").unwrap();
    assert_eq!(get(&db, "b").as_deref(), Some("3"));
    assert_eq!(get(&db, "a"), None);
    assert_eq!(get(&db, "c"), None);
    assert_eq!(get(&db, "").as_deref(), Some("empty"));
    assert_eq!(all(&db), [(String::new(), "empty".into()), ("b".into(), "3".into())]);
}

#[test]
fn a_batch_applies_its_operations_in_order() {
    let (_env, db) = open_new(roomy());
    let mut batch = WriteBatch::new();
    batch.put("k", "1");
    batch.delete("k");
    batch.put("k", "2");
    batch.put("other", "x");
    batch.delete("other");
    let durability = Some(Durability::Synced);
    db.write_opt(batch, &WriteOptions { durability }).unwrap();
    db.write(WriteBatch::new()).unwrap();
    assert_eq!(all(&db), [("k".into(), "2".into())]);
    assert_eq!(db.stats().last_sequence, 5);
}

/// Every way to read agrees with a sorted map, over flushes, compactions and reopens.
#[test]
fn random_writes_and_reads_agree_with_a_sorted_map() {
    for seed in [1, 2, 3] {
        let mut random = StdRng::seed_from_u64(seed);
        let (env, mut db) = open_new(small());
        let mut model = BTreeMap::new();
        for step in 0..6000_u32 {
            let key = format!("key{:04}", random.random_range(0..800));
            if random.random_range(0..4) == 0 {
                db.delete(&key).unwrap();
                model.remove(&key);
            } else {
                let value = format!("{step}-{}", "x".repeat(random.random_range(0..60)));
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            match random.random_range(0..1000) {
                0 => db.flush().unwrap(),
                1 => db.compact_range::<&str>(..).unwrap(),
                2 => {
                    db.close().unwrap();
                    drop(db);
                    db = crate::support::open(&env, small());
                }
                3 => {
                    drop(db);
                    db = crate::support::open(&env, small());
                }
                _ => {}
            }
        }
        let expected: Vec<(String, String)> = model.clone().into_iter().collect();
        assert_eq!(all(&db), expected, "seed {seed}");
        let keys: Vec<String> = (0..800).map(|n| format!("key{n:04}")).collect();
        for (key, answer) in keys.iter().zip(db.multi_get(&keys)) {
            let answer = answer.unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap());
            assert_eq!(answer.as_ref(), model.get(key), "seed {seed}, {key}");
            assert_eq!(get(&db, key), answer, "seed {seed}, {key}");
        }
        let stats = db.stats();
        let levels = &stats.families[0].levels;
        assert!(levels[1..].iter().any(|level| level.files > 0), "seed {seed}: {stats}");
    }
}

#[test]
fn values_of_every_size_come_back_from_tables_and_through_reads_that_keep_nothing() {
    let (_env, db) = open_new(small());
    let sizes = [0, 1, 63, 64, 255, 256, 1000, 4095, 4096, 4097, 70_000, 1_200_000];
    let value = |size: usize| -> Vec<u8> { (0..=250).cycle().step_by(7).take(size).collect() };
    for size in sizes {
        db.put(format!("{size:08}"), value(size)).unwrap();
    }
    for round in 0..2 {
        for size in sizes {
            let options = ReadOptions { fill_cache: round == 1 };
            let found = db.get_opt(format!("{size:08}"), &options).unwrap().unwrap();
            assert!(found[..] == value(size)[..], "{size} bytes");
        }
        db.flush().unwrap();
        db.compact_range::<&str>(..).unwrap();
    }
}

#[test]
fn arguments_beyond_the_limits_are_refused_and_change_nothing() {
    let (_env, db) = open_new(roomy());
    let long = vec![b'k'; 65_536];
    let mut batch = WriteBatch::new();
    batch.put("a", "1");
    batch.put(&long, "2");
    batch.put("b", "3");
    let error = db.write(batch).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    assert!(error.to_string().contains("operation 1 of the batch"), "{error}");
    assert!(all(&db).is_empty());
    db.put(&long[1..], "fits").unwrap();
    assert_eq!(db.get(&long[1..]).unwrap().as_deref(), Some(&b"fits"[..]));
    assert_eq!(db.get(&long).unwrap(), None);
    assert_eq!(db.stats().last_sequence, 1, "a refused batch takes no sequence numbers");
}

#[test]
fn options_out_of_range_are_refused_before_anything_is_touched() {
    let env = treering_env::MemEnv::new();
    let mut options = small();
    options.cf.memtable_size = 0;
    let shared = std::sync::Arc::new(env.clone());
    let error = crate::support::try_open(shared, options).unwrap_err();
    assert!(error.to_string().contains("memtable_size = 0 is out of range"), "{error}");
    assert_eq!(env.operations(), 0);
}

#[test]
fn incompressible_batches_larger_than_a_segment_and_a_memtable_are_written_whole() {
    let (env, db) = open_new(small());
    let mut random = StdRng::seed_from_u64(7);
    let mut value = vec![0_u8; 100_000];
    random.fill_bytes(&mut value);
    let mut batch = WriteBatch::new();
    for key in ["a", "b", "c"] {
        batch.put(key, &value);
    }
    db.write(batch).unwrap();
    drop(db);
    let db = crate::support::open(&env, small());
    for key in ["a", "b", "c"] {
        assert!(db.get(key).unwrap().unwrap()[..] == value[..]);
    }
}
