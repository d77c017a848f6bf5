//! The locks and atomics that the crate is written in, named once, and how a thread stays awake for
//! a moment.
//!
//! With `--cfg waterline_loom` they are loom's, which runs a test in every order that its threads
//! can meet.

#[cfg(waterline_loom)]
mod model;

#[cfg(waterline_loom)]
pub(crate) use self::model::{
    AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, RwLock, lock_awake, spin_until, try_lock_awake,
};
#[cfg(all(test, waterline_loom))]
pub(crate) use self::model::{explore, spawn};
#[cfg(waterline_loom)]
pub(crate) use loom::sync::RwLockWriteGuard;
#[cfg(not(waterline_loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};
#[cfg(not(waterline_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// The looks at a lock before a thread falls asleep for it: some ten times as long as the driver's
/// lock is held.
#[cfg(not(waterline_loom))]
const LOOKS: usize = 512;

/// Locks it for a thread that others wait for. If it slept or yielded while busy threads have all
/// the cores, it would wait for its next turn at a core: some ten thousand times as long as the
/// lock is held.
#[cfg(not(waterline_loom))]
pub(crate) fn lock_awake<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    try_lock_awake(mutex).unwrap_or_else(|| mutex.lock())
}

/// Locks it if it is free now or within some microseconds.
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

/// Sleeps until somebody wakes the caller, or until the deadline, if there is one. True: the
/// deadline came.
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

/// The time for which a thread stays awake for what is about to come. It is half of what waking the
/// thread would cost. In that time a worker uses up half of what was read, when jobs are so short
/// that waking anybody costs more than running them.
#[cfg(not(waterline_loom))]
const SPIN: std::time::Duration = std::time::Duration::from_micros(10);

/// Returns true if it comes true within the next microseconds. To spin is far cheaper than to fall
/// asleep and be woken, for both sides.
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
        // The thread that will make it true may be waiting for this very core.
        std::thread::yield_now();
    }
}
