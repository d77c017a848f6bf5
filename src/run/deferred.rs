//! Mode *deferred*: a job is done when its token says so, on any thread.

use super::worker::{Done, Job, Report, Reported};
use super::{Assignment, Runner};
use crate::base::{error::describe, guard::guarded, sync::Arc};
use crate::commit::changes::Changes;
use crate::observe::spans::Spans;
use crate::threads::stopping::Overdue;

pub(crate) struct Deferred<F> {
    pub(crate) start: F,
    pub(crate) reports: Arc<dyn Reported>,
    /// True if attempts have a timeout.
    pub(crate) timed: bool,
    pub(crate) spans: Spans,
}

impl<T, F> Runner<T> for Deferred<F>
where
    T: Send + 'static,
    F: Fn(Job<T>, Done) + Send + Sync + 'static,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        let overdue = if self.timed { Overdue::here() } else { None };
        let done = Done::new(self.reports.clone(), token, index, overdue);
        let started = guarded(|| {
            let _span = self.spans.enter(index, job.attempt);
            (self.start)(job, done);
            Ok(())
        });
        if let Err(error) = started {
            // The token decides: it was dropped, so the job failed, or it is still held.
            self.reports.start_panicked(index, &describe(&*error));
        }
        None
    }
}
