//! Batched reads and writes: requests that own their file and their bytes, completions in any
//! order, a result for each.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{Buffer, RandomAccessFile, RandomRwFile, Result};

/// One operation for a queue. It owns what it works on, so nothing borrowed is ever in flight.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read exactly `len` bytes at `offset`.
    Read {
        /// The file to read.
        file: Arc<dyn RandomAccessFile>,
        /// Where the range starts, in bytes.
        offset: u64,
        /// How many bytes to read. Zero succeeds anywhere.
        len: usize,
    },
    /// Write all of `data` at `offset`.
    Write {
        /// The file to write.
        file: Arc<dyn RandomRwFile>,
        /// Where the range starts, in bytes.
        offset: u64,
        /// The bytes; given back in the completion. Past the page cache their memory must be
        /// aligned, as that of a buffer of at least 4096 bytes is: see
        /// [`RandomRwFile::alignment`].
        data: Buffer,
    },
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The tag it was pushed with.
    pub tag: u64,
    /// The bytes read, or the buffer that was written; or this request's own error.
    pub result: Result<Buffer>,
}

/// A queue of reads and writes over any number of files.
///
/// A queue is not `Send`: it stays with, and so never outlives, the thread that submits. Requests
/// in one queue are not ordered among themselves; a write and a read of the same range must not
/// be pending at once. Memory in flight is bounded whatever the number of pushes.
pub trait IoQueue {
    /// Adds a request under a tag of the caller's choice. It may start at once. Never fails: a
    /// request that cannot be served completes with its error.
    fn push(&mut self, tag: u64, request: Request);

    /// The next finished request, in any order; waits for one if need be. `None` when nothing is
    /// pending. Every pushed request completes exactly once.
    fn pop(&mut self) -> Option<Completion>;
}

/// The queue of an environment that has none of its own: each request runs when it is popped, on
/// the calling thread, through the file's own methods.
#[derive(Debug, Default)]
pub struct SerialQueue {
    pending: VecDeque<(u64, Request)>,
}

impl SerialQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }
}

impl IoQueue for SerialQueue {
    fn push(&mut self, tag: u64, request: Request) {
        self.pending.push_back((tag, request));
    }

    fn pop(&mut self) -> Option<Completion> {
        let (tag, request) = self.pending.pop_front()?;
        Some(Completion { tag, result: run(request) })
    }
}

/// Serves one request through its file's own methods, on the calling thread.
pub(crate) fn run(request: Request) -> Result<Buffer> {
    match request {
        Request::Read { file, offset, len } => {
            // The length is checked first so that a wild one is an error and not an allocation.
            if len as u64 > file.size().saturating_sub(offset) && len > 0 {
                return Err(crate::Error::unexpected_eof(file.path(), offset, len, file.size()));
            }
            let mut buffer = Buffer::zeroed(len);
            file.read_exact_at(buffer.as_mut_slice(), offset)?;
            Ok(buffer)
        }
        Request::Write { file, offset, data } => {
            file.write_all_at(&data, offset)?;
            Ok(data)
        }
    }
}

/// Runs a batch through a queue of `env` and returns the results in the order of the requests.
pub fn read_batch(env: &dyn crate::Env, requests: Vec<Request>) -> Vec<Result<Buffer>> {
    let mut queue = env.queue();
    let mut results: Vec<Option<Result<Buffer>>> = requests.iter().map(|_| None).collect();
    for (tag, request) in requests.into_iter().enumerate() {
        queue.push(tag as u64, request);
    }
    while let Some(completion) = queue.pop() {
        let tag = usize::try_from(completion.tag).expect("tags are positions in the batch");
        results[tag] = Some(completion.result);
    }
    results.into_iter().map(|r| r.expect("every request completes exactly once")).collect()
}
