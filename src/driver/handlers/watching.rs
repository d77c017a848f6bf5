//! The stall watcher: a thread that notices when the watermark does not move though there is work.
//!
//! No other thread can: the reader may hang in the source and the workers in their jobs, and
//! without the network all of them may hang. So the thread `wl-watch` looks every ten seconds,
//! while a stall is possible: a look at the source starts it, and it ends once it has found nothing
//! to do twice. An idle consumer has no such thread if its source rings, and one that wakes every
//! ten seconds if it polls. It is never started without a subscriber to the lines and without an
//! observer.

use crate::base::time::{Now, Sleep};
use crate::driver::watching::{StallReport, moves};
use crate::driver::{Driver, core::Core};
use crate::observe::{Event, EventKind, observers::Notice, status::Blocked};
use std::time::{Duration, Instant};

impl Core {
    /// Makes a step of the stall watcher. True if the thread has to write lines before it sleeps.
    fn step_watch(&mut self, now: &Now) -> (bool, Sleep) {
        let again = self.look_for_stall(now);
        let again = self.measure_if_due(again, now);
        let tells = std::mem::take(&mut self.watching.stalls.tells) || self.begin_telling();
        // More lines may come meanwhile, so it looks again at once.
        (tells, again.map_or(Sleep::End, |again| if tells { Sleep::No } else { Sleep::Until(Some(again)) }))
    }

    /// Notes a pause, a resume, a redrive or a discard, which no look at the source shows. If it
    /// returns true, the caller has to [start](Driver::spawn_watch) the stall watcher.
    pub(super) fn note_steered(&mut self, now: &Now) -> bool {
        if !self.out.is_observed() {
            return false;
        }
        self.watching.measuring.idle = false;
        self.stir(now.get())
    }

    /// Measures if that is due. `again` is when to look for a stall next, or `None` if the watcher
    /// would end. Returns when its next step is.
    fn measure_if_due(&mut self, again: Option<Instant>, now: &Now) -> Option<Instant> {
        // A status shows how long a source has been failing, too.
        let moves = moves(&self.window) || self.reading.look_error.is_some();
        if !self.out.is_observed() || self.window.has_ended() || self.watching.measuring.idle && !moves {
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

    /// Reports a new stall. Returns when to look next, or `None` if the watcher has to end.
    fn look_for_stall(&mut self, at: &Now) -> Option<Instant> {
        let now = at.get();
        self.out.telling.flush(now);
        if self.registry.is_last_thread() {
            self.watching.stalls.watched = false;
            return None;
        }
        if let Some(until) = self.running.lingers_until(&self.window, now) {
            // A batch that lingers as configured is no stall.
            let again = until.min(later(now, self.watching.stalls.pause()));
            self.watching.stalls.restart(again);
            return Some(again);
        }
        let due = self.watching.stalls.due();
        if now < due {
            return Some(due);
        }
        let Some((event, text)) = self.stalled(at) else {
            self.watching.stalls.watched = std::mem::take(&mut self.watching.stalls.stirred);
            return self.watching.stalls.watched.then(|| later(now, self.watching.stalls.pause()));
        };
        let said = self.watching.stalls.tell(now);
        if said.line {
            self.out.tell(&Event { error: Some(&text), ..event }, at);
        }
        if !self.window.has_ended() {
            self.notice_stall(&said, event.elapsed.unwrap_or_default(), at);
        }
        Some(self.watching.stalls.due())
    }

    /// Keeps a stall for the observers and the user's alarms.
    fn notice_stall(&mut self, said: &StallReport, elapsed: Duration, now: &Now) {
        if said.line && self.out.is_observed() {
            let notice = Notice::Stalled { elapsed, status: Box::new(self.stalled_status(now)) };
            self.out.telling.notice(notice);
        }
        for alarm in &said.alarms {
            let status = Box::new(self.stalled_status(now));
            self.out.telling.notice(Notice::Alarm { alarm: *alarm, status });
        }
    }

    /// Returns the event that names what the watermark or end waits for, unless only for new jobs.
    fn stalled(&self, now: &Now) -> Option<(Event<'static>, String)> {
        let elapsed = Some(now.get().saturating_duration_since(self.watching.stalls.since));
        let event = |index| Event { elapsed, ..Event::new(EventKind::Stalled, index) };
        let status = self.stalled_status(now);
        let next = self.window.lowest_undone();
        let lowest = self.running.flights.iter().min_by_key(|flight| flight.index);
        if let Some(flight) = lowest.filter(|_| self.window.is_stopping()) {
            let text = self.job_in_flight(flight, now).to_string();
            return Some((event(flight.index).attempt(flight.attempt), text));
        }
        if self.window.has_ended() {
            let text = "it has ended, but a call into the source, a callback or a destructor has not returned";
            return Some((Event { index: None, ..event(next) }, text.to_owned()));
        }
        match &status.blocked {
            Blocked::CaughtUp | Blocked::Paused | Blocked::InUse { .. } => None,
            Blocked::Running { index, attempt, .. } | Blocked::Overdue { index, attempt, .. } => {
                let mut text = status.blocked.to_string();
                // A job that fails again and again is usually seen while it runs.
                if let Some(failed) = self.failed_jobs.failures.before_this_attempt(*index) {
                    text.push_str(&format!("; attempt {} failed: {}", failed.attempt, failed.error));
                }
                Some((event(*index).attempt(*attempt), text))
            }
            Blocked::Retrying { index, attempt, .. } => {
                Some((event(*index).attempt(*attempt), status.blocked.to_string()))
            }
            _ => Some((event(next), status.reason().to_string())),
        }
    }
}

/// The time from one measurement to the next.
const PACE: Duration = Duration::from_secs(1);

/// Returns the end of this pause; beyond the end of the clock, a day from now.
fn later(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + Duration::from_secs(86_400))
}

impl Driver {
    /// Starts the stall watcher, once [`Core::stir`] returned true.
    pub(super) fn spawn_watch(&self) {
        let me = self.threads.host().clone();
        let spawned = self.threads.spawn_counted("wl-watch", move || {
            if let Some(me) = me.upgrade() {
                me.watch_for_stalls();
            }
        });
        if let Err(error) = spawned {
            let tells = self.step(|core, now| {
                // The next call of `stir` tries again.
                core.watching.stalls.watched = false;
                core.out.tell_of_refusal(core.window.lowest_undone(), &error, now);
                std::mem::take(&mut core.watching.stalls.tells)
            });
            if tells {
                self.tell();
            }
        }
    }

    fn watch_for_stalls(&self) {
        let mut core = self.core.lock();
        loop {
            let (tells, sleep) = core.step_watch(&self.clock.when_asked());
            if tells {
                core.unlocked(|| self.tell());
            }
            match sleep {
                Sleep::No | Sleep::Spin | Sleep::Awhile(_) => {}
                Sleep::Until(until) => _ = core.wait_by(&self.clock, &self.stall, until),
                Sleep::End => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;
    use crate::driver::{running::BatchSettings, samples, tenure::NameInUse};
    use crate::observe::{Told, events::Observer, listening::Listens, observers::Observers};
    use crate::window::{Limits, Window};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A watched consumer that has work up to this head.
    fn watched(head: Option<u64>, now: Instant) -> Core {
        let mut core = samples::core(1, 100, now);
        core.reading.seen = true;
        core.window.handle_head(head);
        assert!(core.stir(now) && !core.stir(now), "one thread watches");
        core
    }

    #[test]
    fn a_stall_is_told_after_10_s_and_each_doubling() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(Some(5), now);
        let mut look = |at: u32| core.look_for_stall(&Now::at(now + PATIENCE * at / 10)).map(|again| again - now);
        assert_eq!(look(0), Some(PATIENCE));
        assert_eq!(look(9), Some(PATIENCE), "not yet");
        assert_eq!([look(10), look(15), look(20)], [2, 2, 4].map(|times| Some(PATIENCE * times)));
        assert_eq!(look(100), Some(PATIENCE * 16), "what was slept through is said once");
        core.watching.stalls.restart(now + PATIENCE * 11);
        assert_eq!(core.look_for_stall(&Now::at(now + PATIENCE * 11)), Some(now + PATIENCE * 12));
    }

    #[test]
    fn a_standby_does_not_stall() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(Some(5), now);
        let refusal = NameInUse::of(Error::InUse { name: "p".to_owned() }).unwrap();
        core.await_name(refusal, &Now::at(now));
        assert!(core.stalled(&Now::at(now + PATIENCE)).is_none());
        core.look_for_stall(&Now::at(now + PATIENCE));
        assert_eq!(core.look_for_stall(&Now::at(now + PATIENCE * 2)), None, "the thread ends");
    }

    #[test]
    fn a_batch_is_no_stall_until_its_linger_ends() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(Some(0), now);
        core.window.set_limits(Limits { max_processing: 4, max_search_ahead: 100 });
        core.running.batches = Some(BatchSettings::new(4, PATIENCE * 5 / 2));
        while core.window.poll().is_some() {}
        core.window.handle_fetched(1);
        assert!(core.running.has_work(&core.window, &core.failed_jobs.failures, now), "a thread is to wait with job 0");
        let mut look = |at: u32| {
            let again = core.look_for_stall(&Now::at(now + PATIENCE * at / 2)).map(|again| again - now);
            (again.map(|again| again * 2), core.begin_telling())
        };
        let no_stall = |halves: u32| (Some(PATIENCE * halves), false);
        assert_eq!([look(2), look(4), look(5)], [no_stall(4), no_stall(5), no_stall(7)]);
        assert!(look(7).1, "no thread has taken it for ten seconds");
    }

    #[test]
    fn an_idle_watcher_ends_and_the_next_look_starts_it() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(None, now);
        assert_eq!(core.look_for_stall(&Now::at(now + PATIENCE)), Some(now + PATIENCE * 2), "there was a look since");
        assert_eq!(core.look_for_stall(&Now::at(now + PATIENCE * 2)), None);
        let later = now + PATIENCE * 1000;
        assert!(core.stir_for_look(later));
        core.window.handle_head(Some(5));
        assert_eq!(
            core.look_for_stall(&Now::at(later)),
            Some(later + PATIENCE),
            "the time without work does not count"
        );
    }

    fn observed(now: Instant) -> Core {
        let mut core = samples::core(1, 100, now);
        let nobody: Box<dyn Observer> = Box::new(|_: &crate::observe::events::Event<'_>| ());
        core.out.observers = Observers::new("p".to_owned(), vec![nobody], []);
        core
    }

    /// Returns the lags measured since the last call, as a time and as a number of jobs.
    fn measured(core: &mut Core) -> Vec<(Duration, u64)> {
        let told = if core.out.telling.begin() { core.out.telling.take() } else { None };
        assert!(core.out.telling.take().is_none());
        let measured = |told| match told {
            Told::Notice(Notice::Measured { lag, status }) => Some((lag, status.lag())),
            _ => None,
        };
        told.into_iter().flatten().filter_map(measured).collect()
    }

    #[test]
    fn measured_each_second_while_it_lags_and_once_after() {
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
    fn a_new_head_of_an_idle_consumer_is_measured_once() {
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
    fn a_redriven_job_is_measured_until_it_is_saved() {
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
