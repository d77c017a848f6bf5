//! Workers, as the server knows them.

use super::faults::{not_found, queue_error};
use super::queues::Remote;
use super::rows::WorkerRow;
use super::server::{At, Server};
use crate::types::error::QueueError;
use crate::types::worker::WorkerInfo;

/// How many of its jobs a worker is shown with.
const SHOWN: usize = 64;

impl<S: Server> Remote<S> {
    /// Returns the workers of the queue with this name, each with up to 64 of its jobs.
    pub fn workers_named(&self, name: &str) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(At { queue: name, clock: None }, SHOWN)
    }

    pub(super) fn read_workers(&self, at: At<'_>, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        let read = self.server.workers_of(at, i32::try_from(jobs).unwrap_or(i32::MAX));
        let read = read.map_err(|error| {
            let doing = "look at the workers of a queue";
            not_found(at.queue, &error).unwrap_or_else(|| queue_error(at.queue, doing, error))
        });
        Ok(read?.into_iter().map(WorkerRow::info).collect())
    }
}
