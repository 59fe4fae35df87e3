//! `CountEnv`: counts what an engine asks of its environment, so that tests can assert costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::wrap::{Call, Hook, Op, Wrapped};
use crate::{Env, EnvReport};

/// How often an operation was called, and what it moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls, failed ones included.
    pub calls: u64,
    /// Of these, calls that came through a queue.
    pub queued: u64,
    /// Of these, calls that failed.
    pub failed: u64,
    /// Bytes that successful calls read, wrote, appended or announced.
    pub bytes: u64,
}

impl Count {
    fn combine(self, other: Count, with: impl Fn(u64, u64) -> u64) -> Count {
        Count {
            calls: with(self.calls, other.calls),
            queued: with(self.queued, other.queued),
            failed: with(self.failed, other.failed),
            bytes: with(self.bytes, other.bytes),
        }
    }
}

type PerOp = [Count; Op::COUNT];

/// A snapshot of a [`CountEnv`]'s counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the extension of the file's path, the empty one for paths without.
    by_extension: BTreeMap<String, PerOp>,
}

impl Counts {
    /// All calls of `op`.
    pub fn of(&self, op: Op) -> Count {
        let all = self.by_extension.values().map(|counts| counts[op as usize]);
        all.fold(Count::default(), |sum, count| sum.combine(count, u64::saturating_add))
    }

    /// The calls of `op` on paths with this extension (`"log"`; the empty one for none).
    pub fn of_extension(&self, op: Op, extension: &str) -> Count {
        self.by_extension.get(extension).map_or(Count::default(), |counts| counts[op as usize])
    }

    /// What was counted after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        let mut difference = self.clone();
        for (extension, counts) in &mut difference.by_extension {
            if let Some(before) = earlier.by_extension.get(extension) {
                for (count, before) in counts.iter_mut().zip(before) {
                    *count = count.combine(*before, u64::saturating_sub);
                }
            }
        }
        difference
    }
}

/// A wrapper that counts every call and changes nothing. A clone shares the counters.
#[derive(Clone, Debug)]
pub struct CountEnv {
    wrapped: Wrapped<Counter>,
}

#[derive(Debug, Default)]
struct Counter {
    counts: Mutex<Counts>,
}

impl CountEnv {
    /// Counts the calls that go to `inner`.
    pub fn new(inner: Arc<dyn Env>) -> Self {
        Self { wrapped: Wrapped::new(inner, Counter::default()) }
    }

    /// The counters now.
    pub fn counts(&self) -> Counts {
        self.wrapped.hook().counts.lock().clone()
    }
}

impl Hook for Counter {
    const NAME: &'static str = "count";

    fn after(&self, call: &Call<'_>, succeeded: bool) {
        let extension = call.path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let mut counts = self.counts.lock();
        let per_op = match counts.by_extension.get_mut(extension) {
            Some(per_op) => per_op,
            None => counts.by_extension.entry(extension.to_owned()).or_default(),
        };
        let count = &mut per_op[call.op as usize];
        count.calls += 1;
        count.queued += u64::from(call.queued);
        if succeeded {
            // A hint may announce any length.
            count.bytes = count.bytes.saturating_add(call.len);
        } else {
            count.failed += 1;
        }
    }

    fn report(&self, report: &mut EnvReport) {
        let counts = self.counts.lock();
        for (name, op) in [("counted_reads", Op::Read), ("counted_appends", Op::Append)] {
            report.counters.insert(name, counts.of(op).calls);
        }
    }
}

crate::wrap::forward_env!(CountEnv, wrapped);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Access, FileKind, MemEnv, Request, read_batch};

    #[test]
    fn calls_bytes_failures_and_queued_reads_are_counted_by_extension() {
        let env = CountEnv::new(Arc::new(MemEnv::new()));
        let mut file = env.create(Path::new("a.log"), FileKind::Log).unwrap();
        file.append(&[1; 100]).unwrap();
        file.append(&[1; 50]).unwrap();
        file.handle().sync().unwrap();
        file.finish().unwrap();
        let before = env.counts();
        assert_eq!(before.of(Op::Append), Count { calls: 2, bytes: 150, ..Count::default() });
        assert_eq!(before.of_extension(Op::Sync, "log").calls, 1);
        assert_eq!(before.of_extension(Op::Sync, "sst").calls, 0);
        let file = env.open(Path::new("a.log"), Access::Random).unwrap();
        assert!(env.open(Path::new("b.log"), Access::Random).is_err());
        let request = Request::Read { file: Arc::clone(&file), offset: 0, len: 10 };
        assert!(read_batch(&env, vec![request]).pop().unwrap().is_ok());
        file.read_exact_at(&mut [0; 5], 0).unwrap();
        assert!(file.read_exact_at(&mut [0; 500], 0).is_err());
        let counts = env.counts().since(&before);
        assert_eq!(counts.of(Op::Read), Count { calls: 3, queued: 1, failed: 1, bytes: 15 });
        assert_eq!(counts.of(Op::Open), Count { calls: 2, failed: 1, ..Count::default() });
        assert_eq!(counts.of(Op::Append), Count::default());
        assert_eq!(env.report().counter("reads"), 3, "each reached the environment inside");
    }
}
