//! What an environment tells the program's `tracing` subscriber, with the feature of that name:
//! where a fall-back begins and ends. Without it these functions do nothing.
//!
//! Nothing is told of single operations. `docs/env.md` lists the events.

use std::fmt::Display;
use std::path::Path;

/// One event; values are shown as they display.
macro_rules! tell {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)*) => {{
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "treering_env", tracing::Level::$level, $($name = %$value,)* $message
        );
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = &$value;)*
        }
    }};
}

/// [`auto`](crate::auto()) took plain calls.
#[cfg(target_os = "linux")]
pub(crate) fn took_posix(cause: &dyn Display) {
    tell!(WARN, "io_uring is not available: plain calls are used", cause = cause);
}

/// Fewer rings were made than asked for.
#[cfg(target_os = "linux")]
pub(crate) fn fewer_rings(made: usize, asked: usize, errno: i32) {
    tell!(WARN, "fewer rings than asked for", made = made, asked = asked, errno = errno);
}

/// There is no reactor, though it was not ruled out.
#[cfg(target_os = "linux")]
pub(crate) fn no_reactor(cause: &str) {
    tell!(WARN, "no reactor: tables are written on the calling thread", cause = cause);
}

/// The reactor ends before its time.
#[cfg(target_os = "linux")]
pub(crate) fn reactor_ended(cause: &str) {
    tell!(ERROR, "the reactor has ended: tables are written on the calling thread", cause = cause);
}

/// The circuit breaker opened.
#[cfg(target_os = "linux")]
pub(crate) fn breaker_opened() {
    tell!(WARN, "rings fail again and again: plain calls are used for a while");
}

/// The circuit breaker closed.
#[cfg(target_os = "linux")]
pub(crate) fn breaker_closed() {
    tell!(INFO, "rings are used again");
}

/// A ring is given up.
#[cfg(target_os = "linux")]
pub(crate) fn ring_retired() {
    tell!(WARN, "a ring is given up after a defect");
}

/// A ring that was given up could not be replaced.
#[cfg(target_os = "linux")]
pub(crate) fn ring_lost(errno: i32) {
    tell!(WARN, "a ring that was given up cannot be replaced", errno = errno);
}

/// A queue found no free ring.
#[cfg(target_os = "linux")]
pub(crate) fn no_free_ring(reads: usize) {
    tell!(DEBUG, "no ring is free", reads = reads);
}

/// A file's file system does not read without waiting.
pub(crate) fn nowait_unsupported(path: &Path) {
    tell!(DEBUG, "no reads without waiting: plain calls are used", path = path.display());
}

/// The events of this thread while `run` runs: level, message, and the other values by name.
///
/// One collector serves all threads: with one for each, a thread that has none could be the first
/// to reach an event, which would then be off for all.
#[cfg(all(test, feature = "tracing"))]
pub(crate) fn told_by(run: impl FnOnce()) -> Vec<String> {
    told_while(run, || ())
}

/// The same, with a look at the state of things whenever something is told.
#[cfg(all(test, feature = "tracing"))]
pub(crate) fn told_while(run: impl FnOnce(), look: impl Fn() + 'static) -> Vec<String> {
    use std::cell::RefCell;
    use std::fmt::{Debug, Write};
    use std::sync::Once;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static LOOK: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    }
    static INSTALLED: Once = Once::new();

    struct Collector;

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, " {}={value:?}", field.name()).expect("a string takes everything");
        }
    }

    impl Subscriber for Collector {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "treering_env"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            // A thread that ends may have none left to tell.
            let _ = TOLD.try_with(|told| told.borrow_mut().push(line.0));
            let _ = LOOK.try_with(|look| look.borrow().as_ref().map(|look| look()));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Collector).expect("there is no other collector");
        tracing::callsite::rebuild_interest_cache();
    });
    TOLD.take();
    LOOK.replace(Some(Box::new(look)));
    run();
    LOOK.take();
    TOLD.take()
}

#[cfg(all(test, feature = "tracing", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{Access, Env, FileKind, PosixEnv, Request, read_batch};

    #[test]
    fn an_event_has_a_level_a_message_and_its_values() {
        let told = told_by(|| fewer_rings(3, 16, libc::ENOMEM));
        assert_eq!(told, ["WARN message=fewer rings than asked for made=3 asked=16 errno=12"]);
    }

    #[test]
    fn a_fall_back_is_told_with_its_cause() {
        let told = told_by(|| {
            took_posix(&"it is refused");
            no_reactor("there is one processor only");
            reactor_ended("it panicked");
            no_free_ring(7);
        });
        let expected = [
            "WARN message=io_uring is not available: plain calls are used cause=it is refused",
            "WARN message=no reactor: tables are written on the calling thread \
             cause=there is one processor only",
            "ERROR message=the reactor has ended: tables are written on the calling thread \
             cause=it panicked",
            "DEBUG message=no ring is free reads=7",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn nothing_is_told_of_operations_that_go_well() {
        let dir = tempfile::tempdir().unwrap();
        let told = told_by(|| {
            let env = PosixEnv::new();
            let path = dir.path().join("t");
            let mut file = env.create(&path, FileKind::Table).unwrap();
            file.append(&[7; 8192]).unwrap();
            file.finish().unwrap();
            let file = env.open(&path, Access::Random).unwrap();
            for _ in 0..1000 {
                let read = Request::Read { file: file.clone(), offset: 0, len: 8192 };
                assert!(read_batch(&env, vec![read])[0].is_ok());
            }
        });
        assert_eq!(told, [""; 0]);
    }
}
