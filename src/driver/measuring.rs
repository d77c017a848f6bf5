//! Measurements for the observers: about one a second while there is work or something moves. The
//! thread that watches for stalls makes them.

use super::Driver;
use super::core::Core;
use crate::base::index::Index;
use crate::base::sync::MutexGuard;
use crate::base::time::Now;
use crate::observe::behind::Behind;
use crate::observe::observers::Notice;
use std::time::{Duration, Instant};

/// The time from one measurement to the next.
const PACE: Duration = Duration::from_secs(1);

/// The measurements so far.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    behind: Behind,
    last: Option<Instant>,
    /// The head in the last one.
    head: Option<Index>,
    /// True if the last one has found that nothing is left to do. Until a new job or another head
    /// there is no further one.
    idle: bool,
}

impl Core {
    /// Notes the head that a look has found. True if the thread that watches sleeps too long now.
    pub(super) fn note_head(&mut self, now: &Now) -> bool {
        if !self.is_observed() {
            return false;
        }
        let (head, unprocessed) = (self.window.head(), self.window.lowest_unprocessed());
        self.watching.measuring.behind.shows(head, unprocessed, now.get());
        // The first measurement may come before the first look.
        let is_news = self.moves() || head != self.watching.measuring.head;
        is_news && std::mem::take(&mut self.watching.measuring.idle)
    }

    /// Notes that a parked job is redriven or discarded, which no look at the source shows. If it
    /// returns true, the caller has to [start](Driver::spawn_watch) the thread that watches.
    fn note_steered(&mut self, now: &Now) -> bool {
        if !self.is_observed() {
            return false;
        }
        self.watching.measuring.idle = false;
        self.stir(now.get())
    }

    /// Keeps a measurement for the observers.
    pub(super) fn measure(&mut self, now: &Now) {
        self.notice(|core| {
            let lag = core.watching.measuring.behind.elapsed(core.window.lowest_unprocessed(), now.get());
            Notice::Measured { lag, status: Box::new(core.status(now)) }
        });
        self.watching.measuring.last = Some(now.get());
        self.watching.measuring.head = self.window.head();
    }

    /// Measures if that is due. `again` is the time of the next look for a stall; `None`: the
    /// thread that watches would end. Returns the time of its next step.
    pub(super) fn measure_if_due(&mut self, again: Option<Instant>, now: &Now) -> Option<Instant> {
        let moves = self.moves();
        if !self.is_observed() || self.window.has_ended() || self.watching.measuring.idle && !moves {
            return again;
        }
        let due = self.watching.measuring.last.map_or(now.get(), |last| last + PACE);
        if now.get() >= due || !moves {
            self.measure(now);
            self.watching.measuring.idle = !moves;
        }
        if !moves {
            return again;
        }
        self.watching.stalls.watched = true;
        let next = self.watching.measuring.last.map_or(now.get(), |last| last + PACE);
        Some(again.map_or(next, |again| again.min(next)))
    }

    /// True if a number may change without a new job.
    fn moves(&self) -> bool {
        let window = &self.window;
        let is_behind = window.head().is_some_and(|head| head >= window.lowest_unprocessed());
        is_behind || window.in_flight() > 0 || window.done_ahead() > 0 || window.has_parked_work()
    }
}

impl Driver {
    /// Carries out the actions after a parked job was redriven or discarded. The consumer may have
    /// caught up long ago, so nobody else would measure.
    pub(super) fn settle_parked(&self, mut core: MutexGuard<'_, Core>, now: &Now) {
        let watch = core.note_steered(now);
        self.settle(core, now);
        if watch {
            self.spawn_watch();
        } else {
            // A thread that watches may sleep for seconds.
            self.stall.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retry;
    use crate::observe::Told;
    use crate::observe::events::{Event, Observer};
    use crate::observe::observers::Observers;
    use crate::window::{Limits, Window};

    fn observed(now: Instant) -> Core {
        let window = Window::begin(0, Limits { max_processing: 1, max_search_ahead: 100 });
        let mut core = Core::new(window, Retry::none(), usize::MAX, now);
        let nobody: Box<dyn Observer> = Box::new(|_: &Event<'_>| ());
        core.watching.observers = Observers::new("p".to_owned(), vec![nobody], []);
        core
    }

    /// Returns the lags that were measured since the last time, with the lag in jobs.
    fn measured(core: &mut Core) -> Vec<(Duration, u64)> {
        let told = if core.watching.telling.begin() { core.watching.telling.take() } else { None };
        assert!(core.watching.telling.take().is_none());
        let measured = |told| match told {
            Told::Notice(Notice::Measured { lag, status }) => Some((lag, status.lag())),
            _ => None,
        };
        told.into_iter().flatten().filter_map(measured).collect()
    }

    #[test]
    fn a_consumer_is_measured_each_second_while_it_lags_and_once_when_it_has_caught_up() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut core = observed(start);
        assert_eq!(core.measure_if_due(None, &Now::at(at(0))), None, "it need not be watched");
        assert_eq!(measured(&mut core), [(Duration::ZERO, 0)]);
        assert_eq!(core.measure_if_due(Some(at(9)), &Now::at(at(8))), Some(at(9)));
        assert_eq!(measured(&mut core), [], "nothing is left to do");
        core.window.handle_head(Some(0));
        assert!(core.note_head(&Now::at(at(500))) && !core.note_head(&Now::at(at(600))), "it is woken once");
        assert_eq!(core.measure_if_due(None, &Now::at(at(700))), Some(at(1000)), "it is watched");
        assert_eq!(measured(&mut core), []);
        assert_eq!(core.measure_if_due(Some(at(9000)), &Now::at(at(1000))), Some(at(2000)));
        assert_eq!(measured(&mut core), [(Duration::from_millis(500), 1)]);
        while core.window.poll().is_some() {}
        core.window.handle_fetched(1);
        let job = core.window.poll_run().unwrap();
        assert!(core.window.handle_done(job.index));
        while core.window.poll().is_some() {}
        assert_eq!(core.measure_if_due(None, &Now::at(at(2100))), Some(at(3100)), "it is not saved");
        assert_eq!(measured(&mut core), [(Duration::from_millis(1600), 1)]);
        assert!(core.window.handle_saving().is_some());
        core.window.handle_saved();
        assert_eq!(core.measure_if_due(None, &Now::at(at(2200))), None);
        assert_eq!(measured(&mut core), [(Duration::ZERO, 0)], "at once, since there is no further one");
        assert_eq!(core.measure_if_due(None, &Now::at(at(9000))), None);
        assert_eq!(measured(&mut core), []);
    }

    #[test]
    fn a_head_that_a_look_finds_after_the_measurement_of_an_idle_consumer_is_measured_once() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut core = observed(start);
        core.window = Window::resume(8, Limits { max_processing: 1, max_search_ahead: 100 });
        assert_eq!(core.measure_if_due(None, &Now::at(at(0))), None);
        assert_eq!(measured(&mut core).len(), 1, "before the first look");
        core.window.handle_head(Some(8));
        assert!(core.note_head(&Now::at(at(10))) && !core.note_head(&Now::at(at(20))), "it is woken once");
        assert_eq!(core.measure_if_due(None, &Now::at(at(30))), None, "nothing is left to do");
        assert_eq!(measured(&mut core).len(), 1);
        assert!(!core.note_head(&Now::at(at(40))), "the head is the same");
    }

    #[test]
    fn a_redriven_job_is_measured_until_its_save_has_ended() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut core = observed(start);
        core.window = Window::begin(1, Limits { max_processing: 1, max_search_ahead: 100 });
        assert_eq!(core.measure_if_due(None, &Now::at(at(0))), None);
        assert!(core.window.handle_redriven(0) && core.window.handle_due(0));
        assert!(core.note_steered(&Now::at(at(10))), "nobody watches");
        let step = |core: &mut Core, second| {
            let again = core.measure_if_due(None, &Now::at(at(second)));
            (again, measured(core).len())
        };
        measured(&mut core);
        assert_eq!(step(&mut core, 10), (Some(at(11)), 1), "it waits for a slot");
        while core.window.poll().is_some() {}
        core.window.handle_fetched(1);
        assert_eq!(core.window.poll_run().map(|job| job.index), Some(0));
        assert_eq!(step(&mut core, 11), (Some(at(12)), 1), "it runs");
        assert!(core.window.handle_done(0));
        core.window.handle_changed();
        assert_eq!(step(&mut core, 12), (Some(at(13)), 1), "its record is still there");
        while core.window.poll().is_some() {}
        assert!(core.window.handle_saving().is_some());
        assert_eq!(step(&mut core, 13), (Some(at(14)), 1), "the save may still be refused");
        core.window.handle_saved();
        assert_eq!([step(&mut core, 14), step(&mut core, 15)], [(None, 1), (None, 0)]);
    }
}
