//! What is compared: one small trait, and every peer by name.

mod coordinode;
mod fjall;
pub mod floor;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;
mod treering;

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::data::{Data, Key};
use crate::failure::Result;

/// Entries in one batch of a load.
pub const LOAD_BATCH: usize = 1000;
/// Bytes of a memtable while loading, where a peer has any.
pub const MEMTABLE: usize = 64 << 20;

/// Takes the answer for a key, and which of the keys it is for.
pub type See<'a> = &'a mut dyn FnMut(usize, Option<&[u8]>);
/// Takes an entry of a scan; `false` ends it.
pub type SeeEntry<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// A store of keys and values as an application would use it. Answers are shown to a closure, so
/// that a peer that lends its memory need not copy.
pub trait Peer: Send + Sync {
    /// Puts all entries in `order`, in batches of [`LOAD_BATCH`], and returns when they are durable
    /// and the peer has brought them into the shape it reads best.
    fn load(&self, data: &Data, order: &[u32]) -> Result<()>;

    /// Looks one key up.
    fn get(&self, key: &Key, see: See<'_>) -> Result<()>;

    /// Looks many keys up in one call, where the peer has such a call.
    fn multi_get(&self, keys: &[Key], see: See<'_>) -> Result<()> {
        for (number, key) in keys.iter().enumerate() {
            self.get(key, &mut |_, value| see(number, value))?;
        }
        Ok(())
    }

    /// Walks over all entries in order.
    fn scan(&self, see: SeeEntry<'_>) -> Result<()>;

    /// What is really in use, as far as the peer can tell.
    fn facts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The peers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Treering on pread, one block after another: the baseline of the ratios.
    PosixSerial,
    /// Treering on pread, the blocks of a batch started together.
    Posix,
    /// Treering on io_uring.
    IoUring,
    /// Treering on io_uring, past the page cache.
    IoUringDirect,
    /// RocksDB with io_uring.
    Rocksdb,
    /// RocksDB with io_uring, past the page cache.
    RocksdbDirect,
    /// fjall.
    Fjall,
    /// redb.
    Redb,
    /// coordinode-lsm-tree on its own std files.
    Coordinode,
    /// coordinode-lsm-tree on its io_uring files.
    CoordinodeIoUring,
    /// No store at all: the place of each entry is known, one pread of its block finds it.
    FloorPread,
    /// fio on the file of floor-pread: direct, io_uring, as deep as the batch.
    FloorFio,
}

impl Name {
    /// The name as on the command line.
    pub fn text(self) -> String {
        self.to_possible_value().expect("no name is hidden").get_name().to_owned()
    }

    /// Whether it reads past the page cache, so that nothing can be hot there.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::IoUringDirect | Self::RocksdbDirect | Self::FloorFio)
    }

    /// Whether it writes as no earlier one does.
    pub fn loads(self) -> bool {
        !matches!(
            self,
            Self::Posix | Self::IoUringDirect | Self::RocksdbDirect | Self::CoordinodeIoUring
        ) && self != Self::FloorFio
    }

    /// Whether it is a limit and not a store.
    pub fn is_floor(self) -> bool {
        matches!(self, Self::FloorPread | Self::FloorFio)
    }

    /// Whether it is RocksDB.
    pub fn is_rocksdb(self) -> bool {
        matches!(self, Self::Rocksdb | Self::RocksdbDirect)
    }

    /// The database it reads, which peers of one kind share, and how it was built: another version
    /// or setting builds anew.
    pub fn database(self) -> (&'static str, &'static str) {
        match self {
            Self::PosixSerial | Self::Posix | Self::IoUring | Self::IoUringDirect => {
                ("treering", "treering 0.1")
            }
            Self::Rocksdb | Self::RocksdbDirect => ("rocksdb", "rocksdb 0.25, one file"),
            Self::Fjall => ("fjall", "fjall 3.1"),
            Self::Redb => ("redb", "redb 4.6"),
            Self::Coordinode | Self::CoordinodeIoUring => ("coordinode", "coordinode 7.4"),
            Self::FloorPread | Self::FloorFio => ("floor", "floor 1"),
        }
    }

    /// Why it cannot run here, if it cannot.
    pub fn missing(self) -> Option<String> {
        if self.is_rocksdb() && !cfg!(feature = "rocksdb") {
            return Some("built without it; see README.md for --features rocksdb".to_owned());
        }
        if self == Self::FloorFio && !crate::fio::is_there() {
            return Some("there is no program called fio".to_owned());
        }
        None
    }
}

/// How to open a peer.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// Where its files are or will be.
    pub dir: &'a Path,
    /// Bytes of its block cache.
    pub cache: usize,
}

/// Opens a peer, with an empty database if there is none.
pub fn open(name: Name, how: Open<'_>, data: &Data) -> Result<Box<dyn Peer>> {
    Ok(match name {
        Name::PosixSerial | Name::Posix | Name::IoUring | Name::IoUringDirect => {
            Box::new(treering::Treering::open(name, how)?)
        }
        #[cfg(feature = "rocksdb")]
        Name::Rocksdb | Name::RocksdbDirect => Box::new(rocks::Rocks::open(name, how)?),
        #[cfg(not(feature = "rocksdb"))]
        Name::Rocksdb | Name::RocksdbDirect => return Err("built without RocksDB".into()),
        Name::Fjall => Box::new(fjall::Fjall::open(how)?),
        Name::Redb => Box::new(redb::Redb::open(how)?),
        Name::Coordinode | Name::CoordinodeIoUring => {
            Box::new(coordinode::Coordinode::open(name, how)?)
        }
        Name::FloorPread | Name::FloorFio => Box::new(floor::Floor::open(how, data)?),
    })
}

/// Hands all entries to `write`, batch by batch: a key, and the value of it.
pub fn in_batches(
    data: &Data,
    order: &[u32],
    mut write: impl FnMut(&mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()>,
) -> Result<()> {
    for batch in order.chunks(LOAD_BATCH) {
        write(&mut batch.iter().map(|&index| {
            let mut value = Vec::new();
            data.value(index.into(), &mut value);
            (data.key(index.into()), value)
        }))?;
    }
    Ok(())
}
