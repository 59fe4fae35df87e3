//! `doctor`: what this machine and the file system of a directory offer, and what follows.

use serde_json::{Value, json};
use treering_env::{Diagnosis, NowaitMiss, probe};

use super::args::Doctor;
use super::bench::memory_group;
use super::failure::{Exit, Failure, Result};
use super::output::Output;

/// Prints the diagnosis.
pub(crate) fn doctor(args: &Doctor) -> Result {
    let dir = &args.directory;
    if !dir.is_dir() {
        let what = if dir.exists() { "is not a directory" } else { "does not exist" };
        return Err(Failure::failed(format!(
            "{} {what}; name the directory where the database is or will be",
            dir.display()
        )));
    }
    let found = probe(dir);
    let group = memory_group();
    let mut out = Output::new();
    if args.output.json {
        out.json(&as_json(&found, &group))?;
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
        out.line(format_args!("use: --env {}", found.advised))?;
    }
    out.finish()?;
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
