//! Reading the average durations of jobs.

use crate::handle::Queue;
use crate::types::durations::Durations;
use std::collections::BTreeMap;

impl Queue {
    /// Returns how long successful attempts of each kind take in a [`Runner`](crate::Runner).
    ///
    /// It is the time from the claim to the result of the handler. A kind that has never succeeded
    /// is missing. The call reads nothing of the store.
    ///
    /// The averages survive a restart except for the last 10 seconds: they are stored with the end
    /// of a job, and cost no write of their own. They are dropped after 30 days without a success.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("welcome", "ann")?, NewJob::new("welcome", "bob")?])?;
    /// Runner::builder(&queue).on("welcome", |_job, _to: String| Ok(Outcome::Done)).drain(DrainLimits::default())?;
    /// for (kind, durations) in queue.durations() {
    ///     println!("{kind}: {:?}", durations.mean);
    /// }
    /// assert_eq!(queue.durations()["welcome"].count, 2);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn durations(&self) -> BTreeMap<String, Durations> {
        self.shared.averages.all()
    }
}
