//! Jobs that a worker loses while they run: they were removed, or taken back. Whoever notices it
//! tells the runner, since the thread of such a job may never come back.

use crate::types::job::JobId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A runner, as its queues see it.
pub(crate) trait Runs: Send + Sync {
    /// Handles that these leases of the queue with this number are over. The caller holds no lock.
    fn lost(self: Arc<Self>, queue: u32, tokens: &[u64]);

    /// Returns the jobs of this queue that are lost and still run.
    fn stuck(&self, queue: u32) -> Option<Stuck>;

    /// Returns how many of its slots have jobs of other queues than this one.
    fn elsewhere(&self, queue: u32) -> usize;

    /// Returns its slots, if all of them are busy.
    fn all_busy(&self) -> Option<AllBusy>;
}

pub(crate) struct AllBusy {
    pub(crate) slots: usize,
    /// When the last job ended, or when the last slot was taken if that was later.
    pub(crate) since: Instant,
    /// After this time without an end it stands still.
    pub(crate) patience: Duration,
    /// The job that has run longest, since when, and its kind.
    pub(crate) oldest: (Instant, JobId),
    pub(crate) kind: String,
}

/// Jobs that are lost and still run.
pub(crate) struct Stuck {
    pub(crate) count: usize,
    /// The one that was lost first, and when.
    pub(crate) first: (Instant, JobId),
    /// The one that started first, and when.
    pub(crate) oldest: (Instant, JobId),
}

/// The leases that a queue has taken away.
#[derive(Default)]
pub(crate) struct Losses {
    /// The runner of the queue, and the number by which it knows the queue.
    runner: Mutex<Option<(u32, Weak<dyn Runs>)>>,
    /// The tokens that the runner has not been told yet.
    tokens: Mutex<Vec<u64>>,
    /// True if there are any. The end of each write checks it.
    are_any: AtomicBool,
}

impl Losses {
    pub(crate) fn begin(&self, queue: u32, runner: Weak<dyn Runs>) {
        *self.runner.lock() = Some((queue, runner));
    }

    pub(crate) fn end(&self) {
        *self.runner.lock() = None;
    }

    pub(crate) fn add(&self, tokens: Vec<u64>) {
        if !tokens.is_empty() {
            self.tokens.lock().extend(tokens);
            self.are_any.store(true, Ordering::Release);
        }
    }

    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Acquire)
    }

    /// Tells the runner. The caller holds no lock.
    pub(crate) fn tell(&self) {
        if !self.are_any() {
            return;
        }
        let tokens = {
            let mut tokens = self.tokens.lock();
            self.are_any.store(false, Ordering::Release);
            std::mem::take(&mut *tokens)
        };
        if let Some((queue, runner)) = self.runner().filter(|_| !tokens.is_empty()) {
            runner.lost(queue, &tokens);
        }
    }

    pub(crate) fn stuck(&self) -> Option<Stuck> {
        let (queue, runner) = self.runner()?;
        runner.stuck(queue)
    }

    pub(crate) fn elsewhere(&self) -> usize {
        self.runner().map_or(0, |(queue, runner)| runner.elsewhere(queue))
    }

    pub(crate) fn all_busy(&self) -> Option<AllBusy> {
        self.runner()?.1.all_busy()
    }

    fn runner(&self) -> Option<(u32, Arc<dyn Runs>)> {
        let runner = self.runner.lock();
        let (queue, runner) = runner.as_ref()?;
        Some((*queue, runner.upgrade()?))
    }
}
