//! What scans past the page cache cost, on the kernel's own rings, by the counters.

use std::sync::Arc;

use treering_env::Env;
use treering_lsm::Db;

use crate::neighbours::{direct, key, options, value};

/// ITER-11
#[test]
fn a_scan_of_a_direct_database_reads_a_few_blocks_itself_and_the_rest_ahead() {
    const KEYS: u64 = 20_000;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(env) = direct(dir.path(), 0) else { return };
    let db = Db::open(Arc::clone(&env) as _, dir.path().join("db"), options()).unwrap();
    (0..KEYS).for_each(|n| db.put(key(n), value(n)).unwrap());
    db.compact_range::<&str>(..).unwrap();
    let forward = db.range::<&str>(..).enumerate();
    let backward = db.range::<&str>(..).rev().enumerate();
    let scans: [(_, Box<dyn Iterator<Item = _>>); 2] =
        [(false, Box::new(forward)), (true, Box::new(backward))];
    for (backward, scan) in scans {
        let (before, mut seen) = (env.report(), 0);
        for (at, entry) in scan {
            let (found, held) = entry.unwrap();
            let n = if backward { KEYS - 1 - at as u64 } else { at as u64 };
            assert!(found == key(n).as_bytes() && held == value(n).as_bytes(), "{n}");
            seen += 1;
        }
        assert_eq!(seen, KEYS);
        // Nine entries are a block. Two blocks of a table are read before a scan is taken for one;
        // what is read of a table when it is opened is not announced.
        let since = env.report().since(&before);
        let (plain, ahead) = (since.counter("preads"), since.counter("read_ahead_hits"));
        assert!(ahead > 2000 && plain < 50, "backward: {backward}: {since}");
        assert_eq!(since.counter("read_ahead_refused"), 0, "{since}");
        // The ranges grow, so they are few, and none but the last is kept when the scan has left
        // it.
        assert!(since.counter("read_ahead_ranges") < 40, "{since}");
        let facts = env.report().facts;
        let kept = facts.iter().find(|fact| fact.name == "direct files read ahead").unwrap();
        let kib: u64 = kept.value.split(' ').next().unwrap().parse().unwrap();
        assert!(kib <= 2 << 10, "{kept:?}");
    }
}
