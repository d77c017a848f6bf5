//! A wait that spurious wake-ups do not shorten.

use std::time::{Duration, Instant};

/// Parks the thread for at least this long.
pub(crate) fn wait(pause: Duration) {
    let begun = Instant::now();
    while let Some(left) = pause.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
