//! `doctor`: what this machine and the file system of a directory offer, and what follows.

mod trial;

use serde_json::{Value, json};

use self::trial::Trial;
use super::args::{Doctor, asked};
use super::bench::memory_group;
use super::failure::{Exit, Failure, Result};
use super::output::Output;
use crate::env::{Diagnosis, NowaitMiss, probe};

/// Prints the diagnosis, and how the trial of the environment ended that was asked for.
pub(crate) fn doctor(args: &Doctor) -> Result {
    let asked = asked(args.env)?;
    let dir = &args.directory;
    if !dir.is_dir() {
        let there = dir.try_exists().map_err(|error| Failure::file("look into", dir, &error))?;
        let what = if there { "is not a directory" } else { "does not exist" };
        return Err(Failure::failed(format!(
            "{} {what}; name the directory where the database is or will be",
            dir.display()
        )));
    }
    // Of a directory that may not be looked into nothing is known, and no advice is sound.
    std::fs::read_dir(dir).map_err(|error| Failure::file("look into", dir, &error))?;
    let found = probe(dir);
    let group = memory_group();
    let trial = asked.map(|name| Trial::run(name, dir));
    let mut out = Output::new();
    if args.output.json {
        let mut all = as_json(&found, &group);
        all["tried"] = trial.as_ref().map_or(Value::Null, Trial::json);
        out.json(&all)?;
    } else {
        out.line(&found)?;
        match &group {
            Ok(version) => {
                let use_of_it = "`bench envs` can limit the memory of cold runs";
                out.line(format_args!("memory cgroups: v{version}, allowed; {use_of_it}"))?;
            }
            Err(why) => {
                let use_of_it = "cold runs of `bench envs` have no memory limit";
                out.line(format_args!("memory cgroups: not allowed ({why}); {use_of_it}"))?;
            }
        }
        if trial.as_ref().is_none_or(Trial::works) {
            out.line(format_args!("use: --env {}", found.advised))?;
        }
        if let Some(outcome) = trial.as_ref().and_then(Trial::outcome) {
            out.line(outcome)?;
        }
        if let Some(report) = trial.as_ref().and_then(|trial| trial.report.as_ref()) {
            out.text(report)?;
        }
    }
    out.finish()?;
    trial.map_or(Ok(()), Trial::end)?;
    Ok(Exit::Done)
}

fn as_json(found: &Diagnosis, group: &std::result::Result<u8, String>) -> Value {
    let nowait = match &found.nowait {
        NowaitMiss::Starts => "starts",
        NowaitMiss::OnlyLooks => "only_looks",
        NowaitMiss::Unsupported => "unsupported",
        _ => "unknown",
    };
    json!({
        "directory": found.dir.to_string_lossy(),
        "kernel": found.machine.kernel,
        "io_uring": {
            "available": found.unavailable.is_none(),
            "why_not": found.unavailable.as_ref().map(ToString::to_string),
            "sysctl_disabled": found.machine.io_uring_disabled,
            "seccomp": found.machine.seccomp,
            "memlock": found.machine.locked_memory,
            "options": found
                .offers
                .iter()
                .map(|offer| json!({
                    "option": offer.option,
                    "possible": offer.possible,
                    "why": offer.why,
                }))
                .collect::<Vec<_>>(),
        },
        "file_system": found.file_system,
        "nowait_miss": nowait,
        "nowait_explained": found.nowait.to_string(),
        "memory_cgroup": {
            "allowed": group.is_ok(),
            "version": group.as_ref().ok(),
            "why_not": group.as_ref().err(),
        },
        "advised": found.advised,
        "why": found.why,
    })
}
