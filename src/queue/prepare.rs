//! A new job becomes a push: its settings are checked, and it gets an id and a row.

use super::meta;
use super::new_job::NewJob;
use super::row::Row;
use super::state::QueueState;
use super::step::Push;
use super::unique::Clash;
use crate::base::config::ConfigError;
use crate::queue::job::{self, JobState, MADE};
use std::time::Duration;

impl QueueState {
    /// Checks a job, and gives it an id if it has none.
    pub(super) fn prepare(&self, new: NewJob, wall: u64) -> Result<Push, ConfigError> {
        new.check()?;
        let due = new.due.at(wall)?;
        let extras = new.extras(wall)?;
        let (clash, window) = new.unique.map_or((Clash::Keep, Duration::ZERO), |unique| (unique.clash, unique.window));
        let window = job::after(0, window).ok_or(ConfigError::RunAt)?;
        let meta = if new.meta.is_empty() { Vec::new() } else { meta::text(&new.meta) };
        let made = if new.id.is_none() { Some(self.make_id()) } else { None };
        let id = new.id.unwrap_or_else(|| format!("{MADE}{}", made.unwrap_or_default()));
        let row = Row {
            state: JobState::Ready,
            priority: new.priority,
            kind: new.kind,
            retry: new.retry,
            retention: new.retention,
            failures: 0,
            crashes: 0,
            pushed: wall,
            due,
            since: wall,
            place: 0,
            resubmit: None,
            has_data: false,
            error: String::new(),
            extras,
        };
        let mut after = new.after;
        after.sort_unstable();
        after.dedup();
        Ok(Push { id, made, row, payload: new.payload, meta, clash, window, after, awaited_by: None })
    }
}
