//! What the picker chooses, and what it never chooses.

use super::*;
use crate::compaction::{pending_bytes, target_size};
use crate::version::testing::{put, tiny_options, version};

fn file(number: u64, first: &str, last: &str, size: u64) -> Arc<FileMeta> {
    Arc::new(FileMeta::new(number, size, put(first, 1), put(last, 1)))
}

fn numbers(files: &[Arc<FileMeta>]) -> Vec<u64> {
    files.iter().map(|file| file.number).collect()
}

fn range<'a>(begin: &'a str, end: &'a str) -> KeyRange<'a> {
    KeyRange { begin: Some(begin.as_bytes()), end: Some(end.as_bytes()) }
}

#[test]
fn nothing_is_due_within_the_targets() {
    let options = tiny_options();
    let mut picker = Picker::new(0);
    assert!(picker.pick(&Arc::default(), &options).is_none());
    let quiet = version(&[(0, &[file(1, "a", "z", 9)]), (1, &[file(2, "a", "z", 1_999)])]);
    assert!(!Picker::is_due(&quiet, &options));
    assert!(picker.pick(&quiet, &options).is_none());
    assert_eq!(pending_bytes(&quiet, &options), 0);
    assert_eq!(target_size(&options, 1), 2_000);
    assert_eq!(target_size(&options, 3), 8_000);
}

#[test]
fn level_0_goes_down_as_a_whole_with_all_that_it_overlaps() {
    let options = tiny_options();
    let level0 = [file(9, "m", "p", 10), file(8, "c", "d", 10)];
    let level1 =
        [file(1, "a", "b", 1), file(2, "d", "f", 1), file(3, "h", "i", 1), file(4, "p", "q", 1)];
    let version = version(&[(0, &level0), (1, &level1), (2, &[file(5, "g", "g", 1)])]);
    let mut picker = Picker::new(7);
    let compaction = picker.pick(&version, &options).unwrap();
    assert_eq!((compaction.family, compaction.level, compaction.output_level), (7, 0, 1));
    assert_eq!(numbers(&compaction.inputs[0]), [9, 8]);
    assert_eq!(numbers(&compaction.inputs[1]), [2, 3, 4]);
    assert_eq!(numbers(&compaction.grandparents), [5]);
    assert_eq!(compaction.end, b"q");
    assert!(!compaction.trivial_move);
    let edit = compaction.edit(Vec::new());
    assert_eq!(edit.removed, [(7, 0, 9), (7, 0, 8), (7, 1, 2), (7, 1, 3), (7, 1, 4)]);
    assert!(pending_bytes(&version, &options) > 0);
}

#[test]
fn every_part_of_a_level_has_its_turn() {
    let options = tiny_options();
    let level1 = [file(1, "a", "b", 1_000), file(2, "c", "d", 1_000), file(3, "e", "f", 1_000)];
    let version = version(&[(1, &level1)]);
    let mut picker = Picker::new(0);
    let order: Vec<u64> = (0..5)
        .map(|_| {
            let compaction = picker.pick(&version, &options).unwrap();
            assert!(compaction.trivial_move);
            compaction.inputs[0][0].number
        })
        .collect();
    assert_eq!(order, [1, 2, 3, 1, 2]);
}

#[test]
fn a_table_moves_as_it_is_only_where_it_overlaps_little() {
    let options = tiny_options();
    let level1 = [file(1, "a", "m", 3_000)];
    for (size, is_move) in [(7_000, true), (7_001, false)] {
        let version = version(&[(1, &level1), (3, &[file(2, "b", "c", size)])]);
        let compaction = Picker::new(0).pick(&version, &options).unwrap();
        assert_eq!(compaction.trivial_move, is_move);
        assert_eq!(numbers(&compaction.grandparents), [2]);
    }
    let version = version(&[(1, &level1), (2, &[file(2, "m", "z", 1)])]);
    let compaction = Picker::new(0).pick(&version, &options).unwrap();
    assert!(!compaction.trivial_move, "the last key of one is the first of the other");
}

#[test]
fn neighbours_join_when_they_cost_nothing() {
    let options = tiny_options();
    let level1 = [file(1, "a", "c", 900), file(2, "d", "f", 900), file(3, "g", "z", 900)];
    let version = version(&[(1, &level1), (2, &[file(4, "b", "e", 100), file(5, "y", "z", 100)])]);
    let compaction = Picker::new(0).pick(&version, &options).unwrap();
    assert_eq!(numbers(&compaction.inputs[0]), [1, 2]);
    assert_eq!(numbers(&compaction.inputs[1]), [4]);
}

/// SNAP-08
#[test]
fn no_table_is_in_two_jobs_and_no_two_jobs_write_one_range() {
    let options = tiny_options();
    let level1 = [file(1, "a", "c", 2_000), file(2, "p", "r", 2_000)];
    let level2 = [file(3, "b", "q", 100)];
    let mut picker = Picker::new(0);
    let shared = version(&[(1, &level1), (2, &level2)]);
    let first = picker.pick(&shared, &options).unwrap();
    assert!(first.all_inputs().all(|(_, file)| file.is_being_compacted()));
    assert!(picker.pick(&shared, &options).is_none(), "both tables need table 3");
    assert!(matches!(
        picker.pick_range(&shared, &options, (1, 2), KeyRange::default()),
        RangePick::Busy
    ));
    assert!(
        matches!(
            picker.pick_range(&shared, &options, (2, 3), KeyRange::default()),
            RangePick::Busy
        ),
        "table 3 is an input already, though of a job that writes another level"
    );
    assert!(picker.is_running());
    drop(first);
    assert!(!picker.is_running());
    assert!(level1.iter().chain(&level2).all(|file| !file.is_being_compacted()));

    // A table that came into a gap of level 1 while the tables around it move down: it shares no
    // table with that job, and yet both would write into one range of level 2.
    let first = match picker.pick_range(&shared, &options, (1, 2), KeyRange::default()) {
        RangePick::Job(job) => job,
        other => panic!("{other:?}"),
    };
    assert_eq!((numbers(&first.inputs[0]), numbers(&first.inputs[1])), (vec![1, 2], vec![3]));
    let wide = [level1[0].clone(), file(6, "h", "i", 2_000), level1[1].clone()];
    let later = version(&[(1, &wide)]);
    assert!(matches!(
        picker.pick_range(&later, &options, (1, 2), range("h", "i")),
        RangePick::Busy
    ));
    drop(first);
    assert!(matches!(
        picker.pick_range(&later, &options, (1, 2), range("h", "i")),
        RangePick::Job(_)
    ));
}

#[test]
fn a_manual_range_comes_in_pieces_of_bounded_size() {
    let options = tiny_options();
    let limit = options.table_size * MAX_INPUT_TABLES;
    let level1 = [
        file(1, "a", "b", limit / 2),
        file(2, "c", "d", limit / 2),
        file(3, "e", "f", limit / 2),
        file(4, "g", "h", 2 * limit),
    ];
    let version = version(&[(0, &[file(9, "x", "z", 1), file(8, "a", "b", 1)]), (1, &level1)]);
    let mut picker = Picker::new(0);
    let mut pick = |levels, range| match picker.pick_range(&version, &options, levels, range) {
        RangePick::Job(job) => numbers(&job.inputs[0]),
        RangePick::Nothing => Vec::new(),
        RangePick::Busy => panic!("nothing else runs"),
    };
    assert_eq!(pick((1, 2), KeyRange::default()), [1, 2]);
    assert_eq!(pick((1, 1), range("d", "e")), [2, 3]);
    assert_eq!(pick((1, 1), range("g", "g")), [4]);
    assert_eq!(pick((1, 2), range("bb", "bc")), [0_u64; 0]);
    assert_eq!(pick((0, 1), range("x", "x")), [9, 8], "older tables never stay above newer ones");
    assert_eq!(pick((0, 1), range("c", "d")), [0_u64; 0]);
}
