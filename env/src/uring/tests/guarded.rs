//! The tests of rings once more, with buffers that notice what the kernel does to them too late.

use std::process::Command;

use super::*;

/// What is run again: every test of queues and of the reactor, on scripted and on real rings, and
/// those of this module in which memory is dropped while the kernel works on it.
const AGAIN: [&str; 12] = [
    "uring::queue::",
    "uring::reactor::",
    "dropping_and_unwinding_with_reads_in_flight_wait_for_them",
    "threads_that_read_once_and_exit_get_right_bytes",
    "threads_that_hand_writes_over_and_exit_lose_none",
    "two_thousand_threads_that_read_past_the_cache_and_exit_leave_nothing_wrong",
    "popped_buffers_may_be_leaked_and_moved_while_others_are_in_flight",
    "long_requests_equal_what_pread_gives",
    "direct_reads_of_any_alignment_are_exact_and_end_at_the_end",
    "direct_tables_have_the_same_bytes_by_every_way_of_writing",
    "blocks_of_a_table_go_through_the_reactor_and_the_report_proves_it",
    "reads_go_on_when_entering_is_denied_in_mid_run",
];

/// What is not: a test that asks a pool about its free memory, of which there is none here, and
/// those that read thousands of times what a few reads show here as well.
const NOT_AGAIN: [&str; 4] = [
    "a_shutdown_with_a_write_that_never_ends_returns_in_time_and_frees_nothing",
    "for_every_length",
    "memory_is_bounded_by_the_window_whatever_is_pushed",
    "every_short_prefix_is_kept_and_only_the_rest_is_fetched",
];

/// URING-11, URING-12, URING-13: memory that a queue, an unwinding or a dead reactor gives back is
/// never written to afterwards, and none is written to beyond its end.
#[test]
fn no_buffer_is_touched_after_it_was_given_back_or_beyond_its_end() {
    if refused() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(AGAIN)
        .args(NOT_AGAIN.iter().flat_map(|test| ["--skip", test]))
        .env("TREERING_GUARD_BUFFERS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let tests = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{tests}\n{said}", output.status);
    let guarded = said.lines().find_map(|line| line.strip_prefix("guarded: ")).unwrap();
    let (buffers, touched) = guarded.split_once(" buffers, ").unwrap();
    assert!(buffers.parse::<u64>().unwrap() > 10_000, "only {buffers} buffers were guarded");
    assert_eq!(touched, "0 touched too late");
    for name in AGAIN {
        assert!(tests.contains(name), "{name} did not run: {tests}");
    }
    assert!(!tests.contains("running 0 tests") && !tests.contains("running 1 test\n"), "{tests}");
}
