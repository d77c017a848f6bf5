//! The locks and atomics of the crate, and short spins of threads that should not fall asleep.
//!
//! With `--cfg waterline_loom` they are loom's, which runs a test in every order of its threads.

#[cfg(waterline_loom)]
mod model;

#[cfg(all(waterline_loom, feature = "seam"))]
pub(crate) use self::model::try_lock_awake;
#[cfg(waterline_loom)]
pub(crate) use self::model::{
    AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, RwLock, lock_awake, spin_until,
};
#[cfg(all(test, waterline_loom))]
pub(crate) use self::model::{explore, spawn};
#[cfg(waterline_loom)]
pub(crate) use loom::sync::RwLockWriteGuard;
#[cfg(not(waterline_loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};
#[cfg(not(waterline_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// How often a thread tries a lock before it sleeps: some ten times as long as the driver's lock is
/// held.
#[cfg(not(waterline_loom))]
const LOOKS: usize = 512;

/// Locks for a thread that others wait for. If it slept or yielded while busy threads have all the
/// cores, it would wait for a core some ten thousand times as long as the lock is held.
#[cfg(not(waterline_loom))]
pub(crate) fn lock_awake<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    try_lock_awake(mutex).unwrap_or_else(|| mutex.lock())
}

/// Locks if it is free now or within some microseconds.
#[cfg(not(waterline_loom))]
pub(crate) fn try_lock_awake<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..LOOKS {
        if let Some(guard) = mutex.try_lock() {
            return Some(guard);
        }
        std::hint::spin_loop();
    }
    None
}

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::Ordering;

/// Sleeps until woken or until the deadline, if any. Returns true if the deadline came.
pub(crate) fn wait_until<T>(
    condvar: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    deadline: Option<std::time::Instant>,
) -> bool {
    match deadline {
        Some(deadline) => condvar.wait_until(guard, deadline).timed_out(),
        None => {
            condvar.wait(guard);
            false
        }
    }
}

/// How long a thread spins for an event that is about to come: half the cost of waking the thread.
/// In that time a worker uses up half of what was read, if jobs are so short that waking a thread
/// costs more than running them.
#[cfg(not(waterline_loom))]
const SPIN: std::time::Duration = std::time::Duration::from_micros(10);

/// Returns whether the condition becomes true within some microseconds. Spinning is far cheaper for
/// both sides than falling asleep and being woken.
#[cfg(not(waterline_loom))]
pub(crate) fn spin_until(mut came: impl FnMut() -> bool) -> bool {
    let until = super::time::now() + SPIN;
    loop {
        for _ in 0..32 {
            if came() {
                return true;
            }
            std::hint::spin_loop();
        }
        if super::time::now() >= until {
            return false;
        }
        // The thread that makes it true may be waiting for this very core.
        std::thread::yield_now();
    }
}
