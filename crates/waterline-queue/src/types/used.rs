//! The limits of a queue and how full they are, and the jobs before and after a job.

use crate::types::job::JobId;
use crate::types::limit::LimitOf;
use std::time::Duration;

/// A limit of a queue, and how full it is, from [`Queue::limits`](crate::Queue::limits).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitUse {
    /// The jobs that it applies to.
    pub limit: LimitOf,
    /// How many jobs may run at once.
    pub at_once: Option<u32>,
    /// How many running jobs count for it.
    pub running: u64,
    /// How many attempts may start, and in which period.
    pub rate: Option<(u32, Duration)>,
    /// How many tokens the rate keeps at most.
    pub burst: Option<u32>,
    /// How many tokens there are. Below 0 if a job that cost more than all of them has started.
    pub tokens: Option<f64>,
    /// How many jobs it holds.
    pub held: u64,
}

/// The jobs that a job waits for, and those that wait for it, from
/// [`Queue::related`](crate::Queue::related).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Related {
    /// The jobs whose ends it waits for. For a dead job, those that it still waited for when it
    /// died: if it is requeued, it waits again for those of them that have not ended.
    pub waits_for: Vec<JobId>,
    /// The jobs that wait for its end.
    pub awaited_by: Vec<JobId>,
}
