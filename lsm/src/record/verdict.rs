//! What the first offset without a valid record means: a pure function of the evidence.

use std::borrow::Cow;
use std::path::Path;

use crate::{Error, Result, TailPolicy};

use super::{Evidence, Stop, Witness};

/// What others know about the file, and what its owner wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The end that the valid first record of a successor names.
    pub(crate) successor_end: Option<u64>,
    /// An end recorded elsewhere, once that much was durable.
    pub(crate) recorded_end: Option<u64>,
    /// Whether no other file of records was begun after this one. Only the newest may end in a
    /// write that never finished: its predecessors were synced before it began.
    pub(crate) is_newest: bool,
    /// What to do with an end that nothing explains.
    pub(crate) policy: TailPolicy,
}

/// What the end of the valid records means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing follows.
    CleanEnd,
    /// The successor says that it ends here: whatever follows was cut off before.
    CutEarlier,
    /// Later appends reached the device, an earlier one did not, and none was synced.
    UnsyncedReorder,
    /// A write that never finished.
    TornTail,
    /// What was durable is not there any more.
    Corruption(Damage),
}

/// Why a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// A record is intact and yet cannot have been written there.
    Broken(&'static str),
    /// A later record proves that more was durable.
    Witnessed(Witness),
    /// The next segment proves that more was durable.
    Successor(u64),
    /// The manifest proves that more was durable.
    Recorded(u64),
    /// The file was ended and synced before its successor began, so it cannot have a torn end.
    NotNewest,
    /// The tail policy refuses every end that is not plain zeros.
    Refused,
}

/// Judges the first offset without a valid record; the first rule that applies wins. The rules
/// and their order are the table in `docs/format/record.md`.
pub(crate) fn verdict(evidence: &Evidence, bounds: &Bounds) -> Verdict {
    let end = evidence.offset;
    if let Stop::Broken(what) = evidence.stop {
        return Verdict::Corruption(Damage::Broken(what));
    }
    if let Some(witness) = evidence.witness.filter(|witness| witness.watermark > end) {
        return Verdict::Corruption(Damage::Witnessed(witness));
    }
    if let Some(named) = bounds.successor_end.filter(|&named| named > end) {
        return Verdict::Corruption(Damage::Successor(named));
    }
    if let Some(recorded) = bounds.recorded_end.filter(|&recorded| recorded > end) {
        return Verdict::Corruption(Damage::Recorded(recorded));
    }
    if bounds.successor_end == Some(end) {
        return Verdict::CutEarlier;
    }
    let found = if evidence.later_records > 0 {
        Verdict::UnsyncedReorder
    } else if evidence.tail_end <= end {
        return Verdict::CleanEnd;
    } else {
        Verdict::TornTail
    };
    if !bounds.is_newest {
        Verdict::Corruption(Damage::NotNewest)
    } else if bounds.policy == TailPolicy::RefuseOnAny {
        Verdict::Corruption(Damage::Refused)
    } else {
        found
    }
}

/// Bytes that recovery left out at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Where the valid records end.
    pub(crate) offset: u64,
    /// How many bytes follow up to the last that is not zero.
    pub(crate) dropped_bytes: u64,
    /// Why they were left out.
    pub(crate) reason: CutReason,
}

/// Why recovery left bytes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutReason {
    /// A write that never finished.
    TornTail,
    /// Later unsynced writes that survived an earlier one.
    UnsyncedReorder,
}

/// Turns the verdict on `path` into what its reader does: go on, cut and report, or fail.
pub(crate) fn settle(path: &Path, evidence: &Evidence, bounds: &Bounds) -> Result<Option<Cut>> {
    let reason = match verdict(evidence, bounds) {
        Verdict::CleanEnd | Verdict::CutEarlier => return Ok(None),
        Verdict::UnsyncedReorder => CutReason::UnsyncedReorder,
        Verdict::TornTail => CutReason::TornTail,
        Verdict::Corruption(damage) => {
            return Err(Error::corruption(path, evidence.offset, damage.message(evidence)));
        }
    };
    let dropped_bytes = evidence.tail_end - evidence.offset;
    Ok(Some(Cut { offset: evidence.offset, dropped_bytes, reason }))
}

impl Damage {
    fn message(self, evidence: &Evidence) -> Cow<'static, str> {
        let what = match evidence.stop {
            Stop::AtLimit => "the end",
            Stop::NoRecord(what) | Stop::Broken(what) => what,
        };
        match self {
            Self::Broken(what) => Cow::Borrowed(what),
            Self::Witnessed(Witness { offset, watermark }) => Cow::Owned(format!(
                "{what}, though the record at offset {offset} proves the file durable up to \
                 {watermark}"
            )),
            Self::Successor(end) => Cow::Owned(format!(
                "{what}, though the next log segment says that this one ends at {end}"
            )),
            Self::Recorded(end) => {
                Cow::Owned(format!("{what}, though the file is recorded as durable up to {end}"))
            }
            Self::NotNewest => Cow::Owned(format!(
                "{what}, though a newer log segment was begun, before which this one was synced"
            )),
            Self::Refused => Cow::Owned(format!(
                "{what}, and the tail policy refuses every end that is not plain zeros"
            )),
        }
    }
}
