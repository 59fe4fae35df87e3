//! `FaultEnv`: makes chosen operations fail, lie, stop half-way or wait, and holds unsynced bytes
//! back from the environment inside.
//!
//! It injects what an environment may report or what a device may do. Short transfers and signals
//! are not among them: those never leave an environment, so they are scripted at the seam of
//! system calls below it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::wrap::{Call, Hook, Op, Verdict, Wrapped};
use crate::{Env, EnvReport, Error, Outcome};

mod hold;
#[cfg(test)]
mod tests;

use hold::HoldEnv;

/// What happens to an operation that a [`Fault`] applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// It fails with this errno and has no effect. A `prepare` says so, like one that fails before
    /// its sync; other operations that write leave the outcome open, as a device would.
    Error(i32),
    /// It takes effect and then fails with this errno.
    ErrorAfter(i32),
    /// A write or append writes its first so many bytes and then fails with this errno. Other
    /// operations fail without an effect.
    Short {
        /// How many bytes are written.
        bytes: u64,
        /// The error that follows.
        errno: i32,
    },
    /// It reports success and does nothing: a planted bug, or a device that lies. A dropped `sync`
    /// or `finish` of a writer still flushes. Applies only to operations that give no result.
    Drop,
    /// A read succeeds with this bit flipped, counted from the start of what was read, modulo its
    /// length.
    FlipBit(u64),
    /// It waits until the rule is released or removed, and then goes on as if nothing had been. A
    /// queued request is performed, and waits when it is popped.
    Block,
}

type Matcher = Box<dyn Fn(&Call<'_>) -> bool + Send + Sync>;

/// A rule: what happens to which operations, and how often.
///
/// Without further words it applies to every operation, for ever. Rules are tried in the order
/// they were added; the first that applies decides, but a `Block` lets the later ones decide too.
pub struct Fault {
    kind: FaultKind,
    ops: Vec<Op>,
    matchers: Vec<Matcher>,
    skip: u64,
    times: u64,
}

impl Fault {
    /// A rule that applies to everything.
    pub fn new(kind: FaultKind) -> Self {
        Self { kind, ops: Vec::new(), matchers: Vec::new(), skip: 0, times: u64::MAX }
    }

    /// Only this operation, or one of these if called again.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// Only paths (either path of a rename or link) that end like this, such as `".log"`.
    #[must_use]
    pub fn path(self, suffix: &str) -> Self {
        let suffix = suffix.to_owned();
        self.matching(move |call| {
            let ends = |path: &std::path::Path| path.to_string_lossy().ends_with(&suffix);
            ends(call.path) || call.to.is_some_and(ends)
        })
    }

    /// Only calls for which this holds.
    #[must_use]
    pub fn matching(mut self, holds: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.matchers.push(Box::new(holds));
        self
    }

    /// Not the first `count` operations that match.
    #[must_use]
    pub fn skip(self, count: u64) -> Self {
        Self { skip: count, ..self }
    }

    /// At most so many times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { times: count, ..self }
    }

    /// Only the `n`-th operation that matches, counted from 1.
    #[must_use]
    pub fn nth(self, n: u64) -> Self {
        self.skip(n.saturating_sub(1)).times(1)
    }

    fn matches(&self, call: &Call<'_>) -> bool {
        let gives = matches!(
            call.op,
            Op::Open
                | Op::OpenRw
                | Op::Create
                | Op::Metadata
                | Op::List
                | Op::FreeSpace
                | Op::Lock
                | Op::Read
        );
        let possible = match self.kind {
            FaultKind::Drop => !gives,
            FaultKind::FlipBit(_) => call.op == Op::Read,
            _ => true,
        };
        possible
            && (self.ops.is_empty() || self.ops.contains(&call.op))
            && self.matchers.iter().all(|holds| holds(call))
    }

    fn verdict(&self, call: &Call<'_>) -> Verdict {
        let error = |errno| {
            let error = Error::from_errno(errno, call.op.name(), call.path);
            if matches!(call.op, Op::Read | Op::Write | Op::Append) {
                error.at(call.offset)
            } else {
                error
            }
        };
        match self.kind {
            FaultKind::Error(errno) if call.op == Op::Prepare => {
                Verdict::Fail(error(errno).with_outcome(Outcome::NotApplied))
            }
            FaultKind::Error(errno) => Verdict::Fail(error(errno)),
            FaultKind::ErrorAfter(errno) => Verdict::FailAfter(error(errno)),
            FaultKind::Short { bytes, errno } => Verdict::Short(bytes, error(errno)),
            FaultKind::Drop => Verdict::Skip,
            FaultKind::FlipBit(bit) => Verdict::Flip(bit),
            FaultKind::Block => Verdict::Go,
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, ops, skip, times, .. } = self;
        write!(f, "Fault({kind:?} on {ops:?}, skip {skip}, times {times})")
    }
}

/// A rule in force.
#[derive(Debug)]
struct Rule {
    fault: Fault,
    seen: AtomicU64,
    fired: AtomicU64,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    open: bool,
    waiting: u64,
}

impl Rule {
    /// Whether the rule fires for this call.
    fn fires(&self, call: &Call<'_>) -> bool {
        if !self.fault.matches(call) {
            return false;
        }
        // Relaxed: the counters order nothing but themselves.
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        let fires = number >= self.fault.skip && number - self.fault.skip < self.fault.times;
        self.fired.fetch_add(u64::from(fires), Ordering::Relaxed);
        fires
    }

    fn wait(&self) {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.changed.notify_all();
        while !gate.open {
            self.changed.wait(&mut gate);
        }
        gate.waiting -= 1;
    }
}

/// The handle of a rule. Dropping it leaves the rule in force.
#[derive(Clone, Debug)]
pub struct FaultHandle {
    rule: Arc<Rule>,
    rules: Arc<Mutex<Vec<Arc<Rule>>>>,
}

impl FaultHandle {
    /// How many operations matched, whether the rule then fired or not.
    pub fn seen(&self) -> u64 {
        self.rule.seen.load(Ordering::Relaxed)
    }

    /// How often the rule fired.
    pub fn fired(&self) -> u64 {
        self.rule.fired.load(Ordering::Relaxed)
    }

    /// Ends the rule: no later operation meets it, and those that wait go on.
    pub fn remove(&self) {
        self.rules.lock().retain(|rule| !Arc::ptr_eq(rule, &self.rule));
        self.release();
    }

    /// Lets go every operation that waits at a `Block`, and every later one.
    pub fn release(&self) {
        self.rule.gate.lock().open = true;
        self.rule.changed.notify_all();
    }

    /// Waits until at least `count` operations wait at a `Block`.
    pub fn wait_until_blocked(&self, count: u64) {
        let mut gate = self.rule.gate.lock();
        while gate.waiting < count {
            self.rule.changed.wait(&mut gate);
        }
    }
}

/// A wrapper that injects faults by rules. A clone shares them.
#[derive(Clone, Debug)]
pub struct FaultEnv {
    wrapped: Wrapped<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    rules: Arc<Mutex<Vec<Arc<Rule>>>>,
    fired: AtomicU64,
}

impl FaultEnv {
    /// No faults yet.
    pub fn new(inner: Arc<dyn Env>) -> Self {
        Self { wrapped: Wrapped::new(inner, Rules::default()) }
    }

    /// No faults yet, and bytes reach `inner` only when they are synced.
    ///
    /// Whoever reads through this environment sees them before; in `inner` they are missing. So a
    /// real process on a real disk can be "cut from power" by killing it. Only bytes that are
    /// appended are held: names, prepared zeros and writes in place reach `inner` at once.
    pub fn holding(inner: Arc<dyn Env>) -> Self {
        Self::new(Arc::new(HoldEnv::new(inner)))
    }

    /// Puts a rule in force, after the earlier ones.
    pub fn add(&self, fault: Fault) -> FaultHandle {
        let rule = Arc::new(Rule {
            fault,
            seen: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            gate: Mutex::default(),
            changed: Condvar::new(),
        });
        let rules = Arc::clone(&self.wrapped.hook().rules);
        rules.lock().push(Arc::clone(&rule));
        FaultHandle { rule, rules }
    }

    /// Ends every rule.
    pub fn clear(&self) {
        let rules = std::mem::take(&mut *self.wrapped.hook().rules.lock());
        for rule in rules {
            rule.gate.lock().open = true;
            rule.changed.notify_all();
        }
    }
}

impl Rules {
    fn current(&self) -> Vec<Arc<Rule>> {
        // Copied, because a rule may block and because its closure may use the environment.
        self.rules.lock().clone()
    }
}

impl Hook for Rules {
    const NAME: &'static str = "fault";

    fn before(&self, call: &Call<'_>) -> Verdict {
        for rule in self.current() {
            let is_block = rule.fault.kind == FaultKind::Block;
            if (is_block && call.queued) || !rule.fires(call) {
                continue;
            }
            self.fired.fetch_add(1, Ordering::Relaxed);
            if is_block {
                rule.wait();
            } else {
                return rule.fault.verdict(call);
            }
        }
        Verdict::Go
    }

    fn after(&self, call: &Call<'_>, _succeeded: bool) {
        if call.queued {
            for rule in self.current() {
                if rule.fault.kind == FaultKind::Block && rule.fires(call) {
                    self.fired.fetch_add(1, Ordering::Relaxed);
                    rule.wait();
                }
            }
        }
    }

    fn report(&self, report: &mut EnvReport) {
        report.counters.insert("faults_fired", self.fired.load(Ordering::Relaxed));
    }
}

crate::wrap::forward_env!(FaultEnv, wrapped);
