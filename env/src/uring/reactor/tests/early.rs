//! Flushes to the medium that begin while their table is still being written.

use super::*;
use crate::uring::ring::Work;

/// One flush for each two blocks.
const EARLY: Manner = Manner { early_sync: Some(2 * BLOCK as u64), ..AUTO };

/// A bench whose ring answers flushes so, and everything else in full.
fn answering_syncs(answer: Answer) -> Bench {
    Bench::new(move |ring| {
        ring.answering(
            move |_, entry| if entry.work == Work::Sync { answer } else { Answer::Whole },
        )
    })
}

/// A table of which so many blocks have completed, one to a turn.
fn table_of(bench: &mut Bench, count: usize) -> Box<dyn WritableFile> {
    let mut file = bench.create("t", FileKind::Table, EARLY);
    for block in blocks(count).chunks(BLOCK) {
        file.append(block).unwrap();
        bench.turn();
    }
    file
}

#[test]
fn a_flush_begins_for_each_so_many_bytes_and_the_last_sync_is_made_all_the_same() {
    let mut bench = Bench::new(|ring| ring);
    let file = table_of(&mut bench, 7);
    assert_eq!(bench.count(Count::EarlySyncs), 3);
    assert_eq!(bench.count(Count::Syncs), 0);
    assert_eq!(file.finish().unwrap(), at(7));
    assert!(bench.content("t") == blocks(7));
    assert_eq!((bench.count(Count::Syncs), bench.sys.calls(Call::Fsync)), (1, 1));
    assert_eq!(bench.count(Count::EarlySyncsSkipped), 0);
}

#[test]
fn logs_and_tables_that_ask_for_none_have_no_early_flush() {
    let mut bench = Bench::new(|ring| ring);
    bench.write_in_turns("t", &blocks(16));
    assert_eq!(bench.count(Count::EarlySyncs), 0);
}

/// ENV-05, URING-19: the kernel told this flush alone, and would call the next one a success.
#[test]
fn a_failed_early_flush_is_the_last_word_of_its_file_and_of_no_other() {
    // A driver's own errno is kept by the write-back that it failed: none but a cancellation says
    // that the flush did not run.
    for errno in (1..134).filter(|errno| *errno != libc::ECANCELED) {
        let mut bench = answering_syncs(Answer::Fail(errno));
        let mut other = bench.table("other");
        let mut file = table_of(&mut bench, 2);
        assert_eq!(bench.count(Count::EarlySyncs), 1);
        let error = file.append(b"more").unwrap_err();
        assert_eq!((error.errno(), error.op()), (Some(errno), "sync"));
        assert_eq!(error.path(), bench.path("t"));
        assert_dead(file, &error);
        assert_eq!(bench.sys.calls(Call::Fsync) + bench.sys.calls(Call::Fdatasync), 0);
        other.append(b"fine").unwrap();
        other.finish().unwrap();
    }
}

/// URING-03, URING-19: it never ran, and what it was to do is done by the sync at the end.
#[test]
fn a_cancelled_early_flush_costs_nothing_but_the_time_it_would_have_saved() {
    let mut bench = answering_syncs(Answer::Fail(libc::ECANCELED));
    let file = table_of(&mut bench, 4);
    file.finish().unwrap();
    assert!(bench.content("t") == blocks(4));
    assert_eq!(bench.count(Count::EarlySyncs), 2);
    assert_eq!(bench.count(Count::EarlySyncsSkipped), 2);
    assert_eq!(bench.sys.calls(Call::Fsync), 1);
    assert!(bench.breaker.level() > 0);
}

#[test]
fn at_most_one_flush_of_a_file_is_under_way_and_a_sync_waits_for_it() {
    let mut bench = answering_syncs(Answer::Lost);
    let file = table_of(&mut bench, 8);
    assert_eq!(bench.count(Count::EarlySyncs), 1, "the first has not ended");
    let handle = file.handle();
    let (tell, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            let synced = handle.sync();
            tell.send(()).unwrap();
            synced
        });
        // However late the thread begins, it cannot be through before the flush has ended.
        let early = told.recv_timeout(Duration::from_millis(50));
        assert_eq!(early, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
        // The ring goes, and with it the only one that could tell how the flush ended.
        let machine = std::mem::replace(&mut bench.machine, idle_machine(&bench.stage));
        drop(machine);
        let error = syncing.join().unwrap().unwrap_err();
        assert_eq!(error.op(), "sync");
        assert!(error.to_string().contains("may have failed"), "{error}");
        assert_dead(file, &error);
    });
    assert_eq!(bench.sys.calls(Call::Fsync) + bench.sys.calls(Call::Fdatasync), 0);
}

/// A flush hands bytes to the operating system, and that has all of them.
#[test]
fn a_flush_to_the_operating_system_does_not_wait_for_one_to_the_medium() {
    let mut bench = answering_syncs(Answer::Lost);
    let mut file = table_of(&mut bench, 4);
    assert_eq!(bench.count(Count::EarlySyncs), 1);
    file.flush().unwrap();
    assert!(bench.content("t") == blocks(4));
    file.append(b"more").unwrap();
    // The ring goes, and with it the only one that could tell how the flush to the medium ended.
    let machine = std::mem::replace(&mut bench.machine, idle_machine(&bench.stage));
    drop(machine);
    let error = file.sync().unwrap_err();
    assert!(error.to_string().contains("may have failed"), "{error}");
    assert_dead(file, &error);
}

/// URING-34: whether the sync or the shutdown comes first.
#[test]
fn no_sync_waits_for_an_early_flush_that_a_shutdown_gave_up() {
    for before in [true, false] {
        let mut bench = answering_syncs(Answer::Lost);
        let file = table_of(&mut bench, 4);
        assert_eq!(bench.count(Count::EarlySyncs), 1);
        let handle = file.handle();
        threads::within_a_minute(move || {
            let syncing = before.then(|| {
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle.sync())
            });
            if before {
                thread::sleep(Duration::from_millis(20));
            }
            // As a shutdown does that finds the thread still busy when its time is over.
            bench.reactor.gave_up.store(true, Ordering::Release);
            let told = syncing.map_or_else(|| handle.sync(), |thread| thread.join().unwrap());
            let error = told.unwrap_err();
            assert_eq!((error.outcome(), error.op()), (Outcome::MaybeApplied, "sync"));
            assert!(error.to_string().contains("ran out of time"), "{error}");
            assert_dead(file, &error);
            assert_eq!(bench.sys.calls(Call::Fsync) + bench.sys.calls(Call::Fdatasync), 0);
        });
    }
}

fn idle_machine(stage: &Stage) -> Machine {
    let make = || Ok(Box::new(ScriptedRing::new(8)) as Box<dyn Ring>);
    Machine::new(&stage.os, &stage.breaker, Box::new(make)).unwrap()
}

#[test]
fn an_early_flush_that_the_kernel_did_not_take_fails_no_file() {
    // The first turns give the blocks to the kernel, and a hint for each; then it takes no more.
    let mut bench = Bench::new(|ring| {
        ring.entering(|n| if n < 3 { Entered::All } else { Entered::Fail(libc::EAGAIN) })
    });
    let file = table_of(&mut bench, 2);
    bench.turn();
    assert_eq!((bench.count(Count::EarlySyncs), bench.count(Count::EarlySyncsSkipped)), (1, 1));
    assert_eq!(file.finish().unwrap(), at(2));
    assert!(bench.content("t") == blocks(2));
}
