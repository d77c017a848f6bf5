//! The watch over the watermark: the time since which it stands still, and the measurements of it.

use super::out::Out;
use super::stalls::Stalls;
use crate::base::index::Index;
use crate::base::time::Now;
use crate::crew::Roster;
use crate::observe::Kind;
use crate::observe::behind::Behind;
use crate::window::Window;
use std::time::{Duration, Instant};

/// The state of the watch over the watermark.
pub(crate) struct Watching {
    pub(crate) stalls: Stalls,
    pub(super) measuring: Measuring,
}

/// The measurements so far.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    behind: Behind,
    pub(super) last: Option<Instant>,
    /// The head in the last one.
    head: Option<Index>,
    /// True if the last one has found that nothing is left to do. Until a new job or another head
    /// there is no further one.
    pub(super) idle: bool,
}

impl Watching {
    pub(super) fn new(now: Instant) -> Self {
        Self { stalls: Stalls::new(now), measuring: Measuring::default() }
    }

    /// Notes that something begins that may stall. If it returns true, the caller has to start the
    /// thread that watches, which is counted as present already.
    pub(super) fn stir(&mut self, window: &Window, out: &Out, roster: &mut Roster, now: Instant) -> bool {
        self.stalls.stirred = true;
        let wanted = Kind::Stalled.is_heard() || out.observers.is_some();
        if self.stalls.watched || window.has_ended() || !wanted {
            return false;
        }
        self.stalls.restart(now);
        self.stalls.watched = true;
        roster.count_in();
        true
    }

    /// Notes the head that a look has found. True if the thread that watches sleeps too long now.
    pub(super) fn note_head(&mut self, window: &Window, now: &Now) -> bool {
        let head = window.head();
        self.measuring.behind.shows(head, window.lowest_unprocessed(), now.get());
        // The first measurement may come before the first look.
        let is_news = moves(window) || head != self.measuring.head;
        is_news && std::mem::take(&mut self.measuring.idle)
    }

    /// Returns the time since which the oldest job waits that is not processed.
    pub(super) fn lag(&mut self, window: &Window, now: &Now) -> Duration {
        self.measuring.behind.elapsed(window.lowest_unprocessed(), now.get())
    }

    /// Notes that a measurement was made.
    pub(super) fn measured(&mut self, window: &Window, now: &Now) {
        self.measuring.last = Some(now.get());
        self.measuring.head = window.head();
    }
}

/// True if a number may change without a new job.
pub(super) fn moves(window: &Window) -> bool {
    let is_behind = window.head().is_some_and(|head| head >= window.lowest_unprocessed());
    is_behind || window.in_flight() > 0 || window.done_ahead() > 0 || window.has_parked_work()
}

/// True if all that the source is known to have is processed.
pub(super) fn is_caught_up(window: &Window) -> bool {
    let (next, head) = (window.lowest_undone(), window.head());
    let ahead_of_source = window.last_processed().is_some_and(|last| head.is_none_or(|head| head < last));
    head.is_none_or(|head| head < next) && !ahead_of_source
}
