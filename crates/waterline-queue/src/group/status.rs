//! The state of a group: a sentence for each queue.

use crate::group::Group;
use crate::handle::Queue;
use crate::status::{QueueStatus, Waits};
use crate::types::error::QueueError;
use std::fmt;
use std::time::Duration;

/// The state of a group, from [`Group::status`]: `Display` writes a line per queue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The states of the queues, in the order of the group.
    pub queues: Vec<QueueStatus>,
}

impl fmt::Display for GroupStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, status) in self.queues.iter().enumerate() {
            write!(f, "{}{status}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl Group {
    /// Returns the state of each queue.
    ///
    /// While all slots of the group's runner are busy, a queue that waits for them is
    /// [`Waits::Busy`], and names the oldest job of all queues.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Group, NewJob, QueueOptions, Waits};
    ///
    /// let group = Group::new(&Store::in_memory())
    ///     .queue("mail", ["welcome"], QueueOptions::default())
    ///     .queue("thumbs", ["png"], QueueOptions::default())
    ///     .open()?;
    /// group.push(NewJob::new("welcome", "ann")?)?;
    /// group.queue("thumbs").expect("it is there").pause(None)?;
    /// let status = group.status()?;
    /// assert_eq!(status.queues[0].waits, Waits::NoWorker);
    /// assert_eq!(status.queues[1].waits, Waits::Paused { left: None });
    /// println!("{status}");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Queue::status`].
    pub fn status(&self) -> Result<GroupStatus, QueueError> {
        let mut queues = self.queues().iter().map(Queue::status).collect::<Result<Vec<_>, _>>()?;
        if let Some(busy) = self.busy() {
            let claims = |status: &QueueStatus| self.members.queues().any(|queue| queue.name() == status.queue);
            for status in queues.iter_mut().filter(|status| status.waits == Waits::No && status.counts.ready > 0) {
                // With other workers, the status already counts the slots of all of them.
                if claims(status) && status.fleet.workers <= 1 {
                    status.waits = busy.clone();
                }
            }
        }
        Ok(GroupStatus { queues })
    }

    /// Returns [`Waits::Busy`] if no job starts because all slots of the runner are busy.
    fn busy(&self) -> Option<Waits> {
        let now = self.members.queue(0).moment().now;
        let (mut running, mut slots, mut oldest) = (0, None, None);
        for queue in self.members.queues() {
            slots = slots.max(queue.shared.slots());
            let (count, first) = queue.engine.running(queue.number);
            running += count;
            oldest = oldest.into_iter().chain(first).min();
            if let Some(stuck) = queue.shared.losses.stuck() {
                running += stuck.count;
                oldest = oldest.into_iter().chain([stuck.oldest]).min();
            }
        }
        let (slots, (since, oldest)) = (slots.filter(|slots| *slots <= running)?, oldest?);
        let since: Duration = now.saturating_duration_since(since);
        Some(Waits::Busy { slots, since, oldest })
    }
}
