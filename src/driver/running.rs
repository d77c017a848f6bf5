//! The jobs that are handed out, and the code that runs them.

use super::Driver;
use super::aside::Aside;
use super::batches::Batches;
use super::flights::Flights;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::run::{OnJobDone, Runner, work};

/// The jobs that are handed out, and the code that runs them.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) flights: Flights,
    pub(super) aside: Aside,
    pub(crate) pool: Option<Arc<dyn Pool>>,
    pub(crate) on_job_done: Option<Arc<OnJobDone>>,
    pub(crate) counters: Counters,
    /// The batches in which jobs run; `None` if each job runs by itself.
    pub(super) batches: Option<Box<Batches>>,
}

/// The counts of a status.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    pub(crate) saves: u64,
}

/// The code that runs the jobs, for those who do not know the type of the jobs.
pub(crate) trait Pool: Send + Sync {
    /// Does all the work of a thread of the pool.
    fn work(&self, driver: &Driver);
    /// Calls [`Runner::forget`].
    fn forget(&self, index: Index);
    /// Calls [`Runner::overdue`].
    fn overdue(&self, token: usize);
    /// Calls [`Runner::abandon`].
    fn abandon(&self);
}

/// The same with the type of the jobs.
pub(super) struct PoolOf<T>(pub(super) Arc<dyn Runner<T>>);

impl<T: Send + 'static> Pool for PoolOf<T> {
    fn work(&self, driver: &Driver) {
        work(driver, &*self.0);
    }

    fn forget(&self, index: Index) {
        self.0.forget(index);
    }

    fn overdue(&self, token: usize) {
        self.0.overdue(token);
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}
