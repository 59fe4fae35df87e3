//! What this machine would make of the options of the environment that not every machine can
//! do, found out without building one.

use std::fmt;
use std::thread;

use super::assembly::reason;
use super::builder::SQPOLL_CORES;
use super::kernel::Registered;
use super::unavailable::Unavailable;
use crate::os_file::polling;

/// How much memory is tried to be registered.
const TRIED: usize = 16 << 20;

/// What would become of one option of [`IoUringEnvBuilder`](crate::IoUringEnvBuilder).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The option's name.
    pub option: &'static str,
    /// Whether it would do what it is for.
    pub possible: bool,
    /// Why, or why not and what would help.
    pub why: String,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.possible { "possible" } else { "not possible" };
        write!(f, "{}: {verdict}: {}", self.option, self.why)
    }
}

/// Tries what can be tried, where rings are available at all.
pub(crate) fn offers(unavailable: Option<&Unavailable>) -> Vec<Offer> {
    if unavailable.is_some() {
        let none =
            |option| Offer { option, possible: false, why: "io_uring is not available".to_owned() };
        return ["fixed_buffers", "sqpoll", "iopoll"].map(none).into();
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    vec![fixed_buffers(), sqpoll(cores), iopoll(&polling::disks())]
}

fn fixed_buffers() -> Offer {
    let (possible, why) = match Registered::new(TRIED) {
        Ok(memory) if memory.arena().len() == TRIED => {
            (true, format!("at least {} MiB, the size tried, can be registered", TRIED >> 20))
        }
        Ok(memory) => {
            let (some, all) = (memory.arena().len() >> 20, TRIED >> 20);
            (true, format!("{some} of {all} MiB can be registered, by {}", reason(libc::ENOMEM)))
        }
        Err(errno) => (false, format!("2 MiB cannot be registered: {}", reason(errno))),
    };
    Offer { option: "fixed_buffers", possible, why }
}

fn sqpoll(cores: usize) -> Offer {
    let possible = cores >= SQPOLL_CORES;
    let rest = if possible {
        String::new()
    } else {
        format!(", and it needs {SQPOLL_CORES} unless allow_few_cores is set")
    };
    Offer { option: "sqpoll", possible, why: format!("{cores} processors{rest}") }
}

fn iopoll(disks: &[(String, bool)]) -> Offer {
    let asked: Vec<&str> =
        disks.iter().filter(|(_, polls)| *polls).map(|(name, _)| name.as_str()).collect();
    let why = if asked.is_empty() {
        "no disk has poll queues; a driver makes them when told to: nvme.poll_queues=N".to_owned()
    } else {
        format!("with direct_reads, on {}", asked.join(", "))
    };
    Offer { option: "iopoll", possible: !asked.is_empty(), why }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    #[test]
    fn processors_and_disks_decide_about_polling() {
        assert!(sqpoll(8).possible && !sqpoll(7).possible);
        assert!(
            sqpoll(2).to_string().contains("sqpoll: not possible: 2 processors, and it needs 8")
        );
        let disks = [("sda".to_owned(), false), ("nvme0n1".to_owned(), true)];
        let offer = iopoll(&disks);
        assert_eq!(offer.to_string(), "iopoll: possible: with direct_reads, on nvme0n1");
        assert!(iopoll(&disks[..1]).to_string().contains("nvme.poll_queues=N"));
    }

    #[test]
    fn every_option_has_its_line_with_rings_and_without() {
        let without = offers(Some(&Unavailable::NotBuilt));
        assert!(without.iter().all(|offer| !offer.possible));
        if refused() {
            return;
        }
        let with = offers(None);
        let names = |offers: &[Offer]| offers.iter().map(|o| o.option).collect::<Vec<_>>();
        assert_eq!(names(&with), names(&without));
        assert!(with.iter().all(|offer| !offer.why.is_empty()));
    }
}
