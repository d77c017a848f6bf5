//! The jobs that are handed out, and the code that runs them.

use super::aside::Aside;
use super::batches::Batches;
use super::flights::Flights;
use crate::base::sync::Arc;
use crate::run::{OnJobDone, Runner};

/// The jobs that are handed out, and the code that runs them.
pub(crate) struct Running<T> {
    pub(crate) flights: Flights,
    pub(super) aside: Aside,
    pub(crate) runner: Option<Arc<dyn Runner<T>>>,
    pub(crate) on_job_done: Option<Arc<OnJobDone>>,
    pub(crate) counters: Counters,
    /// The batches in which jobs run; `None` if each job runs by itself.
    pub(super) batches: Option<Box<Batches>>,
}

impl<T> Default for Running<T> {
    fn default() -> Self {
        Self {
            flights: Flights::default(),
            aside: Aside::default(),
            runner: None,
            on_job_done: None,
            counters: Counters::default(),
            batches: None,
        }
    }
}

/// The counts of a status.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    pub(crate) saves: u64,
}
