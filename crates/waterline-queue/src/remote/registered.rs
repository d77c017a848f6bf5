//! A schedule that this process has registered, and when it ticks next.

use crate::rules::set_back::last_tick;
use crate::types::periodic::Periodic;
use std::sync::Arc;

/// A registered schedule, and its last tick as far as this process knows.
pub(super) struct Registered {
    pub(super) periodic: Arc<Periodic>,
    pub(super) last: u64,
}

impl Registered {
    /// Returns its next tick, or `time` if it has to begin anew since the clock was set back.
    pub(super) fn next(&self, time: u64) -> Option<u64> {
        let schedule = &self.periodic.schedule;
        if last_tick(schedule, self.last, time) == self.last { schedule.next(self.last) } else { Some(time) }
    }
}
