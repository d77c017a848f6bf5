//! The one error type of the crate's surface.

use crate::base::config::ConfigError;
use crate::base::index::{BoxError, Index};
use crate::base::structure::structure;
use std::fmt;
use std::path::PathBuf;

mod text;

pub(crate) use text::describe;

/// What went wrong, and what to do about it.
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
    /// A value that was refused before anything started.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// Another live consumer of this process has this progress.
    #[error("the progress {name:?} is in use by another consumer: stop that one first, or use another name")]
    InUse {
        /// The name of the progress.
        name: String,
    },

    /// Another process, or another `Store` of this one, has the database open.
    #[error("the database at {} is open elsewhere: close it there, or share one `Store` by cloning it", path.display())]
    Locked {
        /// Where the database is.
        path: PathBuf,
    },

    /// Nothing is stored at this path or under this name, and nothing was made, since
    /// [`StoreOptions::create`](crate::StoreOptions::create) is `false`.
    #[error("{}", not_found(what, name))]
    NotFound {
        /// The kind of thing: `"store"`, `"progress"`, `"log"` or `"table"`.
        what: &'static str,
        /// Its name; the path of a store.
        name: String,
    },

    /// The source no longer has the job that is next. Nothing was skipped.
    #[error(
        "the next job is {next}, but the source begins at {first}: bring the jobs from {next} to {} back, or start anew \
         under another progress name", first - 1
    )]
    Truncated {
        /// The index that was to be processed next.
        next: Index,
        /// The lowest index that the source still has.
        first: Index,
    },

    /// A stored value cannot be read. It was left as it is.
    #[error(
        "the stored value of {name:?} cannot be read ({reason}): restore it from a backup, or start anew (`StoreProgress::remove`, \
         `Table::delete`, another name for a log and for the progress on it)"
    )]
    Corrupt {
        /// Whose value it is.
        name: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A job failed and had no attempt left, or wants something that no attempt can have: see
    /// [`Effects::add`](crate::Effects::add). It is not counted as done and runs again after a
    /// restart.
    #[error("job {index} failed in attempt {attempt}{}", after_the_last(source))]
    Job {
        /// Its index.
        index: Index,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// What the worker returned.
        source: BoxError,
    },

    /// The source failed where that is not retried: when a consumer starts.
    #[error(
        "the source failed at index {index}, before anything was started: mend it and start again, nothing is lost"
    )]
    Source {
        /// The index that was to be read.
        index: Index,
        /// What the source returned.
        source: BoxError,
    },

    /// The progress could not be loaded, or the last save failed. What was not saved runs again after a restart.
    #[error("the progress could not be loaded or saved: mend its storage and start again, nothing is lost")]
    Progress {
        /// What the storage returned.
        source: BoxError,
    },

    /// An `on_processed` callback panicked, which halts the consumer. What it was called with is saved.
    #[error("on_processed panicked when it was called for indices up to {index}: mend the callback and start again")]
    Callback {
        /// The last index of the range that it was called with.
        index: Index,
        /// What it panicked with.
        source: BoxError,
    },

    /// `stop_within` did not wait any longer. What finished is saved; what still runs is not counted,
    /// whatever it returns, and runs again in the next life.
    #[error("{} when the time to stop was over", still(running))]
    StopTimeout {
        /// The jobs that were still running, in ascending order. Empty when the source, a callback or a destructor did not
        /// return.
        running: Vec<Index>,
    },

    /// A transactional job wanted more changed at once than may wait to be written. Nothing of the attempt counts.
    #[error(
        "the effects of one job are larger than {limit} bytes: change less in one job, or allow more with `Builder::max_effects`"
    )]
    EffectsTooLarge {
        /// How many bytes may wait.
        limit: usize,
    },

    /// A key of a table cannot be counted under: something else than a counter is there, or the sum
    /// is too large for one. Nothing was changed.
    ///
    /// [`Table::counter`](crate::Table::counter) returns it. A transactional job that adds to such
    /// a key fails with it, as the source of [`Error::Job`], and is not tried again: see
    /// [`Effects::add`](crate::Effects::add).
    #[error("the key \"{}\" of the table {table:?} cannot be counted under: {reason}", key.escape_ascii())]
    Counter {
        /// The table's name.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// What is wrong with what is there, and what to do about it.
        reason: String,
    },

    /// An item could not be turned into JSON, so nothing was pushed.
    #[error("an item for the log {log:?} cannot be turned into JSON, and nothing was pushed")]
    Item {
        /// The log's name.
        log: String,
        /// What serde says.
        source: BoxError,
    },

    /// The log is open with items of another type.
    #[error(
        "the log {name:?} is open with items of type {open}, and {asked} was asked for: use one type, or another name"
    )]
    LogType {
        /// The log's name.
        name: String,
        /// The type of its items.
        open: String,
        /// The type that was asked for.
        asked: String,
    },

    /// Items that were to be removed are still needed. Nothing was removed.
    #[error(
        "the log {log:?} cannot be trimmed up to {index}, since a consumer has only processed {}: stop that one, or wait for it",
        last_processed.map_or_else(|| "nothing so far".to_owned(), |last| format!("items up to {last}"))
    )]
    Needed {
        /// The log's name.
        log: String,
        /// Up to where it was to be trimmed.
        index: Index,
        /// How far that consumer has come.
        last_processed: Option<Index>,
    },

    /// A consumer that is gated by another one cannot get to the index at which it was to end: its
    /// upstream has ended below, and never moves again. The jobs that it lets through are processed
    /// and saved.
    #[error(
        "the run was to end with job {index}, and its upstream {upstream:?} has ended with {}: start that one again until it \
         gets there, gate by the new one, and run this one again",
        last_processed.map_or_else(|| "nothing processed".to_owned(), |last| format!("{last} as the last one processed"))
    )]
    UpstreamEnded {
        /// The name of the upstream's progress, or "unnamed".
        upstream: String,
        /// The upstream's watermark.
        last_processed: Option<Index>,
        /// The last index that was to be processed: by `stop_at`, `run_to` or the head of the
        /// source.
        index: Index,
    },

    /// A stage of a pipeline failed: the first one that did.
    #[error("the stage {name:?} of the pipeline failed")]
    Stage {
        /// Its name.
        name: String,
        /// What `start`, `stop` or `join` of its consumer returned.
        source: Box<Error>,
    },

    /// The consumer has ended.
    #[error("the consumer has ended: start a new one")]
    Stopped,

    /// One of the consumer's own threads panicked, outside of all the user's code that is guarded. What had finished is
    /// saved; what was running is not counted.
    #[error(
        "a thread of the consumer panicked: start anew, nothing is lost; what it panicked with is on standard error"
    )]
    Thread,

    /// A thread could not be started.
    #[error("a thread could not be started: raise the limit of the process, or lower max_processing")]
    Spawn {
        /// What the operating system said.
        source: std::io::Error,
    },

    /// The embedded store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// The error and its causes, in one line: what happened, what to do, and why.
    ///
    /// The texts of your own errors are in it, so there are bounds: 32 causes, and 1 MiB of text. (A
    /// status keeps 4 KiB.) A longer report is cut, and says so at its end. A text that panics ends
    /// there.
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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return f.write_str(&self.report());
        }
        structure!(
            self,
            f,
            [Config, Store],
            [
                InUse { name },
                Locked { path },
                NotFound { what, name },
                Truncated { next, first },
                Corrupt { name, reason },
                Job { index, attempt, source },
                Source { index, source },
                Progress { source },
                Callback { index, source },
                StopTimeout { running },
                EffectsTooLarge { limit },
                Counter { table, key, reason },
                Item { log, source },
                LogType { name, open, asked },
                Needed { log, index, last_processed },
                UpstreamEnded { upstream, last_processed, index },
                Stage { name, source },
                Stopped {},
                Thread {},
                Spawn { source },
            ]
        )
    }
}

/// What the embedded store was doing when it failed. `{:?}` shows the text and the causes, `{:#?}` the structure.
#[derive(thiserror::Error)]
#[error("the store could not {doing}: look at its path, its permissions and its disk, and try again")]
pub struct StoreError {
    pub(crate) doing: String,
    pub(crate) source: BoxError,
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.debug_struct("StoreError").field("doing", &self.doing).field("source", &self.source).finish()
        } else {
            f.write_str(&text::report(self))
        }
    }
}

fn not_found(what: &str, name: &str) -> String {
    match what {
        "store" => {
            format!(
                "there is no store at {name}, and `create(false)` makes none: check the path, or make one with `create(true)`"
            )
        }
        _ => format!(
            "there is no {what} {name:?} in the store, which was opened with `create(false)`: check the name, or open the store \
             with `create(true)` to have it made"
        ),
    }
}

/// What holds of the last attempt of a job, and what to do.
fn after_the_last(source: &BoxError) -> &'static str {
    match source.downcast_ref() {
        Some(Error::Counter { .. }) => " and is not tried again: mend the cause and start again",
        _ => ", its last: mend the cause and start again, or allow it more retries",
    }
}

fn still(running: &[Index]) -> String {
    match running {
        [] => "no job was running, but a call into the source, a callback, a closure or a destructor had not returned"
            .to_owned(),
        [one] => format!("job {one} was still running, and runs again in the next life,"),
        [first, .., last] => {
            format!("{} jobs from {first} to {last} were still running, and run again in the next life,", running.len())
        }
    }
}
