//! What a database tells a `tracing` subscriber.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use treering_env::{CrashPolicy, Env, Fault, FaultKind, MemEnv, Op};
use treering_lsm::{Db, Options};

use crate::support::{DIR, faulty, is_manifest, open, open_new, put_synced, small, with_suffix};

thread_local! {
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}
static INSTALLED: Once = Once::new();

/// One for all threads: with one for each, a thread that has none could be the first to reach an
/// event, which would then be off for all.
struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "treering_lsm"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        // A thread that ends may have none left to tell.
        let _ = TOLD.try_with(|told| told.borrow_mut().push(line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What is told on this thread while `run` runs, level and message first.
fn told_by(run: impl FnOnce()) -> Vec<String> {
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Collector).expect("there is no other collector");
        tracing::callsite::rebuild_interest_cache();
    });
    TOLD.take();
    run();
    TOLD.take()
}

fn fill(db: &Db, count: usize) {
    for i in 0..count {
        db.put(format!("key{i:04}"), "v".repeat(40)).unwrap();
    }
}

#[test]
fn an_open_tells_what_it_replayed_and_left_out() {
    let env = MemEnv::new();
    let told = told_by(|| put_synced(&open(&env, small()), "k", "v").unwrap());
    assert_eq!(told, [format!("INFO message=a database is created path={DIR}")]);
    let db = open(&env, small());
    put_synced(&db, "k", "v").unwrap();
    db.put("l", "v".repeat(4000)).unwrap();
    let open = "INFO message=a database is open";
    let whole = env.crash(CrashPolicy::KeepAll);
    let told = told_by(|| drop(self::open(&whole, small())));
    // What was replayed may be more than a memtable or a level should hold.
    assert!(told[0].starts_with(open) && told[0].contains(" operations=2"), "{told:?}");
    assert!(told.iter().all(|line| !line.starts_with("WARN")), "{told:?}");

    // Bytes that were never acknowledged stand behind the last record.
    let torn = env.kill();
    let log = Path::new(DIR).join(with_suffix(&torn, ".log").pop().unwrap());
    let file = torn.open_rw(&log).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    let end = end.next_multiple_of(8);
    file.write_all_at(&[0xab; 21], end).unwrap();
    drop(file);
    let told = told_by(|| drop(self::open(&torn, small())));
    let left_out = "WARN message=the end of a file is left out path=";
    assert!(told[0].starts_with(left_out), "{told:?}");
    assert!(told[0].contains(&format!("{} offset={end} bytes=21", log.display())), "{told:?}");
    assert!(told[1].starts_with(open), "{told:?}");
}

#[test]
fn jobs_are_told_and_single_operations_are_not() {
    let (_env, db) = open_new(small());
    let told = told_by(|| fill(&db, 50));
    assert_eq!(told, [""; 0]);
    let told = told_by(|| {
        db.flush().unwrap();
        fill(&db, 50);
        db.compact_range::<&[u8]>(..).unwrap();
    });
    let count = |start: &str| told.iter().filter(|line| line.starts_with(start)).count() as u64;
    let stats = db.stats();
    assert_eq!(count("DEBUG message=a memtable is flushed family=0 bytes="), stats.flushes);
    assert_eq!(count("DEBUG message=tables are compacted tables="), stats.compactions);
    assert!(stats.flushes == 2 && stats.compactions > 0, "{told:?}");
    assert_eq!(told.len() as u64, stats.flushes + stats.compactions);
}

#[test]
fn the_failure_that_ends_writing_is_told_once() {
    let (_env, faults, db) = faulty(small());
    fill(&db, 5);
    faults.add(Fault::new(FaultKind::Error(5)).on(Op::Sync).matching(is_manifest));
    let told = told_by(|| {
        db.flush().unwrap_err();
        db.put("k", "v").unwrap_err();
        db.flush().unwrap_err();
    });
    let [ended, failed] = &told[..] else { panic!("{told:?}") };
    assert!(
        ended.starts_with("ERROR message=writing has ended until the database is opened again")
    );
    assert!(failed.starts_with("WARN message=a job failed job=flush error="), "{failed}");
}

#[test]
fn a_write_that_is_held_back_is_told() {
    let (_env, faults, db) = faulty(small());
    faults.add(Fault::new(FaultKind::Error(28)).on(Op::Append).path(".sst"));
    let told = told_by(|| {
        let refused = (0..10_000).any(|i| db.put(format!("key{i}"), "v".repeat(40)).is_err());
        assert!(refused, "memory is bounded");
    });
    let held = "WARN message=a write was held back waited_ms=0 refused=true";
    assert!(told.iter().any(|line| line == held), "{told:?}");
}

/// On the thread of the writer, which waits for others: for a flush, and for a compaction.
#[test]
fn a_write_that_waited_for_a_thread_is_told_and_so_is_one_refused_for_its_failure() {
    let held = |what: Fault, blocks: bool| {
        let mut options = Options { background_threads: 3, ..small() };
        options.cf.level0_slowdown_trigger = 3;
        options.cf.level0_stop_trigger = 4;
        let (_env, faults, db) = faulty(options);
        let fault = faults.add(what);
        let patience = Instant::now() + Duration::from_mins(1);
        let told = told_by(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while blocks && db.stats().stopped_writes == 0 && Instant::now() < patience {
                        std::thread::yield_now();
                    }
                    if blocks {
                        fault.remove();
                    }
                });
                let key = |i: usize| format!("key{i:05}");
                let refused = (0..3000).any(|i| db.put(key(i), "v".repeat(40)).is_err());
                assert_eq!(refused, !blocks);
            });
        });
        assert!(fault.fired() > 0);
        let stopped = db.stats().stopped_writes;
        assert!((1..=stopped).contains(&(told.len() as u64)), "{stopped}: {told:?}");
        let message = "WARN message=a write was held back waited_ms=";
        assert!(told.iter().all(|line| line.starts_with(message)), "{told:?}");
        told
    };
    let waits = |line: &String| line.ends_with(" refused=false");
    let flush = held(Fault::new(FaultKind::Block).on(Op::Sync).matching(is_manifest), true);
    assert!(flush.iter().all(waits), "{flush:?}");
    let compaction = held(Fault::new(FaultKind::Block).on(Op::Read).path(".sst"), true);
    assert!(compaction.iter().all(waits), "{compaction:?}");
    let refused = held(Fault::new(FaultKind::Error(5)).on(Op::Read).path(".sst"), false);
    assert!(refused.last().is_some_and(|line| line.ends_with(" refused=true")), "{refused:?}");
}
