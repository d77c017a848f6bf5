//! The time since which the watermark stands still, and the times at which a line says so.

use crate::base::time::Now;
use std::time::{Duration, Instant};

/// The time for which the watermark stands still before that is said. It is said again after twice
/// as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of the watch over the watermark.
#[derive(Debug)]
pub(crate) struct Stalls {
    pub(crate) patience: Duration,
    /// The time at which the watermark moved, or work came.
    pub(super) since: Instant,
    /// The number of times that it was said since then.
    told: u32,
    /// True if something that may stall has begun since the last look.
    pub(super) stirred: bool,
    /// True while there is a thread that watches.
    pub(super) watched: bool,
    /// True if that thread is to write the lines that another thread should not.
    pub(super) tells: bool,
}

impl Stalls {
    pub(super) fn new(now: Instant) -> Self {
        Self { patience: PATIENCE, since: now, told: 0, stirred: false, watched: false, tells: false }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.told) = (now, 0);
    }

    /// Notes that the watermark moved, or that the work came that it waited for. The clock is read
    /// only if a thread watches.
    pub(super) fn moved(&mut self, now: &Now) {
        if self.watched {
            self.restart(now.get());
        }
    }

    /// Returns the time of the next line, if nothing moves until then.
    pub(super) fn due(&self) -> Instant {
        let patience = self.patience.saturating_mul(1_u32.checked_shl(self.told).unwrap_or(u32::MAX));
        // Beyond the clock's end: in a day that is computed anew.
        self.since.checked_add(patience).unwrap_or_else(|| self.since + Duration::from_secs(86_400))
    }

    /// Notes that the line is written now. The next one is due after twice as much time.
    pub(super) fn tell(&mut self, now: Instant) {
        while self.told < 31 && self.due() <= now {
            self.told += 1;
        }
    }
}
