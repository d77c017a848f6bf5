//! The ends of attempts, and what they make of the job. Pure: no store, no clock, no thread.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::ended::AttemptEnd;
use crate::types::job::{JobState, LATEST, Retention, after};
use crate::types::progress::JobProgress;
use std::time::Duration;
use waterline::Retry;

/// The back-off after the second and each further crash, with full jitter: so a job that kills its
/// process does not take down the same neighbours again and again.
const AFTER_CRASH: Retry = Retry::exponential(Duration::from_secs(1), Duration::from_secs(300)).jitter(1.0);

/// When a job that was not ready runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A time that the user named, in milliseconds since 1970.
    At(u64),
    /// This long after the end of the attempt.
    After(Duration),
}

/// How an attempt ended, as its worker reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Finished,
    /// It failed. The next attempt comes after the back-off, or at this time, which the user named.
    Failed {
        error: String,
        at: Option<u64>,
    },
    /// It was not ready: it runs again at this time, and the attempt does not count.
    Snoozed {
        at: When,
    },
    /// It failed for good.
    Buried {
        reason: String,
    },
    /// Its runner stopped before it was done: it runs again, and the attempt does not count.
    PutBack {
        error: String,
    },
    /// Its process died while it ran.
    Crashed,
}

/// Why the lease of a running job is over although its worker has ended no attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its process died.
    Died,
    /// Its worker, or the one that had the job after that, was silent for this time.
    Silent(Duration),
}

/// Returns the end of an attempt whose lease is over. A stop takes precedence: it has cut the
/// attempt short, so the silence or death after it says nothing about the job.
pub fn end_of_lease(over: Over, is_stopping: bool) -> End {
    match over {
        _ if is_stopping => End::PutBack { error: String::new() },
        Over::Died => End::Crashed,
        Over::Silent(time) => End::Failed { error: format!("its worker was silent for {time:?}"), at: None },
    }
}

/// What is known of a run besides its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// How long its worker was seen at it. After a crash the duration is unknown.
    pub(crate) lasted: Duration,
    /// Its last progress, if it is to be written.
    pub(crate) progress: Option<JobProgress>,
}

/// True if a job with this many crashes before is to run alone after this end of an attempt.
///
/// One crash says little: its neighbours died with it. After the second one, an attempt alone shows
/// whether the job is to blame. An attempt that ends without a crash clears it.
pub(crate) fn is_suspect(was_suspect: bool, crashes: u32, end: &End) -> bool {
    match end {
        End::Crashed => crashes >= 1,
        // The attempt was cut short, so it has shown nothing.
        End::PutBack { .. } => was_suspect,
        _ => false,
    }
}

/// The part of a row that decides the next state.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    pub failures: u32,
    pub crashes: u32,
    pub retry: Retry,
    pub max_crashes: Option<u32>,
    /// Set if it was pushed once more meanwhile, for this time.
    pub resubmit: Option<u64>,
    /// True if this run was so long that earlier failures no longer count.
    pub is_healed: bool,
}

/// The next state of a job whose attempt has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Finish,
    /// It was pushed meanwhile: it runs anew at this time.
    Anew {
        due: u64,
        crashes: u32,
        error: Option<String>,
    },
    /// It waits until this time (0: it is ready). `named`: the user named it.
    Wait {
        due: u64,
        named: bool,
        failures: u32,
        crashes: u32,
        error: Option<String>,
    },
    Die {
        failures: u32,
        crashes: u32,
        error: String,
    },
}

/// Decides the next state of a job whose attempt has ended.
pub fn next(past: &Past, end: End, wall: u64, chance: f64) -> Next {
    let crashes = past.crashes;
    let failures = if past.is_healed { 0 } else { past.failures };
    let next = match end {
        End::Finished => Next::Finish,
        End::Snoozed { at: When::At(due) } => Next::Wait { due, named: true, failures, crashes, error: None },
        End::Snoozed { at: When::After(pause) } => {
            Next::Wait { due: soon(wall, pause), named: false, failures, crashes, error: None }
        }
        End::PutBack { .. } => Next::Wait { due: 0, named: false, failures, crashes, error: None },
        End::Buried { reason } => Next::Die { failures: failures.saturating_add(1), crashes, error: reason },
        End::Failed { error, at } => {
            let failures = failures.saturating_add(1);
            match past.retry.delay(failures, chance) {
                None => Next::Die { failures, crashes, error },
                Some(pause) => {
                    let due = at.unwrap_or_else(|| soon(wall, pause));
                    Next::Wait { due, named: at.is_some(), failures, crashes, error: Some(error) }
                }
            }
        }
        End::Crashed => {
            let crashes = crashes.saturating_add(1);
            if past.max_crashes.is_some_and(|most| crashes >= most) {
                let times = if crashes == 1 { "once".to_owned() } else { format!("{crashes} times") };
                let error = format!("its process died {times} while it ran");
                Next::Die { failures, crashes, error }
            } else {
                let pause = if crashes == 1 { None } else { AFTER_CRASH.delay(crashes - 1, chance) };
                let due = pause.map_or(0, |pause| soon(wall, pause));
                Next::Wait { due, named: false, failures, crashes, error: None }
            }
        }
    };
    match (next, past.resubmit) {
        (Next::Finish, Some(due)) => Next::Anew { due, crashes: 0, error: None },
        // The push requested a new run, which has attempts of its own.
        (Next::Die { error, crashes: before, .. }, Some(due)) if before == crashes => {
            Next::Anew { due, crashes, error: Some(error) }
        }
        (next, _) => next,
    }
}

/// Returns the time after this pause, at most the end of the calendar.
fn soon(wall: u64, pause: Duration) -> u64 {
    after(wall, pause).unwrap_or(LATEST)
}

/// Returns when the row of a finished job is removed; `None`: at once.
pub(crate) fn kept_until(retention: Retention, wall: u64) -> Option<u64> {
    match retention {
        Retention::Drop => None,
        Retention::Keep => Some(u64::MAX),
        Retention::For(time) if time.is_zero() => None,
        Retention::For(time) => Some(after(wall, time).unwrap_or(u64::MAX)),
    }
}

/// Returns the state of a waiting job. It is due when its time has come, to the millisecond.
pub(crate) fn waiting(due: u64, wall: u64) -> JobState {
    if due <= wall { JobState::Ready } else { JobState::Scheduled }
}

impl AttemptEnd {
    /// Returns the end of an attempt that left its job in this state; `None`: the job is gone.
    pub(crate) fn of(end: &End, state: Option<JobState>) -> Self {
        let error = || match end {
            End::Failed { error, .. } => error.clone(),
            End::Buried { reason } => reason.clone(),
            _ => String::new(),
        };
        match (end, state) {
            (End::Finished, _) => Self::Finished,
            (End::Snoozed { .. }, _) => Self::Snoozed,
            (End::PutBack { error }, _) => Self::PutBack { error: error.clone() },
            (_, Some(JobState::Dead) | None) => Self::Dead { error: error() },
            _ => Self::Retried { error: error() },
        }
    }
}

#[cfg(test)]
mod tests;
