//! Appends records to a new file.
//!
//! Records reach the file in their order, always: what was kept in memory goes with the next
//! record that does not stay there, in the same write.

use std::sync::Arc;

use treering_env::{LogHandle, WritableFile};

use crate::checksum::crc;
use crate::{Error, Result};

use super::{Begin, HEADER_SIZE, Header, RecordType, Tail, record_size};

/// Memory kept between appends for assembling records; a larger record's is given back.
const KEPT_BUFFER: usize = 1 << 20;

/// The most bytes of records that stay in memory: what a crash of the process takes at most.
const MAX_BUFFERED: usize = 256 << 10;

/// Where a record landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Its first byte.
    pub(crate) offset: u64,
    /// The first byte behind it, padding included.
    pub(crate) end: u64,
    /// Its number.
    pub(crate) wal_seq: u64,
}

/// The writer of one file of records. Used by one thread at a time.
///
/// The first failed write or sync is kept: every later call returns it, and the file is never
/// written again.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    file: Box<dyn WritableFile>,
    epoch: u64,
    /// The end of the last record, whether it is in the file or in `buffer`.
    end: u64,
    watermark: u64,
    last: Tail,
    /// Records that are not in the file yet.
    buffer: Vec<u8>,
    /// How many writes in `buffer` were told to be done.
    buffered: u64,
    failure: Option<Error>,
}

impl RecordWriter {
    /// Starts the empty `file` with its first record, numbered `wal_seq`. The record is flushed,
    /// not synced. `epoch` is a fresh [`random_id`](crate::checksum::random_id).
    pub(crate) fn begin(
        file: Box<dyn WritableFile>,
        epoch: u64,
        wal_seq: u64,
        begin: &Begin,
    ) -> Result<Self> {
        assert!(file.is_empty(), "a file of records starts with its first record");
        assert!(epoch != 0 && wal_seq != 0, "zero is no epoch and no record number");
        let mut writer = Self {
            file,
            epoch,
            end: 0,
            watermark: 0,
            last: Tail { wal_seq: wal_seq - 1, crc: 0 },
            buffer: Vec::new(),
            buffered: 0,
            failure: None,
        };
        writer.append(RecordType::Begin, &[&begin.encode()])?;
        Ok(writer)
    }

    /// Appends one record made of `parts`, and whatever was buffered before it, with one write, and
    /// flushes it.
    ///
    /// After an error it is unknown whether the record is in the file; see [`Self::failure`].
    pub(crate) fn append(&mut self, kind: RecordType, parts: &[&[u8]]) -> Result<Appended> {
        self.check()?;
        let appended = self.assemble(kind, parts);
        self.write_out()?;
        Ok(appended)
    }

    /// Appends one record that stands for `writes` writes and leaves it in memory, where the death
    /// of the process takes it. When more than [`MAX_BUFFERED`] would be there, everything is
    /// written, as by [`Self::append`].
    pub(crate) fn append_buffered(
        &mut self,
        kind: RecordType,
        parts: &[&[u8]],
        writes: u64,
    ) -> Result<Appended> {
        self.check()?;
        let appended = self.assemble(kind, parts);
        if self.buffer.len() > MAX_BUFFERED {
            self.write_out()?;
        } else {
            self.buffered += writes;
        }
        Ok(appended)
    }

    /// Writes what is in memory.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.check()?;
        if self.buffer.is_empty() { Ok(()) } else { self.write_out() }
    }

    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn write_out(&mut self) -> Result<()> {
        // Taken first: what an environment panicked over is never written a second time.
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.file.append(&buffer).and_then(|()| self.file.flush());
        if let Err(error) = written {
            return Err(self.fail(Error::from(error)));
        }
        self.buffered = 0;
        if buffer.capacity() <= KEPT_BUFFER {
            buffer.clear();
            self.buffer = buffer;
        }
        Ok(())
    }

    /// Builds the next record at the end of `buffer`.
    fn assemble(&mut self, kind: RecordType, parts: &[&[u8]]) -> Appended {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length > 0, "a record has a payload");
        let length_field = u32::try_from(length).expect("a payload is at most 4 GiB - 1");
        let size = usize::try_from(record_size(length as u64)).expect("it is in memory");
        let start = self.buffer.len();
        self.buffer.reserve(size);
        self.buffer.resize(start + HEADER_SIZE, 0);
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        self.buffer.resize(start + size, 0);
        let (head, payload) = self.buffer[start..].split_at_mut(HEADER_SIZE);
        let mut header = Header::new(kind, length_field, self.epoch);
        header.payload_crc = crc(self.epoch, self.end, &[payload]);
        header.wal_seq = self.last.wal_seq + 1;
        header.watermark = self.watermark;
        header.chain = self.last.crc;
        let (bytes, checksum) = header.encode(self.end);
        head.copy_from_slice(&bytes);
        let offset = self.end;
        self.end += size as u64;
        self.last = Tail { wal_seq: header.wal_seq, crc: checksum };
        Appended { offset, end: self.end, wal_seq: header.wal_seq }
    }

    /// Makes everything appended so far durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        match self.file.sync() {
            Ok(()) => {
                self.note_synced(self.end);
                Ok(())
            }
            Err(error) => Err(self.fail(Error::from(error))),
        }
    }

    /// Notes that a sync of everything below `end`, begun when that much was flushed, succeeded.
    /// Later records carry it as their watermark.
    pub(crate) fn note_synced(&mut self, end: u64) {
        let written = self.end - self.buffer.len() as u64;
        assert!(end <= written, "only what was written can be synced");
        self.watermark = self.watermark.max(end);
    }

    /// Keeps `error` as the first failure if there is none yet, and returns the first. It says so
    /// if writes go down with it that were told to be done.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        let writes = self.buffered;
        let failure = self.failure.get_or_insert_with(|| {
            if writes == 0 { error } else { Error::BufferedLost { writes, cause: Arc::new(error) } }
        });
        failure.clone()
    }

    /// The first failed write or sync, if any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The handle for syncing and preparing the file from other threads.
    pub(crate) fn handle(&self) -> Arc<dyn LogHandle> {
        self.file.handle()
    }

    /// The end of the last record.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The offset below which everything is known to be durable.
    pub(crate) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// The last record's number and header checksum.
    pub(crate) fn last(&self) -> Tail {
        self.last
    }

    /// Bytes of records that are in memory only.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Cuts off what was prepared behind the last record, makes everything durable with a full
    /// sync, and closes the file.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.file.finish().map(|_| ()).map_err(Error::from)
    }
}
