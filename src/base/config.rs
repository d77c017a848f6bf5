//! Settings and their checks: the defaults, the bounds, and the error for a refused value.

use crate::base::{Index, structure::structure};
use std::fmt;

mod bounds;

pub use self::bounds::*;

/// A setting that was refused: `Display` says why, and what to write instead.
///
/// `{:?}` shows the same sentence, `{:#?}` the structure.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number or a time of 0, with which nothing would ever run, or ever pause.
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
        /// The kind of text: "move reason" or "codec", or the thing with the name, such as "table".
        what: &'static str,
        /// The length of the text, in bytes.
        length: usize,
        /// The most bytes that it may have.
        most: usize,
        /// The reason, and what to write instead.
        why: String,
    },
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
    /// An index that never belongs to a job: [`Index::MAX`].
    #[error("{why}")]
    NoJob {
        /// The call: "start_at" (also for `start_after`), "stop_at", "seek" or "skip".
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A [`StoreProgress::skip`](crate::StoreProgress::skip) too far above the lowest unfinished
    /// job.
    ///
    /// The consumer would need too much memory for the jobs between them.
    #[error(
        "job {index} is too far above job {next}, the lowest one that is not done, to be skipped: skip jobs below {}, or seek \
         ahead first", next.saturating_add(MAX_SKIP)
    )]
    SkipTooFar {
        /// The index of the job.
        index: Index,
        /// The lowest unfinished index.
        next: Index,
    },
    /// A setting that the start mode, progress or source of this consumer does not support, or a
    /// statement for a store that takes none.
    #[error("{why}")]
    Unsupported {
        /// The name of the call that sets it, such as "on_exhausted", "source_retry" or "execute".
        setting: &'static str,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A range of a table whose last key is before its first.
    #[error(
        "the range of the table {table:?} ends with the key \"{}\" before it begins with \"{}\": put the lower key first, and \
         use `range_rev` to walk from the end", end.escape_ascii(), start.escape_ascii()
    )]
    RangeBackwards {
        /// The name of the table.
        table: String,
        /// The first key of the range.
        start: Vec<u8>,
        /// The last key of the range.
        end: Vec<u8>,
    },
    /// A column family that a store cannot use.
    #[error("{why}")]
    Family {
        /// "missing": the store needs it, and the database was opened without it. "unknown":
        /// another one that it was opened without. "reserved": one of the store's own.
        fault: &'static str,
        /// The name of the family.
        name: String,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A directory whose store is of another [`Engine`](crate::Engine) than the one asked for, or
    /// of one that is not compiled in.
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
    /// An upstream that has ended below the gated consumer's first job.
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
    /// A pipeline with a faulty list of stages.
    #[error("{why}")]
    Stage {
        /// "none": no stage. "twice": two with one name. "unknown": its upstream is not before it.
        /// "foreign": its consumer is not of this pipeline.
        fault: &'static str,
        /// The name of the stage, followed by its upstream's if that is unknown.
        names: Vec<String>,
        /// The reason, and what to write instead.
        why: String,
    },
    /// `stop` or `join` on one of the consumer's own threads, which would wait for itself.
    #[error(
        "stop or join was called on one of the consumer's own threads, which would wait for itself: it was asked to stop and \
         does so; on such a thread call `Handle::request_stop`, and `stop` or `join` on others"
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
                Zero { setting, why },
                Length { what, length, most, why },
                Number { setting, value, why },
                Size { setting, value, most, why },
                Foreign { what, name },
                NoJob { setting, why },
                SkipTooFar { index, next },
                Unsupported { setting, why },
                RangeBackwards { table, start, end },
                Family { fault, name, why },
                Engine { why },
                WatermarkInUse { name },
                GateCycle { consumer, upstream },
                UpstreamEnded { consumer, upstream, next, last_processed },
                Stage { fault, names, why },
                OwnThread {},
            ]
        )
    }
}

/// What to do with a job that has used up its attempts (elsewhere called a dead letter).
#[doc(alias = "dead letter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// Stop at the job: running jobs finish, no new job starts, everything below the job is saved,
    /// and `join` and `stop` return [`Error::Job`](crate::Error::Job). The default, since nothing
    /// else is right for every stream.
    #[default]
    Halt,
    /// Park the job: one atomic write keeps its record in the store and lets the watermark pass it.
    ///
    /// [`Store::parked`](crate::Store::parked) lists the records,
    /// [`Handle::redrive`](crate::Handle::redrive) runs a parked job once more, and
    /// [`Store::discard`](crate::Store::discard) gives it up. Gates, `wait_for`, `stop_at` and the
    /// lag count a parked job as processed. Parking needs the progress of a
    /// [`Store`](crate::Store), or one that [keeps records](crate::Progress::keeps_records): with
    /// any other, the start returns [`Error::Config`](crate::Error).
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
        /// How many parked jobs the name may have, at least 1. The next job that uses up its
        /// attempts halts the consumer, so that a service which is down cannot park the whole
        /// stream.
        budget: u64,
    },
}
