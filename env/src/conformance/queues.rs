//! Queues: any batch, any order, a result for each.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::writes::in_blocks;
use super::{Site, done, failed, names_file, pattern, to_usize};
use crate::mem::Random;
use crate::{
    Alignment, Buffer, ErrorKind, IoQueue, RandomAccessFile, RandomRwFile, Request, Result,
    read_batch,
};

fn read(file: &Arc<dyn RandomAccessFile>, offset: u64, len: usize) -> Request {
    Request::Read { file: Arc::clone(file), offset, len }
}

/// Pops everything; each tag must come once.
fn drain(queue: &mut dyn IoQueue) -> BTreeMap<u64, Result<Buffer>> {
    let mut results = BTreeMap::new();
    while let Some(completion) = queue.pop() {
        let tag = completion.tag;
        let twice = results.insert(tag, completion.result).is_some();
        assert!(!twice, "tag {tag} came back twice");
    }
    results
}

/// The offset and length of a request, by kind: anywhere, a neighbour or double of the last one, a
/// whole page, at the end, past the end.
fn random_range(random: &mut Random, size: u64, last: (u64, usize)) -> (u64, usize) {
    let (offset, len) = last;
    match random.below(8) {
        0 => last,
        1 => (offset + len as u64, len),
        2 => (random.below(size + 1) / 4096 * 4096, 4096),
        3 => (size.saturating_sub(random.below(100)), to_usize(random.below(200))),
        4 => (size + random.below(1 << 20), to_usize(random.below(10))),
        5 => (random.below(size + 1), 0),
        _ => (random.below(size + 1), to_usize(random.below(20_000))),
    }
}

/// ENV-14, against a model in memory.
pub(super) fn reads_agree_with_a_model_for_any_batch(site: &Site) {
    let seed = 14;
    let mut random = Random::new(seed);
    let mut files = Vec::new();
    for i in 0..50 {
        let size = [0, 1, 511, 4096, 65_536, random.below(40_000), random.below(40_000)][i % 7];
        let bytes = pattern(i as u64, to_usize(size));
        let name = format!("f{i}");
        site.write(&name, &bytes);
        files.push((site.open(&name), bytes));
    }
    for round in 0..40 {
        let mut expected = Vec::new();
        let mut queue = site.env.queue();
        let mut last = (0, 100);
        for tag in 0..random.below(301) {
            let (file, bytes) = &files[to_usize(random.below(50))];
            last = random_range(&mut random, bytes.len() as u64, last);
            let (offset, len) = last;
            let from = to_usize(offset);
            let fits = len == 0 || from + len <= bytes.len();
            let inside = if len == 0 { &[] } else { bytes.get(from..from + len).unwrap_or(&[]) };
            expected.push((fits, inside, offset, len));
            queue.push(tag, read(file, offset, len));
        }
        let results = drain(&mut *queue);
        assert_eq!(results.len(), expected.len(), "seed {seed}, round {round}");
        for ((tag, result), (fits, bytes, offset, len)) in results.into_iter().zip(expected) {
            let what = format!("seed {seed}, round {round}, tag {tag}: {len} bytes at {offset}");
            match result {
                Ok(buffer) => assert!(fits && *buffer == *bytes, "{what}: wrong bytes"),
                Err(error) => {
                    assert!(!fits, "{what}: {error}");
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{what}: {error}");
                }
            }
        }
    }
}

/// ENV-15, with the errors that need no fault injection.
pub(super) fn a_failed_request_disturbs_no_other(site: &Site) {
    let bytes = pattern(1, 100_000);
    site.write("good", &bytes);
    site.write("short", &bytes[..100]);
    let (good, short) = (site.open("good"), site.open("short"));
    let requests = (0..64).map(|i| match i % 4 {
        3 => read(&short, i, 4096),
        2 if i > 30 => read(&good, 99_000 + i, 1_000),
        _ => read(&good, i * 1_000, 1_000),
    });
    let results = read_batch(&*site.env, requests.collect());
    for (i, result) in (0..64_u64).zip(results) {
        if i % 4 == 3 || (i % 4 == 2 && i > 30) {
            let error = failed("a read past the end", result);
            let (name, offset) = if i % 4 == 3 { ("short", i) } else { ("good", 99_000 + i) };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            assert_eq!(error.offset(), Some(offset), "{error}");
            assert!(names_file(&error, name), "{error}");
        } else {
            let read = done("a read inside", result);
            assert!(*read == bytes[to_usize(i) * 1_000..][..1_000], "request {i}");
        }
    }
}

pub(super) fn every_tag_comes_back_once_and_the_queue_can_be_used_again(site: &Site) {
    let bytes = pattern(2, 70_000);
    site.write("f", &bytes);
    let file = site.open("f");
    let mut queue = site.env.queue();
    assert!(queue.pop().is_none(), "nothing was pushed");
    for round in 0..5_u64 {
        for i in 0..70 {
            // Tags are the caller's: any number, in any order.
            queue.push(u64::MAX - (round * 70 + i), read(&file, i * 1_000, 1_000));
        }
        let results = drain(&mut *queue);
        assert_eq!(results.len(), 70);
        for (tag, result) in results {
            let i = to_usize(u64::MAX - tag - round * 70);
            assert!(*done("read", result) == bytes[i * 1_000..][..1_000], "tag {tag}");
        }
        assert!(queue.pop().is_none());
    }
    for _ in 0..10 {
        queue.push(7, read(&file, 0, 10));
    }
    let mut same = 0;
    while let Some(completion) = queue.pop() {
        assert_eq!(completion.tag, 7);
        assert!(*done("read", completion.result) == bytes[..10]);
        same += 1;
        // Pushing while others are pending is the normal case.
        if same == 5 {
            queue.push(7, read(&file, 0, 10));
        }
    }
    assert_eq!(same, 11);
}

/// URING-10
pub(super) fn queues_of_one_thread_are_independent(site: &Site) {
    let bytes = pattern(3, 100_000);
    site.write("f", &bytes);
    let file = site.open("f");
    let mut queues = [site.env.queue(), site.env.queue(), site.env.queue()];
    for i in 0..90_u64 {
        queues[to_usize(i % 3)].push(i, read(&file, i * 1_000, 1_000));
    }
    let [mut first, dropped, mut third] = queues;
    let one = first.pop().expect("thirty are pending");
    assert_eq!(one.tag % 3, 0);
    drop(dropped);
    for (queue, remainder, count) in [(&mut third, 2, 30), (&mut first, 0, 29)] {
        let results = drain(&mut **queue);
        assert_eq!(results.len(), count);
        for (tag, result) in results {
            assert_eq!(tag % 3, remainder);
            assert!(*done("read", result) == bytes[to_usize(tag) * 1_000..][..1_000], "{tag}");
        }
    }
}

pub(super) fn writes_through_a_queue_arrive(site: &Site) {
    let files = [site.open_rw("a"), site.open_rw("b")];
    let len = 10_000_usize.next_multiple_of(files[0].alignment().offset);
    let bytes = pattern(4, 64 * len);
    let mut queue = site.env.queue();
    for (i, part) in bytes.chunks(len).enumerate() {
        let (file, offset) = (Arc::clone(&files[i % 2]), (i / 2 * len) as u64);
        queue.push(i as u64, Request::Write { file, offset, data: in_blocks(part) });
    }
    let results = drain(&mut *queue);
    assert_eq!(results.len(), 64);
    for (tag, result) in results {
        let given_back = done("write", result);
        assert!(*given_back == bytes[to_usize(tag) * len..][..len], "the buffer of {tag}");
    }
    for file in &files {
        done("sync", file.sync());
    }
    let (a, b) = (site.read("a"), site.read("b"));
    for (i, part) in bytes.chunks(len).enumerate() {
        let file = if i % 2 == 0 { &a } else { &b };
        assert!(file[i / 2 * len..][..len] == *part, "write {i}");
    }
    // Reads of a file open for writing.
    let reader: Arc<dyn RandomAccessFile> = Arc::clone(&files[0]) as _;
    let batch = read_batch(&*site.env, vec![read(&reader, 5_000, 10_000)]);
    assert!(**batch[0].as_ref().expect("inside the file") == a[5_000..15_000]);
}

/// A file type that no environment knows.
#[derive(Debug)]
struct Foreign(Vec<u8>);

impl RandomAccessFile for Foreign {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = to_usize(offset)..to_usize(offset) + buf.len();
        let size = self.size();
        let bytes = self.0.get(range);
        let bytes = bytes
            .ok_or_else(|| crate::Error::unexpected_eof(self.path(), offset, buf.len(), size))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn path(&self) -> &Path {
        Path::new("foreign")
    }
}

impl RandomRwFile for Foreign {
    fn write_all_at(&self, _data: &[u8], offset: u64) -> Result<()> {
        let message = "this file cannot be written";
        let error = crate::Error::new(ErrorKind::Unsupported, "write", self.path(), message);
        Err(error.at(offset))
    }

    fn alignment(&self) -> Alignment {
        Alignment::ANY
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn set_size(&self, _size: u64) -> Result<()> {
        Ok(())
    }
}

pub(super) fn files_of_another_type_are_served(site: &Site) {
    let bytes = pattern(5, 10_000);
    site.write("ours", &bytes);
    let ours = site.open("ours");
    let foreign: Arc<dyn RandomAccessFile> = Arc::new(Foreign(bytes.clone()));
    let requests: Vec<Request> =
        (0..20).map(|i| read(if i % 2 == 0 { &ours } else { &foreign }, i * 600, 600)).collect();
    for (i, result) in read_batch(&*site.env, requests).into_iter().enumerate() {
        if i * 600 + 600 <= 10_000 {
            assert!(*done("read", result) == bytes[i * 600..][..600], "request {i}");
        } else {
            assert_eq!(failed("read", result).kind(), ErrorKind::UnexpectedEof);
        }
    }
    let file: Arc<dyn RandomRwFile> = Arc::new(Foreign(bytes));
    let write = Request::Write { file, offset: 3, data: Buffer::zeroed(5) };
    let error = failed("write", read_batch(&*site.env, vec![write]).remove(0));
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Unsupported, Some(3)));
}

/// ENV-08
pub(super) fn reads_in_flight_survive_the_removal_of_their_file(site: &Site) {
    let (old, new) = (pattern(6, 400_000), pattern(7, 400_000));
    site.write("f", &old);
    let mut queue = site.env.queue();
    let file = site.open("f");
    for i in 0..100 {
        queue.push(i, read(&file, i * 4_000, 4_000));
    }
    drop(file);
    done("remove", site.env.remove(&site.path("f")));
    site.write("f", &new);
    let file = site.open("f");
    for i in 100..200 {
        queue.push(i, read(&file, (i - 100) * 4_000, 4_000));
    }
    let results = drain(&mut *queue);
    assert_eq!(results.len(), 200);
    for (tag, result) in results {
        let bytes = if tag < 100 { &old } else { &new };
        let from = to_usize(tag % 100) * 4_000;
        assert!(*done("read", result) == bytes[from..][..4_000], "request {tag}");
    }
}

pub(super) fn a_dropped_queue_leaves_nothing_behind(site: &Site) {
    let bytes = pattern(8, 500_000);
    site.write("f", &bytes);
    for round in 0..20_u64 {
        let file = site.open("f");
        let mut queue = site.env.queue();
        for i in 0..100 {
            queue.push(i, read(&file, i * 5_000, 5_000));
        }
        for _ in 0..round {
            assert!(queue.pop().is_some());
        }
        drop(file);
        drop(queue);
        let file = site.open("f");
        let batch = read_batch(&*site.env, vec![read(&file, round * 1_000, 100_000)]);
        let read = done("a read by the next queue", batch.into_iter().next().expect("one result"));
        assert!(*read == bytes[to_usize(round) * 1_000..][..100_000], "round {round}");
    }
}

/// ENV-12 and URING-06: more queues at once than any environment has rings for.
pub(super) fn many_threads_use_queues_of_their_own(site: &Site) {
    let bytes = pattern(9, 1_000_000);
    site.write("f", &bytes);
    let file = site.open("f");
    std::thread::scope(|scope| {
        for seed in 0..24 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut queue = site.env.queue();
                for _ in 0..3 {
                    let offsets: Vec<u64> = (0..150).map(|_| random.below(990_000)).collect();
                    for (tag, offset) in (0..).zip(&offsets) {
                        queue.push(tag, read(file, *offset, 4_096));
                    }
                    for (tag, result) in drain(&mut *queue) {
                        let from = to_usize(offsets[to_usize(tag)]);
                        assert!(*done("read", result) == bytes[from..][..4_096], "at {from}");
                    }
                }
            });
        }
    });
}

pub(super) fn a_hundred_thousand_requests_complete(site: &Site) {
    let bytes = pattern(10, 1 << 20);
    site.write("f", &bytes);
    let file = site.open("f");
    let mut queue = site.env.queue();
    let offset_of = |tag: u64| tag * 7_919 % ((1 << 20) - 16);
    for tag in 0..100_000 {
        queue.push(tag, read(&file, offset_of(tag), 16));
    }
    let results = drain(&mut *queue);
    assert_eq!(results.len(), 100_000);
    for (tag, result) in results {
        let from = to_usize(offset_of(tag));
        assert!(*done("read", result) == bytes[from..][..16], "request {tag}");
    }
}

/// The queue may hold some buffers before they are popped, but not all of a large batch.
pub(super) fn memory_in_flight_is_bounded(site: &Site) {
    const LEN: usize = 128 << 10;
    const REQUESTS: u64 = 4_096;
    let bytes = pattern(11, 4 << 20);
    site.write("f", &bytes);
    let file = site.open("f");
    let mut queue = site.env.queue();
    // How much the process grew while a whole batch was pushed.
    let mut grown = || {
        let before = resident_bytes();
        for tag in 0..REQUESTS {
            queue.push(tag, read(&file, tag % 31 * LEN as u64, LEN));
        }
        let after = resident_bytes();
        let mut popped = 0;
        while let Some(completion) = queue.pop() {
            let from = to_usize(completion.tag % 31) * LEN;
            assert!(*done("read", completion.result) == bytes[from..][..LEN]);
            popped += 1;
        }
        assert_eq!(popped, REQUESTS);
        after.zip(before).map_or(0, |(after, before)| after.saturating_sub(before))
    };
    // Half of the batch. Other tests of the process grow too, but not in every round.
    let limit = REQUESTS * LEN as u64 / 2;
    let mut rounds = std::iter::repeat_with(&mut grown).take(10);
    assert!(
        rounds.any(|grown| grown < limit),
        "half a batch of memory more whenever {REQUESTS} requests are pushed"
    );
}

/// Memory of this process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
