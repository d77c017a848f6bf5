//! The limits of a queue and how full they are, and the jobs before and behind a job.

use crate::types::job::JobId;
use crate::types::limit::LimitOf;
use std::time::Duration;

/// A limit of a queue, and how full it is, from [`Queue::limits`](crate::Queue::limits).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitUse {
    /// The jobs that it is for.
    pub limit: LimitOf,
    /// The most jobs that may run at once.
    pub at_once: Option<u32>,
    /// The jobs that run and count for it.
    pub running: u64,
    /// The attempts that may begin, and the time in which they may.
    pub rate: Option<(u32, Duration)>,
    /// The most tokens that the rate keeps.
    pub burst: Option<u32>,
    /// The tokens that are there. Below 0: a job that cost more than all of them has begun.
    pub tokens: Option<f64>,
    /// The jobs that it holds.
    pub held: u64,
}

/// The jobs that a job waits for, and those that wait for it, from
/// [`Queue::related`](crate::Queue::related).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Related {
    /// The jobs whose ends it waits for. For a dead job, those that it still waited for when it
    /// died: it waits for them again if it is requeued and they live.
    pub waits_for: Vec<JobId>,
    /// The jobs that wait for its end.
    pub awaited_by: Vec<JobId>,
}
