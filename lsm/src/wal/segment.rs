//! Preparing segments, and the two jobs that run without the log lock: syncing one and preparing
//! more of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::{Env, FileKind, LogHandle, WritableFile};

use crate::checksum::random_id;
use crate::filename::FileName;
use crate::record::SegmentFact;
use crate::{Error, Result};

/// Sizes of segments, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalOptions {
    /// Size at which the log goes on in the next segment.
    pub(crate) segment_size: u64,
    /// How much is zero-filled ahead in one step; at least 4 KiB.
    pub(crate) prepare_step: u64,
}

impl WalOptions {
    /// The end of the step that holds offset `last`; the last step ends with the segment.
    pub(super) fn step_end(&self, last: u64) -> u64 {
        let end = (last + 1).next_multiple_of(self.prepare_step);
        if last < self.segment_size { end.min(self.segment_size) } else { end }
    }
}

/// A prepared segment: its first step is zero-filled and durable under its name. Until a record
/// is written into it, it means nothing and recovery passes over it.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) file: Box<dyn WritableFile>,
    path: PathBuf,
    pub(super) options: WalOptions,
    number: u64,
    epoch: u64,
    prepared: u64,
}

impl Spare {
    /// Creates and prepares segment `number` in `dir`. Waits for the device.
    ///
    /// After an error no spare is left, if the environment lets the file be removed, and the log
    /// is as it was.
    pub(crate) fn create(
        env: &dyn Env,
        dir: &Path,
        number: u64,
        options: &WalOptions,
    ) -> Result<Self> {
        let path = FileName::Log(number).path(dir);
        let file = env.create(&path, FileKind::Log)?;
        let prepared = options.step_end(0);
        let ready = file.handle().prepare(prepared).and_then(|()| env.sync_dir(dir));
        let spare = Self { file, path, options: *options, number, epoch: random_id(), prepared };
        match ready {
            Ok(()) => Ok(spare),
            Err(error) => {
                spare.discard(env);
                Err(Error::from(error))
            }
        }
    }

    /// Removes a spare that was never begun nor named. A file that cannot be removed is a
    /// left-over, which the next open clears away.
    pub(crate) fn discard(self, env: &dyn Env) {
        drop(self.file);
        let _leftover = env.remove(&self.path);
    }

    /// The segment's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The segment's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes prepared so far.
    pub(crate) fn prepared(&self) -> u64 {
        self.prepared
    }

    /// What the manifest has to name, durably, before [`Wal::begin`](super::Wal::begin) with the
    /// same `first_wal_seq`.
    pub(crate) fn fact(&self, first_wal_seq: u64) -> SegmentFact {
        SegmentFact {
            number: self.number,
            epoch: self.epoch,
            prepared: self.prepared,
            first_wal_seq,
            end: None,
        }
    }
}

/// A sync of everything appended to a segment so far. Holds the file, not the log.
#[derive(Clone, Debug)]
pub(crate) struct SyncPoint {
    handle: Arc<dyn LogHandle>,
    number: u64,
    end: u64,
}

impl SyncPoint {
    pub(super) fn new(handle: Arc<dyn LogHandle>, number: u64, end: u64) -> Self {
        Self { handle, number, end }
    }

    /// Makes everything below [`Self::end`] durable. An error is a log failure: never retried.
    pub(crate) fn sync(&self) -> Result<()> {
        self.handle.sync().map_err(Error::from)
    }

    /// The segment's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The end of the last record covered.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }
}

/// Zero-filling the next step of a begun segment.
#[derive(Debug)]
pub(crate) struct PrepareJob {
    handle: Arc<dyn LogHandle>,
    number: u64,
    target: u64,
}

impl PrepareJob {
    pub(super) fn new(handle: Arc<dyn LogHandle>, number: u64, target: u64) -> Self {
        Self { handle, number, target }
    }

    /// Prepares; waits for the device. The outcome belongs to
    /// [`Wal::note_prepared`](super::Wal::note_prepared).
    pub(crate) fn run(&self) -> treering_env::Result<()> {
        self.handle.prepare(self.target)
    }

    /// The segment's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The offset up to which it prepares.
    pub(crate) fn target(&self) -> u64 {
        self.target
    }
}
