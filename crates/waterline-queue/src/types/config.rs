//! Refused settings of a queue, a runner or a job.

use std::fmt;
use waterline::seam::structure;

/// The maximum length of an id, a kind, a key or a name, in bytes.
const MAX_NAME: usize = 255;

/// A refused setting. `Display` says why, and what to write instead; `{:?}` shows the same
/// sentence, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One that a stream may have, too: a number that is 0 or out of range, a bad name, a queue of
    /// another store, a call that the engine does not support.
    #[error(transparent)]
    Setting(#[from] waterline::ConfigError),
    /// A text or a value that is too long for its record, or empty where it must not be.
    #[error("{why}")]
    Length {
        /// The kind of text: "job id", "job kind", "job key", "root signature", "metadata key",
        /// "metadata" (also for a note), "payload", "data" or "progress note", or what has the
        /// name: "queue", "periodic job" or "gate".
        what: &'static str,
        /// The length, in bytes.
        length: usize,
        /// The maximum length, in bytes.
        most: usize,
        /// Why, and what to write instead.
        why: String,
    },
    /// `stop` or `join` on one of the runner's own threads, which would wait for itself.
    #[error(
        "stop or join was called on one of the runner's own threads, which would wait for itself: it was asked to stop and \
         does so; on such a thread drop the `Runner`, and call `stop` or `join` on others"
    )]
    OwnThread,
    /// An id, a kind, a key or a name with the character NUL, which PostgreSQL text cannot contain.
    #[error("{subject} has the character NUL (U+0000), which no text of PostgreSQL has: leave it out")]
    Nul {
        /// The text, as the start of a sentence.
        subject: String,
    },
    /// JSON that is nested too deeply: it could be written, but not read again.
    #[error("the JSON is nested deeper than 127 arrays and objects: store the inner part as a text")]
    JsonDepth,
    /// An invalid limit of a queue.
    #[error("{why}")]
    Limit {
        /// "empty" for one that limits nothing, and "twice" for two for the same jobs.
        fault: &'static str,
        /// The jobs that it applies to.
        limit: String,
        /// Why, and what to write instead.
        why: String,
    },
    /// A type of jobs ([`TypedJob`](crate::TypedJob)) that returns something of another kind.
    #[error("the type of the kind {kind:?} returns {returned}: return the one that it was given, with more settings")]
    KindForeign {
        /// The kind.
        kind: String,
        /// What it returns, for example `a limit of the queue`.
        returned: String,
    },
    /// A limit of a type of jobs that is missing in the options of the runner's queue.
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
    /// An id of a job that begins like those that a queue makes.
    #[error("the id {id:?} begins with `~`, as those that the queue makes: use another one, or none")]
    JobIdReserved {
        /// The id.
        id: String,
    },
    /// A cursor that was changed, or does not belong to this list of jobs.
    #[error(
        "the cursor is none of the list of {state} jobs of the queue {queue:?}: use `next` of the page before, or begin without one"
    )]
    Cursor {
        /// The name of the queue.
        queue: String,
        /// The state of the requested jobs.
        state: String,
    },
    /// A time of a job, or the end of a pause, that is after the year 9999.
    #[error("the time of the job, or of the pause, is after the year 9999: use an earlier or a shorter one")]
    RunAt,
    /// An invalid periodic job.
    #[error("{why}")]
    Periodic {
        /// "twice" for one that is registered with another schedule, job or setting; "job" for a
        /// job with an id, a time of its own, or jobs that it waits for; and "catch_up" for one
        /// that makes up for each missed tick, but may have only one run.
        fault: &'static str,
        /// The name of the periodic job.
        name: String,
        /// Why, and what to write instead.
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
        /// Why, and what to write instead.
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
    /// A runner with invalid handlers.
    #[error("{why}")]
    Handler {
        /// "none" without a handler, "twice" for two of one kind, and "timeout" for a timeout of a
        /// kind without a handler.
        fault: &'static str,
        /// The kind.
        kind: Option<String>,
        /// Why, and what to write instead.
        why: String,
    },
    /// An invalid group of queues, or a name that a group does not have.
    #[error("{why}")]
    Group {
        /// "empty" without a queue to claim from, "queue twice", "kind twice", "queue unknown",
        /// "kind unknown", and "clock" for a queue with another clock than the first one.
        fault: &'static str,
        /// The name of the queue or of the kind. The names of the two queues that take a kind,
        /// which may be the same, follow it.
        names: Vec<String>,
        /// Why, and what to write instead.
        why: String,
    },
    /// A weight of a queue in a group that is negative, or not finite.
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
