//! A wait that is as long as it is said to be.

use std::time::{Duration, Instant};

/// Waits for this long: a parked thread may wake up by itself.
pub(crate) fn wait(pause: Duration) {
    let begun = Instant::now();
    while let Some(left) = pause.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
