//! Jobs that are put back: an error while the consumer stops does not count as an attempt, not even
//! as the last one. Jobs that obey `is_stopping` end this way.

use super::{FailedJobs, is_without_runtime};
use crate::base::{Index, caught::Caught, failure::Verdict};
use crate::driver::outbox::Ctx;
use crate::observe::{Event, EventKind};
use crate::window::Window;
use std::time::Duration;

impl FailedJobs {
    /// True if this failure does not count, since the consumer stops. A permanent failure still
    /// does: the job would fail in the next life, too.
    pub(super) fn is_put_back(failure: &Caught, window: &Window) -> bool {
        window.is_stopping() && failure.verdict == Verdict::Retry && !is_without_runtime(failure)
    }

    /// Makes a failed job wait for the next life.
    pub(super) fn put_back(&mut self, index: Index, attempt: u32, text: String, at: &mut Ctx<'_>) {
        at.tell(&Event::new(EventKind::PutBack, index).attempt(attempt).error(&text));
        self.defer(index, attempt, text, Duration::ZERO, at);
    }

    /// Makes a failed redriven job run once more in the next life.
    pub(super) fn redrive_put_back(&mut self, index: Index, attempt: u32, text: &str, at: &mut Ctx<'_>) {
        self.failed += 1;
        self.failures.forget(index);
        self.outlived(index, at.window);
        self.quarantine.no_suspect(index, at.window);
        if self.records.is_parked(index) {
            self.records.note_put_back(index, at);
        }
        at.tell(&Event::new(EventKind::PutBack, index).attempt(attempt).error(text));
    }
}
