//! What an interrupted command takes away with it: files half written, a benchmark's directories
//! and processes.
//!
//! Whoever makes one of these registers it, at the latest as it is made, and keeps the [`Guard`] as
//! long as it is there. A thread waits for SIGINT and SIGTERM (and SIGHUP, unless it is ignored, as
//! under `nohup`), removes what is registered and ends the process with 128 plus the signal's
//! number.
//!
//! The thread keeps the lock of the list until the process is gone. So whoever registers or drops
//! a guard meanwhile waits, and [`settle`] at the end of the command waits too.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::output::note;
use super::size::counted;

/// How often, and with which pauses, a removal is tried while others still use what goes.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Something that must not outlive the command.
#[derive(Clone, Debug)]
pub(crate) enum Leftover {
    /// A process; it is killed. Only [`start`] registers one.
    Child(Pid),
    /// A file.
    File(PathBuf),
    /// A directory and everything in it.
    Tree(PathBuf),
    /// A directory that can be removed when nobody uses it any more: a control group.
    Group(PathBuf),
    /// Entries of an import, which stay; it is said how many they are.
    Entries(Stored),
}

/// How many entries an import has stored so far.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    rows: Arc<AtomicU64>,
    /// Whether they outlive the process however it ends.
    flushed: bool,
}

impl Stored {
    pub(crate) fn new(flushed: bool) -> Self {
        Self { rows: Arc::default(), flushed }
    }

    pub(crate) fn add(&self, rows: u64) {
        // Relaxed: only the number counts.
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

/// What is left to do when an import ended early.
impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stored = counted(self.rows(), "entry", "entries");
        let doubt = if self.flushed { "" } else { ", of which the last may be lost (buffered)" };
        write!(
            f,
            "  {stored} stored before that{doubt}; to import the file once more stores them again \
             and then the rest"
        )
    }
}

/// Keeps a [`Leftover`] registered.
#[derive(Debug)]
#[must_use = "what is not kept is not registered"]
pub(crate) struct Guard {
    number: u64,
}

#[derive(Debug)]
struct List {
    next: u64,
    entries: Vec<(u64, Leftover)>,
}

static LIST: Mutex<List> = Mutex::new(List { next: 0, entries: Vec::new() });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers what an interruption has to remove, before it is there.
pub(crate) fn on_interrupt(leftover: Leftover) -> Guard {
    listen_once();
    list().add(leftover)
}

/// Makes something that an interruption has to remove and whose name only the making tells. An
/// interruption waits until both is done: in between it would be left behind.
pub(crate) fn make<T>(
    make: impl FnOnce() -> io::Result<T>,
    leftover: impl FnOnce(&T) -> Leftover,
) -> io::Result<(T, Guard)> {
    listen_once();
    let mut list = list();
    let made = make()?;
    let guard = list.add(leftover(&made));
    Ok((made, guard))
}

/// Starts a process that an interruption has to end. In a group of its own: Ctrl-C reaches this
/// process alone.
pub(crate) fn start(command: &mut Command) -> io::Result<(Child, Guard)> {
    let pid = |child: &Child| i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    make(
        || command.process_group(0).spawn(),
        |child| Leftover::Child(pid(child).expect("the system numbers its processes")),
    )
}

impl List {
    fn add(&mut self, leftover: Leftover) -> Guard {
        let number = self.next;
        self.next += 1;
        self.entries.push((number, leftover));
        Guard { number }
    }
}

fn listen_once() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(listen);
}

impl Drop for Guard {
    fn drop(&mut self) {
        list().entries.retain(|(number, _)| *number != self.number);
    }
}

/// Makes a write beyond the limit on the size of files (`ulimit -f`) fail, with an error that can
/// be told, where the signal would end the process without a word.
pub(crate) fn survive_file_size_limit() {
    // Where that cannot be had, it ends as it would have.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Waits for the end of the process if it was interrupted.
pub(crate) fn settle() {
    drop(list());
}

/// Without a thread, or where signals cannot be caught, an interruption ends the process at once,
/// as it would without this module.
fn listen() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !ignored(&status, signal));
    let Ok(mut signals) = Signals::new(wanted) else { return };
    let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let list = list();
            note("treering: interrupted");
            let leftovers = list.entries.iter().map(|(_, leftover)| leftover);
            remove_all(leftovers.cloned().collect());
            exit(128 + signal);
        }
    });
}

/// Whether `/proc/self/status` says that the signal is ignored.
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Processes go first: they use the rest. Then the newest first: it may be inside an older one.
fn remove_all(leftovers: Vec<Leftover>) {
    let is_child = |leftover: &Leftover| matches!(leftover, Leftover::Child(_));
    let (children, others): (Vec<_>, Vec<_>) = leftovers.into_iter().partition(is_child);
    for leftover in children.into_iter().chain(others.into_iter().rev()) {
        match leftover {
            Leftover::Child(pid) => {
                let _ = kill_process(pid, Signal::KILL);
                // Whoever started it waits for it in another thread.
                let _ended = repeat(|| test_kill_process(pid).is_err());
            }
            Leftover::File(path) => {
                let _ = fs::remove_file(path);
            }
            Leftover::Tree(path) => remove_tree(&path),
            Leftover::Entries(stored) => note(stored),
            Leftover::Group(path) => {
                let _removed = repeat(|| fs::remove_dir(&path).is_ok());
            }
        }
    }
}

/// Removes a directory in which other threads of this process may still be making files: under
/// its new name they do not find it.
fn remove_tree(path: &Path) {
    let mut away = path.as_os_str().to_owned();
    away.push(".interrupted");
    let away = PathBuf::from(away);
    let path = if fs::rename(path, &away).is_ok() { away } else { path.to_path_buf() };
    let _removed = repeat(|| fs::remove_dir_all(&path).is_ok() || !path.exists());
}

fn repeat(mut attempt: impl FnMut() -> bool) -> bool {
    for _ in 0..ATTEMPTS {
        if attempt() {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\ttreering\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert!(ignored(status, SIGHUP));
        assert!(!ignored(status, SIGINT));
        assert!(!ignored("", SIGHUP));
    }

    #[test]
    fn files_and_trees_go_with_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, file) = (dir.path().join("tree"), dir.path().join("file"));
        fs::create_dir_all(tree.join("inner")).unwrap();
        fs::write(tree.join("inner/a"), "a").unwrap();
        fs::write(&file, "b").unwrap();
        let absent = Leftover::Tree(dir.path().join("absent"));
        remove_all(vec![Leftover::Tree(tree), Leftover::File(file), absent]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_dropped_is_not_registered_any_more() {
        let guard = on_interrupt(Leftover::File("a file of nobody".into()));
        let number = guard.number;
        assert!(list().entries.iter().any(|(kept, _)| *kept == number));
        drop(guard);
        assert!(list().entries.iter().all(|(kept, _)| *kept != number));
        settle();
    }
}
