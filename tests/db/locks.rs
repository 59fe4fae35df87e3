//! Nobody waits for a device who need not.

use std::sync::mpsc::channel;
use std::time::Duration;

use treering_env::{Fault, FaultKind, Op};
use treering_lsm::Db;

use crate::support::{faulty, roomy};

/// Long enough that only a thread that is stuck takes longer.
const STUCK: Duration = Duration::from_mins(2);

/// Once, the log lock was held while space was zero-filled for a large record and while a segment
/// was synced before the switch to the next, and the state lock waited for it.
#[test]
fn nothing_but_writes_waits_while_the_log_waits_for_its_device() {
    type Write = (Op, &'static str, fn(&Db));
    let large = |db: &Db| db.put("large", "v".repeat(20_000)).unwrap();
    let switch = |db: &Db| {
        while db.stats().log_switches == 0 {
            db.put("filler", "v".repeat(5000)).unwrap();
        }
    };
    let writes: [Write; 4] = [
        (Op::Prepare, "space for a large record", large),
        (Op::Prepare, "the next segment", switch),
        (Op::Create, "the next segment's file", switch),
        (Op::Sync, "the end of a segment", switch),
    ];
    for (op, what, write) in writes {
        let (_env, faults, db) = faulty(roomy());
        let hold = faults.add(Fault::new(FaultKind::Block).on(op).path(".log"));
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&db));
            hold.wait_until_blocked(1);
            let others = scope.spawn(|| {
                let (stats, snapshot) = (db.stats(), db.snapshot());
                db.create_column_family("f", roomy().cf).unwrap();
                sender.send((stats.log_segments, snapshot.get("absent").unwrap())).unwrap();
            });
            let seen = receiver.recv_timeout(STUCK);
            hold.remove();
            writer.join().unwrap();
            others.join().unwrap();
            assert_eq!(seen, Ok((1, None)), "while the device is busy with {what}");
        });
    }
}
