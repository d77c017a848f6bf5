//! A periodic job that is registered.

use crate::base::config::{ConfigError, check_name};
use crate::queue::words::new_job::{Due, NewJob};
use crate::queue::words::schedule::{CatchUp, Overlap, Schedule};

/// A periodic job, as it was registered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Periodic {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) job: NewJob,
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: CatchUp,
    /// True if the first tick is one of the schedule, and not at once.
    pub(crate) at_next: bool,
}

impl Periodic {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_name("periodic job", &self.name)?;
        self.schedule.check()?;
        let name = self.name.clone();
        if self.job.id.is_some() || self.job.due != Due::Now || !self.job.after.is_empty() {
            return Err(ConfigError::PeriodicJob { name });
        }
        if self.catch_up == CatchUp::All && self.overlap == Overlap::Skip {
            return Err(ConfigError::CatchUpSkips { name });
        }
        Ok(())
    }
}
