//! Rings that ask the device for completions, on the real kernel.

use super::*;
use crate::os_file::{OsFile, polling};
use crate::uring::assembly::asking_pool;
use crate::uring::kernel::LADDER;
use crate::uring::queue::RingQueue;

/// URING-37
#[test]
fn without_a_disk_that_can_be_asked_the_environment_is_refused_with_the_remedy() {
    if refused() {
        return;
    }
    let made = IoUringEnv::builder().rings(2).direct_reads(true).iopoll(true).build();
    if polling::disks().iter().any(|(_, polls)| *polls) {
        let report = made.unwrap().report().to_string();
        assert!(report.contains("rings that ask the device: 2 of 2"), "{report}");
        return;
    }
    let cause = made.unwrap_err();
    assert!(matches!(cause, Unavailable::NoPollQueues { .. }), "{cause}");
    assert!(cause.to_string().contains("nvme.poll_queues="), "{cause}");
}

/// URING-37: a driver may say that it can be asked and then refuse; or it can.
#[test]
fn a_device_that_will_not_be_asked_is_read_right_and_left_alone_from_then_on() {
    if refused() {
        return;
    }
    let dir = on_disk();
    let path = cold_file(&dir, "t", 64 * 4 * 4096);
    let env = IoUringEnv::builder().rings(2).direct_reads(true).build().unwrap();
    let plain = &env.shared;
    let rings = || asking_pool(1, 64, LADDER[4], false).unwrap();
    // What is refused has no other ring to go to, and goes by a plain call.
    let shared = Arc::new(Shared {
        os: Arc::clone(&plain.os),
        pool: rings(),
        asking: Some(rings()),
        breaker: plain.breaker.clone(),
        max_in_flight: 64,
        nowait: true,
        write_path: WritePath::Auto,
        registered: None,
        merging: plain.merging,
        reactor: None,
    });
    let file = env.open(&path, Access::Random).unwrap();
    OsFile::of(&*file).unwrap().device().pretend_to_poll();
    let ranges = scattered(64);
    let mut queue = RingQueue::new(&shared);
    for (tag, request) in requests(&file, &ranges).into_iter().enumerate() {
        queue.push(tag as u64, request);
    }
    let mut done = 0;
    while let Some(completion) = queue.pop() {
        let (offset, len) = ranges[usize::try_from(completion.tag).unwrap()];
        assert!(*completion.result.unwrap() == bytes(offset, len)[..]);
        done += 1;
    }
    let report = env.report();
    let [reads, refusals] = ["iopoll_reads", "iopoll_refused"].map(|name| report.counter(name));
    assert!(done == 64 && reads > 0, "{report}");
    assert_eq!(OsFile::of(&*file).unwrap().device().polls(), refusals == 0, "{report}");
    assert_eq!(report.counter("ring_reads"), report.counter("ring_cqes"), "{report}");
}
