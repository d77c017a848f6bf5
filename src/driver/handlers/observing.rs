//! Tells observers of attempts, without the lock, on the thread that runs or reports the attempt.

use crate::base::{Index, caught::Caught, failure::Verdict, guard::drop_guarded, sync::Arc};
use crate::driver::{Driver, running::Pool};
use crate::observe::{events::AttemptOutcome, observers::Observers, spans::Spans};
use crate::run::{Runner, work};
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

    fn is_plain(&self) -> bool {
        self.runner.is_plain()
    }

    fn forget(&self, index: Index) {
        self.runner.forget(index);
    }

    fn overdue(&self, index: Index) {
        self.runner.overdue(index);
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

    /// Returns the pool with this runner.
    pub(crate) fn pool<T: Send + 'static>(&self, runner: Arc<dyn Runner<T>>) -> Arc<dyn Pool> {
        Arc::new(PoolOf { runner, driver: self.threads.host().clone() })
    }

    /// Tells the observers that these attempts of jobs are about to begin on this thread.
    #[cold]
    pub(super) fn observe_begin(&self, attempts: impl Iterator<Item = (Index, u32)>) {
        for (index, attempt) in attempts {
            self.observe(index, |observers| observers.attempt_begins(index, attempt, || self.clock.now()));
        }
        Overdue::observed_here();
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
