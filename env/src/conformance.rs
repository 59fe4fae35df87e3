//! The suite that checks any environment against the contract in `docs/env.md`.
//!
//! [`run`] is for every environment; [`durability`] is for those that can lose power on command.
//! Each case gets an environment and an empty directory of its own and knows nothing else, so the
//! suite fits wrappers and environments of other people too. Each case is named after what holds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mem::Random;
use crate::{Access, Env, FileKind, RandomAccessFile, RandomRwFile, WritableFile};

mod durability;
mod names;
mod queues;
mod reads;
mod writes;

pub use durability::{DURABILITY, DurabilityCase, PowerLoss, durability};

/// The page's example is compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/env.md")]
struct EnvPage;

/// What a case works with: an environment and an empty directory in it.
#[derive(Debug)]
pub struct Site {
    /// The environment under test.
    pub env: Arc<dyn Env>,
    /// A directory that exists and is empty.
    pub dir: PathBuf,
}

/// A property that every environment has.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The property in words.
    pub name: &'static str,
    /// Checks it; panics if it does not hold.
    pub run: fn(&Site),
}

/// Builds a table of cases whose names are those of their functions.
macro_rules! cases {
    ($($module:ident::$name:ident,)*) => {
        &[$(Case { name: stringify!($name), run: $module::$name },)*]
    };
}

/// Every case of [`run`].
pub const CASES: &[Case] = cases![
    reads::exact_inside_the_file_and_an_error_beyond_it,
    reads::a_reader_knows_its_size_and_path,
    reads::an_empty_file_can_be_read,
    reads::opening_what_is_not_a_file_is_an_error,
    reads::many_threads_read_one_file,
    reads::hints_change_nothing,
    names::create_never_touches_an_existing_file,
    names::a_rename_replaces_the_target_and_spares_its_readers,
    names::a_removed_file_stays_readable_where_it_is_open,
    names::removing_and_renaming_what_is_not_there_is_not_found,
    names::a_listing_names_everything_once,
    names::a_listing_survives_files_that_come_and_go,
    names::metadata_tells_absence_from_failure,
    names::a_link_is_a_second_name_for_the_same_bytes,
    names::directories_are_made_with_parents_and_removed_when_empty,
    names::a_lock_excludes_a_second_one_until_it_is_dropped,
    names::free_space_is_told_for_a_directory,
    names::a_synced_directory_can_be_synced_again,
    names::a_report_names_the_environment,
    writes::appends_of_any_size_arrive_in_order,
    writes::flushed_bytes_are_visible_before_they_are_synced,
    writes::an_empty_file_can_be_finished,
    writes::prepared_space_reads_as_zeros_and_is_cut_by_finish,
    writes::appending_beyond_prepared_space_goes_on,
    writes::preparing_below_the_end_changes_nothing,
    writes::syncs_and_preparations_run_beside_appends,
    writes::a_dropped_writer_leaves_its_flushed_bytes,
    writes::files_in_place_grow_with_zeros_and_shrink,
    writes::disjoint_writes_in_place_may_run_at_once,
    writes::opening_for_writing_keeps_what_is_there,
    writes::a_write_in_place_is_taken_if_it_is_aligned_and_refused_whole_if_not,
    queues::reads_agree_with_a_model_for_any_batch,
    queues::a_failed_request_disturbs_no_other,
    queues::every_tag_comes_back_once_and_the_queue_can_be_used_again,
    queues::queues_of_one_thread_are_independent,
    queues::writes_through_a_queue_arrive,
    queues::files_of_another_type_are_served,
    queues::reads_in_flight_survive_the_removal_of_their_file,
    queues::a_dropped_queue_leaves_nothing_behind,
    queues::many_threads_use_queues_of_their_own,
    queues::a_hundred_thousand_requests_complete,
    queues::memory_in_flight_is_bounded,
];

/// Runs every case, each on what `make` gives: an environment, and a directory in it that exists
/// and is empty.
///
/// # Panics
/// If a case fails, after all have run, with the names of those that did.
pub fn run(make: impl Fn() -> (Arc<dyn Env>, PathBuf)) {
    run_all(CASES.iter().map(|case| {
        let make = &make;
        (case.name, move || {
            let (env, dir) = make();
            (case.run)(&Site { env, dir });
        })
    }));
}

/// Runs named checks to the end and then fails if one of them did.
fn run_all<F: FnOnce()>(checks: impl Iterator<Item = (&'static str, F)>) {
    let mut failed = Vec::new();
    for (name, check) in checks {
        // Nothing that a failed check leaves behind is used again.
        if catch_unwind(AssertUnwindSafe(check)).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "conformance cases failed: {}", failed.join(", "));
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn create(&self, name: &str) -> Box<dyn WritableFile> {
        self.env
            .create(&self.path(name), FileKind::Other)
            .unwrap_or_else(|error| panic!("create {name}: {error}"))
    }

    fn open(&self, name: &str) -> Arc<dyn RandomAccessFile> {
        self.env
            .open(&self.path(name), Access::Random)
            .unwrap_or_else(|error| panic!("open {name}: {error}"))
    }

    fn open_rw(&self, name: &str) -> Arc<dyn RandomRwFile> {
        self.env
            .open_rw(&self.path(name))
            .unwrap_or_else(|error| panic!("open {name} for writing: {error}"))
    }

    /// Writes a whole file and finishes it.
    fn write(&self, name: &str, bytes: &[u8]) {
        let mut file = self.create(name);
        done("append", file.append(bytes));
        assert_eq!(done("finish", file.finish()), bytes.len() as u64, "the size of {name}");
    }

    /// Reads a whole file.
    fn read(&self, name: &str) -> Vec<u8> {
        let file = self.open(name);
        read_all(&*file)
    }

    fn size(&self, name: &str) -> Option<u64> {
        done("metadata", self.env.metadata(&self.path(name))).map(|found| found.size)
    }
}

/// Reads a file from start to end.
fn read_all(file: &dyn RandomAccessFile) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(file.size())];
    done("read", file.read_exact_at(&mut bytes, 0));
    bytes
}

/// The value of a call that must succeed.
#[track_caller]
fn done<T>(what: &str, result: crate::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{what} failed: {error}"))
}

/// The error of a call that must fail.
#[track_caller]
fn failed<T>(what: &str, result: crate::Result<T>) -> crate::Error {
    match result {
        Ok(_) => panic!("{what} must fail"),
        Err(error) => error,
    }
}

/// Bytes that tell where they belong: a different sequence for each `seed`.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the suite's files fit in memory")
}

/// Whether an error names the file it is about; wrappers may put another directory before it.
fn names_file(error: &crate::Error, name: &str) -> bool {
    error.path().file_name() == Path::new(name).file_name()
}

/// Tells the other threads of a case to stop, also when the case fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: the flag orders nothing.
        self.0.store(true, Ordering::Relaxed);
    }
}
