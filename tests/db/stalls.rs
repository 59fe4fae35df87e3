//! Backpressure: writes are slowed in proportion, then refused or held back, and it shows.

use std::sync::Arc;
use std::time::Duration;

use treering_env::{Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Clock, Db, Error, Options};

use crate::support::{DIR, all, small};

/// A clock that only moves when somebody sleeps on it.
#[derive(Debug, Default)]
struct Stepped {
    slept: std::sync::Mutex<Duration>,
}

impl Clock for Stepped {
    fn now(&self) -> Duration {
        *self.slept.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) {
        *self.slept.lock().unwrap() += duration;
    }
}

fn tight() -> Options {
    let mut options = small();
    options.cf.level0_compaction_trigger = 2;
    options.cf.level0_slowdown_trigger = 4;
    options.cf.level0_stop_trigger = 8;
    options
}

/// LIFE-09, LIFE-11, BG-05
#[test]
fn while_compactions_fail_writes_slow_down_then_are_refused_and_then_go_on() {
    let faults = FaultEnv::new(Arc::new(MemEnv::new()));
    let clock = Arc::new(Stepped::default());
    let builder = Db::builder(Arc::new(faults.clone()), DIR).options(tight());
    let db = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>).open().unwrap();
    let fault = faults.add(Fault::new(FaultKind::Error(5)).on(Op::Read).path(".sst"));
    let mut written = 0;
    let mut delays = Vec::new();
    let error = loop {
        let before = clock.now();
        match db.put(format!("key{:05}", written % 900), "v".repeat(40)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        let files = db.stats().families[0].levels[0].files;
        delays.push((files, clock.now().saturating_sub(before)));
        assert!(written < 10_000, "{}", db.stats());
    };
    assert!(matches!(error, Error::Io(_)) && error.to_string().contains(".sst"), "{error}");
    assert!(delays.iter().all(|(files, delay)| *files >= 4 || *delay == Duration::ZERO));
    let longest = |count: usize| {
        delays.iter().filter(|(files, _)| *files == count).map(|(_, delay)| *delay).max()
    };
    assert!(longest(4) > Some(Duration::ZERO), "{delays:?}");
    assert!(longest(7) > longest(5), "the delay grows with the files: {delays:?}");
    let stats = db.stats();
    assert!(stats.slowed_writes > 0 && stats.stopped_writes > 0, "{stats}");
    assert!(stats.compaction_error.as_ref().unwrap().contains(".sst"), "{stats}");
    assert_eq!(stats.families[0].levels[0].files, 8, "{stats}");
    assert_eq!(stats.poisoned, None);
    fault.remove();
    db.put("after", "1").unwrap();
    assert_eq!(db.stats().compaction_error, None);
    assert!(db.stats().families[0].levels[0].files < 4, "{}", db.stats());
    assert_eq!(all(&db).len(), written.min(900) + 1);
}

/// BG-09
#[test]
fn a_compaction_that_always_fails_is_not_tried_at_every_write() {
    let faults = FaultEnv::new(Arc::new(MemEnv::new()));
    let clock = Arc::new(Stepped::default());
    let mut options = small();
    options.cf.level0_slowdown_trigger = 1000;
    options.cf.level0_stop_trigger = 1000;
    options.cf.level_base_size = 1 << 30;
    let builder = Db::builder(Arc::new(faults.clone()), DIR).options(options);
    let db = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>).open().unwrap();
    faults.add(Fault::new(FaultKind::Error(5)).on(Op::Read).path(".sst"));
    for i in 0..3000 {
        db.put(format!("key{i:05}"), "v".repeat(40)).unwrap();
    }
    let failed = db.stats().failed_compactions;
    assert!((1..5).contains(&failed), "{failed} tries while the clock stood still");
    clock.sleep(Duration::from_mins(1));
    db.put("later", "1").unwrap();
    assert_eq!(db.stats().failed_compactions, failed + 1);
    assert!(db.wait_for_compact().is_err());
}

/// LIFE-11: more frozen memtables than allowed never pile up without threads either.
#[test]
fn while_flushes_fail_memory_stays_bounded_and_writes_are_refused() {
    let faults = FaultEnv::new(Arc::new(MemEnv::new()));
    let db = Db::open(Arc::new(faults.clone()), DIR, small()).unwrap();
    let fault = faults.add(Fault::new(FaultKind::Error(28)).on(Op::Append).path(".sst"));
    let mut written = 0;
    let error = loop {
        match db.put(format!("key{written:05}"), "v".repeat(40)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "{}", db.stats());
        if written % 10 == 0 {
            assert!(matches!(db.flush(), Ok(()) | Err(Error::NoSpace(_))));
        }
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    let stats = db.stats();
    assert_eq!(stats.families[0].immutable_memtables, 2, "{stats}");
    fault.remove();
    db.put("after", "1").unwrap();
    db.flush().unwrap();
    assert_eq!(all(&db).len(), written + 1);
    assert_eq!(db.stats().families[0].immutable_memtables, 0);
}
