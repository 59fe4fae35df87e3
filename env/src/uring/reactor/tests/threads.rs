//! The reactor with its thread: waking up, dying, ending.

use std::os::fd::OwnedFd;

use super::*;
use crate::uring::reactor::bell::EventBell;

/// A door that completions go through; it rings the bell when it is opened.
#[derive(Debug, Default)]
struct Gate {
    open: AtomicBool,
    bell: Mutex<Option<OwnedFd>>,
}

impl Gate {
    fn opened() -> Arc<Self> {
        let gate = Self::default();
        gate.open.store(true, Ordering::SeqCst);
        Arc::new(gate)
    }

    fn ring(&self) {
        if self.open.load(Ordering::SeqCst)
            && let Some(bell) = &*self.bell.lock()
        {
            rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.ring();
    }
}

/// A reactor with its thread.
struct Running {
    stage: Stage,
    reactor: Arc<Reactor>,
}

/// A running reactor over rings that `make` gives, which complete while the gate is open.
fn running(
    gate: &Arc<Gate>,
    make: impl Fn(ScriptedRing) -> ScriptedRing + Send + 'static,
) -> Running {
    let stage = Stage::new();
    let (gate, seen) = (Arc::clone(gate), Arc::clone(&stage.seen));
    let make = move |bell: &EventBell| {
        *gate.bell.lock() = Some(bell.fd().try_clone_to_owned().unwrap());
        let (door, ringer) = (Arc::clone(&gate), Arc::clone(&gate));
        let ring = ScriptedRing::new(64)
            .seen_by(&seen)
            .completing(1)
            .while_open(move || door.open.load(Ordering::SeqCst))
            .ringing(move || ringer.ring());
        Ok(make(ring))
    };
    let reactor = Reactor::start(&stage.os, &stage.breaker, 64 << 20, make).unwrap();
    Running { stage, reactor }
}

impl Running {
    fn table(&self, name: &str) -> Box<dyn WritableFile> {
        self.stage.create(&self.reactor, name, FileKind::Table, AUTO).unwrap()
    }

    /// Waits until the reactor has taken `count` writes.
    fn until_taken(&self, count: u64) {
        while self.stage.count(Count::ReactorWrites) < count {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A test that hangs says so instead.
pub(super) fn within_a_minute(body: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        body();
        tell.send(()).unwrap();
    });
    let ended = told.recv_timeout(Duration::from_mins(1));
    assert!(ended != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

#[test]
fn blocks_of_many_files_go_through_the_thread() {
    within_a_minute(|| {
        let running = running(&Gate::opened(), ScriptedRing::reversed);
        let bytes = blocks(9);
        thread::scope(|scope| {
            for n in 0..4 {
                let (running, bytes) = (&running, &bytes);
                scope.spawn(move || {
                    let mut file = running.table(&n.to_string());
                    for part in bytes.chunks(100_000) {
                        file.append(part).unwrap();
                    }
                    file.finish().unwrap();
                    assert!(running.stage.content(&n.to_string()) == *bytes);
                });
            }
        });
        // Whoever wrote them: each block was written once.
        let stage = &running.stage;
        let made = stage.count(Count::ReactorWrites) + stage.count(Count::TakenBack);
        assert_eq!(made, 36);
        assert!(running.reactor.shut_down(Duration::from_mins(1)));
        let pushed = stage.count(Count::ReactorWrites) + stage.count(Count::ReactorRangeFlushes);
        assert_eq!(stage.count(Count::ReactorCqes), pushed);
        assert_eq!(running.reactor.budget.used(), 0);
    });
}

/// URING-14: at each step of the loop, with blocks queued and in flight.
#[test]
fn owners_are_told_of_a_reactor_that_panics_and_go_on_without_it() {
    for step in ["submitting", "reaping"] {
        within_a_minute(move || {
            let gate = Arc::<Gate>::default();
            let running = running(&gate, move |ring| {
                let mut entered = 0;
                ring.entering(move |_| {
                    entered += 1;
                    let dies = if step == "submitting" { entered == 1 } else { entered == 2 };
                    if dies { Entered::Panic } else { Entered::All }
                })
            });
            let bytes = blocks(4);
            let mut files: Vec<_> = (0..12).map(|n| running.table(&n.to_string())).collect();
            let appended: Vec<_> = files.iter_mut().map(|file| file.append(&bytes)).collect();
            // With one block in flight alone, its owner takes the others back and no step follows.
            running.until_taken(if step == "submitting" { 1 } else { 2 });
            gate.open();
            let (mut failed, mut whole) = (0, 0);
            for (n, (file, appended)) in files.into_iter().zip(appended).enumerate() {
                match appended.and_then(|()| file.finish()) {
                    // It took back what was queued, or was written after the end.
                    Ok(_) => {
                        assert!(running.stage.content(&n.to_string()) == bytes);
                        whole += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.outcome(), Outcome::MaybeApplied);
                        assert!(error.to_string().contains("gone"), "{error}");
                        failed += 1;
                    }
                }
            }
            assert!(failed >= 1 && failed + whole == 12, "{step}: {failed} and {whole}");
            assert!(!running.reactor.is_alive() && !running.reactor.takes());
            let mut later = running.table("later");
            later.append(&bytes).unwrap();
            assert_eq!(later.finish().unwrap(), at(4));
            assert!(running.stage.content("later") == bytes);
            assert_eq!(running.reactor.budget.used(), 0);
            assert!(running.reactor.shut_down(Duration::from_mins(1)));
        });
    }
}

#[test]
fn dropping_a_file_waits_for_its_writes_in_the_kernel() {
    within_a_minute(|| {
        let gate = Arc::<Gate>::default();
        let running = running(&gate, |ring| ring);
        let mut file = running.table("t");
        file.append(&blocks(4)).unwrap();
        running.until_taken(4);
        let dropping = thread::spawn(move || drop(file));
        thread::sleep(Duration::from_millis(20));
        assert!(!dropping.is_finished(), "its writes are still in the kernel");
        gate.open();
        dropping.join().unwrap();
        assert!(running.stage.content("t") == blocks(4));
        assert_eq!(running.reactor.budget.used(), 0);
    });
}

/// URING-34
#[test]
fn a_shutdown_with_a_write_that_never_ends_returns_in_time_and_frees_nothing() {
    within_a_minute(|| {
        let gate = Arc::<Gate>::default();
        let running = running(&gate, |ring| ring);
        let mut file = running.table("t");
        file.append(&blocks(1)).unwrap();
        running.until_taken(1);
        let free = running.stage.os.pool.free_bytes();
        assert!(!running.reactor.shut_down(Duration::from_millis(10)));
        assert!(running.reactor.gave_up());
        drop(file);
        // The file gave its own buffer back, and not the one that is in flight.
        assert_eq!(running.stage.os.pool.free_bytes(), free + BLOCK);
        assert_eq!(running.reactor.budget.used(), BLOCK);
        let mut later = running.table("later");
        later.append(&blocks(5)).unwrap();
        assert_eq!(later.finish().unwrap(), at(5));
        // It ends after all: so does the thread, and a second shutdown finds that.
        gate.open();
        assert!(running.reactor.shut_down(Duration::from_mins(1)));
        assert_eq!(running.reactor.budget.used(), 0);
    });
}

/// URING-34: whatever the owner waits with, from before the shutdown on.
#[test]
fn no_owner_waits_for_blocks_that_a_shutdown_gave_up() {
    for waits_with in ["room", "flush", "sync", "finish", "drop", "one append"] {
        within_a_minute(move || {
            let gate = Arc::<Gate>::default();
            let running = running(&gate, |ring| ring);
            let (kind, manner) = match waits_with {
                "one append" => (FileKind::Log, WAITS),
                _ => (FileKind::Table, AUTO),
            };
            let mut file = running.stage.create(&running.reactor, "t", kind, manner).unwrap();
            let out = if waits_with == "one append" { 1 } else { PER_TABLE };
            if out > 1 {
                file.append(&blocks(out)).unwrap();
                running.until_taken(out as u64);
            }
            let owner = thread::spawn(move || {
                let failed = match waits_with {
                    "room" => file.append(&blocks(1)),
                    "one append" => file.append(b"record"),
                    "flush" => file.flush(),
                    "sync" => file.sync(),
                    "finish" => return (None, file.finish().map(drop)),
                    _ => return (None, Ok(())),
                };
                (Some(file), failed)
            });
            running.until_taken(out as u64);
            thread::sleep(Duration::from_millis(20));
            let before = running.reactor.budget.used();
            assert!(!running.reactor.shut_down(Duration::from_millis(1)));
            let (file, told) = owner.join().unwrap();
            if waits_with == "drop" {
                assert!(told.is_ok());
            } else {
                let error = told.unwrap_err();
                assert_eq!((error.outcome(), error.op()), (Outcome::MaybeApplied, "append"));
                assert!(error.to_string().contains("ran out of time"), "{error}");
                if let Some(file) = file {
                    assert_eq!(file.len(), 0, "{waits_with}: of none is known that it is there");
                    assert_dead(file, &error);
                }
            }
            // The kernel has the memory yet, and may write it; the file is not cut below it.
            assert_eq!(running.reactor.budget.used(), before);
            let owed = running.stage.seen.lock().entries.len();
            assert_eq!(owed, out, "{waits_with}");
            gate.open();
            assert!(running.reactor.shut_down(Duration::from_mins(1)));
            assert_eq!(running.reactor.budget.used(), 0);
            let bytes = if out == 1 { b"record".to_vec() } else { blocks(out) };
            assert!(running.stage.content("t") == bytes, "{waits_with}");
        });
    }
}

#[test]
fn a_shutdown_works_off_what_was_handed_over_and_later_writes_stay_with_their_owner() {
    within_a_minute(|| {
        let gate = Arc::<Gate>::default();
        let running = running(&gate, |ring| ring);
        let bytes = blocks(8);
        let mut file = running.table("t");
        file.append(&bytes[..4 * BLOCK]).unwrap();
        running.until_taken(4);
        thread::scope(|scope| {
            let stopping = scope.spawn(|| running.reactor.shut_down(Duration::from_mins(1)));
            while running.reactor.is_alive() {
                thread::yield_now();
            }
            gate.open();
            assert!(stopping.join().unwrap());
        });
        let taken = running.stage.count(Count::ReactorWrites);
        file.append(&bytes[4 * BLOCK..]).unwrap();
        assert_eq!(file.finish().unwrap(), at(8));
        assert!(running.stage.content("t") == bytes);
        assert_eq!(running.stage.count(Count::ReactorWrites), taken);
        assert!(running.reactor.shut_down(Duration::ZERO), "there is nothing left to end");
    });
}

/// URING-26
#[test]
fn a_ring_that_cannot_be_made_is_told_with_its_cause() {
    let stage = Stage::new();
    let refused = |error: SetupError| {
        let make = move |_: &EventBell| Err::<ScriptedRing, _>(error);
        Reactor::start(&stage.os, &stage.breaker, 1 << 20, make).unwrap_err()
    };
    for error in [SetupError::Setup(libc::EMFILE), SetupError::Worker(libc::ECANCELED)] {
        assert_eq!(refused(error), NoReactor::Ring(error));
    }
    let panicking =
        |_: &EventBell| -> Result<ScriptedRing, SetupError> { panic!("the script says so") };
    assert!(Reactor::start(&stage.os, &stage.breaker, 1 << 20, panicking).is_err());
}

/// URING-35
#[test]
fn an_idle_reactor_does_not_wake_up() {
    within_a_minute(|| {
        let running = running(&Gate::opened(), |ring| ring);
        let mut file = running.table("t");
        file.append(&blocks(4)).unwrap();
        file.finish().unwrap();
        // It may still be on its way to sleep; then it sleeps.
        let counts = || {
            let stage = &running.stage;
            (stage.count(Count::ReactorWakeups), stage.count(Count::ReactorEnters))
        };
        let mut quiet = false;
        for _ in 0..1000 {
            let before = counts();
            thread::sleep(Duration::from_millis(50));
            quiet = counts() == before;
            if quiet {
                break;
            }
        }
        assert!(quiet, "it never comes to rest");
    });
}

/// URING-30
#[test]
fn an_append_that_waits_is_in_the_file_when_it_returns_and_its_error_is_its_own() {
    within_a_minute(|| {
        let running = running(&Gate::opened(), |ring| {
            ring.answering(|n, _| match n % 50 {
                7 => Answer::FailAfter(3, libc::ECANCELED),
                13 => Answer::Bytes(5),
                49 => Answer::Fail(libc::EIO),
                _ => Answer::Whole,
            })
        });
        let mut log = running.stage.create(&running.reactor, "log", FileKind::Log, WAITS).unwrap();
        let mut expected = Vec::new();
        for n in 1..50_usize {
            let record = pattern(n * 37);
            log.append(&record).unwrap();
            expected.extend(record);
            assert!(running.stage.content("log") == expected);
        }
        assert_eq!(running.stage.count(Count::ReactorWrites), 49);
        let error = log.append(b"x").unwrap_err();
        assert_eq!((error.errno(), error.offset()), (Some(libc::EIO), Some(expected.len() as u64)));
        assert_eq!(log.len(), expected.len() as u64);
        assert!(running.stage.content("log") == expected);
        assert_dead(log, &error);
    });
}
