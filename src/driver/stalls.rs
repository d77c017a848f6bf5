//! Since when the watermark stands still, and when that is said.

use std::time::{Duration, Instant};

/// So long the watermark stands still before that is said, and twice as long before it is said again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Since when the watermark stands still, and who watches it.
#[derive(Debug)]
pub(crate) struct Stalls {
    pub(crate) patience: Duration,
    /// The watermark moved, or work came.
    pub(super) since: Instant,
    /// How often it was said since then.
    told: u32,
    /// Something that may stall has begun since the last look.
    pub(super) stirred: bool,
    /// There is a thread that watches.
    pub(super) watched: bool,
    /// It is to write the lines that another thread should not.
    pub(super) tells: bool,
}

impl Default for Stalls {
    fn default() -> Self {
        Self { patience: PATIENCE, since: Instant::now(), told: 0, stirred: false, watched: false, tells: false }
    }
}

impl Stalls {
    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.told) = (now, 0);
    }

    /// The watermark moved, or what it waited for came. The clock is read only if somebody watches.
    pub(super) fn moved(&mut self) {
        if self.watched {
            self.restart(Instant::now());
        }
    }

    /// When it is said next, if nothing moves until then.
    pub(super) fn due(&self) -> Instant {
        let patience = self.patience.saturating_mul(1_u32.checked_shl(self.told).unwrap_or(u32::MAX));
        // Beyond the clock's end: in a day that is computed anew.
        self.since.checked_add(patience).unwrap_or_else(|| self.since + Duration::from_secs(86_400))
    }

    /// It is said now, and again when twice as much time has passed.
    pub(super) fn tell(&mut self, now: Instant) {
        while self.told < 31 && self.due() <= now {
            self.told += 1;
        }
    }
}
