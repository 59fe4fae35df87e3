//! Goal: whatever is flushed, compacted, moved and rewritten, in whatever order and under whatever
//! snapshots, every snapshot and "now" read what was written; and what nobody can see goes.
//!
//! How: random trees of tiny tables on an environment in memory, compared after each step with a
//! list of everything that was ever written.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use treering_env::{CrashPolicy, Env, Fault, FaultEnv, FaultKind, MemEnv, Op, When};

use super::*;
use crate::compaction::job::{JobOutput, JobStats};
use crate::cursor::Cursor;
use crate::filename::FileName;
use crate::key::{MAX_SEQUENCE, ValueKind, encode, seek_trailer};
use crate::memtable::{Lookup, MemTable};
use crate::table_cache::TableCache;
use crate::version::testing::{
    dir, put, table_cache, tiny_options, tombstone, value_of, version, write_table,
};
use crate::version::{FileNumbers, KeyRange, VersionSet};
use crate::{CfOptions, Error, Result};

/// A version with its sequence number; `None` is a tombstone.
type Written = (u64, Option<Vec<u8>>);

/// A database without log and memtables.
struct Tree {
    env: Arc<dyn Env>,
    set: VersionSet,
    tables: Arc<TableCache>,
    picker: Picker,
    options: CfOptions,
    snapshots: Vec<u64>,
    sequence: u64,
    /// Per user key, everything that was ever written, oldest first.
    written: BTreeMap<Vec<u8>, Vec<Written>>,
}

impl Tree {
    fn new(env: Arc<dyn Env>, options: CfOptions) -> Self {
        env.create_dir_all(dir()).unwrap();
        let mut set = VersionSet::create(Arc::clone(&env), dir()).unwrap();
        let _ = set.roll(VersionEdit::default()).unwrap();
        let (tables, picker) = (table_cache(&env), Picker::new(0));
        let (snapshots, written) = (Vec::new(), BTreeMap::new());
        Self { env, set, tables, picker, options, snapshots, sequence: 0, written }
    }

    fn current(&self) -> Arc<Version> {
        self.set.family(0).unwrap().current
    }

    fn with_context<T>(&self, run: impl FnOnce(&JobContext<'_>) -> T) -> T {
        run(&JobContext {
            env: &*self.env,
            dir: dir(),
            tables: &self.tables,
            numbers: self.set.numbers(),
            options: &self.options,
            snapshots: &self.snapshots,
            should_stop: &|| None,
        })
    }

    fn log(&mut self, edit: VersionEdit) {
        let _ = self.set.log_and_apply(edit).unwrap();
        for name in self.set.obsolete().take() {
            if let FileName::Table(number) = name {
                self.tables.evict(number);
            }
            self.env.remove(&name.path(dir())).unwrap();
        }
    }

    fn write(&mut self, memtable: &MemTable, user_key: &str, value: Option<&[u8]>) {
        self.sequence += 1;
        let kind = if value.is_some() { ValueKind::Put } else { ValueKind::Deletion };
        memtable.insert(user_key.as_bytes(), self.sequence, kind, value.unwrap_or_default());
        let versions = self.written.entry(user_key.as_bytes().to_vec()).or_default();
        versions.push((self.sequence, value.map(<[u8]>::to_vec)));
    }

    fn flush(&mut self, memtable: &Arc<MemTable>) {
        let mut cursor = memtable.cursor();
        let table = self.with_context(|context| flush::write_table(context, &mut cursor)).unwrap();
        if let Some(table) = table {
            self.log(VersionEdit { added: vec![(0, 0, table)], ..VersionEdit::default() });
        }
    }

    fn run(&mut self, compaction: &Compaction) -> JobStats {
        if compaction.trivial_move {
            self.log(compaction.move_edit());
            return JobStats::default();
        }
        let job = CompactionJob::new(compaction);
        let output = self.with_context(|context| job.run(context)).unwrap();
        self.log(compaction.edit(output.added));
        output.stats
    }

    fn compact_range(&mut self, levels: (usize, usize), range: (&[u8], &[u8])) -> bool {
        let options = self.options.clone();
        let mut begin = range.0.to_vec();
        let mut worked = false;
        loop {
            let rest = KeyRange { begin: Some(&begin), end: Some(range.1) };
            match self.picker.pick_range(&self.current(), &options, levels, rest) {
                RangePick::Nothing => return worked,
                RangePick::Busy => panic!("nothing else runs"),
                RangePick::Job(compaction) => {
                    self.run(&compaction);
                    if levels.0 == levels.1 {
                        begin = [&compaction.end[..], &[0]].concat();
                    }
                    worked = true;
                }
            }
        }
    }

    /// Everything down to the deepest level, and that one in place.
    fn compact_all(&mut self) {
        let everything: (&[u8], &[u8]) = (b"", b"~");
        for level in 0..LEVELS - 1 {
            self.compact_range((level, level + 1), everything);
        }
        self.compact_range((LEVELS - 1, LEVELS - 1), everything);
    }

    fn get(&self, user_key: &[u8], at: u64) -> Option<Vec<u8>> {
        let target = encode(user_key, seek_trailer(at));
        for (_, file) in self.current().candidates(user_key) {
            let table = file.open(&self.tables).unwrap();
            match table.get(&target, false).unwrap() {
                Some((_, Lookup::Found(value))) => return Some(value.to_vec()),
                Some((_, Lookup::Deleted)) => return None,
                None => {}
            }
        }
        None
    }

    fn check(&self, context: &str) {
        for at in self.snapshots.iter().copied().chain([MAX_SEQUENCE]) {
            for (user_key, versions) in &self.written {
                let newest = versions.iter().rev().find(|(sequence, _)| *sequence <= at);
                let expected = newest.and_then(|(_, value)| value.clone());
                let found = self.get(user_key, at);
                assert_eq!(found, expected, "{context}: {user_key:?} at {at}");
            }
        }
    }

    fn entries(&self) -> u64 {
        let version = self.current();
        (0..LEVELS).flat_map(|level| version.files(level)).map(|file| file.entries).sum()
    }

    fn live_keys(&self) -> usize {
        self.written.values().filter(|versions| versions.last().unwrap().1.is_some()).count()
    }
}

/// One random tree; returns how many compactions wrote something.
fn run_model(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let mut tree = Tree::new(Arc::new(MemEnv::new()), tiny_options());
    let keys = random.random_range(1..60);
    let mut compactions = 0;
    for step in 0..60 {
        let context = format!("seed {seed}, step {step}");
        match random.random_range(0..10) {
            0..4 => {
                let memtable = Arc::new(MemTable::new());
                for _ in 0..random.random_range(0..40) {
                    let user_key = format!("k{:03}", random.random_range(0..keys));
                    let value = vec![b'v'; random.random_range(0..60)];
                    let value = random.random_bool(0.7).then_some(&value[..]);
                    tree.write(&memtable, &user_key, value);
                }
                tree.flush(&memtable);
            }
            4..8 => {
                let (version, options) = (tree.current(), tree.options.clone());
                if let Some(compaction) = tree.picker.pick(&version, &options) {
                    compactions += usize::from(!compaction.trivial_move);
                    tree.run(&compaction);
                }
            }
            8 => {
                let level = random.random_range(0..LEVELS - 1);
                let in_place = level > 0 && random.random_bool(0.3);
                let levels = (level, if in_place { level } else { level + 1 });
                let begin = format!("k{:03}", random.random_range(0..keys));
                tree.compact_range(levels, (begin.as_bytes(), b"k999"));
            }
            _ if random.random_bool(0.6) => tree.snapshots.push(tree.sequence),
            _ => {
                if !tree.snapshots.is_empty() {
                    let index = random.random_range(0..tree.snapshots.len());
                    tree.snapshots.remove(index);
                }
            }
        }
        tree.check(&context);
    }
    let again = VersionSet::recover(Arc::clone(&tree.env), dir()).unwrap().unwrap();
    assert_eq!(again.family(0).unwrap().current.file_count(), tree.current().file_count());
    tree.snapshots.clear();
    tree.compact_all();
    tree.check(&format!("seed {seed}, at the end"));
    assert_eq!(tree.entries(), tree.live_keys() as u64, "seed {seed}: nothing unseen is left");
    compactions
}

/// SNAP-01, SNAP-03, SNAP-04, SNAP-05, SNAP-06
#[test]
fn every_snapshot_reads_what_was_written_and_the_rest_goes() {
    let compactions: usize = (0..60).map(run_model).sum();
    assert!(compactions > 300, "{compactions} compactions are too few to mean much");
}

/// SNAP-03
#[test]
fn a_tombstone_at_the_bottom_stays_while_a_snapshot_sees_what_it_hides() {
    let mut tree = Tree::new(Arc::new(MemEnv::new()), tiny_options());
    let memtable = Arc::new(MemTable::new());
    tree.write(&memtable, "k", Some(b"put"));
    tree.snapshots.push(tree.sequence);
    tree.write(&memtable, "k", Some(b"between"));
    tree.write(&memtable, "k", None);
    tree.flush(&memtable);
    assert_eq!(tree.entries(), 2, "the flush leaves out what nobody sees");
    tree.compact_all();
    assert_eq!(tree.entries(), 2);
    assert_eq!(tree.get(b"k", tree.snapshots[0]), Some(b"put".to_vec()));
    assert_eq!(tree.get(b"k", MAX_SEQUENCE), None);
    tree.snapshots.clear();
    tree.compact_all();
    assert_eq!(tree.current().file_count(), 0);
}

/// SNAP-09
#[test]
fn a_compaction_that_leaves_nothing_is_normal() {
    let mem = MemEnv::new();
    let mut tree = Tree::new(Arc::new(mem.clone()), tiny_options());
    for value in [Some(&b"v"[..]), None] {
        let memtable = Arc::new(MemTable::new());
        for key in ["a", "b", "c"] {
            tree.write(&memtable, key, value);
        }
        tree.flush(&memtable);
    }
    let (version, options) = (tree.current(), tree.options.clone());
    let compaction = tree.picker.pick(&version, &options).unwrap();
    drop(version);
    let stats = tree.run(&compaction);
    assert_eq!((stats.entries_read, stats.entries_written, stats.bytes_written), (6, 0, 0));
    drop(compaction);
    tree.log(VersionEdit::default());
    assert_eq!(tree.current().file_count(), 0);
    let set = VersionSet::recover(Arc::clone(&tree.env), dir()).unwrap().unwrap();
    assert_eq!(set.family(0).unwrap().current.file_count(), 0);
    let names = mem.list(dir()).unwrap().into_iter().map(|entry| entry.name);
    assert!(!names.into_iter().any(|name| name.to_string_lossy().ends_with(".sst")));
}

/// A job over two tables of level 0 and one of level 1.
fn two_levels(env: &dyn Env) -> Arc<Version> {
    env.create_dir_all(dir()).unwrap();
    let keys = |sequence: u64, first: usize| -> Vec<Vec<u8>> {
        (first..first + 60).map(|index| put(&format!("k{index:03}"), sequence)).collect()
    };
    let level0 = [write_table(env, 3, &keys(9, 10)), write_table(env, 2, &keys(5, 0))];
    let level1 = [write_table(env, 1, &keys(1, 20))];
    version(&[(0, &level0), (1, &level1)])
}

fn run_job(
    env: &Arc<dyn Env>,
    compaction: &Compaction,
    numbers: &FileNumbers,
) -> Result<JobOutput> {
    let context = JobContext {
        env: &**env,
        dir: dir(),
        tables: &table_cache(env),
        numbers,
        options: &tiny_options(),
        snapshots: &[],
        should_stop: &|| None,
    };
    CompactionJob::new(compaction).run(&context)
}

fn numbers(env: &Arc<dyn Env>) -> Arc<FileNumbers> {
    let set = VersionSet::create(Arc::clone(env), dir()).unwrap();
    Arc::clone(set.numbers())
}

fn names(env: &dyn Env) -> Vec<String> {
    let names = env.list(dir()).unwrap().into_iter();
    let mut names: Vec<String> =
        names.map(|entry| entry.name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn outputs_are_cut_at_the_table_size_and_never_inside_a_user_key() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    env.create_dir_all(dir()).unwrap();
    let mut keys = Vec::new();
    for user in 0..10 {
        keys.extend((1..=80).rev().map(|sequence| put(&format!("k{user}"), sequence)));
    }
    let version =
        version(&[(0, &[write_table(&*env, 1, &keys), write_table(&*env, 2, &[put("z", 99)])])]);
    let compaction = Picker::new(0).pick(&version, &tiny_options()).unwrap();
    let snapshots: Vec<u64> = (1..=80).collect();
    let context = JobContext {
        env: &*env,
        dir: dir(),
        tables: &table_cache(&env),
        numbers: &numbers(&env),
        options: &tiny_options(),
        snapshots: &snapshots,
        should_stop: &|| None,
    };
    let output = CompactionJob::new(&compaction).run(&context).unwrap();
    assert_eq!(output.stats.entries_written, 801);
    let users: Vec<(&[u8], &[u8])> = output
        .added
        .iter()
        .map(|file| (file.smallest_user_key(), file.largest_user_key()))
        .collect();
    assert!(users.len() >= 10, "each key has more than a table's worth: {users:?}");
    assert!(users.windows(2).all(|pair| pair[0].1 < pair[1].0), "{users:?}");
}

#[test]
fn outputs_are_cut_where_they_would_overlap_too_much_below() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    env.create_dir_all(dir()).unwrap();
    let keys = |sequence| -> Vec<Vec<u8>> {
        (0..5).map(|index| put(&format!("k{index}"), sequence)).collect()
    };
    let level0 = [write_table(&*env, 2, &keys(2)), write_table(&*env, 1, &keys(1))];
    let limit = tiny_options().table_size * picker::MAX_GRANDPARENT_TABLES;
    let below = |number, key: &str, size| {
        Arc::new(FileMeta::new(number, size, put(key, 1), put(&format!("{key}5"), 1)))
    };
    let level2 = [below(10, "k0", limit), below(11, "k1", 1), below(12, "k3", 1)];
    let version = version(&[(0, &level0), (2, &level2)]);
    let mut picker = Picker::new(0);
    let pick = picker.pick_range(&version, &tiny_options(), (0, 1), KeyRange::default());
    let RangePick::Job(compaction) = pick else { panic!("{pick:?}") };
    let output = run_job(&env, &compaction, &numbers(&env)).unwrap();
    let firsts: Vec<&[u8]> = output.added.iter().map(|file| file.smallest_user_key()).collect();
    assert_eq!(firsts, [&b"k0"[..], b"k2"]);
}

/// F11, LIFE-03
#[test]
fn a_job_that_fails_anywhere_leaves_its_inputs_and_nothing_else() {
    let ops = [Op::Open, Op::Read, Op::Create, Op::Append, Op::Finish, Op::SyncDir];
    for op in ops {
        let mut nth = 0;
        loop {
            nth += 1;
            let faults = FaultEnv::new(Arc::new(MemEnv::new()));
            let env: Arc<dyn Env> = Arc::new(faults.clone());
            let version = two_levels(&*env);
            let numbers = numbers(&env);
            let before = names(&*env);
            let mut picker = Picker::new(0);
            let compaction = picker.pick(&version, &tiny_options()).unwrap();
            let rule = faults.add(Fault::new(FaultKind::Error(5)).on(op).nth(nth));
            let result = run_job(&env, &compaction, &numbers);
            let fired = rule.fired() > 0;
            rule.remove();
            if !fired {
                assert!(nth > 1, "{op:?} is never used");
                assert_eq!(result.unwrap().stats.entries_written, 80);
                break;
            }
            assert!(matches!(result.unwrap_err(), Error::Io(_)));
            assert_eq!(names(&*env), before, "{op:?} number {nth}");
            drop(compaction);
            let compaction = picker.pick(&version, &tiny_options()).unwrap();
            let output = run_job(&env, &compaction, &numbers).unwrap();
            assert!(output.added.len() > 1);
            output.discard(&*env, dir());
            assert_eq!(names(&*env), before);
        }
    }
}

#[test]
fn a_job_that_is_told_to_stop_returns_the_reason() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let version = two_levels(&*env);
    let before = names(&*env);
    let compaction = Picker::new(0).pick(&version, &tiny_options()).unwrap();
    let context = JobContext {
        env: &*env,
        dir: dir(),
        tables: &table_cache(&env),
        numbers: &numbers(&env),
        options: &tiny_options(),
        snapshots: &[],
        should_stop: &|| Some(Error::Closed),
    };
    assert!(matches!(CompactionJob::new(&compaction).run(&context), Err(Error::Closed)));
    let memtable = Arc::new(MemTable::new());
    memtable.insert(b"k", 1, ValueKind::Put, b"v");
    let flushed = flush::write_table(&context, &mut memtable.cursor());
    assert!(matches!(flushed, Err(Error::Closed)));
    assert_eq!(names(&*env), before);
}

/// A lie about a table.
type Change = fn(&mut FileMeta);

/// HOST-08
#[test]
fn inputs_that_are_not_what_was_recorded_are_not_written_onward() {
    let keys = [put("a", 3), put("b", 3), tombstone("c", 2)];
    let changes: [(&str, Change); 4] = [
        ("first key", |file| file.smallest = put("A", 3)),
        ("all entries", |file| file.largest = put("d", 1)),
        ("all entries", |file| file.entries = 4),
        ("another table", |file| file.table_id += 1),
    ];
    for (what, change) in changes {
        let env: Arc<dyn Env> = Arc::new(MemEnv::new());
        env.create_dir_all(dir()).unwrap();
        let mut file = Arc::into_inner(write_table(&*env, 1, &keys)).unwrap();
        change(&mut file);
        let other = write_table(&*env, 2, &[put("a", 9)]);
        let version = version(&[(0, &[other, Arc::new(file)])]);
        let compaction = Picker::new(0).pick(&version, &tiny_options()).unwrap();
        let error = run_job(&env, &compaction, &numbers(&env)).unwrap_err();
        let Error::Corruption { path, what: found, .. } = error else { panic!("{error}") };
        assert_eq!(path, FileName::Table(1).path(dir()));
        assert!(found.contains(what), "{found}");
    }
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    env.create_dir_all(dir()).unwrap();
    let twice = [write_table(&*env, 1, &keys), write_table(&*env, 2, &[put("b", 3)])];
    let version = version(&[(0, &twice)]);
    let compaction = Picker::new(0).pick(&version, &tiny_options()).unwrap();
    let error = run_job(&env, &compaction, &numbers(&env)).unwrap_err();
    assert!(error.to_string().contains("the same version of a key"), "{error}");
}

#[test]
fn versions_offer_a_cursor_for_each_table_of_level_0_and_each_level() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let version = two_levels(&*env);
    let cursors = version.cursors(&table_cache(&env), &crate::ReadOptions::default()).unwrap();
    assert_eq!(cursors.len(), 3);
    let mut merged = crate::merge_iter::MergeCursor::new(cursors);
    merged.seek_to_first().unwrap();
    let mut count = 0;
    while merged.valid() {
        assert_eq!(merged.value(), value_of(merged.key()));
        count += 1;
        merged.next().unwrap();
    }
    assert_eq!(count, 180);
}

/// Flushes and compacts until it is done or the power is cut; counts the flushes acknowledged.
fn flush_and_compact(env: &Arc<dyn Env>, acknowledged: &mut u64) -> Result<()> {
    env.create_dir_all(dir())?;
    let mut set = VersionSet::create(Arc::clone(env), dir())?;
    let _ = set.roll(VersionEdit::default())?;
    let (tables, options, mut picker) = (table_cache(env), tiny_options(), Picker::new(0));
    for sequence in 1..=4 {
        let numbers = Arc::clone(set.numbers());
        let context = JobContext {
            env: &**env,
            dir: dir(),
            tables: &tables,
            numbers: &numbers,
            options: &options,
            snapshots: &[],
            should_stop: &|| None,
        };
        let memtable = Arc::new(MemTable::new());
        let user_key = format!("k{sequence}");
        memtable.insert(user_key.as_bytes(), sequence, ValueKind::Put, &[b'v'; 900]);
        let table = flush::write_table(&context, &mut memtable.cursor())?;
        let table = table.expect("the memtable is not empty");
        let edit = VersionEdit { added: vec![(0, 0, table)], ..VersionEdit::default() };
        let _ = set.log_and_apply(edit)?;
        *acknowledged = sequence;
        let current = set.family(0).expect("the default family is there").current;
        if let Some(compaction) = picker.pick(&current, &options) {
            let output = CompactionJob::new(&compaction).run(&context)?;
            let _ = set.log_and_apply(compaction.edit(output.added))?;
        }
        drop(current);
        for name in set.obsolete().take() {
            env.remove(&name.path(dir()))?;
        }
    }
    Ok(())
}

/// MAN-06
#[test]
fn after_any_power_loss_every_table_that_is_named_is_whole() {
    let clean = MemEnv::new();
    flush_and_compact(&(Arc::new(clean.clone()) as Arc<dyn Env>), &mut 0).unwrap();
    let mut opened = 0;
    for operation in 0..clean.operations() {
        for when in [When::Before, When::Inside, When::After] {
            let mem = MemEnv::new();
            mem.cut_power_at(operation, when);
            let mut acknowledged = 0;
            let _ = flush_and_compact(&(Arc::new(mem.clone()) as Arc<dyn Env>), &mut acknowledged);
            for policy in CrashPolicy::all(operation) {
                let image: Arc<dyn Env> = Arc::new(mem.crash(policy));
                let context = format!("{:?} {when:?} {policy:?}", mem.cut_operation());
                if image.metadata(dir()).unwrap().is_none() {
                    continue;
                }
                let set = VersionSet::recover(Arc::clone(&image), dir()).expect(&context);
                assert!(set.is_some() || acknowledged == 0, "{context}");
                let Some(set) = set else { continue };
                let (version, tables) = (set.family(0).unwrap().current, table_cache(&image));
                for sequence in 1..=acknowledged {
                    let user_key = format!("k{sequence}");
                    let target = encode(user_key.as_bytes(), seek_trailer(MAX_SEQUENCE));
                    let mut found =
                        version.candidates(user_key.as_bytes()).filter_map(|(_, file)| {
                            let table = file.open(&tables).expect(&context);
                            table.get(&target, false).expect(&context)
                        });
                    assert!(found.next().is_some(), "{context}: {user_key} is gone");
                }
                opened += 1;
            }
        }
    }
    assert!(opened > 500, "{opened} images are too few to mean much");
}
