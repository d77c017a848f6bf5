//! The locks and atomics that the crate is written in, named once, and the art of staying awake for a moment.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use std::time::{Duration, Instant};

/// How long a thread stays awake for what is about to come: half of what waking it would cost, and time enough for a worker
/// to use up half of what was read when jobs are so short that waking anybody costs more than running them.
const WATCH: Duration = Duration::from_micros(10);

/// Whether it comes true within the next microseconds: far cheaper than falling asleep and being woken, for both sides.
pub(crate) fn watch(mut came: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + WATCH;
    loop {
        for _ in 0..32 {
            if came() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
        // Whoever will make it true may be waiting for this very core.
        std::thread::yield_now();
    }
}
