//! The crate's one public error type.

use crate::base::{BoxError, Index, config::ConfigError};
use std::path::PathBuf;
use std::time::Duration;

mod last_attempt;
mod store;
mod structure;
mod text;

pub use store::StoreError;
pub use text::describe;
pub(crate) use text::{boundary, is_halt_of_job};
use text::{not_found, still, times};

/// Every error of this crate: what happened, and what to do about it.
///
/// | form | shows |
/// |---|---|
/// | `{}` | what happened and what to do, without the causes |
/// | [`Error::report`] | the same with the causes, in one line |
/// | `{:?}` | the report: a `main` that returns the error prints it |
/// | `{:#?}` | the structure: the variant and its fields |
///
/// ```
/// let error = waterline::Error::InUse { name: "blocks".to_owned() };
/// assert_eq!(format!("{error:?}"), error.report());
/// assert_eq!(format!("{error:#?}").replace([' ', '\n'], ""), r#"InUse{name:"blocks",}"#);
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that was refused before anything started.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// A progress that a live consumer of this process uses, or a queue that already has a runner.
    #[error(
        "the progress or queue {name:?} is in use by another consumer or runner: stop that one first, use another name, or \
         wait for it (a consumer does with `Builder::standby`)"
    )]
    InUse {
        /// The name of the progress or of the queue.
        name: String,
    },

    /// Another consumer took over the progress while this one ran, so this one halted. Jobs that it
    /// had not saved run again in the other one.
    #[error(
        "another consumer has taken over the progress {name:?} ({holder}), so this one halted and saves nothing more: let the \
         other one go on, or start this one again with `Builder::standby`, so that it waits until the other one has ended"
    )]
    Fenced {
        /// The name of the progress, or "unnamed".
        name: String,
        /// The other consumer, as far as known: the text of the error that the progress gave.
        holder: String,
    },

    /// A progress that another consumer has leased, even if that one is dead. Nothing was started.
    #[error(
        "the progress {name:?} is leased to {holder} for another {expires_in:.1?}: stop that consumer first, or wait until the \
         lease has run out (`Builder::standby` does)"
    )]
    Leased {
        /// The name of the progress.
        name: String,
        /// The holder of the lease: a host, a process.
        holder: String,
        /// How long the lease still lasts unless it is renewed.
        expires_in: Duration,
    },

    /// A database that is open in another process, or by another `Store` of this process.
    #[error("the database at {} is open elsewhere: close it there, or share one `Store` by cloning it", path.display())]
    Locked {
        /// The path of the database.
        path: PathBuf,
    },

    /// A path or a name with nothing stored. Nothing was created, since
    /// [`StoreOptions::create`](crate::StoreOptions::create) is `false` or the store is
    /// [read-only](crate::StoreOptions::read_only).
    #[error("{}", not_found(what, name))]
    NotFound {
        /// The kind of thing: `"store"`, `"progress"`, `"log"` or `"table"`.
        what: &'static str,
        /// Its name, or the path of a store.
        name: String,
    },

    /// A source that no longer has the next job. Nothing was skipped.
    #[error(
        "the next job is {next}, but the source begins at {first}: restore the jobs from {next} to {}, or start anew \
         with another progress name", first - 1
    )]
    Truncated {
        /// The index of the next job.
        next: Index,
        /// The lowest index that the source still has.
        first: Index,
    },

    /// A stored value that cannot be read. It was not changed.
    #[error(
        "the stored value of {name:?} cannot be read ({reason}): restore it from a backup, remove it (`Queue::remove` for a \
         job), or start anew (`StoreProgress::remove`, `Table::delete`, another name for a log and for the progress on it)"
    )]
    Corrupt {
        /// The name of the progress, the table, the log or the store that has the value.
        name: String,
        /// The fault of the value.
        reason: String,
    },

    /// A log whose items are encoded by another codec. Nothing was changed.
    #[error(
        "the items of the log {log:?} are encoded by the codec {stored:?}, and not by {asked:?}: open the log with the codec \
         {stored:?}, or use another name"
    )]
    Codec {
        /// The log's name.
        log: String,
        /// The name of the codec with which the log is stored.
        stored: String,
        /// The name of the codec that was asked for.
        asked: String,
    },

    /// A write to a store that was opened with
    /// [`StoreOptions::read_only`](crate::StoreOptions::read_only). Nothing was changed.
    #[error("the store was opened read-only, so nothing is written: write where the store is open for writing")]
    ReadOnly,

    /// A store made by a newer version of this library, or one that uses parts which only a newer
    /// version knows. Nothing was changed in it.
    #[error(
        "there is {found}, and this program knows {known}: a newer version of waterline has written it, so use that \
         version, or a store of its own for this program"
    )]
    Format {
        /// The version of the store, or its unknown parts, and where the store is.
        found: String,
        /// The versions or the parts that this program knows.
        known: String,
    },

    /// A job that failed in its last attempt, or in a way that no further attempt can change (see
    /// [`Effects::add`](crate::Effects::add)). It does not count as done, and runs again after a
    /// restart.
    #[error("job {index} failed in attempt {attempt}{}", Self::after_the_last(source))]
    Job {
        /// The index of the job.
        index: Index,
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// The error of the worker.
        source: BoxError,
    },

    /// A failure of the source at the start of a consumer. Later failures are retried.
    #[error("the source failed at index {index}, before anything was started: fix it and start again; nothing is lost")]
    Source {
        /// The index at which it was read.
        index: Index,
        /// The error of the source.
        source: BoxError,
    },

    /// A progress that could not be loaded, or whose last save failed. Jobs that were not saved run
    /// again after a restart.
    #[error("the progress could not be loaded or saved: fix its storage and start again; nothing is lost")]
    Progress {
        /// The error of the storage.
        source: BoxError,
    },

    /// An `on_processed` callback panicked, which halts the consumer. The range that it was called
    /// with is saved.
    #[error("on_processed panicked when it was called for indices up to {index}: fix the callback and start again")]
    Callback {
        /// The last index of the range that it was called with.
        index: Index,
        /// The panic.
        source: BoxError,
    },

    /// The time limit of `stop_within` passed. The jobs that finished are saved. The jobs that
    /// still run do not count, whatever they return, and run again in the next life.
    #[error("{} when the time to stop was over", still(running))]
    StopTimeout {
        /// The jobs that were still running, in ascending order. It is empty if the source, a
        /// callback or a destructor did not return.
        running: Vec<Index>,
    },

    /// A transactional job or a [`Store::write`](crate::Store::write) with too many bytes of
    /// changes. Nothing was changed.
    #[error(
        "the changes of one job or of one write are larger than {limit} bytes: change less at once (a job may change more with \
         `Builder::max_effects`)"
    )]
    EffectsTooLarge {
        /// The most bytes.
        limit: usize,
    },

    /// A table's key that holds no counter, or whose sum would be too large. Nothing was changed.
    ///
    /// [`Table::counter`](crate::Table::counter) returns it. A transactional job that adds to such
    /// a key fails with it, as the source of [`Error::Job`], and is not retried: see
    /// [`Effects::add`](crate::Effects::add).
    #[error("the key \"{}\" of the table {table:?} cannot be counted under: {reason}", key.escape_ascii())]
    Counter {
        /// The name of the table.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// The fault of the stored value, and what to do about it.
        reason: String,
    },

    /// A statement of [`Effects::execute`](crate::Effects::execute) that the database refused.
    ///
    /// The reason is its text, its values, or the rows that it meets. Nothing was changed. A
    /// transactional job fails with it, as the source of [`Error::Job`], and is not retried.
    #[error("the database has refused the statement {sql:?}: correct it, its values, or the rows that it meets")]
    Sql {
        /// The statement.
        sql: String,
        /// The database's error.
        source: BoxError,
    },

    /// A job that has killed its process as often as `max_crashes` allows. It runs no more.
    ///
    /// It is parked, or the consumer halts: see
    /// [`Builder::max_crashes`](crate::Builder::max_crashes).
    #[error(
        "the process died {} while job {index} ran alone, so the job is not run again: mend it, then redrive \
         it if it is parked, raise max_crashes, or pass it with `StoreProgress::skip`",
        times(*crashes)
    )]
    Crashed {
        /// The index of the job.
        index: Index,
        /// How often the process died while the job ran alone.
        crashes: u32,
    },

    /// A redrive or discard of a job that is not parked. Nothing was changed.
    #[error("job {index} of the progress {name:?} is not parked: `Store::parked` lists the jobs that are")]
    NotParked {
        /// The name of the progress.
        name: String,
        /// The index of the job.
        index: Index,
    },

    /// A [`StoreProgress::skip`](crate::StoreProgress::skip) of a job that is done or parked.
    /// Nothing was changed.
    #[error(
        "job {index} of the progress {name:?} is done or parked, so it cannot be skipped: skip a job that is not done, or make \
         this one run again with `StoreProgress::seek`"
    )]
    AlreadyDone {
        /// The name of the progress.
        name: String,
        /// The index of the job.
        index: Index,
    },

    /// A skip in a progress with nothing saved, whose beginning is unknown. Nothing was changed.
    #[error(
        "nothing is saved under the progress {name:?}, so the store does not know where the stream begins: seek to its first \
         job with `StoreProgress::seek`, and skip then"
    )]
    NothingSaved {
        /// The name of the progress.
        name: String,
    },

    /// A progress that cannot take the name of another one. Nothing was changed.
    ///
    /// See [`Store::replace`](crate::Store::replace).
    #[error("{from:?} cannot replace {to:?}: {why}")]
    NotReplaced {
        /// The name of the progress that was to take another name.
        from: String,
        /// That name.
        to: String,
        /// The reason, and what to do.
        why: String,
    },

    /// A log that is open in a read-only store, and whose name belongs to another one by now.
    #[error("the log {log:?} was replaced while it was open: drop all its handles, and open it again")]
    Replaced {
        /// The log's name.
        log: String,
    },

    /// An item that the codec of its log cannot encode. Nothing was pushed.
    #[error("an item for the log {log:?} cannot be encoded, and nothing was pushed")]
    Item {
        /// The log's name.
        log: String,
        /// The error of the codec, or its panic.
        source: BoxError,
    },

    /// A log that is open with items of another type.
    #[error(
        "the log {name:?} is open with items of type {open}, and not of type {asked}: use one type, or another name"
    )]
    LogType {
        /// The log's name.
        name: String,
        /// The type of the items of the open log.
        open: String,
        /// The type that was asked for.
        asked: String,
    },

    /// A trim of items that a consumer still needs. Nothing was removed.
    #[error(
        "the log {log:?} cannot be trimmed up to {index}, since a consumer that needs it has only processed {}: stop that consumer, or wait for it",
        last_processed.map_or_else(|| "nothing so far".to_owned(), |last| format!("items up to {last}"))
    )]
    Needed {
        /// The log's name.
        log: String,
        /// The last index of the trim.
        index: Index,
        /// The watermark of that consumer.
        last_processed: Option<Index>,
    },

    /// A gated consumer that can never reach the index at which it ends: its upstream ended below
    /// it. The jobs that the gate lets through are processed and saved.
    #[error(
        "the consumer cannot get to job {index}, since its upstream {upstream:?} has ended with {}: start the upstream again \
         until it gets there, gate by the new one, and run this consumer again",
        last_processed.map_or_else(|| "nothing processed".to_owned(), |last| format!("job {last} as the last one processed"))
    )]
    UpstreamEnded {
        /// The name of the upstream's progress, or "unnamed".
        upstream: String,
        /// The upstream's watermark.
        last_processed: Option<Index>,
        /// The index at which the consumer ends: by `stop_at`, `run_to` or the head of the source.
        index: Index,
    },

    /// The first failure among the stages of a pipeline.
    #[error("the stage {name:?} of the pipeline failed")]
    Stage {
        /// The name of the stage.
        name: String,
        /// The error of `start`, `stop` or `join` of its consumer.
        source: Box<Error>,
    },

    /// The consumer has ended.
    #[error("the consumer has ended: start a new one")]
    Stopped,

    /// An attempt that exceeded its [`attempt_timeout`](crate::Builder::attempt_timeout). It failed
    /// like any other attempt, so this is the source of [`Error::Job`] if it was the last one.
    #[error(
        "attempt {attempt} of job {index} did not end within its timeout of {after:?}: make the work shorter, or raise \
         `attempt_timeout`"
    )]
    AttemptTimeout {
        /// The index of the job.
        index: Index,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The timeout.
        after: Duration,
    },

    /// A panic on one of the consumer's own threads, outside user code. The jobs that had finished
    /// are saved; the jobs in flight do not count.
    #[error(
        "a thread of the consumer panicked: start again; nothing is lost, and standard error has the text of the panic"
    )]
    Thread,

    /// A thread that could not be started.
    #[error("a thread could not be started: raise the limit of the process, or lower max_processing")]
    Spawn {
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A tokio runtime that has shut down, or none where a runner with async handlers starts.
    ///
    /// `start_async` and `start` return it, and nothing was started. If the runtime shuts down
    /// later, it is the source of [`Error::Job`] for a job that was running, which is not retried,
    /// since no attempt can run.
    #[error(
        "no job can run and no call can be made, since the tokio runtime has shut down, or the caller is in none: start or \
         call again within a runtime that lives until the end; nothing is lost"
    )]
    Runtime,

    /// A queue's error where the crate's own is expected; `QueueError::from` turns it back.
    ///
    /// For example, a [`Store::write`](crate::Store::write) that pushes into a full queue writes
    /// nothing and returns it.
    #[error("a queue has refused a call, and says why and what to do")]
    Refused {
        /// The `QueueError`.
        source: BoxError,
    },

    /// A failure of the embedded store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// True if the same write would be refused each time.
    pub fn is_for_good(&self) -> bool {
        matches!(self, Self::Counter { .. } | Self::Sql { .. })
    }

    /// Returns the error and its causes in one line: what happened, what to do, and why.
    ///
    /// It contains the texts of your own errors, so it is bounded: 32 causes, and 1 MiB of text (a
    /// status keeps 4 KiB). A longer report is cut and says so at its end. If the text of an error
    /// panics, the report ends there.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|_| Err("connection refused".into()))?;
    /// let report = consumer.join().unwrap_err().report();
    /// assert!(report.starts_with("job 0 failed in attempt 1") && report.ends_with("connection refused"));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn report(&self) -> String {
        text::report(self)
    }
}
