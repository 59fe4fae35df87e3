//! Every interleaving of queues that take rings, wait for them and give them back. A ring that is
//! there while somebody goes on waiting for one is a deadlock, which the model reports.

use loom::sync::Arc;
use loom::thread;

use super::super::scripted::ScriptedRing;
use super::*;

/// No time passes in a model.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A pool whose rings are out.
fn all_out(rings: usize) -> (Arc<Pool>, Vec<Taken>) {
    let make = || Ok(Box::new(ScriptedRing::new(1)) as Box<dyn Ring>);
    let pool = Pool::new(rings, None, Box::new(make)).unwrap();
    let out = std::iter::from_fn(|| pool.take()).collect::<Vec<_>>();
    assert_eq!(out.len(), rings);
    (Arc::new(pool), out)
}

/// A thread that waits for a ring, gives it back, and says whether it got one.
fn user(pool: &Arc<Pool>, patience: Duration) -> thread::JoinHandle<bool> {
    let pool = Arc::clone(pool);
    thread::spawn(move || {
        let taken = pool.take_within(patience);
        taken.map(|taken| pool.give_back(taken)).is_some()
    })
}

/// Three threads have more interleavings than anybody waits for; a fault shows in few changes from
/// one to another.
fn with_few_changes(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

fn nobody_is_left(pool: &Pool) {
    assert_eq!(pool.waiting(), 0);
    assert!(pool.take().is_some(), "the ring is there again");
}

#[test]
fn who_waits_gets_the_ring_that_comes_back() {
    loom::model(|| {
        let (pool, mut out) = all_out(1);
        let waits = user(&pool, FOR_EVER);
        pool.give_back(out.pop().unwrap());
        assert!(waits.join().unwrap());
        nobody_is_left(&pool);
    });
}

#[test]
fn who_waits_gets_a_new_ring_for_one_that_was_retired() {
    loom::model(|| {
        let (pool, mut out) = all_out(1);
        let waits = user(&pool, FOR_EVER);
        pool.retire(out.pop().unwrap());
        assert!(waits.join().unwrap());
        assert_eq!(pool.replaced(), 1);
        nobody_is_left(&pool);
    });
}

#[test]
fn two_who_wait_get_the_one_ring_in_turn() {
    with_few_changes(|| {
        let (pool, mut out) = all_out(1);
        let waiting = [user(&pool, FOR_EVER), user(&pool, FOR_EVER)];
        pool.give_back(out.pop().unwrap());
        waiting.into_iter().for_each(|one| assert!(one.join().unwrap()));
        nobody_is_left(&pool);
    });
}

#[test]
fn who_has_waited_long_enough_takes_no_news_from_another() {
    with_few_changes(|| {
        let (pool, mut out) = all_out(1);
        let (waits, goes) = (user(&pool, FOR_EVER), user(&pool, Duration::ZERO));
        pool.give_back(out.pop().unwrap());
        assert!(waits.join().unwrap());
        goes.join().unwrap();
        nobody_is_left(&pool);
    });
}

#[test]
fn who_takes_in_passing_leaves_nobody_waiting() {
    with_few_changes(|| {
        let (pool, mut out) = all_out(1);
        let waits = user(&pool, FOR_EVER);
        let passes = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.take().map(|taken| pool.give_back(taken))
        });
        pool.give_back(out.pop().unwrap());
        assert!(waits.join().unwrap());
        passes.join().unwrap();
        nobody_is_left(&pool);
    });
}

#[test]
fn two_rings_that_come_back_at_once_serve_who_waits() {
    with_few_changes(|| {
        let (pool, mut out) = all_out(2);
        let waits = user(&pool, FOR_EVER);
        let (first, second) = (out.pop().unwrap(), out.pop().unwrap());
        let gives = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.give_back(first)
        });
        pool.give_back(second);
        assert!(waits.join().unwrap());
        gives.join().unwrap();
        nobody_is_left(&pool);
    });
}
