//! Settings and their checks: the defaults, the bounds, and the error for a value that is refused.

use crate::base::index::Index;

mod bounds;
mod exhausted;
mod structure;

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
        /// "metadata" (also for a note), "progress note", "move reason" or "codec", or the thing
        /// that has the name, such as "table".
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
    /// JSON that is nested too deep: it could be written, and nobody could read it again.
    #[error("the JSON is nested deeper than 127 arrays and objects: store the inner part as a text")]
    JsonDepth,
    /// A number outside its range, or none at all.
    #[error("{why}")]
    Number {
        /// "jitter" or "factor" of a [`Retry`](crate::Retry), or "progress" for that of a job.
        setting: &'static str,
        /// The number.
        value: f64,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A limit of a queue that cannot be.
    #[error("{why}")]
    Limit {
        /// "empty" for one that limits nothing, and "twice" for two for the same jobs.
        fault: &'static str,
        /// The jobs that it is for.
        limit: String,
        /// The reason, and what to write instead.
        why: String,
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
    /// A periodic job that cannot be.
    #[error("{why}")]
    Periodic {
        /// "twice" for one that is registered with another schedule, job or setting; "job" for a
        /// job with an id, a time of its own, or jobs that it waits for; and "catch_up" for one
        /// that makes up for each missed tick, and may have one run alone.
        fault: &'static str,
        /// The name of the periodic job.
        name: String,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A cron expression, or a time zone, that cannot be read or that no time matches.
    #[error("{why}")]
    Cron {
        /// The field ("minute", "hour", "day of month", "month" or "day of week"), "fields" for
        /// more or fewer than five, "never" for a date that does not exist, or "time zone".
        fault: &'static str,
        /// The expression, or the name of the time zone.
        expression: String,
        /// The text of the field, or the number of the fields; empty for the others.
        value: String,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A queue that is open with other options.
    #[error(
        "the queue {name:?} is open with other options: use the same ones, or clone the queue (after a restart, other options hold)"
    )]
    QueueOptions {
        /// The name of the queue.
        name: String,
    },
    /// A runner whose handlers cannot be.
    #[error("{why}")]
    Handler {
        /// "none" without a handler, "twice" for two of one kind, and "timeout" for a timeout of a
        /// kind without a handler.
        fault: &'static str,
        /// The kind.
        kind: Option<String>,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A group of queues that cannot be, or that does not have what it is asked for.
    #[error("{why}")]
    Group {
        /// "empty" without a queue to claim from, "queue twice", "kind twice", "queue unknown",
        /// "kind unknown", and "clock" for a queue with another clock than the first one.
        fault: &'static str,
        /// The name of the queue or of the kind. The names of the two queues that take a kind,
        /// which may be the same, follow it.
        names: Vec<String>,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A weight of a queue in a group that is below zero, or no finite number.
    #[error("the weight of the queue {queue:?} is {weight}: use 0 or more")]
    GroupWeight {
        /// The name of the queue.
        queue: String,
        /// The weight.
        weight: f64,
    },
    /// A size of 0, or one above its bound.
    #[error("{why}")]
    Size {
        /// "max_effects", in bytes, or "batch" for the most jobs of a batch.
        setting: &'static str,
        /// The size.
        value: usize,
        /// The bound: 1 GiB, or `max_processing`.
        most: usize,
        /// The reason, and what to write instead.
        why: String,
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
    /// An index that is never one of a job: [`Index::MAX`].
    #[error("{why}")]
    NoJob {
        /// The call: "start_at" (also for `start_after`), "stop_at", "seek" or "skip".
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
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
    /// A setting that the start, the progress or the source of this consumer cannot keep to, or a
    /// statement for a store that takes none.
    #[error("{why}")]
    Unsupported {
        /// The name of the call that sets it, for example "on_exhausted", "source_retry", "threads"
        /// or "execute".
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
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
    /// A column family that a store cannot take.
    #[error("{why}")]
    Family {
        /// "missing" for one that the store needs and the database was opened without, "unknown"
        /// for another one that it was opened without, and "reserved" for one of the store's own.
        fault: &'static str,
        /// The name of the family.
        name: String,
        /// The reason, and what to write instead.
        why: String,
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
    /// A pipeline that was put together wrongly.
    #[error("{why}")]
    Stage {
        /// "none" without a stage, "twice" for two of one name, "unknown" for one whose upstream is
        /// not before it, and "foreign" for one whose consumer is not of the pipeline.
        fault: &'static str,
        /// The name of the stage, and that of its upstream if it is unknown.
        names: Vec<String>,
        /// The reason, and what to write instead.
        why: String,
    },
    /// `stop` or `join` on one of the consumer's own threads. It would wait for itself.
    #[error(
        "stop or join was called on one of the consumer's own threads (or of the runner's), which would wait for itself: it \
         was asked to stop and does so; on such a thread call `Handle::request_stop` (or drop the `Runner`), and `stop` or \
         `join` on others"
    )]
    OwnThread,
}
