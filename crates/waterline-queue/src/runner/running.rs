//! A running job, as its handler sees it.

use crate::engine::{Claimed, Edit, Held};
use crate::handle::Queue;
use crate::in_hand::{InHand, shows_its_job};
use crate::types::data::JobData;
use crate::types::error::QueueError;
use crate::types::meta::check_key;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use waterline::seam::{ClockExt, Home};

/// A running job, as its handler sees it. A clone is the same job.
///
/// Its lease is renewed for as long as the job runs. A long job leaves data for its next attempt,
/// and ends early when it is asked to:
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
/// queue.push(NewJob::new("rows", &300)?)?;
/// let summary = Runner::builder(&queue)
///     .on("rows", |job, rows: u64| {
///         let done = job.data().and_then(|data| data.as_u64()).unwrap_or(0);
///         for row in done..rows {
///             if job.is_stopping() {
///                 return Err("cut short".into());
///             }
///             if row % 100 == 0 {
///                 job.update(&row)?;      // `Halt` if the job was removed meanwhile
///             }
///         }
///         Ok(Outcome::Done)
///     })
///     .drain(DrainLimits::default())?;
/// assert_eq!(summary.finished, 1);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone)]
pub struct Running(Arc<RunningInner>);

shows_its_job!(Running);

/// The next job of a thread, and its payload.
pub(super) type NextJob = (Running, Vec<u8>);

/// Identifies a run: the number of its queue, and the token of its lease.
pub(super) type FlightId = (u32, u64);

struct RunningInner {
    job: InHand,
    /// The time of the claim.
    begun: Instant,
    /// True if the runner is stopping.
    stopping: Arc<AtomicBool>,
    /// True if this attempt is to end.
    overdue: AtomicBool,
}

impl Running {
    pub(super) fn new(queue: &Queue, claimed: Claimed, stopping: &Arc<AtomicBool>) -> (Self, Vec<u8>) {
        let Claimed { id, row, payload, .. } = claimed;
        let inner = RunningInner {
            job: InHand::new(queue.clone(), id, row),
            begun: queue.clock().now(),
            stopping: stopping.clone(),
            overdue: AtomicBool::new(false),
        };
        (Self(Arc::new(inner)), payload)
    }

    pub(super) fn job(&self) -> &InHand {
        &self.0.job
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.job().queue
    }

    /// Returns the id of its run within the runner.
    pub(super) fn flight(&self) -> FlightId {
        (self.queue().number, self.token())
    }

    pub(super) fn queue_name(&self) -> &str {
        self.queue().name()
    }

    /// Returns the job and the token of the lease.
    pub(super) fn held(&self) -> Held {
        self.job().held()
    }

    /// Returns its queue, and the job with the token of the lease.
    pub(crate) fn parts(&self) -> (&Queue, Held) {
        (self.queue(), self.held())
    }

    pub(super) fn begun(&self) -> Instant {
        self.0.begun
    }

    pub(super) fn token(&self) -> u64 {
        self.job().row.place
    }

    /// True if the job is asked to end: the runner is stopping, the time of the attempt is over, or
    /// the job was removed or taken back.
    ///
    /// The handler then returns an error. While the runner is stopping that attempt does not count,
    /// and the job is ready when the program starts again. If the job is lost, the result of the
    /// handler is ignored ([`check`](Self::check) tells the difference).
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Relaxed) || self.0.overdue.load(Ordering::Relaxed)
    }

    pub(super) fn ask_to_end(&self) {
        self.0.overdue.store(true, Ordering::Relaxed);
    }

    /// Replaces the data of the job, for the next attempt and [`Queue::get`]. `None` keeps it.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the job was removed, [`QueueError::Payload`] for data that is not
    /// JSON, [`QueueError::Store`] when the database fails.
    pub fn update(&self, data: impl Into<JobData>) -> Result<(), QueueError> {
        let data = data.into().json(self.id(), &self.job().queue.shared.options)?;
        self.check()?;
        data.map_or(Ok(()), |data| self.job().edit(Edit::Data(data)))
    }

    /// Sets a value of the metadata of the job; `None` removes it. It is one atomic write.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the job was removed; otherwise the same as
    /// [`Queue::set_meta`](crate::Queue::set_meta).
    pub fn set_meta(&self, key: impl Into<String>, value: Option<serde_json::Value>) -> Result<(), QueueError> {
        let key = key.into();
        check_key(&key)?;
        self.check()?;
        self.job().edit(Edit::Meta(key, value))
    }

    /// Shows how far the job is: a fraction from 0 to 1, and a note of 0 to 1,024 bytes.
    /// [`Queue::get`], [`Queue::list`] and a [`Subscription`](crate::Subscription) show it.
    ///
    /// Call it as often as you like. Each call is visible in this process at once. The store gets
    /// the first one of an attempt, one each half second, and the last one with the end of the
    /// attempt. So after a failure the next attempt ([`last_progress`](Self::last_progress)) and an
    /// operator see how far this one came; after a crash, how far it was half a second before. A
    /// job that starts anew, since it was pushed or requeued, has none.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("import", &["a", "b", "c"])?)?.id;
    /// Runner::builder(&queue)
    ///     .on("import", |job, rows: Vec<String>| {
    ///         for (n, row) in rows.iter().enumerate() {
    ///             job.progress(n as f64 / rows.len() as f64, row)?;
    ///         }
    ///         job.progress(1.0, "")?;
    ///         Ok(Outcome::Done)
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// let progress = queue.get(&id)?.expect("it is kept").progress.expect("it has shown some");
    /// assert_eq!(progress.fraction, 1.0);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] for a fraction below 0, above 1 or that is NaN, and for a note that
    /// is too long; [`QueueError::Halt`] if the job was removed, or the runner has given it up;
    /// [`QueueError::Store`] when the database fails: it is visible in this process all the same,
    /// and the next call writes it.
    pub fn progress(&self, fraction: f64, note: impl AsRef<str>) -> Result<(), QueueError> {
        self.job().show(fraction, note.as_ref())
    }

    /// Returns an error if the job is no longer this worker's, without reading the store.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the job was removed, or the runner has given it up.
    pub fn check(&self) -> Result<(), QueueError> {
        if self.job().holds() { Ok(()) } else { Err(self.job().halt()) }
    }

    pub(super) fn home(&self) -> Home {
        self.queue().engine.home()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut running = f.debug_struct("Running");
        running.field("id", &self.id()).field("kind", &self.kind()).field("attempt", &self.attempt());
        running.finish_non_exhaustive()
    }
}
