//! The end of a runner: it waits for its jobs, or gives them up.

use super::Pool;
use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::base::sync::Ordering;
use crate::queue::QueueError;
use crate::queue::runner::Running;
use std::time::Duration;

impl Pool {
    pub(in crate::queue::runner) fn stop(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        self.request_stop();
        self.wait(limit)
    }

    pub(in crate::queue::runner) fn request_stop(&self) {
        {
            let mut state = self.state.lock();
            self.end(&mut state, None);
            // Not before: the thread of a job that ends since it sees this must claim no other one.
            self.stopping.store(true, Ordering::Relaxed);
        }
        self.stirred.notify_all();
        self.source().ring();
    }

    pub(in crate::queue::runner) fn wait(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        if self.crew.is_own_thread() {
            self.crew.leave_as_owner();
            return Err(ConfigError::OwnThread.into());
        }
        let deadline = limit.and_then(|limit| crate::base::time::now().checked_add(limit));
        let gone = {
            let mut state = self.state.lock();
            self.crew.wait_gone(&mut state, deadline)
        };
        let running = if gone { Vec::new() } else { self.abandon() };
        let joined = gone && self.crew.join(deadline);
        self.crew.leave_as_owner();
        if !running.is_empty() || !joined {
            return Err(QueueError::StopTimeout { running });
        }
        if self.state.lock().panicked {
            return Err(Error::Thread.into());
        }
        Ok(())
    }

    /// Gives up the jobs that still run, and returns their ids.
    pub(super) fn abandon(&self) -> Vec<String> {
        let mut flights: Vec<_> = {
            let mut state = self.state.lock();
            state.abandoned = true;
            std::mem::take(&mut state.flights).into_values().collect()
        };
        flights.sort_by_key(|flight| flight.job.flight());
        flights.iter().for_each(|flight| self.give_up(&flight.job));
        #[cfg(feature = "tokio")]
        flights.iter_mut().filter_map(|flight| flight.task.take()).for_each(|task| task.abort());
        self.end_if_over(&mut self.state.lock());
        flights.iter().map(|flight| flight.job.id().to_owned()).collect()
    }

    /// Lets the lease of a job end by silence.
    pub(super) fn give_up(&self, job: &Running) {
        let state = job.queue().inner();
        state.renew(job.token(), state.moment().now.checked_add(state.options.lease));
    }
}
