//! The state under the lock: the window, and beside it what the window must not know (jobs, clocks,
//! errors).
//!
//! Each part owns its state and knows no other. Here they come together: each event goes into the
//! window, and its actions become [`Wakes`], which the driver carries out once the lock is free.

use super::end_condition::{Gates, kept_below};
use super::failed_jobs::{FailedJobs, ParkedNews, Recovered};
use super::outbox::{Ctx, Ending, Outbox, Wakes};
use super::waiters::{Announcing, Waiters};
use super::{
    flights::Flight,
    reading::{Caller, Reading},
    running::Running,
    saving::Saving,
    tenure::Tenancy,
    watching::Watching,
};
use crate::base::{BoxError, Index, caught::Caught, clock::Clock, guard::Guarded, retry::Retry, sync::Arc, time::Now};
use crate::observe::{Event, EventKind, observers::Notice};
use crate::reader::Ask;
use crate::run::OnJobDone;
use crate::threads::ThreadRegistry;
use crate::threads::workers::{Demand, Wake, Workers};
use crate::window::{Action, Limits, Window};
use std::time::Instant;

pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) window: Window,
    pub(crate) out: Outbox,
    pub(super) ending: Ending,
    pub(super) failed_jobs: FailedJobs,
    pub(crate) reading: Reading,
    pub(crate) gates: Gates,
    pub(crate) running: Running,
    pub(crate) saving: Saving,
    pub(crate) tenancy: Tenancy,
    pub(crate) announcing: Announcing,
    pub(super) waiters: Waiters,
    pub(crate) watching: Watching,
    pub(crate) workers: Workers,
    /// The threads that are present, and the guard of the progress name.
    pub(crate) registry: ThreadRegistry,
}

/// Returns the demand for workers, apart from results that wait for the sink.
#[inline]
pub(super) fn demand(window: &Window) -> Demand {
    let (runnable, limit) = (window.can_run(), window.limits().max_processing);
    Demand { runnable, limit, over: window.has_ended() }
}

impl Core {
    pub(crate) fn new(window: Window, retry: Retry, max_read_ahead: usize, now: Instant) -> Self {
        let mut core = Self {
            clock: Clock::default(),
            window,
            out: Outbox::default(),
            ending: Ending::default(),
            failed_jobs: FailedJobs::new(retry),
            reading: Reading::new(max_read_ahead),
            gates: Gates::default(),
            running: Running::default(),
            saving: Saving::default(),
            tenancy: Tenancy::default(),
            announcing: Announcing::default(),
            waiters: Waiters::default(),
            watching: Watching::new(now),
            workers: Workers::default(),
            registry: ThreadRegistry::default(),
        };
        core.reading.fit_prefetch(&mut core.window);
        core
    }

    /// Returns what the parts see beside their own state.
    pub(super) fn ctx<'a>(&'a mut self, now: &'a Now) -> Ctx<'a> {
        Ctx { window: &mut self.window, ending: &mut self.ending, out: &mut self.out, now }
    }

    /// Returns the failed jobs, and what they see beside their own state.
    pub(super) fn failed_jobs<'a>(&'a mut self, now: &'a Now) -> (&'a mut FailedJobs, Ctx<'a>) {
        (&mut self.failed_jobs, Ctx { window: &mut self.window, ending: &mut self.ending, out: &mut self.out, now })
    }

    /// Continues with the records of earlier lives. `None` if no job has a record or can get one.
    pub(crate) fn go_on(&mut self, recovered: Recovered) -> Option<()> {
        let now = self.clock.when_asked();
        self.running.keys.iter_mut().for_each(|keys| keys.unread.extend(&recovered.waiting));
        let (failed_jobs, mut at) = self.failed_jobs(&now);
        failed_jobs.go_on(recovered, &mut at)
    }

    /// Takes the changes among the parked jobs, whose items a log has to keep.
    pub(crate) fn take_parked_news(&mut self) -> ParkedNews {
        let jobs = &mut self.failed_jobs;
        if jobs.has_records { jobs.records.take_news() } else { ParkedNews::default() }
    }

    /// Polls the window until it has no action left.
    pub(crate) fn drain(&mut self, now: &Now) -> Wakes {
        self.hold_turn();
        if self.failed_jobs.has_records {
            self.take_precautions(now);
        }
        if self.saving.can_write(&self.window) {
            self.window.handle_changed();
        }
        // The window comes first, since each job has it in the cache.
        if self.window.is_ending() || self.window.is_stopping() {
            self.close_life(now);
        }
        let mut wakes = Wakes { reader: std::mem::take(&mut self.out.reader), ..Wakes::default() };
        if self.window.is_stopping() && !std::mem::replace(&mut self.ending.told, true) {
            wakes.reader = true;
            self.out.waiters = true;
            self.ending.stopping.begin();
        }
        while let Some(action) = self.window.poll() {
            self.act(action, &mut wakes, now);
        }
        if std::mem::take(&mut self.out.waiters) {
            wakes.called |= self.call_unreachable();
        }
        if self.reading.look_waits && !self.reading.has_unread(&self.window) {
            self.reading.look_waits = false;
            wakes.reader = true;
        }
        let keys_wait = self.running.keys.as_ref().is_some_and(|keys| keys.await_save() && self.window.is_starved());
        wakes.hurry |= self.saving.hurries(&self.window, keys_wait);
        let caller = self.reading.caller(&self.workers, &self.window, now);
        wakes.reader |= caller == Caller::Reader;
        let has_other_work = self.has_turn() || caller == Caller::Worker;
        let (window, failures) = (&self.window, &self.failed_jobs.failures);
        let batches = &mut self.running.batches;
        wakes.worker = self.workers.wake(self.reading.supervises, has_other_work, || match batches {
            None => demand(window),
            Some(batches) => Demand { runnable: batches.want_thread(window, failures, || now.get()), ..demand(window) },
        });
        if wakes.worker == Wake::Spawn {
            self.registry.count_in();
        }
        wakes.tell = self.begin_telling();
        wakes
    }

    /// Carries out an action of the window. Not inlined, since few jobs have one.
    #[inline(never)]
    fn act(&mut self, action: Action, wakes: &mut Wakes, now: &Now) {
        match action {
            Action::Fetch(run) => {
                let gate = self.failed_jobs.quarantine.gate;
                let (first, last) = (*run.start(), self.window.fetch_through(&run, gate));
                self.reading.fetch = Some(Ask::new(first, last, run.end() - first + 1));
                self.reading.taken = false;
                // An awake worker reads the run, or the reader finds the fetch at its next look.
                let leaves = self.reading.leaves_to_workers(&self.workers, &self.window);
                wakes.reader |= !leaves || self.workers.awake() == 0;
            }
            Action::Save => {
                wakes.save = true;
                self.saving.begin(now);
            }
            Action::Announce(run) => {
                wakes.called |= self.waiters.call_up_to(*run.end());
                wakes.news |= self.announcing.note(run);
            }
            Action::Finish => self.finish(wakes, now),
        }
    }

    #[cold]
    fn take_precautions(&mut self, now: &Now) {
        let busy = self.running.aside.held || self.saving.has_to_write(&self.window);
        let (failed_jobs, mut at) = self.failed_jobs(now);
        failed_jobs.take_precautions(busy, &mut at);
        self.hold_turn();
    }

    /// Leaves the turn at the sink to a worker after a job was passed: its report brought no
    /// result. Its key is free, too.
    pub(super) fn hold_turn(&mut self) {
        if std::mem::take(&mut self.out.turn) {
            self.running.aside.hold(self.window.lowest_undone());
        }
        if self.out.passed.is_some() {
            self.free_keys();
        }
    }

    /// True if a worker could take up a turn that no thread has.
    #[inline]
    pub(super) fn has_turn(&self) -> bool {
        !self.running.aside.redriven.is_empty() || self.running.aside.held && self.may_resume_turn()
    }

    #[cold]
    fn may_resume_turn(&self) -> bool {
        let window = &self.window;
        let starts = !window.is_paused() && !window.is_stopping() && !window.has_ended();
        starts && window.in_flight() < window.limits().max_processing && !self.failed_jobs.quarantine.is_settling()
    }

    /// True if the caller has to [write lines](super::Driver::tell). Meanwhile it counts as
    /// present, so that `stop` waits for it.
    #[inline]
    pub(super) fn begin_telling(&mut self) -> bool {
        let begins = self.out.telling.begin();
        if begins {
            self.registry.count_in();
        }
        begins
    }

    /// Takes the failure of an attempt. Returns a user's value, to be dropped without the lock.
    #[cold]
    pub(super) fn attempt_failed(&mut self, flight: Flight, failure: Caught, now: &Now) -> Option<BoxError> {
        let (failed_jobs, mut at) = self.failed_jobs(now);
        let surplus = failed_jobs.attempt_failed(flight.index, flight.attempt, failure, &mut at);
        self.hold_turn();
        surplus
    }

    pub(crate) fn change_limits(&mut self, limits: Limits, now: &Now) {
        let limits = self.saving.narrow(limits);
        let limits = self.failed_jobs.change_limits(limits, &mut self.window);
        self.set_limits(limits, now);
    }

    pub(super) fn set_limits(&mut self, limits: Limits, now: &Now) {
        self.window.set_limits(limits);
        let (failed_jobs, mut at) = self.failed_jobs(now);
        failed_jobs.put_off_turn(&mut at);
        self.reading.fit_prefetch(&mut self.window);
    }

    /// Ends the consumer once this index is processed.
    pub(crate) fn stop_at(&mut self, index: Index) {
        self.window.stop_at(index);
        self.out.waiters = true;
        self.end_within_reach();
    }

    /// Checks whether the end is out of reach, after an upstream has ended or the end has changed.
    pub(super) fn end_within_reach(&mut self) {
        self.out.waiters |= self.gates.reach.shorten(&mut self.window, &self.gates.upstreams);
    }

    fn halt_out_of_reach(&mut self, now: &Now) {
        if let Some(error) = self.gates.reach.error(&self.window).filter(|_| self.ending.error.is_none()) {
            let index = self.window.lowest_undone();
            self.ctx(now).halt_for(index, error.to_string(), error, "");
        }
    }

    /// Closes the life record with the last save, once nothing is in flight or will start.
    #[cold]
    fn close_life(&mut self, now: &Now) {
        if self.window.is_ending() && self.failed_jobs.life.keeps && !self.saving.has_to_write(&self.window) {
            // Unwritten effects may still be refused, and then the job runs again.
            if self.window.is_stopping() || self.out.effects.is_empty() {
                self.halt_out_of_reach(now);
                let (failed_jobs, mut at) = self.failed_jobs(now);
                failed_jobs.close_life(&mut at);
            }
        } else if self.window.is_stopping() {
            self.write_halt(now);
        }
    }

    /// Writes the reason of a halt while other jobs still run.
    pub(super) fn write_halt(&mut self, now: &Now) {
        let is_lost = self.tenancy.lost;
        let (failed_jobs, mut at) = self.failed_jobs(now);
        failed_jobs.life.write_halt(is_lost, &mut at);
    }

    /// Abandons the save under way and all later ones, so the watermark never moves again.
    pub(super) fn abandon_save(&mut self) {
        self.window.handle_save_abandoned();
        (self.saving.under_way.since, self.saving.under_way.error) = (None, None);
        self.ending.never_reaches(self.window.lowest_unprocessed());
        self.out.waiters = true;
    }

    /// Ends the consumer: the window has nothing left to do.
    fn finish(&mut self, wakes: &mut Wakes, now: &Now) {
        wakes.ended = true;
        self.running.flights.timeouts.iter().for_each(|timeouts| timeouts.ring());
        self.out.waiters = true;
        self.halt_out_of_reach(now);
        // Even without a watcher: a status tells the time since the end.
        self.watching.stalls.restart(now.get());
        self.tell_end(now);
        // There may be very many, so they are freed later, without the lock.
        let retries = self.failed_jobs.failures.take_all();
        let jobs = self.reading.prefetch.take_all();
        let (pool, callback) = (Guarded::new(self.running.pool.take()), Guarded::new(self.running.on_job_done.take()));
        let source = Guarded::new(self.reading.runs.take());
        self.registry.end(Box::new((jobs, retries, pool, callback, source)));
    }

    /// Writes the last line, after all pending ones.
    fn tell_end(&mut self, now: &Now) {
        self.out.telling.end();
        let error = self.ending.halted.as_deref().map(|(_, text)| text.clone());
        let index = self.window.last_processed();
        let event = Event {
            kind: EventKind::Ended,
            index,
            attempt: None,
            error: error.as_deref(),
            elapsed: None,
            source: None,
        };
        self.out.tell(&event, now);
        if self.out.is_observed() {
            self.measure(now);
            let error = self.ending.report.clone();
            self.out.telling.notice(Notice::Ended { state: self.state(), last_processed: index, error });
        }
    }

    /// Makes a measurement for the observers.
    pub(super) fn measure(&mut self, now: &Now) {
        if self.out.is_observed() {
            let (lag, status) = (self.watching.lag(&self.window, now), Box::new(self.status(now)));
            self.out.telling.notice(Notice::Measured { lag, status });
        }
        self.watching.measured(&self.window, now);
    }

    /// Notes that something begins that may stall. If it returns true, the caller has to
    /// [start](super::Driver::spawn_watch) the stall watcher, which already counts as present.
    pub(super) fn stir(&mut self, now: Instant) -> bool {
        self.watching.stir(&self.window, &self.out, &mut self.registry, now)
    }

    /// Abandons the running jobs, which are no longer awaited or counted. Returns their indices,
    /// and a callback to be dropped without the lock.
    pub(crate) fn abandon(&mut self, now: &Now) -> (Vec<Index>, Option<Arc<OnJobDone>>) {
        let mut running: Vec<Index> = self.running.flights.iter().map(|flight| flight.index).collect();
        running.sort_unstable();
        self.ending.abandoned = true;
        let (failed_jobs, mut at) = self.failed_jobs(now);
        at.never_reaches(running.first().copied().unwrap_or(Index::MAX));
        failed_jobs.release_alone(&mut at);
        self.window.handle_abandoned();
        (running, self.running.on_job_done.take())
    }

    /// Calls the waiters whose index is out of reach. Returns true if there are any. Above an index
    /// that is out of reach, all are.
    #[cold]
    fn call_unreachable(&mut self) -> bool {
        let mut any = false;
        while self.waiters.highest().is_some_and(|index| self.never(index)) {
            self.waiters.call_highest();
            any = true;
        }
        any
    }

    /// True if the watermark can no longer reach this index.
    pub(crate) fn never(&self, index: Index) -> bool {
        let window = &self.window;
        let stopping = window.is_stopping();
        if self.tenancy.awaited.is_some() {
            // How far the holder of the name will have come is unknown.
            return index == Index::MAX || stopping || window.has_ended();
        }
        let waits = || self.failed_jobs.failures.has_waiting_up_to(index, |failed| !window.is_redriven(failed));
        index == Index::MAX
            || window.has_ended()
            // The watermark may still pass jobs above the end that run or are done.
            || window.ends_at().is_some_and(|last| last < index && window.unstarted_from(last.saturating_add(1)) <= index)
            || stopping && (index >= window.next() || waits())
            // A stopping consumer gives no turns.
            || stopping && self.running.aside.has_up_to(index)
            || self.ending.reachable_below() <= index
            || self.gates.upstreams.iter().any(|upstream| kept_below(window, index, upstream))
    }
}

impl AsRef<ThreadRegistry> for Core {
    fn as_ref(&self) -> &ThreadRegistry {
        &self.registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::samples;

    #[test]
    fn jobs_done_earlier_beyond_the_end_are_awaited() {
        let mut core = samples::core(1, 100, Instant::now());
        core.window.restore([2..=4, 6..=6]);
        core.window.stop_at(1);
        assert_eq!([1, 4, 5, 6].map(|index| core.never(index)), [false, false, true, true]);
        core.window.handle_head(Some(6));
        while core.window.poll().is_some() {}
        core.window.handle_fetched(2);
        for index in 0..2 {
            assert_eq!(core.window.poll_run().map(|run| run.index), Some(index));
            assert!(core.window.handle_done(index));
        }
        assert_eq!(core.window.poll(), Some(Action::Save));
        assert_eq!(core.window.handle_saving().and_then(|save| save.last_processed), Some(4));
    }
}
