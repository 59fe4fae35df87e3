//! The floor: what the machine does when no store is in the way. All entries lie in order in one
//! file, in blocks of 4 KiB that none of them straddles. Where each block begins is known, so a
//! look-up is one `pread` and a `memcmp`; a batch is a loop of them.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Open, Peer, See, SeeEntry};
use crate::data::{Data, KEY_SIZE, Key};
use crate::failure::{Result, on_file};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes read at once by a scan.
const READ_AHEAD: usize = 64 * BLOCK;

pub struct Floor {
    file: File,
    path: PathBuf,
    data: Data,
    /// The first entry of each block, and the number of entries.
    first: Vec<u32>,
    /// Bytes of a block: of the least number of pages that hold the largest entry.
    block: usize,
}

/// The file of a floor's directory.
pub fn file(dir: &Path) -> PathBuf {
    dir.join("blocks")
}

impl Floor {
    pub fn open(how: Open<'_>, data: &Data) -> Result<Self> {
        let path = file(how.dir);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(|error| on_file("open", &path, error))?;
        let block = data.largest_value().next_multiple_of(BLOCK);
        let (mut first, mut left) = (Vec::new(), 0);
        for index in 0..data.len() {
            let size = data.value_size(index);
            if size > left {
                first.push(u32::try_from(index)?);
                left = block;
            }
            left -= size;
        }
        first.push(u32::try_from(data.len())?);
        Ok(Self { file, path, data: data.clone(), first, block })
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut value = Vec::new();
        let mut block = Vec::with_capacity(self.block);
        for pair in self.first.windows(2) {
            block.clear();
            for index in pair[0]..pair[1] {
                self.data.value(index.into(), &mut value);
                block.extend_from_slice(&value);
            }
            block.resize(self.block, 0);
            out.write_all(&block)?;
        }
        out.flush()
    }
}

impl Peer for Floor {
    /// Writes the file from start to end, whatever the order.
    fn load(&self, _data: &Data, _order: &[u32]) -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, &self.file);
        self.write(&mut out).map_err(|error| on_file("write", &self.path, error))?;
        Ok(self.file.sync_data()?)
    }

    fn get(&self, key: &Key, see: See<'_>) -> Result<()> {
        let index = u32::try_from(self.data.index(key))?;
        let block = self.first.partition_point(|&first| first <= index) - 1;
        let mut bytes = vec![0; self.block];
        self.file.read_exact_at(&mut bytes, (block * self.block) as u64)?;
        let size = |index: u32| self.data.value_size(index.into());
        let at: usize = (self.first[block]..index).map(size).sum();
        see(0, Some(&bytes[at..at + size(index)]));
        Ok(())
    }

    fn scan(&self, see: SeeEntry<'_>) -> Result<()> {
        let mut bytes = vec![0; READ_AHEAD.next_multiple_of(self.block)];
        let at_once = bytes.len() / self.block;
        for (number, blocks) in self.first[..self.first.len() - 1].chunks(at_once).enumerate() {
            let bytes = &mut bytes[..blocks.len() * self.block];
            self.file.read_exact_at(bytes, (number * at_once * self.block) as u64)?;
            for (place, block) in bytes.chunks(self.block).enumerate() {
                let mut rest = block;
                let after = self.first[number * at_once + place + 1];
                for index in blocks[place]..after {
                    let (value, behind) = rest.split_at(self.data.value_size(index.into()));
                    rest = behind;
                    let key: [u8; KEY_SIZE] = self.data.key(index.into());
                    if !see(&key, value) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Sizes, shuffled};

    #[test]
    fn every_entry_is_found_and_scanned_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::new(1, 2000, Sizes { least: 100, most: 1000 });
        let floor = Floor::open(Open { dir: dir.path(), cache: 0 }, &data).unwrap();
        floor.load(&data, &shuffled(2000, 1)).unwrap();
        for index in 0..2000 {
            let right = |_, value: Option<&[u8]>| assert!(data.is_value(index, value.unwrap()));
            floor.get(&data.key(index), &mut { right }).unwrap();
        }
        let mut seen = 0;
        let count = &mut |key: &[u8], value: &[u8]| {
            assert!(key == data.key(seen) && data.is_value(seen, value));
            seen += 1;
            true
        };
        floor.scan(count).unwrap();
        assert_eq!(seen, 2000);
    }
}
