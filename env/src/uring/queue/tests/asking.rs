//! Rings that ask the device for completions: what goes to them, and what a device that refuses
//! costs.

use super::*;
use crate::uring::scripted::Answer;

/// An environment with one ring that asks, and one that does not.
fn asking(
    bench: &Bench,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + Sync + 'static,
) -> Arc<Shared> {
    let plain = bench.shared(1, |ring| ring);
    let with = bench.shared(1, make);
    let mut plain = Arc::into_inner(plain).unwrap();
    plain.asking = Some(Arc::into_inner(with).unwrap().pool);
    Arc::new(plain)
}

/// A direct file whose first look is behind it, on a device that passes for one that can be asked.
fn direct(bench: &Bench, name: &str) -> Arc<dyn RandomAccessFile> {
    let file = bench.open(name, 64 * 4096, true);
    let ours = OsFile::of(&*file).unwrap();
    ours.device().pretend_to_poll();
    let mut page = Buffer::zeroed(4096);
    ours.read_nowait(page.as_mut_slice(), 0, &bench.os.counters);
    file
}

/// URING-37
#[test]
fn direct_reads_go_to_rings_that_ask_and_others_beside_them_to_none() {
    let bench = Bench::new();
    let shared = asking(&bench, |ring| ring.completing(3));
    let (file, buffered) = (direct(&bench, "t"), bench.latched("b", 64 * 4096));
    let mut queue = RingQueue::new(&shared);
    for page in 0..32 {
        queue.push(2 * page, read(&file, page * 4096, 4096));
        queue.push(2 * page + 1, read(&buffered, page * 4096, 4096));
    }
    let results = pop_all(&mut queue, 64);
    let twice: Vec<(u64, usize)> = pages(32).into_iter().flat_map(|page| [page, page]).collect();
    assert_right(&results, &twice);
    assert_eq!(bench.count(Count::IopollReads), 32);
    assert_eq!(bench.count(Count::RingReads), 32);
    assert_eq!(bench.count(Count::FallbackPreads), 32);
    drop(queue);
    // A batch that begins with what cannot be asked for goes to the other ring, all of it.
    let mut queue = RingQueue::new(&shared);
    for page in 0..32 {
        queue.push(2 * page, read(&buffered, page * 4096, 4096));
        queue.push(2 * page + 1, read(&file, page * 4096, 4096));
    }
    assert_right(&pop_all(&mut queue, 64), &twice);
    assert_eq!(bench.count(Count::IopollReads), 32);
    assert_eq!(bench.count(Count::RingReads), 32 + 64);
}

/// URING-37
#[test]
fn a_device_that_refuses_is_asked_no_more_and_its_files_keep_their_rings() {
    let bench = Bench::new();
    let shared =
        asking(&bench, |ring| ring.answering(|_, _| Answer::Fail(libc::EOPNOTSUPP)).completing(3));
    let file = direct(&bench, "t");
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    let asked = bench.count(Count::IopollReads);
    assert_eq!(bench.count(Count::IopollRefused), asked);
    assert!((2..=64).contains(&asked), "{asked}");
    assert!(!OsFile::of(&*file).unwrap().device().polls());
    let before = bench.count(Count::RingReads);
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::IopollReads), asked);
    assert_eq!(bench.count(Count::RingReads), before + 64, "on the ring that does not ask");
}

/// URING-37, MGET-09: what it refuses is to be asked, and not reads of several pieces of memory.
#[test]
fn a_device_that_refuses_a_run_is_asked_no_more_and_its_files_still_merge() {
    let bench = Bench::new();
    let shared =
        asking(&bench, |ring| ring.answering(|_, _| Answer::Fail(libc::EOPNOTSUPP)).completing(3));
    let mut shared = Arc::into_inner(shared).unwrap();
    shared.merging = Merging { gap: 0, limit: 32 << 10 };
    let shared = Arc::new(shared);
    let file = direct(&bench, "t");
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert!(bench.seen.lock().vectored > 0, "no run was refused");
    assert!(bench.count(Count::IopollRefused) > 0);
    let ours = OsFile::of(&*file).unwrap();
    assert!(!ours.device().polls() && ours.may_merge());
    assert_eq!(bench.count(Count::MergeRefused), 0);
    let count = |which| bench.count(which);
    let before = [Count::IopollReads, Count::RingReads, Count::MergedReads].map(count);
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    let after = [Count::IopollReads, Count::RingReads, Count::MergedReads].map(count);
    assert_eq!(after[0], before[0]);
    assert!(after[2] > before[2], "on the ring that does not ask, they are merged");
    assert_eq!(after[1] - before[1] + after[2] - before[2], 64);
}

/// URING-37
#[test]
fn while_no_ring_that_asks_is_free_the_others_serve() {
    let bench = Bench::new();
    let shared = asking(&bench, |ring| ring);
    let file = direct(&bench, "t");
    let taken = shared.asking.as_ref().unwrap().take().unwrap();
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::IopollReads), 0);
    assert_eq!(bench.count(Count::RingReads), 64);
    shared.asking.as_ref().unwrap().give_back(taken);
    assert_right(&read_all(&shared, &file, &pages(64)), &pages(64));
    assert_eq!(bench.count(Count::IopollReads), 64);
}
