//! Putting the rings of an environment together, with what its options add to them.

use super::builder::IoUringEnvBuilder;
use super::kernel::{
    Abilities, Extras, KernelRing, LADDER, PollThread, Registered, RingFlags, SetupError,
};
use super::machine::MachineFacts;
use super::pool::{MakeRing, Pool};
use super::ring::{Errno, Ring};
use super::setup::{Detected, detect};
use super::unavailable::Unavailable;
use crate::EnvReport;
use crate::buffer::{Arena, ArenaPool};
use crate::os_file::Os;
use crate::sync::Arc;

/// The rings of an environment.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) pool: Pool,
    /// Rings for direct reads that ask the device for completions.
    pub(super) asking: Option<Pool>,
    /// Memory that rings are told of when they are first used.
    pub(super) registered: Option<Arc<Registered>>,
    /// Flags that this kernel takes for a ring without extras.
    pub(super) plain_flags: RingFlags,
    pub(super) facts: RingFacts,
}

/// How the rings were made.
#[derive(Clone, Debug)]
pub(super) struct RingFacts {
    entries: usize,
    flags: RingFlags,
    abilities: Abilities,
    poll_thread: Option<Arc<PollThread>>,
    fixed: Option<Fixed>,
}

/// What became of the wish for registered memory.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    asked: usize,
    got: Result<usize, Errno>,
}

/// Makes the rings that the options ask for.
pub(super) fn assemble(options: &IoUringEnvBuilder) -> Result<Assembled, Unavailable> {
    let entries = options.ring_entries;
    let cause = |error| Unavailable::from_setup(error, &MachineFacts::read());
    let fixed = options.fixed_buffers.is_some();
    let mut extras = Extras { fixed, ..Extras::default() };
    let Detected { mut ring, flags: plain_flags, abilities } = detect(entries, &extras)?;
    let (mut flags, mut abilities) = (plain_flags, abilities);
    if let Some(idle) = options.sqpoll {
        let thread = PollThread::start(idle).map_err(|errno| cause(SetupError::Setup(errno)))?;
        extras.poll_thread = Some(Arc::new(thread));
        Detected { ring, flags, abilities } = detect(entries, &extras)?;
    }
    let facts = RingFacts {
        entries: ring.entries(),
        flags,
        abilities,
        poll_thread: extras.poll_thread.clone(),
        fixed: None,
    };
    let count = options.ring_count();
    let (first, make_more) = (Box::new(ring) as Box<dyn Ring>, make(entries, flags, extras));
    #[cfg(feature = "test-util")]
    let (first, make_more) = super::short::shortened(options.max_transfer, first, make_more);
    let pool = Pool::new(count, Some(first), make_more);
    let pool = pool.map_err(cause)?;
    let asking = options.iopoll.then(|| asking_pool(count, entries, plain_flags, fixed));
    let asking = asking.transpose().map_err(cause)?;
    Ok(Assembled { pool, asking, registered: None, plain_flags, facts })
}

/// Rings for direct reads that ask the device for completions.
pub(super) fn asking_pool(
    count: usize,
    entries: u32,
    flags: RingFlags,
    fixed: bool,
) -> Result<Pool, SetupError> {
    let extras = Extras { fixed, asks_device: true, poll_thread: None };
    Pool::new(count, None, make(entries, flags, extras))
}

fn make(entries: u32, flags: RingFlags, extras: Extras) -> Box<MakeRing> {
    Box::new(move || {
        let (ring, _) = KernelRing::new(entries, flags, &extras)?;
        Ok(Box::new(ring) as Box<dyn Ring>)
    })
}

impl Assembled {
    /// Registers `asked` bytes of memory, or less, for the rings and for the files of `os`. After
    /// the rings were made: where little may be locked they come first.
    pub(super) fn register(&mut self, asked: Option<usize>, os: &Os) {
        let Some(asked) = asked else { return };
        let registered = Registered::new(asked);
        let got = registered.as_ref().map(|memory| memory.arena().len()).map_err(|errno| *errno);
        self.facts.fixed = Some(Fixed { asked, got });
        self.registered = registered.ok();
        os.use_fixed(self.registered.as_ref().map(|memory| ArenaPool::new(memory.arena())));
    }
}

impl RingFacts {
    pub(super) fn add_to(&self, report: &mut EnvReport, pool: &Pool, asking: Option<&Pool>) {
        let made = format!("{} of {}", pool.size(), pool.asked());
        report.fact("rings", made, pool.shortfall().map(|error| reason(error.errno())));
        report.fact("ring entries", self.entries.to_string(), None);
        let (flags, best) = (self.flags.to_string(), LADDER[0]);
        let why = (self.flags != best).then(|| format!("this kernel refused {best}"));
        report.fact("ring flags", flags, why);
        let restricted = if self.abilities.restricted { "yes" } else { "no" };
        report.fact("rings restricted to reads and writes", restricted, None);
        if let Some(thread) = &self.poll_thread {
            let what = format!(
                "by a thread of the kernel, which sleeps after {} ms without an entry; no \
                 COOP_TASKRUN",
                thread.idle_ms()
            );
            report.fact("submission", what, None);
        }
        if let Some(pool) = asking {
            let made = format!("{} of {}", pool.size(), pool.asked());
            let why = pool.shortfall().map(|error| reason(error.errno()));
            report.fact("rings that ask the device", made, why);
        }
        if let Some(Fixed { asked, got }) = self.fixed {
            let whole = asked / Arena::UNIT * Arena::UNIT;
            let less = got.is_ok_and(|got| got < whole).then_some(libc::ENOMEM);
            let what = format!("{} of {} KiB", got.unwrap_or(0) >> 10, asked >> 10);
            report.fact("registered buffers", what, got.err().or(less).map(reason));
        }
    }
}

/// Why something was refused.
pub(super) fn reason(errno: Errno) -> String {
    match errno {
        libc::ENOMEM => "the limit of locked memory".to_owned(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}
