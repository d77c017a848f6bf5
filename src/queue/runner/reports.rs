//! The ends of attempts, on their way to the store.

use super::attempts::Attempt;
use super::{Ended, Outcome, Running};
use crate::base::error::describe;
use crate::base::failure::{Verdict, verdict};
use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::commit::changes::Changes;
use crate::queue::job::{JobState, LATEST, after, millis, to_json};
use crate::queue::rules::End;
use std::time::Duration;

/// The end of an attempt that is to be written.
pub(super) struct Report {
    pub(super) job: Running,
    pub(super) end: End,
    pub(super) data: Option<Vec<u8>>,
    /// The time from the claim to the answer of the handler.
    pub(super) took: Duration,
    /// The writes that belong to it.
    pub(super) effects: Changes,
}

impl Report {
    /// Returns the report of an attempt with this outcome. It calls the user's code: the text of an
    /// error is made here, with no lock held.
    pub(super) fn of(attempt: &Attempt, outcome: Result<Outcome, BoxError>) -> Self {
        Self::with_effects(attempt, outcome, Changes::default())
    }

    pub(super) fn with_effects(attempt: &Attempt, outcome: Result<Outcome, BoxError>, effects: Changes) -> Self {
        let (job, took) = (attempt.job().clone(), attempt.elapsed());
        let outcome = attempt.hooks().after(&job, outcome);
        let (end, data) = match outcome.and_then(|outcome| end_of(&job, outcome)) {
            Ok(ended) => ended,
            Err(error) => {
                let end = match end_of_error(&error, attempt.wall()) {
                    End::Failed { error, .. } if attempt.is_stopping() => End::PutBack { error },
                    end => end,
                };
                // Its destructor must not end a thread of the runner, with the report.
                drop_guarded(error);
                (end, None)
            }
        };
        let effects = if end == End::Finished { effects } else { Changes::default() };
        Self { job, end, data, took, effects }
    }

    /// Returns the part of it that is written: the id, the token, the end and the data.
    pub(super) fn written(&self) -> (String, u64, End, Option<Vec<u8>>) {
        (self.job.id().to_owned(), self.job.token(), self.end.clone(), self.data.clone())
    }

    /// Returns the end as it was written; `None`: the job was no longer this worker's.
    pub(super) fn ended(&self, written: Option<Option<JobState>>) -> Ended {
        written.map_or(Ended::Lost, |state| Ended::of(&self.end, state))
    }
}

/// Returns the end of an attempt, with the data that it leaves.
fn end_of(job: &Running, outcome: Outcome) -> Result<(End, Option<Vec<u8>>), BoxError> {
    let time = |time| millis(time).unwrap_or(LATEST);
    Ok(match outcome {
        Outcome::Done => (End::Finished, None),
        Outcome::DoneWith(data) => (End::Finished, Some(to_json(job.id(), &data)?)),
        Outcome::RetryAt(at) => {
            (End::Failed { error: "it asked for another time".to_owned(), at: Some(time(at)) }, None)
        }
        Outcome::Snooze(at) => (End::Snoozed { at: time(at) }, None),
        Outcome::Dead(reason) => (End::Buried { reason }, None),
    })
}

/// Returns what an error makes of its attempt: see [`Failure`](crate::Failure).
fn end_of_error(error: &BoxError, wall: u64) -> End {
    let text = describe(&**error);
    match verdict(&**error) {
        Verdict::Retry => End::Failed { error: text, at: None },
        Verdict::Permanent => End::Buried { reason: text },
        Verdict::Defer(delay) => End::Snoozed { at: after(wall, delay).unwrap_or(LATEST) },
    }
}
