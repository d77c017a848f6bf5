//! The events of a consumer, and the trait of user code that hears them.

use crate::base::{Index, sync::Arc};
use crate::observe::status::{State, Status};
use std::time::Duration;

/// Hears each [`Event`] of a consumer as it happens: see [`Builder::observe`].
///
/// A closure is an observer. Write the type of its argument:
///
/// ```
/// use waterline::{Consumer, Event, MemoryJobs, MemoryProgress};
///
/// let (send, ended) = crossbeam_channel::unbounded();
/// let jobs: MemoryJobs<_> = (0..3).collect();
/// Consumer::builder(jobs, MemoryProgress::new())
///     .stop_at(2)
///     .observe(move |event: &Event<'_>| {
///         if let Event::AttemptEnded { index, elapsed, .. } = event {
///             let _ = send.send((*index, *elapsed));
///         }
///     })
///     .start(|_| Ok(()))?
///     .join()?;
/// assert_eq!(ended.iter().count(), 3);
/// # Ok::<(), waterline::Error>(())
/// ```
///
/// [`Builder::observe`]: crate::Builder::observe
pub trait Observer: Send + Sync + 'static {
    /// Hears one event. No lock is held, so it may call the [`Handle`](crate::Handle) and the
    /// [`Store`](crate::Store).
    ///
    /// Events of attempts come on the thread that runs or reports the attempt, so several such
    /// calls may run at the same time, and a slow one slows its job down. The other events come one
    /// at a time. A panic is caught and logged, and changes nothing else.
    fn observe(&self, event: &Event<'_>);
}

impl<F> Observer for F
where
    F: Fn(&Event<'_>) + Send + Sync + 'static,
{
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, event: &Event<'_>) {
        (**self).observe(event);
    }
}

/// One thing that happened in a consumer, for an [`Observer`].
///
/// `consumer` is the name of the progress, or `unnamed`. For one job the order is: its attempt
/// begins, the attempt ends, and a save counts it. So an attempt's end comes before the job counts
/// as done in a status, and before its next attempt begins.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt begins. Sent on the thread that runs it, right before the user's code.
    #[non_exhaustive]
    AttemptBegun {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The index of the job.
        index: Index,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// An attempt has ended. Sent on the thread that reports it, after
    /// [`on_job_done`](crate::Builder::on_job_done).
    ///
    /// If the [timeout](crate::Builder::attempt_timeout) has ended a deferred attempt, a thread of
    /// the consumer reports it, and its token reports nothing later. Some attempts begin and have
    /// no such event: those that [`stop_within`](crate::Consumer::stop_within) gave up, and with
    /// [`start_ordered`](crate::Builder::start_ordered) those whose results the sink never took,
    /// since the consumer stopped.
    #[non_exhaustive]
    AttemptEnded {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The index of the job.
        index: Index,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time since [`AttemptBegun`](Self::AttemptBegun). With
        /// [`start_deferred`](crate::Builder::start_deferred) it ends when the token is used, with
        /// [`start_ordered`](crate::Builder::start_ordered) when the sink has taken the result,
        /// which includes the wait for its turn.
        elapsed: Duration,
        /// The outcome of the attempt.
        outcome: AttemptOutcome<'a>,
    },
    /// A save of the progress has succeeded.
    #[non_exhaustive]
    Saved {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The watermark that was saved. `None` if only jobs above it are done.
        last_processed: Option<Index>,
        /// The time from the snapshot of the save's content to its success, including failed tries.
        /// If the event stands for several saves, that of the last one.
        elapsed: Duration,
        /// How many saves the event stands for: 1, unless observers are so slow that more than a
        /// thousand events wait for them.
        count: u64,
    },
    /// The watermark does not move, though there is work.
    ///
    /// It is sent when the log reports it: after ten seconds, and again after 20, 40, 80. See
    /// [`Builder::on_stall`](crate::Builder::on_stall) for another time.
    #[non_exhaustive]
    Stalled {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// How long the watermark has not moved.
        elapsed: Duration,
        /// The status at that time. [`Status::blocked`] is the cause.
        status: &'a Status,
    },
    /// The current numbers for gauges, about once a second while there is work or anything moves.
    ///
    /// It is also sent once when the consumer has caught up, and once before
    /// [`Ended`](Self::Ended). A parked job that runs once more or is discarded is work too. In
    /// between nothing changes: a consumer that has caught up and sleeps sends none.
    #[non_exhaustive]
    Measured {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The lag in time: how long the head has been above the current watermark, as this
        /// consumer has seen it since its start. Zero if it has caught up. It is never too short,
        /// and too long by at most 10 ms, or a sixteenth of the longest lag since the consumer had
        /// caught up.
        lag: Duration,
        /// The status at that time. [`Status::lag`] is the lag in jobs.
        status: &'a Status,
    },
    /// A job that has used up its attempts is [parked](crate::OnExhausted::Park): the next save has
    /// its record.
    #[non_exhaustive]
    Parked {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The index of the job.
        index: Index,
        /// The number of the attempt that failed.
        attempt: u32,
        /// The text of the error with its sources.
        error: &'a str,
    },
    /// Another consumer has the name, so this one [waits](crate::Builder::standby).
    ///
    /// It is sent at most once, as the first event. A consumer that ends while it waits sends no
    /// [`TookOver`](Self::TookOver).
    #[non_exhaustive]
    Waiting {
        /// The name that is in use, as the progress gave it.
        consumer: &'a str,
        /// The status at that time. [`Status::blocked`] names the other one.
        status: &'a Status,
    },
    /// The consumer has the name that it [waited](crate::Builder::standby) for.
    ///
    /// It is sent before the first attempt, unless an observer is still busy with an earlier event.
    #[non_exhaustive]
    TookOver {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// How long it has waited.
        elapsed: Duration,
        /// The status at that time.
        status: &'a Status,
    },
    /// A failure stops the consumer. Sent at most once.
    #[non_exhaustive]
    Halted {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The index at which it failed.
        index: Index,
        /// The number of the attempt that failed, if it was a job that failed.
        attempt: Option<u32>,
        /// The failure, as in [`Blocked::Halted`](crate::Blocked::Halted).
        error: &'a str,
    },
    /// The consumer has ended, and everything that finished is saved. This is the last event,
    /// except that [`Halted`](Self::Halted) follows if
    /// [`on_processed`](crate::Builder::on_processed) panics in its last call.
    #[non_exhaustive]
    Ended {
        /// The name of the progress, or `unnamed`.
        consumer: &'a str,
        /// The last state: [`State::Finished`] or [`State::Halted`].
        state: State,
        /// The watermark.
        last_processed: Option<Index>,
        /// The report of the error that halted it.
        error: Option<&'a str>,
    },
}

impl Event<'_> {
    /// Returns the name of the progress of the consumer, or `unnamed`.
    #[must_use]
    pub fn consumer(&self) -> &str {
        match self {
            Self::AttemptBegun { consumer, .. }
            | Self::AttemptEnded { consumer, .. }
            | Self::Saved { consumer, .. }
            | Self::Stalled { consumer, .. }
            | Self::Measured { consumer, .. }
            | Self::Parked { consumer, .. }
            | Self::Waiting { consumer, .. }
            | Self::TookOver { consumer, .. }
            | Self::Halted { consumer, .. }
            | Self::Ended { consumer, .. } => consumer,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptOutcome<'a> {
    /// The attempt succeeded. A transactional job can still fail later, when its effects are
    /// written: see [`Effects::add`](crate::Effects::add).
    Done,
    /// The attempt failed: the user's code returned an error or panicked.
    #[non_exhaustive]
    Failed {
        /// The text of the error with its sources. For a panic it begins with `panicked: `.
        error: &'a str,
    },
    /// The job is not ready, so the attempt does not count: see
    /// [`Failure::defer`](crate::Failure::defer).
    Deferred,
    /// The batch of the job failed, and contained other jobs. That is no failed attempt: each of
    /// them runs alone next. See [`Builder::start_batched`](crate::Builder::start_batched).
    #[non_exhaustive]
    BatchFailed {
        /// The text of the error with its sources. For a panic it begins with `panicked: `.
        error: &'a str,
    },
}
