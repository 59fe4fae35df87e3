//! Agreement with a `BTreeMap` under random operations, options and environments.
//!
//! Goal: whatever sequence of calls is made, on whatever environment, every answer is the one that
//! a sorted map with copies for snapshots gives.
//!
//! Method: a seed makes the options and a stream of operations ([`driver`]); each runs on the
//! engine and on the map, and every answer is compared. `TREERING_MODEL_SEEDS=first..last` chooses
//! other seeds, `TREERING_MODEL_STEPS` longer streams; a failure prints the seed.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::print_stdout, reason = "a test prints its seed, and why it is skipped")]

mod driver;
mod environments;

use environments::Place;
use std::io::Write;
use std::ops::Range;

/// The seeds to run: `count` of them, or those the environment variable names.
fn seeds(count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("TREERING_MODEL_SEEDS") else { return 0..count };
    let (first, last) = text.split_once("..").expect("TREERING_MODEL_SEEDS=first..last");
    first.parse().unwrap()..last.parse().unwrap()
}

fn steps() -> usize {
    std::env::var("TREERING_MODEL_STEPS").map_or(250, |steps| steps.parse().unwrap())
}

fn run(count: u64, make: impl Fn() -> Place) -> Vec<Place> {
    let mut places = Vec::new();
    for seed in seeds(count) {
        let place = make();
        driver::run(&place, seed, steps());
        places.push(place);
    }
    places
}

fn counted(places: &[Place], counter: &str) -> u64 {
    places.iter().map(|place| place.env.report().counter(counter)).sum()
}

/// Says why a test is not run. Written past the test harness, which would hide it.
fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("standard error can be written");
}

/// Whether rings can be used; says why not.
fn rings_work() -> bool {
    let Err(why) = Place::io_uring() else { return true };
    assert!(std::env::var_os("TREERING_REQUIRE_IO_URING").is_none(), "{why}");
    skipped(&why.to_string());
    false
}

#[test]
fn the_engine_agrees_with_a_map_in_memory() {
    run(200, Place::memory);
}

#[test]
fn the_engine_agrees_with_a_map_on_posix_reading_serially() {
    run(25, || Place::posix(false));
}

#[test]
fn the_engine_agrees_with_a_map_on_posix_reading_ahead() {
    let places = run(25, || Place::posix(true));
    assert!(counted(&places, "nowait_hit") + counted(&places, "nowait_miss") > 0);
}

#[test]
fn the_engine_agrees_with_a_map_on_mapped_tables() {
    let places = run(12, Place::mapped);
    assert!(counted(&places, "mmap_reads") > 0);
}

#[test]
fn the_engine_agrees_with_a_map_on_direct_tables() {
    if !Place::can_be_direct() {
        return skipped("no direct I/O beside the build's output");
    }
    let places = run(12, Place::direct);
    // The ends of tables are at no block's boundary.
    assert!(counted(&places, "bounce_bytes") > 0);
}

#[test]
fn the_engine_agrees_with_a_map_where_the_reactor_writes_everything() {
    if !rings_work() {
        return;
    }
    let places = run(12, || Place::reactor(false).unwrap());
    assert!(counted(&places, "reactor_writes") > 0);
}

#[test]
fn the_engine_agrees_with_a_map_on_direct_tables_through_rings() {
    if !rings_work() {
        return;
    }
    if !Place::can_be_direct() {
        return skipped("no direct I/O beside the build's output");
    }
    let places = run(12, || Place::reactor(true).unwrap());
    assert!(counted(&places, "reactor_writes") > 0);
    // Nothing is in the page cache, so no read of a batch can be served without the ring.
    assert!(counted(&places, "ring_reads") > 0);
}

/// On the ring the pages are dropped from the cache again and again, so that the misses really go
/// through it; a run in which they did not is a failure.
#[test]
fn the_engine_agrees_with_a_map_on_io_uring() {
    if !rings_work() {
        return;
    }
    let many_at_once = |places: &[Place]| {
        let peak = places.iter().map(|place| place.env.report().counter("in_flight_peak")).max();
        counted(places, "ring_reads") > 0 && peak > Some(1)
    };
    // On a busy machine a page may be in the cache before the look for it ends.
    let used = (0..5).any(|_| many_at_once(&run(40, || Place::io_uring().unwrap())));
    assert!(used, "never were several reads in a ring");
}
