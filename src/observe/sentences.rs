//! The reasons to wait: as sentences, as words, and what helps.

use super::status::{Blocked, Status};
use crate::base::{Index, error::is_halt_of_job};
use std::fmt;
use std::time::Duration;

impl Blocked {
    /// True if nothing goes on before an operator, or another program, has acted.
    pub(crate) fn needs_help(&self) -> bool {
        match self {
            Self::LogFull { ended, .. } => *ended,
            Self::Missing { .. } | Self::AheadOfSource { .. } => true,
            Self::Paused | Self::Held { .. } | Self::Halted { .. } => true,
            _ => false,
        }
    }

    /// True if the consumer halted because a job failed for good, or killed its process.
    ///
    /// Then skipping the job helps, unlike after any other halt, such as that of a failing source.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .retry(Retry::none())
    ///     .start(|_| Err("no such price".into()))?;
    /// let handle = consumer.handle();
    /// assert!(consumer.join().is_err());
    /// assert!(handle.status().blocked.is_halt_of_job());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn is_halt_of_job(&self) -> bool {
        matches!(self, Self::Halted { index, error } if is_halt_of_job(*index, error))
    }
}

impl Status {
    /// Returns the sentence of [`blocked`](Self::blocked) with the details of other fields.
    ///
    /// These are the ended upstream, or when the source is called again and how many calls failed.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).stop_at(2).start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// consumer.join()?;
    /// assert_eq!(handle.status().reason().to_string(), "nothing is in the way");
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn reason(&self) -> impl fmt::Display {
        Reason(self)
    }
}

struct Reason<'a>(&'a Status);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = self;
        write!(f, "{}", status.blocked)?;
        if let Some(upstream) = &status.ended_upstream {
            write!(f, " (its upstream {upstream:?} has ended)")?;
        }
        status.source.write_retry(f)
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => write!(f, "nothing is in the way"),
            Self::CaughtUp => write!(f, "every job that the source has is processed; the next one is not there yet"),
            Self::Running { index, attempt, elapsed } => {
                write!(f, "job {index} has been running for {elapsed:.1?} (attempt {attempt})")
            }
            Self::Overdue { index, attempt, elapsed, timeout } => write!(
                f,
                "job {index} has been running for {elapsed:.1?} (attempt {attempt}), longer than its timeout of {timeout:.1?}, and \
                 cannot be ended from outside: let it return once `is_stopping` is true, and limit the calls in it that wait"
            ),
            Self::Retrying { index, attempt, retry_in, error } => {
                write!(f, "job {index} failed in attempt {attempt} and is tried again {}: {error}", soon(*retry_in))
            }
            Self::Deferred { index, retry_in, error } => {
                write!(f, "job {index} was not ready and is tried again {}: {error}", soon(*retry_in))
            }
            Self::Alone { index } => write!(
                f,
                "the process died while job {index} may have run, so this job runs alone: it starts when no other job is in flight, \
                 and the others go on after it"
            ),
            Self::Threads { busy, elapsed } => write!(
                f,
                "no job can start: {} returned from a job, a closure, a callback or a destructor for {elapsed:.1?}; end what \
                 blocks them there, or allow more threads",
                none_has(*busy)
            ),
            Self::Missing { index } => write!(
                f,
                "the source reports a head at or above {index} but returned no job at {index}; retrying; bring the job back, or \
                 stop the consumer and skip it (StoreProgress::skip)"
            ),
            Self::Looking { elapsed } => {
                write!(f, "the source was asked for its head {elapsed:.1?} ago; no job is read before it answers")
            }
            Self::Source { index, error } => {
                write!(f, "the source cannot be read at {index}; the consumer goes on as soon as it can be: {error}")
            }
            Self::SourceWaits { index, why } => {
                write!(f, "the source shows no job from {index} on, since it waits: {why}")
            }
            Self::Progress { error } => {
                write!(f, "the storage of the progress fails; the consumer goes on as soon as it works: {error}")
            }
            Self::AheadOfSource { last_processed, head } => write_ahead(f, *last_processed, *head),
            Self::Upstream { index } => write!(
                f,
                "job {index} is held back by the gate of its source: the stage before it has not processed it; see what that stage \
                 waits for, and start it again if it has ended"
            ),
            Self::LogFull { .. } => write_full(f, self),
            Self::InUse { holder, expires_in } => write_in_use(f, holder, *expires_in),
            Self::Paused => write!(f, "the consumer is paused; resume it to go on"),
            Self::Held { why } => {
                write!(f, "no job starts before the progress lets the consumer go on, which holds it back: {why}")
            }
            Self::Leaving { elapsed } => write!(
                f,
                "the consumer ended {elapsed:.1?} ago, but a job, a call into the source, a callback or a destructor has not returned; \
                 end what blocks it there"
            ),
            Self::Halted { index, error } => write!(f, "the consumer halted at {index}: {error}"),
        }
    }
}

fn write_full(f: &mut fmt::Formatter<'_>, full: &Blocked) -> fmt::Result {
    let Blocked::LogFull { index, log, items, most, behind, ended } = full else { return Ok(()) };
    write!(f, "job {index} is held back: the log {log:?} is full, with {items} of {most} items ")?;
    match behind {
        Some(behind) if *ended => write!(f, "not processed by {behind:?}, which has ended; start it again"),
        Some(behind) => write!(f, "not processed by {behind:?}; see what that one waits for"),
        None => write!(f, "not trimmed; name the consumers behind it (JobLog::retain), or trim it"),
    }
}

fn write_ahead(f: &mut fmt::Formatter<'_>, last_processed: Index, head: Option<Index>) -> fmt::Result {
    match head {
        Some(head) => write!(f, "the source ends at {head}, below the last processed index {last_processed}")?,
        None => write!(f, "the source is empty, but jobs up to {last_processed} were processed")?,
    }
    write!(
        f,
        ": it lost jobs, or the progress is of another stream; restore the jobs, or use a progress of its own for this stream"
    )
}

fn write_in_use(f: &mut fmt::Formatter<'_>, holder: &str, expires_in: Option<Duration>) -> fmt::Result {
    write!(f, "the name is in use by {holder}; this consumer waits, and takes over once it is free")?;
    expires_in.map_or(Ok(()), |expires_in| write!(f, ", in {expires_in:.1?} unless it is renewed"))
}

/// Says when a waiting job is retried.
fn soon(retry_in: Duration) -> String {
    if retry_in.is_zero() { "as soon as a slot is free".to_owned() } else { format!("in {retry_in:.1?}") }
}

fn none_has(threads: usize) -> String {
    match threads {
        1 => "the one thread of the consumer has not".to_owned(),
        _ => format!("none of the consumer's {threads} threads has"),
    }
}
