//! Tells observers of attempts, without the lock, on the thread that runs or reports the attempt.

use crate::base::{Index, caught::Caught, failure::Verdict, guard::drop_guarded, sync::Arc};
use crate::commit::changes::Changes;
use crate::driver::{Driver, running::Pool};
use crate::observe::{events::AttemptOutcome, observers::Observers, spans::Spans};
use crate::run::worker::{Job, Report};
use crate::run::{Assignment, Delivery, Runner, Ticket, work};
use crate::threads::stopping::Overdue;
use std::sync::Weak;

/// A runner as the pool of its driver, which does not know the type of the jobs.
struct PoolOf<T> {
    runner: Arc<dyn Runner<T>>,
    driver: Weak<Driver>,
}

impl<T: Send + 'static> Pool for PoolOf<T> {
    fn work(&self) {
        self.driver.upgrade().into_iter().for_each(|driver| work(&*driver, &*self.runner));
    }

    fn reports_at_once(&self) -> bool {
        self.runner.reports_at_once()
    }

    fn forget(&self, index: Index) {
        self.runner.forget(index);
    }

    fn overdue(&self, token: usize) {
        self.runner.overdue(token);
    }

    fn abandon(&self) {
        self.runner.abandon();
    }
}

/// A runner that tells observers of each attempt.
struct Observed<T> {
    runner: Arc<dyn Runner<T>>,
    driver: Arc<Driver>,
}

impl<T: Send + 'static> Runner<T> for Observed<T> {
    fn run(&self, assignment: Assignment<T>, effects: &mut Changes) -> Option<Report> {
        let (index, attempt) = (assignment.job.index, assignment.job.attempt);
        let begun = || self.driver.clock.now();
        self.driver.observe(index, |observers| observers.attempt_begins(index, attempt, begun));
        Overdue::observed_here();
        self.runner.run(assignment, effects)
    }

    fn deliver(&self, turn: Delivery) {
        self.runner.deliver(turn);
    }

    fn runs_batches(&self) -> bool {
        self.runner.runs_batches()
    }

    /// The caller tells the observers of each job of a batch, since it knows the attempts.
    fn run_batch(&self, jobs: Vec<Job<T>>, effects: &mut Changes) -> Result<(), Box<Caught>> {
        self.runner.run_batch(jobs, effects)
    }

    fn attend(&self, work: &mut dyn FnMut()) {
        self.runner.attend(work);
    }

    fn forget(&self, index: Index) {
        self.runner.forget(index);
    }

    fn overdue(&self, token: usize) {
        self.runner.overdue(token);
    }

    fn abandon(&self) {
        self.runner.abandon();
    }
}

impl Driver {
    /// Makes the spans in which attempts run.
    pub(crate) fn spans(&self) -> Spans {
        Spans::new(&self.watermark.name())
    }

    /// Returns the pool with this runner. Only with observers does the pool tell them of attempts,
    /// so that other consumers pay nothing.
    pub(crate) fn pool<T: Send + 'static>(self: &Arc<Self>, runner: Arc<dyn Runner<T>>) -> Arc<dyn Pool> {
        let runner = if self.observes { Arc::new(Observed { runner, driver: self.clone() }) } else { runner };
        Arc::new(PoolOf { runner, driver: self.threads.host().clone() })
    }

    /// Tells the observers that the jobs of a batch are about to run on this thread.
    #[cold]
    pub(super) fn observe_batch(&self, tickets: &[Ticket]) {
        for Ticket { index, attempt, .. } in tickets.iter().copied() {
            self.observe(index, |observers| observers.attempt_begins(index, attempt, || self.clock.now()));
        }
    }

    /// Tells the observers that an attempt of these jobs is over, before it is reported.
    #[cold]
    pub(super) fn observe_end(&self, jobs: impl ExactSizeIterator<Item = Index>, outcome: &Result<(), Box<Caught>>) {
        let outcome = match outcome {
            Ok(()) => AttemptOutcome::Done,
            Err(failure) if jobs.len() > 1 => AttemptOutcome::BatchFailed { error: &failure.text },
            Err(failure) if matches!(failure.verdict, Verdict::Defer(_)) => AttemptOutcome::Deferred,
            Err(failure) => AttemptOutcome::Failed { error: &failure.text },
        };
        for index in jobs {
            self.observe(index, |observers| observers.attempt_ended(index, outcome, self.clock.now()));
        }
    }

    fn observe(&self, index: Index, tell: impl FnOnce(&Observers) -> Result<(), String>) {
        let observers = self.observers.lock().clone();
        let Some(observers) = observers else { return };
        // An observer is user code: a `stop` in it would wait for this very attempt.
        let _own = self.threads.enter();
        if let Err(panic) = tell(&observers) {
            self.step(|core, now| core.out.tell_of_panic(Some(index), &panic, now));
        }
        // The consumer may have ended meanwhile.
        drop_guarded(observers);
    }
}
