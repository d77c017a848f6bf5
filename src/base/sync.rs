//! The locks, atomics and threads that the crate is written in, named once, and the art of staying awake for a moment.
//!
//! With `--cfg waterline_loom` they are loom's, which runs a test in every order that its threads can meet.

#[cfg(waterline_loom)]
mod model;

#[cfg(all(test, waterline_loom))]
pub(crate) use self::model::explore;
#[cfg(waterline_loom)]
pub(crate) use self::model::{AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, RwLock, lock_awake, watch};
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
    for _ in 0..LOOKS {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        std::hint::spin_loop();
    }
    mutex.lock()
}

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::Ordering;

/// How long a thread stays awake for what is about to come: half of what waking it would cost, and time enough for a worker
/// to use up half of what was read when jobs are so short that waking anybody costs more than running them.
#[cfg(not(waterline_loom))]
const WATCH: std::time::Duration = std::time::Duration::from_micros(10);

/// Whether it comes true within the next microseconds: far cheaper than falling asleep and being woken, for both sides.
#[cfg(not(waterline_loom))]
pub(crate) fn watch(mut came: impl FnMut() -> bool) -> bool {
    let until = std::time::Instant::now() + WATCH;
    loop {
        for _ in 0..32 {
            if came() {
                return true;
            }
            std::hint::spin_loop();
        }
        if std::time::Instant::now() >= until {
            return false;
        }
        // Whoever will make it true may be waiting for this very core.
        std::thread::yield_now();
    }
}
