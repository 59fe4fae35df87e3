//! The verdict function against its table, over every combination of its inputs.

use super::*;

const X: u64 = 4096;

/// One row of the table in `docs/format/record.md`: whether it applies, and what it says.
type Rule = (fn(&Evidence, &Bounds) -> bool, fn(&Evidence, &Bounds) -> Verdict);

fn beyond(end: Option<u64>) -> bool {
    end == Some(X + 8)
}

/// What a tail is: itself in the newest file, else damage.
fn tail(bounds: &Bounds, tail: Verdict) -> Verdict {
    match (bounds.is_newest, bounds.policy) {
        (false, _) => Verdict::Corruption(Damage::NotNewest),
        (true, TailPolicy::RefuseOnAny) => Verdict::Corruption(Damage::Refused),
        (true, TailPolicy::TruncateUnwitnessed) => tail,
    }
}

const TABLE: [Rule; 8] = [
    (
        |evidence, _| matches!(evidence.stop, Stop::Broken(_)),
        |_, _| Verdict::Corruption(Damage::Broken("broken")),
    ),
    (
        |evidence, _| evidence.witness.is_some_and(|witness| witness.watermark == X + 8),
        |evidence, _| Verdict::Corruption(Damage::Witnessed(evidence.witness.unwrap())),
    ),
    (
        |_, bounds| beyond(bounds.successor_end),
        |_, _| Verdict::Corruption(Damage::Successor(X + 8)),
    ),
    (|_, bounds| beyond(bounds.recorded_end), |_, _| Verdict::Corruption(Damage::Recorded(X + 8))),
    (|_, bounds| bounds.successor_end == Some(X), |_, _| Verdict::CutEarlier),
    (|evidence, _| evidence.later_records != 0, |_, bounds| tail(bounds, Verdict::UnsyncedReorder)),
    (|evidence, _| evidence.tail_end == X, |_, _| Verdict::CleanEnd),
    (|_, _| true, |_, bounds| tail(bounds, Verdict::TornTail)),
];

#[test]
fn every_combination_of_evidence_and_bounds_gets_the_table_s_verdict() {
    let stops = [Stop::NoRecord("no record"), Stop::Broken("broken")];
    let watermarks = [None, Some(0), Some(X - 8), Some(X), Some(X + 8)];
    let ends = [None, Some(0), Some(X - 8), Some(X), Some(X + 8)];
    let policies = [TailPolicy::TruncateUnwitnessed, TailPolicy::RefuseOnAny];
    let mut used = [0; TABLE.len()];
    let mut combinations = 0;
    for stop in stops {
        for watermark in watermarks {
            for tail_end in [X, X + 1000] {
                let witness = watermark.map(|watermark| Witness { offset: X + 64, watermark });
                let evidence = Evidence {
                    offset: X,
                    stop,
                    tail_end,
                    later_records: u64::from(witness.is_some()),
                    witness,
                    highest_wal_seq: witness.map(|_| 17),
                };
                for successor_end in ends {
                    for recorded_end in ends {
                        for is_newest in [false, true] {
                            for policy in policies {
                                let bounds =
                                    Bounds { successor_end, recorded_end, is_newest, policy };
                                let row = TABLE.iter().position(|rule| rule.0(&evidence, &bounds));
                                let row = row.unwrap();
                                used[row] += 1;
                                combinations += 1;
                                let expected = TABLE[row].1(&evidence, &bounds);
                                assert_eq!(
                                    verdict(&evidence, &bounds),
                                    expected,
                                    "row {row}: {evidence:?} {bounds:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(combinations, 2 * 5 * 2 * 5 * 5 * 2 * 2);
    assert!(used.iter().all(|&count| count > 0), "every row applied somewhere: {used:?}");
}

#[test]
fn damage_is_reported_with_file_offset_and_witness() {
    let evidence = Evidence {
        offset: X,
        stop: Stop::NoRecord("no record header"),
        tail_end: X + 400,
        later_records: 1,
        witness: Some(Witness { offset: X + 64, watermark: X + 8 }),
        highest_wal_seq: Some(17),
    };
    let error = settle(Path::new("db/000007.log"), &evidence, &NEWEST).unwrap_err();
    assert_eq!(
        error.to_string(),
        "corruption: db/000007.log at offset 4096: no record header, though the record at offset \
         4160 proves the file durable up to 4104"
    );
}

#[test]
fn a_cut_says_how_much_it_leaves_out_and_why() {
    let evidence = Evidence {
        offset: X,
        stop: Stop::NoRecord("no record header"),
        tail_end: X + 400,
        later_records: 0,
        witness: None,
        highest_wal_seq: None,
    };
    let cut = settle(Path::new("db/000007.log"), &evidence, &NEWEST).unwrap();
    let expected = Cut { offset: X, dropped_bytes: 400, reason: CutReason::TornTail };
    assert_eq!(cut, Some(expected));
    let clean = Evidence { tail_end: X, ..evidence };
    assert_eq!(settle(Path::new("db/000007.log"), &clean, &NEWEST).unwrap(), None);
}
