//! Settings and their checks: the defaults, the bounds, and the error for a value that is refused.

use crate::base::index::Index;
use std::time::Duration;

mod structure;

/// Returns the default number of threads that run a consumer's jobs, which is also their limit.
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default of `max_search_ahead`. It is wide, so that one slow job in thousands stalls nothing.
/// It is narrow enough that a stuck job shows before the jobs done above it are expensive to
/// repeat.
pub(crate) const DEFAULT_SEARCH_AHEAD: u64 = 10_000;

/// The default of `max_crashes` for a consumer that parks jobs: a machine that is restarted by
/// force a few times in a row parks nothing that is sound.
pub(crate) const DEFAULT_CRASHES: u32 = 5;

/// The default of `poll_every`: rarely enough to cost nothing, often enough for a source that rings
/// nobody.
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(1);

/// The longest name, in bytes. The store's keys have one byte for its length.
pub(crate) const MAX_NAME: usize = 255;

/// The longest reason of a move, in bytes: room for a few sentences, or for a link to them.
pub(crate) const MAX_REASON: usize = 1024;

/// The distance from the lowest job that is not done at which no job can be skipped any more. A
/// consumer keeps a bit for each job between the two, so this is 128 MiB.
pub(crate) const MAX_SKIP: u64 = 1 << 30;

/// The longest name of a codec, in bytes.
pub(crate) const MAX_CODEC: usize = 32;

/// The treatment of a job whose attempts are used up (elsewhere called a dead letter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// Stop at the job. Running jobs finish, no new job starts, everything below the job is saved,
    /// and `join` and `stop` return [`Error::Job`](crate::Error::Job). This is the default, since
    /// nothing else is right for every stream.
    #[default]
    Halt,
    /// Park the job: its record is kept in the store, and the watermark passes it, in one atomic
    /// write. [`Store::parked`](crate::Store::parked) lists the records,
    /// [`Handle::redrive`](crate::Handle::redrive) runs a parked job once more, and
    /// [`Store::discard`](crate::Store::discard) gives it up. Gates, `wait_for`, `stop_at` and the
    /// lag count a parked job as processed.
    ///
    /// It needs the progress of a [`Store`](crate::Store), and is [`Error::Config`](crate::Error)
    /// with any other one.
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, OnExhausted, Store};
    ///
    /// let store = Store::in_memory();
    /// let jobs: MemoryJobs<_> = ["1", "two", "3"].into_iter().collect();
    /// Consumer::builder(jobs, store.progress("numbers"))
    ///     .on_exhausted(OnExhausted::Park { budget: 100 })
    ///     .stop_at(2)
    ///     .start(|job| Ok(drop(job.payload.parse::<u64>()?)))?
    ///     .join()?;
    /// assert_eq!(store.progress("numbers").last_processed()?, Some(2));
    /// let parked = store.parked("numbers")?;
    /// assert_eq!((parked[0].index, parked[0].error.as_str()), (1, "invalid digit found in string"));
    /// store.discard("numbers", 1)?;
    /// # Ok::<(), Error>(())
    /// ```
    Park {
        /// The most records of parked jobs that the name may have, at least 1. The next job whose
        /// attempts are used up halts the consumer, so that a service which is down cannot park the
        /// whole stream.
        budget: u64,
    },
}

/// A setting that was refused. `Display` says why, and what to write instead. `{:?}` shows the same
/// sentence, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An id of a job that is empty or too long.
    #[error("the id of a job has {length} bytes: use 1 to 255")]
    JobId {
        /// The length of the id, in bytes.
        length: usize,
    },
    /// An id of a job that begins as the ids do that a queue makes.
    #[error("the id {id:?} begins with `~`, as those that the queue makes: use another one, or none")]
    JobIdReserved {
        /// The id.
        id: String,
    },
    /// A kind of jobs whose name is empty or too long.
    #[error("the kind of a job has {length} bytes: use 1 to 255")]
    JobKind {
        /// The length of the name, in bytes.
        length: usize,
    },
    /// A time of a job that no calendar has.
    #[error("the job is to run after the year 9999: use an earlier time, or a shorter delay")]
    RunAt,
    /// A lease of no time: a job would be taken back at once.
    #[error("the lease is 0, so each job would be taken back at once: use some seconds at least")]
    LeaseZero,
    /// A queue that is open with other options.
    #[error(
        "the queue {name:?} is open with other options: use the same ones, or clone the queue (after a restart, other options hold)"
    )]
    QueueOptions {
        /// The name of the queue.
        name: String,
    },
    /// A runner with two handlers for one kind of jobs.
    #[error("the runner has two handlers for the kind {kind:?}: use one")]
    HandlerTwice {
        /// The kind.
        kind: String,
    },
    /// A runner without a handler.
    #[error("the runner has no handler, so it would run nothing: add one with `on`")]
    NoHandlers,
    /// A factor of a back-off that is below 1, or no number.
    #[error("the factor of the back-off is {value}: use 1 or more")]
    Factor {
        /// The value that was set.
        value: f64,
    },
    /// `max_processing(0)`: no job would ever run.
    #[error("max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer back, use `pause`)")]
    MaxProcessingZero,
    /// `max_effects(0)`, with which no job could change anything, or more than 1 GiB, which is too
    /// much for one write.
    #[error("max_effects is {bytes} bytes: use 1 to {} (1 GiB)", MAX_EFFECTS)]
    MaxEffects {
        /// The value that was set.
        bytes: usize,
    },
    /// A transactional job, or a [`Store::write`](crate::Store::write), used a table or a log of
    /// another store. One write cannot change two stores.
    #[error(
        "the {what} {name:?} is in another store than the progress or the write: take it from the same store, or from a \
         store that is attached to the same database"
    )]
    Foreign {
        /// The kind of thing: a table or a log.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// `max_search_ahead(0)`: no job would ever start.
    #[error(
        "max_search_ahead is 0, so no job would ever start: use 1 to run the jobs strictly one after the \
         other, or `unlimited_search_ahead()` for no limit"
    )]
    SearchAheadZero,
    /// `max_read_ahead(0)`: no job would have room in memory.
    #[error(
        "max_read_ahead is 0 bytes, which has no room for any job: use 1 or more (with 1, jobs are read one at a time)"
    )]
    MaxReadAheadZero,
    /// `start_at(Index::MAX)`, or `start_after` with the same effect.
    #[error("the first index would be {}, which is never a job: start at {} or below", Index::MAX, Index::MAX - 1)]
    StartAtMax,
    /// `stop_at(Index::MAX)`: the consumer would never stop.
    #[error("stop_at is {}, which is never a job: leave `stop_at` out to follow the stream for ever", Index::MAX)]
    StopAtMax,
    /// [`StoreProgress::seek`](crate::StoreProgress::seek) to `Index::MAX`, or a
    /// [`skip`](crate::StoreProgress::skip) of it.
    #[error("the index is {}, which is never a job: seek to {} or below, and skip jobs up to there", Index::MAX, Index::MAX - 1)]
    MoveToMax,
    /// A reason of a move that is empty, or too long for its record: see
    /// [`StoreProgress::seek`](crate::StoreProgress::seek).
    #[error("the reason of the move is {length} bytes long: use 1 to {MAX_REASON} bytes")]
    Reason {
        /// The length of the reason, in bytes.
        length: usize,
    },
    /// A [`StoreProgress::skip`](crate::StoreProgress::skip) of a job so far above the lowest one
    /// that is not done that the consumer would need too much memory for the jobs between them.
    #[error(
        "job {index} is too far above job {next}, the lowest one that is not done, to be skipped: skip jobs below {}, or seek \
         ahead first", next.saturating_add(MAX_SKIP)
    )]
    SkipTooFar {
        /// The index of the job.
        index: Index,
        /// The lowest index that is not done.
        next: Index,
    },
    /// `Retry::max_attempts(0)`: no job would ever run.
    #[error("the retry allows 0 attempts, and the first attempt counts: use `Retry::none()` for a single attempt")]
    MaxAttemptsZero,
    /// A jitter outside 0.0 to 1.0.
    #[error("the retry's jitter is {value}: use a share between 0.0 (none) and 1.0 (full)")]
    Jitter {
        /// The value that was set.
        value: f64,
    },
    /// `OnExhausted::Park` with a budget of 0: no job could be parked.
    #[error("the budget of parked jobs is 0, so none could be parked: use 1 or more, or `OnExhausted::Halt`")]
    ParkBudgetZero,
    /// `OnExhausted::Park` with a progress that keeps no records of parked jobs.
    #[error("this progress cannot keep parked jobs: use `Store::progress`, or `OnExhausted::Halt`")]
    ParkUnsupported,
    /// `max_crashes(0)`: no job could run after a crash.
    #[error("max_crashes is 0, so a job that ran while its process died could never run again: use 1 or more")]
    MaxCrashesZero,
    /// `max_crashes` with a progress that cannot keep the count.
    #[error("this progress cannot count crashes: use `Store::progress`, or leave max_crashes out")]
    MaxCrashesUnsupported,
    /// `threads(0)`: no job would ever run.
    #[error("threads is 0, so no job would ever run: use at least 1, or leave it out")]
    ThreadsZero,
    /// `threads` without `start_deferred`: the threads follow `max_processing` there, or, with
    /// `start_async`, the number of cores.
    #[error(
        "threads is only for `start_deferred`: leave it out, and limit the jobs in flight by max_processing instead"
    )]
    ThreadsWithoutDeferred,
    /// `max_effects` without `start_transactional`: jobs have no effects there.
    #[error("max_effects is only for `start_transactional`; here jobs have no effects: leave it out")]
    EffectsWithoutTransactional,
    /// `poll_every(0)`: the consumer would never sleep.
    #[error(
        "poll_every is zero, so the consumer would never sleep: use a millisecond or more, or let the source ring its `Wakeup`"
    )]
    PollEveryZero,
    /// `attempt_timeout(0)`: each attempt would be over before it begins.
    #[error("attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout")]
    AttemptTimeoutZero,
    /// `on_stall(0, …)`: each job would be a stall.
    #[error("the time of on_stall is zero, so each job would be a stall: use a second or more")]
    OnStallZero,
    /// An empty name, or one that is too long for the store.
    #[error("the {what} name is {length} bytes long: use 1 to {MAX_NAME} bytes")]
    Name {
        /// The kind of thing that has the name: a progress, a table or a log.
        what: &'static str,
        /// The length of the name, in bytes.
        length: usize,
    },
    /// A range of a table whose last key is before its first one.
    #[error(
        "the range of the table {table:?} ends with the key \"{}\" before it begins with \"{}\": put the lower key first, and \
         use `range_rev` to walk from the end", end.escape_ascii(), start.escape_ascii()
    )]
    RangeBackwards {
        /// The name of the table.
        table: String,
        /// The key that the range begins with.
        start: Vec<u8>,
        /// The key that the range ends with.
        end: Vec<u8>,
    },
    /// A [`Codec::NAME`](crate::Codec::NAME) that is empty, or too long for the record of a log.
    #[error("the name of the codec {name:?} is {} bytes long: use 1 to {MAX_CODEC} bytes", name.len())]
    CodecName {
        /// The name of the codec.
        name: String,
    },
    /// A database that was opened without a column family that the store needs.
    #[error(
        "the database has no column family {name:?}: open it with the families of `Store::column_families()` and your own, \
         and with `create_missing_column_families(true)`"
    )]
    FamilyMissing {
        /// The name of the family.
        name: String,
    },
    /// A column family that the database was opened without.
    #[error("the database was opened without a column family {name:?}: open the database with it, or create it first")]
    FamilyUnknown {
        /// The name of the family.
        name: String,
    },
    /// A column family that belongs to the store.
    #[error(
        "the column family {name:?} belongs to the store, as all do whose names begin with \"waterline.\": use another name"
    )]
    FamilyReserved {
        /// The name of the family.
        name: String,
    },
    /// A [`Watermark`](crate::Watermark) that another consumer publishes into.
    #[error(
        "another consumer publishes into the watermark that {name:?} was given: give each consumer a `Watermark::new()` of its own"
    )]
    WatermarkInUse {
        /// The name of the second consumer's progress, or "unnamed".
        name: String,
    },
    /// A cycle of gates: the consumers would wait for each other for ever.
    #[error(
        "{consumer:?} waits for {upstream:?}, which waits for {consumer:?}: neither would ever start a job, so remove one of \
         the gates"
    )]
    GateCycle {
        /// The name of the starting consumer's progress, or "unnamed".
        consumer: String,
        /// The name of the upstream's progress, or "unnamed".
        upstream: String,
    },
    /// An upstream that has ended below the first job of the gated consumer, which could never
    /// start.
    #[error(
        "{consumer:?} begins with job {next}, but its upstream {upstream:?} has ended with {}: start the upstream again, and \
         gate {consumer:?} by the new one",
        last_processed.map_or_else(|| "nothing processed".to_owned(), |last| format!("job {last} as the last one processed"))
    )]
    UpstreamEnded {
        /// The name of the starting consumer's progress, or "unnamed".
        consumer: String,
        /// The name of the upstream's progress, or "unnamed".
        upstream: String,
        /// The first job of the starting consumer.
        next: Index,
        /// The watermark of the upstream.
        last_processed: Option<Index>,
    },
    /// A pipeline without a stage.
    #[error("the pipeline has no stage: give it at least one")]
    NoStages,
    /// Two stages of a pipeline with one name.
    #[error("two stages have the name {name:?}: give each stage a name of its own")]
    StageTwice {
        /// The name of both stages.
        name: String,
    },
    /// A stage of a pipeline named an upstream that is not before it.
    #[error("no stage before {stage:?} has the name {name:?}: add the upstream stages first")]
    StageUnknown {
        /// The name of the stage.
        stage: String,
        /// The name that it asked for.
        name: String,
    },
    /// A stage of a pipeline that returned a consumer which the pipeline does not know.
    #[error(
        "the stage {name:?} returned a consumer that was not made with `Stage::consumer`: call that instead of `Consumer::builder`"
    )]
    StageForeign {
        /// The name of the stage.
        name: String,
    },
    /// `stop` or `join` on one of the consumer's own threads. It would wait for itself.
    #[error(
        "stop or join was called on one of the consumer's own threads (or of the runner's), which would wait for itself: it \
         was asked to stop and does so; on such a thread call `Handle::request_stop` (or drop the `Runner`), and `stop` or \
         `join` on others"
    )]
    OwnThread,
}

/// Refuses an empty name, and one that is too long.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        length => Err(ConfigError::Name { what, length }),
    }
}

/// Refuses an empty name of a codec, and one that is too long.
pub(crate) fn check_codec(name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_CODEC => Ok(()),
        _ => Err(ConfigError::CodecName { name: name.to_owned() }),
    }
}

/// Refuses an empty reason of a move, and one that is too long.
pub(crate) fn check_reason(reason: &str) -> Result<(), ConfigError> {
    match reason.len() {
        1..=MAX_REASON => Ok(()),
        length => Err(ConfigError::Reason { length }),
    }
}

/// The default of `max_effects`: the most bytes of effects that wait for their save.
pub(crate) const DEFAULT_EFFECTS: usize = 64 << 20;

/// The bound of `max_effects`. RocksDB takes at most 4 GiB in one write, and several consumers may
/// share one.
pub(crate) const MAX_EFFECTS: usize = 1 << 30;

pub(crate) fn check_effects(bytes: usize) -> Result<(), ConfigError> {
    if (1..=MAX_EFFECTS).contains(&bytes) { Ok(()) } else { Err(ConfigError::MaxEffects { bytes }) }
}

/// The default of `max_read_ahead`: the most bytes of jobs that were read and have not started.
pub(crate) const DEFAULT_READ_AHEAD: usize = 64 << 20;

pub(crate) fn check_read_ahead(bytes: usize) -> Result<(), ConfigError> {
    if bytes == 0 { Err(ConfigError::MaxReadAheadZero) } else { Ok(()) }
}

pub(crate) fn check_max_processing(n: usize) -> Result<(), ConfigError> {
    if n == 0 { Err(ConfigError::MaxProcessingZero) } else { Ok(()) }
}

pub(crate) fn check_search_ahead(n: u64) -> Result<(), ConfigError> {
    if n == 0 { Err(ConfigError::SearchAheadZero) } else { Ok(()) }
}
