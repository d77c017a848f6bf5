//! The jobs that are handed out, and the code that runs them.

use super::batches::Batches;
use super::flights::Flights;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::run::OnJobDone;
use std::collections::BTreeMap;

/// The jobs that are handed out, and the code that runs them.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) flights: Flights,
    pub(super) aside: Aside,
    pub(crate) pool: Option<Arc<dyn Pool>>,
    pub(crate) on_job_done: Option<Arc<OnJobDone>>,
    /// The batches in which jobs run; `None` if each job runs by itself.
    pub(super) batches: Option<Box<Batches>>,
}

/// The code that runs the jobs, for those who do not know the type of the jobs.
pub(crate) trait Pool: Send + Sync {
    /// Does all the work of a thread of the pool.
    fn work(&self);
    /// Calls [`Runner::forget`](crate::run::Runner::forget).
    fn forget(&self, index: Index);
    /// Calls [`Runner::overdue`](crate::run::Runner::overdue).
    fn overdue(&self, token: usize);
    /// Calls [`Runner::abandon`](crate::run::Runner::abandon).
    fn abandon(&self);
}

/// The jobs that are neither in flight nor done, since their results wait for the sink.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// The attempts of the jobs whose results wait, by index.
    pub(super) attempts: BTreeMap<Index, u32>,
    /// True while a thread hands results to the sink.
    pub(super) sinking: bool,
    /// True if the lowest undone job waits for its turn because of a pause, or since the job below
    /// it was parked.
    pub(super) held: bool,
}

impl Aside {
    pub(super) fn has(&self, index: Index) -> bool {
        self.attempts.contains_key(&index)
    }

    /// True if a result up to this index waits.
    pub(super) fn has_up_to(&self, index: Index) -> bool {
        self.attempts.range(..=index).next().is_some()
    }

    /// A job was passed, so the turn may be at a result that waits, and no thread has it. A thread
    /// of the pool takes it.
    pub(super) fn hold(&mut self, undone: Index) {
        self.held |= !self.sinking && self.has(undone);
    }
}
