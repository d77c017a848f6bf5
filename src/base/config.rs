//! Settings and their checks: the defaults, the bounds, and the error for a value that is refused.

use crate::base::index::Index;

mod bounds;
mod exhausted;
mod structure;

use self::bounds::taken_twice;
pub(crate) use self::bounds::*;
pub use self::exhausted::OnExhausted;

/// A setting that was refused. `Display` says why, and what to write instead. `{:?}` shows the same
/// sentence, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number or a time of 0, with which nothing would ever run, or nothing would ever pause.
    #[error("{why}")]
    Zero {
        /// The name of the call that sets it, for example "max_processing" or "poll_every". It is
        /// "budget" for the parked jobs, "every" for the interval of a periodic job, "gate" for the
        /// time of a gate of a runner, and "most" for the jobs of a read.
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A text that is too long for its record, or empty where it must say something.
    #[error("{why}")]
    Length {
        /// The kind of text: "job id", "job kind", "job key", "root signature", "metadata key",
        /// "progress note", "move reason" or "codec", or the thing that has the name, such as
        /// "table".
        what: &'static str,
        /// The length of the text, in bytes.
        length: usize,
        /// The most bytes that it may have.
        most: usize,
        /// The reason, and what to write instead.
        why: String,
    },
    /// An id, a kind, a key or a name with the character NUL, which PostgreSQL keeps in no text.
    #[error("{subject} has the character NUL (U+0000), which no text of PostgreSQL has: leave it out")]
    Nul {
        /// The text, as the beginning of a sentence.
        subject: String,
    },
    /// Metadata of a job, or a note of a kind of jobs, that is too large.
    #[error("the metadata, or the note, would have {bytes} bytes: use at most 65,536, and keep more in a table")]
    MetaSize {
        /// Its length as JSON, in bytes.
        bytes: usize,
    },
    /// JSON that is nested too deep: it could be written, and nobody could read it again.
    #[error("the JSON is nested deeper than 127 arrays and objects: store the inner part as a text")]
    JsonDepth,
    /// Progress of a job that is no fraction.
    #[error("the progress of the job is {value}: use 0 to 1")]
    Fraction {
        /// The value.
        value: f64,
    },
    /// A limit of a queue that limits nothing.
    #[error("the limit of {limit} has neither a number of jobs at once nor a rate: set one of them, or leave it out")]
    LimitEmpty {
        /// The jobs that it is for.
        limit: String,
    },
    /// Two limits of a queue for the same jobs.
    #[error("the limit of {limit} is set twice: set both numbers in one limit")]
    LimitTwice {
        /// The jobs that they are for.
        limit: String,
    },
    /// A type of jobs ([`TypedJob`](crate::queue::TypedJob)) that returns what is not of its kind.
    #[error("the type of the kind {kind:?} returns {returned}: return the one that it was given, with more settings")]
    KindForeign {
        /// The kind.
        kind: String,
        /// The thing that it returns, for example `a limit of the queue`.
        returned: String,
    },
    /// A limit of a type of jobs that the queue of a runner was opened without.
    #[error(
        "the queue {queue:?} was opened without the limit that {job} sets for its kind {kind:?}, so it would not hold: open \
         the queue with `.job::<{job}>()` in its `QueueOptions`"
    )]
    LimitMissing {
        /// The kind.
        kind: String,
        /// The name of the queue.
        queue: String,
        /// The name of the type.
        job: &'static str,
    },
    /// A job that is compared by a field which its payload does not have.
    #[error(
        "the job is compared with others by the field {field:?}, which its payload does not have: the payload must be an object with that field"
    )]
    FingerprintField {
        /// The name of the field.
        field: String,
    },
    /// An id of a job that begins as the ids do that a queue makes.
    #[error("the id {id:?} begins with `~`, as those that the queue makes: use another one, or none")]
    JobIdReserved {
        /// The id.
        id: String,
    },
    /// A cursor that is none of this list of jobs: it was changed, or is that of another list.
    #[error(
        "the cursor is none of the list of {state} jobs of the queue {queue:?}: use `next` of the page before, or begin without one"
    )]
    Cursor {
        /// The name of the queue.
        queue: String,
        /// The state of the jobs that were asked for.
        state: String,
    },
    /// A time of a job, or the end of a pause, that is after the year 9999.
    #[error("the time of the job, or of the pause, is after the year 9999: use an earlier or a shorter one")]
    RunAt,
    /// A periodic job of this name that is registered with another schedule, job or setting.
    #[error(
        "the periodic job {name:?} is registered with another schedule, job or setting: use the same one, or call \
         `remove_periodic` first (after a restart, another one holds)"
    )]
    PeriodicTwice {
        /// The name of the periodic job.
        name: String,
    },
    /// A periodic job whose job has an id, a time of its own, or jobs that it waits for.
    #[error(
        "the job of the periodic job {name:?} has an id, a delay or a time of its own, or waits for other jobs: leave them \
         out, since each tick makes a new job at its time"
    )]
    PeriodicJob {
        /// The name of the periodic job.
        name: String,
    },
    /// A periodic job that makes up for each missed tick, and may have one run alone.
    #[error(
        "the periodic job {name:?} makes up for all missed ticks at once, and skips a tick while a run has not ended: allow \
         runs side by side with `Overlap::Allow`, or use `CatchUp::One`"
    )]
    CatchUpSkips {
        /// The name of the periodic job.
        name: String,
    },
    /// A cron expression with more or fewer than five fields.
    #[error(
        "the cron expression {expression:?} has {fields} fields: use 5 (minute, hour, day of month, month, day of week)"
    )]
    CronFields {
        /// The expression.
        expression: String,
        /// The number of its fields.
        fields: usize,
    },
    /// A field of a cron expression that cannot be read.
    #[error("the {field} {value:?} of the cron expression {expression:?} cannot be read: {reason}")]
    CronField {
        /// The expression.
        expression: String,
        /// The name of the field: "minute", "hour", "day of month", "month" or "day of week".
        field: &'static str,
        /// The field.
        value: String,
        /// The reason.
        reason: String,
    },
    /// A cron expression that no time matches, for example the 30th of February.
    #[error("no time matches the cron expression {expression:?}, so the job would never run: use a date that exists")]
    CronNever {
        /// The expression.
        expression: String,
    },
    /// A time zone that does not exist.
    #[error("there is no time zone {name:?}: use a name of the IANA time zone database, for example \"Europe/Berlin\"")]
    TimeZone {
        /// The name.
        name: String,
    },
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
    /// A runner with a timeout for a kind of jobs, and no handler for it.
    #[error("the runner has a timeout for the kind {kind:?}, and no handler: add one, or correct the kind")]
    TimeoutWithoutHandler {
        /// The kind.
        kind: String,
    },
    /// A group without a queue to claim from.
    #[error(
        "the group has no queue to claim from: add one with `queue`, and leave one in with `only_when_asked`, `only` and \
         `except`"
    )]
    GroupEmpty,
    /// A queue that is twice in a group.
    #[error("the queue {queue:?} is twice in the group: name it once, with all of its kinds")]
    GroupQueueTwice {
        /// The name of the queue.
        queue: String,
    },
    /// A kind of jobs that two queues of a group take.
    #[error("{}", taken_twice(kind, first, second))]
    GroupKindTwice {
        /// The kind.
        kind: String,
        /// The name of the queue that has it.
        first: String,
        /// The name of the other queue, which may be the same one.
        second: String,
    },
    /// A queue that a group does not have.
    #[error("the group has no queue {queue:?}: add it with `queue`, or mend the name")]
    GroupQueueUnknown {
        /// The name.
        queue: String,
    },
    /// A kind of jobs that no queue of a group takes.
    #[error("no queue of the group takes the kind {kind:?}: add it to one of them, or set a `default_queue`")]
    GroupKindUnknown {
        /// The kind.
        kind: String,
    },
    /// Queues of a group with clocks of their own.
    #[error("the queue {queue:?} has another clock than the first queue of the group: give all of them the same one")]
    GroupClock {
        /// The name of the queue.
        queue: String,
    },
    /// A weight of a queue in a group that is below zero, or no finite number.
    #[error("the weight of the queue {queue:?} is {weight}: use 0 or more")]
    GroupWeight {
        /// The name of the queue.
        queue: String,
        /// The weight.
        weight: f64,
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
    /// `max_effects` of 0, with which no job could change anything, or of more than 1 GiB.
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
    /// A jitter outside 0.0 to 1.0.
    #[error("the retry's jitter is {value}: use a share between 0.0 (none) and 1.0 (full)")]
    Jitter {
        /// The value that was set.
        value: f64,
    },
    /// A setting that the progress or the source of this consumer cannot keep to.
    #[error("{why}")]
    Unsupported {
        /// The name of the call that sets it: "on_exhausted", "max_crashes", "source_retry" or
        /// "source_timeout".
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
    },
    /// `threads` without `start_deferred`: the threads follow `max_processing` there, or, with
    /// `start_async`, the number of cores.
    #[error(
        "threads is only for `start_deferred`: leave it out, and limit the jobs in flight by max_processing instead"
    )]
    ThreadsWithoutDeferred,
    /// `max_effects` without `start_transactional`: jobs have no effects there.
    #[error("max_effects is only for `start_transactional`, also in batches; here jobs have no effects: leave it out")]
    EffectsWithoutTransactional,
    /// Batches of no job, or of more jobs than may be in flight.
    #[error("the most jobs of a batch are {max}: use 1 to {max_processing}, which is max_processing, or raise that")]
    BatchSize {
        /// The most jobs of a batch.
        max: usize,
        /// The most jobs in flight.
        max_processing: usize,
    },
    /// `max_unwritten` without `start_writing`: no job waits to be written there.
    #[error("max_unwritten is only for `start_writing`; here no job waits to be written: leave it out")]
    UnwrittenWithoutWriting,
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
    #[error("the database has no column family {name:?}: open it with that, or use a table (SQLite has no families)")]
    FamilyUnknown {
        /// The name of the family.
        name: String,
    },
    /// A statement of SQL for a store that takes none.
    #[error("this store takes no SQL: use one on SQLite (`Store::attach_sqlite`), or a table of the store")]
    SqlUnsupported,
    /// A column family that belongs to the store.
    #[error(
        "the column family {name:?} belongs to the store, as all do whose names begin with \"waterline.\": use another name"
    )]
    FamilyReserved {
        /// The name of the family.
        name: String,
    },
    /// A directory whose store is of another [`Engine`](crate::Engine) than the one that was asked
    /// for, or of one that is not compiled in.
    #[error("{why}")]
    Engine {
        /// The reason, and what to do.
        why: String,
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
    /// An upstream that has ended below the first job of the gated consumer.
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
