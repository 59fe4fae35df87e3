//! A disk that fails or stalls on command: one file, which a thread of this process serves to the
//! kernel through FUSE. A loop device on it gives a real file system on a device in real trouble.
//!
//! Only requests whose bytes hold [`MARKER`] are concerned, so that a file's contents decide which
//! of its blocks are in trouble, and what the file system keeps for itself is not.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};

use crate::image::{Mounted, site, unmount_all_under};
use crate::skipped;

/// What marks blocks that are in trouble.
pub(crate) const MARKER: &[u8; 16] = b"trouble is here!";

/// After so long a request that is held is served after all: a test that failed must not hang.
const PATIENCE: Duration = Duration::from_mins(10);

const EIO: i32 = 5;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// What happens to requests with the marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trouble {
    #[default]
    None,
    /// They fail with EIO, and nothing is written.
    Fail,
    /// They have no answer until they are released.
    Hold,
}

#[derive(Debug, Default)]
struct State {
    reads: Trouble,
    writes: Trouble,
    failed: u64,
    /// Answers that are held back, and since when.
    held: VecDeque<(Instant, Vec<u8>)>,
}

/// The disk's thread and those who command it.
#[derive(Debug)]
struct Shared {
    channel: File,
    state: Mutex<State>,
    changed: Condvar,
}

/// The mounted file. Unmount what lies on it first; then the server ends.
pub(crate) struct Disk {
    at: PathBuf,
    server: Option<JoinHandle<()>>,
    /// What the bytes are kept in.
    _backing: Mounted,
}

/// Commands the disk; heals it when dropped.
#[derive(Debug)]
pub(crate) struct Control(Arc<Shared>);

impl Drop for Control {
    fn drop(&mut self) {
        self.set(Trouble::None, Trouble::None);
        self.release();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn release(&self, state: &mut State) {
        for (_, answer) in state.held.drain(..) {
            // Nobody waits for it any more if the device is gone.
            let _ = rustix::io::write(&self.channel, &answer);
        }
    }
}

impl Control {
    /// From now on.
    pub(crate) fn set(&self, reads: Trouble, writes: Trouble) {
        let mut state = self.0.state();
        (state.reads, state.writes) = (reads, writes);
    }

    /// How many requests were failed.
    pub(crate) fn failed(&self) -> u64 {
        self.0.state().failed
    }

    /// Answers all that are held.
    pub(crate) fn release(&self) {
        self.0.release(&mut self.0.state());
    }

    /// Waits until any request is held.
    pub(crate) fn wait_until_some_are_held(&self) {
        let none = |state: &mut State| state.held.is_empty();
        let state = self.0.state();
        let waited = self.0.changed.wait_timeout_while(state, PATIENCE / 2, none).unwrap();
        assert!(!waited.0.held.is_empty(), "no request is held");
    }

    /// Waits until exactly so many requests are held.
    pub(crate) fn wait_until_held(&self, count: usize) {
        let state = self.0.state();
        let all_there = |state: &mut State| state.held.len() != count;
        let waited = self.0.changed.wait_timeout_while(state, PATIENCE / 2, all_there).unwrap();
        assert_eq!(waited.0.held.len(), count, "requests that are held");
    }
}

impl Disk {
    /// A disk of so many MiB, of which only what is written takes room; the path of its file.
    pub(crate) fn new(memory: Mounted, size: u64) -> Option<(PathBuf, Self, Control)> {
        let site = site();
        let backing = File::create_new(memory.path().join("backing")).unwrap();
        backing.set_len(size << 20).unwrap();
        let channel = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(channel) => channel,
            Err(error) => {
                skipped(&format!("/dev/fuse: {error}"));
                return None;
            }
        };
        let at = site.join("fuse");
        std::fs::create_dir(&at).unwrap();
        let fd = channel.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = CString::new(options).unwrap();
        if let Err(error) = mount("disk", &at, "fuse", MountFlags::empty(), Some(&*options)) {
            skipped(&format!("fuse cannot be mounted here: {error}"));
            return None;
        }
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { channel, state, changed });
        let server = Server { shared: Arc::clone(&shared), backing, size: size << 20 };
        let server = std::thread::spawn(move || server.run());
        let disk = Self { at, server: Some(server), _backing: memory };
        Some((disk.at.join("disk"), disk, Control(shared)))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount_all_under(&self.at);
        let ended = self.server.take().expect("joined once").join();
        let removed = std::fs::remove_dir_all(self.at.parent().unwrap());
        let well = ended.is_ok() && removed.is_ok();
        assert!(well || std::thread::panicking(), "the server panicked, or {removed:?}");
    }
}

/// The thread that answers the kernel.
struct Server {
    shared: Arc<Shared>,
    backing: File,
    size: u64,
}

/// What the kernel asks, by the numbers of its interface.
struct Request<'a> {
    opcode: u32,
    unique: u64,
    node: u64,
    body: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Puts numbers one after another, as structures of C lie in memory.
fn packed(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Server {
    const HEADER: usize = 40;
    const ROOT: u64 = 1;
    const FILE: u64 = 2;
    const LONGEST: u32 = 128 << 10;

    fn run(self) {
        let mut buffer = vec![0; 256 << 10];
        loop {
            self.release_the_old();
            let mut fds = [PollFd::new(&self.shared.channel, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
            if !matches!(poll(&mut fds, Some(&timeout)), Ok(1..)) {
                continue;
            }
            match rustix::io::read(&self.shared.channel, &mut buffer[..]) {
                Ok(len) => self.answer(&buffer[..len]),
                // Unmounted.
                Err(rustix::io::Errno::NODEV) => return,
                // Interrupted, or the request was withdrawn.
                Err(_) => {}
            }
        }
    }

    fn release_the_old(&self) {
        let mut state = self.shared.state();
        if state.held.front().is_some_and(|(since, _)| since.elapsed() > PATIENCE) {
            self.shared.release(&mut state);
        }
    }

    fn answer(&self, message: &[u8]) {
        let (header, body) = message.split_at(Self::HEADER);
        let (opcode, unique, node) = (u32_at(header, 4), u64_at(header, 8), u64_at(header, 16));
        // Forget, interrupt and forget many have no answer.
        if matches!(opcode, 2 | 36 | 42) {
            return;
        }
        let request = Request { opcode, unique, node, body };
        let mut held = false;
        let (error, data) = match self.serve(&request, &mut held) {
            Ok(data) => (0, data),
            Err(errno) => (-errno, Vec::new()),
        };
        let len = u32::try_from(16 + data.len()).unwrap();
        let mut answer = Vec::with_capacity(16 + data.len());
        answer.extend_from_slice(&len.to_ne_bytes());
        answer.extend_from_slice(&i32::to_ne_bytes(error));
        answer.extend_from_slice(&request.unique.to_ne_bytes());
        answer.extend_from_slice(&data);
        let mut state = self.shared.state();
        // Released meanwhile, it must not be held for ever.
        if held && (state.reads == Trouble::Hold || state.writes == Trouble::Hold) {
            state.held.push_back((Instant::now(), answer));
            self.shared.changed.notify_all();
        } else {
            drop(state);
            // A request that was withdrawn needs no answer.
            let _ = rustix::io::write(&self.shared.channel, &answer);
        }
    }

    fn serve(&self, request: &Request<'_>, held: &mut bool) -> Result<Vec<u8>, i32> {
        let body = request.body;
        match request.opcode {
            // Look up a name: there is one.
            1 => Ok([
                &packed(&[2, 0, 0, 0, 3600, 0, 3600, 0, 0, 0])[..],
                &self.attributes(Self::FILE),
            ]
            .concat()),
            // Attributes.
            3 => Ok([&packed(&[3600, 0, 0, 0])[..], &self.attributes(request.node)].concat()),
            // Open, without a page cache of its own.
            14 => Ok(packed(&[0, 0, 1, 0])),
            15 => self.read(u64_at(body, 8), u32_at(body, 16), held),
            16 => self.write(u64_at(body, 8), &body[40..], held),
            // Room of the file system.
            17 => Ok(packed(&[0; 20])),
            // Release, sync, flush, destroy.
            18 | 20 | 25 | 38 => Ok(Vec::new()),
            26 => Ok(Self::greeting(body)),
            // Allocation.
            43 => Err(EOPNOTSUPP),
            _ => Err(ENOSYS),
        }
    }

    /// Version 31 of the interface, direct reads that do not wait for each other, and as many
    /// requests at once as anybody likes.
    fn greeting(body: &[u8]) -> Vec<u8> {
        const ASYNC_READ: u32 = 1;
        const BIG_WRITES: u32 = 1 << 5;
        const ASYNC_DIO: u32 = 1 << 15;
        let flags = (ASYNC_READ | BIG_WRITES | ASYNC_DIO) & u32_at(body, 12);
        let background = 1024 | 1024 << 16;
        let mut words = vec![7, 31, 0, flags, background, Self::LONGEST, 1, 32];
        words.resize(16, 0);
        packed(&words)
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let root = node == Self::ROOT;
        let size = if root { 0 } else { self.size };
        let mode = if root { 0o040_755 } else { 0o100_600 };
        let mut bytes = Vec::new();
        for word in [node, size, size / 512, 0, 0, 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend(packed(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
        bytes
    }

    /// What happens to a request with these bytes.
    fn judge(&self, trouble: impl Fn(&State) -> Trouble, data: &[u8]) -> Trouble {
        let mut state = self.shared.state();
        let trouble = trouble(&state);
        if trouble == Trouble::None || !data.windows(MARKER.len()).any(|part| part == MARKER) {
            return Trouble::None;
        }
        state.failed += u64::from(trouble == Trouble::Fail);
        trouble
    }

    fn read(&self, offset: u64, len: u32, held: &mut bool) -> Result<Vec<u8>, i32> {
        let end = self.size.min(offset + u64::from(len));
        let mut data = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap()];
        self.backing.read_exact_at(&mut data, offset).unwrap();
        let trouble = self.judge(|state| state.reads, &data);
        *held = trouble == Trouble::Hold;
        if trouble == Trouble::Fail { Err(EIO) } else { Ok(data) }
    }

    fn write(&self, offset: u64, data: &[u8], held: &mut bool) -> Result<Vec<u8>, i32> {
        let trouble = self.judge(|state| state.writes, data);
        if trouble == Trouble::Fail {
            return Err(EIO);
        }
        *held = trouble == Trouble::Hold;
        self.backing.write_all_at(data, offset).unwrap();
        Ok(packed(&[u32::try_from(data.len()).unwrap(), 0]))
    }
}
