//! A setting of a queue, a runner or a job that was refused.

use std::fmt;
use waterline::seam::structure;

/// The most bytes of an id, a kind, a key or a name.
const MAX_NAME: usize = 255;

/// A setting that was refused. `Display` says why, and what to write instead. `{:?}` shows the same
/// sentence, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One that a stream may have, too: a number of 0 or outside its range, a bad name, a queue of
    /// another store, a call that the engine does not have.
    #[error(transparent)]
    Setting(#[from] waterline::ConfigError),
    /// A text or a value that is too long for its record, or empty where it must say something.
    #[error("{why}")]
    Length {
        /// The kind of text: "job id", "job kind", "job key", "root signature", "metadata key",
        /// "metadata" (also for a note), "payload", "data" or "progress note", or the thing that
        /// has the name: "queue", "periodic job" or "gate".
        what: &'static str,
        /// The length, in bytes.
        length: usize,
        /// The most bytes that it may have.
        most: usize,
        /// The reason, and what to write instead.
        why: String,
    },
    /// `stop` or `join` on one of the runner's own threads. It would wait for itself.
    #[error(
        "stop or join was called on one of the runner's own threads, which would wait for itself: it was asked to stop and \
         does so; on such a thread drop the `Runner`, and call `stop` or `join` on others"
    )]
    OwnThread,
    /// An id, a kind, a key or a name with the character NUL, which PostgreSQL keeps in no text.
    #[error("{subject} has the character NUL (U+0000), which no text of PostgreSQL has: leave it out")]
    Nul {
        /// The text, as the beginning of a sentence.
        subject: String,
    },
    /// JSON that is nested too deep: it could be written, and nobody could read it again.
    #[error("the JSON is nested deeper than 127 arrays and objects: store the inner part as a text")]
    JsonDepth,
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
    /// A type of jobs ([`TypedJob`](crate::TypedJob)) that returns what is not of its kind.
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
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{self}");
        }
        structure!(
            self,
            f,
            [Setting],
            [
                Length { what, length, most, why },
                OwnThread {},
                JobIdReserved { id },
                FingerprintField { field },
                Nul { subject },
                JsonDepth {},
                RunAt {},
                Cursor { queue, state },
                Periodic { fault, name, why },
                Cron { fault, expression, value, why },
                QueueOptions { name },
                Handler { fault, kind, why },
                Limit { fault, limit, why },
                LimitMissing { kind, queue, job },
                KindForeign { kind, returned },
                Group { fault, names, why },
                GroupWeight { queue, weight },
            ]
        )
    }
}

/// Refuses a name that is empty or too long.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), ConfigError> {
    check_length(what, name, |length| format!("the {what} name is {length} bytes long: use 1 to {MAX_NAME} bytes"))
}

/// Refuses a text of a job that is empty, too long, or has a NUL. `subject` begins the sentence,
/// and ends with a comma if a verb would need one.
pub(crate) fn check_part(what: &'static str, subject: &str, text: &str) -> Result<(), ConfigError> {
    if text.contains('\0') {
        return Err(ConfigError::Nul { subject: subject.trim_end_matches(',').to_owned() });
    }
    check_length(what, text, |length| format!("{subject} has {length} bytes: use 1 to {MAX_NAME}"))
}

fn check_length(what: &'static str, text: &str, why: impl FnOnce(usize) -> String) -> Result<(), ConfigError> {
    let length = text.len();
    if (1..=MAX_NAME).contains(&length) {
        return Ok(());
    }
    Err(ConfigError::Length { what, length, most: MAX_NAME, why: why(length) })
}
