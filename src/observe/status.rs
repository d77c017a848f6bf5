//! What an operator sees: how far a consumer is, and the one thing that its watermark waits for.

use crate::base::index::Index;
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
///
/// `Display` says it in one line for people. The order of its parts and the words stay as they are,
/// but do not parse it: programs read the fields. An error of yours that has several lines is shown as
/// it is.
///
/// ```
/// use waterline::{Consumer, MemoryJobs, MemoryProgress};
///
/// let jobs: MemoryJobs<_> = (0..3).collect();
/// let consumer = Consumer::builder(jobs, MemoryProgress::new())
///     .start(|job| if job.index < 2 { Ok(()) } else { Err("no".into()) })?;
/// let handle = consumer.handle();
/// let _ = consumer.join();
/// let line = "halted: watermark 1, head 2, lag 1, 0 in flight, 0 done ahead; \
///             the consumer halted at 2: job 2 failed in attempt 1: no";
/// assert_eq!(handle.status().to_string(), line);
/// # Ok::<(), waterline::Error>(())
/// ```
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
    /// Attempts that succeeded, in this process life. An attempt whose effects cannot be written
    /// moves from here to `failed`: see [`Effects::add`](crate::Effects::add).
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

    /// Writes which upstream has ended, behind the sentence that says what is waited for.
    pub(crate) fn write_ended_upstream(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ended_upstream {
            Some(upstream) => write!(f, " (its upstream {upstream:?} has ended)"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = |index: Option<Index>| index.map_or_else(|| "none".to_owned(), |index| index.to_string());
        let (watermark, head) = (index(self.last_processed), index(self.head));
        write!(f, "{}: watermark {watermark}, head {head}, lag {}, ", self.state, self.lag())?;
        write!(f, "{} in flight, {} done ahead; {}", self.processing, self.done_ahead, self.blocked)?;
        self.write_ended_upstream(f)
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
    /// The next job could start, and every thread that could run it has been busy for a second or more, though not with a job
    /// that the watermark waits for: in the closure of [`start_deferred`](crate::Builder::start_deferred) after the job was
    /// reported, in a destructor, or in a job above the next one.
    Threads {
        /// The threads, which are as many as there may be.
        busy: usize,
        /// The time for which none of them has come back.
        elapsed: Duration,
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
            Self::Retrying { index, attempt, retry_in: Duration::ZERO, error } => {
                write!(
                    f,
                    "job {index} failed in attempt {attempt} and is tried again as soon as it is its turn: {error}"
                )
            }
            Self::Retrying { index, attempt, retry_in, error } => {
                write!(f, "job {index} failed in attempt {attempt} and is tried again in {retry_in:.1?}: {error}")
            }
            Self::Threads { busy, elapsed } => {
                let none = match busy {
                    1 => "the one thread of the consumer has not".to_owned(),
                    _ => format!("none of the consumer's {busy} threads has"),
                };
                write!(
                    f,
                    "no job can start: {none} returned from a job, a closure, a callback or a destructor for {elapsed:.1?}; end what \
                     it waits for there, or allow more threads"
                )
            }
            Self::Missing { index } => {
                write!(
                    f,
                    "the source reports a head at or above {index} but returned no job at {index}; it is asked again"
                )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: Option<Index>, last_processed: Option<Index>, blocked: Blocked) -> Status {
        Status {
            state: State::Running,
            head,
            last_processed,
            next: 46,
            processing: 4,
            done_ahead: 2,
            unsaved: 2,
            blocked,
            ended_upstream: None,
            done: 44,
            failed: 0,
            retries: 0,
            saves: 9,
            unprocessed: last_processed.map_or(40, |last| last + 1),
        }
    }

    #[test]
    fn a_status_is_one_line_with_where_it_is_and_what_it_waits_for() {
        let running = Blocked::Running { index: 42, attempt: 1, elapsed: Duration::from_millis(3_140) };
        assert_eq!(
            status(Some(100), Some(41), running).to_string(),
            "running: watermark 41, head 100, lag 59, 4 in flight, 2 done ahead; job 42 has been running for 3.1s (attempt 1)"
        );
        assert_eq!(
            status(Some(100), None, Blocked::No).to_string(),
            "running: watermark none, head 100, lag 61, 4 in flight, 2 done ahead; nothing is in the way"
        );
        let nothing = status(None, None, Blocked::CaughtUp).to_string();
        assert!(nothing.starts_with("running: watermark none, head none, lag 0, 4 in flight"), "{nothing}");
        let mut held = status(Some(9), Some(3), Blocked::Upstream { index: 4 });
        held.ended_upstream = Some("fetch".to_owned());
        assert!(held.to_string().ends_with(" (its upstream \"fetch\" has ended)"), "{held}");
        assert_eq!(held.to_string().lines().count(), 1);
    }
}
