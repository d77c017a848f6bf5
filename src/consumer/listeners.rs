//! Settings for code that listens to a consumer: observers, metrics and stall alarms.

use super::builder::Builder;
use crate::observe::{events::Observer, status::Status};
use crate::progress::Progress;
use crate::source::Jobs;
use std::time::Duration;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Adds an observer, which hears each [`Event`](crate::Event) of this consumer.
    ///
    /// Events are attempts that begin and end, saves, stalls, and the end. Each call adds one more
    /// observer. Default: none, and then nothing is measured for them.
    ///
    /// No lock is held during a call, so an observer may call the [`Handle`](crate::Handle) and the
    /// [`Store`](crate::Store). Events of attempts come on the thread of the attempt, so a slow
    /// observer slows the jobs down. A panic in an observer is logged, at most once a second, and
    /// changes nothing else. The observers are dropped once the consumer has ended, before
    /// [`Consumer::join`](crate::Consumer::join) returns.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::sync::Arc;
    /// use waterline::{AttemptOutcome, Consumer, Event, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let failures = Arc::new(AtomicU64::new(0));
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .retry(Retry::fixed(std::time::Duration::ZERO))
    ///     .stop_at(2)
    ///     .observe({
    ///         let failures = failures.clone();
    ///         move |event: &Event<'_>| {
    ///             if let Event::AttemptEnded { outcome: AttemptOutcome::Failed { .. }, .. } = event {
    ///                 failures.fetch_add(1, Ordering::Relaxed);
    ///             }
    ///         }
    ///     })
    ///     .start(|job| if job.attempt == 1 { Err("not yet".into()) } else { Ok(()) })?
    ///     .join()?;
    /// assert_eq!(failures.load(Ordering::Relaxed), 3);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Reports metrics to the recorder of the crate [`metrics`](https://docs.rs/metrics).
    ///
    /// The recorder may export them to Prometheus and others. Install it before the start, which
    /// registers all metrics. Default: no metrics, since each attempt pays for them. Needs the
    /// feature `metrics`.
    ///
    /// | metric | kind | value |
    /// |---|---|---|
    /// | `waterline_up` | gauge | 1 while the consumer runs, 0 once it has halted or ended |
    /// | `waterline_head` | gauge | the highest index that the source has, or -1 |
    /// | `waterline_watermark` | gauge | the saved index up to which every job is processed, or -1 |
    /// | `waterline_lag_jobs` | gauge | [`Status::lag`] in jobs |
    /// | `waterline_lag_seconds` | gauge | the lag of [`Event::Measured`] in seconds |
    /// | `waterline_in_flight` | gauge | the jobs that were handed to a worker and not reported |
    /// | `waterline_done_ahead` | gauge | the jobs that finished above the watermark |
    /// | `waterline_behind` | gauge | the jobs that wait for an earlier one of their key |
    /// | `waterline_parked` | gauge | the jobs that are parked, with those of earlier lives |
    /// | `waterline_verdict` | gauge | 0 if it goes well, 1 if it waits, 2 if it [needs you](crate::Verdict), by the label `on`: `movement` (what the watermark waits for) and `parked` |
    /// | `waterline_attempts_total` | counter | the attempts that began |
    /// | `waterline_failures_total` | counter | the attempts that failed |
    /// | `waterline_deferrals_total` | counter | the attempts that ended with [`AttemptOutcome::Deferred`] |
    /// | `waterline_retries_total` | counter | the attempts that were not the first of their job |
    /// | `waterline_saves_total` | counter | the saves of the progress that succeeded |
    /// | `waterline_stalls_total` | counter | the events [`Event::Stalled`]: the watermark does not move, though there is work |
    /// | `waterline_attempt_seconds` | histogram | the duration of each attempt, in seconds |
    /// | `waterline_save_seconds` | histogram | the duration of each save, in seconds |
    ///
    /// The label `consumer` is the name of the progress, or `unnamed`. Consumers that run at the
    /// same time need names of their own, or they overwrite each other's gauges. [`Event`] says how
    /// durations are measured.
    ///
    /// The gauges are set about once a second while anything moves, and when the consumer has
    /// caught up or ends. In between nothing changes, so they are correct in an idle consumer too.
    ///
    /// A recorder forgets no gauge. So when a consumer ends, `waterline_up` and
    /// `waterline_in_flight` become 0, and the other gauges stay where it ended: the source is no
    /// longer watched, so alert on `waterline_up` too. The next consumer of the same name sets all
    /// of them before it is up, and the counters go on.
    ///
    /// The dashboard `examples/grafana.json` expects that the recorder exports histograms with
    /// buckets. Some export quantiles by default.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// Consumer::builder(jobs, MemoryProgress::new()).stop_at(2).metrics().start(|_| Ok(()))?.join()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// [`Event`]: crate::Event
    /// [`Event::Measured`]: crate::Event::Measured
    /// [`Event::Stalled`]: crate::Event::Stalled
    /// [`AttemptOutcome::Deferred`]: crate::AttemptOutcome::Deferred
    /// [`Status::lag`]: crate::Status::lag
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.metrics = true;
        self
    }

    /// Calls this closure when the watermark has not moved for this long, though there is work.
    ///
    /// It is called once for each stall; [`Status::blocked`](crate::Status::blocked) names the
    /// cause. Each call of `on_stall` adds one more closure, with a time of its own. A time of zero
    /// is refused. Default: none; a stall is logged after ten seconds.
    ///
    /// A status names a source or a store that has not answered for a second, or for the shortest
    /// time here if that is less.
    ///
    /// The time of a stall begins when the watermark moves, when a consumer that had caught up sees
    /// a new job, when its gate opens, and when it is resumed. A consumer that has caught up or is
    /// paused does not stall. The closure is called on a thread of the consumer, where it holds up
    /// only lines of the log. It may call the [`Handle`](crate::Handle). A panic in it is logged
    /// and changes nothing else.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let (alert, alerts) = crossbeam_channel::unbounded();
    /// let (end, ended) = crossbeam_channel::bounded(0);
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .on_stall(Duration::from_millis(20), move |status| _ = alert.send(status.blocked.to_string()))
    ///     .start(move |_| Ok(ended.recv()?))?;
    /// assert!(alerts.recv()?.starts_with("job 0 has been running for "));
    /// end.send(())?;
    /// consumer.stop()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_stall(mut self, after: Duration, callback: impl Fn(&Status) + Send + Sync + 'static) -> Self {
        self.on_stall.push((after, Box::new(callback)));
        self
    }
}
