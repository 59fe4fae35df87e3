//! The file that is read and written: filled with sectors that say which they are.
//!
//! A sector holds a generation, a number mixed from the generation and the sector's place, and at
//! its end that number's complement; the bytes between are random, so that nothing compresses
//! them. Whoever reads a sector can tell that it is whole and in its place without knowing who
//! wrote it last, and a write is told from what was there by its generation.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise};

use crate::cli::args::device::UNIT;
use crate::cli::bench::data::Stream;
use crate::cli::bench::database::Place;
use crate::cli::failure::{Failure, Result};
use crate::cli::interrupt::{self, Leftover};
use crate::cli::size::{counted, human_size};
use crate::env::Buffer;

const SECTOR: usize = 512;
/// Bytes written in one call while filling.
const PIECE: usize = 1 << 20;
/// Bytes after which a fill is synced, so that it does not fill memory with what waits for the
/// device.
const SYNC_EVERY: u64 = 256 << 20;
/// Places at which a file is looked at to tell whether it is one of ours.
const LOOKS: u64 = 64;
/// Numbers of sectors written by nobody else.
const SALT: u64 = 0x7472_6565_7269_6e67;

/// Where a file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Written for this call.
    New,
    /// It was there, and a benchmark wrote it.
    Ours,
    /// It was there and holds something else, which no read can be compared with.
    Foreign,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    size: u64,
    origin: Origin,
    kept: bool,
    /// Removes a temporary file.
    _place: Option<Place>,
}

impl Target {
    /// A new file of `size` bytes in a place that is removed afterwards, or in `dir`.
    pub(crate) fn temporary(dir: Option<&Path>, size: u64) -> Result<Self> {
        let place = Place::temporary(dir)?;
        let path = place.path().join("device");
        fill_new(&path, size)?;
        Ok(Self { path, size, origin: Origin::New, kept: false, _place: Some(place) })
    }

    /// The user's file, made with `size` bytes if it is not there.
    pub(crate) fn named(path: &Path, size: u64) -> Result<Self> {
        let path = path.to_path_buf();
        let metadata = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fill_new(&path, size)?;
                return Ok(Self { path, size, origin: Origin::New, kept: true, _place: None });
            }
            other => other.map_err(|error| Failure::file("open", &path, &error))?,
        };
        if !metadata.is_file() {
            let what = "is no regular file; --file names a file, --dir a directory";
            return Err(Failure::usage(format!("{} {what}", path.display())));
        }
        if metadata.len() < UNIT {
            return Err(Failure::usage(format!(
                "{} has {}, and nothing shorter than {} is measured; name a longer file, or one \
                 that is not there, which is then made with --file-size",
                path.display(),
                counted(metadata.len(), "byte", "bytes"),
                human_size(UNIT)
            )));
        }
        let size = metadata.len() - metadata.len() % UNIT;
        let origin = if is_ours(&path, size)? { Origin::Ours } else { Origin::Foreign };
        Ok(Self { path, size, origin, kept: true, _place: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether what is read can be compared.
    pub(crate) fn can_be_checked(&self) -> bool {
        self.origin != Origin::Foreign
    }

    /// Writes the file anew if it stays and is one of ours, after somebody wrote other bytes.
    pub(crate) fn restore(&self) -> Result<()> {
        if !self.kept || self.origin == Origin::Foreign {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&self.path);
        let done = file.and_then(|file| fill(&file, self.size));
        done.map_err(|error| Failure::file("write", &self.path, &error))
    }

    /// Opens the file for plain calls.
    pub(crate) fn open(&self, write: bool, direct: bool) -> Result<File> {
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = flags.bits().cast_signed();
        let opened =
            OpenOptions::new().read(true).write(write).custom_flags(flags).open(&self.path);
        opened.map_err(|error| {
            let advice = if direct {
                "\n  if the file system has no direct reads and writes, use --direct false"
            } else {
                ""
            };
            Failure::failed(format!("cannot open {}: {error}{advice}", self.path.display()))
        })
    }

    /// Makes every write durable and takes the file out of the page cache.
    pub(crate) fn drop_from_cache(&self) -> Result<()> {
        let file = self.open(false, false)?;
        let dropped = || -> io::Result<()> {
            file.sync_data()?;
            Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
        };
        dropped().map_err(|error| Failure::file("sync", &self.path, &error))
    }

    /// Whether what was read at `offset` is what has to be there.
    pub(crate) fn check(&self, block: &[u8], offset: u64) -> Result<()> {
        if self.origin == Origin::Foreign {
            return Ok(());
        }
        match wrong_sector(block, offset) {
            None => Ok(()),
            Some(at) => Err(self.wrong(at, "what was read is not what was written there")),
        }
    }

    /// Reads back blocks that a run wrote: all of them must be of its generation.
    pub(crate) fn read_back(&self, offsets: &[u64], len: usize, generation: u64) -> Result<()> {
        let file = self.open(false, false)?;
        let mut block = vec![0; len];
        for &offset in offsets {
            file.read_exact_at(&mut block, offset)
                .map_err(|error| Failure::file("read", &self.path, &error))?;
            let stale = block.chunks(SECTOR).any(|sector| word(sector, 0) != generation);
            if stale || wrong_sector(&block, offset).is_some() {
                return Err(self.wrong(offset, "a write that was acknowledged is not there"));
            }
        }
        Ok(())
    }

    fn wrong(&self, offset: u64, what: &str) -> Failure {
        Failure::Damaged(format!("{} at offset {offset}: {what}", self.path.display()))
    }
}

/// Memory full of random bytes, for [`stamp`].
pub(crate) fn noise(len: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(len);
    let mut stream = Stream::new(SALT);
    for word in buffer.as_mut_slice().chunks_mut(8) {
        word.copy_from_slice(&stream.next().to_le_bytes()[..word.len()]);
    }
    buffer
}

/// Makes the bytes those of `offset` and a generation. `block` is whole sectors.
pub(crate) fn stamp(block: &mut [u8], offset: u64, generation: u64) {
    for (number, sector) in (offset / SECTOR as u64..).zip(block.chunks_exact_mut(SECTOR)) {
        let mark = mark(number, generation);
        sector[..8].copy_from_slice(&generation.to_le_bytes());
        sector[8..16].copy_from_slice(&mark.to_le_bytes());
        sector[SECTOR - 8..].copy_from_slice(&(!mark).to_le_bytes());
    }
}

/// The offset of the first sector that is not whole or not in its place.
fn wrong_sector(block: &[u8], offset: u64) -> Option<u64> {
    let sectors = (offset / SECTOR as u64..).zip(block.chunks_exact(SECTOR));
    let mut wrong = sectors.filter(|(number, sector)| {
        let mark = mark(*number, word(sector, 0));
        word(sector, 8) != mark || word(sector, SECTOR - 8) != !mark
    });
    wrong.next().map(|(number, _)| number * SECTOR as u64)
}

fn mark(sector: u64, generation: u64) -> u64 {
    Stream::new(sector ^ SALT ^ generation.rotate_left(32)).next()
}

fn word(sector: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes of a sector"))
}

fn fill_new(path: &Path, size: u64) -> Result<()> {
    let made = interrupt::make(
        || OpenOptions::new().write(true).create_new(true).open(path),
        |_| Leftover::File(path.to_path_buf()),
    );
    let (file, _unfinished) = made.map_err(|error| Failure::file("create", path, &error))?;
    fill(&file, size).map_err(|error| {
        // What cannot be finished is of no use, and the first error is the one to tell.
        let _ = std::fs::remove_file(path);
        Failure::file("write", path, &error)
    })
}

fn fill(file: &File, size: u64) -> io::Result<()> {
    let mut piece = noise(PIECE);
    let mut offset = 0;
    while offset < size {
        let len = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
        let bytes = &mut piece.as_mut_slice()[..len];
        stamp(bytes, offset, 0);
        file.write_all_at(bytes, offset)?;
        offset += len as u64;
        if offset.is_multiple_of(SYNC_EVERY) {
            file.sync_data()?;
        }
    }
    file.sync_all()
}

fn is_ours(path: &Path, size: u64) -> Result<bool> {
    let look = || -> io::Result<bool> {
        let file = File::open(path)?;
        let mut block = vec![0; usize::try_from(UNIT).expect("a page")];
        let units = size / UNIT;
        let looks = LOOKS.min(units);
        for look in 0..looks {
            let offset = (units - 1) * look / (looks - 1).max(1) * UNIT;
            file.read_exact_at(&mut block, offset)?;
            if wrong_sector(&block, offset).is_some() {
                return Ok(false);
            }
        }
        Ok(units > 0)
    };
    look().map_err(|error| Failure::file("read", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_out_of_place_or_torn_is_noticed() {
        let mut block = noise(8192);
        stamp(block.as_mut_slice(), 1 << 20, 7);
        assert_eq!(wrong_sector(&block, 1 << 20), None);
        assert_eq!(wrong_sector(&block, 0), Some(0));
        let torn = (1 << 20) + 4096;
        stamp(&mut block.as_mut_slice()[4096..4096 + 512], torn, 8);
        assert_eq!(wrong_sector(&block, 1 << 20), None, "another generation is whole");
        block.as_mut_slice()[4096 + 510] ^= 1;
        assert_eq!(wrong_sector(&block, 1 << 20), Some(torn));
        assert_eq!(wrong_sector(&[0; 4096], 0), Some(0), "zeros are not ours");
    }

    #[test]
    fn a_file_is_known_again_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(Target::named(&path, 3 << 20).unwrap().origin(), Origin::New);
        let again = Target::named(&path, 1 << 20).unwrap();
        assert_eq!((again.origin(), again.size()), (Origin::Ours, 3 << 20));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        // The very last unit is looked at too.
        file.write_all_at(&[0; 4096], (3 << 20) - 4096).unwrap();
        assert_eq!(Target::named(&path, 1 << 20).unwrap().origin(), Origin::Foreign);
        let before = std::fs::read(&path).unwrap();
        Target::named(&path, 1 << 20).unwrap().restore().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), before, "what is not ours is left alone");
    }

    #[test]
    fn a_write_that_is_not_there_is_noticed_when_it_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::named(&dir.path().join("file"), 1 << 20).unwrap();
        target.read_back(&[0, 4096], 4096, 0).unwrap();
        let mut block = noise(4096);
        stamp(block.as_mut_slice(), 4096, 9);
        target.open(true, false).unwrap().write_all_at(&block, 4096).unwrap();
        target.read_back(&[4096], 4096, 9).unwrap();
        let lost = target.read_back(&[4096, 8192], 4096, 9).unwrap_err();
        assert!(lost.to_string().contains("at offset 8192: a write"), "{lost}");
    }

    #[test]
    fn a_temporary_file_is_gone_afterwards_and_its_directory_stays() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::temporary(Some(dir.path()), 1 << 20).unwrap();
        assert_eq!(target.path().metadata().unwrap().len(), 1 << 20);
        target.check(&std::fs::read(target.path()).unwrap(), 0).unwrap();
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
