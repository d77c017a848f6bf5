//! The slots of a runner: the jobs in flight, and the threads that run them.

use crate::runner::running::{FlightId, Running};
use std::collections::HashMap;
use std::time::Instant;

#[derive(Default)]
pub(super) struct Slots {
    /// The most jobs in flight.
    pub(super) max_processing: usize,
    pub(super) threads: usize,
    /// The threads beside one for each job: one, if others than threads of the runner end jobs. A
    /// handler that waits for such an end does not hold it up then.
    pub(super) spare: usize,
    /// The threads that wait for their turn to claim a job.
    pub(super) in_line: usize,
    /// The jobs in flight.
    pub(super) flights: HashMap<FlightId, Flight>,
    /// The slots of claims that are under way, and of the jobs in the claim batch.
    pub(super) reserved: usize,
    /// Jobs that were lost and may not have begun yet. Once so many jobs have begun, they have.
    pub(super) lost_early: Vec<(FlightId, u64)>,
    /// The time of the last end.
    pub(super) last_end: Option<Instant>,
    /// True once there is a thread that notices a standstill.
    pub(super) is_watched: bool,
}

impl Slots {
    /// True if no job is in flight, or is being claimed.
    pub(super) fn are_free(&self) -> bool {
        self.flights.is_empty() && self.reserved == 0
    }

    /// The most threads: one for each job that may run, or that is claimed already.
    pub(super) fn needed(&self) -> usize {
        self.max_processing.max(self.flights.len() + self.reserved) + self.spare
    }
}

/// A job in flight.
pub(super) struct Flight {
    pub(super) job: Running,
    /// True once somebody reports its end.
    pub(super) ended: bool,
    /// True once it is noted that the runner stops.
    pub(super) is_noted: bool,
    /// The time at which its job was removed, or taken back.
    pub(super) lost: Option<Instant>,
    /// Ends its task.
    #[cfg(feature = "tokio")]
    pub(super) task: Option<tokio::task::AbortHandle>,
}
