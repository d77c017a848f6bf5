//! The hooks around the attempts of a runner.

use crate::runner::outcome::{Outcome, QueueEvent};
use crate::runner::running::Running;
use crate::types::ended::AttemptEnd;
use waterline::BoxError;
use waterline::seam::{drop_guarded, guarded};

type Before = dyn Fn(&Running) -> Result<(), BoxError> + Send + Sync;

type After = dyn Fn(&Running, &Result<Outcome, BoxError>) + Send + Sync;

type Teardown = dyn Fn(&Running, &AttemptEnd) + Send + Sync;

type Observer = dyn Fn(&QueueEvent<'_>) + Send + Sync;

#[derive(Default)]
pub(super) struct Hooks {
    pub(super) before: Vec<Box<Before>>,
    pub(super) after: Vec<Box<After>>,
    pub(super) teardown: Vec<Box<Teardown>>,
    pub(super) observers: Vec<Box<Observer>>,
}

impl Hooks {
    pub(super) fn before(&self, job: &Running) -> Result<(), BoxError> {
        self.before.iter().try_for_each(|hook| guarded(|| hook(job)))
    }

    /// Calls all hooks after an attempt. If one panics, the attempt has failed.
    pub(super) fn after(&self, job: &Running, outcome: Result<Outcome, BoxError>) -> Result<Outcome, BoxError> {
        let mut outcome = outcome;
        for hook in &self.after {
            let called = guarded(|| {
                hook(job, &outcome);
                Ok(())
            });
            if let Err(panic) = called {
                drop_guarded(std::mem::replace(&mut outcome, Err(panic)));
            }
        }
        outcome
    }

    /// True if any hook is called after an end was written.
    pub(super) fn hear_of_ends(&self) -> bool {
        !self.teardown.is_empty() || !self.observers.is_empty()
    }

    /// Calls all hooks after the end of an attempt was written, which they cannot change.
    pub(super) fn teardown(&self, job: &Running, ended: &AttemptEnd) {
        for hook in &self.teardown {
            let called = guarded(|| {
                hook(job, ended);
                Ok(())
            });
            log_panic(job, "a teardown hook", called);
        }
    }

    pub(super) fn tell(&self, job: &Running, event: &QueueEvent<'_>) {
        for observer in &self.observers {
            let called = guarded(|| {
                observer(event);
                Ok(())
            });
            log_panic(job, "an observer", called);
        }
    }
}

fn log_panic(job: &Running, who: &str, called: Result<(), BoxError>) {
    if let Err(panic) = called {
        tracing::error!(target: "waterline", queue = job.queue_name(), id = job.id(), attempt = job.attempt(), %panic, "{who} panicked; the job is not affected");
    }
}
