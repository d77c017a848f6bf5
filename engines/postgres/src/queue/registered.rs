//! A schedule that this process has registered, and when it ticks next.

use std::sync::Arc;
use waterline_queue::engine_api::{Periodic, last_tick, next_tick};

/// A registered schedule, and its last tick as far as this process knows.
pub(super) struct Registered {
    pub(super) periodic: Arc<Periodic>,
    pub(super) last: u64,
}

impl Registered {
    /// Returns its next tick, or `time` if it has to begin anew since the clock was set back.
    pub(super) fn next(&self, time: u64) -> Option<u64> {
        let schedule = &self.periodic.schedule;
        if last_tick(schedule, self.last, time) == self.last { next_tick(schedule, self.last) } else { Some(time) }
    }
}
