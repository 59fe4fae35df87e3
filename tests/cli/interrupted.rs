//! Interrupted commands take their unfinished files and their processes away with them.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::tool::{Scratch, fio_is_installed, skipped};

/// Far more than anything here takes; a test that gets here fails with what it waited for.
const PATIENCE: Duration = Duration::from_mins(5);

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A benchmark in `dir` that would go on for a quarter of an hour.
fn bench(dir: &Path, keys: &str) -> Killed {
    let command = Command::new(env!("CARGO_BIN_EXE_treering"))
        .args("bench envs --envs posix --workloads get --hot --seconds 900 --repeat 1".split(' '))
        .args(["--keys", keys])
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(command.unwrap())
}

/// State and parent of a process, while it is there.
fn state_of(pid: &str) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The process that performs the run of a benchmark, once it has its orders.
fn run_of(parent: &Child) -> String {
    wait_for("the process of the run", || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid = entry.file_name().into_string().ok()?;
            let is_run = state_of(&pid)?.1 == parent.id()
                && fs::read(entry.path().join("cmdline")).ok()?.ends_with(b"bench\0run\0");
            is_run.then_some(pid)
        })
    })
}

fn is_gone(pid: &str) -> Option<()> {
    state_of(pid).is_none_or(|(state, _)| state == 'Z').then_some(())
}

/// The code that a child ends with by itself, in time.
fn code_of(child: &mut Child) -> i32 {
    let status = wait_for("the end of the command", || child.try_wait().unwrap());
    status.code().expect("an interrupted command ends by itself")
}

/// Whether whoever started the tests has them ignore a signal, as a shell does for what it runs
/// in the background. The command keeps to that.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// A command that is killed when the test is over, however it ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has mostly ended; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interrupted_benchmark_leaves_neither_directory_nor_process() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        if is_ignored(signal) {
            skipped(&format!("whoever started the tests has {signal:?} ignored"));
            continue;
        }
        let scratch = Scratch::new();
        let Killed(child) = &mut bench(&scratch.path(""), "1000");
        let run = run_of(child);
        send(child, signal);
        assert_eq!(code_of(child), expected);
        wait_for("the end of the run", || is_gone(&run));
        assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
    }
}

#[test]
fn an_interrupted_build_of_the_benchmark_s_database_leaves_nothing() {
    let scratch = Scratch::new();
    let Killed(child) = &mut bench(&scratch.path(""), "20M");
    let logs = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    wait_for("the first files", || {
        let made = fs::read_dir(scratch.path("")).unwrap().flatten().next()?.path();
        let database = fs::read_dir(made).ok()?.flatten().next()?.path();
        logs(&database).then_some(())
    });
    send(child, Signal::TERM);
    assert_eq!(code_of(child), 143);
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
}

/// A benchmark of a device in `dir` that would go on for a quarter of an hour.
fn bench_device(dir: &Path, size: &str, engine: &str) -> Killed {
    let child = Command::new(env!("CARGO_BIN_EXE_treering"))
        .args("bench device --direct false --seconds 900 --repeat 1".split(' '))
        .args(["--file-size", size, "--engines", engine])
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Killed(child)
}

#[test]
fn an_interrupted_benchmark_of_a_device_leaves_no_file() {
    // While the file is written, and while it is read.
    for (size, whole) in [("64GiB", 64 << 30), ("1MiB", 1 << 20)] {
        let scratch = Scratch::new();
        let Killed(child) = &mut bench_device(&scratch.path(""), size, "pread");
        wait_for("the file", || {
            let made = fs::read_dir(scratch.path("")).unwrap().flatten().next()?.path();
            let len = fs::metadata(made.join("device")).ok()?.len();
            (len > 0 && (len == whole || size == "64GiB")).then_some(())
        });
        send(child, Signal::TERM);
        assert_eq!(code_of(child), 143);
        assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
    }
}

#[test]
fn an_interrupted_benchmark_of_a_device_takes_fio_away_with_it() {
    if !fio_is_installed() {
        return;
    }
    let scratch = Scratch::new();
    let Killed(child) = &mut bench_device(&scratch.path(""), "1MiB", "fio");
    let fio = wait_for("fio", || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid = entry.file_name().into_string().ok()?;
            let is_fio = state_of(&pid)?.1 == child.id()
                && fs::read(entry.path().join("cmdline")).ok()?.starts_with(b"fio\0--name");
            is_fio.then_some(pid)
        })
    });
    send(child, Signal::TERM);
    assert_eq!(code_of(child), 143);
    wait_for("the end of fio", || is_gone(&fio));
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 0);
}

#[test]
fn a_run_does_not_outlive_the_benchmark_that_was_killed() {
    let scratch = Scratch::new();
    let Killed(child) = &mut bench(&scratch.path(""), "1000");
    let run = run_of(child);
    // The run asks to be ended with its parent before it reads its orders; its tables open then.
    wait_for("the run to open its database", || {
        let files = fs::read_dir(format!("/proc/{run}/fd")).ok()?.flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target.to_string_lossy().ends_with("/LOCK")).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of the run", || is_gone(&run));
}

/// The file is there whole, or not at all, whenever the signal comes.
#[test]
fn an_interrupted_export_leaves_no_file() {
    let scratch = Scratch::new();
    let value = "x".repeat(500);
    let line = |n| format!("{n:08}\t{value}\n");
    let lines = (0..40_000).map(line).collect::<Vec<_>>().concat();
    scratch.fill(&lines);
    let to = scratch.path("to");
    fs::create_dir(&to).unwrap();
    let interrupted = (0..50).any(|_| {
        let child = Command::new(env!("CARGO_BIN_EXE_treering"))
            .arg("export")
            .arg(scratch.db())
            .arg(to.join("file"))
            .stderr(Stdio::null())
            .spawn();
        let Killed(child) = &mut Killed(child.unwrap());
        let begun = wait_for("the export to begin or end", || {
            let ended = child.try_wait().unwrap().is_some();
            let begun = fs::read_dir(&to).unwrap().next().is_some();
            (begun || ended).then_some(begun && !ended)
        });
        if begun {
            send(child, Signal::TERM);
        }
        let status = code_of(child);
        let names: Vec<_> = fs::read_dir(&to).unwrap().map(|e| e.unwrap().file_name()).collect();
        if status == 143 {
            assert!(names.is_empty(), "{names:?}");
            return true;
        }
        assert_eq!((status, names), (0, vec!["file".into()]));
        assert_eq!(fs::metadata(to.join("file")).unwrap().len(), lines.len() as u64);
        fs::remove_file(to.join("file")).unwrap();
        false
    });
    assert!(interrupted, "no signal came in time");
}

/// It was once silent, and nobody knew what was stored.
#[test]
fn an_interrupted_import_says_how_many_entries_are_stored() {
    if is_ignored(Signal::INT) {
        return skipped("whoever started the tests has SIGINT ignored");
    }
    let scratch = Scratch::new();
    let import = Command::new(env!("CARGO_BIN_EXE_treering"))
        .args(["import", "--batch", "1"])
        .arg(scratch.db())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Killed(child) = &mut Killed(import.unwrap());
    // The input stays open: the import waits for more of it when the signal comes.
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a\t1\nb\t2\n").unwrap();
    wait_for("the second entry in the log", || {
        let logs = fs::read_dir(scratch.db()).ok()?.flatten().map(|entry| entry.path());
        let mut logs = logs.filter(|path| path.extension().is_some_and(|end| end == "log"));
        let holds = |log: Vec<u8>| log.windows(3).any(|part| matches!(part, [b'b', _, b'2']));
        logs.any(|log| fs::read(log).is_ok_and(holds)).then_some(())
    });
    send(child, Signal::INT);
    assert_eq!(code_of(child), 130);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // The second one is counted when its write has returned, which may be a little later.
    let told = ["1 entry", "2 entries"].map(|stored| {
        format!("interrupted\n  {stored} stored before that; to import the file once more")
    });
    assert!(told.iter().any(|told| said.contains(told)), "{said}");
    drop(input);
    assert_eq!(scratch.on_db("scan", &[] as &[&str]).ends_with(0).text(), "a\t1\nb\t2\n");
}
