//! A ring for tests that does what a script says: short transfers, any errno, reordered, stale,
//! lost or endless completions, refused and partial submissions. The bytes it does deliver are
//! read from the entry's descriptor, so results can be compared.
//!
//! It is as strict as the kernel: completions become visible only by entering it, and a wait that
//! nothing can end is a panic instead of a hang.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ring::{Completed, DRAIN_BATCH, Entry, Errno, How, Ring, Took, Work};

pub(crate) use owed::{Owed, assert_leaked};

mod owed;

/// What happens to one entry that the ring took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// All bytes.
    Whole,
    /// The first so many bytes.
    Bytes(usize),
    /// A negative result.
    Fail(Errno),
    /// The first so many bytes, and a negative result all the same.
    FailAfter(usize, Errno),
    /// All bytes, and a result that claims one more.
    Over,
    /// All bytes, and before that a completion with a tag that was used long ago.
    StaleFirst,
    /// All bytes, in a completion that arrives twice.
    Twice,
    /// All bytes, in a completion that arrives once more at the next enter but one, when what it is
    /// for may have gone and something else be in its place.
    Again,
    /// The completion is lost.
    Lost,
    /// Nothing happens yet, nor does a completion ever come: what the kernel then does to the
    /// memory, when even the ring is gone, is up to [`Owed`].
    Never,
}

/// What one call of `enter` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// Takes everything offered.
    All,
    /// Takes at most so many entries, and does not wait if that is fewer than offered.
    AtMost(usize),
    /// Fails, taking nothing. What is in flight completes all the same.
    Fail(Errno),
    /// Panics.
    Panic,
}

/// What a scripted ring has seen, shared with the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Offset and length of every entry.
    pub(crate) entries: Vec<(u64, u32)>,
    /// How many of them read to more than one piece of memory.
    pub(crate) vectored: usize,
    pub(crate) enters: usize,
    /// How often completions were looked for.
    pub(crate) looks: usize,
    /// How many completions each entering that waited asked for.
    pub(crate) waits: Vec<usize>,
    pub(crate) in_flight_peak: usize,
    pub(crate) rings_dropped: usize,
    /// What rings that are gone had taken and not answered.
    pub(crate) owed: Vec<Owed>,
}

type Answers = Box<dyn FnMut(usize, &Entry) -> Answer + Send>;
type Entries = Box<dyn FnMut(usize) -> Entered + Send>;

/// See the module.
pub(crate) struct ScriptedRing {
    capacity: usize,
    offered: VecDeque<Entry>,
    taken: VecDeque<Entry>,
    visible: VecDeque<Completed>,
    answers: Answers,
    entered: Entries,
    answered: usize,
    /// Entries whose completions are lost.
    lost: usize,
    /// Entries that are never answered.
    never: Vec<Entry>,
    /// Completions that come once more, and after how many enters.
    again: Vec<(usize, Completed)>,
    reverse: bool,
    per_enter: usize,
    /// Rings when there is more to complete, as a kernel does when it has.
    bell: Option<Bell>,
    /// Completes nothing while this says no.
    open: Option<Box<dyn Fn() -> bool + Send>>,
    /// A poll thread takes the entries; whether it sleeps at the nth enter.
    poll_thread: Option<Asleep>,
    seen: Arc<Mutex<Seen>>,
}

type Bell = Box<dyn Fn() + Send>;
type Asleep = Box<dyn FnMut(usize) -> bool + Send>;

// SAFETY: the raw pointers in the entries belong to the queue that pushed them, and a ring moves
// between threads only while it is idle and holds none.
unsafe impl Send for ScriptedRing {}

impl ScriptedRing {
    /// A ring that answers every read in full and in order.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            offered: VecDeque::new(),
            taken: VecDeque::new(),
            visible: VecDeque::new(),
            answers: Box::new(|_, _| Answer::Whole),
            entered: Box::new(|_| Entered::All),
            answered: 0,
            lost: 0,
            never: Vec::new(),
            again: Vec::new(),
            reverse: false,
            per_enter: usize::MAX,
            bell: None,
            open: None,
            poll_thread: None,
            seen: Arc::default(),
        }
    }

    /// Decides about each entry; the first argument counts them from zero.
    pub(crate) fn answering(
        mut self,
        answers: impl FnMut(usize, &Entry) -> Answer + Send + 'static,
    ) -> Self {
        self.answers = Box::new(answers);
        self
    }

    /// Decides about each call of `enter`; the argument counts them from zero.
    pub(crate) fn entering(
        mut self,
        entered: impl FnMut(usize) -> Entered + Send + 'static,
    ) -> Self {
        self.entered = Box::new(entered);
        self
    }

    /// Completes the newest entry first.
    pub(crate) fn reversed(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Completes at most so many entries at each enter.
    pub(crate) fn completing(mut self, per_enter: usize) -> Self {
        self.per_enter = per_enter;
        self
    }

    /// Completes nothing while `open` says no.
    pub(crate) fn while_open(mut self, open: impl Fn() -> bool + Send + 'static) -> Self {
        self.open = Some(Box::new(open));
        self
    }

    /// Has a poll thread, which is `asleep` at the nth enter or not.
    pub(crate) fn polled(mut self, asleep: impl FnMut(usize) -> bool + Send + 'static) -> Self {
        self.poll_thread = Some(Box::new(asleep));
        self
    }

    /// Calls `bell` after each enter that leaves something to complete.
    pub(crate) fn ringing(mut self, bell: impl Fn() + Send + 'static) -> Self {
        self.bell = Some(Box::new(bell));
        self
    }

    /// Writes down what it sees where the test can look.
    pub(crate) fn seen_by(mut self, seen: &Arc<Mutex<Seen>>) -> Self {
        self.seen = Arc::clone(seen);
        self
    }

    fn complete_some(&mut self) {
        self.again.iter_mut().for_each(|(enters, _)| *enters -= 1);
        let due = self.again.extract_if(.., |(enters, _)| *enters == 0);
        self.visible.extend(due.map(|(_, completed)| completed));
        if self.open.as_ref().is_some_and(|open| !open()) {
            return;
        }
        for _ in 0..self.per_enter {
            let entry = if self.reverse { self.taken.pop_back() } else { self.taken.pop_front() };
            let Some(entry) = entry else { return };
            let answer = (self.answers)(self.answered, &entry);
            self.answered += 1;
            self.complete(entry, answer);
        }
    }

    fn complete(&mut self, entry: Entry, answer: Answer) {
        if answer == Answer::Never {
            return self.never.push(entry);
        }
        let want = match answer {
            Answer::Bytes(n) | Answer::FailAfter(n, _) => n.min(bytes_of(&entry)),
            Answer::Fail(_) => 0,
            _ => bytes_of(&entry),
        };
        let result = match answer {
            Answer::Fail(errno) => -errno,
            Answer::FailAfter(_, errno) => {
                transfer(&entry, want);
                -errno
            }
            Answer::Over => transfer(&entry, want) + 1,
            _ => transfer(&entry, want),
        };
        let completed = Completed { user_data: entry.user_data, result };
        if answer == Answer::StaleFirst {
            self.visible.push_back(Completed { user_data: u64::MAX, result });
        }
        if answer == Answer::Lost {
            self.lost += 1;
        } else {
            self.visible.push_back(completed);
        }
        if answer == Answer::Again {
            self.again.push((2, completed));
        }
        if answer == Answer::Twice {
            self.visible.push_back(completed);
        }
    }
}

/// Bytes that an entry asks for.
pub(crate) fn bytes_of(entry: &Entry) -> usize {
    match entry.work {
        Work::ReadVectored => vectors_of(entry).iter().map(|vector| vector.iov_len).sum(),
        _ => entry.len as usize,
    }
}

/// The pieces of memory of a vectored read.
#[expect(clippy::cast_ptr_alignment, reason = "the address is that of such a list")]
fn vectors_of(entry: &Entry) -> Vec<libc::iovec> {
    let list = entry.start.cast::<libc::iovec>();
    let at = |n: u32| {
        // SAFETY: the queue keeps the list valid and unchanged until the completion of the entry
        // (contract of `Ring::push`), and it has `len` members.
        unsafe { list.add(n as usize).read() }
    };
    (0..entry.len).map(at).collect()
}

/// Reads an entry's range into its memory, as the kernel would, and spoils what lies beyond the
/// first `len` bytes: a queue that takes it for read is found out.
fn transfer(entry: &Entry, len: usize) -> i32 {
    let offset = i64::try_from(entry.offset).expect("test files are small");
    match entry.work {
        Work::Read => {}
        Work::ReadVectored => return transfer_each(entry, len),
        Work::Write => return write(entry, len, offset),
        Work::StartWriteBack | Work::Sync => return 0,
    }
    let whole = entry.len as usize;
    // SAFETY: the queue keeps the entry's memory valid and untouched until its completion
    // (contract of `Ring::push`).
    let read = unsafe { libc::pread(entry.fd, entry.start.cast(), whole, offset) };
    let Ok(read) = usize::try_from(read) else {
        return -std::io::Error::last_os_error().raw_os_error().expect("a system call failed");
    };
    let given = read.min(len);
    // SAFETY: as above; `given` is at most the entry's length.
    unsafe { entry.start.add(given).write_bytes(0xDE, whole - given) };
    i32::try_from(given).expect("an entry is at most 512 KiB")
}

/// The same for each piece of memory of a vectored read.
fn transfer_each(entry: &Entry, len: usize) -> i32 {
    let (mut asked, mut given) = (0, 0);
    for vector in vectors_of(entry) {
        let piece = Entry {
            work: Work::Read,
            start: vector.iov_base.cast(),
            len: u32::try_from(vector.iov_len).expect("a run is short"),
            offset: entry.offset + asked as u64,
            ..*entry
        };
        let got = transfer(&piece, len.saturating_sub(asked).min(vector.iov_len));
        if got < 0 {
            return got;
        }
        asked += vector.iov_len;
        given += got;
    }
    given
}

/// Writes the first `len` bytes of an entry's memory, as the kernel would.
fn write(entry: &Entry, len: usize, offset: i64) -> i32 {
    // SAFETY: the user of the ring keeps the entry's memory valid and unchanged until its
    // completion (contract of `Ring::push`); `len` is at most the entry's length.
    let wrote = unsafe { libc::pwrite(entry.fd, entry.start.cast(), len, offset) };
    match i32::try_from(wrote) {
        Ok(wrote) if wrote >= 0 => wrote,
        _ => -std::io::Error::last_os_error().raw_os_error().expect("a system call failed"),
    }
}

impl Ring for ScriptedRing {
    fn entries(&self) -> usize {
        self.capacity
    }

    unsafe fn push(&mut self, entry: Entry) -> bool {
        if self.offered.len() == self.capacity {
            return false;
        }
        self.offered.push_back(entry);
        let begun = self.taken.len() + self.visible.len() + self.never.len();
        let in_flight = self.offered.len() + begun;
        assert!(in_flight <= 2 * self.capacity, "the completion side would overflow");
        let mut seen = self.seen.lock();
        let len = u32::try_from(bytes_of(&entry)).expect("an entry is at most 512 KiB");
        seen.entries.push((entry.offset, len));
        seen.vectored += usize::from(entry.work == Work::ReadVectored);
        seen.in_flight_peak = seen.in_flight_peak.max(in_flight);
        true
    }

    fn enter(&mut self, submit: bool, wait: usize) -> Result<Took, Errno> {
        let nth = self.seen.lock().enters;
        self.seen.lock().enters += 1;
        let offered = if submit { self.offered.len() } else { 0 };
        let entered = (self.entered)(nth);
        let take = match entered {
            Entered::All => offered,
            Entered::AtMost(n) => n.min(offered),
            Entered::Fail(_) => 0,
            Entered::Panic => panic!("the script says so"),
        };
        let taken: Vec<Entry> = self.offered.drain(..take).collect();
        self.taken.extend(taken);
        let waits = take == offered && !matches!(entered, Entered::Fail(_));
        let owed = self.taken.len() + self.visible.len() + self.lost + self.never.len();
        assert!(!waits || wait <= owed, "waits for completions that nobody owes");
        if wait > 0 {
            self.seen.lock().waits.push(wait);
        }
        self.complete_some();
        if let Some(bell) = &self.bell
            && !self.taken.is_empty()
        {
            bell();
        }
        let how = self.poll_thread.as_mut().map_or(How::Call, |asleep| {
            let woken = asleep(nth);
            How::PollThread { called: woken || wait > 0, woken }
        });
        match entered {
            Entered::Fail(errno) => Err(errno),
            _ => Ok(Took { entries: take, how }),
        }
    }

    fn must_be_entered(&mut self) -> bool {
        let enters = self.seen.lock().enters;
        self.poll_thread.as_mut().is_some_and(|asleep| asleep(enters))
    }

    fn drain(&mut self, into: &mut Vec<Completed>) {
        self.seen.lock().looks += 1;
        let count = self.visible.len().min(DRAIN_BATCH);
        into.extend(self.visible.drain(..count));
    }
}

impl Drop for ScriptedRing {
    fn drop(&mut self) {
        let unanswered = self.taken.iter().chain(&self.never);
        let mut seen = self.seen.lock();
        seen.rings_dropped += 1;
        seen.owed.extend(unanswered.flat_map(Owed::by));
    }
}

impl fmt::Debug for ScriptedRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedRing({} entries)", self.capacity)
    }
}
