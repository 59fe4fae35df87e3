//! fio, where it is installed: what the drive gives at the depth of a batch.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Result;
use crate::work::Sample;

/// Whether the program is there.
pub fn is_there() -> bool {
    let mut command = Command::new("fio");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Reads random blocks of 4 KiB of `file`, directly, `depth` at once in each of `threads`.
pub fn random_reads(file: &Path, depth: usize, threads: usize, seconds: f64) -> Result<Sample> {
    let mut command = Command::new("fio");
    command.args(["--name=floor", "--rw=randread", "--bs=4k", "--direct=1", "--time_based"]);
    command.args(["--ioengine=io_uring", "--norandommap", "--group_reporting", "--thread"]);
    command.args(["--output-format=json", "--randrepeat=0"]);
    command.arg(format!("--filename={}", file.display()));
    command.arg(format!("--iodepth={depth}")).arg(format!("--numjobs={threads}"));
    command.arg(format!("--runtime={}ms", (seconds * 1e3) as u64));
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    // Notes of fio may stand before the JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let json = &text[text.find('{').ok_or("fio printed no JSON")?..];
    let job = &serde_json::from_str::<serde_json::Value>(json)?["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().ok_or("fio left out a figure");
    let rate = number(&job["read"]["iops"])?;
    let busy = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0;
    Ok(Sample {
        rate,
        cpu_us: busy * 1e6 * threads as f64 / rate,
        requested: number(&job["read"]["total_ios"])? as u64,
        found: number(&job["read"]["total_ios"])? as u64,
        amplification: None,
    })
}
