//! Tests of verification and dumps, on a small database of two tables and three segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use treering_env::{Access, Env, FileKind, MemEnv};

use super::*;
use crate::checksum::random_id;
use crate::filename::FileName;
use crate::key::{self, ValueKind};
use crate::options::CfOptions;
use crate::table::{TableOptions, TableWriter};
use crate::version::{FamilyLog, FileMeta, VersionEdit, VersionSet};
use crate::wal::{Spare, Wal, WalOptions};
use crate::{WriteBatch, batch};

mod dumps;
mod verifying;

const LOG_OPTIONS: WalOptions = WalOptions { segment_size: 8 << 10, prepare_step: 4 << 10 };

fn dir() -> &'static Path {
    Path::new("db")
}

/// A database, and the paths of what is in it.
struct Sample {
    env: MemEnv,
    tables: [PathBuf; 2],
    /// The first ended with the second as its successor; the last is the newest.
    logs: [PathBuf; 3],
    /// Where each log's records end.
    log_ends: [u64; 3],
    manifest: PathBuf,
    current: PathBuf,
}

/// A table of `count` entries from key number `first` on, with sequence numbers from there too.
fn write_table(env: &MemEnv, number: u64, first: u64, count: u64) -> FileMeta {
    let path = FileName::Table(number).path(dir());
    let file = env.create(&path, FileKind::Table).unwrap();
    let options = TableOptions::from(&CfOptions::default());
    let mut writer = TableWriter::new(file, &path, &options, random_id());
    for number in first..first + count {
        let deleted = number % 10 == 9;
        let kind = if deleted { ValueKind::Deletion } else { ValueKind::Put };
        let key = key::encode(format!("key{number:05}").as_bytes(), key::trailer(number, kind));
        let value = format!("value of {number} ").repeat(4);
        writer.add(&key, if deleted { b"" } else { value.as_bytes() }).unwrap();
    }
    FileMeta::of_table(number, writer.finish().unwrap())
}

fn append(wal: &mut Wal, sequence: u64) {
    let mut batch = WriteBatch::new();
    batch.put(format!("key{sequence:05}"), format!("logged\n{sequence}"));
    batch.delete("gone");
    let header = batch::encode_header(sequence, batch.count());
    wal.append(&[&header, batch.encoded_ops()]).unwrap();
    let point = wal.sync_point().unwrap();
    point.sync().unwrap();
    wal.note_synced(&point);
}

fn sample() -> Sample {
    let env = MemEnv::new();
    env.create_dir_all(dir()).unwrap();
    drop(env.lock(&FileName::Lock.path(dir())).unwrap());
    let shared: Arc<dyn Env> = Arc::new(env.clone());
    let mut versions = VersionSet::create(shared, dir()).unwrap();
    let numbers = || versions.numbers().next();
    let (first_log, older, newer) = (numbers(), numbers(), numbers());
    let spare = Spare::create(&env, dir(), first_log, &LOG_OPTIONS).unwrap();
    let tables = [write_table(&env, older, 1, 400), write_table(&env, newer, 401, 300)];
    env.sync_dir(dir()).unwrap();
    let edit = VersionEdit {
        logs: vec![spare.fact(1)],
        family_logs: vec![FamilyLog { family: 0, log_number: first_log, flushed_sequence: 700 }],
        added: tables.into_iter().map(|table| (0, 0, Arc::new(table))).collect(),
        ..VersionEdit::default()
    };
    let _ = versions.roll(edit).unwrap();
    let mut wal = Wal::begin(spare, None, 1).unwrap();
    append(&mut wal, 701);
    append(&mut wal, 703);
    let mut logs = vec![first_log];
    let mut log_ends = Vec::new();
    for step in 0..2 {
        let number = versions.numbers().next();
        let spare = Spare::create(&env, dir(), number, &LOG_OPTIONS).unwrap();
        let rotation = wal.rotate(spare).unwrap();
        log_ends.push(rotation.closed.end.unwrap().end);
        if step == 0 {
            let logs = vec![rotation.closed, rotation.begun];
            let _ = versions.log_and_apply(VersionEdit { logs, ..VersionEdit::default() }).unwrap();
        }
        append(&mut wal, 705 + 4 * step);
        append(&mut wal, 707 + 4 * step);
        logs.push(number);
    }
    log_ends.push(wal.end());
    let log = |index: usize| FileName::Log(logs[index]).path(dir());
    Sample {
        env,
        tables: [older, newer].map(|number| FileName::Table(number).path(dir())),
        logs: [log(0), log(1), log(2)],
        log_ends: log_ends.try_into().unwrap(),
        manifest: FileName::Manifest(versions.manifest().0.unwrap()).path(dir()),
        current: FileName::Current.path(dir()),
    }
}

fn bytes_of(env: &MemEnv, path: &Path) -> Vec<u8> {
    let file = env.open(path, Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A copy of `env` in which `path` holds `bytes`.
fn with_bytes(env: &MemEnv, path: &Path, bytes: &[u8]) -> MemEnv {
    let copy = env.kill();
    let file = copy.open_rw(path).unwrap();
    file.set_size(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    copy
}

/// A copy of `env` with one bit of `path` flipped.
fn flipped(env: &MemEnv, path: &Path, offset: usize) -> MemEnv {
    let mut bytes = bytes_of(env, path);
    bytes[offset] ^= 1 << (offset % 8);
    with_bytes(env, path, &bytes)
}
