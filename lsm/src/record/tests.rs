//! Tests of the record layer on real bytes: a file is written by the writer, damaged, and read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use treering_env as env;
use treering_env::{Access, Env, ErrorKind, FileKind, MemEnv, RandomAccessFile};

use super::*;
use crate::{Error, Result, TailPolicy};

mod damage;
mod golden;
mod hostile;
mod verdicts;

const EPOCH: u64 = 0x0123_4567_89ab_cdef;

/// A file in memory that counts its reads and can fail one of them.
#[derive(Debug)]
struct Bytes {
    path: PathBuf,
    data: Vec<u8>,
    reads: AtomicUsize,
    largest_read: AtomicUsize,
    failing: Option<(usize, ErrorKind)>,
}

impl Bytes {
    fn new(data: Vec<u8>) -> Self {
        let (reads, largest_read) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { path: PathBuf::from("db/000007.log"), data, reads, largest_read, failing: None }
    }

    /// Fails the read of this number, counted from 0.
    fn failing(data: Vec<u8>, read: usize, kind: ErrorKind) -> Self {
        Self { failing: Some((read, kind)), ..Self::new(data) }
    }
}

impl RandomAccessFile for Bytes {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> env::Result<()> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        self.largest_read.fetch_max(buf.len(), Ordering::Relaxed);
        if let Some((read, kind)) = self.failing
            && read == number
        {
            return Err(env::Error::new(kind, "read", &self.path, "injected").at(offset));
        }
        let start = usize::try_from(offset).unwrap();
        let Some(source) = self.data.get(start..start + buf.len()) else {
            let size = self.data.len() as u64;
            return Err(env::Error::unexpected_eof(&self.path, offset, buf.len(), size));
        };
        buf.copy_from_slice(source);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.data.len() as u64
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// What a reader found.
#[derive(Debug)]
struct Scan {
    records: Vec<(RecordType, Vec<u8>)>,
    /// Where each record starts, and where the last one ends.
    offsets: Vec<u64>,
    evidence: Evidence,
}

impl Scan {
    fn data(&self) -> Vec<&[u8]> {
        let data = self.records.iter().filter(|(kind, _)| *kind == RecordType::Data);
        data.map(|(_, payload)| &payload[..]).collect()
    }

    fn verdict(&self) -> Verdict {
        verdict(&self.evidence, &NEWEST)
    }
}

/// Nothing is known about the file, and it is the newest.
const NEWEST: Bounds = Bounds {
    successor_end: None,
    recorded_end: None,
    is_newest: true,
    policy: TailPolicy::TruncateUnwitnessed,
};

fn scan_file(file: Arc<Bytes>, max_payload: u32) -> Result<Scan> {
    let mut reader = RecordReader::new(file, max_payload);
    let mut records = Vec::new();
    let mut offsets = Vec::new();
    while let Some(record) = reader.read_next()? {
        records.push((record.kind, record.payload.to_vec()));
        offsets.push(record.offset);
    }
    offsets.push(reader.offset());
    let evidence = reader.evidence(Some(EPOCH))?;
    Ok(Scan { records, offsets, evidence })
}

fn scan(data: &[u8]) -> Scan {
    scan_file(Arc::new(Bytes::new(data.to_vec())), u32::MAX).unwrap()
}

/// The bytes of a log segment with `epoch` that `fill` wrote, without prepared space.
fn written(epoch: u64, fill: impl FnOnce(&mut RecordWriter)) -> Vec<u8> {
    let env = MemEnv::new();
    let path = Path::new("000007.log");
    let file = env.create(path, FileKind::Log).unwrap();
    let begin = Begin::new(FileRole::Log, 7, None);
    let mut writer = RecordWriter::begin(file, epoch, 1, &begin).unwrap();
    fill(&mut writer);
    let file = env.open(path, Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The payload of the data record of this number: its length and bytes follow from the number.
fn payload(number: u8) -> Vec<u8> {
    vec![number | 0x80; 20 + 11 * usize::from(number)]
}

/// A segment of `count` data records, each synced before the next is built.
fn synced_records(epoch: u64, count: u8) -> Vec<u8> {
    written(epoch, |writer| {
        for number in 0..count {
            writer.append(RecordType::Data, &[&payload(number)]).unwrap();
            writer.sync().unwrap();
        }
    })
}

/// A segment of `count` data records of which none was ever synced.
fn unsynced_records(epoch: u64, count: u8) -> Vec<u8> {
    written(epoch, |writer| {
        for number in 0..count {
            writer.append(RecordType::Data, &[&payload(number)]).unwrap();
        }
    })
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

#[test]
fn records_come_back_as_they_were_written() {
    let bytes = written(EPOCH, |writer| {
        writer.append(RecordType::Data, &[b"first ", b"in two parts"]).unwrap();
        writer.append(RecordType::Marker, &[&[1]]).unwrap();
        writer.append(RecordType::Data, &[&vec![0; 300_000]]).unwrap();
        writer.append(RecordType::Data, &[b"last"]).unwrap();
    });
    let scan = scan(&bytes);
    assert_eq!(scan.data(), [&b"first in two parts"[..], &vec![0; 300_000], b"last"]);
    assert_eq!(scan.records[0].0, RecordType::Begin);
    assert_eq!(scan.records[2], (RecordType::Marker, vec![1]));
    assert_eq!(scan.offsets.last(), Some(&(bytes.len() as u64)));
    assert_eq!(scan.verdict(), Verdict::CleanEnd);
}

#[test]
fn a_record_is_one_write_and_says_where_it_landed() {
    written(EPOCH, |writer| {
        let first = writer.append(RecordType::Data, &[&[1; 9]]).unwrap();
        assert_eq!(first, Appended { offset: 96, end: 96 + 48 + 16, wal_seq: 2 });
        let second = writer.append(RecordType::Data, &[&[1; 8]]).unwrap();
        assert_eq!(second, Appended { offset: 160, end: 216, wal_seq: 3 });
        assert_eq!(writer.end(), 216);
    });
}

#[test]
fn the_first_failure_is_kept_and_nothing_is_written_after_it() {
    let env = MemEnv::with_capacity(200);
    let path = Path::new("000007.log");
    let file = env.create(path, FileKind::Log).unwrap();
    let begin = Begin::new(FileRole::Log, 7, None);
    let mut writer = RecordWriter::begin(file, EPOCH, 1, &begin).unwrap();
    let first = writer.append(RecordType::Data, &[&[1; 500]]).unwrap_err();
    assert!(matches!(first, Error::NoSpace(_)), "{first}");
    env.set_capacity(u64::MAX);
    for _ in 0..2 {
        let later = writer.append(RecordType::Data, &[b"later"]).unwrap_err();
        assert_eq!(later.to_string(), first.to_string());
        assert_eq!(writer.sync().unwrap_err().to_string(), first.to_string());
    }
    assert_eq!(writer.finish().unwrap_err().to_string(), first.to_string());
    let file = env.open(path, Access::Sequential).unwrap();
    assert_eq!(file.size(), 200, "the fragment that fitted, and nothing behind it");
}

#[test]
fn facts_about_segments_come_back_and_every_cut_is_refused() {
    let end = SegmentEnd { end: 1 << 40, last_wal_seq: 99, last_crc: 0xdead_beef };
    for end in [None, Some(end)] {
        let fact = SegmentFact { number: 12, epoch: EPOCH, prepared: 4096, first_wal_seq: 40, end };
        let mut bytes = Vec::new();
        fact.encode(&mut bytes);
        let mut input = &bytes[..];
        assert_eq!(SegmentFact::decode(&mut input), Some(fact));
        assert!(input.is_empty());
        for cut in 0..bytes.len() {
            assert_eq!(SegmentFact::decode(&mut &bytes[..cut]), None);
        }
    }
}
