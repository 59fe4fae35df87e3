//! The order of the engine's operations, on which it depends what a crash can leave.
//!
//! Every operation is written down as it begins, on memory and without threads, so that each has
//! ended before the next begins. A test says which must come before which.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use treering_env::{Call, CrashPolicy, Env, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Db, Options};

use crate::support::{
    DIR, all, count, get, is_manifest, open, put_synced, read_file, roomy, small, try_open,
    with_suffix,
};

/// An environment and what was asked of it.
struct Traced {
    faults: FaultEnv,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Traced {
    fn new(env: &MemEnv) -> Self {
        let faults = FaultEnv::new(Arc::new(env.clone()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let note = move |call: &Call<'_>| {
            noted.lock().unwrap().push(describe(call));
            false
        };
        // A rule that never applies, and sees everything.
        faults.add(Fault::new(FaultKind::Error(5)).matching(note));
        Self { faults, seen }
    }

    fn open(&self, options: Options) -> Db {
        try_open(Arc::new(self.faults.clone()), options).unwrap()
    }

    /// What was asked since the last call.
    fn take(&self) -> Trace {
        Trace(std::mem::take(&mut self.seen.lock().unwrap()))
    }
}

/// `Sync 000003.log`; of a rename the new name, of a directory `dir`.
fn describe(call: &Call<'_>) -> String {
    let name = call.to.unwrap_or(call.path).strip_prefix(DIR).unwrap_or(call.path);
    let name = if name == Path::new("") { "dir".into() } else { name.to_string_lossy() };
    format!("{:?} {name}", call.op)
}

/// Operations in their order.
#[derive(Debug)]
struct Trace(Vec<String>);

impl Trace {
    fn places(&self, what: &str) -> Vec<usize> {
        let (op, name) = what.split_once(' ').unwrap();
        let is = |seen: &String| {
            let (seen_op, seen_name) = seen.split_once(' ').unwrap();
            // A file is made durable by its last sync or when it is finished.
            let durable = op == "Durable" && matches!(seen_op, "Sync" | "Finish");
            (seen_op == op || durable) && seen_name.contains(name)
        };
        (0..self.0.len()).filter(|at| is(&self.0[*at])).collect()
    }

    #[track_caller]
    fn first(&self, what: &str) -> usize {
        *self.places(what).first().unwrap_or_else(|| panic!("no {what}: {self:#?}"))
    }

    #[track_caller]
    fn last(&self, what: &str) -> usize {
        *self.places(what).last().unwrap_or_else(|| panic!("no {what}: {self:#?}"))
    }

    /// Each of `steps` is there behind the one before.
    #[track_caller]
    fn in_order(&self, steps: &[&str]) {
        let mut from = 0;
        for step in steps {
            let found = self.places(step).into_iter().find(|at| *at >= from);
            from = 1 + found.unwrap_or_else(|| panic!("no {step} from {from} on: {self:#?}"));
        }
    }

    /// Every `earlier` comes before any `later`, and both are there.
    #[track_caller]
    fn all_before(&self, earlier: &str, later: &str) {
        let (last, first) = (self.last(earlier), self.first(later));
        assert!(last < first, "{earlier} at {last}, {later} at {first}: {self:#?}");
    }

    #[track_caller]
    fn has_none(&self, what: &str) {
        assert!(self.places(what).is_empty(), "{what}: {self:#?}");
    }
}

/// Options with which nothing is compacted unasked.
fn patient() -> Options {
    let mut options = roomy();
    options.cf.level0_compaction_trigger = 8;
    options
}

/// The only name with this ending.
#[track_caller]
fn only(env: &MemEnv, ending: &str) -> String {
    let names = with_suffix(env, ending);
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

fn manifest(env: &MemEnv) -> String {
    let bytes = read_file(env, &Path::new(DIR).join("CURRENT"));
    let text = String::from_utf8(bytes).unwrap();
    text.split_whitespace().find(|word| word.starts_with("MANIFEST")).unwrap().to_owned()
}

/// O1, O3: a new database has its lock, its first segment and its manifest, all durable, before
/// `CURRENT` appears, and that is durable before the first record and the first acknowledgement.
#[test]
fn a_new_database_is_durable_before_its_first_record() {
    let env = MemEnv::new();
    let traced = Traced::new(&env);
    let db = traced.open(roomy());
    put_synced(&db, "a", "1").unwrap();
    let trace = traced.take();
    let log = only(&env, ".log");
    let (append, sync) = (format!("Append {log}"), format!("Sync {log}"));
    trace.in_order(&[
        "CreateDir dir",
        "Lock LOCK",
        &format!("Create {log}"),
        &format!("Prepare {log}"),
        "SyncDir dir",
        "Create MANIFEST",
        "Append MANIFEST",
        "Durable MANIFEST",
        "Create CURRENT.tmp",
        "Append CURRENT.tmp",
        "Durable CURRENT.tmp",
        "Rename CURRENT",
        "SyncDir dir",
        &append,
        &sync,
    ]);
    trace.all_before("Rename CURRENT", &append);
    trace.all_before("Durable MANIFEST", "Create CURRENT.tmp");
    assert_eq!(trace.places(&append).len(), 2, "its first record and the write: {trace:#?}");
    assert!(trace.last(&append) < trace.last(&sync), "{trace:#?}");
    // What was acknowledged is there, whatever else is lost.
    for policy in CrashPolicy::all(1) {
        let after = env.crash(policy);
        assert_eq!(get(&open(&after, roomy()), "a").as_deref(), Some("1"));
    }
}

/// O5: the log is durable up to the memtable's last write, then the table and its name, then the
/// edit; only then do segments go.
#[test]
fn a_flush_makes_log_table_and_edit_durable_in_turn_before_it_removes_a_segment() {
    let env = MemEnv::new();
    let traced = Traced::new(&env);
    let db = traced.open(roomy());
    for i in 0..40 {
        db.put(format!("key{i:02}"), "v".repeat(5000)).unwrap();
    }
    let segments = count(&env, ".log");
    assert!(segments > 2, "{segments}");
    traced.take();
    db.flush().unwrap();
    let trace = traced.take();
    let table = only(&env, ".sst");
    trace.all_before("Sync .log", &format!("Create {table}"));
    trace.in_order(&[
        &format!("Create {table}"),
        &format!("Append {table}"),
        &format!("Durable {table}"),
        "SyncDir dir",
        "Append MANIFEST",
        "Sync MANIFEST",
        "Remove ",
    ]);
    trace.all_before(&format!("Durable {table}"), "Append MANIFEST");
    trace.all_before("Sync MANIFEST", "Remove ");
    assert!(count(&env, ".log") < segments);
    assert_eq!(all(&db).len(), 40);
}

/// O6: of two memtables that wait, the older becomes a table and is installed before the younger is
/// begun, so that no newer value is in a table while an older one is only in the log.
#[test]
fn memtables_become_tables_in_the_order_in_which_they_were_filled() {
    let env = MemEnv::new();
    let traced = Traced::new(&env);
    let mut options = Options { background_threads: 1, ..small() };
    options.cf.level0_compaction_trigger = 16;
    options.cf.level0_slowdown_trigger = 20;
    let db = traced.open(options);
    let hold = traced.faults.add(Fault::new(FaultKind::Block).on(Op::Create).path(".sst").nth(1));
    let mut written = 0;
    while db.stats().families[0].immutable_memtables < 2 {
        db.put("k", format!("{written:04}{}", "v".repeat(300))).unwrap();
        written += 1;
        assert!(written < 1000, "{}", db.stats());
    }
    hold.wait_until_blocked(1);
    hold.remove();
    db.flush().unwrap();
    let trace = traced.take();
    let begun = trace.places("Create .sst");
    assert!(begun.len() >= 3, "two that waited and the last one: {trace:#?}");
    let tables: Vec<&str> = begun.iter().map(|at| trace.0[*at].as_str()).collect();
    assert!(tables.is_sorted(), "{tables:?}");
    for pair in begun.windows(2) {
        let between = Trace(trace.0[pair[0]..pair[1]].to_vec());
        between.in_order(&["Durable .sst", "Append MANIFEST", "Sync MANIFEST"]);
    }
    let newest = get(&db, "k").unwrap();
    assert!(newest.starts_with(&format!("{:04}", written - 1)), "{newest}");
}

/// O6: a segment stays until every family that wrote to it has passed it.
#[test]
fn a_segment_waits_for_the_last_family_that_needs_it() {
    let env = MemEnv::new();
    let traced = Traced::new(&env);
    // No family is flushed because of how many segments there are.
    let mut options = Options { max_wal_size: Some(1 << 30), ..small() };
    options.cf.level0_compaction_trigger = 100;
    options.cf.level0_slowdown_trigger = 200;
    options.cf.level0_stop_trigger = 300;
    let db = traced.open(options);
    let slow = db.create_column_family("slow", roomy().cf).unwrap();
    slow.put("waits", "1").unwrap();
    let oldest = with_suffix(&env, ".log").remove(0);
    traced.take();
    for i in 0..200 {
        db.put(format!("key{i:03}"), "v".repeat(2000)).unwrap();
    }
    assert!(count(&env, ".log") > 3, "segments were switched");
    assert!(count(&env, ".sst") > 3, "the other family was flushed again and again");
    traced.take().has_none(&format!("Remove {oldest}"));
    db.flush().unwrap();
    let trace = traced.take();
    let removed = trace.first(&format!("Remove {oldest}"));
    assert!(trace.first("Sync MANIFEST") < removed, "{trace:#?}");
    assert_eq!((all(&db).len(), slow.iter().count()), (200, 1));
}

/// O7: what a compaction wrote is durable, name included, before the edit, and what it read goes
/// only when the edit is durable, and nobody reads it any more.
#[test]
fn a_compaction_makes_its_outputs_durable_before_its_edit_and_its_inputs_go_last() {
    let env = MemEnv::new();
    let traced = Traced::new(&env);
    let db = traced.open(patient());
    for value in ["old", "new"] {
        db.put("k", value).unwrap();
        db.flush().unwrap();
    }
    let inputs = with_suffix(&env, ".sst");
    let reader = db.iter();
    traced.take();
    db.compact_range::<&str>(..).unwrap();
    let trace = traced.take();
    let tables = with_suffix(&env, ".sst");
    let output = tables.iter().find(|name| !inputs.contains(name)).unwrap();
    trace.in_order(&[
        &format!("Create {output}"),
        &format!("Durable {output}"),
        "SyncDir dir",
        "Append MANIFEST",
        "Sync MANIFEST",
    ]);
    trace.all_before(&format!("Durable {output}"), "Append MANIFEST");
    trace.has_none("Remove .sst");
    drop(reader);
    let removals = traced.take();
    assert_eq!(removals.places("Remove .sst").len(), inputs.len(), "{removals:#?}");
    assert_eq!(only(&env, ".sst"), *output);
}

/// O8: a removal that fails is a left-over, and no error; after an edit whose outcome is unknown
/// nothing is removed at all.
#[test]
fn removals_that_fail_are_left_over_and_none_follows_an_edit_of_unknown_outcome() {
    for unknown in [false, true] {
        let env = MemEnv::new();
        let traced = Traced::new(&env);
        let db = traced.open(patient());
        for value in ["old", "new"] {
            db.put("k", value).unwrap();
            db.flush().unwrap();
        }
        traced.take();
        let failing = Fault::new(FaultKind::Error(5));
        let fault = traced.faults.add(if unknown {
            failing.on(Op::Sync).matching(is_manifest)
        } else {
            failing.on(Op::Remove)
        });
        assert_eq!(db.compact_range::<&str>(..).is_err(), unknown);
        assert!(fault.fired() > 0);
        let trace = traced.take();
        if unknown {
            trace.has_none("Remove ");
        } else {
            trace.all_before("Sync MANIFEST", "Remove .sst");
            assert_eq!(db.stats().failed_removals, fault.fired());
        }
        assert_eq!(count(&env, ".sst"), 3, "inputs and output stay");
        fault.remove();
        let _ = db.close();
        drop(db);
        let db = open(&env, roomy());
        assert_eq!(count(&env, ".sst"), 1, "left-overs go at the next open");
        assert_eq!(get(&db, "k").as_deref(), Some("new"));
    }
}

/// O9, O10, P12: an open takes the lock, reads, writes what it replayed into new tables, prepares a
/// segment, then makes a manifest durable before `CURRENT` names it, and begins the segment.
/// What was there before goes last.
#[test]
fn an_open_reads_all_replaces_all_and_removes_last() {
    let env = MemEnv::new();
    let before = Traced::new(&env);
    let db = before.open(roomy());
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.put("b", "2").unwrap();
    drop(db);
    let env = env.kill();
    let (old_log, old_manifest) = (with_suffix(&env, ".log").remove(0), manifest(&env));
    let old_table = only(&env, ".sst");

    let traced = Traced::new(&env);
    let db = traced.open(roomy());
    let trace = traced.take();
    let manifest = manifest(&env);
    let table = with_suffix(&env, ".sst").into_iter().find(|name| *name != old_table).unwrap();
    let begun = &trace.0[trace.last("SyncDir dir")..];
    let begun = begun.iter().find_map(|seen| seen.strip_prefix("Append ")).expect("a first record");
    assert!(begun.ends_with(".log") && *begun != old_log, "{begun}: {trace:#?}");
    trace.in_order(&[
        "Lock LOCK",
        &format!("Open {old_manifest}"),
        &format!("Open {old_log}"),
        &format!("Create {table}"),
        &format!("Durable {table}"),
        "SyncDir dir",
        &format!("Create {manifest}"),
        &format!("Append {manifest}"),
        &format!("Durable {manifest}"),
        "Durable CURRENT.tmp",
        "Rename CURRENT",
        "SyncDir dir",
        &format!("Append {begun}"),
        "Remove ",
    ]);
    trace.all_before(&format!("Create {begun}"), &format!("Create {manifest}"));
    trace.all_before("Rename CURRENT", "Remove ");
    trace.all_before(&format!("Append {begun}"), "Remove ");
    // Neither is touched before it is removed.
    for old in [&old_log, &old_manifest, &old_table] {
        for op in ["Append", "Write", "SetSize", "Prepare", "Sync", "Finish"] {
            trace.has_none(&format!("{op} {old}"));
        }
    }
    let removed: BTreeSet<&str> =
        trace.places("Remove ").into_iter().map(|at| &trace.0[at]["Remove ".len()..]).collect();
    assert!(removed.contains(old_log.as_str()), "{removed:?}");
    assert!(removed.contains(old_manifest.as_str()), "{removed:?}");
    assert!(!removed.contains(old_table.as_str()), "{removed:?}");
    assert_eq!(all(&db).len(), 2);
}

/// O14: the end record is durable before the lock is given back; an error on the way marks nothing
/// as clean, and the lock is free all the same.
#[test]
fn a_close_makes_its_end_record_durable_before_it_gives_the_lock_back() {
    for failing in [None, Some(Op::Append), Some(Op::Finish), Some(Op::Sync)] {
        let env = MemEnv::new();
        let traced = Traced::new(&env);
        let db = traced.open(roomy());
        db.put("a", "1").unwrap();
        let log = with_suffix(&env, ".log").remove(0);
        traced.take();
        let lock = Path::new(DIR).join("LOCK");
        let locked = Arc::new(Mutex::new(Vec::new()));
        let (noted, other) = (Arc::clone(&locked), env.clone());
        let look = move |call: &Call<'_>| {
            noted.lock().unwrap().push((call.op, other.lock(&lock).is_err()));
            false
        };
        let watch = traced.faults.add(Fault::new(FaultKind::Error(5)).path(".log").matching(look));
        let fault =
            failing.map(|op| traced.faults.add(Fault::new(FaultKind::Error(5)).on(op).path(&log)));
        let closed = db.close();
        let trace = traced.take();
        let failed = fault.is_some_and(|fault| fault.fired() > 0);
        assert_eq!(closed.is_err(), failed, "{failing:?}: {closed:?} {trace:#?}");
        // Without the last sync there is no end record either.
        assert_eq!(trace.places(&format!("Append {log}")).is_empty(), failing == Some(Op::Sync));
        let locked = std::mem::take(&mut *locked.lock().unwrap());
        assert!(!locked.is_empty() && locked.iter().all(|(_, held)| *held), "{locked:?}");
        if !failed {
            trace.in_order(&[&format!("Append {log}"), &format!("Durable {log}")]);
        }
        watch.remove();
        // It is free, and what was flushed is there.
        drop(env.lock(&Path::new(DIR).join("LOCK")).unwrap());
        traced.faults.clear();
        let again = env.kill();
        drop(db);
        let db = open(&again, roomy());
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "{failing:?}");
        assert!(db.recovery_report().cuts.is_empty() || failed, "{failing:?}");
    }
}
