//! The end of a runner: it waits for its jobs, or gives them up.
//!
//! It notes in the store that it is stopping while these jobs run, so that the next process knows
//! that they have not killed this one. A separate thread writes the note: whoever requests the stop
//! may be a job, or a task of a runtime, and must not wait for a disk.

use crate::engine::{Beside, Claimed, Ending, Held};
use crate::notify::waiting::wait_until;
use crate::rules::ends::End;
#[cfg(feature = "tokio")]
use crate::runner::handler::Handler;
use crate::runner::pool::Pool;
use crate::runner::running::Running;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use waterline::Error;
use waterline::seam::describe;

/// How long a stop that gives up its jobs waits for its note, and until dropped futures are handed
/// back, should the disk be slow. A program that ends before that may close the store on one thread
/// while it ends on another.
pub(in crate::runner) const HAND_BACK: Duration = Duration::from_secs(1);

impl Pool {
    pub(in crate::runner) fn stop(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        self.request_stop();
        self.wait(limit)
    }

    pub(in crate::runner) fn request_stop(&self) {
        {
            let mut state = self.state.lock();
            self.end(&mut state, None);
            // Not before: the thread of a job that ends because of this must not claim another one.
            self.stopping.store(true, Ordering::Relaxed);
        }
        self.stirred.notify_all();
        self.source().ring();
        self.begin_note();
    }

    /// Starts a thread that notes that the jobs in flight run while the runner is stopping.
    fn begin_note(&self) {
        let jobs: Vec<_> = {
            let mut state = self.state.lock();
            state.drain.noting += 1;
            let new = state.slots.flights.values_mut().filter(|flight| !flight.is_noted);
            let noted = new.map(|flight| {
                flight.is_noted = true;
                flight.job.clone()
            });
            noted.collect()
        };
        let Some(me) = self.threads.host().upgrade().filter(|_| !jobs.is_empty()) else { return self.note_is_over() };
        let noting = self.threads.spawn("wl-stop", move || me.note_stop(&jobs));
        if let Err(error) = noting {
            self.warn_of_note(&error);
            self.note_is_over();
        }
    }

    fn note_is_over(&self) {
        self.state.lock().drain.noting -= 1;
        self.stirred.notify_all();
        #[cfg(feature = "tokio")]
        self.threads.awaited().wake_all();
    }

    /// Notes that these jobs run while the runner is stopping. The caller has counted the note.
    pub(super) fn note_stop(&self, jobs: &[Running]) {
        let jobs: Vec<_> = jobs.iter().map(Running::held).collect();
        if let Err(error) = self.source().note_stop(&jobs) {
            self.warn_of_note(&error);
        }
        self.note_is_over();
    }

    /// Notes that the runner has ended, for the list of workers of many processes. Only the last
    /// thread does, and does not wait for a failing database: the worker soon counts as silent.
    pub(super) fn note_end(&self) {
        let is_last = {
            let state = self.state.lock();
            state.drain.over && state.slots.threads == 0
        };
        if !is_last || self.source().first().capabilities().one_process || !self.source().works() {
            return;
        }
        if let Err(error) = self.source().note_stop(&[]) {
            let (queue, error) = (self.source().name(), error.report());
            tracing::debug!(target: "waterline", queue, error, "a runner cannot note that it has ended");
        }
    }

    fn warn_of_note(&self, error: &(dyn std::error::Error + 'static)) {
        let (queue, error) = (self.source().name(), describe(error));
        tracing::warn!(target: "waterline", queue, error, "a runner cannot note that it stops: a job that still runs when the process ends counts a crash");
    }

    pub(in crate::runner) fn wait(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        if self.threads.is_own_thread() {
            self.threads.leave_as_owner();
            return Err(ConfigError::OwnThread.into());
        }
        let deadline = limit.and_then(|limit| waterline::seam::now().checked_add(limit));
        let gone = {
            let mut state = self.state.lock();
            self.threads.wait_gone(&mut state, deadline)
        };
        if gone {
            return self.finish(&[], deadline);
        }
        let running = self.abandon(true);
        let until = waterline::seam::now().checked_add(HAND_BACK);
        if !running.is_empty() {
            let mut state = self.state.lock();
            while state.drain.noting > 0 && !wait_until(&self.stirred, &mut state, until) {}
            if self.are_futures(&running) {
                self.threads.wait_gone(&mut state, until);
            }
        }
        self.finish(&running, until)
    }

    /// Ends the runner, after these jobs were given up. It waits for threads until the deadline.
    pub(in crate::runner) fn finish(&self, running: &[Running], deadline: Option<Instant>) -> Result<(), QueueError> {
        let gone = self.state.lock().registry.is_gone();
        let joined = gone && self.threads.join(deadline);
        self.threads.leave_as_owner();
        if !running.is_empty() || !joined {
            let running = running.iter().map(|job| job.id().to_owned()).collect();
            return Err(QueueError::StopTimeout { running });
        }
        if self.state.lock().drain.panicked {
            return Err(Error::Thread.into());
        }
        Ok(())
    }

    /// Gives up the jobs that still run, and returns them. The threads stay for the ends of the
    /// futures that are still to be dropped, unless `stays` is false.
    pub(in crate::runner) fn abandon(&self, stays: bool) -> Vec<Running> {
        let mut jobs = Vec::new();
        #[cfg(feature = "tokio")]
        let mut tasks = Vec::new();
        let claimed = {
            let mut state = self.state.lock();
            state.drain.abandoned = true;
            let claimed = state.outbox.claim_batch.take_jobs();
            state.slots.reserved = state.slots.reserved.saturating_sub(claimed.len());
            state.slots.flights.retain(|_, flight| {
                jobs.push(flight.job.clone());
                #[cfg(feature = "tokio")]
                tasks.extend(flight.task.take());
                stays && !flight.ended && self.is_future(&flight.job)
            });
            claimed
        };
        jobs.sort_by_key(Running::flight);
        self.give_up(jobs.iter().map(Running::held).chain(claimed.iter().map(held)).collect());
        #[cfg(feature = "tokio")]
        tasks.iter().for_each(tokio::task::AbortHandle::abort);
        self.end_if_over(&mut self.state.lock());
        jobs
    }

    /// True if all of these are futures, which end by themselves once they are given up.
    fn are_futures(&self, jobs: &[Running]) -> bool {
        jobs.iter().all(|job| self.is_future(job))
    }

    /// True if the job is a future, whose drop reports its end.
    fn is_future(&self, job: &Running) -> bool {
        #[cfg(feature = "tokio")]
        return matches!(self.settings.handlers.get(job.kind()), Some(Handler::Async(_)));
        #[cfg(not(feature = "tokio"))]
        {
            let _ = job;
            false
        }
    }

    /// Makes claimed jobs that will not start ready again. If that fails, their leases run out.
    pub(super) fn put_back(&self, jobs: Vec<Held>) {
        if jobs.is_empty() {
            return;
        }
        let end = End::PutBack { error: String::new() };
        let ending = |job: &Held| Ending { job: job.clone(), end: end.clone(), data: None, durations: None };
        let (ends, count): (Vec<_>, _) = (jobs.iter().map(ending).collect(), jobs.len());
        if let Err(error) = self.source().first().engine.turn(&ends, None, Beside::Nothing) {
            let (queue, error) = (self.source().name(), error.report());
            tracing::warn!(target: "waterline", queue, error, "a runner that stops cannot put back the jobs that have not begun; they are ready again once their lease is over");
            self.give_up(jobs);
        }
        let mut state = self.state.lock();
        state.slots.reserved = state.slots.reserved.saturating_sub(count);
        self.end_if_over(&mut state);
    }

    /// Lets the leases of jobs end by silence. It also passes on whether the runner is stopping,
    /// since the note of that may be late, or never be written. The caller holds no lock.
    pub(super) fn give_up(&self, jobs: Vec<Held>) {
        if !jobs.is_empty() {
            self.source().first().engine.give_up(&jobs, self.stopping.load(Ordering::Relaxed));
        }
    }
}

/// Returns the lease of a claimed job.
pub(super) fn held(job: &Claimed) -> Held {
    Held { queue: job.queue, id: job.id.clone(), token: job.row.place }
}

/// The calls that await the end without a thread.
#[cfg(feature = "tokio")]
impl Pool {
    pub(in crate::runner) fn is_own_thread(&self) -> bool {
        self.threads.is_own_thread()
    }

    /// True within a runtime, if jobs are futures: waiting might hold up those very jobs.
    pub(in crate::runner) fn must_not_wait(&self) -> bool {
        let mut handlers = self.settings.handlers.values();
        handlers.any(|handler| matches!(handler, Handler::Async(_))) && tokio::runtime::Handle::try_current().is_ok()
    }

    /// Requests the stop, and does not wait. The owner has left when this returns.
    pub(in crate::runner) fn let_go(&self) {
        self.request_stop();
        self.threads.leave_as_owner();
    }

    /// Waits until these jobs are noted as given up and, if all are futures, handed back.
    pub(in crate::runner) async fn handed_back(&self, jobs: &[Running]) {
        let are_futures = self.are_futures(jobs);
        let is_over = || {
            let state = self.state.lock();
            (state.drain.noting == 0 && (!are_futures || state.registry.is_gone())).then_some(())
        };
        self.threads.awaited().wait(is_over).await;
    }

    /// Waits until all threads are gone.
    pub(in crate::runner) async fn gone(&self) {
        self.threads.awaited().wait(|| self.state.lock().registry.is_gone().then_some(())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim_three, pool};
    use super::*;
    use crate::Clock;
    use crate::accept::Accept;
    use crate::handle::Queue;
    use crate::testing::QueueModel;
    use crate::types::job::JobState;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use std::time::SystemTime;
    use waterline::Store;

    /// The note may be late, or never reach the disk.
    #[test]
    fn a_job_given_up_is_put_back_only_by_a_stop() {
        for (is_stopping, on_model) in [(true, false), (true, true), (false, false), (false, true)] {
            let clock = Clock::manual(SystemTime::UNIX_EPOCH);
            let options = QueueOptions::default().clock(clock.clone());
            let opened = if on_model {
                QueueModel::new().open("q", options)
            } else {
                Queue::open(&Store::in_memory(), "q", options)
            };
            let queue = opened.unwrap();
            queue.push_all((0..3).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
            let pool = pool(&queue, 3);
            let claimed = claim_three(&pool);
            pool.stopping.store(is_stopping, Ordering::Relaxed);
            pool.give_up(claimed.iter().map(held).collect());
            clock.advance(Duration::from_secs(60));
            let state = if is_stopping { JobState::Ready } else { JobState::Scheduled };
            let jobs = queue.list(state, None, 9).unwrap();
            let failures: Vec<_> = jobs.iter().map(|job| job.failures).collect();
            assert_eq!(failures, [u32::from(!is_stopping); 3], "{is_stopping} {on_model}");
            assert_eq!(queue.accept(Accept::new()).unwrap().is_some(), is_stopping);
        }
    }
}
