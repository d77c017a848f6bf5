//! Handing out jobs: what a worker does when it asks for one.

use crate::base::guard::drop_guarded;
use crate::base::sync::{Arc, Ordering, spin_until};
use crate::base::time::{Coarse, Now};
use crate::commit::changes::Changes;
use crate::driver::core::{Core, demand};
use crate::driver::{Driver, effects, flights::Flight, outbox::Wakes, reading::Caller, whole::CoreGuard};
use crate::reader::{Ask, ReadRuns, Reads};
use crate::run::worker::{Job, Report};
use crate::run::{Delivery, Ticket};
use crate::threads::workers::Idle;
use crate::window::Run;
use std::time::Instant;

/// A worker's search for a job.
#[derive(Default)]
pub(super) struct Search {
    /// True once it has spun for a job that is about to come.
    spun: bool,
    /// True if it has just slept for as long as an idle thread is kept.
    pub(super) slept: bool,
}

/// A worker's next task, without the value of the job.
pub(super) enum Found {
    Run(Ticket),
    Deliver(Delivery),
}

/// What a worker does next that found no job.
pub(super) enum Rest {
    /// It carries out the wakes that other threads wait for, and then looks again.
    CarryOut,
    /// It makes one of several calls into the source.
    Read(Arc<Reads>, Arc<dyn ReadRuns>),
    /// It spins for some microseconds.
    Spin,
    /// It sleeps until it is woken, or until this time on the machine's clock.
    Sleep(Option<Instant>),
    /// It sleeps until it is woken, or until this time on the consumer's clock.
    Linger(Option<Instant>),
    End,
}

impl Core {
    #[inline]
    fn find(&mut self, now: &Now) -> Option<Found> {
        // A result goes first: jobs may be blocked until it is delivered.
        let turn = self.resume_turn(now).map(Found::Deliver);
        // The supervisor alone wakes a worker that sleeps beside a job.
        let is_needed = !(self.reading.supervises && self.workers.are_too_many());
        turn.or_else(|| if is_needed { self.hand_out(now).map(Found::Run) } else { None })
    }

    /// Returns what a worker does next that found no job.
    #[inline(never)]
    pub(super) fn rest(&mut self, search: &mut Search, wakes: &Wakes, now: &Now) -> Rest {
        if let Some(rest) = self.stay_awake(search, wakes) {
            return rest;
        }
        if self.reading.caller(&self.workers, &self.window, now) == Caller::Worker
            && let (Some(reads), Some(source)) = (self.reading.reads.clone(), self.reading.runs.clone())
        {
            self.reading.helpers += 1;
            return Rest::Read(reads, source);
        }
        match self.workers.idle(demand(&self.window), search.slept, || now.of_machine()) {
            Idle::Sleep(until) => Rest::Sleep(until),
            Idle::End => Rest::End,
        }
    }

    /// Returns what a worker has to do before it sleeps, if anything.
    #[inline]
    pub(super) fn stay_awake(&mut self, search: &mut Search, wakes: &Wakes) -> Option<Rest> {
        if !wakes.is_empty() || self.reading.is_for_workers(&self.workers, &self.window) {
            return Some(Rest::CarryOut);
        }
        let is_about_to_come = self.reading.fetch.is_some() && !self.window.is_stopping();
        let spins = !std::mem::replace(&mut search.spun, true) && self.workers.expects_jobs(is_about_to_come);
        spins.then_some(Rest::Spin)
    }

    /// Hands out the next job, if one may start. The caller still [takes](Self::job) its value.
    #[inline]
    pub(crate) fn hand_out(&mut self, now: &Now) -> Option<Ticket> {
        let run = self.window.poll_run()?;
        Some(self.assign(run, now.coarse(), now))
    }

    /// Assigns a job that begins at this time to the calling thread.
    #[inline]
    pub(super) fn assign(&mut self, run: Run, started: Coarse, now: &Now) -> Ticket {
        let Run { index, retry: again } = run;
        let attempt = if again {
            self.reading.prefetch.hand_out_again(index);
            self.failed_jobs.begin_attempt(index, &mut self.out, now)
        } else {
            self.reading.prefetch.hand_out();
            1
        };
        if self.reading.prefetch.is_tight() {
            self.window.set_room(self.reading.prefetch.room());
        }
        self.workers.takes_job(started);
        let token = self.running.flights.begin(Flight::new(index, attempt, again, started));
        if let Some(timeouts) = &mut self.running.flights.timeouts {
            timeouts.begin(token);
        }
        Ticket { token, index, attempt, again }
    }

    /// Takes a job that was handed out in this critical section, with its value: new jobs in the
    /// order in which they were handed out.
    #[inline(always)]
    pub(in crate::driver) fn job<T: Send + 'static>(&mut self, Ticket { index, attempt, again, .. }: Ticket) -> Job<T> {
        let payload = self.reading.prefetch.take(again.then_some(index));
        let payload = payload.expect("the window hands out what was read, in the same order");
        Job { index, attempt, fence: self.tenancy.fence, payload }
    }
}

impl Driver {
    /// Does what a worker does that found no job. `None`: the thread has to end.
    pub(super) fn rest<'a>(
        &'a self,
        mut core: CoreGuard<'a>,
        rest: Rest,
        wakes: Wakes,
        search: &mut Search,
    ) -> Option<CoreGuard<'a>> {
        match rest {
            Rest::Sleep(until) => {
                search.slept = core.wait_until(&self.work, until);
                core.workers.awoken();
                Some(core)
            }
            Rest::Linger(until) => {
                core.wait_by(&self.clock, &self.work, until);
                core.workers.awoken();
                Some(core)
            }
            Rest::Spin => {
                drop(core);
                spin_until(|| self.spinner_woken.swap(false, Ordering::Acquire));
                core = self.core.lock();
                core.workers.expects_no_more();
                Some(core)
            }
            Rest::Read(reads, source) => {
                drop(core);
                search.slept = false;
                reads.call_one(&*source, self.clock.now());
                drop_guarded(source);
                core = self.core.lock();
                core.reading.helpers -= 1;
                Some(core)
            }
            Rest::CarryOut => {
                drop(core);
                self.carry_out(wakes);
                Some(self.core.lock())
            }
            Rest::End => None,
        }
    }

    /// Makes an overdue save. The calling thread has no job now that would wait for it.
    pub(super) fn help_saving<'a>(&'a self, core: CoreGuard<'a>, now: &Now) -> CoreGuard<'a> {
        self.settle(core, now);
        // The lock is free during the save, whose result this same driver hears of. The clone keeps
        // the store open until the write is over.
        let saves = self.saves.lock().clone();
        if let Some(saves) = &saves {
            saves.help();
        }
        drop_guarded(saves);
        self.core.lock()
    }

    /// Reads on a worker what it would otherwise wait for, so the worker was not idle.
    pub(super) fn read_for_itself<'a>(
        &'a self,
        core: CoreGuard<'a>,
        source: Arc<dyn ReadRuns>,
        run: Ask,
        search: &mut Search,
    ) -> CoreGuard<'a> {
        drop(core);
        search.slept = false;
        let fetched = source.read_run(run);
        // After the end this may be the last reference to the source. Its destructor is user code.
        drop_guarded(source);
        let mut core = self.core.lock();
        let surplus = core.end_reading(fetched, &self.clock.when_asked());
        if !surplus.is_empty() {
            self.unlocked(&mut core, || surplus.drop_guarded());
        }
        core
    }

    /// Reports a job, if there is one, and finds the next task: the turn that follows, or a job.
    /// The caller takes the job from the core, and then carries out the wakes without the lock.
    /// `None`: the thread has to end.
    pub(super) fn next_task(
        &self,
        report: &mut Option<Report>,
        effects: &mut Changes,
    ) -> Option<(CoreGuard<'_>, Wakes, Found)> {
        let waits = report.as_ref().and_then(Report::waits_for_sink);
        if let Some(report) = report
            && waits.is_none()
        {
            self.confirm(report);
        }
        let mut core = self.core.lock();
        let mut now = self.clock.when_asked();
        let mut turn = None;
        if let Some(token) = waits {
            turn = core.set_aside(token, &now);
            *report = None;
        } else if let Some(Report { token, index, outcome }) = report {
            let (token, had_turn) = (core.token_of(*token, *index), core.has_its_turn(*index));
            let surplus = core.report(token, std::mem::replace(outcome, Ok(())), effects, &now);
            if had_turn {
                turn = core.take_up(&now);
            }
            *report = None;
            effects::clear(effects);
            if surplus.is_some() {
                self.unlocked(&mut core, || drop_guarded(surplus));
                // The destructor may have taken long.
                now = self.clock.when_asked();
            }
        }
        if let Some(turn) = turn {
            core.workers.takes_turn();
            let wakes = core.drain(&now);
            return Some((core, wakes, Found::Deliver(turn)));
        }
        if core.saving.is_late(&now) {
            core = self.help_saving(core, &now);
            now = self.clock.when_asked();
        }
        let mut search = Search::default();
        loop {
            if let Some((source, run)) = core.begin_reading(&now) {
                core = self.read_for_itself(core, source, run, &mut search);
                now = self.clock.when_asked();
            }
            let found = core.find(&now);
            let wakes = core.drain(&now);
            if let Some(found) = found {
                return Some((core, wakes, found));
            }
            let rest = core.rest(&mut search, &wakes, &now);
            core = self.rest(core, rest, wakes, &mut search)?;
            now = self.clock.when_asked();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{caught::Caught, retry::Retry};
    use crate::driver::{failed_jobs::Failures, samples};
    use crate::run::{Assignment, JobPort, Task};
    use crossbeam_channel::unbounded;
    use std::fmt;

    /// An error whose destructor does this.
    struct OnDrop(Box<dyn Fn() + Send + Sync>);

    impl fmt::Debug for OnDrop {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            fmt::Display::fmt(self, f)
        }
    }

    impl fmt::Display for OnDrop {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("refused")
        }
    }

    impl std::error::Error for OnDrop {}

    impl Drop for OnDrop {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    fn failure(token: usize, index: u64, on_drop: impl Fn() + Send + Sync + 'static) -> Option<Report> {
        let error = Caught::boxed(Box::new(OnDrop(Box::new(on_drop))));
        Some(Report { token, index, outcome: Err(error) })
    }

    #[test]
    fn the_reader_hears_of_a_back_off_before_the_drop() {
        let mut core = samples::core(1, 9, Instant::now());
        samples::read(&mut core, 1);
        core.workers.threads = 1;
        let token = core.hand_out(&Now::when_asked()).unwrap().token;
        core.window.handle_stop();
        let driver = samples::driver(core);
        let (bell, (say, said)) = (driver.bell.clone(), unbounded());
        let mut report = failure(token, 0, move || _ = say.send(bell.has_rung()));
        assert!(driver.next_task(&mut report, &mut Changes::default()).is_none(), "it stops");
        assert_eq!(said.try_recv(), Ok(true));
    }

    #[test]
    fn a_worker_too_many_rests_while_a_supervisor_can_wake_it() {
        let begun = Instant::now();
        let mut core = samples::core(9, 99, begun);
        samples::read(&mut core, 10);
        core.workers.threads = 2;
        core.workers.supervised_from(begun);
        (0..10_000).for_each(|_| core.workers.takes_job(Coarse::now()));
        core.workers.look(9, begun + std::time::Duration::from_micros(100), true);
        let now = Now::when_asked();
        for (supervises, is_handed_out) in [(true, false), (false, true), (true, false)] {
            core.reading.supervises = supervises;
            assert_eq!(core.find(&now).is_some(), is_handed_out);
        }
        core.workers.supervised_from(begun);
        assert!(core.find(&now).is_some(), "a new supervisor knows of none");
    }

    #[test]
    fn a_slow_destructor_does_not_age_the_next_save() {
        let mut core = samples::core(2, 9, Instant::now());
        samples::read(&mut core, 3);
        core.failed_jobs.failures = Failures::new(Retry::fixed(std::time::Duration::ZERO));
        core.workers.threads = 1;
        let [first, second] = [(); 2].map(|()| core.hand_out(&Now::when_asked()).unwrap().token);
        assert!(core.report(first, Ok(()), &mut Changes::default(), &Now::when_asked()).is_none());
        let driver = samples::driver(core);
        let (say, said) = unbounded();
        let mut report = failure(second, 1, move || {
            let begun = Instant::now();
            while Instant::now() == begun {}
            let _ = say.send(Instant::now());
        });
        assert!(matches!(driver.next(&mut report, &mut Changes::default()), Some(Task::Run(Assignment::<u64> { .. }))));
        let asked = driver.core.lock().saving.under_way.since.expect("job 0 is to be saved");
        assert!(asked >= said.try_recv().expect("the error is dropped"));
    }
}
