//! The interface for a database of queues, only for the crates of this project.
//!
//! It is not part of the API: any version may change it. Its functions read the parts of public
//! types (options, limits, a schedule), so that those types need not expose them.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "only the crates of this project use it")]

pub use crate::engine::{
    Beside, Claim, Claimed, Edit, Ending, Held, NoteRead, Opened, Peek, QueueEngine, QueueNo, StatusInputs, Steer,
    Traffic, Turned,
};
pub use crate::notify::presence::{NO_PRESENCE, Presence};
pub use crate::notify::shared::{OpenQueues, Shared, Wake};
pub use crate::notify::subscribers::{Read, Watched};
pub use crate::rules::due::{Due, due};
pub use crate::rules::ends::{End, Next, Over, Past, When, end_of_lease, next as next_of};
pub use crate::rules::fleet::{Fleet, SilentWorker};
pub use crate::rules::notes::{Change, Noted, counted_in};
pub use crate::rules::pushing::{Push as JobPush, prepare};
pub use crate::rules::set_back::{SetBack, last_tick};
#[cfg(feature = "tokio")]
pub use crate::runner::futures::on_async_then;
pub use crate::runner::own_end::OwnEnd;
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::durations::from_nanos;
use crate::types::error::QueueError;
pub use crate::types::events::{About, Damaged, Event, Line, Passed};
pub use crate::types::info::{JobInfo, PeriodicInfo};
pub use crate::types::job::{Counts, JobId, JobState, Priority, PushOutcome, Pushed, Retention};
pub use crate::types::limit::{Bounds, LimitOf};
pub use crate::types::meta::{Meta, size_error as meta_error};
pub use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
pub use crate::types::page::Place;
pub use crate::types::periodic::Periodic;
use crate::types::progress::JobProgress;
pub use crate::types::row::{Extras, NO_EXTRAS, Row as JobRow};
use crate::types::schedule::Schedule;
pub use crate::types::unique::{Fingerprint, Until};
use crate::types::used::{LimitUse, Related};
pub use crate::types::wanted::Wanted;
use crate::{
    Durations, Finisher, JobData, Lease, Queue, QueueAdmin, Root, RunnerBuilder, Running, TypedJob, WorkerInfo,
    WorkerJob,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::seam::ClockExt;
pub use waterline::seam::{Growth, Home, Moment};
use waterline::{BoxError, Error, Retry, seam};

pub const LONGEST_SLEEP: Duration = crate::types::options::LONGEST_SLEEP;

// A queue.

pub fn open(engine: Arc<dyn QueueEngine>, name: &str, options: QueueOptions) -> Result<Queue, QueueError> {
    Queue::on(engine, name, options)
}

pub fn admin(engine: Arc<dyn QueueEngine>, name: &str) -> Result<QueueAdmin, QueueError> {
    QueueAdmin::on(engine, name)
}

pub fn is_admin(options: &QueueOptions) -> bool {
    options.admin
}

pub const NO_CAPABILITIES: Capabilities = Capabilities {
    writes_beside: false,
    keys_take_turns: false,
    names_limits: false,
    steady_clock: false,
    one_process: false,
};

/// The home of an engine that runs no effects.
pub fn home(address: usize) -> Home {
    Home { address, takes_sql: false }
}

// Options.

/// The settings of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub lease: Duration,
    pub retry: Retry,
    pub max_crashes: Option<u32>,
    pub retention: Retention,
    pub dead_for: Duration,
    pub ids_for: Duration,
    pub heal_after: Option<Duration>,
    pub max_waiting: Option<u64>,
    pub max_payload: usize,
    /// The time of a manual clock.
    pub manual: Option<u64>,
}

pub fn options_of(options: &QueueOptions) -> Options {
    let QueueOptions {
        lease,
        retry,
        max_crashes,
        retention,
        dead_for,
        ids_for,
        heal_after,
        max_waiting,
        max_payload,
        clock,
        ..
    } = options;
    Options {
        lease: *lease,
        retry: *retry,
        max_crashes: *max_crashes,
        retention: *retention,
        dead_for: *dead_for,
        ids_for: *ids_for,
        heal_after: *heal_after,
        max_waiting: *max_waiting,
        max_payload: *max_payload,
        manual: clock.is_manual().then(|| clock.moment().wall),
    }
}

pub fn limits_of(options: &QueueOptions) -> impl Iterator<Item = (&LimitOf, &Bounds)> {
    options.limits.iter().map(|limit| (&limit.of, &limit.bounds))
}

/// Returns the count, the period and the burst of a rate.
pub fn rate_of(bounds: &Bounds) -> Option<(u32, Duration, u32)> {
    bounds.rate.map(|rate| (rate.count, rate.per, rate.burst))
}

pub fn limit_of(name: &str) -> LimitOf {
    crate::types::limit::of_name(name)
}

/// Makes a limit with its bounds and its use: running jobs, tokens, held jobs.
pub fn limit_use(
    name: &str,
    at_once: Option<u32>,
    rate: Option<(u32, Duration, u32)>,
    (running, tokens, held): (u64, Option<f64>, u64),
) -> LimitUse {
    let (limit, burst) = (limit_of(name), rate.map(|(_, _, burst)| burst));
    LimitUse { limit, at_once, running, rate: rate.map(|(count, per, _)| (count, per)), burst, tokens, held }
}

/// Makes the jobs that a job waits for, and those that wait for it.
pub fn related(waits_for: Vec<JobId>, awaited_by: Vec<JobId>) -> Related {
    Related { waits_for, awaited_by }
}

/// Returns the first pause, growth, cap, attempts and jitter.
pub fn retry_parts(retry: &Retry) -> (Duration, Growth, Duration, Option<u32>, f64) {
    seam::retry_parts(retry)
}

// Jobs.

pub const STATES: [JobState; 6] = JobState::ALL;
pub const PRIORITIES: [Priority; 4] = Priority::ALL;

pub fn root_millis(root: &Root) -> u64 {
    root.millis()
}

pub fn pushed(id: JobId, outcome: PushOutcome) -> Pushed {
    Pushed { id, outcome }
}

/// Makes the row of a running job of which nothing more is known.
pub fn running_row(token: u64) -> JobRow {
    JobRow {
        state: JobState::Running,
        has_data: false,
        extras: None,
        ..JobRow::unreadable(Priority::Normal, token, None)
    }
}

pub fn counts_of(counts: [u64; STATES.len()], damaged: u64, age: Duration) -> Counts {
    Counts { age, ..Counts::of(counts, damaged) }
}

pub fn job_info(
    id: &str,
    row: &JobRow,
    tie: u64,
    payload: Vec<u8>,
    data: Option<Value>,
    meta: Meta,
    progress: Option<JobProgress>,
) -> JobInfo {
    JobInfo { meta, progress, tie, ..JobInfo::of(id, row, payload, data) }
}

pub fn progress(fraction: f64, note: &str, at: u64) -> Result<JobProgress, ConfigError> {
    JobProgress::new(fraction, note, at)
}

pub fn durations(count: u64, mean: u64, last: u64) -> Durations {
    Durations { count, mean: from_nanos(mean), last: from_nanos(last) }
}

// Writes of the caller's beside those of a queue.

pub fn engine_of(queue: &Queue) -> (&dyn QueueEngine, QueueNo) {
    queue.parts()
}

/// Asks the hook of the queue, and checks the jobs.
pub fn prepare_all(queue: &Queue, jobs: Vec<NewJob>) -> Result<Vec<JobPush>, QueueError> {
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

/// Refuses a payload that is too large for this queue.
///
/// # Errors
/// [`ConfigError::Length`].
pub fn check_payload(queue: &Shared, job: &NewJob) -> Result<(), ConfigError> {
    queue.options.check_payload("payload", job.payload.len())
}

/// Makes the error for a payload, or data, that the database has refused.
pub fn payload_error(what: &'static str, length: usize, most: usize) -> ConfigError {
    crate::types::options::payload_error(what, length, most)
}

/// A worker of which nothing is known yet.
pub const NO_WORKER: WorkerInfo = WorkerInfo {
    name: None,
    process: None,
    host: None,
    language: None,
    version: None,
    kinds: None,
    slots: None,
    busy: 0,
    began: SystemTime::UNIX_EPOCH,
    silent_for: Duration::ZERO,
    is_silent: false,
    is_stopping: false,
    jobs: Vec::new(),
    newest_ran_for: None,
    lease_left: None,
};

/// Makes a job of a worker from its id, its kind and how long it has run.
pub fn worker_job(id: JobId, kind: String, ran_for: Duration) -> WorkerJob {
    WorkerJob { id, kind, ran_for }
}

/// Returns the name of this machine.
pub fn host() -> &'static str {
    seam::host()
}

// Schedules.

pub fn next_tick(schedule: &Schedule, last: u64) -> Option<u64> {
    schedule.next(last)
}

pub fn periodic_info(
    name: String,
    schedule: Option<String>,
    last_tick: u64,
    next_tick: Option<SystemTime>,
    last_run: Option<JobId>,
    skipped: u64,
    damaged: Option<String>,
) -> PeriodicInfo {
    let last_tick = PeriodicInfo::ticked(last_tick, last_run.as_deref().unwrap_or_default(), skipped);
    PeriodicInfo { name, schedule, last_tick, next_tick, last_run, skipped, damaged }
}

// Errors.

pub fn foreign_error(queue: &Queue) -> QueueError {
    waterline::ConfigError::Foreign { what: "queue", name: queue.name().to_owned() }.into()
}

/// Makes the error for a failed call of a database. `look_at` says where to find the reason.
pub fn store_error(doing: &str, look_at: &'static str, source: BoxError) -> QueueError {
    QueueError::Store(Error::Store(seam::store_error(doing.to_owned(), look_at, source)))
}

pub fn counter_error(table: String, key: Vec<u8>, reason: String) -> QueueError {
    QueueError::Store(Error::Counter { table, key, reason })
}

pub fn halt_error(queue: String, id: JobId) -> QueueError {
    QueueError::Halt { queue, id }
}

pub fn not_found_error(queue: String, id: JobId) -> QueueError {
    QueueError::NotFound { queue, id }
}

pub fn cycle_error(queue: String, id: JobId, through: Option<JobId>) -> QueueError {
    QueueError::Cycle { queue, id, through }
}

pub fn already_runs_error(queue: String, id: JobId) -> QueueError {
    QueueError::AlreadyRuns { queue, id }
}
