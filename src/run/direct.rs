//! Mode *direct*: a job is done when the worker returns.

use super::worker::{Report, Worker};
use super::{Assignment, Runner};
use crate::base::caught::Failure;
use crate::base::guard::guarded;
use crate::commit::changes::Changes;
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
        Some(Report { token, index, outcome: guarded(run).map_err(Failure::boxed) })
    }
}
