//! What a database of queues may lack.

#[cfg(doc)]
use crate::{JobInfo, Lease};
#[cfg(doc)]
use crate::{Queue, RunnerBuilder};

/// What a database of queues may lack, from [`Queue::capabilities`]. A queue in a
/// [`Store`](waterline::Store) has everything.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{Queue, QueueOptions};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// assert!(queue.capabilities().writes_beside);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A write of yours can be atomic with a push or with the end of a job:
    /// [`Queue::push_with`](crate::Queue::push_with), [`Lease::finish_with`],
    /// [`RunnerBuilder::on_transactional`] (for a future `on_transactional_async`). Without it,
    /// these calls fail.
    pub writes_beside: bool,
    /// The keys that a limit holds take turns. Without it, the first of all held jobs in the order
    /// of the queue starts next, whatever its key.
    pub keys_take_turns: bool,
    /// [`JobInfo::held_by`] names the limit that holds a job. Without it, it is `None`.
    pub names_limits: bool,
    /// Leases and runs are measured by a monotonic clock. Without it, they are measured by the
    /// clock of the database server, and setting it forward ends leases too soon.
    pub steady_clock: bool,
    /// One process has the queue, and so knows everything about its runner. Without it, other
    /// processes may run its jobs. [`Queue::activity`] of this process does not count those, but
    /// [`Queue::workers`] shows them.
    pub one_process: bool,
}

impl Capabilities {
    /// Nothing is lacking.
    pub(crate) const ALL: Self =
        Self { writes_beside: true, keys_take_turns: true, names_limits: true, steady_clock: true, one_process: true };
}
