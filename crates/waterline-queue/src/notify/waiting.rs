//! Waiting on a condition variable.

use parking_lot::{Condvar, MutexGuard};
use std::time::Instant;

/// Waits for a call, or until this moment. Returns true if the time is over.
pub(crate) fn wait_until<T>(condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Option<Instant>) -> bool {
    match until {
        Some(until) => condvar.wait_until(guard, until).timed_out(),
        None => {
            condvar.wait(guard);
            false
        }
    }
}
