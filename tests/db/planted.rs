//! Tests of the tests: with one step of durability left out, a power loss shows it. And a clock
//! that jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use treering_env::{CrashPolicy, Env, Fault, FaultEnv, FaultKind, MemEnv, Op};
use treering_lsm::{Clock, Db};

use crate::support::{DIR, all, open, put_synced, roomy, small, try_open};

/// Whether some power loss after a synced write, a flush and a reopen breaks a promise, if `step`
/// reports success and does nothing.
fn is_noticed(step: impl Fn() -> Fault) -> bool {
    let env = MemEnv::new();
    let faults = FaultEnv::new(Arc::new(env.clone()));
    faults.add(step());
    let shared: Arc<dyn Env> = Arc::new(faults);
    let mut broken = false;
    for round in 0..3 {
        let db = try_open(Arc::clone(&shared), roomy()).unwrap();
        for step in 0..2 {
            put_synced(&db, &format!("key{round}{step}"), "v").unwrap();
            for policy in CrashPolicy::all(round * 2 + step) {
                let count = usize::try_from(round * 2 + step + 1).unwrap();
                let image: Arc<dyn Env> = Arc::new(env.crash(policy));
                let whole =
                    try_open(image, roomy()).is_ok_and(|db| db.iter().flatten().count() == count);
                broken |= !whole;
            }
            db.flush().unwrap();
        }
        db.close().unwrap();
    }
    broken
}

/// ENV-21, for steps left out by kind of file.
#[test]
fn each_durability_step_that_is_left_out_is_noticed() {
    let of = |op: Op, part: &'static str| {
        move || {
            let named =
                move |call: &treering_env::Call<'_>| call.path.to_string_lossy().contains(part);
            Fault::new(FaultKind::Drop).on(op).matching(named)
        }
    };
    assert!(!is_noticed(of(Op::Sync, "no such file")), "nothing is wrong when nothing is left out");
    for (op, part) in [
        (Op::Sync, ".log"),
        (Op::Finish, ".sst"),
        (Op::Sync, "MANIFEST"),
        (Op::Finish, "CURRENT.tmp"),
        (Op::SyncDir, DIR),
    ] {
        assert!(is_noticed(of(op, part)), "{op:?} of {part} is left out and nobody notices");
    }
}

/// A clock that jumps back a day, forward ten years, to the start, far beyond, and stands still.
#[derive(Debug, Default)]
struct Jumping(AtomicUsize);

impl Clock for Jumping {
    fn now(&self) -> Duration {
        const DAY: u64 = 86_400;
        let years = [10 * 365, 10 * 365 - 1, 0, 200 * 365, 0, 3650, 3650, 1];
        let at = self.0.fetch_add(1, Ordering::SeqCst);
        Duration::from_secs(years[at / 3 % years.len()] * DAY)
    }

    fn sleep(&self, _duration: Duration) {}
}

/// LIFE-09
#[test]
fn a_clock_that_jumps_holds_nothing_up_and_loses_nothing() {
    let env = MemEnv::new();
    let mut options = small();
    options.cf.level0_slowdown_trigger = 3;
    options.cf.level0_stop_trigger = 5;
    let builder = Db::builder(Arc::new(env.clone()), DIR).options(options);
    let db = builder.clock(Arc::new(Jumping::default())).open().unwrap();
    for i in 0..3000 {
        db.put(format!("key{:04}", i % 900), "v".repeat(40)).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_compact().unwrap();
    assert!(!db.stats().to_string().is_empty());
    assert_eq!(all(&db).len(), 900);
    db.close().unwrap();
    drop(db);
    assert_eq!(all(&open(&env, small())).len(), 900);
}
