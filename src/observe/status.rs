//! The status for an operator: where a consumer is, the one thing that its watermark waits for, and
//! its calls into the source.

use crate::base::Index;
use std::fmt;
use std::time::Duration;

/// The state of a consumer, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Jobs start as they come.
    Running,
    /// Another consumer has the name, and this one [waits](crate::Builder::standby) for it.
    Waiting,
    /// Nothing starts until `resume`.
    Paused,
    /// Nothing starts any more. The jobs in flight finish and are saved.
    Stopping,
    /// A failure has stopped the consumer: of a job, a callback or the last save, or the loss of
    /// its name. `stop` and `join` return it.
    Halted,
    /// The consumer has stopped, and everything that finished is saved. If the progress keeps only
    /// the watermark, the `done_ahead` jobs that finished above it run again in the next life.
    Finished,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Halted => "halted",
            Self::Finished => "finished",
        })
    }
}

/// How a consumer ended, as [`Handle::wait_end`](crate::Handle::wait_end) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The last state: [`State::Finished`] or [`State::Halted`].
    pub state: State,
    /// The [report](crate::Error::report) of the error that
    /// [`Consumer::join`](crate::Consumer::join) returns or has returned. `None` if the consumer
    /// finished.
    pub error: Option<String>,
}

/// A snapshot of a consumer. It never waits for the source, the store or a job.
///
/// `Display` shows it in one line for people. The order of its parts and the words will not change,
/// but do not parse it: programs read the fields. If an error of yours has several lines, they are
/// shown as they are. `serde` writes the fields, for an answer over HTTP: durations in whole
/// milliseconds, the reason in `blocked` as a word, and the line of `Display` as `text`.
///
/// It has no throughput: take two snapshots and divide the difference of [`done`](Self::done) by
/// the time between them. [`PipelineStatus`](crate::PipelineStatus) does that for stages.
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
/// assert_eq!(serde_json::json!(handle.status())["state"], "halted");
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The state, from the start of the consumer to its end.
    pub state: State,
    /// The head that the source last reported, or `None` if it has reported none.
    pub head: Option<Index>,
    /// The watermark: everything up to and including this index is processed and saved. `None`
    /// while nothing is saved.
    pub last_processed: Option<Index>,
    /// The lowest index that was never handed to a worker.
    pub next: Index,
    /// The jobs in flight: handed to a worker and not reported.
    pub processing: usize,
    /// The jobs that finished above the watermark, saved or not.
    pub done_ahead: u64,
    /// The finished jobs that are in no save yet. After a crash these jobs run again, and so do the
    /// jobs in flight. If the progress keeps only the watermark, these are all of `done_ahead`. The
    /// indices of a settled gap count like jobs, here and in `done_ahead`.
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
    /// Why the watermark does not move right now.
    pub blocked: Blocked,
    /// How long the source has failed, has not answered, or has lacked the job that the watermark
    /// waits for. `None` unless [`blocked`](Self::blocked) is [`Blocked::Source`] or
    /// [`Blocked::Missing`].
    pub source_fails_for: Option<Duration>,
    /// The upstream that the next job waits for, if it has ended and its watermark will never move
    /// again: the name of its progress, or "unnamed".
    pub ended_upstream: Option<String>,
    /// The attempts that succeeded since the consumer started. An attempt whose effects cannot be
    /// written moves from here to `failed`: see [`Effects::add`](crate::Effects::add).
    pub done: u64,
    /// The attempts that failed since the consumer started.
    pub failed: u64,
    /// The attempts since the consumer started that were not a job's first.
    pub retries: u64,
    /// The saves of the progress that succeeded since the consumer started.
    pub saves: u64,
    /// The indices at which, as the source has said since the consumer started, there will never be
    /// a job: see [`Jobs::read_sparse`](crate::Jobs::read_sparse). Those above the watermark count
    /// in `done_ahead`, too.
    pub absent: u64,
    /// The parked jobs, including those of earlier lives: see
    /// [`OnExhausted::Park`](crate::OnExhausted::Park).
    pub parked: u64,
    /// The jobs that are read and wait for an earlier one of their key: see
    /// [`Builder::ordered_by`](crate::Builder::ordered_by).
    pub behind: u64,
    /// The oldest attempt in flight, or `None` if no job is in flight. If it has run for hours, it
    /// is stuck, even if the watermark does not wait for it yet.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let (begin, begun) = crossbeam_channel::bounded(0);
    /// let (end, ended) = crossbeam_channel::bounded(0);
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .start(move |_| {
    ///         begin.send(())?;
    ///         Ok(ended.recv()?)
    ///     })?;
    /// begun.recv()?;
    /// let oldest = consumer.handle().status().oldest.ok_or("the job runs")?;
    /// assert_eq!((oldest.index, oldest.attempt), (0, 1));
    /// end.send(())?;
    /// consumer.stop()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub oldest: Option<Attempt>,
    /// The calls into the source: how many failed, and when it is called again.
    pub source: SourceCalls,
    /// The lowest unprocessed index.
    pub(crate) unprocessed: Index,
}

/// An attempt in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The index of the job.
    pub index: Index,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The time since it began, to within a tick of the system's timer (1 to 16 ms). With
    /// [`start_ordered`](crate::Builder::start_ordered) the time starts anew for the sink.
    pub elapsed: Duration,
}

impl Status {
    /// Returns the lag: how many indices are not yet processed.
    ///
    /// It is head − watermark, or head + 1 − first index while there is no watermark. It is never
    /// below 0, even if the head went back. Gaps count until the watermark has passed them, since
    /// they have not been read yet: a table whose ids leave out 2^40 numbers has that lag. For the
    /// number of rows, ask the database.
    ///
    /// Without a [`head`](Self::head), for example while a [standby](crate::Builder::standby)
    /// waits, the lag is unknown: this is 0 then, and the sentence of the status says `unknown`.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.head.map_or(0, |head| head.saturating_add(1).saturating_sub(self.unprocessed))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = |index: Option<Index>| index.map_or_else(|| "none".to_owned(), |index| index.to_string());
        let (watermark, head) = (index(self.last_processed), index(self.head));
        let lag = if self.head.is_some() { self.lag().to_string() } else { "unknown".to_owned() };
        write!(f, "{}: watermark {watermark}, head {head}, lag {lag}, ", self.state)?;
        write!(f, "{} in flight, {} done ahead; {}", self.processing, self.done_ahead, self.reason())
    }
}

/// Why the watermark does not move. `Display` says it in a sentence that an operator can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// The watermark moves, or nothing is left that could move it.
    No,
    /// Everything up to the head is processed, or the first index is still above the head.
    CaughtUp,
    /// The next job is running.
    Running {
        /// The index of the job.
        index: Index,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time since the attempt began.
        elapsed: Duration,
    },
    /// The next job exceeds its [`attempt_timeout`](crate::Builder::attempt_timeout).
    ///
    /// Nothing can end it from outside: a thread cannot be ended, and a future that blocks its
    /// thread cannot be dropped. [`Job::is_stopping`](crate::Job::is_stopping) tells the job.
    Overdue {
        /// The index of the job.
        index: Index,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time since the attempt began.
        elapsed: Duration,
        /// How long it may take.
        timeout: Duration,
    },
    /// The next job failed and waits for its next attempt.
    Retrying {
        /// The index of the job.
        index: Index,
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// How long until the next attempt; zero if the job is due.
        retry_in: Duration,
        /// The error of that attempt.
        error: String,
    },
    /// The next job said that it is not ready: see [`Failure::defer`](crate::Failure::defer).
    Deferred {
        /// The index of the job.
        index: Index,
        /// How long until the job is due, as it requested; zero if it is.
        retry_in: Duration,
        /// The text of the error with which it deferred itself.
        error: String,
    },
    /// The next job could start, but all threads that could run it are busy with something else.
    ///
    /// They have been busy for a second or more (or the shortest time of
    /// [`on_stall`](crate::Builder::on_stall)), and not with a job that the watermark waits for.
    /// They may be in the closure of [`start_deferred`](crate::Builder::start_deferred) after the
    /// job was reported, in a destructor, or in a job above the next one.
    Threads {
        /// How many threads there are, which is the most allowed.
        busy: usize,
        /// The time since the last of them returned.
        elapsed: Duration,
    },
    /// The source reports a head at or above this index, but has no job at it.
    Missing {
        /// The index of the job.
        index: Index,
    },
    /// The consumer has asked the source for its head, and reads no job before the answer. After a
    /// second, or the shortest time of [`on_stall`](crate::Builder::on_stall), this becomes
    /// [`Blocked::Source`].
    Looking {
        /// The time since the consumer asked.
        elapsed: Duration,
    },
    /// The source fails and is retried, or has not answered for a second, or for the shortest time
    /// of [`on_stall`](crate::Builder::on_stall).
    Source {
        /// The index that the watermark waits for.
        index: Index,
        /// The error of the source.
        error: String,
    },
    /// The source has no job above its head yet, and says what it waits for: see
    /// [`Jobs::waits_for`](crate::Jobs::waits_for).
    SourceWaits {
        /// The index that the watermark waits for.
        index: Index,
        /// The reason that the source gave.
        why: String,
    },
    /// The progress cannot be saved and is retried, or a save has not returned for a second, or for
    /// the shortest time of [`on_stall`](crate::Builder::on_stall). Or a standby could not ask for
    /// its name, and tries again.
    Progress {
        /// The error of the storage.
        error: String,
    },
    /// The head of the source is below the watermark.
    AheadOfSource {
        /// The watermark.
        last_processed: Index,
        /// The head of the source.
        head: Option<Index>,
    },
    /// The source has this job, but its gate holds it back: the upstream consumer has not processed
    /// it. [`Status::ended_upstream`] says whether that consumer has ended.
    Upstream {
        /// The index of the job.
        index: Index,
    },
    /// The source has this job, but the log that its jobs fill is full: see
    /// [`JobLog::hold_back`](crate::JobLog::hold_back). It starts as soon as the log's consumers
    /// have processed some of its items.
    LogFull {
        /// The index of the job.
        index: Index,
        /// The name of the log.
        log: String,
        /// How many [items](crate::JobLog::backlog) are still to be processed.
        items: u64,
        /// The number of items from which the log is full.
        most: u64,
        /// The log's consumer with the lowest watermark: the name of its progress, or "unnamed".
        /// `None` if the log [retains](crate::JobLog::retain) items for no consumer, so that only a
        /// trim makes room.
        behind: Option<String>,
        /// True if that consumer has ended, so that its watermark never moves again.
        ended: bool,
    },
    /// The process died while this job may have run, so it runs alone: see
    /// [`Builder::max_crashes`](crate::Builder::max_crashes). It waits until no other job is in
    /// flight and its crash is counted, or the other jobs wait until it has ended.
    Alone {
        /// The index of the job.
        index: Index,
    },
    /// Another consumer has the name, and this one [waits](crate::Builder::standby) for it.
    InUse {
        /// The holder of the name, as far as the progress names it.
        holder: String,
        /// How long until the name is free unless it is renewed; zero if it is due. `None` if the
        /// name is free only once its holder gives it back.
        expires_in: Option<Duration>,
    },
    /// The consumer is paused. Nothing starts until `resume`.
    Paused,
    /// The progress holds the consumer back, and nothing starts until it lets go: see
    /// [`Tenure::hold`](crate::Tenure::hold).
    Held {
        /// The reason that the progress gave.
        why: String,
    },
    /// The consumer has ended and everything is saved, but its threads are not gone, and a `stop`
    /// or `join` waits for them.
    Leaving {
        /// The time since the end: at least a second, or the shortest time of
        /// [`on_stall`](crate::Builder::on_stall).
        elapsed: Duration,
    },
    /// A failure has stopped the consumer.
    Halted {
        /// The index at which it failed.
        index: Index,
        /// The failure.
        error: String,
    },
}

/// The calls of a consumer into its source: see [`Status::source`](crate::Status::source).
///
/// A call asks for the head, or reads a run of jobs. With the default
/// [`Jobs::read`](crate::Jobs::read), many calls of `at_index` count as one. `Display` writes the
/// numbers as the status does: `5 of 31 calls failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCalls {
    /// The calls that returned since the consumer started.
    pub made: u64,
    /// How many of them failed: an error, a panic, or no answer within
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub failed: u64,
    /// The calls that failed since the source last answered one. 0 for a healthy source.
    pub failed_in_a_row: u32,
    /// How long until the source is called again, if the watermark waits for that; zero if it is
    /// due. `None` if it waits for something else, or for a call under way.
    pub retry_in: Option<Duration>,
    /// How long a call may take; `None` if nothing can end a call from outside. See
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub timeout: Option<Duration>,
}

impl fmt::Display for SourceCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} calls failed", self.failed, self.made)
    }
}

impl SourceCalls {
    /// Writes when the source is called again, after the sentence about its fault.
    pub(crate) fn write_retry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_in {
            None => return Ok(()),
            Some(Duration::ZERO) => write!(f, " (it is asked again now")?,
            Some(retry_in) => write!(f, " (it is asked again in {retry_in:.1?}")?,
        }
        if self.failed > 0 {
            write!(f, "; {self}")?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::advice::tests::status;

    #[test]
    fn a_status_is_one_line_with_position_and_reason() {
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
        assert!(nothing.starts_with("running: watermark none, head none, lag unknown, 4 in flight"), "{nothing}");
        let mut held = status(Some(9), Some(3), Blocked::Upstream { index: 4 });
        held.ended_upstream = Some("fetch".to_owned());
        assert!(held.to_string().ends_with(" (its upstream \"fetch\" has ended)"), "{held}");
        assert_eq!(held.to_string().lines().count(), 1);
        let mut down = status(Some(9), Some(3), Blocked::Source { index: 4, error: "refused".to_owned() });
        down.source = SourceCalls { made: 31, failed: 5, failed_in_a_row: 2, ..SourceCalls::default() };
        let says = "the source cannot be read at 4; the consumer goes on as soon as it can be: refused";
        for (millis, end) in [
            (Some(1_640), " (it is asked again in 1.6s; 5 of 31 calls failed)"),
            (Some(0), " (it is asked again now; 5 of 31 calls failed)"),
            (None, ""),
        ] {
            down.source.retry_in = millis.map(Duration::from_millis);
            assert_eq!(down.reason().to_string(), format!("{says}{end}"));
            assert!(down.to_string().ends_with(&format!("; {says}{end}")), "{down}");
        }
    }
}
