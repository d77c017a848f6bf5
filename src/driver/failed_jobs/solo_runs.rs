//! The turns of suspects: one at a time runs alone, once nothing else is in flight.

use super::FailedJobs;
use crate::base::{BoxError, Error, Index, caught::Caught};
use crate::driver::outbox::Ctx;
use crate::observe::{Event, EventKind};

impl FailedJobs {
    /// Takes the next precautions: records jobs that are about to start, and begins the turns of
    /// suspects. `busy`: a result waits for the sink or for a transaction.
    #[cold]
    pub(in crate::driver) fn take_precautions(&mut self, busy: bool, at: &mut Ctx<'_>) {
        let Some(max_crashes) = self.quarantine.max_crashes else { return };
        if at.window.is_stopping() || at.window.has_ended() {
            return;
        }
        self.quarantine.narrow(at.window);
        if let Some(index) = self.quarantine.next_alone(busy, at.window) {
            self.begin_turn(index, max_crashes, at);
        }
        let failures = &self.failures;
        for index in self.quarantine.next_records(at.window, |index| failures.waiting(index).is_some()) {
            self.note_start(index, 0, at);
        }
    }

    /// Lets a suspect run alone, unless it has crashed the process too often.
    fn begin_turn(&mut self, index: Index, max: u32, at: &mut Ctx<'_>) {
        let crashes = self.records.crashes(index);
        if crashes >= max {
            return self.crashed(index, crashes, at);
        }
        self.quarantine.begin_turn(index, at.now);
        let count =
            format!("if the process dies now, that is death {} of {max} for which the job is to blame", crashes + 1);
        at.tell(&Event::new(EventKind::RunsAlone, index).error(&count));
        self.note_start(index, crashes + 1, at);
    }

    /// Parks a suspect that has crashed the process too often, or halts the consumer.
    fn crashed(&mut self, index: Index, crashes: u32, at: &mut Ctx<'_>) {
        self.quarantine.condemn(index, at.window);
        let failure = Caught::from(BoxError::from(Error::Crashed { index, crashes }));
        if at.window.handle_withdrawn(index) {
            self.failures.forget_redriven(index);
            return self.redrive_refused(index, 0, &failure.text, at);
        }
        let attempt = self.failures.waiting(index).map_or(0, |failed| failed.attempt);
        // The errors are this crate's own, so they may be dropped under the lock.
        if let Err(failure) = self.park(index, attempt, failure, at) {
            self.forget_attempts(index, at);
            at.never_reaches(index);
            let text = format!("{}{}", failure.text, self.records.why_not_parked());
            drop(at.halt(index, text, Error::Crashed { index, crashes }, ""));
        }
        self.failures.forget(index);
    }

    /// Ends the turn of a suspect that could not be read: it waits, and others may start.
    pub(in crate::driver) fn suspect_not_read(&mut self, index: Index, at: &mut Ctx<'_>) {
        if !self.quarantine.is_suspect(index) {
            return;
        }
        self.outlived(index, at.window);
        self.note_start(index, 0, at);
        // It waits for the pause that the read has set.
        at.window.handle_put_back(index);
    }

    /// Takes back the turn of a suspect that a narrowed window no longer lets start.
    pub(in crate::driver) fn put_off_turn(&mut self, at: &mut Ctx<'_>) {
        if let Some(index) = self.quarantine.put_off_turn(at.window) {
            self.outlived(index, at.window);
            self.note_start(index, 0, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::retry::Retry;
    use crate::base::time::{self, Now};
    use crate::commit::changes::Changes;
    use crate::driver::{Recovered, core::Core};
    use crate::progress::{ParkedRecord, load_earlier};
    use crate::reader::{Due, Fetched, Order, Payloads, Then, Weights};
    use crate::source::Steps;
    use crate::store::Store;
    use crate::window::{Limits, Window};
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    const SAVE: Duration = Duration::from_millis(5);
    const JOBS: Index = 100;

    /// A life after two deaths, on a clock of its own: only saves take time.
    struct Life {
        core: Core,
        now: Instant,
        /// When the save under way ends.
        saved_at: Option<Instant>,
        others: BTreeSet<Index>,
        /// The attempts of suspects.
        attempts: u32,
        /// Makes the error of a suspect.
        error: fn() -> BoxError,
    }

    impl Life {
        /// The jobs below this index are suspects. They fail, and are due again at once.
        fn new(suspects: Index, error: fn() -> BoxError) -> Self {
            let mut window = Window::begin(0, Limits { max_processing: 2, max_search_ahead: 1000 });
            window.handle_head(Some(JOBS - 1));
            let waiting = window.restore_waiting(0..suspects);
            let earlier = load_earlier(&mut Store::in_memory().progress("p"), true).unwrap().unwrap();
            let record = |index| ParkedRecord { index, pending: true, suspect: true, ..ParkedRecord::default() };
            let place = Recovered::new(earlier.place, waiting.iter().copied().map(record).collect(), Some(9));
            let recovered = Recovered { waiting, careful: Some((1000, false)), max_crashes: Some(2), ..place };
            let mut core = Core::new(window, Retry::fixed(Duration::ZERO), usize::MAX, time::now());
            core.go_on(recovered).unwrap();
            core.workers.threads = 2;
            Self { core, now: time::now(), saved_at: None, others: BTreeSet::new(), attempts: 0, error }
        }

        /// Makes the next step of one of the threads. Returns false if nothing is left to do now.
        fn step(&mut self) -> bool {
            let now = Now::at(self.now);
            let core = &mut self.core;
            core.expire(self.now);
            if self.saved_at.take_if(|at| *at <= self.now).is_some() {
                core.saved(&now);
            }
            if core.drain(&now).save {
                core.snapshot(false, &mut Vec::new()).unwrap();
                self.saved_at = Some(self.now + SAVE);
            }
            if let Order::Read(run) = core.order(&Now::at(self.now), Due::No) {
                let jobs = run.most();
                let weights = Weights::equal(jobs, 1);
                let then = Then::Unasked;
                let (jobs, steps) = (<dyn Payloads>::new(vec![(); jobs]), Steps::default());
                core.fetched(
                    Fetched {
                        jobs,
                        steps,
                        weights,
                        keys: Vec::new(),
                        then,
                        quick: false,
                        ended: self.now,
                        failures: Vec::new(),
                    },
                    &now,
                );
                return true;
            }
            let Some(run) = core.hand_out(&now) else { return false };
            core.job::<()>(run);
            let fails = core.failed_jobs.quarantine.is_suspect(run.index);
            let outcome = if fails { Err(Caught::boxed((self.error)())) } else { Ok(()) };
            core.report(run.token, outcome, &mut Changes::default(), &now);
            if fails {
                self.attempts += 1;
            } else {
                self.others.insert(run.index);
            }
            true
        }
    }

    #[test]
    fn suspects_that_fail_for_ever_starve_no_job() {
        let errors: [fn() -> BoxError; 2] =
            [|| "refused".into(), || crate::base::failure::Failure::defer(Duration::ZERO).into()];
        for (suspects, error) in [1, 2, 20].into_iter().flat_map(|suspects| errors.map(|error| (suspects, error))) {
            let mut life = Life::new(suspects, error);
            let others = (JOBS - suspects) as usize;
            while life.others.len() < others {
                let (ran, attempts) = (life.others.len(), life.attempts);
                assert!(attempts < 100, "{ran} others ran beside {attempts} attempts of {suspects}: {}", error());
                while life.step() {}
                let next = life.saved_at.into_iter().chain(life.core.failed_jobs.failures.next_due()).min();
                life.now = life.now.max(next.expect("a suspect waits"));
            }
            assert!(life.attempts > 0, "the suspects are tried beside the others");
        }
    }
}
