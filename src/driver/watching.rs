//! The thread that notices a stall: the watermark does not move, though there is work.
//!
//! No other thread can notice it: the reader may hang in the source, the workers may hang in their
//! jobs, and without the network all of them may hang. So the thread `wl-watch` looks every ten
//! seconds. It exists only while a stall is possible: a look at the source starts it, and it ends
//! when it has twice found nothing to do. An idle consumer whose source rings has no such thread.
//! An idle consumer that polls its source has one, which wakes every ten seconds. If neither a
//! subscriber wants the lines nor an observer listens, the thread is not started.

use super::Driver;
use super::core::Core;
use super::measuring::Measuring;
use super::stalls::{Said, Stalls};
use crate::base::sync::{Arc, MutexGuard};
use crate::base::time::{Now, Sleep};
use crate::observe::Telling;
use crate::observe::observers::{Notice, Observers};
use crate::observe::status::Blocked;
use crate::observe::{Event, Kind};
use std::time::{Duration, Instant};

/// The events that are to be told, and the watch over the watermark.
pub(crate) struct Watching {
    pub(super) telling: Telling,
    pub(crate) stalls: Stalls,
    /// The observers and the calls for a stall, if the user has any.
    pub(crate) observers: Option<Arc<Observers>>,
    pub(super) measuring: Measuring,
}

impl Watching {
    pub(super) fn new(now: Instant) -> Self {
        Self { telling: Telling::default(), stalls: Stalls::new(now), observers: None, measuring: Measuring::default() }
    }
}

impl Core {
    /// True if all that the source is known to have is processed.
    fn is_caught_up(&self) -> bool {
        let (next, head) = (self.window.lowest_undone(), self.window.head());
        let ahead_of_source = self.window.last_processed().is_some_and(|last| head.is_none_or(|head| head < last));
        head.is_none_or(|head| head < next) && !ahead_of_source
    }

    /// True if the watermark waits for something that a look at the source may bring: a job, or a
    /// gate that opens.
    pub(super) fn waits_for_look(&self) -> bool {
        self.is_caught_up() || self.is_gated(self.window.lowest_undone())
    }

    /// Notes that something begins that may stall. If it returns true, the caller has to
    /// [start](Driver::spawn_watch) the thread that watches, which is counted as present already.
    pub(super) fn stir(&mut self, now: Instant) -> bool {
        self.watching.stalls.stirred = true;
        let wanted = Kind::Stalled.is_heard() || self.watching.observers.is_some();
        if self.watching.stalls.watched || self.window.has_ended() || !wanted {
            return false;
        }
        self.watching.stalls.restart(now);
        self.watching.stalls.watched = true;
        self.roster.count_in();
        true
    }

    /// Notes that a look at the source begins. The answer is that of [`stir`](Self::stir).
    pub(super) fn stir_for_look(&mut self, now: Instant) -> bool {
        // A source that fails has stalled since it first did.
        if self.reading.look_error.is_none() && self.is_caught_up() {
            self.watching.stalls.restart(now);
        }
        self.stir(now)
    }

    /// Makes a step of the thread that watches. If it returns true, the thread writes lines before
    /// it sleeps.
    fn step_watch(&mut self, now: &Now) -> (bool, Sleep) {
        let again = self.look_for_stall(now);
        let again = self.measure_if_due(again, now);
        let tells = std::mem::take(&mut self.watching.stalls.tells) || self.begin_telling();
        // More may have come while it writes, so it looks again at once.
        (tells, again.map_or(Sleep::End, |again| if tells { Sleep::No } else { Sleep::Until(Some(again)) }))
    }

    /// Tells of a stall that was not told of yet. Returns the time of the next look, or `None` if
    /// the caller ends its watch.
    fn look_for_stall(&mut self, at: &Now) -> Option<Instant> {
        let now = at.get();
        self.watching.telling.flush(now);
        if self.roster.is_last_thread() {
            self.watching.stalls.watched = false;
            return None;
        }
        if let Some(until) = self.lingers_until(now) {
            // It waits as it was asked to, so that is no stall.
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
            self.tell(&Event { error: Some(&text), ..event }, at);
        }
        if !self.window.has_ended() {
            self.notice_stall(&said, event.elapsed.unwrap_or_default(), at);
        }
        Some(self.watching.stalls.due())
    }

    /// Keeps a stall for the observers, and for the calls that the user wants.
    fn notice_stall(&mut self, said: &Said, elapsed: Duration, now: &Now) {
        if said.line {
            self.notice(|core| Notice::Stalled { elapsed, status: Box::new(core.stalled_status(now)) });
        }
        for alarm in &said.alarms {
            let status = Box::new(self.stalled_status(now));
            self.watching.telling.notice(Notice::Alarm { alarm: *alarm, status });
        }
    }

    /// Returns the event for the thing that the watermark or the end waits for, or `None` if they
    /// wait only for new jobs.
    fn stalled(&self, now: &Now) -> Option<(Event<'static>, String)> {
        let elapsed = Some(now.get().saturating_duration_since(self.watching.stalls.since));
        let event = |index| Event { elapsed, ..Event::new(Kind::Stalled, index) };
        let status = self.stalled_status(now);
        let next = self.window.lowest_undone();
        let lowest = self.running.flights.iter().min_by_key(|flight| flight.index);
        if let Some(flight) = lowest.filter(|_| self.window.is_stopping()) {
            let text = self.running(flight, now).to_string();
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
                // A job that fails again and again is mostly seen while it runs.
                if let Some(failed) = self.failures.before_this_attempt(*index) {
                    text.push_str(&format!("; attempt {} failed: {}", failed.attempt, failed.error));
                }
                Some((event(*index).attempt(*attempt), text))
            }
            Blocked::Retrying { index, attempt, .. } => {
                Some((event(*index).attempt(*attempt), status.blocked.to_string()))
            }
            blocked => Some((event(next), blocked.to_string())),
        }
    }
}

/// Beyond the end of the clock, the next look is in a day.
fn later(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + Duration::from_secs(86_400))
}

impl Driver {
    /// Starts the thread that watches, after [`Core::stir`] said so.
    pub(super) fn spawn_watch(&self) {
        let me = self.crew.host().clone();
        let spawned = self.crew.spawn_counted("wl-watch", move || {
            if let Some(me) = me.upgrade() {
                me.watch_for_stalls();
            }
        });
        if let Err(error) = spawned {
            let mut core = self.core.lock();
            // The next call of `stir` tries again.
            core.watching.stalls.watched = false;
            let tells = std::mem::take(&mut core.watching.stalls.tells);
            let now = self.clock.when_asked();
            core.tell_of_refusal(&error, &now);
            self.settle(core, &now);
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
                MutexGuard::unlocked(&mut core, || self.tell());
            }
            match sleep {
                Sleep::No | Sleep::Spin | Sleep::Awhile(_) => {}
                Sleep::Until(until) => _ = self.clock.wait(&self.stall, &mut core, until),
                Sleep::End => return,
            }
        }
    }

    /// Carries out the actions after a save. The calling thread may be the store's writer, with a
    /// lock held that a subscriber may need. So it leaves the lines to the thread that watches,
    /// which exists while there is work.
    pub(super) fn settle_saving(&self, mut core: MutexGuard<'_, Core>, now: &Now) {
        let mut wakes = core.drain(now);
        let mut elsewhere = std::mem::take(&mut wakes.tell);
        if elsewhere && core.watching.stalls.watched {
            elsewhere = false;
            core.watching.stalls.tells = true;
            self.stall.notify_all();
        }
        // If no thread watches, a new thread writes the lines.
        if elsewhere {
            core.roster.count_in();
        }
        drop(core);
        let me = self.crew.host().clone();
        let tell = move || me.upgrade().into_iter().for_each(|me| me.tell());
        wakes.tell = elsewhere && self.crew.spawn_counted("wl-lines", tell).is_err();
        self.carry_out(wakes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retry;
    use crate::base::error::Error;
    use crate::driver::batches::Batches;
    use crate::driver::standby::Refusal;
    use crate::observe::listening::Listens;
    use crate::window::{Limits, Window};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A consumer that has work up to this head, and is watched from this moment on.
    fn watched(head: Option<u64>, now: Instant) -> Core {
        let window = Window::begin(0, Limits { max_processing: 1, max_search_ahead: 100 });
        let mut core = Core::new(window, Retry::none(), usize::MAX, now);
        core.reading.seen = true;
        core.window.handle_head(head);
        assert!(core.stir(now) && !core.stir(now), "one thread watches");
        core
    }

    #[test]
    fn a_stall_is_told_of_after_ten_seconds_and_at_each_doubling_until_the_watermark_moves() {
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
    fn a_consumer_that_waits_for_its_name_does_not_stall() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(Some(5), now);
        let refusal = Refusal::of(Error::InUse { name: "p".to_owned() }).unwrap();
        core.await_name(refusal, &Now::at(now));
        assert!(core.stalled(&Now::at(now + PATIENCE)).is_none());
        core.look_for_stall(&Now::at(now + PATIENCE));
        assert_eq!(core.look_for_stall(&Now::at(now + PATIENCE * 2)), None, "the thread ends");
    }

    #[test]
    fn a_batch_that_waits_for_more_jobs_is_no_stall_until_its_time_is_over() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let now = Instant::now();
        let mut core = watched(Some(0), now);
        core.window.set_limits(Limits { max_processing: 4, max_search_ahead: 100 });
        core.running.batches = Some(Batches::new(4, PATIENCE * 5 / 2));
        while core.window.poll().is_some() {}
        core.window.handle_fetched(1);
        assert!(core.has_work(now), "a thread is to wait with job 0");
        let mut look = |at: u32| {
            let again = core.look_for_stall(&Now::at(now + PATIENCE * at / 2)).map(|again| again - now);
            (again.map(|again| again * 2), core.begin_telling())
        };
        let no_stall = |halves: u32| (Some(PATIENCE * halves), false);
        assert_eq!([look(2), look(4), look(5)], [no_stall(4), no_stall(5), no_stall(7)]);
        assert!(look(7).1, "no thread has taken it for ten seconds");
    }

    #[test]
    fn a_watcher_ends_when_it_had_nothing_to_do_twice_and_the_next_look_at_the_source_starts_it() {
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
}
