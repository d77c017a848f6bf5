//! The attempts of a runner that are in flight.

use super::Running;
use super::handler::Hooks;
use super::pool::Pool;
use super::reports::Report;
use crate::base::sync::Arc;
use crate::crew::Own;
use std::time::Duration;

/// An attempt in flight. Its holder reports its end, once.
pub(super) struct Attempt {
    pool: Arc<Pool>,
    job: Running,
}

impl Attempt {
    pub(super) fn new(pool: &Arc<Pool>, job: Running) -> Self {
        Self { pool: pool.clone(), job }
    }

    pub(super) fn job(&self) -> &Running {
        &self.job
    }

    /// Makes the calling thread one of the runner's own until the answer is dropped. User code that
    /// stops the runner there must not wait for this very attempt.
    pub(super) fn enter(&self) -> Own {
        self.pool.enter()
    }

    pub(super) fn hooks(&self) -> &Hooks {
        self.pool.hooks()
    }

    /// True if the runner stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.pool.is_stopping()
    }

    /// The time since the claim.
    pub(super) fn elapsed(&self) -> Duration {
        self.pool.source().clock().now().saturating_duration_since(self.job.begun())
    }

    /// The time on the wall, in milliseconds since 1970.
    pub(super) fn wall(&self) -> u64 {
        self.pool.source().moment().wall
    }

    /// Hands the end to the threads of the pool, unless its time was over before.
    pub(super) fn report(self, report: impl FnOnce(&Self) -> Report) {
        if self.pool.claim_end(self.job.flight()) {
            let report = {
                let _own = self.enter();
                report(&self)
            };
            self.pool.hand_in(report);
        }
    }
}
