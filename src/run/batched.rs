//! The *batched* modes: several jobs run together, on one thread, and are done or fail together.

use super::{Runner, worker::Job};
use crate::base::{BoxError, caught::Caught, guard::guarded};
use crate::commit::changes::{Changes, Home};
use crate::effects::Effects;
use crate::observe::spans::Spans;
use tracing::span::EnteredSpan;

/// Batches that are done when the closure returns.
pub(crate) struct Batched<F> {
    pub(crate) work: F,
    pub(crate) spans: Spans,
}

impl<T, F> Runner<T> for Batched<F>
where
    T: Send + 'static,
    F: Fn(Vec<Job<T>>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    fn runs_batches(&self) -> bool {
        true
    }

    fn run_batch(&self, jobs: Vec<Job<T>>, _: &mut Changes) -> Result<(), Box<Caught>> {
        let ran = guarded(|| {
            let _span = enter(&self.spans, &jobs);
            (self.work)(jobs)
        });
        ran.map_err(Caught::boxed)
    }
}

/// Batches that are done when the closure returns. The effects of a batch are then written
/// atomically with the completion of its jobs.
pub(crate) struct BatchedTransactional<F> {
    pub(crate) work: F,
    /// The store whose tables the jobs may change.
    pub(crate) store: Home,
    /// The most bytes of effects of a batch.
    pub(crate) limit: usize,
    pub(crate) spans: Spans,
}

impl<T, F> Runner<T> for BatchedTransactional<F>
where
    T: Send + 'static,
    F: Fn(Vec<Job<T>>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static,
{
    fn runs_batches(&self) -> bool {
        true
    }

    fn run_batch(&self, jobs: Vec<Job<T>>, buffer: &mut Changes) -> Result<(), Box<Caught>> {
        let mut effects = Effects::new(std::mem::take(buffer), self.store, self.limit);
        let ran = guarded(|| {
            let _span = enter(&self.spans, &jobs);
            (self.work)(jobs, &mut effects)
        });
        let (changes, refused) = effects.finish();
        *buffer = changes;
        ran.and_then(|()| Ok(refused?)).map_err(Caught::boxed)
    }
}

/// Enters the span of these jobs. A job that runs alone has the span of a job.
fn enter<T>(spans: &Spans, jobs: &[Job<T>]) -> Option<Box<EnteredSpan>> {
    match jobs {
        [job] => spans.enter(job.index, job.attempt),
        _ => spans.enter_batch(jobs.iter().map(|job| job.index).min()?, jobs.len()),
    }
}
