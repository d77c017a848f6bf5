//! The settings of a window: where it begins and ends, its gate and its limits.

use super::{LAST_JOB, Limits, Window};
use crate::base::Index;
use core::ops::RangeInclusive;

impl Window {
    /// Makes saves also contain the jobs done above the watermark.
    pub fn keep_done_ahead(&mut self) {
        self.ahead.keep();
    }

    /// Tells the window which jobs above the watermark an earlier life had done. To be called
    /// before anything else happens.
    pub fn restore(&mut self, done: impl IntoIterator<Item = RangeInclusive<Index>>) {
        for run in done {
            self.ahead.restore(*run.start().max(&self.done)..=*run.end().min(&LAST_JOB));
        }
        // `next` moves first: `advance` forgets the bits that it passes, and `next` goes by them.
        self.pass_restored();
        self.done = self.ahead.advance(self.done);
    }

    /// Makes the window end once everything up to and including this index is processed and saved,
    /// and nothing above it runs. Of several calls, the lowest index holds.
    pub fn stop_at(&mut self, index: Index) {
        self.stop_at = Some(self.stop_at.map_or(index, |earlier| earlier.min(index)));
        self.retries.reach(reach!(self));
    }

    /// Sets the gate: a job that was never started may start only below this index. 0 closes the
    /// gate, and [`Index::MAX`] opens it for all jobs. A started job is not taken back.
    pub fn handle_gate(&mut self, open_below: Index) {
        self.gate = open_below;
    }

    /// Sets new limits. A lower limit takes back no job in flight.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.retries.reach(reach!(self));
    }

    /// Pauses or resumes. A paused window starts no new job and no retry.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Sets whether the window is full, so that nothing starts until more is saved (backpressure).
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }
}
