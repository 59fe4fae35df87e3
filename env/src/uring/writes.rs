//! Who writes the files of an io_uring environment.

use std::thread;
use std::time::Duration;

use super::breaker::Breaker;
use super::builder::IoUringEnvBuilder;
use super::kernel::{
    Extras, KernelRing, Purpose, Registered, RingFlags, SetupError, with_memory_back_off,
};
use super::machine::{MachineFacts, may_lose_wake_ups};
use super::reactor::{EventBell, Handover, Manner, NoReactor, PER_TABLE, Reactor, SHORTEST};
use super::ring::Ring;
use super::unavailable::Unavailable;
use crate::os_file::Os;
use crate::posix::outlet::Outlet;
use crate::posix::writable::Shared;
use crate::sync::Arc;
use crate::trace;
use crate::{EnvReport, FileKind};

/// The most entries of the reactor's ring, and so of its writes in flight.
const ENTRIES: u32 = 256;
/// The most kernel worker threads that write for the reactor.
const WORKERS: usize = 4;

/// Who makes the writes of appended files.
///
/// The *reactor* is a thread of the environment with a ring of its own. It keeps several writes of
/// a file in the kernel at once while the thread that appends goes on. Handing a write over costs
/// two thread switches, so it pays for large writes with work between them and for nothing else.
/// Syncs are made on the calling thread in every case, when all writes before them have completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePath {
    /// Tables go through the reactor in blocks of 1 MiB, up to 4 of a file at once, and what is
    /// flushed before a block is full if it has 64 KiB; all other writes are made on the calling
    /// thread, and so are for a while the blocks of a table whose writer was faster than the
    /// reactor. Where the reactor cannot work, or there is one processor only, all appends are, and
    /// the report says why. Writes in place past the page cache that are pushed to a queue go to a
    /// ring of the queue's own in one submission.
    #[default]
    Auto,
    /// Every append goes through the reactor, small ones to logs and manifests too, whose caller
    /// waits for its own write: slower, and meant for comparing. Buffered writes in place that are
    /// pushed to a queue go to a ring of the queue's own in one submission, where otherwise they
    /// are made as they are pushed. Without a working reactor the environment is not built.
    Reactor,
    /// Every write is made on the calling thread, and there is no reactor.
    Caller,
}

/// The write side of an environment.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    path: WritePath,
    early_sync: Option<u64>,
    reactor: Option<Arc<Reactor>>,
    /// Why there is no reactor though it was not ruled out.
    why_not: Option<String>,
}

impl Writes {
    /// Starts the reactor if it is to be used on a kernel of this `release`. If `patient` it waits
    /// a little for locked memory.
    pub(super) fn start(
        release: &str,
        options: &IoUringEnvBuilder,
        flags: RingFlags,
        patient: bool,
        registered: Option<&Arc<Registered>>,
        os: &Arc<Os>,
        breaker: &Breaker,
    ) -> Result<Self, Unavailable> {
        let path = options.write_path;
        let early_sync = options.early_sync;
        let off = |why_not: Option<String>| {
            if let Some(why) = &why_not {
                trace::no_reactor(why);
            }
            Ok(Self { path, early_sync, reactor: None, why_not })
        };
        if path == WritePath::Caller {
            return off(None);
        }
        if path == WritePath::Auto
            && let Some(why) = not_worth_it(release)
        {
            return off(Some(why));
        }
        let entries = options.ring_entries.min(ENTRIES);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = u32::try_from(cores.min(WORKERS)).expect("at most four");
        let extras = Extras { fixed: registered.is_some(), ..Extras::default() };
        let registered = registered.cloned();
        let make_now = move |bell: &EventBell| {
            let purpose = Purpose::Reactor { bell: bell.fd(), workers };
            let (mut ring, _) = KernelRing::for_purpose(entries, flags, &extras, purpose)?;
            ring.nop_on_worker().map_err(SetupError::Worker)?;
            if let Some(memory) = &registered {
                ring.learn(memory);
            }
            Ok(ring)
        };
        let make = move |bell: &EventBell| {
            if patient { with_memory_back_off(|| make_now(bell)) } else { make_now(bell) }
        };
        match Reactor::start(os, breaker, options.write_budget, make) {
            Ok(reactor) => Ok(Self { path, early_sync, reactor: Some(reactor), why_not: None }),
            Err(why) if path == WritePath::Reactor => Err(unavailable(why)),
            Err(why) => {
                let cause = unavailable(why).to_string();
                let first = cause.lines().next().unwrap_or_default().to_owned();
                off(Some(first))
            }
        }
    }

    /// What a new file writes through; nothing if it writes on the calling thread.
    pub(super) fn outlet(&self, kind: FileKind, file: &Arc<Shared>) -> Option<Box<dyn Outlet>> {
        let reactor = self.reactor.as_ref()?;
        let manner = match (self.path, kind) {
            (WritePath::Auto | WritePath::Reactor, FileKind::Table) => Manner {
                depth: PER_TABLE,
                shortest: if self.path == WritePath::Auto { SHORTEST } else { 0 },
                waits: false,
                // Direct writes are the faster the more of them are out.
                rests: self.path == WritePath::Auto && file.direct().is_none(),
                early_sync: self.early_sync.filter(|_| file.direct().is_none()),
            },
            // A younger record must not be there without an older one.
            (WritePath::Reactor, _) => {
                Manner { depth: 1, shortest: 0, waits: true, rests: false, early_sync: None }
            }
            (WritePath::Auto | WritePath::Caller, _) => return None,
        };
        Some(Box::new(Handover::new(reactor, file, manner)))
    }

    /// See [`IoUringEnv::shutdown`](super::IoUringEnv::shutdown).
    pub(super) fn shut_down(&self, patience: Duration) -> bool {
        self.reactor.as_ref().is_none_or(|reactor| reactor.shut_down(patience))
    }

    /// The write side of an environment that has this reactor.
    #[cfg(test)]
    pub(super) fn of(reactor: &Arc<Reactor>) -> Self {
        let reactor = Some(Arc::clone(reactor));
        Self { path: WritePath::Auto, early_sync: None, reactor, why_not: None }
    }

    /// The reactor, if there is one.
    pub(super) fn reactor(&self) -> Option<Arc<Reactor>> {
        self.reactor.clone()
    }

    pub(super) fn add_facts(&self, report: &mut EnvReport) {
        let alive = self.reactor.as_ref();
        let alive = alive.is_some_and(|reactor| reactor.is_ours() && reactor.is_alive());
        report.counters.insert("reactor_alive", u64::from(alive));
        let value = match self.path {
            _ if self.reactor.is_none() => "on the calling thread".to_owned(),
            WritePath::Reactor => {
                format!("all through the reactor, {PER_TABLE} of a table at once")
            }
            WritePath::Auto | WritePath::Caller => format!(
                "blocks of tables through the reactor, {PER_TABLE} of a table at once; others on \
                 the calling thread"
            ),
        };
        let ended = (self.reactor.is_some() && !alive)
            .then(|| "the reactor has ended: on the calling thread".to_owned());
        report.fact("writes", value, ended.or_else(|| self.why_not.clone()));
        if let Some(reactor) = &self.reactor {
            let (used, limit) = (reactor.budget().used() >> 10, reactor.budget().limit() >> 10);
            report.fact("write budget", format!("{used} of {limit} KiB in use"), None);
        }
    }
}

/// Why the reactor would do harm here, if it would.
fn not_worth_it(release: &str) -> Option<String> {
    if thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        return Some("there is one processor only".to_owned());
    }
    may_lose_wake_ups(release).then(|| {
        format!(
            "Linux {release} may lose wake-ups of ring writes, unless that was patched; \
             WritePath::Reactor uses it all the same"
        )
    })
}

fn unavailable(why: NoReactor) -> Unavailable {
    match why {
        NoReactor::Ring(error) => Unavailable::from_setup(error, &MachineFacts::read()),
        NoReactor::Thread(errno) => Unavailable::Thread(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::super::IoUringEnv;
    use super::super::kernel::LADDER;
    use super::super::tests::refused;
    use super::*;
    use crate::sys::KernelSys;

    fn start(release: &str, path: WritePath) -> Writes {
        let (os, options) = (Os::new(Arc::new(KernelSys)), IoUringEnv::builder().write_path(path));
        let plain = LADDER[LADDER.len() - 1];
        Writes::start(release, &options, plain, false, None, &os, &Breaker::default()).unwrap()
    }

    fn said(writes: &Writes) -> (u64, String) {
        let mut report = EnvReport::new("io_uring");
        writes.add_facts(&mut report);
        (report.counter("reactor_alive"), report.to_string())
    }

    /// URING-36: the release decides about this alone, and the caller may decide otherwise.
    #[test]
    fn a_release_that_loses_wake_ups_has_a_reactor_only_for_who_insists() {
        if refused() {
            return;
        }
        let one_core = thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        for release in ["5.15.2", "5.15.0-88-generic", "5.14.0-362.el9", "5.4"] {
            let (alive, text) = said(&start(release, WritePath::Auto));
            assert_eq!(alive, 0, "{release}: {text}");
            assert!(text.contains("writes: on the calling thread"), "{text}");
            let why = format!("Linux {release} may lose wake-ups");
            assert!(
                one_core || text.contains(&why) && text.contains("WritePath::Reactor"),
                "{text}"
            );
            let (alive, text) = said(&start(release, WritePath::Reactor));
            assert_eq!(alive, 1, "{release}: {text}");
        }
        for release in ["5.15.3", "6.1.0-13-amd64", "6.18.44-custom", "garbage", ""] {
            let (alive, text) = said(&start(release, WritePath::Auto));
            assert_eq!(alive, u64::from(!one_core), "{release}: {text}");
        }
    }
}
