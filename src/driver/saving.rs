//! The save that is under way, and the work for the next one.

use super::flights::Flight;
use super::outbox::Outbox;
use super::save_deadline::Patience;
use super::writing::Writing;
use crate::base::time::Now;
use crate::window::{Limits, Window};
use std::time::Instant;

/// The save that is under way, and the work for the next one.
pub(crate) struct Saving {
    pub(crate) under_way: UnderWay,
    /// The jobs that wait for a transaction of the user's; `None` in every other mode.
    pub(crate) writing: Option<Box<Writing>>,
    /// The patience of the threads of the pool with the thread that saves.
    pub(super) patience: Patience,
    /// The number of jobs that count as done.
    pub(super) done: u64,
    /// The number of saves.
    pub(super) saves: u64,
}

/// The save that is under way, if there is one.
#[derive(Default)]
pub(crate) struct UnderWay {
    pub(super) failures: u32,
    pub(crate) error: Option<String>,
    /// True if the consumer only waits for this save, and it was tried again for that.
    pub(super) last_try: bool,
    pub(super) hurried: bool,
    /// The time since which the save is under way.
    pub(crate) since: Option<Instant>,
    /// The time at which its content was fixed first. It is measured for observers alone.
    pub(super) begun: Option<Instant>,
}

impl Default for Saving {
    fn default() -> Self {
        Self { under_way: UnderWay::default(), writing: None, patience: Patience::new(false), done: 0, saves: 0 }
    }
}

impl UnderWay {
    /// The save is made again at once, with another content.
    pub(super) fn begins_anew(&mut self) {
        (self.failures, self.error, self.hurried) = (0, None, true);
    }
}

impl Saving {
    /// A save is asked for.
    pub(super) fn begin(&mut self, now: &Now) {
        self.under_way.since = Some(now.get());
        self.patience.begin(now.of_machine(), self.done);
    }

    /// Hurries the save if something waits for it: then it waits for neither the pace nor the
    /// back-off. A failing store is hurried only for the end. Returns true if it is hurried now.
    #[inline]
    pub(super) fn hurries(&mut self, window: &Window) -> bool {
        self.under_way.since.is_some() && !self.under_way.hurried && self.hurry(window)
    }

    fn hurry(&mut self, window: &Window) -> bool {
        let fails = self.under_way.error.is_some();
        let last = window.is_stopping() && window.in_flight() == 0 && fails;
        self.under_way.hurried = last || !fails && (window.awaits_save() || self.writes_at_once());
        self.under_way.hurried
    }

    fn writes_at_once(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.writes_at_once())
    }

    /// True if a save has been due for so long that the thread which has just reported a job is to
    /// make it.
    #[inline]
    pub(super) fn is_late(&mut self, now: &Now) -> bool {
        self.patience.is_lost(self.done, now)
    }

    /// A job has run, and its result waits for a transaction.
    #[inline(never)]
    pub(super) fn wait_to_be_written(&mut self, flight: Flight, window: &mut Window, out: &mut Outbox) {
        self.writing.iter_mut().for_each(|writing| writing.wait(flight, window, out));
    }

    /// True if a job waits for a transaction, and the next save can take it.
    #[inline]
    pub(super) fn can_write(&self, window: &Window) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.can_write(window.lowest_undone()))
    }

    /// True if a transaction is under way, or could begin.
    pub(super) fn has_to_write(&self, window: &Window) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_under_way()) || self.can_write(window)
    }

    /// Makes limits narrow enough for the results that may wait.
    pub(super) fn narrow(&self, limits: Limits) -> Limits {
        self.writing.as_ref().map_or(limits, |writing| writing.narrow(limits))
    }
}
