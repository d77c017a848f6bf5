//! The hold on one running job.

use crate::base::config::DEFAULT_EFFECTS;
use crate::base::error::{Error, describe};
use crate::base::index::BoxError;
use crate::commit::changes::Changes;
use crate::effects::Effects;
use crate::queue::engine::{Beside, Claimed, Edit, Ending};
use crate::queue::handle::Queue;
use crate::queue::in_hand::{InHand, shows_its_job};
use crate::queue::rules::ends::End;
use crate::queue::words::ended::AttemptEnd;
use crate::queue::words::error::QueueError;
use crate::queue::words::job::{JobState, millis};
use crate::queue::words::json::{from_json, to_json};
use crate::queue::words::meta::check_key;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::time::SystemTime;

/// The hold on a running job, from [`Queue::accept`].
///
/// Each call is one atomic write, and is checked by the token of the lease: once the lease is over,
/// it is [`QueueError::Halt`], and nothing is written. A call that fails for another reason leaves
/// the lease as it was, so it can be tried again. A lease is over when its job has ended, was
/// removed, or when the worker was silent for
/// [`QueueOptions::lease`](crate::queue::QueueOptions::lease).
///
/// A lease that is dropped fails the attempt: the job runs again after its back-off, or is dead if
/// it has no attempt left. So end each lease by one of its calls.
///
/// ```
/// use waterline::Store;
/// use waterline::queue::{Accept, JobState, NewJob, Queue, QueueError, QueueOptions};
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
#[must_use = "a lease that is dropped fails the attempt of its job"]
pub struct Lease {
    job: InHand,
    payload: Vec<u8>,
    ended: bool,
}

shows_its_job!(Lease);

impl Lease {
    pub(super) fn new(queue: Queue, claimed: Claimed) -> Self {
        let Claimed { id, row, payload, .. } = claimed;
        let lease = Self { job: InHand::new(queue, id, row), payload, ended: false };
        lease.prolong();
        lease
    }

    fn job(&self) -> &InHand {
        &self.job
    }

    fn prolong(&self) -> bool {
        let queue = &self.job.queue;
        queue.engine.renew(&self.job.held(), Some(queue.shared.options.lease))
    }

    /// Returns the payload of the job.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if it does not fit the type.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, QueueError> {
        from_json(&self.payload).map_err(|source| QueueError::Payload { id: self.job.id.clone(), source })
    }

    /// Sets a value of the metadata of the job; `None` takes it away. It renews the lease too.
    ///
    /// # Errors
    /// Those of [`update`](Self::update), and [`QueueError::Config`] as
    /// [`Queue::set_meta`](crate::queue::Queue::set_meta) says.
    pub fn set_meta(&mut self, key: impl Into<String>, value: Option<Value>) -> Result<(), QueueError> {
        let key = key.into();
        check_key(&key)?;
        self.edit(Edit::Meta(key, value))
    }

    /// Shows how far the job is, as [`Running::progress`](crate::queue::Running::progress) does. It
    /// renews the lease too.
    ///
    /// # Errors
    /// Those of that call.
    pub fn progress(&mut self, fraction: f64, note: impl AsRef<str>) -> Result<(), QueueError> {
        if self.ended {
            return Err(self.job.halt());
        }
        self.job.show(fraction, note.as_ref())?;
        self.renewed()
    }

    /// Renews the lease, and replaces the data of the job if there is some. Without data nothing is
    /// written, and it costs next to nothing. Call it more often than each
    /// [`QueueOptions::lease`](crate::queue::QueueOptions::lease).
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Payload`] for data that is nested
    /// too deep to be read again, [`QueueError::Store`] when the database fails.
    pub fn update(&mut self, data: Option<Value>) -> Result<(), QueueError> {
        let data = self.json(data)?;
        self.edit(data.map_or(Edit::Nothing, Edit::Data))
    }

    /// Makes writes of yours in one batch with the check of the lease: a worker that has lost its
    /// job writes nothing. It renews the lease too. The writes may have 64 MiB.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over; otherwise those of
    /// [`Store::write`](crate::Store::write).
    pub fn write(&mut self, writes: impl FnOnce(&mut Effects) -> Result<(), Error>) -> Result<(), QueueError> {
        let effects = self.asked(writes)?;
        self.held_by(|job| match job.queue.embedded() {
            Some(embedded) => embedded.write_with(&job.held(), effects).map(|row| job.note(&row)),
            None => job.edit(Edit::Nothing),
        })?;
        self.renewed()
    }

    /// Ends the job with success, and leaves this data; `None`: that which it has. Returns the
    /// state that the job has then: [`JobState::Finished`], or another one if it was pushed once
    /// more while it ran; `None` if nothing of it is kept.
    ///
    /// # Errors
    /// Those of [`update`](Self::update).
    pub fn finish(&mut self, data: Option<Value>) -> Result<Option<JobState>, QueueError> {
        self.end(End::Finished, self.json(data)?, Changes::default())
    }

    /// Ends the job with success, together with writes of yours: both happen, or neither. Returns
    /// the state that the job has after both: one of the writes may push it anew.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn finish_with(
        &mut self,
        writes: impl FnOnce(&mut Effects) -> Result<(), Error>,
    ) -> Result<Option<JobState>, QueueError> {
        let effects = self.asked(writes)?;
        self.end(End::Finished, None, effects)
    }

    /// Ends the attempt as failed. The job runs again after the back-off of its
    /// [`Retry`](crate::Retry), or is dead if that was its last attempt.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over, [`QueueError::Store`] when the database fails.
    pub fn retry(&mut self, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.end(End::Failed { error: describe(&*error.into()), at: None }, None, Changes::default())
    }

    /// The same, with the time of the next attempt.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999; otherwise those of
    /// [`retry`](Self::retry).
    pub fn retry_at(&mut self, time: SystemTime, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        let at = Some(millis(time)?);
        self.end(End::Failed { error: describe(&*error.into()), at }, None, Changes::default())
    }

    /// Ends the attempt without counting it: the job was not ready, and runs again at this time.
    ///
    /// # Errors
    /// Those of [`retry_at`](Self::retry_at).
    pub fn snooze(&mut self, until: SystemTime) -> Result<Option<JobState>, QueueError> {
        self.end(End::Snoozed { at: millis(until)? }, None, Changes::default())
    }

    /// Ends the job as failed for good: it is dead, whatever its `Retry` says.
    ///
    /// # Errors
    /// Those of [`retry`](Self::retry).
    pub fn bury(&mut self, reason: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.end(End::Buried { reason: describe(&*reason.into()) }, None, Changes::default())
    }

    /// Makes the job run once more, at this time (`None`: at once), when this run has succeeded.
    ///
    /// # Errors
    /// Those of [`retry_at`](Self::retry_at).
    pub fn resubmit(&mut self, run_at: Option<SystemTime>) -> Result<(), QueueError> {
        let due = run_at.map_or(Ok(0), millis)?;
        self.edit(Edit::Resubmit(due))
    }

    fn asked(&self, writes: impl FnOnce(&mut Effects) -> Result<(), Error>) -> Result<Changes, QueueError> {
        let mut effects = Effects::new(Changes::default(), self.job.queue.engine.address(), DEFAULT_EFFECTS);
        let answer = writes(&mut effects);
        let (changes, refused) = effects.finish();
        answer.and(refused)?;
        Ok(changes)
    }

    fn json(&self, data: Option<Value>) -> Result<Option<Vec<u8>>, QueueError> {
        data.map(|data| to_json(self.id(), &data)).transpose()
    }

    /// Ends the attempt.
    fn end(&mut self, end: End, data: Option<Vec<u8>>, effects: Changes) -> Result<Option<JobState>, QueueError> {
        let ending = Ending { job: self.job.held(), end: end.clone(), data, durations: None };
        let ends = std::slice::from_ref(&ending);
        let state = self.held_by(|job| {
            let turned = match job.queue.embedded() {
                Some(embedded) => embedded.turn_with(ends, None, Beside::Alone, effects)?,
                None => job.queue.engine.turn(ends, None, Beside::Alone)?,
            };
            turned.ended.into_iter().next().flatten().ok_or_else(|| job.halt())
        })?;
        self.ended = true;
        self.log(&AttemptEnd::of(&end, state));
        Ok(state)
    }

    /// Changes the job, and prolongs the lease.
    fn edit(&mut self, edit: Edit) -> Result<(), QueueError> {
        self.held_by(|job| job.edit(edit))?;
        self.renewed()
    }

    /// Makes a call if the lease holds.
    fn held_by<R>(&mut self, call: impl FnOnce(&InHand) -> Result<R, QueueError>) -> Result<R, QueueError> {
        let answer = if self.ended || !self.job.holds() {
            if !self.ended {
                // The silence may have ended it before anybody has looked.
                self.job.queue.catch_up();
            }
            Err(self.job.halt())
        } else {
            call(&self.job)
        };
        if matches!(answer, Err(QueueError::Halt { .. })) && !std::mem::replace(&mut self.ended, true) {
            self.log(&AttemptEnd::Lost);
        }
        answer
    }

    /// Gives the job back as if it had not been claimed.
    #[cfg(feature = "tokio")]
    pub(super) fn put_back(&mut self) -> Result<(), QueueError> {
        let end = End::PutBack { error: "nobody took it from its claim".to_owned() };
        self.end(end, None, Changes::default()).map(drop)
    }

    fn log(&self, ended: &AttemptEnd) {
        self.job.queue.shared.log_end((self.id(), self.kind(), self.attempt()), ended);
    }

    fn renewed(&self) -> Result<(), QueueError> {
        if self.prolong() { Ok(()) } else { Err(self.job.halt()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        match self.retry("its lease was dropped before the job had ended") {
            Ok(_) | Err(QueueError::Halt { .. }) => {}
            Err(error) => {
                let (queue, id) = (self.job.queue.name(), self.id());
                let after = self.job.queue.shared.options.lease;
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
