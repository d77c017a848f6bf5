//! Time and chance: the one file that reads a clock or draws a random number.
//!
//! The lint of clippy that bans such calls is on everywhere else. So whatever decides by time takes
//! the time as an argument, and the shells of the loops, and of the calls that users make, ask here.
//! Then a test, a model or a simulator runs the same code with a time of its own.

use crate::base::sync::MutexGuard;
use crate::base::sync::{Condvar, clock};
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// A time to within a tick of the system's timer (a few milliseconds). An exact clock costs as much
/// as all the rest of a short job.
pub(crate) type Coarse = coarsetime::Instant;

/// Reads the monotonic clock.
pub(crate) fn now() -> Instant {
    clock::now()
}

/// Returns how long ago this was.
pub(crate) fn since(begun: Instant) -> Duration {
    now().saturating_duration_since(begun)
}
