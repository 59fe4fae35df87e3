//! Random operations, run on the engine and on a model at once.

use std::collections::BTreeMap;
use std::ops::Bound;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use treering::{
    CfOptions, ColumnFamily, Compression, Db, Durability, KeyColumn, Options, ReadOptions,
    Snapshot, WriteBatch, WriteOptions,
};

use crate::environments::Place;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// Contents by the family's name.
type Families = BTreeMap<String, Map>;

struct Driver<'a> {
    place: &'a Place,
    rng: StdRng,
    options: Options,
    db: Option<Db>,
    model: Families,
    snapshots: Vec<(Snapshot, Families)>,
    made: usize,
}

/// Runs `steps` operations of `seed` on a new database in `place`.
///
/// # Panics
/// With the seed and the step, where the engine and the model differ.
pub(crate) fn run(place: &Place, seed: u64, steps: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let options = random_options(&mut rng);
    let mut model = Families::new();
    model.insert("default".to_owned(), Map::new());
    let mut driver =
        Driver { place, rng, options, db: None, model, snapshots: Vec::new(), made: 0 };
    let guard = Announce { seed, step: 0.into() };
    driver.open();
    for step in 0..steps {
        guard.step.set(step);
        driver.step();
    }
    driver.compare_all();
    driver.reopen();
    driver.compare_all();
    driver.db.take().unwrap().close().unwrap();
}

/// Prints where a run was when it panicked.
struct Announce {
    seed: u64,
    step: std::cell::Cell<usize>,
}

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, step) = (self.seed, self.step.get());
            println!("seed {seed}, step {step}: TREERING_MODEL_SEEDS={seed}..{}", seed + 1);
        }
    }
}

fn random_options(rng: &mut StdRng) -> Options {
    let mut pick = |choices: &[usize]| *choices.choose(rng).unwrap();
    let trigger = pick(&[1, 2, 4]);
    let cf = CfOptions {
        memtable_size: pick(&[4 << 10, 16 << 10, 64 << 10]),
        level0_compaction_trigger: trigger,
        level0_slowdown_trigger: trigger + 4,
        level0_stop_trigger: trigger + 8,
        level_base_size: 16 << 10,
        level_multiplier: pick(&[2, 4]) as u64,
        table_size: pick(&[4 << 10, 32 << 10]) as u64,
        block_size: pick(&[64, 512, 4096]),
        restart_interval: pick(&[1, 4, 16]),
        bloom_bits_per_key: u32::try_from(pick(&[0, 10])).unwrap(),
        compression: if pick(&[0, 1]) == 0 { Compression::None } else { Compression::Lz4 },
        ..CfOptions::default()
    };
    Options {
        background_threads: pick(&[0, 0, 1, 2]),
        log_segment_size: 64 << 10,
        log_prepare_step: 16 << 10,
        block_cache_size: pick(&[0, 1 << 12, 1 << 20]),
        max_open_tables: pick(&[16, 512]),
        cf,
        ..Options::default()
    }
}

impl Driver<'_> {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("the database is open between steps")
    }

    fn open(&mut self) {
        let (env, dir) = (std::sync::Arc::clone(&self.place.env), &self.place.dir);
        self.db = Some(Db::open(env, dir, self.options.clone()).unwrap());
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.db.take().unwrap().close().unwrap();
        self.open();
        let mut names = self.db().column_family_names();
        names.sort();
        assert_eq!(names, self.model.keys().cloned().collect::<Vec<_>>());
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=29 => self.put(),
            30..=39 => self.delete(),
            40..=49 => self.batch(),
            50..=61 => self.get(),
            62..=73 => self.multi_get(),
            74..=81 => self.range(),
            82..=84 => self.snapshot(),
            85..=87 => self.read_a_snapshot(),
            88..=90 => self.db().flush().unwrap(),
            91..=92 => self.compact(),
            93..=94 => self.create_family(),
            95 => self.drop_family(),
            96..=97 => self.sync(),
            98 => self.place.make_cold(),
            _ => self.reopen(),
        }
    }

    /// Keys are few and often prefixes of each other, so that versions meet.
    fn key(&mut self) -> Vec<u8> {
        let mut key = format!("{:03}", self.rng.random_range(0..60)).into_bytes();
        key.truncate(self.rng.random_range(0..=3));
        if self.rng.random_bool(0.1) {
            key.extend([0xff; 40]);
        }
        key
    }

    fn value(&mut self) -> Vec<u8> {
        self.made += 1;
        let mut value = format!("value {} ", self.made).into_bytes();
        let more = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(0..9_000),
            1..=5 => self.rng.random_range(0..600),
            6 => return Vec::new(),
            _ => 0,
        };
        value.extend((0..more).map(|_| self.rng.random::<u8>() & 0x3f));
        value
    }

    fn family_name(&mut self) -> String {
        let names: Vec<_> = self.model.keys().cloned().collect();
        names.choose(&mut self.rng).unwrap().clone()
    }

    fn family(&self, name: &str) -> ColumnFamily {
        self.db().column_family(name).unwrap_or_else(|| panic!("family {name} is missing"))
    }

    fn put(&mut self) {
        let (name, key, value) = (self.family_name(), self.key(), self.value());
        if name == "default" {
            self.db().put(&key, &value).unwrap();
        } else {
            self.family(&name).put(&key, &value).unwrap();
        }
        self.model.get_mut(&name).unwrap().insert(key, value);
    }

    fn delete(&mut self) {
        let (name, key) = (self.family_name(), self.key());
        self.family(&name).delete(&key).unwrap();
        self.model.get_mut(&name).unwrap().remove(&key);
    }

    fn batch(&mut self) {
        let mut batch = WriteBatch::new();
        for _ in 0..self.rng.random_range(0..8) {
            let (name, key) = (self.family_name(), self.key());
            let family = self.family(&name);
            if self.rng.random_bool(0.7) {
                let value = self.value();
                batch.put_in(&family, &key, &value);
                self.model.get_mut(&name).unwrap().insert(key, value);
            } else {
                batch.delete_in(&family, &key);
                self.model.get_mut(&name).unwrap().remove(&key);
            }
        }
        let levels = [None, Some(Durability::Flushed), Some(Durability::Synced)];
        let durability = *levels.choose(&mut self.rng).unwrap();
        self.db().write_opt(batch, &WriteOptions { durability }).unwrap();
    }

    fn get(&mut self) {
        let (name, key) = (self.family_name(), self.key());
        let found = self.family(&name).get(&key).unwrap();
        assert_eq!(found.as_deref(), self.model[&name].get(&key).map(|v| &v[..]), "get {key:?}");
    }

    /// MGET-01, MGET-05, MGET-07: doubles, any order, several families, absent keys.
    fn multi_get(&mut self) {
        if self.rng.random_bool(0.5) {
            self.place.make_cold();
        }
        let count = *[0, 1, 2, 5, 33, 100].choose(&mut self.rng).unwrap();
        let wanted: Vec<_> = (0..count).map(|_| (self.family_name(), self.key())).collect();
        let families: Vec<_> = wanted.iter().map(|(name, _)| self.family(name)).collect();
        let keys = families.iter().zip(wanted.iter().map(|(_, key)| key));
        let found = self.db().multi_get_in(keys);
        compare_many(&found, wanted.iter().map(|(name, key)| self.model[name].get(key)));
        let keys: Vec<_> = (0..count).map(|_| self.key()).collect();
        let read = ReadOptions { fill_cache: self.rng.random_bool(0.5) };
        let found = self.db().multi_get_opt(&keys, &read);
        compare_many(&found, keys.iter().map(|key| self.model["default"].get(key)));
        self.multi_get_columns(&keys);
    }

    fn multi_get_columns(&mut self, keys: &[Vec<u8>]) {
        if self.rng.random_bool(0.5) {
            self.place.make_cold();
        }
        let name = self.family_name();
        let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
        for key in keys {
            bytes.extend_from_slice(key);
            offsets.push(i64::try_from(bytes.len()).unwrap());
        }
        let packed = KeyColumn::offsets(&bytes, &offsets).unwrap();
        let (column, failed) = self.family(&name).multi_get_columns(packed).unwrap();
        failed.into_result().unwrap();
        assert_eq!(column.len(), keys.len());
        for (index, key) in keys.iter().enumerate() {
            let expected = self.model[&name].get(key).map(|value| &value[..]);
            assert_eq!(column.get(index), expected, "answer {index} of a column");
        }
    }

    fn range(&mut self) {
        let name = self.family_name();
        let bounds = (self.bound(), self.bound());
        let backward = self.rng.random_bool(0.5);
        let range = self.family(&name).range(bounds.clone());
        let found: Vec<_> =
            if backward { range.rev().map(unpack).collect() } else { range.map(unpack).collect() };
        let mut expected = inside(&self.model[&name], &bounds);
        if backward {
            expected.reverse();
        }
        assert_eq!(found, expected, "range {bounds:?} of {name}");
        let prefix = self.key();
        let found: Vec<_> = self.family(&name).prefix(&prefix).map(unpack).collect();
        let expected: Vec<_> = self.model[&name]
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(found, expected, "prefix {prefix:?} of {name}");
    }

    fn bound(&mut self) -> Bound<Vec<u8>> {
        match self.rng.random_range(0..3) {
            0 => Bound::Included(self.key()),
            1 => Bound::Excluded(self.key()),
            _ => Bound::Unbounded,
        }
    }

    fn snapshot(&mut self) {
        if self.snapshots.len() > 4 {
            let index = self.rng.random_range(0..self.snapshots.len());
            self.snapshots.swap_remove(index);
        }
        self.snapshots.push((self.db().snapshot(), self.model.clone()));
    }

    /// SNAP-01: each snapshot always reads its own state.
    fn read_a_snapshot(&mut self) {
        let key = self.key();
        let Some((snapshot, model)) = self.snapshots.choose(&mut self.rng) else { return };
        let model = &model["default"];
        let found: Vec<_> = snapshot.iter().map(unpack).collect();
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(found, expected, "a snapshot changed");
        let found = snapshot.get(&key).unwrap();
        assert_eq!(found.as_deref(), model.get(&key).map(|v| &v[..]));
        let keys: Vec<_> = model.keys().take(50).collect();
        compare_many(&snapshot.multi_get(&keys), keys.iter().map(|key| model.get(*key)));
    }

    fn compact(&mut self) {
        let bounds = (self.bound(), self.bound());
        self.db().compact_range(bounds).unwrap();
        self.db().wait_for_compact().unwrap();
    }

    fn create_family(&mut self) {
        let name = format!("family {}", self.rng.random_range(0..4));
        let created = self.db().create_column_family(&name, self.options.cf.clone());
        assert_eq!(created.is_err(), self.model.contains_key(&name), "{created:?}");
        self.model.entry(name).or_default();
    }

    /// Snapshots taken before may hold the family; only `default` is read through them.
    fn drop_family(&mut self) {
        let name = self.family_name();
        if name == "default" {
            return;
        }
        let family = self.family(&name);
        self.db().drop_column_family(&family).unwrap();
        self.model.remove(&name);
        assert!(family.get("k").is_err(), "a dropped family still answers");
        assert!(family.put("k", "v").is_err(), "a dropped family still takes writes");
    }

    fn sync(&mut self) {
        if self.rng.random_bool(0.5) {
            self.db().sync_wal().unwrap();
        } else {
            self.db().flush_wal().unwrap();
        }
    }

    fn compare_all(&self) {
        for (name, map) in &self.model {
            let found: Vec<_> = self.family(name).iter().map(unpack).collect();
            let expected: Vec<_> = map.clone().into_iter().collect();
            assert_eq!(found, expected, "all of {name}");
        }
    }
}

fn unpack(item: treering::Result<(bytes::Bytes, bytes::Bytes)>) -> (Vec<u8>, Vec<u8>) {
    let (key, value) = item.unwrap();
    (key.to_vec(), value.to_vec())
}

fn compare_many<'a>(
    found: &[treering::Result<Option<bytes::Bytes>>],
    expected: impl ExactSizeIterator<Item = Option<&'a Vec<u8>>>,
) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found = found.as_ref().unwrap().as_deref();
        assert_eq!(found, expected.map(|v| &v[..]), "answer {index} of a multi_get");
    }
}

fn inside(map: &Map, bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Vec<(Vec<u8>, Vec<u8>)> {
    use std::ops::RangeBounds;
    map.iter()
        .filter(|(key, _)| bounds.contains(*key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
