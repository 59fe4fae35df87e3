//! A process for each peer of a workload: caches, the memory limit and the processor time then
//! belong to that peer alone. The processes live through all turns and wait for theirs.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::failure::Result;
use crate::limit;
use crate::work::{Bench, Sample, Spec};

/// The argument that makes this program a worker.
pub const WORKER: &str = "worker";

#[derive(Serialize, Deserialize)]
enum Reply {
    Ready,
    Done(Sample),
    Facts(Vec<String>),
    Failed(String),
}

/// Serves one peer: the first line of standard input is a [`Spec`], each further one the seed of a
/// turn; at the end of input the peer is closed.
pub fn serve() -> Result<()> {
    // Without the process that asks for turns there is nothing left to do.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let reply = |reply: &Reply| -> Result<()> {
        let mut out = stdout().lock();
        writeln!(out, "{}", serde_json::to_string(reply)?)?;
        Ok(out.flush()?)
    };
    let mut lines = stdin().lock().lines();
    let spec: Spec = serde_json::from_str(&lines.next().ok_or("no work was given")??)?;
    if let Some(door) = &spec.door {
        limit::join(door)?;
    }
    let mut bench = match Bench::new(spec) {
        Ok(bench) => bench,
        Err(error) => return reply(&Reply::Failed(error.to_string())),
    };
    reply(&Reply::Ready)?;
    for line in lines {
        match bench.turn(line?.trim().parse()?) {
            Ok(sample) => reply(&Reply::Done(sample))?,
            Err(error) => return reply(&Reply::Failed(error.to_string())),
        }
    }
    reply(&Reply::Facts(bench.facts()))?;
    bench.close()
}

/// A worker, seen from the process that compares.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one and waits until its peer is open and warm.
    pub fn start(spec: &Spec) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORKER).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut worker = Self { child, input, output };
        worker.say(&serde_json::to_string(spec)?)?;
        match worker.hear()? {
            Reply::Ready => Ok(worker),
            _ => Err("a worker answered out of turn".into()),
        }
    }

    /// One turn.
    pub fn turn(&mut self, seed: u64) -> Result<Sample> {
        self.say(&seed.to_string())?;
        match self.hear()? {
            Reply::Done(sample) => Ok(sample),
            _ => Err("a worker answered out of turn".into()),
        }
    }

    /// Ends it; what was in use.
    pub fn end(mut self) -> Result<Vec<String>> {
        self.input = None;
        let facts = match self.hear()? {
            Reply::Facts(facts) => facts,
            _ => return Err("a worker answered out of turn".into()),
        };
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("it could not be closed: {status}").into());
        }
        Ok(facts)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or("the worker has been told to end")?;
        // A worker that died says why when it is heard.
        let _ = writeln!(input, "{line}");
        Ok(())
    }

    fn hear(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            let status = self.child.wait()?;
            return Err(format!(
                "its process ended without an answer: {status}; where a memory limit was set, it \
                 may have been too small (--memory)"
            )
            .into());
        }
        match serde_json::from_str(&line)? {
            Reply::Failed(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
