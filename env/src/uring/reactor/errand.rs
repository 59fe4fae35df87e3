//! Reads that the reactor does for others: queues that found no free ring, and files that are read
//! ahead.
//!
//! An errand owns its operation, memory and file included, from the moment it is handed over. It
//! is dropped when nothing of it is left to do for the reactor, for whatever reason, and that is
//! what sends the operation back: its owner reads by plain calls what it still lacks. So nobody
//! waits for what nobody has.

use std::fmt::Debug;
use std::mem;

use super::stream::{Block, Stream};
use crate::os_file::Os;
use crate::sync::{Arc, Condvar, LOOKS_EVERY, Mutex};
use crate::uring::op::Op;

/// What is handed to the reactor.
#[derive(Debug)]
pub(crate) enum Task {
    Write(Block),
    Read(Errand),
}

impl Task {
    /// Whether it writes a block of that file.
    pub(super) fn is_block_of(&self, stream: &Arc<Stream>) -> bool {
        matches!(self, Self::Write(block) if Arc::ptr_eq(block.stream(), stream))
    }

    /// The reactor does nothing for it any more: its owner does.
    pub(super) fn give_back(self) {
        match self {
            Self::Write(block) => block.give_back(0, false),
            Self::Read(errand) => drop(errand),
        }
    }
}

/// Where an errand comes back.
pub(crate) trait Home: Debug + Send + Sync {
    /// For the memory of an operation whose own must be given up.
    fn os(&self) -> &Os;

    /// Takes an operation back under the key that it was given for it; nothing of it is
    /// outstanding. Called once for each errand, on the reactor's thread most often, which must not
    /// be held up.
    fn take_back(&self, key: u64, op: Op);
}

#[derive(Debug, Default)]
struct Returned {
    /// Under the keys that their owner gave them.
    ops: Vec<(u64, Op)>,
    owner_waits: bool,
}

/// Where the errands of one queue come back.
#[derive(Debug)]
pub(crate) struct Mailbox {
    os: Arc<Os>,
    returned: Mutex<Returned>,
    changed: Condvar,
}

impl Mailbox {
    pub(crate) fn new(os: &Arc<Os>) -> Arc<Self> {
        let (returned, changed) = Default::default();
        Arc::new(Self { os: Arc::clone(os), returned, changed })
    }

    /// What has come back.
    pub(crate) fn take(&self) -> Vec<(u64, Op)> {
        mem::take(&mut self.returned.lock().ops)
    }

    /// The same, when something has, or nothing, soon after `given_up` says that nothing may ever
    /// come. The owner must have an errand out.
    pub(crate) fn wait_unless(&self, given_up: impl Fn() -> bool) -> Vec<(u64, Op)> {
        let mut returned = self.returned.lock();
        while returned.ops.is_empty() && !given_up() {
            returned.owner_waits = true;
            self.changed.wait_for(&mut returned, LOOKS_EVERY);
        }
        mem::take(&mut returned.ops)
    }
}

impl Home for Mailbox {
    fn os(&self) -> &Os {
        &self.os
    }

    fn take_back(&self, key: u64, op: Op) {
        let mut returned = self.returned.lock();
        returned.ops.push((key, op));
        let wake = mem::take(&mut returned.owner_waits);
        drop(returned);
        if wake {
            self.changed.notify_one();
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Errand {
    op: Option<Op>,
    key: u64,
    home: Arc<dyn Home>,
}

impl Errand {
    /// An errand for what an operation has left for a plain read, and has left until it is begun.
    /// Nothing of the operation may be outstanding. It comes back under `key`.
    pub(crate) fn new(op: Op, key: u64, home: Arc<dyn Home>) -> Self {
        Self { op: Some(op), key, home }
    }

    pub(super) fn op(&mut self) -> &mut Op {
        self.op.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let mut op = self.op.take().expect("it is taken here only");
        if !op.is_idle() {
            // A ring that is given up may still write to the memory.
            op.leak_memory(self.home.os());
        }
        self.home.take_back(self.key, op);
    }
}
