//! What a user may set, what is refused, and what to write instead.

use crate::base::index::Index;
use crate::base::structure::structure;
use std::fmt;
use std::time::Duration;

/// How many threads a consumer may have at most, of the kind that run jobs, when nothing is said.
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The default of `max_search_ahead`: wide enough that one slow job in thousands stalls nothing, narrow enough that a stuck
/// one is noticed while what finished behind it is still cheap to do again.
pub(crate) const DEFAULT_SEARCH_AHEAD: u64 = 10_000;

/// The default of `poll_every`: unnoticeable as load, soon enough for a source that rings nobody.
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(1);

/// The longest name, in bytes: it must fit the one length byte of the store's keys.
pub(crate) const MAX_NAME: usize = 255;

/// What is done with a job whose retries are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// Stop at it: running jobs finish, no new one starts, everything below the job is saved, and `join` and `stop` return
    /// [`Error::Job`](crate::Error::Job). The default, since nothing else is right for every stream.
    #[default]
    Halt,
}

/// A value that was refused, and what to write instead. `{:?}` shows that sentence too, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `max_processing(0)` would never run a job.
    #[error("max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer, use `pause`)")]
    MaxProcessingZero,
    /// `max_effects(0)` would let no job change anything, and more than 1 GiB is more than one write should have.
    #[error("max_effects is {bytes} bytes: use 1 to {} (1 GiB)", MAX_EFFECTS)]
    MaxEffects {
        /// What was asked for.
        bytes: usize,
    },
    /// A transactional job wanted to change what is in another store, which cannot be one write with its progress.
    #[error(
        "the {what} {name:?} is in another store than the progress: take it from the store of the progress, or one that is attached to the same database"
    )]
    Foreign {
        /// A table or a log.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// `max_search_ahead(0)` would never start a job.
    #[error(
        "max_search_ahead is 0, so no job would ever start: use 1 for strictly one after the other, \
         or `unlimited_search_ahead()` for no limit"
    )]
    SearchAheadZero,
    /// `max_read_ahead(0)` would leave no memory for any job.
    #[error(
        "max_read_ahead is 0 bytes, which is too little for any job: use 1 or more; one job is read at a time then"
    )]
    MaxReadAheadZero,
    /// `start_at(Index::MAX)`, or `start_after` with the same effect.
    #[error("the first index would be {}, which is never a job: start at {} or below", Index::MAX, Index::MAX - 1)]
    StartAtMax,
    /// `stop_at(Index::MAX)` would never stop.
    #[error("stop_at is {}, which is never a job: leave `stop_at` out to run without end", Index::MAX)]
    StopAtMax,
    /// `Retry::max_attempts(0)` would never run a job.
    #[error("the retry allows 0 attempts, and the first one counts too: use `Retry::none()` for a single attempt")]
    MaxAttemptsZero,
    /// A jitter that is no share.
    #[error("the retry's jitter is {value}: use a share between 0.0 (none) and 1.0 (full)")]
    Jitter {
        /// What was given.
        value: f64,
    },
    /// `threads(0)` would never run a job.
    #[error("threads is 0, so no job would ever run: use at least 1, or leave it out")]
    ThreadsZero,
    /// `threads` where the threads follow `max_processing`.
    #[error("threads belongs to `start_deferred`; here the threads follow max_processing: set that instead")]
    ThreadsWithoutDeferred,
    /// `max_effects` where jobs have no effects.
    #[error("max_effects belongs to `start_transactional`; here jobs have no effects: leave it out")]
    EffectsWithoutTransactional,
    /// `poll_every(0)` would never sleep.
    #[error(
        "poll_every is zero, which would never sleep: use a millisecond or more, or have the source ring its `Wakeup`"
    )]
    PollEveryZero,
    /// A name that the store cannot take.
    #[error("the {what} name is {length} bytes long: use 1 to {MAX_NAME} bytes")]
    Name {
        /// What was to be named: a progress or a table.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A database that was opened without a column family that the store needs.
    #[error(
        "the database has no column family {name:?}: open it with those of `Store::column_families()` beside your own, and \
         with `create_missing_column_families(true)`"
    )]
    FamilyMissing {
        /// Its name.
        name: String,
    },
    /// A column family that the database was opened without.
    #[error("the database was opened without a column family {name:?}: open it with that one, or create it first")]
    FamilyUnknown {
        /// Its name.
        name: String,
    },
    /// A column family that is the store's own.
    #[error(
        "the column family {name:?} is the store's own, as are all whose names begin with \"waterline.\": use another one"
    )]
    FamilyReserved {
        /// Its name.
        name: String,
    },
    /// Two consumers were to publish into one [`Watermark`](crate::Watermark).
    #[error(
        "the watermark that {name:?} was to publish into is another consumer's: give each one a `Watermark::new()` of its own"
    )]
    WatermarkInUse {
        /// The progress of the second one, or "unnamed".
        name: String,
    },
    /// Consumers that are gated by each other would wait for ever.
    #[error(
        "{consumer:?} is gated by {upstream:?}, which goes no further than {consumer:?} does: neither would ever start a job, so \
         take one of the gates away"
    )]
    GateCycle {
        /// The progress of the consumer that was to be started, or "unnamed".
        consumer: String,
        /// That of the upstream, or "unnamed".
        upstream: String,
    },
    /// The upstream of a gated consumer has ended, and the gate would never let through its first job.
    #[error(
        "{consumer:?} is to begin with job {next}, and its upstream {upstream:?} has ended with {}: start that one again, and gate by \
         the new one",
        last_processed.map_or_else(|| "nothing processed".to_owned(), |last| format!("{last} as the last one processed"))
    )]
    UpstreamEnded {
        /// The progress of the consumer that was to be started, or "unnamed".
        consumer: String,
        /// That of the upstream, or "unnamed".
        upstream: String,
        /// The first job that would be started.
        next: Index,
        /// The upstream's watermark.
        last_processed: Option<Index>,
    },
    /// A pipeline without a stage.
    #[error("the pipeline has no stage: give it at least one")]
    NoStages,
    /// Two stages of a pipeline with one name.
    #[error("two stages are called {name:?}: give each one a name of its own")]
    StageTwice {
        /// The name.
        name: String,
    },
    /// A stage of a pipeline asked for one that does not stand before it.
    #[error("no stage before {stage:?} is called {name:?}: add the stages upstream first")]
    StageUnknown {
        /// The stage that asked.
        stage: String,
        /// What it asked for.
        name: String,
    },
    /// A stage of a pipeline started a consumer of which the pipeline does not know.
    #[error(
        "the stage {name:?} returned a consumer that was not made with `Stage::consumer`: use that in place of `Consumer::builder`"
    )]
    StageForeign {
        /// The name.
        name: String,
    },
    /// `stop` or `join` on one of the consumer's own threads would wait for itself.
    #[error(
        "stop or join was called on one of the consumer's own threads, which would wait for itself: the consumer was \
         asked to stop; use `Handle::request_stop` there, and `stop` or `join` elsewhere"
    )]
    OwnThread,
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{self}");
        }
        structure!(
            self,
            f,
            [],
            [
                MaxProcessingZero {},
                MaxEffects { bytes },
                Foreign { what, name },
                SearchAheadZero {},
                MaxReadAheadZero {},
                StartAtMax {},
                StopAtMax {},
                MaxAttemptsZero {},
                Jitter { value },
                ThreadsZero {},
                ThreadsWithoutDeferred {},
                EffectsWithoutTransactional {},
                PollEveryZero {},
                Name { what, length },
                FamilyMissing { name },
                FamilyUnknown { name },
                FamilyReserved { name },
                WatermarkInUse { name },
                GateCycle { consumer, upstream },
                UpstreamEnded { consumer, upstream, next, last_processed },
                NoStages {},
                StageTwice { name },
                StageUnknown { stage, name },
                StageForeign { name },
                OwnThread {},
            ]
        )
    }
}

/// Refuses an empty and an overlong name.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), ConfigError> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        length => Err(ConfigError::Name { what, length }),
    }
}

/// Effects of this many bytes wait to be written at most, unless the user says otherwise.
pub(crate) const DEFAULT_EFFECTS: usize = 64 << 20;

/// RocksDB takes no more than 4 GiB in one write, in which several consumers may have a part.
pub(crate) const MAX_EFFECTS: usize = 1 << 30;

pub(crate) fn check_effects(bytes: usize) -> Result<(), ConfigError> {
    if (1..=MAX_EFFECTS).contains(&bytes) { Ok(()) } else { Err(ConfigError::MaxEffects { bytes }) }
}

/// Jobs that are read ahead take this much memory at most, unless the user says otherwise.
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
