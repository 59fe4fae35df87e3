//! Running a test of this binary again, as a child.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{self, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "TREERING_TEST_ROLE";
const DIR: &str = "TREERING_TEST_DIR";

/// The role of this process and its directory, if it is a child.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(DIR).expect("set together").into()))
}

/// Tells the parent something.
pub(crate) fn say(what: &str) {
    writeln!(std::io::stderr(), "@{what}").expect("the parent reads");
}

/// Says why a test cannot run here.
pub(crate) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("standard error can be written");
}

/// A child that plays a role.
pub(crate) struct Child {
    process: process::Child,
    said: BufReader<ChildStderr>,
    /// Whatever it said that was not for us, such as a panic's message.
    other: String,
}

/// The command that runs `test` in `role`.
pub(crate) fn command(program: &Path, test: &str, role: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(DIR, dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Child {
    /// Starts this binary again, for `test` only, in `role`.
    pub(crate) fn start(test: &str, role: &str, dir: &Path) -> Self {
        Self::spawn(command(&std::env::current_exe().unwrap(), test, role, dir))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut process = command.spawn().unwrap();
        let said = BufReader::new(process.stderr.take().expect("it is a pipe"));
        Self { process, said, other: String::new() }
    }

    /// The next thing it says to us; `None` when it has ended.
    pub(crate) fn hears(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.said.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().strip_prefix('@') {
                // A line that was cut by the end of the process says nothing.
                Some(said) if line.ends_with('\n') => return Some(said.to_owned()),
                _ => self.other.push_str(&line),
            }
        }
    }

    pub(crate) fn kill(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).unwrap();
        kill_process(Pid::from_raw(id).expect("not zero"), signal).unwrap();
    }

    /// Waits for its end, which must come in a minute or two, and gives what else it had said.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        while self.hears().is_some() {}
        let patience = Instant::now() + Duration::from_mins(2);
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return (status, self.other);
            }
            if Instant::now() > patience {
                self.process.kill().unwrap();
                panic!("the child hangs: {}", self.other);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
