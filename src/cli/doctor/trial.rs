//! `doctor --env`: whether an environment can be had, and whether it does in a directory what a
//! database asks of it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::Env;
use crate::cli::environment::{EnvName, report_json};
use crate::cli::failure::{Failure, Result};
use crate::cli::interrupt::{Leftover, on_interrupt};
use crate::env::auto::Choice;
use crate::env::{Access, EnvReport, FileKind, Request, read_batch};

/// The files that are written have this many blocks.
const BLOCKS: u32 = 64;
/// Bytes of a block, which is also what is read at once.
const BLOCK: usize = 4096;

/// How the trial of an environment ended.
#[derive(Debug)]
pub(crate) struct Trial {
    name: EnvName,
    /// What `auto` took, and why.
    choice: Option<Choice>,
    /// What the environment says of itself, if it could be had.
    pub(crate) report: Option<EnvReport>,
    /// Why it cannot be used.
    failure: Option<Failure>,
}

impl Trial {
    /// Makes the environment, then writes, syncs, reads and removes two files in `dir` with it.
    pub(crate) fn run(name: EnvName, dir: &Path) -> Self {
        match name.make_and_say() {
            Err(failure) => Self { name, choice: None, report: None, failure: Some(failure) },
            Ok((env, choice)) => {
                let failure = use_it(&env, dir).err();
                Self { name, choice, report: Some(env.report()), failure }
            }
        }
    }

    pub(crate) fn works(&self) -> bool {
        self.failure.is_none()
    }

    /// The trial in a sentence, if all went well, with what `auto` took.
    pub(crate) fn outcome(&self) -> Option<String> {
        if !self.works() {
            return None;
        }
        let name = self.name.name();
        let took = self.choice.as_ref().map(|choice| format!("\n--env {name} took {choice}"));
        let took = took.unwrap_or_default();
        Some(format!("tried --env {name}: wrote, synced and read two files of 256 KiB{took}"))
    }

    /// The trial as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "env": self.name.name(),
            "works": self.works(),
            "why_not": self.failure.as_ref().map(ToString::to_string),
            "auto": self.choice.as_ref().map(ToString::to_string),
            "environment": self.report.as_ref().map(report_json),
        })
    }

    /// How the command ends.
    pub(crate) fn end(self) -> Result<()> {
        let name = self.name.name();
        let named = |message| format!("--env {name} does not work here: {message}");
        match self.failure {
            None => Ok(()),
            Some(Failure::Failed(message)) => Err(Failure::Failed(named(message))),
            Some(Failure::Damaged(message)) => Err(Failure::Damaged(named(message))),
            Some(other) => Err(other),
        }
    }
}

fn use_it(env: &Arc<dyn Env>, dir: &Path) -> Result<()> {
    // It is there, but an environment in memory does not know it.
    env.create_dir_all(dir)?;
    for (ending, kind) in [("log", FileKind::Log), ("table", FileKind::Table)] {
        let path = dir.join(format!(".treering-doctor-{}-{ending}", std::process::id()));
        let _guard = on_interrupt(Leftover::File(path.clone()));
        let used = write(&**env, &path, kind).and_then(|()| read(&**env, &path));
        let removed = env.remove(&path);
        used?;
        removed?;
        env.sync_dir(dir)?;
    }
    Ok(())
}

/// The bytes of a block: every one tells which it is.
fn content(block: u32) -> Vec<u8> {
    block.to_le_bytes().repeat(BLOCK / 4)
}

fn write(env: &dyn Env, path: &Path, kind: FileKind) -> Result<()> {
    let mut file = env.create(path, kind)?;
    for block in 0..BLOCKS {
        file.append(&content(block))?;
    }
    file.sync()?;
    file.finish()?;
    Ok(())
}

/// Reads one block alone and then all through the queue.
fn read(env: &dyn Env, path: &Path) -> Result<()> {
    let file = env.open(path, Access::Random)?;
    let offset = |block: u32| u64::from(block) * BLOCK as u64;
    let check = |block: u32, found: &[u8]| {
        if found == content(block) {
            return Ok(());
        }
        let (path, offset) = (path.display(), offset(block));
        Err(Failure::Damaged(format!("{path} at offset {offset}: other bytes than were written")))
    };
    let mut alone = vec![0; BLOCK];
    file.read_exact_at(&mut alone, offset(BLOCKS / 2))?;
    check(BLOCKS / 2, &alone)?;
    let request =
        |block| Request::Read { file: Arc::clone(&file), offset: offset(block), len: BLOCK };
    let answers = read_batch(env, (0..BLOCKS).map(request).collect());
    (0..BLOCKS).zip(answers).try_for_each(|(block, answer)| check(block, &answer?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemEnv;
    use crate::env::{Fault, FaultEnv, FaultKind, Op};

    #[test]
    fn a_trial_in_memory_works_and_leaves_nothing() {
        let env: Arc<dyn Env> = Arc::new(MemEnv::new());
        use_it(&env, Path::new("dir")).unwrap();
        assert!(env.list(Path::new("dir")).unwrap().is_empty());
    }

    #[test]
    fn every_step_of_a_trial_can_fail_it_and_no_file_stays() {
        for op in [Op::Create, Op::Append, Op::Sync, Op::Open, Op::Read, Op::SyncDir] {
            let faults = Arc::new(FaultEnv::new(Arc::new(MemEnv::new())));
            faults.add(Fault::new(FaultKind::Error(5)).on(op));
            let env: Arc<dyn Env> = faults.clone();
            let failure = use_it(&env, Path::new("dir")).unwrap_err();
            assert!(failure.to_string().contains(" dir"), "{op:?}: {failure}");
            faults.clear();
            assert!(env.list(Path::new("dir")).unwrap().is_empty(), "{op:?}");
        }
    }
}
