//! The queue of `MirrorEnv`: every request goes to both queues, and completions wait for their
//! counterpart.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use super::Judge;
use super::file::{MirrorFile, MirrorRwFile};
use crate::{Buffer, Completion, IoQueue, RandomAccessFile, Request, Result};

pub(super) struct MirrorQueue {
    inner: [Box<dyn IoQueue>; 2],
    judge: Arc<Judge>,
    /// The caller's tag and the call in words, by the tag in the inner queues.
    pending: HashMap<u64, (u64, String)>,
    /// What the second queue finished before the first did.
    early: HashMap<u64, Result<Buffer>>,
    next_tag: u64,
}

impl MirrorQueue {
    pub(super) fn new(inner: [Box<dyn IoQueue>; 2], judge: Arc<Judge>) -> Self {
        let (pending, early) = (HashMap::new(), HashMap::new());
        Self { inner, judge, pending, early, next_tag: 0 }
    }

    /// What the second queue says to a request that the first has finished.
    fn counterpart(&mut self, tag: u64) -> Result<Buffer> {
        if let Some(result) = self.early.remove(&tag) {
            return result;
        }
        loop {
            let completion = self.inner[1].pop().expect("the second queue lost a request");
            let expected = self.pending.contains_key(&completion.tag);
            assert!(expected, "the second queue completed tag {} twice", completion.tag);
            if completion.tag == tag {
                return completion.result;
            }
            let twice = self.early.insert(completion.tag, completion.result);
            assert!(twice.is_none(), "the second queue completed tag {} twice", completion.tag);
        }
    }
}

impl IoQueue for MirrorQueue {
    fn push(&mut self, tag: u64, request: Request) {
        let ([first, second], call) = split(request);
        let inner_tag = self.next_tag;
        self.next_tag += 1;
        self.pending.insert(inner_tag, (tag, call));
        self.inner[0].push(inner_tag, first);
        self.inner[1].push(inner_tag, second);
    }

    fn pop(&mut self) -> Option<Completion> {
        let Some(first) = self.inner[0].pop() else {
            assert!(
                self.pending.is_empty(),
                "the first queue lost {} requests",
                self.pending.len()
            );
            assert!(self.inner[1].pop().is_none(), "the second queue completed a request twice");
            return None;
        };
        assert!(self.pending.contains_key(&first.tag), "the first queue made up a completion");
        let second = self.counterpart(first.tag);
        let (tag, call) = self.pending.remove(&first.tag).expect("looked up just now");
        let result = self.judge.agree(|| call.clone(), [first.result, second], |a, b| **a == **b);
        Some(Completion { tag, result })
    }
}

/// The requests for the two queues, and the call in words. A file of another environment goes to
/// both.
fn split(request: Request) -> ([Request; 2], String) {
    match request {
        Request::Read { file, offset, len } => {
            let call = format!("queued read {} at {offset}, {len} bytes", file.path().display());
            let any: &dyn Any = &*file;
            let files: [Arc<dyn RandomAccessFile>; 2] =
                if let Some(ours) = any.downcast_ref::<MirrorFile>() {
                    ours.files.clone()
                } else if let Some(ours) = any.downcast_ref::<MirrorRwFile>() {
                    ours.files.clone().map(|file| file as Arc<dyn RandomAccessFile>)
                } else {
                    [Arc::clone(&file), file]
                };
            (files.map(|file| Request::Read { file, offset, len }), call)
        }
        Request::Write { file, offset, data } => {
            let call =
                format!("queued write {} at {offset}, {} bytes", file.path().display(), data.len());
            let any: &dyn Any = &*file;
            let files = match any.downcast_ref::<MirrorRwFile>() {
                Some(ours) => ours.files.clone(),
                None => [Arc::clone(&file), file],
            };
            (files.map(|file| Request::Write { file, offset, data: data.clone() }), call)
        }
    }
}
