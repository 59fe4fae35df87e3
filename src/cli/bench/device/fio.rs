//! fio on the same file with the same options: the floor of a run.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::engine::Job;
use super::{Latency, Run};
use crate::cli::args::device::{DeviceWorkload, Engine};
use crate::cli::failure::{Failure, Result};
use crate::cli::interrupt;
use crate::cli::size::to_f64;

/// A fio that runs here.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    version: String,
    ioengine: &'static str,
}

impl Fio {
    /// Looks for fio; `with_rings` says whether `io_uring` works here.
    pub(crate) fn find(with_rings: bool) -> std::result::Result<Self, String> {
        let output = match Command::new("fio").arg("--version").stdin(Stdio::null()).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err("fio is not installed".to_owned());
            }
            other => other.map_err(|error| format!("fio cannot be started: {error}"))?,
        };
        if !output.status.success() {
            return Err(format!("fio --version ended with {}", output.status));
        }
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let ioengine = if with_rings { "io_uring" } else { "libaio" };
        Ok(Self { version, ioengine })
    }

    /// Does the job.
    pub(crate) fn perform(&self, job: &Job<'_>, repeat: u32) -> Result<Run> {
        let fail = |what: &dyn std::fmt::Display| Failure::failed(format!("fio: {what}"));
        // One process, so that ending it ends all of it.
        let mut command = Command::new("fio");
        command
            .args(self.arguments(job))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (child, _running) = interrupt::start(&mut command).map_err(|error| fail(&error))?;
        let output = child.wait_with_output().map_err(|error| fail(&error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(fail(&format_args!("{} ({})", said.trim(), output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Warnings may come before the object.
        let object = text.find('{').map_or("", |start| &text[start..]);
        let value: Value = serde_json::from_str(object).map_err(|error| fail(&error))?;
        self.run(job, repeat, &value["jobs"][0])
            .ok_or_else(|| fail(&format_args!("its JSON lacks a figure: {}", said.trim())))
    }

    fn arguments(&self, job: &Job<'_>) -> Vec<String> {
        let case = job.case;
        let milliseconds = job.time.as_millis().max(1);
        let mut arguments = vec![
            "--name=treering".to_owned(),
            // A colon would separate two files.
            format!("--filename={}", job.target.path().display().to_string().replace(':', "\\:")),
            format!("--size={}", job.target.size()),
            format!("--rw={}", case.workload.name()),
            format!("--bs={}", case.block_size),
            format!("--iodepth={}", case.depth),
            format!("--numjobs={}", case.threads),
            format!("--direct={}", u8::from(case.direct)),
            format!("--ioengine={}", self.ioengine),
            format!("--runtime={milliseconds}ms"),
            format!("--randseed={}", job.order_seed),
        ];
        let fixed = "--time_based --norandommap --thread --group_reporting --allow_file_create=0 \
                     --lat_percentiles=1 --clat_percentiles=0 \
                     --percentile_list=50:90:99:99.9:99.99 --output-format=json";
        arguments.extend(fixed.split_whitespace().map(str::to_owned));
        if case.workload == DeviceWorkload::RandRead {
            arguments.push("--readonly".to_owned());
        }
        arguments
    }

    fn run(&self, job: &Job<'_>, repeat: u32, result: &Value) -> Option<Run> {
        let case = job.case;
        let side = match case.workload {
            DeviceWorkload::RandRead => &result["read"],
            DeviceWorkload::RandWrite => &result["write"],
        };
        let ops = side["total_ios"].as_u64().filter(|&ops| ops > 0)?;
        let ops_per_sec = side["iops"].as_f64()?;
        let latency = &side["lat_ns"];
        let micros = |at: &str| Some(latency["percentile"][at].as_f64()? / 1e3);
        // Percent of the time of all its threads together.
        let busy = result["usr_cpu"].as_f64()? + result["sys_cpu"].as_f64()?;
        let threads_time = Duration::from_millis(result["job_runtime"].as_u64()?);
        let cpu_us = busy / 100.0 * threads_time.as_secs_f64() * 1e6;
        let waited = latency["mean"].as_f64()? / 1e9;
        let mean_depth = ops_per_sec * waited / to_f64(u64::from(case.threads));
        Some(Run {
            workload: case.workload,
            engine: Engine::Fio,
            options: None,
            block_size: case.block_size,
            depth: case.depth,
            achieved_depth: mean_depth,
            mean_depth,
            threads: case.threads,
            direct: case.direct,
            repeat,
            ops,
            verified: 0,
            ops_per_sec,
            cpu_us_per_op: cpu_us / to_f64(ops),
            latency_us: Latency {
                p50: micros("50.000000")?,
                p90: micros("90.000000")?,
                p99: micros("99.000000")?,
                p999: micros("99.900000")?,
                p9999: micros("99.990000")?,
                max: latency["max"].as_f64()? / 1e3,
            },
            report: json!({ "version": self.version, "ioengine": self.ioengine }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Case;
    use super::super::target::Target;
    use super::*;

    #[test]
    fn fio_gets_the_same_work_and_its_figures_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::named(&dir.path().join("a:b"), 1 << 20).unwrap();
        let case = Case {
            workload: DeviceWorkload::RandRead,
            block_size: 8192,
            depth: 16,
            threads: 2,
            direct: true,
        };
        let time = Duration::from_millis(1500);
        let job = Job { case, target: &target, generation: 1, order_seed: 5, time };
        let fio = Fio { version: "fio-3".to_owned(), ioengine: "io_uring" };
        let arguments = fio.arguments(&job);
        for expected in ["--bs=8192", "--iodepth=16", "--numjobs=2", "--direct=1", "--readonly"] {
            assert!(arguments.iter().any(|argument| argument == expected), "{arguments:?}");
        }
        assert!(arguments.iter().any(|argument| argument.ends_with("/a\\:b")), "{arguments:?}");
        let result = json!({
            "usr_cpu": 10.0, "sys_cpu": 15.0, "job_runtime": 3000,
            "read": {
                "total_ios": 3000, "iops": 2000.0,
                "lat_ns": {
                    "mean": 16_000_000.0, "max": 20_000_000,
                    "percentile": {
                        "50.000000": 15_000, "90.000000": 16_000, "99.000000": 17_000,
                        "99.900000": 18_000, "99.990000": 19_000,
                    },
                },
            },
        });
        let run = fio.run(&job, 0, &result).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        close(run.cpu_us_per_op, 250.0);
        close(run.achieved_depth, 16.0);
        close(run.latency_us.p50, 15.0);
        close(run.latency_us.p9999, 19.0);
        assert!(fio.run(&job, 0, &json!({})).is_none());
    }
}
