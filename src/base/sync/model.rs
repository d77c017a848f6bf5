//! loom's locks and atomics under the names and shapes of the real ones.
//!
//! Time does not pass in a model, and a deadline never comes. A test that relies on one fails as a
//! deadlock, as it should where the deadline was not meant to end the wait.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// A mutex without poison: a panic fails the model anyway.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// `held` is `None` only while the lock is given up for a moment.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    held: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard { lock: self, held: Some(self.0.try_lock().ok()?) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, held: Some(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())) }
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<R>(guard: &mut Self, run: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = run();
        guard.held = guard.lock.lock().held;
        result
    }

    pub(crate) fn bump(guard: &mut Self) {
        Self::unlocked(guard, || {});
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("the lock is held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the lock is held")
    }
}

/// A reader-writer lock without poison.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> loom::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) fn try_read(&self) -> Option<loom::sync::RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) fn try_write(&self) -> Option<loom::sync::RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    #[allow(dead_code)]
    pub(crate) fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A wait never ends by its deadline.
pub(crate) struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("the lock is held");
        guard.held = Some(self.0.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The same as a normal lock.
pub(crate) fn lock_awake<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(feature = "seam")]
pub(crate) fn try_lock_awake<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock()
}

/// Checks once: a later change is another order of the same events.
pub(crate) fn spin_until(mut came: impl FnMut() -> bool) -> bool {
    came()
}

/// Runs the closure in every order with at most this many preemptions of a thread: nearly all races
/// need two. (`LOOM_MAX_PREEMPTIONS` explores further.)
#[cfg(test)]
pub(crate) fn explore(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 100_000;
    let run = std::sync::Arc::new(run);
    builder.check(move || {
        let run = run.clone();
        spawn(move || run()).join().expect("the model ends");
    });
}

/// Starts a thread of a model with a stack for unoptimised code: half a MiB, in words. (A model's
/// first thread has 32 KiB, so [`explore`] starts another one.)
#[cfg(test)]
pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(run).expect("a model has at most 5 threads")
}
