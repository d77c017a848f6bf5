//! Pauses of a queue.

use crate::engine::Steer;
use crate::handle::Queue;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job;
use std::time::Duration;

impl Queue {
    /// Hands out no job for this time or, with `None`, until [`resume`](Self::resume).
    ///
    /// Pushes and running jobs go on. A pause survives a restart, and a second one replaces the
    /// first. The time is by the wall clock, and moves back with it if that is set back.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999, [`QueueError::Store`] if the
    /// database fails.
    pub fn pause(&self, time: Option<Duration>) -> Result<(), QueueError> {
        let wall = self.moment().wall;
        let until = time.map_or(Ok(u64::MAX), |time| job::after(wall, time).ok_or(ConfigError::RunAt))?;
        self.pause_until(until)
    }

    /// Ends a [`pause`](Self::pause). Does nothing if there is none.
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails.
    pub fn resume(&self) -> Result<(), QueueError> {
        self.pause_until(0)
    }

    fn pause_until(&self, until: u64) -> Result<(), QueueError> {
        self.engine.steer(self.number, Steer::Pause(until)).map(drop)
    }
}
