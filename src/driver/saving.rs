//! The save under way, and the work for the next one.

use super::{flights::Flight, outbox::Outbox, save_deadline::SaveDeadline, writing::Writing};
use crate::base::time::Now;
use crate::window::{Limits, Window};
use std::time::Instant;

pub(crate) struct Saving {
    pub(crate) under_way: UnderWay,
    /// The jobs that wait for a user's transaction; `None` in other modes.
    pub(crate) writing: Option<Box<Writing>>,
    /// How long workers wait for the saver thread.
    pub(super) deadline: SaveDeadline,
    /// The number of jobs that count as done.
    pub(super) done: u64,
    pub(super) saves: u64,
}

#[derive(Default)]
pub(crate) struct UnderWay {
    pub(super) failures: u32,
    pub(crate) error: Option<String>,
    /// True if only this save is left and was retried for that reason.
    pub(super) last_try: bool,
    pub(super) hurried: bool,
    /// When the save was requested.
    pub(crate) since: Option<Instant>,
    /// When its content was first fixed; measured for observers only.
    pub(super) begun: Option<Instant>,
}

impl Default for Saving {
    fn default() -> Self {
        Self { under_way: UnderWay::default(), writing: None, deadline: SaveDeadline::new(false), done: 0, saves: 0 }
    }
}

impl UnderWay {
    /// Starts the save over with other content.
    pub(super) fn begins_anew(&mut self) {
        (self.failures, self.error, self.hurried) = (0, None, true);
    }
}

impl Saving {
    /// Notes that a save is requested.
    pub(super) fn begin(&mut self, now: &Now) {
        self.under_way.since = Some(now.get());
        self.deadline.begin(now.of_machine(), self.done);
    }

    /// Hurries the save if something waits for it, so that it skips the pace and the back-off. A
    /// failing store is hurried only at the end. `keys_wait`: jobs could start if the save freed
    /// their keys. Returns true if the save is hurried now.
    #[inline]
    pub(super) fn hurries(&mut self, window: &Window, keys_wait: bool) -> bool {
        self.under_way.since.is_some() && !self.under_way.hurried && self.hurry(window, keys_wait)
    }

    #[inline]
    fn hurry(&mut self, window: &Window, keys_wait: bool) -> bool {
        let fails = self.under_way.error.is_some();
        let last = window.is_stopping() && window.in_flight() == 0 && fails;
        let writes = || self.writing.as_ref().is_some_and(|writing| writing.writes_at_once());
        self.under_way.hurried = last || !fails && (window.awaits_save() || keys_wait || writes());
        self.under_way.hurried
    }

    /// True if a save is so late that the worker which has just reported a job has to make it.
    #[inline]
    pub(super) fn is_late(&mut self, now: &Now) -> bool {
        self.deadline.is_overdue(self.done, now)
    }

    /// Sets a job aside that has run, until a transaction has its result.
    #[inline(never)]
    pub(super) fn wait_to_be_written(&mut self, flight: Flight, window: &mut Window, out: &mut Outbox) {
        self.writing.iter_mut().for_each(|writing| writing.wait(flight, window, out));
    }

    /// True if a job waits for a transaction that the next save can include.
    #[inline]
    pub(super) fn can_write(&self, window: &Window) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.can_write(window.lowest_undone()))
    }

    /// True if a transaction is under way or could begin.
    pub(super) fn has_to_write(&self, window: &Window) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_under_way()) || self.can_write(window)
    }

    /// Narrows the limits to the number of results that may wait.
    pub(super) fn narrow(&self, limits: Limits) -> Limits {
        self.writing.as_ref().map_or(limits, |writing| writing.narrow(limits))
    }
}
