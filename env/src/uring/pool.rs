//! The rings of an environment: made once, each used by one queue at a time.
//!
//! Invariants:
//! * A ring is either in its cell, idle and empty, or out in the hands of exactly one queue. There
//!   is no sharing and nothing is thread-local, so a thread's exit leaks no ring.
//! * Nobody waits for a ring for long: a queue that finds none reads without one. Only one with
//!   direct reads and nobody to hand them to waits a bounded time before it does.
//! * A ring whose state is in doubt never comes back. Its cell makes one new ring at a later
//!   checkout; if that fails, the pool stays smaller by one.
//! * In a forked child there are no rings: their memory was not inherited, and their descriptors
//!   are the parent's.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use std::time::{Duration, Instant};

use super::kernel::{SetupError, with_memory_back_off};
use super::ring::Ring;
use crate::process::Process;
use crate::sync::modelled::{AtomicUsize, Condvar, LooseMutex, fence};
use crate::sync::{AtomicU64, Ordering};
use crate::trace;

/// Makes one more ring like the others, at once or not at all.
pub(crate) type MakeRing = dyn Fn() -> Result<Box<dyn Ring>, SetupError> + Send + Sync;

/// One place for a ring, on cache lines of its own so that queues do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
struct Place {
    cell: LooseMutex<Cell>,
}

#[derive(Debug)]
enum Cell {
    Idle(Box<dyn Ring>),
    Out,
    /// The ring that belonged here was retired; a new one may be made.
    Retired,
    /// So was it, and no new one could be made.
    Lost,
}

/// A ring taken from the pool, and where it belongs.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) ring: Box<dyn Ring>,
    pub(super) place: usize,
}

/// See the module.
pub(crate) struct Pool {
    places: Box<[Place]>,
    make: Box<MakeRing>,
    asked: usize,
    shortfall: Option<SetupError>,
    owner: Process,
    replaced: AtomicU64,
    lost: AtomicU64,
    /// How many threads wait for a ring, and where.
    waiting: AtomicUsize,
    /// How often a place was told to have a ring again, or to get one, while somebody waited.
    news: LooseMutex<u64>,
    freed: Condvar,
}

impl Pool {
    /// Makes up to `asked` rings, the first of which may be there already. Fewer if the kernel
    /// refuses more, or if they would take more than a quarter of the process's descriptors; an
    /// error if it refuses even one.
    pub(crate) fn new(
        asked: usize,
        first: Option<Box<dyn Ring>>,
        make: Box<MakeRing>,
    ) -> Result<Self, SetupError> {
        let mut rings: Vec<Box<dyn Ring>> = first.into_iter().collect();
        let room = room_for_rings();
        let mut shortfall = (asked > room).then_some(SetupError::Setup(libc::EMFILE));
        while rings.len() < asked.min(room) {
            match with_memory_back_off(&make) {
                Ok(ring) => rings.push(ring),
                Err(error) if rings.is_empty() => return Err(error),
                Err(error) => {
                    shortfall = Some(error);
                    break;
                }
            }
        }
        let places =
            rings.into_iter().map(|ring| Place { cell: LooseMutex::new(Cell::Idle(ring)) });
        let places: Box<[Place]> = places.collect();
        if let Some(error) = shortfall {
            trace::fewer_rings(places.len(), asked, error.errno());
        }
        Ok(Self {
            places,
            make,
            asked,
            shortfall,
            owner: Process::current(),
            replaced: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            news: LooseMutex::new(0),
            freed: Condvar::new(),
        })
    }

    /// Whether this process made the rings. False in a forked child, which must not touch them.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner.is_current()
    }

    /// Takes an idle ring for exclusive use; never waits.
    pub(crate) fn take(&self) -> Option<Taken> {
        if !self.is_ours() {
            return None;
        }
        // Each thread starts at a place of its own, so threads seldom meet at a lock.
        let mut hasher = DefaultHasher::new();
        thread::current().id().hash(&mut hasher);
        let start = usize::try_from(hasher.finish() % self.places.len() as u64)
            .expect("a remainder of a usize");
        (0..self.places.len())
            .map(|step| (start + step) % self.places.len())
            .find_map(|place| self.take_from(place))
    }

    /// Takes an idle ring, waiting for one to come back if there is none. It may be the caller who
    /// has them all, in other queues, so the wait must have an end.
    pub(crate) fn take_within(&self, patience: Duration) -> Option<Taken> {
        let deadline = Instant::now() + patience;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // With its like in `tell_who_waits`: who gives back sees that somebody waits, or the look
        // at the places below sees what was given back.
        fence(Ordering::SeqCst);
        let mut seen = *self.news.lock();
        let taken = loop {
            // Without the lock: this may make a ring, which takes long.
            let taken = self.take();
            if taken.is_some() || !self.is_ours() {
                break taken;
            }
            let mut news = self.news.lock();
            let mut late = false;
            while *news == seen && !late {
                late = self.freed.wait_until(&mut news, deadline).timed_out();
            }
            if *news == seen {
                break None;
            }
            seen = *news;
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        taken
    }

    /// A place has a ring again, or may get one.
    fn tell_who_waits(&self) {
        // See `take_within`; the lock of the place was let go before.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.news.lock() += 1;
            self.freed.notify_one();
        }
    }

    fn take_from(&self, place: usize) -> Option<Taken> {
        let mut cell = self.places[place].cell.try_lock()?;
        match std::mem::replace(&mut *cell, Cell::Out) {
            Cell::Idle(ring) => Some(Taken { ring, place }),
            Cell::Retired => {
                let ring = match (self.make)() {
                    Ok(ring) => ring,
                    Err(error) => {
                        self.lost.fetch_add(1, Ordering::Relaxed);
                        *cell = Cell::Lost;
                        drop(cell);
                        trace::ring_lost(error.errno());
                        return None;
                    }
                };
                self.replaced.fetch_add(1, Ordering::Relaxed);
                Some(Taken { ring, place })
            }
            other @ (Cell::Out | Cell::Lost) => {
                *cell = other;
                None
            }
        }
    }

    /// Takes back a ring with nothing in flight and nothing in its submission queue.
    pub(crate) fn give_back(&self, taken: Taken) {
        *self.places[taken.place].cell.lock() = Cell::Idle(taken.ring);
        self.tell_who_waits();
    }

    /// Closes a ring for good. Memory that the kernel might still write to through it must have
    /// been leaked: closing is no barrier.
    pub(crate) fn retire(&self, taken: Taken) {
        let place = taken.place;
        drop(taken);
        *self.places[place].cell.lock() = Cell::Retired;
        self.tell_who_waits();
        trace::ring_retired();
    }

    /// Rings in the pool now, idle or in use.
    pub(crate) fn size(&self) -> usize {
        self.places.len() - usize::try_from(self.lost.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Threads that wait for a ring now.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Rings wished for at construction.
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Why fewer were made, if so.
    pub(crate) fn shortfall(&self) -> Option<SetupError> {
        self.shortfall
    }

    /// Retired rings that were replaced.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Retired rings that could not be replaced.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// How many rings may be made so that most of the process's descriptors are left for its files:
/// each ring is one.
fn room_for_rings() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX).max(1))
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_ours() {
            return;
        }
        // In a child the ring's addresses may by now hold something else: unmapping them would
        // take that away.
        for place in &self.places {
            std::mem::forget(std::mem::replace(&mut *place.cell.lock(), Cell::Lost));
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} rings)", self.size(), self.asked)
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::super::scripted::ScriptedRing;
    use super::*;

    fn scripted(limit: usize) -> (Box<MakeRing>, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let make = move || {
            if counter.fetch_add(1, Ordering::SeqCst) < limit {
                Ok(Box::new(ScriptedRing::new(8)) as Box<dyn Ring>)
            } else {
                Err(SetupError::Setup(libc::ENOMEM))
            }
        };
        (Box::new(make), made)
    }

    /// URING-26
    #[test]
    fn a_refused_ring_makes_a_smaller_pool_and_says_why() {
        let pool = Pool::new(16, None, scripted(3).0).unwrap();
        assert_eq!((pool.size(), pool.asked()), (3, 16));
        assert_eq!(pool.shortfall(), Some(SetupError::Setup(libc::ENOMEM)));
        let none = Pool::new(16, None, scripted(0).0);
        assert_eq!(none.unwrap_err(), SetupError::Setup(libc::ENOMEM));
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn a_small_pool_and_rings_given_up_are_told() {
        let told = trace::told_by(|| {
            let pool = Pool::new(3, None, scripted(2).0).unwrap();
            pool.retire(pool.take().unwrap());
            let taken = [pool.take(), pool.take(), pool.take()];
            assert_eq!(taken.iter().filter(|taken| taken.is_some()).count(), 1);
        });
        let expected = [
            "WARN message=fewer rings than asked for made=2 asked=3 errno=12",
            "WARN message=a ring is given up after a defect",
            "WARN message=a ring that was given up cannot be replaced errno=12",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn no_lock_of_who_waits_is_held_while_a_ring_is_made() {
        let free = Arc::new(AtomicUsize::new(0));
        let pool = Arc::<std::sync::OnceLock<Pool>>::default();
        let (for_make, seen) = (Arc::downgrade(&pool), Arc::clone(&free));
        let make = move || {
            if let Some(pool) = for_make.upgrade().as_ref().and_then(|pool| pool.get()) {
                seen.fetch_add(usize::from(pool.news.try_lock().is_some()), Ordering::SeqCst);
            }
            Ok(Box::new(ScriptedRing::new(8)) as Box<dyn Ring>)
        };
        let pool = pool.get_or_init(|| Pool::new(1, None, Box::new(make)).unwrap());
        pool.retire(pool.take().unwrap());
        assert!(pool.take_within(Duration::ZERO).is_some());
        assert_eq!((free.load(Ordering::SeqCst), pool.waiting()), (1, 0));
    }

    #[test]
    fn a_ring_is_out_until_it_is_given_back() {
        let pool = Pool::new(2, None, scripted(2).0).unwrap();
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        pool.give_back(second);
        let third = pool.take().unwrap();
        assert!(pool.take().is_none());
        pool.give_back(first);
        pool.give_back(third);
        assert_eq!(pool.size(), 2);
    }

    /// URING-26
    #[test]
    fn a_retired_ring_is_replaced_once_and_a_failure_to_do_so_is_counted() {
        let (make, made) = scripted(2);
        let pool = Pool::new(1, None, make).unwrap();
        pool.retire(pool.take().unwrap());
        let replacement = pool.take().unwrap();
        assert_eq!((pool.replaced(), pool.lost()), (1, 0));
        pool.retire(replacement);
        assert!(pool.take().is_none());
        assert!(pool.take().is_none());
        assert_eq!((pool.replaced(), pool.lost()), (1, 1));
        assert_eq!((pool.size(), made.load(Ordering::SeqCst)), (0, 3));
    }
}
