//! The modes *direct* and *transactional*: a job is done when its code returns. In the latter, its
//! effects and its completion are one atomic write.

use super::worker::{Job, Report, Worker};
use super::{Assignment, Runner};
use crate::base::{BoxError, caught::Caught, guard::guarded};
use crate::commit::changes::{Changes, Home};
use crate::effects::Effects;
use crate::observe::spans::Spans;

/// Jobs that are done when the worker returns.
pub(crate) struct Direct<W> {
    pub(crate) worker: W,
    pub(crate) spans: Spans,
}

impl<T: Send + 'static, W: Worker<T>> Runner<T> for Direct<W> {
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        let run = || {
            let _span = self.spans.enter(index, job.attempt);
            self.worker.run(job)
        };
        Some(Report { token, index, outcome: guarded(run).map_err(Caught::boxed) })
    }

    fn is_plain(&self) -> bool {
        true
    }
}

/// Jobs that are done when the closure returns. Their effects are written after that.
pub(crate) struct TransactionalMode<F> {
    pub(crate) work: F,
    /// The store whose tables the jobs may change.
    pub(crate) store: Home,
    /// The most bytes of effects of a job.
    pub(crate) limit: usize,
    pub(crate) spans: Spans,
}

impl<T, F> Runner<T> for TransactionalMode<F>
where
    T: Send + 'static,
    F: Fn(Job<T>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, buffer: &mut Changes) -> Option<Report> {
        let index = job.index;
        let mut effects = Effects::new(std::mem::take(buffer), self.store, self.limit);
        let ran = guarded(|| {
            let _span = self.spans.enter(index, job.attempt);
            (self.work)(job, &mut effects)
        });
        let (changes, refused) = effects.finish();
        *buffer = changes;
        let outcome = ran.and_then(|()| Ok(refused?)).map_err(Caught::boxed);
        Some(Report { token, index, outcome })
    }
}
