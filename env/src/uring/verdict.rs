//! What a completion means: the table of results, as a function.

use super::ring::Errno;
use crate::counters::Count;

/// One read of one range, as far as its completion is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Bytes asked for.
    pub(crate) len: usize,
    /// Of these, how many must arrive; the rest of a direct window lies past the end of the file.
    pub(crate) needed: usize,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All that is needed is there.
    Done,
    /// So many bytes are there; the rest must be asked for again.
    Partly(usize),
    /// A plain read decides: nothing arrived below the known end of the file.
    Nothing,
    /// A plain read decides: the failure says nothing about the file.
    Passing(Errno),
    /// A plain read decides: the medium failed, here or at a neighbour. The kernel joins reads that
    /// are with the device at once, and fails all of them for the sake of one.
    Medium(Errno),
    /// The file system does not do this on a ring: a plain read, now and from now on.
    Unsupported,
    /// The request's own error.
    Failed(Errno),
    /// More bytes than asked for: the ring is broken.
    Overlong,
}

/// Judges the result of a completion.
pub(crate) fn judge(asked: Asked, result: i32) -> Verdict {
    let Ok(got) = usize::try_from(result) else {
        return match -result {
            errno if is_passing(errno) => Verdict::Passing(errno),
            errno if is_unsupported(errno) => Verdict::Unsupported,
            errno if is_of_the_medium(errno) => Verdict::Medium(errno),
            errno => Verdict::Failed(errno),
        };
    };
    match got {
        _ if got > asked.len => Verdict::Overlong,
        _ if got >= asked.needed => Verdict::Done,
        0 => Verdict::Nothing,
        _ => Verdict::Partly(got),
    }
}

/// Whether a failure says nothing about the file: the same again, by a plain call, may work.
fn is_passing(errno: Errno) -> bool {
    matches!(
        errno,
        libc::EAGAIN | libc::EINTR | libc::ECANCELED | libc::EFAULT | libc::ENOMEM | libc::ENOBUFS
    )
}

/// Whether a failure is one that block devices answer with.
pub(crate) fn is_of_the_medium(errno: Errno) -> bool {
    matches!(
        errno,
        libc::EIO
            | libc::ENODATA
            | libc::EREMOTEIO
            | libc::EILSEQ
            | libc::ENOLINK
            | libc::ETIMEDOUT
            | libc::ETIME
    )
}

/// Whether a failure says that the file system does not do this on a ring.
fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::EINVAL)
}

/// Whether a flush never ran. No other failure of one may be passed over: a failed write-back keeps
/// the errno of the device's driver, be it `ENOMEM` or `EAGAIN`, and is told to one flush only.
pub(crate) fn never_ran(errno: Errno) -> bool {
    errno == libc::ECANCELED
}

/// What became of a write of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// All of it is in the file.
    Done,
    /// The first so many bytes are, perhaps none. A plain write of the rest decides: it is harmless
    /// since the offset is fixed and no younger write touches the range.
    Partly(usize),
    /// The same, and the failure says nothing about the file: all of it must be written again.
    Passing(Errno),
    /// The file's own error.
    Failed(Errno),
    /// More bytes than were given: the ring is broken, and nothing is known of the file.
    Overlong,
}

/// Judges the result of the completion of a write of `len` bytes.
pub(crate) fn judge_write(len: usize, result: i32) -> Written {
    let Ok(took) = usize::try_from(result) else {
        return match -result {
            errno if is_passing(errno) || is_unsupported(errno) => Written::Passing(errno),
            errno => Written::Failed(errno),
        };
    };
    match took {
        _ if took > len => Written::Overlong,
        _ if took == len => Written::Done,
        _ => Written::Partly(took),
    }
}

/// The counter of operations done again after a passing failure.
pub(crate) fn retried(errno: Errno) -> Count {
    match errno {
        libc::EINTR => Count::RetriedEintr,
        libc::EAGAIN => Count::RetriedEagain,
        libc::ECANCELED => Count::RetriedCanceled,
        libc::EFAULT => Count::RetriedEfault,
        _ => Count::RetriedOther,
    }
}

/// Whether a passing failure counts against the rings as such.
pub(crate) fn strains_the_breaker(errno: Errno) -> bool {
    matches!(errno, libc::ECANCELED | libc::EFAULT | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_judged_against_what_is_needed_and_what_was_asked() {
        let asked = Asked { len: 4096, needed: 1000 };
        let verdicts = [0, 1, 999, 1000, 4096, 4097].map(|result| judge(asked, result));
        assert_eq!(
            verdicts,
            [
                Verdict::Nothing,
                Verdict::Partly(1),
                Verdict::Partly(999),
                Verdict::Done,
                Verdict::Done,
                Verdict::Overlong
            ]
        );
    }

    #[test]
    fn a_write_is_done_only_when_all_of_it_was_taken() {
        let verdicts = [0, 1, 4095, 4096, 4097].map(|result| judge_write(4096, result));
        let expected = [
            Written::Partly(0),
            Written::Partly(1),
            Written::Partly(4095),
            Written::Done,
            Written::Overlong,
        ];
        assert_eq!(verdicts, expected);
        for errno in 1..134 {
            let expected = match errno {
                4 | 11 | 12 | 14 | 22 | 95 | 105 | 125 => Written::Passing(errno),
                _ => Written::Failed(errno),
            };
            assert_eq!(judge_write(1, -errno), expected, "errno {errno}");
        }
    }

    #[test]
    fn every_errno_is_passing_unsupported_of_the_medium_or_final_with_its_positive_number() {
        let asked = Asked { len: 1, needed: 1 };
        for errno in 1..134 {
            let expected = match errno {
                4 | 11 | 12 | 14 | 105 | 125 => Verdict::Passing(errno),
                22 | 95 => Verdict::Unsupported,
                5 | 61 | 62 | 67 | 84 | 110 | 121 => Verdict::Medium(errno),
                _ => Verdict::Failed(errno),
            };
            assert_eq!(judge(asked, -errno), expected, "errno {errno}");
        }
    }
}
