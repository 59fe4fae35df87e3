//! Appending, preparing, and writing in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Site, StopOnDrop, done, failed, names_file, pattern, read_all, to_usize};
use crate::mem::Random;
use crate::{Alignment, Buffer, ErrorKind, FileKind, Outcome, Request, Result};

const KINDS: [FileKind; 4] = [FileKind::Log, FileKind::Manifest, FileKind::Table, FileKind::Other];

pub(super) fn appends_of_any_size_arrive_in_order(site: &Site) {
    for (i, kind) in KINDS.into_iter().enumerate() {
        let name = format!("f{i}");
        let bytes = pattern(i as u64, 3_000_001);
        let mut random = Random::new(i as u64);
        let mut file = done("create", site.env.create(&site.path(&name), kind));
        assert!(file.is_empty());
        let mut written = 0;
        while written < bytes.len() {
            let largest = [1, 100, 5_000, 400_000][to_usize(random.below(4))];
            let part = to_usize(random.below(largest + 1)).min(bytes.len() - written);
            done("append", file.append(&bytes[written..written + part]));
            written += part;
            assert_eq!(file.len(), written as u64);
            match random.below(20) {
                0 => done("sync", file.sync()),
                1 => done("flush", file.flush()),
                _ => {}
            }
        }
        assert_eq!(done("finish", file.finish()), bytes.len() as u64);
        assert!(site.read(&name) == bytes, "{kind:?}");
    }
}

/// ENV-13, without the crash.
pub(super) fn flushed_bytes_are_visible_before_they_are_synced(site: &Site) {
    for (i, kind) in KINDS.into_iter().enumerate() {
        let (name, moved) = (format!("f{i}"), format!("moved{i}"));
        let bytes = pattern(i as u64, 300_000);
        let mut file = done("create", site.env.create(&site.path(&name), kind));
        let mut end = 0;
        for part in [1, 4_095, 100_000, 195_904] {
            done("append", file.append(&bytes[end..end + part]));
            done("flush", file.flush());
            end += part;
            assert_eq!(site.size(&name), Some(end as u64), "{kind:?}");
            assert!(site.read(&name) == bytes[..end], "{kind:?}, {end} bytes");
        }
        done("rename", site.env.rename(&site.path(&name), &site.path(&moved)));
        assert!(site.read(&moved) == bytes, "{kind:?}, renamed");
    }
}

pub(super) fn an_empty_file_can_be_finished(site: &Site) {
    let mut file = site.create("f");
    done("append", file.append(&[]));
    done("flush", file.flush());
    done("sync", file.sync());
    assert_eq!(done("finish", file.finish()), 0);
    assert_eq!(site.size("f"), Some(0));
}

pub(super) fn prepared_space_reads_as_zeros_and_is_cut_by_finish(site: &Site) {
    let bytes = pattern(1, 10_000);
    let mut file = done("create", site.env.create(&site.path("f"), FileKind::Log));
    done("append", file.append(&bytes[..5_000]));
    done("flush", file.flush());
    done("prepare", file.handle().prepare(100_000));
    assert_eq!(file.len(), 5_000, "prepared space is not counted");
    let mut expected = vec![0; 100_000];
    expected[..5_000].copy_from_slice(&bytes[..5_000]);
    assert!(site.read("f") == expected, "before the append");
    done("append", file.append(&bytes[5_000..]));
    done("sync", file.sync());
    expected[..10_000].copy_from_slice(&bytes);
    assert!(site.read("f") == expected, "after the append");
    assert_eq!(file.len(), 10_000);
    assert_eq!(done("finish", file.finish()), 10_000);
    assert!(site.read("f") == bytes, "after finish");
}

pub(super) fn appending_beyond_prepared_space_goes_on(site: &Site) {
    let bytes = pattern(2, 50_000);
    let mut file = done("create", site.env.create(&site.path("f"), FileKind::Log));
    let handle = file.handle();
    done("prepare", handle.prepare(8_192));
    for part in bytes.chunks(3_000) {
        done("append", file.append(part));
        done("flush", file.flush());
        if file.len() == 30_000 {
            done("prepare", handle.prepare(40_000));
        }
    }
    assert!(site.read("f") == bytes);
    assert_eq!(done("finish", file.finish()), 50_000);
    assert!(site.read("f") == bytes);
}

pub(super) fn preparing_below_the_end_changes_nothing(site: &Site) {
    let bytes = pattern(3, 20_000);
    let mut file = done("create", site.env.create(&site.path("f"), FileKind::Log));
    let handle = file.handle();
    done("append", file.append(&bytes));
    // Bytes that were not flushed yet are below the append position, too.
    done("prepare", handle.prepare(20_000));
    done("prepare", handle.prepare(0));
    done("flush", file.flush());
    done("prepare", handle.prepare(100));
    assert!(site.read("f")[..20_000] == bytes);
    assert_eq!(done("finish", file.finish()), 20_000);
    assert!(site.read("f") == bytes);
}

/// The bytes' part of ENV-06: what a power loss leaves is checked with the durability table.
pub(super) fn syncs_and_preparations_run_beside_appends(site: &Site) {
    let bytes = pattern(4, 200_000);
    let mut file = done("create", site.env.create(&site.path("f"), FileKind::Log));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let appending = StopOnDrop(&stop);
        for _ in 0..2 {
            let handle = file.handle();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    done("sync", handle.sync());
                }
            });
        }
        let handle = file.handle();
        scope.spawn(move || {
            for step in 1..=10 {
                done("prepare", handle.prepare(step * 25_000));
            }
        });
        for part in bytes.chunks(1_000) {
            done("append", file.append(part));
            done("flush", file.flush());
        }
        drop(appending);
    });
    assert_eq!(done("finish", file.finish()), 200_000);
    assert!(site.read("f") == bytes);
}

pub(super) fn a_dropped_writer_leaves_its_flushed_bytes(site: &Site) {
    let bytes = pattern(5, 70_000);
    for (i, kind) in KINDS.into_iter().enumerate() {
        let name = format!("f{i}");
        let mut file = done("create", site.env.create(&site.path(&name), kind));
        done("append", file.append(&bytes));
        done("flush", file.flush());
        let handle = file.handle();
        drop(file);
        done("sync after drop", handle.sync());
        assert!(site.read(&name) == bytes, "{kind:?}");
    }
}

pub(super) fn files_in_place_grow_with_zeros_and_shrink(site: &Site) {
    let file = site.open_rw("f");
    let block = file.alignment().offset as u64;
    let mut model = Vec::new();
    let mut random = Random::new(6);
    for round in 0..200 {
        let offset = random.below(50_000);
        if random.below(5) == 0 {
            done("set_size", file.set_size(offset));
            model.resize(to_usize(offset), 0);
        } else {
            let offset = offset / block * block;
            let from = to_usize(offset);
            let bytes = pattern(round, to_usize(random.below(9_000) / block * block));
            done("write", file.write_all_at(&in_blocks(&bytes), offset));
            if !bytes.is_empty() {
                model.resize(model.len().max(from + bytes.len()), 0);
                model[from..from + bytes.len()].copy_from_slice(&bytes);
            }
        }
        if round % 10 == 0 {
            done("sync", file.sync());
        }
        assert_eq!(file.size(), model.len() as u64, "round {round}");
        assert!(read_all(&*file) == model, "round {round}");
    }
    assert!(site.read("f") == model, "through another file");
    let beyond = failed("read", file.read_exact_at(&mut [0], model.len() as u64));
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
}

pub(super) fn disjoint_writes_in_place_may_run_at_once(site: &Site) {
    let file = site.open_rw("f");
    let len = 1_000_usize.next_multiple_of(file.alignment().offset);
    let bytes = pattern(7, 800 * len);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (file, bytes) = (Arc::clone(&file), &bytes);
            scope.spawn(move || {
                for (i, part) in bytes.chunks(len).enumerate().filter(|(i, _)| i % 4 == thread) {
                    done("write", file.write_all_at(&in_blocks(part), (i * len) as u64));
                }
                done("sync", file.sync());
            });
        }
    });
    assert!(site.read("f") == bytes);
}

pub(super) fn opening_for_writing_keeps_what_is_there(site: &Site) {
    let block = site.open_rw("f").alignment().offset;
    let mut bytes = pattern(8, 10 * block);
    site.write("g", &bytes);
    let file = site.open_rw("g");
    assert_eq!(file.size(), bytes.len() as u64);
    let new = pattern(9, 3 * block);
    done("write", file.write_all_at(&in_blocks(&new), 2 * block as u64));
    bytes[2 * block..5 * block].copy_from_slice(&new);
    assert!(site.read("g") == bytes);
    drop(file);
    assert_eq!(site.open_rw("new").size(), 0);
    assert_eq!(site.size("new"), Some(0));
}

/// ENV-20
pub(super) fn a_write_in_place_is_taken_if_it_is_aligned_and_refused_whole_if_not(site: &Site) {
    let file = site.open_rw("f");
    let Alignment { memory, offset: block } = file.alignment();
    assert!(block.is_power_of_two() && memory.is_power_of_two());
    let whole = 8_192_usize.next_multiple_of(block);
    let mut expected = pattern(10, 2 * whole);
    done("write", file.write_all_at(&in_blocks(&expected), 0));
    let ranges = [(8, whole), (whole - 8, whole), (whole, whole - 8), (0, whole + 8), (0, whole)];
    let mut queue = site.env.queue();
    for (tag, (offset, len)) in ranges.into_iter().enumerate() {
        let fits = offset % block == 0 && len % block == 0;
        let bytes = pattern(11 + tag as u64, len);
        let (at, data) = (offset as u64, in_blocks(&bytes));
        let mut check = |result: Result<()>| match result {
            Ok(()) => {
                assert!(fits, "{len} bytes at {offset} with blocks of {block}");
                expected[offset..offset + len].copy_from_slice(&bytes);
            }
            Err(error) => {
                assert!(!fits, "{error}");
                let told = (error.kind(), error.outcome(), error.offset());
                assert_eq!(told, (ErrorKind::Misaligned, Outcome::NotApplied, Some(at)));
                assert!(names_file(&error, "f"), "{error}");
            }
        };
        check(file.write_all_at(&data, at));
        queue.push(tag as u64, Request::Write { file: Arc::clone(&file), offset: at, data });
        let completion = queue.pop().expect("one is pending");
        assert_eq!(completion.tag, tag as u64);
        check(completion.result.map(drop));
        assert!(read_all(&*file) == expected, "{len} bytes at {offset}");
        done("an empty write", file.write_all_at(&[], 3));
    }
    for skip in [8, 16, 512, 4_096] {
        let bytes = pattern(20 + skip as u64, whole);
        let mut data = in_blocks(&vec![0; skip + whole]);
        data.as_mut_slice()[skip..].copy_from_slice(&bytes);
        match file.write_all_at(&data[skip..], 0) {
            Ok(()) => {
                assert!(skip % memory == 0, "memory at a multiple of {skip}, not of {memory}");
                expected[..whole].copy_from_slice(&bytes);
            }
            Err(error) => {
                assert!(skip % memory != 0, "{error}");
                assert_eq!(error.kind(), ErrorKind::Misaligned);
            }
        }
        assert!(read_all(&*file) == expected, "from memory at a multiple of {skip}");
    }
    assert!(site.read("f") == expected, "through another file");
}

/// The bytes in memory that a file with whatever alignment takes them from.
pub(super) fn in_blocks(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(bytes.len().max(Buffer::ALIGN)).narrowed(0, bytes.len());
    buffer.as_mut_slice().copy_from_slice(bytes);
    buffer
}
