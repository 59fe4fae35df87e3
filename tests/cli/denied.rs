//! Where the kernel denies rings, as in a container: every command run here inherits a real
//! seccomp filter from the thread that starts it.

use rustix::io::Errno;
use treering::env::deny_io_uring;

use crate::tool::{Ran, Scratch, environments, run, skipped};

/// Runs `body` on a thread that is denied rings, with whatever it starts; first as a filter answers
/// that knows the call, then as one does that does not.
fn denied(body: impl Fn() + Sync) {
    if !environments().contains(&"io_uring") {
        // The kernel may then name another cause before it asks the filter.
        return skipped("io_uring cannot be used here, so its denial proves nothing");
    }
    for errno in [Errno::PERM, Errno::NOSYS] {
        std::thread::scope(|scope| {
            let denied = || {
                deny_io_uring(errno.raw_os_error());
                body();
            };
            scope.spawn(denied).join().unwrap();
        });
    }
}

/// The cause and what can be done about it, as every message about it has them.
const CAUSE: &[&str] = &[
    "io_uring is not available",
    "seccomp filter on this thread: yes",
    "--security-opt seccomp=",
    "io_uring_setup",
];

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// URING-23
#[test]
fn doctor_names_the_cause_of_a_denial_and_what_to_do() {
    denied(|| {
        let dir = env!("CARGO_TARGET_TMPDIR");
        let text = run(["doctor", dir]).ends_with(0).text();
        has(&text, CAUSE);
        has(&text, &["use: --env posix", "batched reads are parallel without"]);
        let report = run(["doctor", dir, "--json"]).ends_with(0).json();
        assert_eq!(report["io_uring"]["available"], false, "{report}");
        assert_eq!(report["io_uring"]["seccomp"], true, "{report}");
        has(report["io_uring"]["why_not"].as_str().unwrap(), CAUSE);
        assert_eq!(report["advised"], "posix", "{report}");
        assert!(report["tried"].is_null(), "{report}");
    });
}

/// URING-23
#[test]
fn doctor_fails_for_a_denied_environment_and_tells_what_auto_takes() {
    denied(|| {
        let dir = env!("CARGO_TARGET_TMPDIR");
        for env in ["io_uring", "io_uring-direct"] {
            let tried = run(["doctor", dir, "--env", env]).ends_with(3);
            assert!(!tried.text().contains("use: --env"), "{}", tried.text());
            let tried = tried.says(&[&format!("--env {env} does not work here"), "--env posix"]);
            tried.says(CAUSE);
            let report = run(["doctor", dir, "--env", env, "--json"]).ends_with(3).json();
            let tried = &report["tried"];
            assert_eq!((&tried["env"], &tried["works"]), (&env.into(), &false.into()), "{report}");
            assert!(tried["environment"].is_null(), "{report}");
            has(tried["why_not"].as_str().unwrap(), CAUSE);
        }
        let text = run(["doctor", dir, "--env", "auto"]).ends_with(0).text();
        let took = text.split_once("--env auto took environment: posix\n").expect(&text).1;
        has(took, CAUSE);
        has(took, &["environment: posix\n"]);
        let report = run(["doctor", dir, "--env", "auto", "--json"]).ends_with(0).json();
        assert_eq!(report["tried"]["environment"]["env"], "posix", "{report}");
        has(report["tried"]["auto"].as_str().unwrap(), CAUSE);
    });
}

/// URING-23: asking for rings by name never gives anything else.
#[test]
fn a_denied_environment_is_an_error_in_every_command_and_touches_nothing() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\n");
    let refused = |ran: Ran| {
        let ran = ran.ends_with(3);
        assert!(ran.out.is_empty(), "{:?}", ran.out);
        ran.says(&["io_uring cannot be used here", "use --env posix"]).says(CAUSE);
    };
    denied(|| {
        for env in ["io_uring", "io_uring-direct"] {
            for (command, rest) in [
                ("get", &["a"][..]),
                ("put", &["b", "2"]),
                ("delete", &["a"]),
                ("scan", &[]),
                ("multi-get", &["a"]),
                ("import", &[]),
                ("export", &[]),
                ("stats", &[]),
                ("verify", &[]),
                ("compact", &[]),
            ] {
                refused(scratch.on_db(command, &[rest, &["--env", env]].concat()));
            }
        }
        let entries = scratch.on_db("scan", &["--env", "posix"]).ends_with(0).text();
        assert_eq!(entries, "a\t1\n");
    });
}

/// URING-28
#[test]
fn auto_reads_and_writes_without_rings_and_says_so() {
    let scratch = Scratch::new();
    scratch.fill("a\t1\n");
    denied(|| {
        for auto in [&["--env", "auto"][..], &[]] {
            let got = scratch.on_db("get", &[&["a"], auto].concat()).ends_with(0);
            assert_eq!(got.text(), "1\n");
            scratch.on_db("put", &[&["b", "2"], auto].concat()).ends_with(0);
            let text = scratch.on_db("stats", auto).ends_with(0).text();
            let took = text.split_once("--env auto took environment: posix\n").expect(&text).1;
            has(took, CAUSE);
            let args = [auto, &["--json"]].concat();
            let stats = scratch.on_db("stats", &args).ends_with(0).json();
            assert_eq!(stats["environment"]["env"], "posix", "{stats}");
            has(stats["auto"].as_str().unwrap(), CAUSE);
        }
    });
}
