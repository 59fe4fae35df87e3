//! A reactor that dies in the middle of its work, at a step of its loop that the test chooses.

use super::threads::within_a_minute;
use super::*;
use crate::EnvReport;
use crate::uring::writes::Writes;

/// Blocks that fit into the ring at once.
const ENTRIES: usize = 16;
/// Blocks that are handed over: all that fit, and more that are queued.
const WRITES: usize = 50;

/// Where it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The entries are in the ring, and the kernel has not seen them.
    Submitting,
    /// The kernel has them, and has answered none.
    Reaping,
    /// Three were answered, and one of these was settled.
    Delivering,
}

impl Step {
    /// What the kernel has and may still use.
    fn owed(self) -> usize {
        match self {
            Self::Submitting => 0,
            Self::Reaping => ENTRIES,
            Self::Delivering => ENTRIES - 3,
        }
    }

    fn bench(self) -> Bench {
        let completing = if self == Self::Delivering { 3 } else { 0 };
        let dies_at = match self {
            Self::Submitting => 0,
            Self::Reaping => 1,
            Self::Delivering => usize::MAX,
        };
        let mut bench = Bench::with(ENTRIES, 64 << 20, move |ring| {
            ring.completing(completing)
                .entering(move |n| if n == dies_at { Entered::Panic } else { Entered::All })
        });
        if self == Self::Delivering {
            let mut judged = 0;
            bench.machine.before_judging = Some(Box::new(move || {
                judged += 1;
                assert!(judged < 2, "the script says so");
            }));
        }
        bench
    }
}

/// Lets the thread's loop run over what is queued until it is dead.
fn let_it_die(bench: Bench) -> (Stage, Arc<Reactor>) {
    let Bench { stage, reactor, machine } = bench;
    let (os, inbox, life) =
        (Arc::clone(&stage.os), Arc::clone(&reactor.inbox), Arc::clone(&reactor.life));
    let thread = thread::spawn(move || run(machine, &os, &inbox, &life));
    while !thread.is_finished() {
        // As the kernel would for something that completed.
        reactor.inbox.bell().ring();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(thread.join().is_err(), "it did not panic");
    (stage, reactor)
}

/// URING-14
#[test]
fn a_reactor_that_panics_at_any_step_leaks_what_the_kernel_has_and_hangs_nobody() {
    for step in [Step::Submitting, Step::Reaping, Step::Delivering] {
        within_a_minute(move || die_at(step));
    }
}

fn die_at(step: Step) {
    let bench = step.bench();
    let bytes = blocks(4);
    let names: Vec<String> = (0..WRITES.div_ceil(PER_TABLE)).map(|n| n.to_string()).collect();
    let mut files: Vec<_> = names.iter().map(|name| bench.table(name)).collect();
    let mut left = WRITES;
    for file in &mut files {
        let count = left.min(PER_TABLE);
        file.append(&bytes[..count * BLOCK]).unwrap();
        left -= count;
    }
    assert_eq!(bench.reactor.budget.used(), WRITES * BLOCK, "all of them are out");
    let (stage, reactor) = let_it_die(bench);
    assert_eq!(stage.count(Count::ReactorWrites), ENTRIES as u64, "the others were queued");

    // Owners of blocks in the ring and of queued ones alike do not know what became of them.
    for (n, (mut file, name)) in files.into_iter().zip(&names).enumerate() {
        let error = if n % 2 == 0 { file.sync() } else { file.append(&bytes) }.unwrap_err();
        assert_eq!((error.outcome(), error.op()), (Outcome::MaybeApplied, "append"));
        assert_eq!(error.path(), stage.path(name));
        assert!(error.to_string().contains("gone"), "{error}");
        assert_dead(file, &error);
    }
    assert_eq!(reactor.budget.used(), 0);

    // Nobody else gets the memory that the kernel has, and a late write finds the bytes in it.
    let owed = stage.seen.lock().owed.clone();
    assert_eq!(owed.len(), step.owed(), "{step:?}");
    let again: Vec<_> = (0..2 * WRITES).map(|_| stage.os.pool.take(BLOCK)).collect();
    assert_leaked(&owed, &again);
    for late in &owed {
        let start = usize::try_from(late.offset).unwrap();
        assert!(late.write_late().unwrap() == bytes[start..start + BLOCK], "{late:?}");
    }
    drop(again);

    // Whoever writes later does it alone, and the report says why.
    let mut report = EnvReport::new("io_uring");
    Writes::of(&reactor).add_facts(&mut report);
    assert_eq!(report.counter("reactor_alive"), 0);
    let text = report.to_string();
    assert!(text.contains("the reactor has ended: on the calling thread"), "{text}");
    let mut later = stage.create(&reactor, "later", FileKind::Table, AUTO).unwrap();
    later.append(&bytes).unwrap();
    assert_eq!(later.finish().unwrap(), at(4));
    assert!(stage.content("later") == bytes);
    assert_eq!(stage.count(Count::ReactorWrites), ENTRIES as u64);
    assert!(reactor.shut_down(Duration::from_mins(1)));
}

/// Where nobody may have to wait for a subscriber.
#[cfg(feature = "tracing")]
#[test]
fn the_end_of_the_reactor_is_told_when_nothing_is_out_any_more() {
    for (answer, cause) in [
        (Entered::Panic, "it panicked"),
        (Entered::Fail(libc::EAGAIN), "it lost its ring, and another cannot be made"),
    ] {
        let bench = Bench::of_rings(64, 64 << 20, 1, move |ring| ring.entering(move |_| answer));
        let mut file = bench.table("t");
        file.append(&blocks(2)).unwrap();
        let Bench { stage, reactor, machine } = bench;
        let looks = Arc::new(Mutex::new(Vec::new()));
        let (for_look, looked) = (Arc::clone(&reactor), Arc::clone(&looks));
        // What makes rings has it, as long as there is a machine.
        let machine_and_stage = Arc::downgrade(&stage.seen);
        let look = move || {
            let ended = *for_look.life.ended.lock();
            looked.lock().push((for_look.is_alive(), ended, machine_and_stage.strong_count()));
        };
        let serve = || run(machine, &stage.os, &reactor.inbox, &reactor.life);
        let told = trace::told_while(|| tell_of_the_end(serve), look);
        let last = told.last().unwrap();
        assert!(last.starts_with("ERROR") && last.ends_with(cause), "{told:?}");
        assert_eq!(looks.lock().last(), Some(&(false, true, 1)), "{cause}");
        drop(file);
    }
}
