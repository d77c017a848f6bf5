//! What an operator sees: how far a consumer is, and the one thing that its watermark waits for.

use crate::index::Index;
use std::fmt;
use std::time::Duration;

/// Where a consumer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Jobs are started as they come.
    Running,
    /// Nothing starts until `resume`.
    Paused,
    /// Nothing starts any more; what runs is awaited and saved.
    Stopping,
    /// Stopped by a failure, which `stop` and `join` return: of a job, a callback, or the last save.
    Halted,
    /// Stopped, and everything that finished is saved. Where only the watermark is kept, the `done_ahead` jobs that finished
    /// above it run again in the next life.
    Finished,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Halted => "halted",
            Self::Finished => "finished",
        })
    }
}

/// A snapshot of a consumer; taking one never waits for the source, the store or a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Where it is in its life.
    pub state: State,
    /// The head that the source last showed; `None` while it has shown none.
    pub head: Option<Index>,
    /// The watermark: everything at or below it is processed, and that is saved. `None` while nothing is saved.
    pub last_processed: Option<Index>,
    /// The lowest index that was never handed to a worker.
    pub next: Index,
    /// Jobs in flight: handed to a worker and not reported.
    pub processing: usize,
    /// Jobs that finished above the watermark, also those that are not yet saved.
    pub done_ahead: u64,
    /// Jobs that finished and that no save has yet: beside those in flight, they are what runs again after a crash. With a
    /// progress that keeps nothing but the watermark these are all of `done_ahead`.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, Store::in_memory().progress("p")).stop_at(2).start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// consumer.join()?;
    /// assert_eq!((handle.status().done, handle.status().unsaved), (3, 0));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub unsaved: u64,
    /// Why the watermark is not moving right now.
    pub blocked: Blocked,
    /// The upstream that the next job waits for, when it has ended and its watermark will never move again: the name of its
    /// progress, or "unnamed".
    pub ended_upstream: Option<String>,
    /// Attempts that succeeded, in this process life. One whose effects turn out to be impossible moves from here to `failed`:
    /// see [`Effects::add`](crate::Effects::add).
    pub done: u64,
    /// Attempts that failed, in this process life.
    pub failed: u64,
    /// Attempts other than a job's first, in this process life.
    pub retries: u64,
    /// Saves of the progress that succeeded, in this process life.
    pub saves: u64,
    /// The first index that is not processed.
    pub(crate) unprocessed: Index,
}

impl Status {
    /// How many jobs are not yet processed: head − watermark, or head + 1 − first index while there is no watermark. Never
    /// below 0, also when the head went back.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.head.map_or(0, |head| head.saturating_add(1).saturating_sub(self.unprocessed))
    }
}

/// Why the watermark is not moving right now. `Display` says it in one sentence that an operator can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// It is moving, or nothing is left that could move it.
    No,
    /// Everything up to the head is processed, or the first index is still above it.
    CaughtUp,
    /// The next job is running.
    Running {
        /// Its index.
        index: Index,
        /// Its attempt, from 1.
        attempt: u32,
        /// Since when.
        elapsed: Duration,
    },
    /// The next job failed and waits for its next attempt.
    Retrying {
        /// Its index.
        index: Index,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// How soon it is due; zero when it only waits for its turn.
        retry_in: Duration,
        /// What it failed with.
        error: String,
    },
    /// The source has a head at or above this index, and no job at it.
    Missing {
        /// The index.
        index: Index,
    },
    /// The source is being asked for its head, and no job can be read before it answers. When it takes longer than a
    /// second this is [`Blocked::Source`].
    Looking {
        /// The time since it was asked.
        elapsed: Duration,
    },
    /// The source fails, or does not answer; it is asked again.
    Source {
        /// The index that is waited for.
        index: Index,
        /// What the source returned.
        error: String,
    },
    /// The progress cannot be saved; it is tried again.
    Progress {
        /// What the storage returned.
        error: String,
    },
    /// The source ends below what is processed already.
    AheadOfSource {
        /// The watermark.
        last_processed: Index,
        /// The source's head.
        head: Option<Index>,
    },
    /// The source has this job, and its gate lets it through only later: when the upstream consumer has processed it.
    /// [`Status::ended_upstream`] says whether that one has ended.
    Upstream {
        /// The index.
        index: Index,
    },
    /// Nothing starts until `resume`.
    Paused,
    /// The consumer was stopped by a failure.
    Halted {
        /// The index that it failed at.
        index: Index,
        /// The failure.
        error: String,
    },
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => write!(f, "nothing is in the way"),
            Self::CaughtUp => write!(f, "every job that the source has is processed; the next one is not there yet"),
            Self::Running { index, attempt, elapsed } => {
                write!(f, "job {index} has been running for {elapsed:.1?} (attempt {attempt})")
            }
            Self::Retrying { index, attempt, retry_in, error } => {
                write!(f, "job {index} failed in attempt {attempt} and is tried again in {retry_in:.1?}: {error}")
            }
            Self::Missing { index } => {
                write!(f, "the source shows no job at {index} though its head is not below; it is asked again")
            }
            Self::Looking { elapsed } => {
                write!(
                    f,
                    "the source is being asked for its head, for {elapsed:.1?} so far; nothing is read before it answers"
                )
            }
            Self::Source { index, error } => {
                write!(f, "the source cannot be read at {index} and is asked again: {error}")
            }
            Self::Progress { error } => write!(f, "the progress cannot be saved and is tried again: {error}"),
            Self::AheadOfSource { last_processed, head: Some(head) } => write!(
                f,
                "the source ends at {head}, below the last processed index {last_processed}: it lost jobs, or this is \
                 another stream's progress"
            ),
            Self::AheadOfSource { last_processed, head: None } => write!(
                f,
                "the source is empty, but jobs up to {last_processed} were processed: it lost jobs, or this is another \
                 stream's progress"
            ),
            Self::Upstream { index } => write!(
                f,
                "job {index} is held back by the gate of its source: the stage before it is not done with it, or the log that it \
                 fills is full; see what the other stage waits for, and start that again if it has ended"
            ),
            Self::Paused => write!(f, "the consumer is paused; resume it to go on"),
            Self::Halted { index, error } => write!(f, "the consumer halted at {index}: {error}"),
        }
    }
}
