//! The rules of a push: the settings of a new job are checked, and it gets an id and a row.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::rules::set_back::{Latest, SetBack};
use crate::types::config::ConfigError;
use crate::types::job::{JobId, JobState, MADE, after};
use crate::types::meta;
use crate::types::new_job::{DueTime, NewJob};
use crate::types::related::OnDead;
use crate::types::row::{Extras, NO_EXTRAS, Row};
use crate::types::unique::{Clash, Fields, Fingerprint};
use std::borrow::Cow;
use std::time::Duration;

/// What happens to a push whose id exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The job waits and is due at the same time: nothing changes.
    Same,
    /// It waits for another time: it is moved, and gets the new payload.
    Move,
    /// It runs: it is flagged to run once more, and nothing else changes.
    Flag,
    /// It has ended: it runs again, with the new payload.
    Renew,
}

/// Returns it by the rules of CouchDB's `add`.
pub(crate) fn push_again(state: JobState, due: u64, new_due: u64) -> Again {
    match state {
        state if state.waits() && due == new_due => Again::Same,
        JobState::Scheduled | JobState::Ready | JobState::Waiting => Again::Move,
        JobState::Running => Again::Flag,
        JobState::Finished | JobState::Dead | JobState::Damaged => Again::Renew,
    }
}

pub(crate) fn has_room(waiting: u64, most: Option<u64>) -> bool {
    most.is_none_or(|most| waiting < most)
}

/// A job to be pushed, with checked settings.
#[derive(Clone, Debug)]
pub struct Push {
    pub id: JobId,
    /// The number in an id that the queue has made.
    pub made: Option<u64>,
    pub row: Row,
    pub payload: Vec<u8>,
    /// The text of its metadata, if it has some.
    pub meta: Vec<u8>,
    /// What happens to a twin of a unique job.
    pub clash: Clash,
    /// For how many milliseconds it refuses twins, if a time decides that.
    pub window: u64,
    /// The ids of the jobs to wait for, each once.
    pub after: Vec<JobId>,
    /// A job with this setting, which is pushed in the same batch, will wait for it.
    pub awaited_by: Option<OnDead>,
    /// True if it was pushed with a delay: its due time is that long after `row.pushed`.
    pub is_delayed: bool,
}

impl Push {
    /// Returns the time from which its due time was computed; 0: the user named that.
    pub(crate) fn reckoned_at(&self, wall: u64) -> u64 {
        if self.row.named || self.row.due == 0 { 0 } else { wall }
    }

    /// Returns it adjusted to a queue whose time is `wall`. If it was prepared at a later time, the
    /// clock was set back since.
    pub(crate) fn of_time(&self, wall: u64) -> Cow<'_, Self> {
        let Some(set) = Latest::stored(self.row.pushed).set_back_to(wall) else { return Cow::Borrowed(self) };
        let mut push = self.clone();
        push.row.go_back(&set);
        Cow::Owned(push)
    }
}

impl Row {
    /// Moves times written ahead of a set-back clock, but not named ones. Returns true if any
    /// moved.
    pub(crate) fn go_back(&mut self, set: &SetBack) -> bool {
        let has_moved = match self.state {
            JobState::Finished | JobState::Dead => set.move_both(&mut self.since, &mut self.place),
            JobState::Running => set.move_one(&mut self.since),
            // One that was pushed to be due at once is due.
            _ if self.named || self.due == 0 => set.move_one(&mut self.since),
            _ => set.move_both(&mut self.since, &mut self.due),
        };
        let has_again = match &mut self.resubmit {
            Some(due) => set.move_both(&mut self.resubmitted, due),
            None => false,
        };
        let expires = self.extras.as_mut().and_then(|extras| extras.expires.as_mut());
        set.move_both(&mut self.pushed, expires.unwrap_or(&mut 0)) || has_moved || has_again
    }
}

/// Checks a job, and gives it an id if it has none.
///
/// # Errors
/// The errors of an invalid job.
pub(crate) fn prepare(new: NewJob, wall: u64, make_id: impl FnOnce() -> u64) -> Result<Push, ConfigError> {
    new.check()?;
    let (due, is_delayed) = (new.due.at(wall)?, matches!(new.due, DueTime::After(_)));
    let extras = extras_of(&new, wall)?;
    let (clash, window) = new.unique.map_or((Clash::Keep, Duration::ZERO), |unique| (unique.clash, unique.window));
    let window = after(0, window).ok_or(ConfigError::RunAt)?;
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
        named: matches!(new.due, DueTime::At(_)),
        since: wall,
        place: 0,
        resubmit: None,
        resubmitted: 0,
        has_data: false,
        error: String::new(),
        extras,
    };
    let mut after = new.after;
    after.sort_unstable();
    after.dedup();
    Ok(Push { id, made, row, payload: new.payload, meta, clash, window, after, awaited_by: None, is_delayed })
}

fn extras_of(new: &NewJob, wall: u64) -> Result<Option<Box<Extras>>, ConfigError> {
    let is_compared = new.unique.is_some() || new.skips_executed;
    let (waits, has_meta) = (!new.after.is_empty(), !new.meta.is_empty());
    let is_limited = new.key.is_some() || new.cost != NO_EXTRAS.cost;
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
        ..NO_EXTRAS.clone()
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_of_a_known_id_moves_flags_or_renews_the_job() {
        use JobState::{Damaged, Dead, Finished, Ready, Running, Scheduled, Waiting};
        for (states, at_its_time, at_another) in [
            (&[Scheduled, Ready, Waiting][..], Again::Same, Again::Move),
            (&[Running], Again::Flag, Again::Flag),
            (&[Finished, Dead, Damaged], Again::Renew, Again::Renew),
        ] {
            for state in states {
                let again = [5, 4, 6].map(|due| push_again(*state, 5, due));
                assert_eq!(again, [at_its_time, at_another, at_another], "{state:?}");
            }
        }
        assert_eq!([None, Some(3), Some(2)].map(|most| has_room(2, most)), [true, true, false]);
    }

    #[test]
    fn a_push_keeps_all_settings() {
        let second = Duration::from_secs(1);
        let job = || NewJob::new("k", &1).expect("it is JSON");
        let made = |new| prepare(new, 7, || 3).expect("it is a job");
        let new = job().after(["b", "a", "b"]).on_dead(OnDead::Hold).expires(second).delay(second).key("x").cost(2);
        let push = made(new);
        assert_eq!((push.id.as_str(), push.made, push.is_delayed), ("~3", Some(3), true));
        assert_eq!(push.after, ["a", "b"]);
        assert_eq!((push.row.pushed, push.row.due, push.row.named), (7, 1_007, false));
        let extras = push.row.extras();
        assert_eq!((extras.on_dead, extras.expires, extras.cost), (OnDead::Hold, Some(1_007), 2));
        assert_eq!(extras.key.as_deref(), Some("x"));
        let named = made(job().id("a").run_at(std::time::UNIX_EPOCH + second)).row;
        assert_eq!((named.due, named.named, named.extras), (1_000, true, None));
    }
}
