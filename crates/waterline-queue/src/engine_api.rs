//! The interface for the crates of this project that bring a queue into another database, beside
//! `remote`.
//!
//! It is not part of the API: any version may change it. Its functions read the parts of public
//! types, so that those types need not expose them.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "only the crates of this project use it")]

pub use crate::engine::{Held, QueueEngine, QueueNo};
use crate::notify::shared::Shared;
pub use crate::rules::ends::{End, Next, Over, Past, When, end_of_lease, next as next_of};
use crate::rules::pushing::Push;
pub use crate::rules::set_back::{SetBack, last_tick};
#[cfg(feature = "tokio")]
pub use crate::runner::futures::on_async_then;
pub use crate::runner::own_end::OwnEnd;
use crate::types::capabilities::Capabilities;
use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState};
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::{Finisher, JobData, Lease, Queue, QueueAdmin, RunnerBuilder, Running, TypedJob};
use std::sync::Arc;
pub use waterline::seam::{Growth, retry_parts};

// A queue.

pub fn open(engine: Arc<dyn QueueEngine>, name: &str, options: QueueOptions) -> Result<Queue, QueueError> {
    Queue::on(engine, name, options)
}

pub fn admin(engine: Arc<dyn QueueEngine>, name: &str) -> Result<QueueAdmin, QueueError> {
    QueueAdmin::on(engine, name)
}

pub const NO_CAPABILITIES: Capabilities = Capabilities {
    writes_beside: false,
    keys_take_turns: false,
    names_limits: false,
    steady_clock: false,
    one_process: false,
};

// Writes of the caller's beside those of a queue.

pub fn engine_of(queue: &Queue) -> (&dyn QueueEngine, QueueNo) {
    queue.parts()
}

/// Asks the hook of the queue, and checks the jobs.
pub fn prepare_all(queue: &Queue, jobs: Vec<NewJob>) -> Result<Vec<Push>, QueueError> {
    queue.ask_before_pushes(&jobs)?;
    let (engine, number) = queue.parts();
    Ok(engine.prepare(number, jobs)?)
}

pub fn lease_parts(lease: &Lease) -> (&Queue, Held) {
    lease.parts()
}

/// Makes the drop of a lease check whether a transaction has ended it.
pub fn note_end_in_transaction(lease: &mut Lease) {
    lease.note_end_in_transaction();
}

/// Ends the job of a lease with success by a call of the engine's own. It answers with the state of
/// the job; `None`: the lease had ended.
pub fn finish_by(
    lease: &mut Lease,
    call: impl FnOnce(&Queue, &Held) -> Result<Option<Option<JobState>>, QueueError>,
) -> Result<Option<JobState>, QueueError> {
    lease.finish_by(call)
}

pub fn running_parts(job: &Running) -> (&Queue, Held) {
    job.parts()
}

/// Takes the right to end a job; `None` if it was taken before.
pub fn take_end(done: Finisher) -> Option<OwnEnd> {
    done.take()
}

/// Notes the settings that a type of jobs has for its kind.
pub fn typed<J: TypedJob>(builder: RunnerBuilder) -> RunnerBuilder {
    builder.typed::<J>()
}

/// Returns the data that an end leaves, as JSON.
pub fn data_json(data: JobData, id: &str, queue: &Shared) -> Result<Option<Vec<u8>>, QueueError> {
    data.json(id, &queue.options)
}

// Errors.

pub fn foreign_error(queue: &Queue) -> QueueError {
    waterline::ConfigError::Foreign { what: "queue", name: queue.name().to_owned() }.into()
}

pub fn halt_error(queue: String, id: JobId) -> QueueError {
    QueueError::Halt { queue, id }
}
