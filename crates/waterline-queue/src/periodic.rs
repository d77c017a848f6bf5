//! Registering, listing and removing the periodic jobs of an open queue.

use crate::engine::Steer;
use crate::handle::Queue;
#[cfg(doc)]
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::info::PeriodicInfo;
use crate::types::new_job::NewJob;
use crate::types::periodic::Periodic;
use crate::types::rfc3339::rfc3339;
use crate::types::schedule::{CatchUp, Overlap, Schedule};
use std::sync::Arc;

/// A periodic job that is not registered yet. See [`Queue::periodic`].
#[derive(Clone, Debug)]
#[must_use = "a periodic job is registered by `start`"]
pub struct PeriodicBuilder {
    queue: Queue,
    periodic: Periodic,
}

impl PeriodicBuilder {
    /// Sets what happens to a tick while the last run has not ended. Default: [`Overlap::Skip`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.periodic.overlap = overlap;
        self
    }

    /// Sets what happens to ticks that were missed while no process was running. Default:
    /// [`CatchUp::One`], so that the work is done as soon as possible, and not several times.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.periodic.catch_up = catch_up;
        self
    }

    /// Makes the first job of a new name at the next tick of the schedule. This is the default of a
    /// `Cron`, as in cron.
    pub fn start_at_next(mut self) -> Self {
        self.periodic.at_next = true;
        self
    }

    /// Makes the first job of a new name at once. This is the default of an
    /// [`Every`](crate::Every), so that a mistake shows at once, too.
    pub fn start_at_once(mut self) -> Self {
        self.periodic.at_next = false;
        self
    }

    /// Registers the periodic job, for as long as the queue is open.
    ///
    /// Ticks that were missed since the last run of the program are treated as
    /// [`catch_up`](Self::catch_up) says. If the same is registered already, nothing happens.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a name that is empty or longer than 255 bytes, an interval of
    /// zero, an invalid job, one with an id or a time of its own, or that waits for others, for
    /// [`CatchUp::All`] with [`Overlap::Skip`], and while the name is registered with anything else
    /// ([`ConfigError::Periodic`] for these). [`QueueError::Store`] when the database fails, or the
    /// record of the name is damaged. Nothing is registered then.
    pub fn start(self) -> Result<(), QueueError> {
        let Self { queue, periodic } = self;
        periodic.check()?;
        // An invalid job fails now, and not at each tick. (No id is made for it.)
        queue.prepare(periodic.job.clone().id("tried"))?;
        let (name, kind) = (periodic.name.clone(), periodic.job.kind.clone());
        let last = queue.engine.start_periodic(queue.number, Arc::new(periodic))?;
        // Each tick pushes it, and the runner makes all ticks.
        queue.shared.note_kind(&kind, || true);
        // Threads may have read the clock in another order than they reached the queue.
        if last > queue.moment().wall.saturating_add(1_000) {
            let (queue, last) = (queue.name(), rfc3339(last));
            tracing::warn!(target: "waterline", queue, periodic = name, last, "the last tick of a periodic job is ahead, so the clock was set back: that one has been, and the next one comes behind it, unless you remove it and register it again");
        }
        Ok(())
    }
}

impl Queue {
    /// Makes a job at each tick of a schedule: an [`Every`](crate::Every) or, with the feature
    /// `cron`, a `Cron`.
    ///
    /// The name (1 to 255 bytes) identifies it across restarts. [`start`](PeriodicBuilder::start)
    /// registers it; do that at each start of the program.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use waterline::Store;
    /// use waterline_queue::{Clock, DrainLimits, Every, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let clock = Clock::manual(SystemTime::now());
    /// let options = QueueOptions::default().clock(clock.clone());
    /// let queue = Queue::open(&Store::in_memory(), "mail", options)?;
    /// queue.periodic("digest", Every::hours(1), NewJob::new("digest", &())?).start()?;
    /// let runner = || Runner::builder(&queue).on("digest", |_job, ()| Ok(Outcome::Done));
    /// assert_eq!(runner().drain(DrainLimits::default())?.finished, 1);     // the first tick is at once
    /// assert_eq!(runner().drain(DrainLimits::default())?.finished, 0);
    /// clock.advance(Duration::from_secs(3600));
    /// assert_eq!(runner().drain(DrainLimits::default())?.finished, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// The tick is noted in the same atomic write that pushes its job, so no crash loses or repeats
    /// it. The job is an ordinary one: it is retried as its [`Retry`](waterline::Retry) says. Its
    /// [`pushed_at`](crate::Running::pushed_at) is the time of the tick, in each attempt. Ticks are
    /// made while a [`Runner`](crate::Runner) runs, and by each push and each call of
    /// [`accept`](Self::accept). The [module](crate#periodic-jobs) has the rules.
    pub fn periodic(&self, name: impl Into<String>, schedule: impl Into<Schedule>, job: NewJob) -> PeriodicBuilder {
        let (overlap, catch_up, schedule) = (Overlap::default(), CatchUp::default(), schedule.into());
        let at_next = schedule.begins_at_next();
        let periodic = Periodic { name: name.into(), schedule, job, overlap, catch_up, at_next };
        PeriodicBuilder { queue: self.clone(), periodic }
    }

    /// Lists the periodic jobs by their names, including those that only an earlier run of the
    /// program has registered. A record that cannot be read hides no other one
    /// ([`PeriodicInfo::damaged`]).
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails.
    pub fn periodics(&self) -> Result<Vec<PeriodicInfo>, QueueError> {
        self.engine.periodics(self.number)
    }

    /// Ends a periodic job and forgets its last tick, so that the name is new again. A job that it
    /// has made goes on. Returns false if there is none with this name.
    ///
    /// A name that the program no longer registers makes no jobs. Its record stays until this call.
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails. The periodic job goes on then.
    pub fn remove_periodic(&self, name: impl Into<String>) -> Result<bool, QueueError> {
        Ok(self.engine.steer(self.number, Steer::RemovePeriodic(name.into()))? > 0)
    }
}
