//! A registered periodic job.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::config::ConfigError;
use crate::types::config::check_name;
use crate::types::new_job::{DueTime, NewJob};
use crate::types::schedule::{CatchUp, Overlap, Schedule};

/// A periodic job, as it was registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Periodic {
    pub name: String,
    pub schedule: Schedule,
    pub job: NewJob,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    /// True if the first tick is the next one of the schedule, and not at once.
    pub at_next: bool,
}

impl Periodic {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_name("periodic job", &self.name)?;
        self.schedule.check()?;
        if self.job.id.is_some() || self.job.due != DueTime::Now || !self.job.after.is_empty() {
            let why = "has an id, a delay or a time of its own, or waits for other jobs: leave them out, since each tick makes a \
                       new job at its time";
            return Err(self.refused("job", "the job of the periodic job", why));
        }
        if self.catch_up == CatchUp::All && self.overlap == Overlap::Skip {
            let why = "makes up for all missed ticks at once, and skips a tick while a run has not ended: allow runs side by side \
                       with `Overlap::Allow`, or use `CatchUp::One`";
            return Err(self.refused("catch_up", "the periodic job", why));
        }
        Ok(())
    }

    /// Makes the error for a name that is registered with another schedule, job or setting.
    pub fn registered_otherwise(&self) -> ConfigError {
        let why = "is registered with another schedule, job or setting: use the same one, or call `remove_periodic` first (after \
                   a restart, another one holds)";
        self.refused("twice", "the periodic job", why)
    }

    fn refused(&self, fault: &'static str, of: &str, why: &str) -> ConfigError {
        let name = self.name.clone();
        ConfigError::Periodic { fault, why: format!("{of} {name:?} {why}"), name }
    }
}
