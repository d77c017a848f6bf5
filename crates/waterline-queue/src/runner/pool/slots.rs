//! The slots of a runner: the jobs in flight, and the threads that run them.

use crate::runner::running::{FlightId, Running};
use std::collections::HashMap;
use std::time::Instant;

#[derive(Default)]
pub(super) struct Slots {
    pub(super) max_processing: usize,
    pub(super) threads: usize,
    /// How many threads there are besides one for each job: one, if other threads than the runner's
    /// end jobs. So a handler that waits for such an end does not block it.
    pub(super) spare: usize,
    /// How many threads wait for their turn to claim a job.
    pub(super) in_line: usize,
    pub(super) flights: HashMap<FlightId, Flight>,
    /// How many slots are reserved for claims under way, and for the jobs in the claim batch.
    pub(super) reserved: usize,
    /// Lost jobs that may not have started yet, and how many starts show that they have.
    pub(super) lost_early: Vec<(FlightId, u64)>,
    pub(super) last_end: Option<Instant>,
    /// True once there is a thread that notices a standstill.
    pub(super) is_watched: bool,
}

impl Slots {
    /// True if no job is in flight or being claimed.
    pub(super) fn are_free(&self) -> bool {
        self.flights.is_empty() && self.reserved == 0
    }

    /// Returns how many threads are needed: one for each job that may run, or is claimed already.
    pub(super) fn needed(&self) -> usize {
        self.max_processing.max(self.flights.len() + self.reserved) + self.spare
    }
}

pub(super) struct Flight {
    pub(super) job: Running,
    /// True once a thread has the right to report its end.
    pub(super) ended: bool,
    /// True once it is noted that the runner is stopping.
    pub(super) is_noted: bool,
    /// When its job was removed, or taken back.
    pub(super) lost: Option<Instant>,
    /// Ends its task.
    #[cfg(feature = "tokio")]
    pub(super) task: Option<tokio::task::AbortHandle>,
}
