//! The row of a job.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::job::{JobState, Priority, Retention};
use crate::types::related::{OnDead, Root, Skipped};
use crate::types::unique::{Fingerprint, Until};
use waterline::Retry;

/// The row of a job. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub state: JobState,
    pub priority: Priority,
    pub kind: String,
    pub retry: Option<Retry>,
    pub retention: Option<Retention>,
    /// How many attempts failed.
    pub failures: u32,
    pub crashes: u32,
    pub pushed: u64,
    /// The time from which it may run; 0: since the push.
    pub due: u64,
    /// True if the user named that time. Otherwise it was computed from the clock.
    pub named: bool,
    /// When it entered its state, or for a scheduled job, when it got its due time.
    pub since: u64,
    /// Its place, depending on its state: the index in the ready log, the token of the lease, or
    /// when the row is removed. A scheduled job is at its `due`.
    pub place: u64,
    /// The time from which it runs again, after the current run has succeeded.
    pub resubmit: Option<u64>,
    /// When that was requested; 0: the user named the time.
    pub resubmitted: u64,
    /// True if there is a record of data.
    pub has_data: bool,
    /// The text of the last failure.
    pub error: String,
    /// Settings that few jobs have.
    pub extras: Option<Box<Extras>>,
}

impl Row {
    /// Returns what an entry says about a job whose row cannot be read. Its other records may
    /// exist.
    pub fn unreadable(priority: Priority, place: u64, held: Option<String>) -> Self {
        Self {
            state: JobState::Damaged,
            priority,
            kind: String::new(),
            retry: None,
            retention: None,
            failures: 0,
            crashes: 0,
            pushed: 0,
            due: 0,
            named: false,
            since: 0,
            place,
            resubmit: None,
            resubmitted: 0,
            has_data: true,
            error: String::new(),
            extras: Some(Box::new(Extras { held, has_meta: true, has_progress: true, ..NO_EXTRAS.clone() })),
        }
    }

    /// Returns its extras, to be read.
    pub fn extras(&self) -> &Extras {
        self.extras.as_deref().unwrap_or(&NO_EXTRAS)
    }

    /// True if the job is at this place of a ready log. Otherwise the entry there is stale.
    pub fn is_at(&self, lane: usize, index: u64) -> bool {
        let is_there = self.state == JobState::Ready && self.place == index && self.priority as usize == lane;
        is_there && self.extras().held.is_none()
    }

    /// True if the job runs, under this lease.
    pub fn has_lease(&self, token: u64) -> bool {
        self.state == JobState::Running && self.place == token
    }

    /// True if no other job is claimed in the same write: the process has died while this one ran.
    /// If it is to blame, the next crash counts for no other job that may not have started.
    pub fn is_claimed_alone(&self) -> bool {
        self.crashes > 0
    }

    /// True if this limit holds the job, at this place of its log.
    pub fn is_held(&self, limit: &str, index: u64) -> bool {
        self.state == JobState::Ready && self.place == index && self.extras().held.as_deref() == Some(limit)
    }

    /// Resets what belongs to the previous state: no limit holds it, no stopping runner runs it,
    /// and once it has ended it no longer runs alone.
    pub fn clear_state(&mut self) {
        if let Some(extras) = &mut self.extras {
            (extras.held, extras.is_stopping) = (None, false);
            extras.is_suspect &= !self.state.is_ended();
            if **extras == NO_EXTRAS {
                self.extras = None;
            }
        }
    }

    /// Forgets that it is to run again. Returns when that was requested; 0: never, or the user
    /// named the time.
    pub(crate) fn take_resubmit(&mut self) -> u64 {
        self.resubmit = None;
        std::mem::take(&mut self.resubmitted)
    }

    /// Returns its extras, to be changed.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_with(|| Box::new(NO_EXTRAS.clone()))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Extras {
    /// Until when the job has no twin.
    pub unique: Option<Until>,
    /// A digest of the kind and the payload, for a job that is compared with others.
    pub fingerprint: Option<Fingerprint>,
    /// It is skipped if a twin with this lease or a later one has succeeded: that twin started
    /// after the push. (Times could not tell, since clocks are set.)
    pub skips_from: Option<u64>,
    pub root: Option<Root>,
    /// True for the root itself, false for its leaves.
    pub is_root: bool,
    /// The time by which it must have started, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// The key of its limits.
    pub key: Option<String>,
    /// How many tokens it takes from each rate.
    pub cost: u32,
    /// The limit that holds it. Its place is then one in the log of that limit.
    pub held: Option<String>,
    /// For how many jobs it still waits, or did when it died.
    pub after: u32,
    pub on_dead: OnDead,
    /// The number of the list of jobs that wait for its end.
    pub awaited: Option<u64>,
    /// The number of the list of jobs that keep waiting when it dies.
    pub held_up: Option<u64>,
    /// Why it finished without a run.
    pub skipped: Option<Skipped>,
    pub has_meta: bool,
    pub has_progress: bool,
    /// Its runner was stopping while it ran. If the process ends now, that is no crash.
    pub is_stopping: bool,
    /// Its process died while it ran, and not for the first time: it runs alone.
    pub is_suspect: bool,
}

/// The extras of a job that has none.
pub(crate) static NO_EXTRAS: Extras = Extras {
    unique: None,
    fingerprint: None,
    skips_from: None,
    root: None,
    is_root: false,
    expires: None,
    key: None,
    cost: 1,
    held: None,
    after: 0,
    on_dead: OnDead::Die,
    awaited: None,
    held_up: None,
    skipped: None,
    has_meta: false,
    has_progress: false,
    is_stopping: false,
    is_suspect: false,
};
