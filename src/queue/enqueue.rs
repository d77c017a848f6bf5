//! Pushing within an atomic write of the user's.

use super::Queue;
use super::job::NewJob;
use super::row::Row;
use super::step::Push;
use crate::base::error::Error;
use crate::effects::Effects;
use crate::queue::job::JobId;

impl Effects {
    /// Pushes a job into a queue of the same store, in this atomic write, and returns its id. So a
    /// stream enqueues exactly once, and a finished job enqueues the next one together with its own
    /// end.
    ///
    /// It follows the rules of [`Queue::push`]. Only the write shows if a job of this id is there
    /// already.
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
    /// [`put`](Self::put).
    pub fn enqueue(&mut self, queue: &Queue, job: NewJob) -> Result<JobId, Error> {
        let push = match queue.prepare(job) {
            Ok(push) => push,
            Err(config) => return Err(self.refuse_config(config)),
        };
        let op = encode_push(&push);
        self.admit(queue.store(), "queue", &queue.inner().name, op.len())?;
        self.changes.op(queue.inner().clone(), op);
        Ok(push.id)
    }
}

/// The checksum of the row in an operation has this name and no place, since it is not stored.
const NOWHERE: &str = "";

/// Returns the operation of a push: the number in its id (8 bytes; the highest one: none), the
/// lengths of the id and of the row (4 bytes each), the id, the row and the payload.
pub(super) fn encode_push(push: &Push) -> Vec<u8> {
    let row = push.row.encode(NOWHERE, NOWHERE);
    let mut op = Vec::with_capacity(16 + push.id.len() + row.len() + push.payload.len());
    op.extend_from_slice(&push.made.unwrap_or(u64::MAX).to_be_bytes());
    [push.id.len(), row.len()].iter().for_each(|length| op.extend_from_slice(&(*length as u32).to_be_bytes()));
    op.extend_from_slice(push.id.as_bytes());
    op.extend_from_slice(&row);
    op.extend_from_slice(&push.payload);
    op
}

pub(super) fn decode_push(op: &[u8]) -> Option<Push> {
    let (made, rest) = op.split_first_chunk::<8>()?;
    let (id, rest) = rest.split_first_chunk::<4>()?;
    let (row, rest) = rest.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_at_checked(u32::from_be_bytes(*id) as usize)?;
    let (row, payload) = rest.split_at_checked(u32::from_be_bytes(*row) as usize)?;
    let made = Some(u64::from_be_bytes(*made)).filter(|made| *made < u64::MAX);
    let id = std::str::from_utf8(id).ok()?.to_owned();
    let row = Row::decode(NOWHERE, NOWHERE, row).ok()?;
    Some(Push { id, made, row, payload: payload.to_vec() })
}
