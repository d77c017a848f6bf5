//! Pushing within an atomic write of the user's.

use super::new_job::NewJob;
use super::related::OnDead;
use super::row::Row;
use super::step::Push;
use super::unique::Clash;
use super::{Group, Queue};
use crate::base::error::Error;
use crate::effects::Effects;
#[cfg(doc)]
use crate::queue::error::QueueError;
use crate::queue::job::JobId;

impl Effects {
    /// Pushes a job into a queue of the same store, in this atomic write, and returns its id. So a
    /// stream enqueues exactly once, and a finished job enqueues the next one together with its own
    /// end.
    ///
    /// It follows the rules of [`Queue::push`]. Only the write shows if a job of this id is there
    /// already. And only the write shows if the queue refuses the job, since one that it is to run
    /// [`after`](NewJob::after) never was ([`QueueError::NotFound`]), waits for it
    /// ([`QueueError::Cycle`]), or since it runs by now ([`QueueError::AlreadyRuns`]):
    ///
    /// * The attempt of a job of a stream or of a [`Runner`](crate::queue::Runner) has failed, with
    ///   this error, and nothing of it is done. It is tried again as after any other failure, since
    ///   the next attempt may find the other job. Each other job of the same save is in.
    /// * [`Lease::finish_with`](crate::queue::Lease::finish_with) and
    ///   [`Store::write`](crate::Store::write) fail with it, and nothing of the write is done.
    ///
    /// Pushes of one save, or of one write, that wait for each other are made in an order that
    /// works, whatever the order of the calls.
    ///
    /// And only the write shows if the queue is full
    /// ([`QueueOptions::max_waiting`](crate::queue::QueueOptions::max_waiting)). Then nothing of
    /// the write is made, and nothing is lost:
    ///
    /// * A stream tries to save again, with a pause of up to 5 s, until there is room. Meanwhile
    ///   its window fills and it reads no more, and its status says why.
    /// * A job of a [`Runner`](crate::queue::Runner) is snoozed for a second, so that its slot is
    ///   free for the jobs that make room. The attempt does not count.
    /// * [`Lease::finish_with`](crate::queue::Lease::finish_with) and
    ///   [`Store::write`](crate::Store::write) fail, with [`QueueError::Full`] as their error or
    ///   its source.
    ///
    /// Such a write may push any number of jobs if there was room for one before it, so more may
    /// wait then by as many as one batch has. Otherwise a stream whose jobs push more than may ever
    /// wait would stand still for good.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    /// use waterline::queue::{NewJob, Queue, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// let queue = Queue::open(&store, "mail", QueueOptions::default())?;
    /// let orders: MemoryJobs<_> = (0..3u64).collect();
    /// Consumer::builder(orders, store.progress("orders"))
    ///     .stop_at(2)
    ///     .start_transactional({
    ///         let queue = queue.clone();
    ///         move |order, effects| {
    ///             effects.enqueue(&queue, NewJob::new("confirm", &order.payload)?)?;
    ///             Ok(())
    ///         }
    ///     })?
    ///     .join()?;
    /// assert_eq!(queue.counts().ready, 3);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a job that no queue takes and for a queue of another store,
    /// [`Error::ReadOnly`] for a read-only queue, and [`Error::EffectsTooLarge`] as those of
    /// [`put`](Self::put). [`Error::Queue`] with [`QueueError::Refused`] as its source for a job
    /// that the hook of the queue refuses: the closure may go on without that job.
    pub fn enqueue(&mut self, queue: &Queue, job: NewJob) -> Result<JobId, Error> {
        // A job that the hook refuses changes nothing, so the closure may go on without it.
        queue.ask_before_push(&job)?;
        let push = match queue.prepare(job) {
            Ok(push) => push,
            Err(config) => return Err(self.refuse_config(config)),
        };
        self.enqueue_pushes(queue, std::slice::from_ref(&push))?;
        Ok(push.id)
    }

    fn enqueue_pushes(&mut self, queue: &Queue, pushes: &[Push]) -> Result<(), Error> {
        let op = encode_pushes(pushes);
        self.admit(queue.store(), "queue", &queue.inner().name, op.len())?;
        self.changes.refusable_op(queue.inner().clone(), op);
        Ok(())
    }

    /// Pushes a batch of jobs and the one that runs when all of them have ended, in this atomic
    /// write, and returns the id of that one. See [`Queue::push_batch`].
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "books", QueueOptions::default())?;
    /// queue.push(NewJob::new("split", &3)?)?;
    /// let pages = queue.clone();
    /// Runner::builder(&queue)
    ///     .on_transactional("split", move |_job, count: u32, effects| {
    ///         let all = (1..=count).map(|page| NewJob::new("page", &page)).collect::<Result<Vec<_>, _>>()?;
    ///         effects.enqueue_batch(&pages, all, NewJob::new("bind", &count)?)?;
    ///         Ok(Outcome::Done)       // with the pages and the binding, or without any
    ///     })
    ///     .on("page", |_job, _page: u32| Ok(Outcome::Done))
    ///     .on("bind", |_job, _count: u32| Ok(Outcome::Done))
    ///     .drain(Limits::default())?;
    /// assert_eq!(queue.counts().finished, 5);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`enqueue`](Self::enqueue).
    pub fn enqueue_batch(
        &mut self,
        queue: &Queue,
        jobs: impl IntoIterator<Item = NewJob>,
        then: NewJob,
    ) -> Result<JobId, Error> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        // A job that the hook refuses changes nothing, so the closure may go on without the batch.
        jobs.iter().chain([&then]).try_for_each(|job| queue.ask_before_push(job))?;
        let pushes = match queue.prepare_batch(jobs, then) {
            Ok(pushes) => pushes,
            Err(config) => return Err(self.refuse_config(config)),
        };
        self.enqueue_pushes(queue, &pushes)?;
        Ok(pushes.into_iter().next_back().map(|push| push.id).unwrap_or_default())
    }

    /// Pushes a job into the queue of a [`Group`] that takes its kind, in this atomic write.
    ///
    /// # Errors
    /// [`Error::Config`] for a kind that no queue takes; otherwise those of
    /// [`enqueue`](Self::enqueue).
    pub fn enqueue_in(&mut self, group: &Group, job: NewJob) -> Result<JobId, Error> {
        match group.routed(&job) {
            Ok(queue) => self.enqueue(queue, job),
            Err(config) => Err(self.refuse_config(config)),
        }
    }
}

/// The checksum of the row in an operation has this name and no place, since it is not stored.
const NOWHERE: &str = "";

/// Returns the operation of one push, or of a batch whose last job waits for the others: each with
/// its length (4 bytes).
fn encode_pushes(pushes: &[Push]) -> Vec<u8> {
    let mut op = Vec::new();
    for push in pushes {
        let push = encode_push(push);
        op.extend_from_slice(&(push.len() as u32).to_be_bytes());
        op.extend_from_slice(&push);
    }
    op
}

pub(super) fn decode_pushes(mut op: &[u8]) -> Option<Vec<Push>> {
    let mut pushes = Vec::new();
    while let Some((length, rest)) = op.split_first_chunk::<4>() {
        let (push, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        pushes.push(decode_push(push)?);
        op = rest;
    }
    op.is_empty().then_some(pushes)
}

/// Returns the bytes of a push: the number in its id (8 bytes; the highest one: none), the
/// window of a unique job (8 bytes), the treatment of its twin (1 byte), the setting of a job that
/// is to wait for it (1 byte, from 1; 0: none is), the number of those that it is to wait for (4
/// bytes), the lengths of the id and of the row (4 bytes each), the id, the row, the ids of the
/// others (each with its length in 1 byte) and the payload. If the row says that the job has
/// metadata, its length (4 bytes) and its text are before the payload.
pub(super) fn encode_push(push: &Push) -> Vec<u8> {
    let row = push.row.encode(NOWHERE, NOWHERE);
    let mut op = Vec::with_capacity(30 + push.id.len() + row.len() + push.payload.len());
    op.extend_from_slice(&push.made.unwrap_or(u64::MAX).to_be_bytes());
    op.extend_from_slice(&push.window.to_be_bytes());
    op.push(push.clash as u8);
    op.push(push.awaited_by.map_or(0, |on_dead| on_dead as u8 + 1));
    op.extend_from_slice(&(push.after.len() as u32).to_be_bytes());
    [push.id.len(), row.len()].iter().for_each(|length| op.extend_from_slice(&(*length as u32).to_be_bytes()));
    op.extend_from_slice(push.id.as_bytes());
    op.extend_from_slice(&row);
    for id in &push.after {
        op.push(id.len() as u8);
        op.extend_from_slice(id.as_bytes());
    }
    if push.row.extras().has_meta {
        op.extend_from_slice(&(push.meta.len() as u32).to_be_bytes());
        op.extend_from_slice(&push.meta);
    }
    op.extend_from_slice(&push.payload);
    op
}

pub(super) fn decode_push(op: &[u8]) -> Option<Push> {
    let (made, rest) = op.split_first_chunk::<8>()?;
    let (window, rest) = rest.split_first_chunk::<8>()?;
    let ([clash, awaited_by], rest) = rest.split_first_chunk::<2>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_first_chunk::<4>()?;
    let (row, rest) = rest.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_at_checked(u32::from_be_bytes(*id) as usize)?;
    let (row, mut payload) = rest.split_at_checked(u32::from_be_bytes(*row) as usize)?;
    let mut after = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let ([length], others) = payload.split_first_chunk::<1>()?;
        let (id, others) = others.split_at_checked(usize::from(*length))?;
        after.push(std::str::from_utf8(id).ok()?.to_owned());
        payload = others;
    }
    let awaited_by = match awaited_by {
        0 => None,
        number => Some(*OnDead::ALL.get(usize::from(number - 1))?),
    };
    let made = Some(u64::from_be_bytes(*made)).filter(|made| *made < u64::MAX);
    let id = std::str::from_utf8(id).ok()?.to_owned();
    let row = Row::decode(NOWHERE, NOWHERE, row).ok()?;
    let mut meta = &[][..];
    if row.extras().has_meta {
        let (length, rest) = payload.split_first_chunk::<4>()?;
        (meta, payload) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    }
    let (clash, window) = (*Clash::ALL.get(usize::from(*clash))?, u64::from_be_bytes(*window));
    let (payload, meta) = (payload.to_vec(), meta.to_vec());
    Some(Push { id, made, row, payload, meta, clash, window, after, awaited_by })
}
