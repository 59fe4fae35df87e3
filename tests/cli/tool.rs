//! Running the binary and looking at what it did.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// What a command said and how it ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ran {
    /// Checks the exit code; a wrong one is shown with everything that was said.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Self {
        let out = String::from_utf8_lossy(&self.out);
        assert_eq!(self.code, code, "\nstdout: {out}\nstderr: {}", self.err);
        self
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// Standard output as one JSON value.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap()
    }

    /// Standard output as one JSON value a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Checks that standard error holds each of `parts`.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.err.contains(part), "`{part}` is not in: {}", self.err);
        }
        self
    }
}

/// Runs the binary with `input` on its standard input.
pub(crate) fn run_with<I: IntoIterator<Item: AsRef<OsStr>>>(args: I, input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_treering"))
        .args(args)
        .env_remove("TREERING_ENV")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that fails early does not read its input; that is not the test's subject.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Ran {
        code: output.status.code().expect("the command ends by itself"),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the binary.
pub(crate) fn run<I: IntoIterator<Item: AsRef<OsStr>>>(args: I) -> Ran {
    run_with(args, b"")
}

/// A directory on the disk that the build is on (so not in memory), with room for a database.
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The database's directory.
    pub(crate) fn db(&self) -> PathBuf {
        self.path("db")
    }

    /// Writes a file and gives its path.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs `COMMAND DATABASE ARGUMENTS..`.
    pub(crate) fn on_db<S: AsRef<OsStr>>(&self, command: &str, args: &[S]) -> Ran {
        self.on_db_with(command, args, b"")
    }

    /// The same with `input` on standard input.
    pub(crate) fn on_db_with<S: AsRef<OsStr>>(
        &self,
        command: &str,
        args: &[S],
        input: &[u8],
    ) -> Ran {
        let db = self.db();
        let mut all: Vec<&OsStr> = vec![command.as_ref(), db.as_os_str()];
        all.extend(args.iter().map(AsRef::as_ref));
        run_with(all, input)
    }

    /// Stores lines of keys and values, and makes tables of them.
    pub(crate) fn fill(&self, lines: &str) {
        self.on_db_with("import", &[] as &[&str], lines.as_bytes()).ends_with(0);
        self.on_db("compact", &[] as &[&str]).ends_with(0);
    }

    /// The database's files whose names end with `ending`.
    pub(crate) fn db_files(&self, ending: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.db())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().ends_with(ending))
            .collect();
        files.sort();
        files
    }
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The environments that keep files and work on this machine.
pub(crate) fn environments() -> Vec<&'static str> {
    let mut all = vec!["posix", "posix-serial", "auto"];
    if run(["doctor", env!("CARGO_TARGET_TMPDIR"), "--json"]).json()["io_uring"]["available"]
        == true
    {
        all.push("io_uring");
        // Past the page cache only where the file system can.
        if reads_direct(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
            all.push("io_uring-direct");
        }
    }
    all
}

/// What the report of an environment calls it: reading past the page cache is an option of it.
pub(crate) fn reported(name: &str) -> &str {
    name.trim_end_matches("-direct")
}

/// Whether files in `dir` can be read past the page cache.
fn reads_direct(dir: &Path) -> bool {
    // Tests ask at the same time, each with a file of its own.
    let file = tempfile::NamedTempFile::new_in(dir).unwrap();
    let path = file.path();
    std::fs::write(path, [0; 4096]).unwrap();
    let builder = treering::IoUringEnv::builder().direct_reads(true);
    let env = builder.build().expect("doctor says that io_uring works here");
    let direct = treering::Env::open(&env, path, treering::env::Access::Random).is_ok();
    if !direct {
        skipped(&format!("io_uring-direct: {} does no direct I/O", dir.display()));
    }
    direct
}

/// Whether fio can be run.
pub(crate) fn fio_is_installed() -> bool {
    let installed = Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success());
    if !installed {
        skipped("fio is not installed");
    }
    installed
}

/// Says that something was not tested here. Written past the test harness, which would hide it.
pub(crate) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("standard error can be written");
}
