//! Blocks that do not go through: short, cancelled, failed, refused, lost.

use super::*;

/// One block through a ring that answers it so; what flushing gave.
fn one_block(answer: Answer) -> (Bench, Box<dyn WritableFile>, crate::Result<()>) {
    let mut bench = Bench::new(move |ring| ring.answering(move |_, _| answer));
    let mut file = bench.table("t");
    file.append(&blocks(1)).unwrap();
    bench.turn();
    assert_eq!(bench.count(Count::ReactorWrites), 1);
    let flushed = file.flush();
    (bench, file, flushed)
}

/// URING-20
#[test]
fn a_short_write_is_continued_where_it_ended() {
    for len in [0, 1, 4095, 4096, 4097, BLOCK / 2, BLOCK - 1] {
        let (bench, file, flushed) = one_block(Answer::Bytes(len));
        flushed.unwrap();
        assert_eq!(file.finish().unwrap(), at(1));
        assert!(bench.content("t") == blocks(1), "{len} bytes");
        let writes = bench.sys.take_transfers();
        assert_eq!(writes, [(Call::Pwrite, len as u64, BLOCK - len)]);
        assert_eq!(bench.count(Count::ShortWrites), 1);
        assert_eq!(bench.count(Count::FallbackPwrites), 1);
    }
}

/// URING-03, URING-17: whatever part of the write happened before it was cancelled.
#[test]
fn a_passing_failure_is_answered_by_a_plain_write_and_counted_by_errno() {
    let passing = [
        (libc::ECANCELED, Count::RetriedCanceled),
        (libc::EINTR, Count::RetriedEintr),
        (libc::EAGAIN, Count::RetriedEagain),
        (libc::EFAULT, Count::RetriedEfault),
        (libc::ENOMEM, Count::RetriedOther),
        (libc::EINVAL, Count::RetriedOther),
        (libc::EOPNOTSUPP, Count::RetriedOther),
    ];
    for (errno, count) in passing {
        for part in [0, BLOCK / 3, BLOCK] {
            let (bench, file, flushed) = one_block(Answer::FailAfter(part, errno));
            flushed.unwrap();
            file.finish().unwrap();
            assert!(bench.content("t") == blocks(1));
            assert_eq!(bench.count(count), 1, "errno {errno}");
            assert_eq!(bench.sys.take_transfers(), [(Call::Pwrite, 0, BLOCK)]);
        }
    }
}

/// URING-18: a repeated write touches its own range only, and attempts end.
#[test]
fn a_write_cancelled_for_ever_surfaces_and_spares_its_neighbours() {
    let mut bench = Bench::new(|ring| {
        ring.reversed().answering(|_, entry| {
            if entry.offset == at(1) {
                Answer::FailAfter(100, libc::ECANCELED)
            } else {
                Answer::Whole
            }
        })
    });
    let bytes = blocks(4);
    let mut file = bench.table("t");
    file.append(&bytes).unwrap();
    bench.turn();
    file.flush().unwrap();
    assert!(bench.content("t") == bytes);
    assert_eq!(bench.sys.take_transfers(), [(Call::Pwrite, at(1), BLOCK)]);
    file.finish().unwrap();

    let cancelled = Fault::Errno(libc::ECANCELED);
    bench.sys.rule(Call::Pwrite, "again", When::Always, cancelled);
    let mut file = bench.table("again");
    file.append(&bytes).unwrap();
    bench.turn();
    let error = file.flush().unwrap_err();
    assert_eq!((error.errno(), error.offset()), (Some(libc::ECANCELED), Some(at(1))));
    assert_eq!(bench.sys.take_transfers().len(), 1, "one plain write decides");
    assert_dead(file, &error);
}

/// URING-04
#[test]
fn a_files_own_error_is_final_and_names_path_and_offset() {
    for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EROFS, libc::EBADF] {
        let (bench, file, flushed) = one_block(Answer::Fail(errno));
        let error = flushed.unwrap_err();
        assert_eq!((error.errno(), error.op(), error.offset()), (Some(errno), "append", Some(0)));
        assert_eq!(error.path(), bench.path("t"));
        assert_eq!(error.outcome(), Outcome::MaybeApplied);
        if matches!(errno, libc::ENOSPC | libc::EDQUOT) {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        assert_eq!(file.len(), 0);
        assert_dead(file, &error);
        assert_eq!(bench.sys.calls(Call::Pwrite), 0, "it is not tried again");
        assert_eq!(bench.sys.calls(Call::Fsync) + bench.sys.calls(Call::Fdatasync), 0);
    }
}

/// ENV-04: a prefix without a gap, wherever the failure is and whatever completes first.
#[test]
fn after_a_failure_the_file_is_a_prefix_of_what_was_appended() {
    for failing in 0..4 {
        for reversed in [false, true] {
            let mut bench = Bench::new(move |ring| {
                let ring = if reversed { ring.reversed() } else { ring };
                ring.answering(move |_, entry| {
                    let fails = entry.offset == at(failing);
                    if fails { Answer::Fail(libc::ENOSPC) } else { Answer::Whole }
                })
            });
            let bytes = blocks(4);
            let mut file = bench.table("t");
            file.append(&bytes).unwrap();
            bench.turn();
            let error = file.append(b"more").unwrap_err();
            assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(at(failing))));
            assert_eq!(file.len(), at(failing));
            assert!(bench.content("t") == bytes[..failing * BLOCK], "block {failing}");
            assert_dead(file, &error);
        }
    }
}

/// ENV-04: the last block of a direct table is written again with what follows it. If that fails,
/// what a sync made durable is still the file's.
#[test]
fn a_failed_write_over_synced_bytes_takes_none_of_them_away() {
    for on_the_ring in [true, false] {
        let mut bench = Bench::new(move |ring| {
            ring.answering(move |_, entry| {
                if entry.offset == at(1) { Answer::Fail(libc::EIO) } else { Answer::Whole }
            })
        })
        .writing_direct();
        let shortest = if on_the_ring { AUTO.shortest } else { usize::MAX };
        let Some(mut file) = bench.direct_table("t", Manner { shortest, ..AUTO }) else { return };
        let bytes = blocks(3);
        let synced = BLOCK + 37_856;
        file.append(&bytes[..synced]).unwrap();
        bench.turn();
        file.sync().unwrap();
        assert!(bench.content("t") == bytes[..synced]);
        if !on_the_ring {
            bench.sys.rule(Call::Pwrite, "t", When::Always, Fault::Errno(libc::EIO));
        }
        let appended = file.append(&bytes[synced..]);
        bench.turn();
        let error = appended.and_then(|()| file.flush()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert_eq!(file.len(), synced as u64);
        assert!(bench.content("t")[..synced] == bytes[..synced]);
    }
}

/// ENV-04: the remainder of a short write meets a full disk.
#[test]
fn a_disk_that_fills_up_in_a_block_leaves_what_fitted() {
    let mut bench = Bench::new(|ring| {
        ring.answering(
            |_, entry| {
                if entry.offset == at(1) { Answer::Bytes(5000) } else { Answer::Whole }
            },
        )
    });
    bench.sys.rule(Call::Pwrite, "t", When::Always, Fault::Errno(libc::ENOSPC));
    let bytes = blocks(4);
    let mut file = bench.table("t");
    file.append(&bytes).unwrap();
    bench.turn();
    let error = file.finish().unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(at(1) + 5000)));
    assert!(bench.content("t") == bytes[..BLOCK + 5000]);
}

/// URING-05
#[test]
fn entries_that_the_kernel_refuses_are_written_by_their_owner() {
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
        let mut bench = Bench::new(move |ring| ring.entering(move |_| Entered::Fail(errno)));
        bench.write_in_turns("t", &blocks(8));
        assert_eq!(bench.count(Count::FallbackPwrites), 8);
        assert_eq!(bench.count(Count::ReactorWrites), 4);
        assert!(bench.breaker.is_open(), "the second half was not handed over at all");
        assert_eq!(bench.count(Count::BreakerOpened), 1);
        assert_eq!(bench.count(Count::RingRetired), 1);
        assert!(!bench.machine.is_off() && bench.machine.has_room(), "another ring was made");
    }
}

/// URING-05: at the first call and at later ones, for a while, with answers waiting.
#[test]
fn a_kernel_that_refuses_for_a_while_costs_no_block_and_writes_none_twice() {
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::EINTR] {
        for (from, until) in [(0, 1), (1, 2), (1, 4), (2, 5), (3, 9)] {
            let mut bench = Bench::new(move |ring| {
                ring.completing(1).entering(move |n| {
                    let fails = (from..until).contains(&n);
                    if fails { Entered::Fail(errno) } else { Entered::All }
                })
            });
            let mut file = bench.table("t");
            for part in blocks(8).chunks(4 * BLOCK) {
                file.append(part).unwrap();
                // As often as the kernel would wake the thread.
                (0..20).for_each(|_| bench.turn());
            }
            assert_eq!(file.finish().unwrap(), at(8));
            assert!(bench.content("t") == blocks(8), "errno {errno} from {from} on");
            let seen = bench.seen.lock().clone();
            assert!(seen.enters > until.min(8), "{} enters", seen.enters);
            assert_eq!(bench.count(Count::ReactorWrites), 8, "each block once");
            assert_eq!(bench.sys.calls(Call::Pwrite), 0, "and none by its owner");
            assert_eq!((bench.count(Count::RingRetired), seen.rings_dropped), (0, 0));
        }
    }
}

#[test]
fn an_open_breaker_keeps_writes_on_their_thread_until_they_have_worked_it_off() {
    let mut bench = Bench::new(|ring| {
        ring.answering(|n, _| if n < 3 { Answer::Fail(libc::ECANCELED) } else { Answer::Whole })
    });
    let mut file = bench.create("log", FileKind::Table, Manner { shortest: 0, ..AUTO });
    file.append(&blocks(3)).unwrap();
    bench.turn();
    file.flush().unwrap();
    assert!(bench.breaker.is_open());
    let level = bench.breaker.level();
    for _ in 0..level {
        file.append(b"x").unwrap();
        file.flush().unwrap();
    }
    assert!(!bench.breaker.is_open());
    assert_eq!(bench.count(Count::ReactorWrites), 3);
    file.append(&blocks(2)).unwrap();
    bench.turn();
    assert!(bench.count(Count::ReactorWrites) > 3);
    let end = file.finish().unwrap();
    assert_eq!(end, at(5) + level);
    assert_eq!(bench.content("log").len() as u64, end);
}

/// URING-32
#[test]
fn a_ring_that_loses_answers_fails_its_blocks_leaks_them_and_is_replaced() {
    let mut bench = Bench::new(|ring| {
        ring.completing(0)
            .entering(|n| if n == 1 { Entered::Fail(libc::EBADR) } else { Entered::All })
    });
    let bytes = blocks(4);
    let (mut file, mut later) = (bench.table("t"), bench.table("later"));
    file.append(&bytes[..2 * BLOCK]).unwrap();
    bench.turn();
    later.append(&bytes[..BLOCK]).unwrap();
    bench.turn();
    assert_eq!((bench.count(Count::RingRetired), bench.seen.lock().rings_dropped), (1, 1));
    let handle = file.handle();
    let error = file.finish().unwrap_err();
    assert_eq!((error.outcome(), error.offset()), (Outcome::MaybeApplied, Some(0)));
    assert_eq!((error.op(), error.path()), ("append", &*bench.path("t")));
    assert!(same(&handle.sync().unwrap_err(), &error));
    // What the ring never took is its owner's again.
    assert_eq!(later.finish().unwrap(), at(1));
    assert!(bench.content("later") == bytes[..BLOCK]);
    assert_eq!(bench.count(Count::FallbackPwrites), 1);
    // The kernel may still read the memory of the others.
    let owed = bench.seen.lock().owed.clone();
    assert_eq!(owed.len(), 2);
    let again: Vec<_> = (0..8).map(|_| bench.os.pool.take(BLOCK)).collect();
    assert_leaked(&owed, &again);
    assert_eq!(bench.reactor.budget.used(), 0);
    assert!(bench.machine.has_room() && bench.machine.in_flight() == 0);
}

/// URING-32: each of them would cost what is in it.
#[test]
fn a_reactor_whose_rings_fail_one_after_another_is_left_alone_for_a_while() {
    let mut bench = Bench::new(|ring| {
        let mut entered = 0;
        ring.completing(0).entering(move |_| {
            entered += 1;
            if entered == 2 { Entered::Fail(libc::EBADR) } else { Entered::All }
        })
    });
    for name in ["a", "b", "c"] {
        let mut file = bench.table(name);
        file.append(&blocks(1)).unwrap();
        bench.turn();
        bench.turn();
        file.finish().unwrap_err();
    }
    assert_eq!((bench.count(Count::RingRetired), bench.count(Count::BreakerOpened)), (3, 1));
    bench.write_in_turns("t", &blocks(8));
    assert_eq!(bench.count(Count::ReactorWrites), 3);
}

/// URING-26
#[test]
fn without_another_ring_the_machine_is_off() {
    let mut bench =
        Bench::of_rings(64, 64 << 20, 1, |ring| ring.entering(|_| Entered::Fail(libc::EAGAIN)));
    let mut file = bench.table("t");
    file.append(&blocks(2)).unwrap();
    bench.turn();
    assert!(bench.machine.is_off() && !bench.machine.has_room());
    file.append(&blocks(2)).unwrap();
    bench.turn();
    file.finish().unwrap();
    assert!(bench.content("t") == [blocks(2), blocks(2)].concat());
}

/// URING-33
#[test]
fn stale_and_doubled_completions_settle_nothing_and_end_their_ring() {
    for answer in [Answer::StaleFirst, Answer::Twice] {
        let mut bench = Bench::new(move |ring| {
            ring.answering(move |n, _| if n == 0 { answer } else { Answer::Whole })
        });
        let bytes = blocks(4);
        let mut file = bench.table("t");
        file.append(&bytes).unwrap();
        bench.turn();
        file.finish().unwrap();
        assert!(bench.content("t") == bytes);
        assert_eq!((bench.count(Count::RingStale), bench.count(Count::RingRetired)), (1, 1));
    }
    let (bench, file, flushed) = one_block(Answer::Over);
    let error = flushed.unwrap_err();
    assert!(error.to_string().contains("the ring claims"), "{error}");
    assert_eq!(bench.count(Count::RingRetired), 1);
    assert_dead(file, &error);
}

/// Of two files only the one whose write failed is dead.
#[test]
fn an_error_is_its_own_files_and_nobody_elses() {
    let mut bench = Bench::new(|ring| {
        ring.answering(|n, _| if n == 1 { Answer::Fail(libc::EIO) } else { Answer::Whole })
    });
    let (mut good, mut bad) = (bench.table("good"), bench.table("bad"));
    good.append(&blocks(1)).unwrap();
    bad.append(&blocks(1)).unwrap();
    bench.turn();
    good.append(&blocks(1)).unwrap();
    bench.turn();
    assert_eq!(good.finish().unwrap(), at(2));
    assert_eq!(bad.finish().unwrap_err().errno(), Some(libc::EIO));
}
