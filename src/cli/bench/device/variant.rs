//! The queue with options of its environment on and off, compared with itself.

use serde::Serialize;
use serde_json::Value;

use crate::cli::args::device::{BenchDevice, Engine};

/// Options of the environment that carries the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Variant {
    /// Registered buffers.
    pub(crate) registered: bool,
    /// The kernel's poll thread takes the entries.
    pub(crate) sqpoll: bool,
    /// The device is asked for completions.
    pub(crate) iopoll: bool,
    /// Rings, if not as many as threads.
    pub(crate) rings: Option<u32>,
}

/// Who does a run: an engine, and the queue in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runner {
    pub(crate) engine: Engine,
    pub(crate) variant: Variant,
}

impl Runner {
    /// An engine that has no variants, or the queue with none of its options.
    pub(crate) fn plain(engine: Engine) -> Self {
        Self { engine, variant: Variant::default() }
    }

    /// Each engine once, and the queue in every combination of its options.
    pub(crate) fn all(args: &BenchDevice) -> Vec<Self> {
        let mut all = Vec::new();
        for &engine in &args.engines {
            let variants = match engine {
                Engine::Queue => Variant::all(args),
                Engine::Pread | Engine::PreadPool | Engine::Fio => vec![Variant::default()],
            };
            for variant in variants {
                let runner = Self { engine, variant };
                if !all.contains(&runner) {
                    all.push(runner);
                }
            }
        }
        all
    }

    /// The engine's name, and what is on: `queue+reg+sq/4`.
    pub(crate) fn name(&self) -> String {
        let Variant { registered, sqpoll, iopoll, rings } = self.variant;
        let mut name = self.engine.name().to_owned();
        for (on, short) in [(registered, "+reg"), (sqpoll, "+sq"), (iopoll, "+io")] {
            name.push_str(if on { short } else { "" });
        }
        match rings {
            Some(rings) => format!("{name}/{rings}"),
            None => name,
        }
    }
}

impl Variant {
    fn all(args: &BenchDevice) -> Vec<Self> {
        let off_or = |given: &[bool]| if given.is_empty() { vec![false] } else { given.to_vec() };
        let rings: Vec<Option<u32>> = match &args.rings[..] {
            [] => vec![None],
            given => given.iter().copied().map(Some).collect(),
        };
        let mut all = Vec::new();
        for registered in off_or(&args.registered) {
            for sqpoll in off_or(&args.sqpoll) {
                for iopoll in off_or(&args.iopoll) {
                    for &rings in &rings {
                        all.push(Self { registered, sqpoll, iopoll, rings });
                    }
                }
            }
        }
        all
    }

    /// What the counters of some runs say about each option that is on.
    pub(crate) fn in_use(&self, reports: &[&Value]) -> Vec<String> {
        let counter = |name: &str| -> u64 {
            reports.iter().filter_map(|report| report["counters"][name].as_u64()).sum()
        };
        let entries = counter("ring_reads") + counter("ring_writes");
        [
            (self.registered, "registered buffers", "fixed_used"),
            (self.sqpoll, "sqpoll", "sqpoll_sqes"),
            (self.iopoll, "iopoll", "iopoll_reads"),
        ]
        .into_iter()
        .filter(|(on, ..)| *on)
        .map(|(_, option, name)| match counter(name) {
            0 => {
                let why = reports.iter().find_map(|report| why_not(report, option));
                let why = why.map_or_else(String::new, |why| format!(" ({why})"));
                format!("{option} NOT IN USE: {name} stayed 0 in {entries} entries{why}")
            }
            used => format!("{option} used by {used} of {entries} entries ({name})"),
        })
        .collect()
    }
}

/// What the environment says why it lacks an option.
fn why_not<'r>(report: &'r Value, option: &str) -> Option<&'r str> {
    let facts = report["facts"].as_array()?;
    facts.iter().find(|fact| fact["name"] == option)?["why"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_tell_what_is_on() {
        let name = |variant| Runner { engine: Engine::Queue, variant }.name();
        assert_eq!(name(Variant::default()), "queue");
        let all = Variant { registered: true, sqpoll: true, iopoll: true, rings: Some(4) };
        assert_eq!(name(all), "queue+reg+sq+io/4");
    }

    #[test]
    fn an_option_whose_counter_stayed_0_is_told() {
        let variant = Variant { registered: true, sqpoll: true, ..Variant::default() };
        let report = json!({
            "counters": { "ring_reads": 7, "ring_writes": 1, "sqpoll_sqes": 5 },
            "facts": [{ "name": "registered buffers", "why": "ENOMEM: raise RLIMIT_MEMLOCK" }],
        });
        let said = variant.in_use(&[&report, &report]);
        let expected = [
            "registered buffers NOT IN USE: fixed_used stayed 0 in 16 entries (ENOMEM: raise \
             RLIMIT_MEMLOCK)",
            "sqpoll used by 10 of 16 entries (sqpoll_sqes)",
        ];
        assert_eq!(said, expected);
        assert!(Variant::default().in_use(&[&report]).is_empty());
    }
}
