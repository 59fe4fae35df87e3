//! The database: one handle for everything, and the state that its parts share.
//!
//! Locks, in the order in which they are taken; a thread that holds one may take only those below:
//! 1. `inline_turn` (without background threads: who does the work that is due), then the baton of
//!    the write queue (who appends and switches memtables);
//! 2. `versions`, the manifest lock: edits are made durable and shown one after another. It is the
//!    one lock that is held while a device is waited for, by those whose edits must wait anyway;
//! 3. `state`, the state lock: families, snapshots, jobs. Never held over I/O; or `log`, the log
//!    lock: held over the append to the log, never over a sync or the preparing of space. Whoever
//!    holds one of the two does not take the other, so that the state lock never waits for a write
//!    behind the log lock;
//! 4. the queue of obsolete files and the bell of the log thread, which may be taken under any.
//!
//! Readers take none of them: they load `view` and `visible`. Whoever changes what others wait
//! for does it under the state lock and notifies `changed`.

mod background;
mod close;
mod column_family;
mod columns;
mod compact;
mod flush;
mod log;
mod multi_get;
mod open;
mod queue;
mod read;
mod recover;
mod snapshot;
mod stall;
mod state;
mod summary;
mod view;
mod write;

use std::fmt;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use treering_env::{Env, FileLock, PosixEnv};

pub use column_family::ColumnFamily;
pub use columns::{FailedKeys, FixedColumn, KeyColumn, ValueColumn};
pub use open::DbBuilder;
pub use snapshot::Snapshot;

use crate::batch::{DEFAULT_FAMILY, FamilyId, WriteBatch};
use crate::iter::{DbCursor, KeyBounds, Range};
use crate::stats::{Counters, RecoveryReport, Stats};
use crate::table_cache::TableCache;
use crate::version::{FileNumbers, ObsoleteFiles, VersionSet};
use crate::wal::WalOptions;
use crate::{CfOptions, Clock, Error, Options, ReadOptions, Result, WriteOptions, trace};
use background::Bell;
use log::Log;
use queue::{Turnstile, WriteQueue};
use stall::Pressure;
use state::State;
use view::ReadView;

/// What all handles and threads of an open database share.
pub(crate) struct Shared {
    // Set at open.
    /// No other open of this process has it.
    id: u64,
    env: Arc<dyn Env>,
    dir: PathBuf,
    options: Options,
    clock: Arc<dyn Clock>,
    tables: Arc<TableCache>,
    numbers: Arc<FileNumbers>,
    obsolete: Arc<ObsoleteFiles>,
    wal_options: WalOptions,
    report: RecoveryReport,
    // For writers.
    queue: WriteQueue,
    turnstile: Turnstile,
    pressure: Pressure,
    /// Bytes of logs beyond which the family that needs the oldest one is flushed.
    max_wal_size: AtomicU64,
    inline_turn: Mutex<()>,
    versions: Mutex<VersionSet>,
    state: Mutex<State>,
    changed: Condvar,
    log: Mutex<Log>,
    // For readers.
    view: ArcSwap<ReadView>,
    /// The last published sequence number.
    visible: AtomicU64,
    // How it ends.
    /// The first log or manifest failure.
    poison: OnceLock<Arc<Error>>,
    /// Writes are refused and jobs end.
    closing: AtomicBool,
    /// Reads are refused too.
    closed: AtomicBool,
    lock: Mutex<Option<FileLock>>,
    log_bell: Arc<Bell>,
    work_is_left: AtomicBool,
    stats: Counters,
}

impl Shared {
    /// Keeps `error` as what stopped writes, unless an earlier one did; returns the first. Wakes
    /// everyone who waits.
    fn poison(&self, error: Error) -> Error {
        let mut is_first = false;
        let first = self.poison.get_or_init(|| {
            is_first = true;
            Arc::new(error)
        });
        self.wake_all();
        if is_first {
            trace::poisoned(&self.dir, first);
        }
        Error::clone(first)
    }

    fn check_poison(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    /// Whether reads are still allowed.
    fn check_open(&self) -> Result<()> {
        // Relaxed: a read that overlaps a close may be before or after it.
        if self.closed.load(Ordering::Relaxed) { Err(Error::Closed) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<()> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        self.check_poison()
    }

    /// Shows the state to readers, takes its pressure, and wakes those who wait for a change.
    fn publish(&self, state: &State) {
        self.view.store(Arc::new(state.view()));
        self.pressure.refresh(state);
        self.changed.notify_all();
        self.log_bell.ring();
    }
}

/// An open database and its threads; the last one dropped closes it.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Db({})", self.shared.dir.display())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to tell. What was acknowledged as flushed is in the log already; what was
        // buffered is written now.
        let _unreported = self.close();
    }
}

/// An open database.
///
/// Cheap to clone; any number of threads may use it at once. The database stays open, and locked
/// against other openers, until [`Db::close`], or until the last `Db`, [`ColumnFamily`],
/// [`Snapshot`], iterator and cursor of it is dropped.
///
/// Writes last as long as their durability says. The default,
/// [`Durability::Flushed`](crate::Durability::Flushed), survives the death of the process but
/// **not a power loss**; [`Durability::Synced`](crate::Durability::Synced) survives both.
///
/// After the first failed write or sync of the log or the manifest every write returns
/// [`Error::Poisoned`] with the first cause, while reads go on; opening the database again
/// recovers it. A write that failed may be there at the next open, whole or not at all, unless
/// its error says that nothing was applied.
#[derive(Clone, Debug)]
pub struct Db {
    handle: Arc<Handle>,
}

impl Db {
    /// Opens the database in the directory `path` on an environment; creates it if it is not
    /// there and the options allow.
    ///
    /// Errors: [`Error::Locked`] if it is open already, here or in another process;
    /// [`Error::NotADatabase`], [`Error::Corruption`], [`Error::MissingFile`] and
    /// [`Error::UnsupportedVersion`] name the file. A failed open leaves the database as it was.
    pub fn open(env: Arc<dyn Env>, path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::builder(env, path).options(options).open()
    }

    /// Opens the database in the directory `path` on [`PosixEnv`] with default options.
    pub fn open_default(path: impl AsRef<Path>) -> Result<Self> {
        Self::open(Arc::new(PosixEnv::new()), path, Options::default())
    }

    /// Everything that can be chosen for an open.
    pub fn builder(env: Arc<dyn Env>, path: impl AsRef<Path>) -> DbBuilder {
        DbBuilder::new(env, path.as_ref())
    }

    /// Sets `key` to `value`.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(key, value);
        self.write(batch)
    }

    /// Deletes `key`. Deleting an absent key is no error.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete(key);
        self.write(batch)
    }

    /// Applies a batch, whole or not at all, with the database's default durability.
    pub fn write(&self, batch: WriteBatch) -> Result<()> {
        self.write_opt(batch, &WriteOptions::default())
    }

    /// Applies a batch, whole or not at all.
    ///
    /// Returns when the batch is as durable as asked and visible to reads that start later.
    /// Batches become visible in the order of the log: a flushed write behind an unfinished synced
    /// one waits for that sync. Waiting writers share one append and one sync.
    ///
    /// A write may be more durable than asked: a buffered one that shares a group with a flushed
    /// one, or that follows it closely, goes the same way.
    ///
    /// [`Error::InvalidArgument`] and [`Error::FamilyDropped`]: nothing was applied. The same goes
    /// for [`Error::NoSpace`] while [`Db::stats`] shows no failure that stopped writes. After any
    /// other error the batch may or may not be there at the next open.
    pub fn write_opt(&self, batch: WriteBatch, options: &WriteOptions) -> Result<()> {
        self.handle.shared.write(batch, options)
    }

    /// The value of `key`; `None` if it has none.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_opt(key, &ReadOptions::default())
    }

    /// [`Db::get`] with options.
    pub fn get_opt(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Bytes>> {
        self.handle.shared.get(None, DEFAULT_FAMILY, key.as_ref(), options)
    }

    /// The values of many keys, as of one moment. Any order and duplicates are fine; answer *i* is
    /// for key *i*. One key's failed read is that key's error and disturbs no other.
    ///
    /// All blocks that are not cached are read through one queue of the environment, as many at
    /// once as it allows. Memory in flight is bounded however many keys there are.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        self.multi_get_opt(keys, &ReadOptions::default())
    }

    /// [`Db::multi_get`] with options.
    pub fn multi_get_opt<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        let keys: Vec<(FamilyId, K)> = keys.into_iter().map(|key| (DEFAULT_FAMILY, key)).collect();
        self.handle.shared.multi_get(None, &keys, options)
    }

    /// [`Db::multi_get`] over several column families, all as of one moment. The answer for a
    /// family of another open database is [`Error::InvalidArgument`].
    pub fn multi_get_in<'a, K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = (&'a ColumnFamily, K)>,
    ) -> Vec<Result<Option<Bytes>>> {
        self.handle.multi_get_in(None, keys)
    }

    /// The keys in a range and their values, as of now, from either end. An error is the last
    /// item. An inverted range is empty.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.handle.range(None, DEFAULT_FAMILY, KeyBounds::new(&range))
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.handle.range(None, DEFAULT_FAMILY, KeyBounds::prefix(prefix.as_ref()))
    }

    /// All keys.
    pub fn iter(&self) -> Range {
        self.handle.range(None, DEFAULT_FAMILY, KeyBounds::all())
    }

    /// A cursor over all keys, as of now.
    pub fn cursor(&self) -> Result<DbCursor> {
        self.handle.cursor(None, DEFAULT_FAMILY)
    }

    /// A view of all column families as they are now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.handle)
    }

    /// Creates a column family; durable when this returns. [`Error::InvalidArgument`] if there is
    /// one of that name. Names have 1 to 255 bytes.
    pub fn create_column_family(&self, name: &str, options: CfOptions) -> Result<ColumnFamily> {
        let id = self.handle.shared.create_family(name, options)?;
        // Another thread may have dropped it again.
        self.handle.family(name).ok_or(Error::FamilyDropped { id })
    }

    /// The column family called `name`, if there is one.
    pub fn column_family(&self, name: &str) -> Option<ColumnFamily> {
        self.handle.family(name)
    }

    /// The names of all column families, the oldest first: `default` is always there.
    pub fn column_family_names(&self) -> Vec<String> {
        self.handle.shared.family_names()
    }

    /// Drops a column family with everything in it; durable when this returns. Reads that run
    /// finish on what they see; later calls on its handles are [`Error::FamilyDropped`]. Its files
    /// go when the last reader is gone.
    pub fn drop_column_family(&self, family: &ColumnFamily) -> Result<()> {
        self.handle.shared.drop_family(family.id_in(&self.handle)?)
    }

    /// Writes the memtables of all families to tables and waits for it. The data is on the device
    /// then. A failure is returned; the data stays in memory and in the log, and is tried again.
    pub fn flush(&self) -> Result<()> {
        self.handle.shared.flush_all(None)
    }

    /// Hands the log to the operating system: every write that has returned, buffered ones too,
    /// survives the death of the process then. With it goes a marker that tells recovery how much
    /// of the log was on the device: damage below is then never taken for a write that did not
    /// finish. Without news for recovery since the last record there is no marker.
    pub fn flush_wal(&self) -> Result<()> {
        self.handle.shared.flush_wal()
    }

    /// Makes every write that has returned survive a power loss.
    pub fn sync_wal(&self) -> Result<()> {
        self.handle.shared.sync_wal()
    }

    /// Compacts the keys of `default` in a range as far down as they go, and waits: deleted keys
    /// and old versions that no snapshot sees are gone from the disk then. Runs on the calling
    /// thread, beside the background work; reads and rewrites everything in the range.
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.handle.shared.compact_range(DEFAULT_FAMILY, &KeyBounds::new(&range))
    }

    /// Waits until no compaction is due or running; the error of one that failed meanwhile.
    pub fn wait_for_compact(&self) -> Result<()> {
        self.handle.shared.wait_for_compact()
    }

    /// Counters, and the shape of the data. Takes the state lock for a moment.
    pub fn stats(&self) -> Stats {
        self.handle.shared.stats()
    }

    /// What this open found and did.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.handle.shared.report.clone()
    }

    /// The environment that the database is on.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.handle.shared.env
    }

    /// The database's directory.
    pub fn path(&self) -> &Path {
        &self.handle.shared.dir
    }

    /// Ends writes and background work, ends the log in order, and gives the lock back, whatever
    /// handles are left: their calls return [`Error::Closed`]. Waits for writes and jobs that run.
    ///
    /// The first error is returned, and the lock is given back all the same. Memtables are not
    /// flushed: what they hold is in the log. Closing twice is no error.
    pub fn close(&self) -> Result<()> {
        self.handle.close()
    }
}

impl IntoIterator for &Db {
    type Item = Result<(Bytes, Bytes)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}
