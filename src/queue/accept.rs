//! Claiming jobs: for a loop of the user's, and for the threads of a runner.

use crate::base::clock::Moment;
use crate::base::config::ConfigError;
use crate::queue::embedded::intent::call;
use crate::queue::embedded::state::{LONGEST_SLEEP, Live};
use crate::queue::embedded::step::{AT_ONCE, Claim, Claimed};
use crate::queue::handle::{Queue, SOME};
use crate::queue::lease::Lease;
use crate::queue::rules::ends::End;
use crate::queue::waits::bell::Takes;
use crate::queue::waits::lines;
use crate::queue::words::ended::Ended;
use crate::queue::words::error::QueueError;
#[cfg(doc)]
use crate::queue::words::job::JobState;
use crate::queue::words::job::millis;
use std::time::{Duration, SystemTime};

/// The most writes with which one look does what time has brought.
const ROUNDS: usize = 16;

/// The settings of a call of [`Queue::accept`]. Without any, it takes a job that is due, and
/// answers at once if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Accept {
    pub(super) timeout: Option<Duration>,
    max_run_at: Option<SystemTime>,
}

impl Accept {
    /// Makes the default settings: a job that is due, and an answer at once if there is none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits so long for a job. [`Duration::MAX`] waits without end.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Takes only a job that is due by this time. A time to come hands out jobs before they are
    /// due, if none is ready. With a time that has passed, the first 256 ready jobs of each
    /// priority are looked at.
    pub fn max_run_at(mut self, time: SystemTime) -> Self {
        self.max_run_at = Some(time);
        self
    }

    /// Returns the time by which a job must be due, in milliseconds since 1970.
    pub(super) fn most(&self) -> Result<Option<u64>, ConfigError> {
        self.max_run_at.map(millis).transpose()
    }
}

impl Queue {
    /// Claims the next job for the caller: the first one of the highest priority that is ready.
    /// `None` if there is none, if [limits](crate::queue::Limit) hold all of them, or while the
    /// queue is paused. The claim is written before this returns. It blocks its thread for the time
    /// of [`Accept::timeout`] at most.
    ///
    /// Any number of threads may call it, also beside a [`Runner`](crate::queue::Runner). This loop
    /// works until nothing has come for some time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline::queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "thumbnails", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("png", "cat")?, NewJob::new("png", "dog")?, NewJob::new("gif", "")?])?;
    /// while let Some(mut lease) = queue.accept(Accept::new().timeout(Duration::from_millis(1)))? {
    ///     let name: String = lease.payload()?;
    ///     match lease.kind() {
    ///         "png" if !name.is_empty() => lease.finish(Some(format!("{name}.png").into()))?,
    ///         kind => lease.bury(format!("no thumbnail of {name:?} as {kind}"))?,
    ///     };
    /// }
    /// assert_eq!((queue.counts().finished, queue.counts().dead), (2, 1));
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999, [`QueueError::Store`] when the
    /// database fails. A job that cannot be read is set aside ([`JobState::Damaged`]), and is no
    /// error.
    pub fn accept(&self, accept: Accept) -> Result<Option<Lease>, QueueError> {
        let most = accept.most()?;
        let deadline = accept.timeout.and_then(|timeout| self.state.moment().now.checked_add(timeout));
        let takes = if most.is_some() { Takes::Some } else { Takes::Each };
        loop {
            let news = self.state.news();
            if let Some(claimed) = self.claim(most)? {
                return Ok(Some(Lease::new(self.clone(), *claimed)));
            }
            let now = self.state.moment().now;
            let is_over = deadline.is_some_and(|deadline| deadline <= now);
            if accept.timeout.is_none() || is_over {
                return Ok(None);
            }
            self.state.sleep(news, deadline, takes);
        }
    }

    /// Claims the next job, and does beside it what time has brought.
    pub(super) fn claim(&self, most: Option<u64>) -> Result<Option<Box<Claimed>>, QueueError> {
        self.take_back_silent()?;
        loop {
            let claim = call(&self.store, &self.state, "claim a job", move |step| {
                step.keep_house(SOME)?;
                let claim = step.claim(most)?;
                if matches!(claim, Claim::Nothing) {
                    // Nobody waits for this, so it may take longer.
                    step.keep_house(AT_ONCE)?;
                }
                Ok(claim)
            })?;
            match claim {
                Claim::Job(claimed) => {
                    self.state.pass_on();
                    return Ok(Some(claimed));
                }
                Claim::Nothing => return Ok(None),
                Claim::Again => {}
            }
        }
    }

    /// Does what time has brought, for a runner that claims nothing.
    pub(super) fn tidy(&self) -> Result<(), QueueError> {
        self.take_back_silent()?;
        call(&self.store, &self.state, "keep a queue in order", |step| step.keep_house(AT_ONCE))
    }

    /// Does what time has brought, for somebody who looks: an answer is true also if no worker
    /// runs. If the store takes no write ([`Queue::status`] says so), or after a long backlog, it
    /// shows what is stored.
    pub(super) fn catch_up(&self) {
        self.catch_up_with(Live::next_time);
    }

    /// Does all that is to be done, for somebody who waits. Returns the time until more comes;
    /// `None`: nothing does.
    pub(super) fn do_all(&self) -> Option<Duration> {
        self.catch_up_with(Live::next_change)
    }

    fn catch_up_with(&self, next: fn(&Live, &Moment) -> Option<Duration>) -> Option<Duration> {
        for _ in 0..ROUNDS {
            let at = self.state.moment();
            let next = self.state.look(|live| next(live, &at));
            if next.is_none_or(|next| !next.is_zero()) {
                return next;
            }
            if self.tidy().is_err() {
                break;
            }
        }
        Some(LONGEST_SLEEP)
    }

    /// Takes back the jobs whose workers were silent for too long.
    pub(super) fn take_back_silent(&self) -> Result<(), QueueError> {
        let now = self.state.moment().now;
        for (token, id) in self.state.silent(now) {
            let error = format!("its worker was silent for {:?}", self.state.options.lease);
            let end = End::Failed { error: error.clone(), at: None };
            let written = end.clone();
            let run = self.state.run_of(token, now);
            let taken = call(&self.store, &self.state, "take back a job", {
                let id = id.clone();
                move |step| step.take_back(&id, token, written.clone(), &run)
            });
            match taken {
                Ok(Some((kind, attempt, state))) => {
                    tracing::warn!(target: "waterline", queue = self.name(), id, kind, attempt, "{error}, so the job is taken back");
                    if let dead @ Ended::Dead { .. } = Ended::of(&end, state) {
                        lines::ended(&self.state.lines, self.name(), (&id, &kind, attempt), &dead);
                    }
                }
                // It is set aside, or its worker has ended it meanwhile.
                Ok(None) | Err(QueueError::Halt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
