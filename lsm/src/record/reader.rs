//! Reads a file of records from its start, in bounded memory, and collects evidence behind the
//! first offset that holds no valid record.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, Env, RandomAccessFile};

use crate::checksum::crc;
use crate::coding::get_u64;
use crate::{Error, Result};

use super::header::EPOCH_OFFSET;
use super::{ALIGNMENT, FORMAT_VERSION, HEADER_SIZE, Header, RecordType, record_size};

/// Bytes read ahead at once.
const WINDOW: u64 = 256 << 10;

/// Payload memory kept from record to record; a larger one's is given back.
const KEPT_PAYLOAD: usize = 1 << 20;

/// The number and header checksum of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The record's number.
    pub(crate) wal_seq: u64,
    /// Its header checksum: the next record's chain.
    pub(crate) crc: u32,
}

/// A valid record.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// What it holds.
    pub(crate) kind: RecordType,
    /// Its first byte in the file.
    pub(crate) offset: u64,
    /// The first byte behind it.
    pub(crate) end: u64,
    /// Its header.
    pub(crate) header: Header,
    /// Its payload, without padding.
    pub(crate) payload: &'a [u8],
}

/// Why the reader came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The end that the caller gave: a successor settled it.
    AtLimit,
    /// No valid record: anything from plain zeros to a torn write.
    NoRecord(&'static str),
    /// A header that is intact and yet cannot have been written there. No crash leaves that.
    Broken(&'static str),
}

/// An intact header behind the first invalid offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    /// Where it stands.
    pub(crate) offset: u64,
    /// Everything below this offset was durable when it was built.
    pub(crate) watermark: u64,
}

/// What stands at and behind the first offset without a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// That offset.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) stop: Stop,
    /// The end of the last byte that is not zero; `offset` itself if only zeros follow.
    pub(crate) tail_end: u64,
    /// Intact headers of the file's epoch behind `offset`.
    pub(crate) later_records: u64,
    /// The one among them with the highest watermark.
    pub(crate) witness: Option<Witness>,
    /// The highest record number among them.
    pub(crate) highest_wal_seq: Option<u64>,
}

/// What the record before says about the next.
#[derive(Clone, Copy, Debug)]
struct Previous {
    epoch: u64,
    tail: Tail,
    watermark: u64,
}

/// The reader of one file of records.
///
/// Holds one window of the file and one payload; a payload's memory is allocated only after its
/// length was checked against the rest of the file and the limit.
#[derive(Debug)]
pub(crate) struct RecordReader {
    file: Arc<dyn RandomAccessFile>,
    size: u64,
    limit: u64,
    settled_end: Option<u64>,
    max_payload: u32,
    offset: u64,
    previous: Option<Previous>,
    stop: Option<Stop>,
    window: Vec<u8>,
    window_start: u64,
    payload: Vec<u8>,
}

impl RecordReader {
    /// Opens `path` for reading from its start.
    pub(crate) fn open(env: &dyn Env, path: &Path) -> Result<Self> {
        Ok(Self::new(env.open(path, Access::Sequential)?, u32::MAX))
    }

    /// Reads `file`, in which no payload is longer than `max_payload`.
    pub(crate) fn new(file: Arc<dyn RandomAccessFile>, max_payload: u32) -> Self {
        let size = file.size();
        Self {
            file,
            size,
            limit: size,
            settled_end: None,
            max_payload,
            offset: 0,
            previous: None,
            stop: None,
            window: Vec::new(),
            window_start: 0,
            payload: Vec::new(),
        }
    }

    /// Reads exactly to `end`, which the next segment settled: what follows there is ignored, and
    /// a record that crosses it is not valid.
    pub(crate) fn settle_end(&mut self, end: u64) {
        self.limit = end.min(self.size);
        self.settled_end = Some(end);
    }

    /// The next record; `None` at the first offset without a valid one, for ever after.
    ///
    /// A failed read is an error, never an end. The first record must be a
    /// [`Begin`](super::Begin), and no other may be.
    pub(crate) fn read_next(&mut self) -> Result<Option<Record<'_>>> {
        if self.stop.is_some() {
            return Ok(None);
        }
        match self.check_next()? {
            Ok((kind, header, checksum)) => {
                let offset = self.offset;
                self.offset = offset + record_size(u64::from(header.length));
                let tail = Tail { wal_seq: header.wal_seq, crc: checksum };
                let watermark = header.watermark;
                self.previous = Some(Previous { epoch: header.epoch, tail, watermark });
                let payload = self.payload.get(..header.length as usize);
                let payload = payload.expect("the payload was read with its padding");
                let end = self.offset;
                Ok(Some(Record { kind, offset, end, header, payload }))
            }
            Err(stop) => {
                self.stop = Some(stop);
                Ok(None)
            }
        }
    }

    /// Checks what stands at `offset`, leaving its payload in `payload`. The inner error says why
    /// it is no valid record.
    fn check_next(&mut self) -> Result<std::result::Result<(RecordType, Header, u32), Stop>> {
        if self.settled_end == Some(self.offset) {
            return Ok(Err(Stop::AtLimit));
        }
        let offset = self.offset;
        let rest = self.limit - offset;
        if rest < HEADER_SIZE as u64 {
            return Ok(Err(Stop::NoRecord("too short for a record")));
        }
        let Some((header, checksum)) = Header::decode(self.window(offset, HEADER_SIZE)?, offset)
        else {
            return Ok(Err(Stop::NoRecord("no record header")));
        };
        let kind = match self.check_header(&header)? {
            Ok(kind) => kind,
            Err(stop) => return Ok(Err(stop)),
        };
        if record_size(u64::from(header.length)) > rest {
            return Ok(Err(Stop::NoRecord("the record is longer than the rest of the file")));
        }
        self.read_payload(header.length)?;
        if crc(header.epoch, offset, &[&self.payload]) != header.payload_crc {
            return Ok(Err(Stop::NoRecord("the payload's checksum does not match")));
        }
        Ok(Ok((kind, header, checksum)))
    }

    /// Checks an intact header against what must be true at this place.
    fn check_header(&self, header: &Header) -> Result<std::result::Result<RecordType, Stop>> {
        if self.previous.is_some_and(|previous| previous.epoch != header.epoch) {
            return Ok(Err(Stop::NoRecord("a record of another file")));
        }
        if header.version > FORMAT_VERSION {
            return Err(Error::UnsupportedVersion {
                path: self.path().to_path_buf(),
                found: u32::from(header.version),
                supported: u32::from(FORMAT_VERSION),
            });
        }
        let broken = |what| Ok(Err(Stop::Broken(what)));
        let Some(kind) = RecordType::from_byte(header.kind) else {
            return broken("a record of unknown type");
        };
        if header.reserved != 0 {
            return broken("a record with reserved bits set");
        }
        if header.length > self.max_payload {
            return broken("a record longer than the limit");
        }
        if header.watermark > self.offset {
            return broken("a watermark beyond its own record");
        }
        if (kind == RecordType::Begin) != self.previous.is_none() {
            return broken("a first record, and only that, begins a file");
        }
        let Some(previous) = &self.previous else {
            return if header.chain == 0 && header.wal_seq != 0 {
                Ok(Ok(kind))
            } else {
                broken("a first record with a predecessor in the same file")
            };
        };
        if previous.tail.wal_seq.checked_add(1) != Some(header.wal_seq) {
            return broken("a record is missing or repeated");
        }
        if previous.tail.crc != header.chain {
            return broken("a record that follows another one than stands before it");
        }
        if header.watermark < previous.watermark {
            return broken("a watermark that fell");
        }
        Ok(Ok(kind))
    }

    /// Fills `payload` with `length` bytes and their padding.
    fn read_payload(&mut self, length: u32) -> Result<()> {
        let start = self.offset + HEADER_SIZE as u64;
        let padded = u64::from(length).next_multiple_of(ALIGNMENT);
        let padded = usize::try_from(padded).map_err(|_| {
            Error::corruption(self.file.path(), self.offset, "a record that no memory can hold")
        })?;
        if self.payload.capacity() > KEPT_PAYLOAD {
            self.payload = Vec::new();
        }
        if padded as u64 <= WINDOW {
            let mut payload = std::mem::take(&mut self.payload);
            payload.clear();
            payload.extend_from_slice(self.window(start, padded)?);
            self.payload = payload;
        } else {
            self.payload.clear();
            self.payload.resize(padded, 0);
            self.file.read_exact_at(&mut self.payload, start)?;
        }
        Ok(())
    }

    /// `length` bytes of the file at `offset`, at most a window; they must be below its size.
    fn window(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let wanted_end = offset + length as u64;
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || wanted_end > window_end {
            let end = self.size.min(offset + WINDOW).max(wanted_end);
            let size = usize::try_from(end - offset).expect("a window fits in memory");
            self.window.clear();
            self.window.resize(size, 0);
            let read = self.file.read_exact_at(&mut self.window, offset);
            if let Err(error) = read {
                self.window.clear();
                return Err(Error::from(error));
            }
            self.window_start = offset;
        }
        let start = usize::try_from(offset - self.window_start).expect("it is in the window");
        Ok(self.window.get(start..start + length).expect("the window was just filled"))
    }

    /// Where the next record would start; after the last, the first offset without a valid one.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The last valid record.
    pub(crate) fn last(&self) -> Option<Tail> {
        self.previous.map(|previous| previous.tail)
    }

    /// The file's epoch, once a record was read.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.previous.map(|previous| previous.epoch)
    }

    /// Why the reader stopped, if it has.
    pub(crate) fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// The file's size when it was opened.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads the rest of the file behind the first invalid offset. `epoch` is the file's as
    /// someone else named it, for a file whose first record is invalid.
    ///
    /// Costs one comparison for each 8 bytes, and one header checksum where the epoch matches.
    pub(crate) fn evidence(&mut self, epoch: Option<u64>) -> Result<Evidence> {
        let stop = self.stop.expect("evidence is asked for where the records end");
        let epoch = self.epoch().or(epoch);
        let start = self.offset;
        let mut evidence = Evidence {
            offset: start,
            stop,
            tail_end: start,
            later_records: 0,
            witness: None,
            highest_wal_seq: None,
        };
        let mut at = start;
        while at < self.size {
            // Windows overlap by all but the start of a header: none is missed or seen twice.
            let length = usize::try_from((self.size - at).min(WINDOW)).expect("a window");
            let bytes = self.window(at, length)?;
            if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
                evidence.tail_end = evidence.tail_end.max(at + last as u64 + 1);
                if let Some(epoch) = epoch {
                    evidence.search(bytes, at, epoch);
                }
            }
            if length < usize::try_from(WINDOW).expect("a window") {
                break;
            }
            at += WINDOW - HEADER_SIZE as u64 + ALIGNMENT;
        }
        Ok(evidence)
    }
}

impl Evidence {
    /// Notes every intact header of `epoch` in `bytes`, which stand at `at` in the file.
    fn search(&mut self, bytes: &[u8], at: u64, epoch: u64) {
        let candidates = bytes.windows(HEADER_SIZE).step_by(8).enumerate();
        for (index, candidate) in candidates {
            let offset = at + 8 * index as u64;
            let in_clear = candidate.get(EPOCH_OFFSET..).and_then(|mut rest| get_u64(&mut rest));
            if in_clear != Some(epoch) || offset <= self.offset {
                continue;
            }
            let Some((header, _)) = Header::decode(candidate, offset) else { continue };
            self.later_records += 1;
            self.highest_wal_seq = self.highest_wal_seq.max(Some(header.wal_seq));
            if self.witness.is_none_or(|witness| witness.watermark < header.watermark) {
                self.witness = Some(Witness { offset, watermark: header.watermark });
            }
        }
    }
}
