//! What other kernels and other days would do, forced upon this one: flags that are refused, calls
//! that end early.

use super::*;
use crate::sys::KernelSys;
use crate::sys::scripted::{Call, Fault, ScriptedSys, When};
use crate::uring::kernel::{LADDER, REFUSED, RingFlags};

/// URING-22
#[test]
fn whatever_flags_the_kernel_refuses_reads_are_parallel_and_the_report_names_the_step() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let ranges = scattered(64);
    let mut steps = HashSet::new();
    for bits in 0..16_u32 {
        let rejected = RingFlags {
            disabled_first: bits & 1 != 0,
            submit_all: bits & 2 != 0,
            coop_taskrun: bits & 4 != 0,
            no_sqarray: bits & 8 != 0,
        };
        REFUSED.set(rejected);
        let env = IoUringEnv::builder().rings(1).nowait(false).merge_limit(0);
        let env = env.write_path(WritePath::Caller).build();
        REFUSED.set(LADDER[LADDER.len() - 1]);
        let env = env.unwrap();
        let report = env.report();
        let fact = report.facts.iter().find(|fact| fact.name == "ring flags").unwrap();
        let step = LADDER.iter().find(|flags| !rejected.meet(**flags)).unwrap();
        assert_eq!(fact.value, step.to_string(), "{rejected} refused");
        assert_eq!(fact.why.is_some(), *step != LADDER[0], "{report}");
        steps.insert(step.to_string());
        evict(&path);
        let file = env.open(&path, Access::Random).unwrap();
        assert_right(&read_batch(&env, requests(&file, &ranges)), &ranges);
        let report = env.report();
        assert!(report.counter("ring_reads") >= 60, "{rejected} refused: {report}");
        assert!(report.counter("in_flight_peak") >= 16, "{rejected} refused: {report}");
        assert!(report.counter("sqes_per_enter_peak") >= 16, "{rejected} refused: {report}");
        assert_eq!(report.counter("fallback_preads"), 0, "{rejected} refused: {report}");
    }
    assert_eq!(steps.len(), LADDER.len(), "each step was taken");
}

/// ENV-02: what a ring brings is cut at every place by script; here, what the calls beside it do.
#[test]
fn a_call_that_ends_early_at_any_place_of_a_block_is_gone_on_with() {
    const LEN: usize = 16 << 10;
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = dir.path().join("t");
    std::fs::write(&path, bytes(0, 3 * LEN)).unwrap();
    let expected = bytes(100, LEN);
    let splits: Vec<usize> = (1..LEN).collect();
    for splits in splits.chunks(512) {
        let sys = ScriptedSys::new(Arc::new(KernelSys));
        let builder = IoUringEnv::builder().rings(1).write_path(WritePath::Caller);
        let env = IoUringEnv::with_sys(Arc::clone(&sys) as _, &builder).unwrap();
        let file = env.open(&path, Access::Random).unwrap();
        assert_right(&read_batch(&env, requests(&file, &[(0, 1)])), &[(0, 1)]);
        let mut memory = vec![0; LEN];
        for split in splits {
            let cut = sys.rule(Call::Pread, "t", When::Nth(0), Fault::Short(*split));
            memory.fill(0);
            file.read_exact_at(&mut memory, 100).unwrap();
            assert!(memory == expected, "a read cut at {split}");
            let looked = sys.rule(Call::ReadNowait, "t", When::Nth(0), Fault::Short(*split));
            let queued = read_batch(&env, requests(&file, &[(100, LEN)]));
            assert!(**queued[0].as_ref().unwrap() == expected[..], "a look cut at {split}");
            assert_eq!((cut.fired(), looked.fired()), (1, 1));
            cut.lift();
            looked.lift();
        }
    }
}
