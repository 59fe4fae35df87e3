//! Blocks that go through: depth, order, hints, who writes what.

use super::*;
use crate::Access;
use crate::os_file::OsFile;
use crate::uring::op::Op;

/// URING-20
#[test]
fn blocks_of_a_table_are_in_the_ring_together_and_may_complete_in_any_order() {
    let mut bench = Bench::new(|ring| ring.reversed().completing(1));
    let bytes = blocks(8);
    let mut file = bench.table("t");
    for (n, half) in bytes.chunks(4 * BLOCK).enumerate() {
        file.append(half).unwrap();
        for left in (0..4).rev() {
            bench.turn();
            assert_eq!(bench.reactor.budget.used(), left * BLOCK, "half {n}");
        }
        file.flush().unwrap();
    }
    assert_eq!(file.finish().unwrap(), at(8));
    assert!(bench.content("t") == bytes);
    assert_eq!(bench.seen.lock().in_flight_peak, 4);
    assert_eq!(bench.count(Count::ReactorInFlightPeak), 4);
    assert_eq!(bench.count(Count::ReactorSqesPerEnterPeak), 4);
    assert_eq!(bench.count(Count::ReactorWrites), 8);
    assert_eq!(bench.count(Count::Pwrites), 0, "all went through the ring");
}

/// Completions ring once, and are taken out of a ring some at a time: none may be left behind.
#[test]
fn one_turn_settles_all_blocks_that_have_completed_however_many() {
    let mut bench = Bench::with(256, 128 << 20, |ring| ring);
    let mut tables: Vec<_> = (0..27).map(|n| bench.table(&n.to_string())).collect();
    for table in &mut tables {
        table.append(&blocks(3)).unwrap();
    }
    bench.turn();
    assert_eq!((bench.count(Count::ReactorWrites), bench.reactor.budget.used()), (81, 0));
    for table in tables {
        assert_eq!(table.finish().unwrap(), at(3));
    }
}

#[test]
fn bytes_of_any_lengths_arrive_whatever_is_flushed_between() {
    for manner in [AUTO, Manner { shortest: 0, ..AUTO }] {
        let mut bench = Bench::new(|ring| ring);
        let bytes = pattern(3 * BLOCK + 12_345);
        let mut file = bench.create("t", FileKind::Table, manner);
        let mut end = 0;
        for (n, size) in [1, 4096, 300_000, 77, BLOCK, 99_999].into_iter().cycle().enumerate() {
            let next = bytes.len().min(end + size);
            file.append(&bytes[end..next]).unwrap();
            end = next;
            assert_eq!(file.len(), end as u64);
            bench.turn();
            if n % 3 == 1 {
                file.flush().unwrap();
                assert!(bench.content("t") == bytes[..end], "flushed bytes are in the file");
            }
            if end == bytes.len() {
                break;
            }
        }
        assert_eq!(file.finish().unwrap(), bytes.len() as u64);
        assert!(bench.content("t") == bytes);
        assert!(bench.count(Count::ReactorWrites) > 0);
        assert_eq!(bench.reactor.budget.used(), 0);
    }
}

#[test]
fn an_owner_that_finds_its_blocks_still_queued_writes_them_itself() {
    let bench = Bench::new(|ring| ring);
    let bytes = blocks(10);
    let mut file = bench.table("t");
    file.append(&bytes).unwrap();
    assert_eq!(bench.count(Count::TakenBack), 6, "four may be out");
    assert_eq!(bench.count(Count::ReactorStalls), 6);
    file.flush().unwrap();
    assert_eq!(bench.count(Count::TakenBack), 10);
    assert_eq!(file.finish().unwrap(), at(10));
    assert!(bench.content("t") == bytes);
    assert_eq!((bench.count(Count::ReactorWrites), bench.reactor.budget.used()), (0, 0));
    assert!(bench.count(Count::RangeFlushes) >= 2, "write-back begins all the same");
}

#[test]
fn a_used_budget_makes_writers_write_and_never_wait_for_each_other() {
    let mut bench = Bench::with(64, 2 * BLOCK, |ring| ring);
    let bytes = blocks(3);
    let (mut first, mut second) = (bench.table("1"), bench.table("2"));
    first.append(&bytes[..2 * BLOCK]).unwrap();
    assert_eq!(bench.reactor.budget.used(), 2 * BLOCK);
    // Nothing of the second is out, so it waits for nobody.
    second.append(&bytes).unwrap();
    assert_eq!(bench.count(Count::ReactorBudgetFull), 3);
    assert!(bench.content("2") == bytes);
    // The first takes its own back.
    first.append(&bytes[2 * BLOCK..]).unwrap();
    assert_eq!(bench.count(Count::TakenBack), 1);
    assert_eq!(bench.count(Count::ReactorBytesPeak), 2 * BLOCK as u64);
    bench.turn();
    second.finish().unwrap();
    first.finish().unwrap();
    assert!(bench.content("1") == bytes && bench.content("2") == bytes);
    assert_eq!(bench.reactor.budget.used(), 0);
}

/// URING-06
#[test]
fn a_small_ring_leaves_the_rest_queued_until_it_has_room() {
    let mut bench = Bench::with(4, 64 << 20, |ring| ring.completing(1));
    let bytes = blocks(4);
    let mut files: Vec<_> = (0..5).map(|n| bench.table(&n.to_string())).collect();
    for file in &mut files {
        file.append(&bytes).unwrap();
    }
    while bench.reactor.budget.used() > 0 {
        bench.turn();
    }
    for (n, file) in files.into_iter().enumerate() {
        file.finish().unwrap();
        assert!(bench.content(&n.to_string()) == bytes);
    }
    assert_eq!(bench.count(Count::ReactorWrites), 20);
    assert_eq!(bench.seen.lock().in_flight_peak, 4);
}

/// URING-07
#[test]
fn what_the_kernel_did_not_take_is_offered_again() {
    for taken in [0, 1, 2] {
        let mut bench = Bench::new(move |ring| {
            ring.entering(move |n| if n % 2 == 0 { Entered::AtMost(taken) } else { Entered::All })
        });
        let bytes = blocks(4);
        let mut file = bench.table("t");
        file.append(&bytes).unwrap();
        bench.turn();
        file.finish().unwrap();
        assert!(bench.content("t") == bytes);
        assert_eq!(bench.count(Count::ReactorWrites), 4);
        assert_eq!(bench.count(Count::Pwrites), 0);
    }
}

/// How tables are written by default, the rests of their owners included.
const RESTING: Manner = Manner { rests: true, ..AUTO };

#[test]
fn an_owner_that_is_faster_than_the_reactor_writes_the_next_blocks_itself_in_shorter_pieces() {
    let mut bench = Bench::new(|ring| ring);
    let bytes = blocks(12);
    let mut file = bench.create("t", FileKind::Table, RESTING);
    // Four are out, nobody works on them, and the fifth is there.
    bytes[..5 * BLOCK].chunks(1000).for_each(|part| file.append(part).unwrap());
    let counted = |bench: &Bench| {
        [Count::ReactorRests, Count::TakenBack, Count::ReactorWrites].map(|c| bench.count(c))
    };
    assert_eq!(counted(&bench), [1, 4, 0]);
    assert_eq!(bench.reactor.budget.used(), 0, "all came back");
    let before = bench.count(Count::Pwrites);
    bytes[5 * BLOCK..8 * BLOCK].chunks(1000).for_each(|part| file.append(part).unwrap());
    assert_eq!(bench.count(Count::Pwrites) - before, 3 * 4, "a quarter of a block each");
    bytes[8 * BLOCK..].chunks(1000).for_each(|part| file.append(part).unwrap());
    assert!(bench.reactor.budget.used() > 0, "4 MiB of those, and it hands over again");
    bench.turn();
    assert_eq!(file.finish().unwrap(), at(12));
    assert!(bench.content("t") == bytes);
    assert_eq!(bench.count(Count::ReactorRests), 1);
    assert!(bench.count(Count::ReactorWrites) > 0);
}

#[test]
fn rests_grow_with_every_fast_table_and_end_when_the_reactor_keeps_up() {
    let mut bench = Bench::new(|ring| ring);
    let bytes = blocks(20);
    let quick = |bench: &Bench, name: &str| {
        let mut file = bench.create(name, FileKind::Table, RESTING);
        bytes.chunks(10_000).for_each(|part| file.append(part).unwrap());
        assert_eq!(file.finish().unwrap(), at(20));
        assert!(bench.content(name) == bytes);
        bench.count(Count::ReactorRests)
    };
    let rests: Vec<_> = (0..40).map(|n| quick(&bench, &n.to_string())).collect();
    assert!(rests[39] < 20, "most do not try: {rests:?}");
    assert!(rests[39] > rests[19], "but they are tried again: {rests:?}");
    // One that the reactor keeps up with: most of it goes there, and all of the next.
    for (name, least) in [("a", 16), ("b", 100)] {
        let before = bench.count(Count::ReactorWrites);
        bench.write_in_turns_as(name, &blocks(100), RESTING);
        let handed = bench.count(Count::ReactorWrites) - before;
        assert!(handed >= least, "{name}: {handed} of 100");
    }
    assert_eq!(bench.count(Count::ReactorRests), rests[39]);
}

#[test]
fn a_rest_of_long_ago_costs_a_small_table_nothing() {
    let mut bench = Bench::new(|ring| ring);
    let mut fast = bench.create("fast", FileKind::Table, RESTING);
    fast.append(&blocks(4)).unwrap();
    blocks(40).chunks(BLOCK).for_each(|block| fast.append(block).unwrap());
    fast.finish().unwrap();
    assert!(bench.count(Count::ReactorRests) > 1);
    for n in 0..100 {
        bench.write_in_turns_as(&n.to_string(), &blocks(1), RESTING);
    }
    let before = bench.count(Count::ReactorWrites);
    bench.write_in_turns_as("small", &blocks(2), RESTING);
    assert_eq!(bench.count(Count::ReactorWrites) - before, 2, "all of it");
}

#[test]
fn while_the_reactor_takes_nothing_tables_are_written_as_without_one() {
    let bench = Bench::new(|ring| ring);
    let mut file = bench.table("t");
    bench.reactor.life.alive.store(false, Ordering::Release);
    // The buffer of the file's beginning is still a long one.
    file.append(&blocks(1)[1..]).unwrap();
    file.append(&[1]).unwrap();
    let before = bench.count(Count::Pwrites);
    let bytes = blocks(3);
    bytes.chunks(1000).for_each(|part| file.append(part).unwrap());
    assert_eq!(bench.count(Count::Pwrites) - before, 3 * 4, "a quarter of a block each");
    assert_eq!(file.finish().unwrap(), at(4));
}

#[test]
fn write_back_of_a_table_is_started_in_the_ring_as_it_grows_and_may_fail() {
    for failing in [false, true] {
        let mut bench = Bench::new(move |ring| {
            ring.answering(move |_, entry| {
                let hint = entry.work == crate::uring::ring::Work::StartWriteBack;
                if failing && hint { Answer::Fail(libc::EIO) } else { Answer::Whole }
            })
        });
        bench.write_in_turns("t", &blocks(16));
        assert_eq!(bench.count(Count::ReactorRangeFlushes), 4);
        assert_eq!(bench.count(Count::RangeFlushes), 4);
        bench.turn();
        assert_eq!(bench.count(Count::ReactorCqes), 20);
        assert_eq!(bench.count(Count::RangeFlushFailed), if failing { 4 } else { 0 });
    }
}

/// A completion that comes while hints are given to the kernel gives rise to another hint.
#[test]
fn every_hint_reaches_the_kernel_in_the_turn_that_it_is_made_in() {
    let mut bench = Bench::new(|ring| ring.completing(1));
    let bytes = blocks(4);
    let mut files: Vec<_> = (0..4).map(|n| bench.table(&n.to_string())).collect();
    for file in &mut files {
        file.append(&bytes).unwrap();
    }
    while bench.machine.in_flight() > 0 || bench.reactor.budget.used() > 0 {
        bench.turn();
    }
    assert_eq!(bench.count(Count::ReactorRangeFlushes), 16);
    assert_eq!(bench.count(Count::ReactorCqes), 32);
    drop(files);
}

/// URING-30
#[test]
fn short_blocks_stay_with_their_owner() {
    let mut bench = Bench::new(|ring| ring);
    let mut file = bench.table("t");
    for _ in 0..20 {
        file.append(&pattern(SHORTEST - 1)).unwrap();
        file.flush().unwrap();
    }
    bench.turn();
    assert_eq!(bench.count(Count::ReactorWrites), 0);
    assert_eq!((bench.count(Count::Pwrites), bench.count(Count::FallbackPwrites)), (20, 0));
    file.append(&pattern(SHORTEST)).unwrap();
    // Handed over, and taken back since no thread is there to take it.
    file.flush().unwrap();
    assert_eq!((bench.count(Count::TakenBack), bench.count(Count::FallbackPwrites)), (1, 1));
    assert_eq!(file.finish().unwrap(), 20 * (SHORTEST as u64 - 1) + SHORTEST as u64);
}

/// URING-19: the sync begins when every write is in, remainders included, and fails for good.
#[test]
fn a_failed_sync_is_final_and_comes_after_every_write() {
    let mut bench = Bench::new(|ring| {
        ring.reversed()
            .answering(|n, _| if n == 1 { Answer::Bytes(BLOCK / 2) } else { Answer::Whole })
    });
    let failing = bench.sys.rule(Call::Fsync, "t", When::Nth(0), Fault::Errno(libc::EIO));
    let bytes = blocks(4);
    let mut file = bench.table("t");
    file.append(&bytes).unwrap();
    bench.turn();
    let first = file.sync().unwrap_err();
    assert_eq!((first.errno(), first.op(), failing.fired()), (Some(libc::EIO), "sync", 1));
    assert!(bench.content("t") == bytes, "the missing half was written before the sync began");
    assert_dead(file, &first);
    assert_eq!(bench.sys.calls(Call::Fsync), 1, "the kernel is not asked a second time");
}

#[test]
fn a_dropped_file_is_not_written_to_any_more() {
    let mut bench = Bench::new(|ring| ring);
    let mut file = bench.table("t");
    file.append(&blocks(4)).unwrap();
    drop(file);
    bench.turn();
    assert_eq!((bench.count(Count::ReactorWrites), bench.reactor.budget.used()), (0, 0));
    assert!(bench.content("t").is_empty());
}

/// MAN-22: as on the calling thread.
#[test]
fn a_sync_is_full_after_the_file_grew() {
    let mut bench = Bench::new(|ring| ring);
    let mut file = bench.table("t");
    let calls = |bench: &Bench| (bench.sys.calls(Call::Fsync), bench.sys.calls(Call::Fdatasync));
    for round in 1..=3 {
        file.append(&blocks(2)).unwrap();
        bench.turn();
        file.sync().unwrap();
        assert_eq!(calls(&bench), (round, round - 1));
        file.sync().unwrap();
        assert_eq!(calls(&bench), (round, round));
    }
}

#[test]
fn a_direct_table_goes_through_the_ring_in_whole_blocks_and_ends_where_it_should() {
    let mut bench = Bench::new(ScriptedRing::reversed).writing_direct();
    for (name, manner) in [("a", AUTO), ("b", Manner { shortest: 0, ..AUTO })] {
        let Some(mut file) = bench.direct_table(name, manner) else { return };
        let bytes = pattern(9 * BLOCK + 4097);
        let before = bench.count(Count::ReactorWrites);
        for (n, part) in bytes.chunks(BLOCK + 1000).enumerate() {
            file.append(part).unwrap();
            bench.turn();
            if n % 4 == 2 {
                file.flush().unwrap();
                assert_eq!(std::fs::metadata(bench.path(name)).unwrap().len(), file.len());
            }
        }
        assert_eq!(file.finish().unwrap(), bytes.len() as u64);
        assert!(bench.content(name) == bytes);
        assert!(bench.count(Count::ReactorWrites) - before >= 7);
    }
}

/// A block waits for as many parts of reads as tasks were before it, and not for all of them.
#[test]
fn the_parts_of_a_long_read_take_turns_with_what_was_handed_over_after_it() {
    const PARTS: usize = 40;
    let mut bench = Bench::with(8, 64 << 20, |ring| ring.completing(0));
    std::fs::write(bench.path("long"), pattern(PARTS * 4096)).unwrap();
    let file = OsFile::open(&bench.os, &bench.path("long"), Access::Random, false).unwrap();
    file.device().pretend_chunk(4096);
    let op = Op::new(1, Arc::new(file), 0, PARTS * 4096, &bench.os);
    let mailbox = Mailbox::new(&bench.os);
    bench.reactor.read(vec![Errand::new(op, 0, Arc::clone(&mailbox) as _)]);
    let mut table = bench.table("t");
    table.append(&blocks(2)).unwrap();
    bench.turn();
    let counts = [Count::ReactorReads, Count::ReactorWrites].map(|count| bench.count(count));
    assert_eq!(counts, [6, 2]);
    let lengths: Vec<usize> = bench.seen.lock().entries.iter().map(|e| e.1 as usize).collect();
    assert_eq!(lengths[..4], [4096, BLOCK, 4096, BLOCK]);
    drop(bench.machine);
    assert!(table.flush().is_err(), "its blocks are lost with the ring");
    assert_eq!(mailbox.take().len(), 1, "the read comes back");
}
