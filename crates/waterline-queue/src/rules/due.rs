//! Which ticks of a periodic job are due. It is pure: the caller passes the time.

use crate::types::schedule::{CatchUp, Overlap, Schedule};

/// From this lateness on a tick counts as missed. It is far above the pauses of a healthy process,
/// which looks for due ticks once a second.
const LATE: u64 = 60_000;

/// The due ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The ticks that make a job.
    pub run: Vec<u64>,
    /// The last tick that is dealt with, with or without a job.
    pub last: u64,
    /// The next tick, which may be due as well; `u64::MAX`: there is none.
    pub next: u64,
    /// True if a tick makes no job because the last run has not ended.
    pub skipped: bool,
    /// The first tick that makes no job because it was missed.
    pub missed: Option<u64>,
}

/// Decides which ticks are due, if the last one was at `last`, in milliseconds since 1970. A clock
/// that was set back repeats no tick. At most `most` ticks make a job per call.
pub(crate) fn due(
    schedule: &Schedule,
    (overlap, catch_up): (Overlap, CatchUp),
    (last, has_unfinished): (u64, bool),
    now: u64,
    most: usize,
) -> Due {
    let ticks = schedule.ticks(last);
    let first = ticks.next(last);
    let mut due = Due { run: Vec::new(), last, next: first.unwrap_or(u64::MAX), skipped: false, missed: None };
    let Some(first) = first.filter(|first| *first <= now) else { return due };
    if catch_up == CatchUp::All {
        while due.next <= now && due.run.len() < most {
            due.last = due.next;
            due.run.push(due.last);
            due.next = ticks.next(due.last).unwrap_or(u64::MAX);
        }
        return due;
    }
    let newest = ticks.newest(first, now);
    (due.last, due.next) = (newest, ticks.next(newest).unwrap_or(u64::MAX));
    let is_late = now - newest > LATE && catch_up == CatchUp::None;
    due.missed = (is_late || newest > first).then_some(first);
    if is_late {
        return due;
    }
    due.skipped = has_unfinished && overlap == Overlap::Skip;
    if !due.skipped {
        due.run.push(newest);
    }
    due
}

#[cfg(test)]
mod tests;
