//! The queue of a wrapper: takes our files out of their wrapping, shows each request to its
//! file's hook, and forwards it to the inner queue.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

use super::file::{first, flip};
use super::{Call, Hook, Op, OwnedCall, Verdict, WrappedFile, WrappedRwFile};
use crate::{Buffer, Completion, Error, IoQueue, RandomAccessFile, Request, Result};

pub(super) struct WrappedQueue<H> {
    inner: Box<dyn IoQueue>,
    /// What was forwarded, by the tag it has in the inner queue.
    forwarded: HashMap<u64, Forwarded<H>>,
    /// What was decided without the inner queue.
    decided: VecDeque<(Forwarded<H>, Result<Buffer>)>,
    next_tag: u64,
    files: PhantomData<H>,
}

struct Forwarded<H> {
    tag: u64,
    /// The hook of the file, and the call; `None` for a file that is not ours.
    seen: Option<(Arc<H>, OwnedCall)>,
    fail: Option<Error>,
    flip: Option<u64>,
}

impl<H: Hook> WrappedQueue<H> {
    pub(super) fn new(inner: Box<dyn IoQueue>) -> Self {
        let (forwarded, decided) = (HashMap::new(), VecDeque::new());
        Self { inner, forwarded, decided, next_tag: 0, files: PhantomData }
    }

    fn forward(&mut self, forwarded: Forwarded<H>, request: Request) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.forwarded.insert(tag, forwarded);
        self.inner.push(tag, request);
    }
}

impl<H: Hook> IoQueue for WrappedQueue<H> {
    fn push(&mut self, tag: u64, request: Request) {
        let (request, hook) = unwrap::<H>(request);
        let mut forwarded = Forwarded { tag, seen: None, fail: None, flip: None };
        let Some(hook) = hook else {
            return self.forward(forwarded, request);
        };
        let call = call_of(&request);
        let verdict = hook.before(&call);
        forwarded.seen = Some((Arc::clone(&hook), OwnedCall::new(&call)));
        match verdict {
            Verdict::Go => {}
            Verdict::Fail(error) => return self.decided.push_back((forwarded, Err(error))),
            Verdict::FailAfter(error) => forwarded.fail = Some(error),
            Verdict::Flip(bit) => forwarded.flip = Some(bit),
            Verdict::Skip => {
                let Request::Write { data, .. } = request else {
                    panic!("a read gives something, so it cannot be dropped");
                };
                return self.decided.push_back((forwarded, Ok(data)));
            }
            Verdict::Short(bytes, error) => {
                let Request::Write { file, offset, data } = request else {
                    return self.decided.push_back((forwarded, Err(error)));
                };
                forwarded.fail = Some(error);
                // In its own memory: a copy of less than a page may be misaligned.
                let len = first(&data, bytes, file.alignment().offset).len();
                let data = data.narrowed(0, len);
                return self.forward(forwarded, Request::Write { file, offset, data });
            }
        }
        self.forward(forwarded, request);
    }

    fn pop(&mut self) -> Option<Completion> {
        let (forwarded, mut result) = if let Some(decided) = self.decided.pop_front() {
            decided
        } else {
            let Completion { tag, result } = self.inner.pop()?;
            let forwarded = self
                .forwarded
                .remove(&tag)
                .expect("the inner queue completes each request once, under its tag");
            (forwarded, result)
        };
        if let (Ok(buffer), Some(bit)) = (&mut result, forwarded.flip) {
            let mut flipped = Buffer::from(&**buffer);
            flip(flipped.as_mut_slice(), bit);
            *buffer = flipped;
        }
        if let (Ok(_), Some(error)) = (&result, forwarded.fail) {
            result = Err(error);
        }
        if let Some((hook, call)) = &forwarded.seen {
            hook.after(&call.call(), result.is_ok());
        }
        Some(Completion { tag: forwarded.tag, result })
    }
}

fn call_of(request: &Request) -> Call<'_> {
    let call = match request {
        Request::Read { file, offset, len } => {
            Call::new(Op::Read, file.path()).range(*offset, *len)
        }
        Request::Write { file, offset, data } => {
            Call::new(Op::Write, file.path()).range(*offset, data.len())
        }
    };
    Call { queued: true, ..call }
}

/// Takes a file of ours out of its wrapping; other files stay as they are, and the inner queue
/// serves them in its own way.
fn unwrap<H: Hook>(request: Request) -> (Request, Option<Arc<H>>) {
    match request {
        Request::Read { file, offset, len } => {
            let any: &dyn Any = &*file;
            let (inner, hook) = if let Some(ours) = any.downcast_ref::<WrappedFile<H>>() {
                (Arc::clone(&ours.inner), Some(Arc::clone(&ours.hook)))
            } else if let Some(ours) = any.downcast_ref::<WrappedRwFile<H>>() {
                let inner: Arc<dyn RandomAccessFile> = Arc::clone(&ours.inner) as _;
                (inner, Some(Arc::clone(&ours.hook)))
            } else {
                (file, None)
            };
            (Request::Read { file: inner, offset, len }, hook)
        }
        Request::Write { file, offset, data } => {
            let any: &dyn Any = &*file;
            let (inner, hook) = match any.downcast_ref::<WrappedRwFile<H>>() {
                Some(ours) => (Arc::clone(&ours.inner), Some(Arc::clone(&ours.hook))),
                None => (file, None),
            };
            (Request::Write { file: inner, offset, data }, hook)
        }
    }
}
