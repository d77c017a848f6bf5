//! The hold on one running job.

use crate::engine::{Claimed, Edit, Held};
use crate::handle::Queue;
use crate::in_hand::{InHand, shows_its_job};
use crate::lease::hold::Hold;
use crate::lease::writes::LeaseWrites;
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

/// The hold on a running job, from [`Queue::accept`].
///
/// Each call is one atomic write, and is checked by the token of the lease: once the lease is over,
/// it is [`QueueError::Halt`], and nothing is written. A call that fails for another reason leaves
/// the lease as it was, so it can be tried again. A lease is over when its job has ended, was
/// removed, or when the worker was silent for
/// [`QueueOptions::lease`](crate::QueueOptions::lease).
///
/// A lease that is dropped fails the attempt: the job runs again after its back-off, or is dead if
/// it has no attempt left. So end each lease by one of its calls.
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
    /// True if nobody has taken it from its claim, so that its end counts for nothing.
    is_untaken: bool,
    /// True if a transaction of the user's may have ended it.
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

    /// Sets a value of the metadata of the job; `None` takes it away. It renews the lease too.
    ///
    /// # Errors
    /// Those of [`update`](Self::update), and [`QueueError::Config`] as
    /// [`Queue::set_meta`](crate::Queue::set_meta) says.
    pub fn set_meta(&mut self, key: impl Into<String>, value: Option<Value>) -> Result<(), QueueError> {
        let key = key.into();
        check_key(&key)?;
        self.hold.edit(Edit::Meta(key, value), Changes::default())
    }

    /// Shows how far the job is, as [`Running::progress`](crate::Running::progress) does. It
    /// renews the lease too.
    ///
    /// # Errors
    /// Those of that call.
    pub fn progress(&mut self, fraction: f64, note: impl AsRef<str>) -> Result<(), QueueError> {
        self.hold.show(fraction, note.as_ref())
    }

    /// Takes writes of yours for the next call on this lease: the writes and that call are one
    /// atomic write, and both happen or neither. The writes may have 64 MiB.
    ///
    /// The closure runs at once. Its writes are made by the call on the answer, which may be any of
    /// [`LeaseWrites`]. If that call fails, nothing is written. The lease is then as it was,
    /// or it is over ([`QueueError::Halt`]).
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
    /// The error of the closure, or of a change that was refused it: those of
    /// [`Store::write`](waterline::Store::write). A queue that is in no store takes no writes.
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

    /// Returns the calls that come without writes.
    fn alone(&mut self) -> LeaseWrites<'_> {
        LeaseWrites::new(&mut self.hold, Changes::default())
    }

    /// Renews the lease, and replaces the data of the job if there is some. Without data nothing is
    /// written, and it costs next to nothing. Call it more often than each
    /// [`QueueOptions::lease`](crate::QueueOptions::lease).
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Payload`] for data that is no JSON
    /// or is nested too deep to be read again, [`QueueError::Store`] when the database fails.
    #[doc(alias = "heartbeat")]
    pub fn update(&mut self, data: impl Into<JobData>) -> Result<(), QueueError> {
        self.alone().update(data)
    }

    /// Makes writes of yours in one batch with the check of the lease: a worker that has lost its
    /// job writes nothing. It renews the lease too. It is short for [`with`](Self::with) and
    /// `update(None)`.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over; otherwise those of [`with`](Self::with).
    pub fn write(&mut self, writes: impl FnOnce(&mut Effects) -> Result<(), Error>) -> Result<(), QueueError> {
        self.with(writes)?.update(None)
    }

    /// Ends the job with success, and leaves this data; `None`: that which it has. Returns the
    /// state that the job has then: [`JobState::Finished`], or another one if it was pushed once
    /// more while it ran; `None` if nothing of it is kept.
    ///
    /// # Errors
    /// Those of [`update`](Self::update).
    pub fn finish(&mut self, data: impl Into<JobData>) -> Result<Option<JobState>, QueueError> {
        self.alone().finish(data)
    }

    /// Ends the job with success, together with writes of yours: both happen, or neither. Returns
    /// the state that the job has after both: one of the writes may push it anew. It is short for
    /// [`with`](Self::with) and `finish(None)`.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn finish_with(
        &mut self,
        writes: impl FnOnce(&mut Effects) -> Result<(), Error>,
    ) -> Result<Option<JobState>, QueueError> {
        self.with(writes)?.finish(None)
    }

    /// Ends the attempt as failed. The job runs again after the back-off of its
    /// [`Retry`](waterline::Retry), or is dead if that was its last attempt.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Store`] when the database fails.
    pub fn retry(&mut self, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().retry(error)
    }

    /// The same, with the time of the next attempt.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999; otherwise those of
    /// [`retry`](Self::retry).
    pub fn retry_at(&mut self, time: SystemTime, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().retry_at(time, error)
    }

    /// Ends the attempt without counting it: the job was not ready, and runs again at this time.
    ///
    /// # Errors
    /// Those of [`retry_at`](Self::retry_at).
    pub fn snooze(&mut self, until: SystemTime) -> Result<Option<JobState>, QueueError> {
        self.alone().snooze(until)
    }

    /// Ends the job as failed for good: it is dead, whatever its `Retry` says.
    ///
    /// # Errors
    /// Those of [`retry`](Self::retry).
    pub fn bury(&mut self, reason: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.alone().bury(reason)
    }

    /// Makes the job run once more, at this time (`None`: at once), when this run has succeeded.
    ///
    /// # Errors
    /// Those of [`retry_at`](Self::retry_at).
    pub fn resubmit(&mut self, run_at: Option<SystemTime>) -> Result<(), QueueError> {
        self.alone().resubmit(run_at)
    }

    /// Returns its queue, and the job with the token of the lease.
    pub(crate) fn parts(&self) -> (&Queue, Held) {
        (&self.job().queue, self.job().held())
    }

    /// Notes that its end is among the statements of a transaction, which may be committed or not.
    pub(crate) fn note_end_in_transaction(&mut self) {
        self.may_have_ended = true;
    }

    /// Loses it without giving the job back, as a process does that dies.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn lose(mut self) {
        self.hold.ended = true;
    }

    /// Lets the process renew it, as a runner does with its jobs. Returns false if it is over.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn keep(&self) -> bool {
        self.job().queue.engine.renew(&self.job().held(), None)
    }

    /// Makes its drop give the job back as if nobody had claimed it.
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
