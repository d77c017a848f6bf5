//! Mode *direct*: a job is done when the worker returns.

use super::worker::{Report, Worker};
use super::{Assignment, Runner};
use crate::base::guard::{Failure, guarded};
use crate::commit::changes::Changes;

/// Jobs that are done when the worker returns.
pub(crate) struct Direct<W>(pub(crate) W);

impl<T: Send + 'static, W: Worker<T>> Runner<T> for Direct<W> {
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        Some(Report { token, index, outcome: guarded(|| self.0.run(job)).map_err(Failure::boxed) })
    }
}
