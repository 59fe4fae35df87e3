//! What an environment says about itself: what is in use, why, and how often everything happened.

use std::collections::BTreeMap;
use std::fmt;

/// One line of an [`EnvReport`]: a setting or finding, its value, and the reason if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What it is about, such as `"reads"` or `"ring flags"`.
    pub name: &'static str,
    /// What is in use.
    pub value: String,
    /// Why, where that is not plain: the fallback taken and its cause.
    pub why: Option<String>,
}

/// A snapshot of an environment's mode and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvReport {
    /// The environment's name: `"posix"`, `"posix-serial"`, `"io_uring"`, `"mem"`, ...
    pub env: &'static str,
    /// What is really in use.
    pub facts: Vec<Fact>,
    /// Counters since the environment was made. Names ending in `_peak` or `_alive` are levels, not
    /// counts; they are not subtracted by [`EnvReport::since`].
    pub counters: BTreeMap<&'static str, u64>,
}

impl EnvReport {
    /// An empty report of the environment called `env`.
    pub fn new(env: &'static str) -> Self {
        Self { env, facts: Vec::new(), counters: BTreeMap::new() }
    }

    /// Adds a fact.
    pub fn fact(&mut self, name: &'static str, value: impl Into<String>, why: Option<String>) {
        self.facts.push(Fact { name, value: value.into(), why });
    }

    /// The value of a counter; zero if this environment has none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// The same report with the counters' growth since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &EnvReport) -> EnvReport {
        let mut difference = self.clone();
        for (name, value) in &mut difference.counters {
            if !name.ends_with("_peak") && !name.ends_with("_alive") {
                *value = value.saturating_sub(earlier.counter(name));
            }
        }
        difference
    }
}

impl fmt::Display for EnvReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "environment: {}", self.env)?;
        for fact in &self.facts {
            write!(f, "  {}: {}", fact.name, fact.value)?;
            match &fact.why {
                Some(why) => writeln!(f, " ({why})")?,
                None => writeln!(f)?,
            }
        }
        for (name, value) in self.counters.iter().filter(|(_, value)| **value > 0) {
            writeln!(f, "  {name} = {value}")?;
        }
        Ok(())
    }
}
