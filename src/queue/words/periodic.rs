//! A periodic job that is registered.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::base::config::{ConfigError, check_name};
use crate::queue::words::new_job::{Due, NewJob};
use crate::queue::words::schedule::{CatchUp, Overlap, Schedule};

/// A periodic job, as it was registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Periodic {
    pub name: String,
    pub schedule: Schedule,
    pub job: NewJob,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    /// True if the first tick is one of the schedule, and not at once.
    pub at_next: bool,
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
