//! Reading the queue for its status.

use crate::handle::Queue;
use crate::notify::losses::Stuck;
use crate::status::deciding::Facts;
use crate::status::{QueueStatus, SetBack, StuckSlots, UntakenKind, Vantage};
use crate::types::error::QueueError;
use std::time::{Duration, Instant};

/// How long a status mentions that the clock was set back.
const TOLD_FOR: Duration = Duration::from_secs(3600);

impl Queue {
    /// Returns the state of the queue. It reads a few entries of the store, and never waits.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions, Waits};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?.id("user:42"))?;
    /// let status = queue.status()?;
    /// assert_eq!(status.waits, Waits::NoWorker);
    /// assert!(status.to_string().contains("no runner and no caller of accept: start one"));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database cannot be read.
    pub fn status(&self) -> Result<QueueStatus, QueueError> {
        self.catch_up();
        let at = self.moment();
        let inputs = self.engine.status_inputs(self.number)?;
        let trouble = self.shared.trouble();
        let since = |since: Instant| at.now.saturating_duration_since(since);
        let (stuck, all_busy) = (self.shared.losses.stuck(), self.shared.losses.all_busy());
        let vantage = match (self.capabilities().one_process, self.writable()) {
            (false, _) => Vantage::Shared,
            (true, Err(_)) => Vantage::Beside,
            (true, Ok(())) => Vantage::Whole,
        };
        let is_taken =
            |kind: &str| self.shared.kinds.is_handled(kind) || vantage == Vantage::Shared && inputs.fleet.takes(kind);
        let untaken: Vec<_> = inputs.lines.iter().filter(|(kind, _)| !is_taken(kind)).collect();
        let facts = Facts {
            at: &at,
            inputs: &inputs,
            trouble: &trouble,
            slots: self.shared.slots(),
            stuck: stuck.as_ref(),
            all_busy: all_busy.as_ref(),
            is_stopping: self.shared.at_work.is_stopping(),
            is_awaited: self.shared.is_awaited(),
            untaken: untaken.len(),
            is_shared: vantage == Vantage::Shared,
            lease: inputs.lease.unwrap_or(self.shared.options.lease),
        };
        let waits = facts.waits();
        let age = |since: u64| Duration::from_millis(at.wall.saturating_sub(since));
        let oldest_ready = inputs.oldest_ready.map(|(id, since)| (id, age(since)));
        let (queue, mut unknown_kinds) = (self.name().to_owned(), self.shared.kinds.unhandled());
        unknown_kinds.retain(|kind| !is_taken(kind));
        let untaken = untaken.into_iter().map(|(kind, jobs)| UntakenKind { kind: kind.clone(), jobs: *jobs }).collect();
        let stuck = stuck.map(|Stuck { count, first: (lost, first), .. }| {
            let since = since(lost);
            StuckSlots { slots: count, first, since }
        });
        let own = trouble.set_back.map(|(by, noticed)| (by, since(noticed)));
        let set_back = inputs.set_back.or(own).map(|(by, since)| SetBack { by, since });
        let set_back = set_back.filter(|set_back| set_back.since < TOLD_FOR);
        let counts = inputs.counts;
        let (fleet, (_, lapsed_for)) = (inputs.fleet, inputs.lapsed);
        Ok(QueueStatus {
            queue,
            counts,
            oldest_ready,
            waits,
            unknown_kinds,
            untaken,
            stuck,
            set_back,
            vantage,
            fleet,
            lapsed_for,
        })
    }
}
