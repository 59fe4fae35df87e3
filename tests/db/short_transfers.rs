//! A database on a disk whose system calls transfer fewer bytes than they are asked for.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use treering_env::{BatchReads, DirEntry, Env, ErrorKind, IoUringEnv, PosixEnv};
use treering_lsm::inspect::verify;
use treering_lsm::{Db, Options};

use crate::support::{all, roomy, small, text};

type Model = BTreeMap<String, String>;

fn open(env: &Arc<dyn Env>, dir: &Path, options: Options) -> Db {
    // Nothing is cached, so that every look-up reads its blocks.
    let mut options = Options { block_cache_size: 0, ..options };
    options.cf.memtable_size = options.cf.memtable_size.max(32 << 10);
    let family = options.cf.clone();
    Db::builder(Arc::clone(env), dir).options(options).family("users", family).open().unwrap()
}

/// Writes a round of values and removals over what is there, into both families. Some values are
/// longer than `most`, so that a block with one of them is too.
fn write(db: &Db, models: &mut [Model; 2], keys: usize, most: usize, round: usize) {
    let users = db.column_family("users").unwrap();
    for i in 0..keys {
        let key = format!("key{i:04}");
        let len = if i % 10 == 3 { most + 500 } else { i % 40 };
        let value = format!("value {i} of round {round}, {}", "v".repeat(len));
        if (i + round).is_multiple_of(5) {
            db.delete(&key).unwrap();
            models[0].remove(&key);
        } else {
            db.put(&key, &value).unwrap();
            models[0].insert(key.clone(), value.clone());
        }
        users.put(&key, &value).unwrap();
        models[1].insert(key, value);
    }
}

/// Both families are the models, by iterator and by batched look-up.
fn check(db: &Db, models: &[Model; 2], keys: usize, at: &str) {
    let users = db.column_family("users").unwrap();
    assert_eq!(all(db).into_iter().collect::<Model>(), models[0], "{at}");
    let listed: Model = users.iter().map(|entry| text(entry.unwrap())).collect();
    assert_eq!(listed, models[1], "{at}");
    let keys: Vec<String> = (0..keys + 10).map(|i| format!("key{i:04}")).collect();
    for (model, answers) in models.iter().zip([db.multi_get(&keys), users.multi_get(&keys)]) {
        for (key, answer) in keys.iter().zip(answers) {
            let found = answer.unwrap();
            let expected = model.get(key).map(String::as_bytes);
            assert_eq!(found.as_deref(), expected, "{at}: {key}");
        }
    }
}

/// Since the last time there were short reads and short writes.
struct Shorts<'a> {
    env: &'a Arc<dyn Env>,
    seen: [u64; 2],
}

impl Shorts<'_> {
    /// How many reads and writes were short since the last time.
    fn more(&mut self) -> [u64; 2] {
        let report = self.env.report();
        let now = ["short_reads", "short_writes"].map(|name| {
            assert!(report.counters.contains_key(name), "there is no counter {name}");
            report.counter(name)
        });
        let more = [now[0] - self.seen[0], now[1] - self.seen[1]];
        self.seen = now;
        more
    }
}

fn live_through(env: &Arc<dyn Env>, keys: usize, most: usize, at: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("db");
    let mut shorts = Shorts { env, seen: [0; 2] };
    let mut models = [Model::new(), Model::new()];

    let db = open(env, &dir, roomy());
    write(&db, &mut models, keys, most, 0);
    check(&db, &models, keys, at);
    drop(db);
    assert!(shorts.more()[1] > 0, "{at}: the log was written whole");

    let db = open(env, &dir, small());
    let report = db.recovery_report();
    assert_eq!(report.operations, 2 * keys as u64, "{at}: {report}");
    assert!(report.cuts.is_empty(), "{at}: {report}");
    assert!(shorts.more()[0] > 0, "{at}: the log was replayed whole");
    check(&db, &models, keys, at);

    write(&db, &mut models, keys, most, 1);
    db.flush().unwrap();
    assert!(shorts.more()[1] > 0, "{at}: tables were written whole");
    check(&db, &models, keys, at);
    assert!(shorts.more()[0] > 0, "{at}: tables were read whole");

    write(&db, &mut models, keys, most, 2);
    db.flush().unwrap();
    shorts.more();
    for family in ["default", "users"] {
        db.column_family(family).unwrap().compact_range::<&[u8]>(..).unwrap();
    }
    let [reads, writes] = shorts.more();
    assert!(reads > 0 && writes > 0, "{at}: compaction: {reads} {writes}");
    check(&db, &models, keys, at);
    db.close().unwrap();
    drop(db);

    let named = |entry: &DirEntry| entry.name.to_string_lossy().starts_with("MANIFEST");
    let manifest = env.list(&dir).unwrap().into_iter().find(named).unwrap();
    let manifest = env.metadata(&dir.join(manifest.name)).unwrap().unwrap().size;
    let verified = verify(Arc::clone(env), &dir).unwrap();
    assert!(verified.damages.is_empty() && verified.tails.is_empty(), "{at}: {verified:?}");
    shorts.more();
    let db = open(env, &dir, small());
    assert_eq!(db.recovery_report().operations, 0, "{at}: {}", db.recovery_report());
    // Where it is longer than a transfer: with the longest ones it is not.
    let whole = shorts.more()[0] == 0;
    assert!(!whole || manifest <= most as u64, "{at}: the manifest was replayed whole");
    check(&db, &models, keys, at);

    // The same files, by calls that transfer what they are asked for.
    drop(db);
    let whole: Arc<dyn Env> = Arc::new(PosixEnv::new());
    check(&open(&whole, &dir, small()), &models, keys, at);
}

/// ENV-02
#[test]
fn a_database_is_right_whatever_the_system_calls_transfer_at_once() {
    let (serial, prefetch) = (BatchReads::Serial, BatchReads::Prefetch);
    for (bytes, keys, queues) in
        [(1, 20, serial), (7, 60, prefetch), (511, 200, serial), (4096, 200, prefetch)]
    {
        let most = NonZeroUsize::new(bytes).unwrap();
        let builder = PosixEnv::builder().batch_reads(queues).max_transfer(most);
        let at = format!("{bytes} bytes, {queues:?}");
        let env: Arc<dyn Env> = Arc::new(builder.build().unwrap());
        live_through(&env, keys, bytes, &at);
        // Every batched read on a ring, in as many entries as it takes.
        let rings = IoUringEnv::builder().rings(1).nowait(false).max_transfer(most).build();
        let env: Arc<dyn Env> = match rings {
            Ok(env) => Arc::new(env),
            Err(cause) => {
                assert!(std::env::var_os("TREERING_REQUIRE_IO_URING").is_none(), "{cause}");
                writeln!(std::io::stderr(), "SKIPPED: {cause}").unwrap();
                continue;
            }
        };
        live_through(&env, keys, bytes, &format!("{bytes} bytes, rings"));
        let report = env.report();
        assert!(report.counter("ring_reads") > 0, "{report}");
        assert!(report.counter("ring_reads") > 4096 / bytes as u64, "{report}");
    }
}

#[test]
fn short_transfers_and_direct_files_are_not_to_be_had_together() {
    let most = NonZeroUsize::new(512).unwrap();
    for builder in [PosixEnv::builder().direct_reads(true), PosixEnv::builder().direct_writes(true)]
    {
        let error = builder.max_transfer(most).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}
