//! Detection: is there an io_uring here that works, and with which flags?
//!
//! The order is: setup with the ladder of flags, required features, opcode probe, a NOP, and a READ
//! of a temporary file whose bytes are compared. The last decides: a seccomp filter may allow the
//! setup and deny the entering, and an opcode probe knows nothing of filters.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::kernel::{
    Abilities, Extras, KernelRing, LADDER, RingFlags, SetupError, with_memory_back_off,
};
use super::machine::MachineFacts;
use super::ring::{Entry, Errno, Ring, Work};
use super::unavailable::{SelfTestStep, Unavailable};

/// Attempts of the self-test's read: a signal may interrupt or cancel the first ones.
const SELF_TEST_ATTEMPTS: u32 = 8;

/// A ring that passed every test, and how it was made.
#[derive(Debug)]
pub(crate) struct Detected {
    pub(crate) ring: KernelRing,
    pub(crate) flags: RingFlags,
    pub(crate) abilities: Abilities,
}

/// Finds out whether io_uring works here, with rings of `entries`.
pub(crate) fn detect(entries: u32, extras: &Extras) -> Result<Detected, Unavailable> {
    let make = |flags| with_memory_back_off(|| KernelRing::new(entries, flags, extras));
    let climbed = climb(make);
    let ((mut ring, abilities), flags) =
        climbed.map_err(|error| Unavailable::from_setup(error, &MachineFacts::read()))?;
    require(abilities)?;
    ring.nop().map_err(|errno| Unavailable::SelfTest { step: SelfTestStep::Nop, errno })?;
    read_a_file(&mut ring)?;
    Ok(Detected { ring, flags, abilities })
}

/// Tries the ladder's steps in order while they are answered with `EINVAL`.
pub(crate) fn climb<R>(
    make: impl Fn(RingFlags) -> Result<R, SetupError>,
) -> Result<(R, RingFlags), SetupError> {
    let mut last = SetupError::Setup(libc::EINVAL);
    for flags in LADDER {
        match make(flags) {
            Ok(ring) => return Ok((ring, flags)),
            Err(error) => last = error,
        }
        if last != SetupError::Setup(libc::EINVAL) {
            break;
        }
    }
    Err(last)
}

fn require(abilities: Abilities) -> Result<(), Unavailable> {
    let needed = [
        (abilities.ext_arg, "IORING_FEAT_EXT_ARG (Linux 5.11)"),
        (abilities.nodrop, "IORING_FEAT_NODROP (Linux 5.5)"),
        (abilities.submit_stable, "IORING_FEAT_SUBMIT_STABLE (Linux 5.5)"),
        (abilities.opcodes != Some(false), "the opcodes IORING_OP_READ and IORING_OP_NOP"),
    ];
    match needed.iter().find(|(there, _)| !there) {
        Some((_, name)) => Err(Unavailable::Feature(name)),
        None => Ok(()),
    }
}

/// The self-test that counts: bytes written to a file come back through the ring.
fn read_a_file(ring: &mut KernelRing) -> Result<(), Unavailable> {
    let wrong = |step, errno| Unavailable::SelfTest { step, errno };
    let written: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    let file =
        temporary_file(&written).map_err(|errno| wrong(SelfTestStep::TemporaryFile, errno))?;
    let mut last = 0;
    for _ in 0..SELF_TEST_ATTEMPTS {
        match read_once(ring, &file, written.len()) {
            Ok(read) if read == written => return Ok(()),
            Ok(_) => return Err(wrong(SelfTestStep::Read, 0)),
            Err(Failed::Completion(errno @ (libc::EINTR | libc::EAGAIN | libc::ECANCELED))) => {
                last = errno;
            }
            Err(Failed::Completion(errno) | Failed::Enter(errno)) => {
                return Err(wrong(SelfTestStep::Read, errno));
            }
        }
    }
    Err(wrong(SelfTestStep::Read, last))
}

/// A nameless file holding `bytes`: on the disk of the temporary directory if that can be, else in
/// memory.
fn temporary_file(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let on_disk = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    let fd = match on_disk {
        Ok(fd) => fd,
        Err(_) => rustix::fs::memfd_create("treering-self-test", MemfdFlags::CLOEXEC)
            .map_err(rustix::io::Errno::raw_os_error)?,
    };
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(file.into())
}

/// How one read of the self-test failed.
enum Failed {
    /// By its own completion: the ring is idle again.
    Completion(Errno),
    /// Entering the ring failed: the entry may still be in it.
    Enter(Errno),
}

fn read_once(ring: &mut KernelRing, file: &OwnedFd, len: usize) -> Result<Vec<u8>, Failed> {
    let mut memory = vec![0; len];
    let entry = Entry {
        work: Work::Read,
        fd: file.as_raw_fd(),
        start: memory.as_mut_ptr(),
        len: u32::try_from(len).expect("the self-test reads one page"),
        offset: 0,
        user_data: 0,
    };
    // SAFETY: `memory` is on the heap; the loop below returns only after the completion was
    // drained, and the one way out without it leaks `memory`.
    let pushed = unsafe { ring.push(entry) };
    assert!(pushed, "an idle ring has room");
    let mut done = Vec::new();
    while done.is_empty() {
        match ring.enter(true, 1) {
            Ok(_) | Err(libc::EINTR) => ring.drain(&mut done),
            Err(errno) => {
                std::mem::forget(memory);
                return Err(Failed::Enter(errno));
            }
        }
    }
    let result = done[0].result;
    let read = usize::try_from(result).map_err(|_| Failed::Completion(-result))?;
    memory.truncate(read);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    /// URING-22
    #[test]
    fn setup_falls_back_whatever_combination_of_flags_is_refused() {
        for bits in 0..16u32 {
            let rejected = RingFlags {
                disabled_first: bits & 1 != 0,
                submit_all: bits & 2 != 0,
                coop_taskrun: bits & 4 != 0,
                no_sqarray: bits & 8 != 0,
            };
            let made = climb(|flags| {
                if rejected.meet(flags) { Err(SetupError::Setup(libc::EINVAL)) } else { Ok(()) }
            });
            let ((), flags) = made.unwrap();
            assert!(!rejected.meet(flags), "{rejected} refused, {flags} chosen");
            let first = LADDER.iter().find(|step| !rejected.meet(**step)).unwrap();
            assert_eq!(flags, *first);
        }
    }

    #[test]
    fn an_error_other_than_einval_ends_the_ladder_at_once() {
        let calls = std::cell::Cell::new(0);
        let made = climb::<()>(|_| {
            calls.set(calls.get() + 1);
            Err(SetupError::Setup(libc::EPERM))
        });
        assert_eq!((made.unwrap_err(), calls.get()), (SetupError::Setup(libc::EPERM), 1));
    }

    #[test]
    fn every_step_of_the_ladder_reads_right_on_this_kernel() {
        if refused() {
            return;
        }
        for flags in LADDER {
            let (mut ring, abilities) = KernelRing::new(8, flags, &Extras::default()).unwrap();
            assert_eq!(abilities.restricted, flags.disabled_first, "{flags}");
            ring.nop().unwrap();
            read_a_file(&mut ring).unwrap();
        }
    }

    #[test]
    fn detection_takes_the_best_step_here_and_finds_every_feature() {
        if refused() {
            return;
        }
        let detected = detect(64, &Extras::default()).unwrap();
        assert_eq!(detected.ring.entries(), 64);
        assert!(require(detected.abilities).is_ok());
        let without = Abilities { nodrop: false, ..detected.abilities };
        assert!(
            matches!(require(without), Err(Unavailable::Feature(name)) if name.contains("NODROP"))
        );
    }
}
