//! A new job becomes a push: its settings are checked, and it gets an id and a row.

use super::extras::{self, Extras};
use super::fingerprint::{Fields, Fingerprint};
use super::meta;
use super::new_job::NewJob;
use super::related::OnDead;
use super::row::Row;
use super::state::QueueState;
use super::step::Push;
use super::unique::Clash;
use crate::base::config::ConfigError;
use crate::queue::job::{self, JobState, MADE, after};
use std::time::Duration;

/// Checks a job, and gives it an id if it has none.
pub(super) fn prepare(new: NewJob, wall: u64, make_id: impl FnOnce() -> u64) -> Result<Push, ConfigError> {
    new.check()?;
    let due = new.due.at(wall)?;
    let extras = extras_of(&new, wall)?;
    let (clash, window) = new.unique.map_or((Clash::Keep, Duration::ZERO), |unique| (unique.clash, unique.window));
    let window = job::after(0, window).ok_or(ConfigError::RunAt)?;
    let meta = if new.meta.is_empty() { Vec::new() } else { meta::text(&new.meta) };
    let made = if new.id.is_none() { Some(make_id()) } else { None };
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

/// Returns the extras of the row of a job, if it has any.
fn extras_of(new: &NewJob, wall: u64) -> Result<Option<Box<Extras>>, ConfigError> {
    let is_compared = new.unique.is_some() || new.skips_executed;
    let (waits, has_meta) = (!new.after.is_empty(), !new.meta.is_empty());
    let is_limited = new.key.is_some() || new.cost != extras::NONE.cost;
    let is_related = new.root.is_some() || new.expires.is_some() || waits;
    if !is_compared && !is_limited && !is_related && !has_meta {
        return Ok(None);
    }
    let fields = new.unique.as_ref().map_or(&Fields::All, |unique| &unique.fields);
    let fingerprint = is_compared.then(|| Fingerprint::of(&new.kind, &new.payload, fields)).transpose()?;
    let expires = new.expires.map(|time| after(wall, time).ok_or(ConfigError::RunAt)).transpose()?;
    Ok(Some(Box::new(Extras {
        unique: new.unique.as_ref().map(|unique| unique.until),
        fingerprint,
        skips_from: new.skips_executed.then_some(0),
        root: new.root.clone(),
        is_root: new.is_root,
        expires,
        on_dead: if waits { new.on_dead } else { OnDead::Die },
        has_meta,
        key: new.key.clone(),
        cost: new.cost,
        ..extras::NONE.clone()
    })))
}
