//! The hold on one running job.

use crate::engine::{Claimed, Edit, Held};
use crate::handle::Queue;
use crate::in_hand::{InHand, shows_its_job};
use crate::lease::hold::Hold;
use crate::lease::writes::LeaseWrites;
use crate::rules::ends::End;
use crate::types::data::JobData;
use crate::types::error::QueueError;
use crate::types::job::JobState;
use crate::types::json::from_json;
use crate::types::meta::check_key;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::time::SystemTime;
use waterline::seam::Changes;
use waterline::{BoxError, Effects, Error, seam};

mod hold;
pub(crate) mod writes;

/// The lease on a running job, from [`Queue::accept`].
///
/// Each call is one atomic write that checks the token of the lease: once the lease is over, it
/// fails with [`QueueError::Halt`], and nothing is written. A call that fails for another reason
/// leaves the lease as it was, so it can be repeated. A lease is over when its job has ended or was
/// removed, or when the worker was silent for [`QueueOptions::lease`](crate::QueueOptions::lease).
///
/// Dropping a lease fails the attempt: the job runs again after its back-off, or is dead if it has
/// no attempt left. So end each lease by one of its calls.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueError, QueueOptions};
///
/// let store = Store::in_memory();
/// let queue = Queue::open(&store, "imports", QueueOptions::default())?;
/// let totals = store.table("totals")?;
/// queue.push(NewJob::new("import", &[3, 4, 5])?)?;
///
/// let mut lease = queue.accept(Accept::new())?.expect("a job is ready");
/// let rows: Vec<i64> = lease.payload()?;
/// // The next attempt goes on where this one has left it.
/// let done = lease.data().and_then(|data| data.as_u64()).unwrap_or(0) as usize;
/// for (n, row) in rows.iter().enumerate().skip(done) {
///     if *row < 0 {
///         lease.retry("a row is negative")?;      // after the back-off, or dead
///         return Ok(());
///     }
///     lease.update(Some((n + 1).into()))?;             // a heartbeat, with data
/// }
/// // The writes and the end are one write: both happen, or neither.
/// lease.finish_with(|effects| effects.add(&totals, "rows", rows.len() as i64))?;
/// assert_eq!(totals.counter("rows")?, 3);
/// assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
/// # Ok::<(), QueueError>(())
/// ```
#[doc(alias = "heartbeat")]
#[must_use = "a lease that is dropped fails the attempt of its job"]
pub struct Lease {
    hold: Hold,
    payload: Vec<u8>,
    /// True if the claim did not reach its caller, so that its end counts for nothing.
    is_untaken: bool,
    /// True if a transaction of the caller's may have ended it.
    may_have_ended: bool,
}

shows_its_job!(Lease);

impl Lease {
    pub(super) fn new(queue: Queue, claimed: Claimed) -> Self {
        let Claimed { id, row, payload, .. } = claimed;
        Self { hold: Hold::new(InHand::new(queue, id, row)), payload, is_untaken: false, may_have_ended: false }
    }

    fn job(&self) -> &InHand {
        &self.hold.job
    }

    /// Returns the payload of the job.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if it does not fit the type.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, QueueError> {
        from_json(&self.payload).map_err(|source| QueueError::Payload { id: self.id().to_owned(), source })
    }

    /// Sets a value of the metadata of the job (`None` removes it), and renews the lease.
    ///
    /// # Errors
    /// The same as [`update`](Self::update), and [`QueueError::Config`] as for
    /// [`Queue::set_meta`](crate::Queue::set_meta).
    pub fn set_meta(&mut self, key: impl Into<String>, value: Option<Value>) -> Result<(), QueueError> {
        let key = key.into();
        check_key(&key)?;
        self.hold.edit(Edit::Meta(key, value), Changes::default())
    }

    /// Shows how far the job is, and renews the lease.
    ///
    /// # Errors
    /// The same as [`Running::progress`](crate::Running::progress).
    pub fn progress(&mut self, fraction: f64, note: impl AsRef<str>) -> Result<(), QueueError> {
        self.hold.show(fraction, note.as_ref())
    }

    /// Collects writes of yours for the next call on this lease: both happen, or neither.
    ///
    /// The closure runs at once. Its writes, up to 64 MiB, are made in one atomic write with the
    /// call on the returned [`LeaseWrites`]. If that call fails, nothing is written. The lease is
    /// then as it was, or it is over ([`QueueError::Halt`]).
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueError, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// let queue = Queue::open(&store, "imports", QueueOptions::default())?;
    /// let totals = store.table("totals")?;
    /// queue.push_all([NewJob::new("import", "a.csv")?, NewJob::new("import", "none.csv")?])?;
    ///
    /// let mut lease = queue.accept(Accept::new())?.expect("a job is ready");
    /// let rows = 3;
    /// lease.with(|effects| effects.add(&totals, "rows", rows))?.finish(&rows)?;
    ///
    /// let mut lease = queue.accept(Accept::new())?.expect("another one is");
    /// let state = lease
    ///     .with(|effects| {
    ///         effects.add(&totals, "lost files", 1)?;
    ///         queue.push_with(effects, NewJob::new("tell the owner", "none.csv")?).map(drop)
    ///     })?
    ///     .bury("there is no such file")?;
    /// assert_eq!(state, Some(JobState::Dead));
    /// assert_eq!((totals.counter("rows")?, totals.counter("lost files")?), (3, 1));
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The error of the closure, or of a refused change, as for
    /// [`Store::write`](waterline::Store::write). A queue that is not in a store takes no writes.
    pub fn with(
        &mut self,
        writes: impl FnOnce(&mut Effects) -> Result<(), Error>,
    ) -> Result<LeaseWrites<'_>, QueueError> {
        let mut effects = seam::new_effects(self.job().queue.engine.home());
        let answer = writes(&mut effects);
        let (changes, refused) = seam::finish_effects(effects);
        answer.and(refused)?;
        Ok(LeaseWrites::new(&mut self.hold, changes))
    }

    /// Returns the calls without writes.
    fn alone(&mut self) -> LeaseWrites<'_> {
        LeaseWrites::new(&mut self.hold, Changes::default())
    }

    /// Renews the lease, and replaces the data of the job if there is some.
    ///
    /// Without data nothing is written, and it costs next to nothing. Call it more often than each
    /// [`QueueOptions::lease`](crate::QueueOptions::lease).
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Payload`] for data that is not JSON
    /// or is nested too deeply to be read again, [`QueueError::Store`] when the database fails.
    #[doc(alias = "heartbeat")]
    pub fn update(&mut self, data: impl Into<JobData>) -> Result<(), QueueError> {
        self.alone().update(data)
    }

    /// Makes writes of yours in one batch with the check of the lease, and renews it.
    ///
    /// So a worker that has lost its job writes nothing. It is short for [`with`](Self::with) and
    /// `update(None)`.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over; otherwise the same as [`with`](Self::with).
    pub fn write(&mut self, writes: impl FnOnce(&mut Effects) -> Result<(), Error>) -> Result<(), QueueError> {
        self.with(writes)?.update(None)
    }

    /// Ends the job with success and this data; `None` keeps the data that it has.
    ///
    /// Returns the new state of the job: [`JobState::Finished`], or another one if it was pushed
    /// once more while it ran; `None` if nothing of it is kept.
    ///
    /// # Errors
    /// The same as [`update`](Self::update).
    pub fn finish(&mut self, data: impl Into<JobData>) -> Result<Option<JobState>, QueueError> {
        self.alone().finish(data)
    }

    /// Ends the job with success, together with writes of yours: both happen, or neither.
    ///
    /// Returns the state of the job after both: one of the writes may push it anew. It is short for
    /// [`with`](Self::with) and `finish(None)`.
    ///
    /// # Errors
    /// The same as [`write`](Self::write).
    pub fn finish_with(
        &mut self,
        writes: impl FnOnce(&mut Effects) -> Result<(), Error>,
    ) -> Result<Option<JobState>, QueueError> {
        self.with(writes)?.finish(None)
    }

    /// Ends the attempt as failed.
    ///
    /// The job runs again after a back-off, or is dead: its [`Retry`](waterline::Retry) decides.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Store`] when the database fails.
    pub fn retry(&mut self, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().retry(error)
    }

    /// Ends the attempt as failed, and sets the time of the next one.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999; otherwise the same as
    /// [`retry`](Self::retry).
    pub fn retry_at(&mut self, time: SystemTime, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().retry_at(time, error)
    }

    /// Ends the attempt without counting it: the job was not ready, and runs again at this time.
    ///
    /// # Errors
    /// The same as [`retry_at`](Self::retry_at).
    pub fn snooze(&mut self, until: SystemTime) -> Result<Option<JobState>, QueueError> {
        self.alone().snooze(until)
    }

    /// Ends the job as failed for good: it is dead, whatever its `Retry` says.
    ///
    /// # Errors
    /// The same as [`retry`](Self::retry).
    pub fn bury(&mut self, reason: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().bury(reason)
    }

    /// Makes the job run once more, at this time (`None`: at once), when this run has succeeded.
    ///
    /// # Errors
    /// The same as [`retry_at`](Self::retry_at).
    pub fn resubmit(&mut self, run_at: Option<SystemTime>) -> Result<(), QueueError> {
        self.alone().resubmit(run_at)
    }

    /// Returns the queue, and the job with the token of the lease.
    pub(crate) fn parts(&self) -> (&Queue, Held) {
        (&self.job().queue, self.job().held())
    }

    /// Notes that a transaction, which may or may not be committed, ends the job.
    pub(crate) fn note_end_in_transaction(&mut self) {
        self.may_have_ended = true;
    }

    /// Ends the job with success by a call of the engine's own. It answers with the state of the
    /// job; `None`: the lease had ended.
    pub(crate) fn finish_by(
        &mut self,
        call: impl FnOnce(&Queue, &Held) -> Result<Option<Option<JobState>>, QueueError>,
    ) -> Result<Option<JobState>, QueueError> {
        self.hold.end_by(&End::Finished, |job| call(&job.queue, &job.held()))
    }

    /// Loses the lease without giving the job back, as a dying process does.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn lose(mut self) {
        self.hold.ended = true;
    }

    /// Lets the process renew the lease, as a runner does. Returns false if it is over.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn keep(&self) -> bool {
        self.job().queue.engine.renew(&self.job().held(), None)
    }

    /// Makes its drop give the job back as if it had not been claimed.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_untaken(&mut self) {
        self.is_untaken = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.hold.ended {
            return;
        }
        let given_back = if self.may_have_ended {
            self.hold.fail_if_held("the transaction of its end was not committed")
        } else if self.is_untaken {
            self.hold.put_back().or_else(|_| self.hold.put_back())
        } else {
            self.retry("its lease was dropped before the job had ended")
        };
        match given_back {
            Ok(_) | Err(QueueError::Halt { .. }) => {}
            Err(error) => {
                let (queue, id) = (self.job().queue.name(), self.id());
                let after = self.job().queue.shared.options.lease;
                tracing::error!(
                    target: "waterline",
                    queue,
                    id,
                    error = error.report(),
                    "a lease was dropped, and the job cannot be given back; it is taken back after {after:?}"
                );
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lease = f.debug_struct("Lease");
        lease
            .field("id", &self.id())
            .field("kind", &self.kind())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
