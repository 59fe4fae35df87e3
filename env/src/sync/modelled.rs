//! The primitives of protocols that have a model, behind the interface of the real ones.

use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::time::Instant;

use loom::sync::atomic::{AtomicU8, Ordering};

pub(crate) use loom::sync::atomic::{AtomicUsize, fence};

/// loom's mutex. It orders everything around it, and lets nobody find it locked in passing, which
/// is as good as the real one where everything happens under it.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no thread of a model panics while it holds a lock")
    }
}

const LOCKED: u8 = 1;
/// Somebody may be waiting for it.
const AWAITED: u8 = 2;

/// A mutex that orders no more than the real one must: where somebody tries it in passing, or
/// relies on a fence beside it, loom's would hide what is missing.
#[derive(Debug)]
pub(crate) struct LooseMutex<T> {
    state: AtomicU8,
    turn: loom::sync::Mutex<()>,
    free: loom::sync::Condvar,
    data: std::sync::Mutex<T>,
}

impl<T> LooseMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            state: AtomicU8::new(0),
            turn: loom::sync::Mutex::new(()),
            free: loom::sync::Condvar::new(),
            data: std::sync::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> LooseGuard<'_, T> {
        self.enter();
        LooseGuard { mutex: self, data: Some(self.data()) }
    }

    /// Like the real one it looks first, and may see the past.
    pub(crate) fn try_lock(&self) -> Option<LooseGuard<'_, T>> {
        self.try_enter().then(|| LooseGuard { mutex: self, data: Some(self.data()) })
    }

    fn try_enter(&self) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.load(relaxed) == 0
            && self.state.compare_exchange(0, LOCKED, acquire, relaxed).is_ok()
    }

    fn enter(&self) {
        if self.try_enter() {
            return;
        }
        let mut turn = self.turn.lock().expect("no thread of a model panics in here");
        while self.state.swap(LOCKED | AWAITED, Ordering::Acquire) & LOCKED > 0 {
            turn = self.free.wait(turn).expect("no thread of a model panics in here");
        }
    }

    fn leave(&self) {
        if self.state.swap(0, Ordering::Release) & AWAITED > 0 {
            let _turn = self.turn.lock().expect("no thread of a model panics in here");
            self.free.notify_all();
        }
    }

    /// Its contents, for who is in it.
    fn data(&self) -> std::sync::MutexGuard<'_, T> {
        match self.data.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(data)) => data.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("two threads are in one lock"),
        }
    }
}

/// See [`LooseMutex`].
#[derive(Debug)]
pub(crate) struct LooseGuard<'a, T> {
    mutex: &'a LooseMutex<T>,
    /// There but while the holder waits at a [`Condvar`].
    data: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> LooseGuard<'_, T> {
    fn let_go(&mut self) {
        if self.data.take().is_some() {
            self.mutex.leave();
        }
    }
}

impl<T> Deref for LooseGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_ref().expect("it is not waiting")
    }
}

impl<T> DerefMut for LooseGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("it is not waiting")
    }
}

impl<T> Drop for LooseGuard<'_, T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Wakes nobody who was not told, and lets no time pass: a wait that nothing ends is a deadlock,
/// which the model reports.
#[derive(Debug)]
pub(crate) struct Condvar {
    turn: loom::sync::Mutex<()>,
    told: loom::sync::Condvar,
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self { turn: loom::sync::Mutex::new(()), told: loom::sync::Condvar::new() }
    }

    pub(crate) fn notify_one(&self) {
        let _turn = self.turn.lock().expect("no thread of a model panics in here");
        self.told.notify_one();
    }

    /// Does not wait at all if the deadline has passed.
    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut LooseGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        let late = deadline <= Instant::now();
        let turn = self.turn.lock().expect("no thread of a model panics in here");
        guard.let_go();
        if late {
            drop(turn);
        } else {
            drop(self.told.wait(turn));
        }
        guard.mutex.enter();
        guard.data = Some(guard.mutex.data());
        WaitTimeoutResult(late)
    }
}
