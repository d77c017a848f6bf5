//! An attempt, and its end on the way to the store.

use crate::rules::ends::{End, When};
use crate::runner::hooks::Hooks;
use crate::runner::outcome::Outcome;
use crate::runner::running::{FlightId, Running};
use crate::types::ended::AttemptEnd;
use crate::types::job::{JobState, LATEST, millis};
use crate::types::json::to_json;
use std::sync::Arc;
use std::time::Duration;
use waterline::BoxError;
use waterline::seam::{
    Changes, FailureVerdict as Verdict, Moment, Own, describe, drop_guarded, failure_verdict as verdict,
};

/// The runner of an attempt, as the attempt sees it.
pub(super) trait AttemptPort: Send + Sync {
    /// Makes the calling thread one of the runner's own until the returned guard is dropped.
    fn enter(&self) -> Own;

    fn hooks(&self) -> &Hooks;

    fn is_stopping(&self) -> bool;

    fn moment(&self) -> Moment;

    /// Takes the right to report the end of a job. Only one caller gets it.
    fn claim_end(&self, flight: FlightId) -> bool;

    /// Takes a report whose right was claimed.
    fn hand_in(&self, report: Report);
}

/// An attempt in flight. Its holder reports its end, once.
pub(super) struct Attempt {
    port: Arc<dyn AttemptPort>,
    job: Running,
}

impl Attempt {
    pub(super) fn new(port: Arc<dyn AttemptPort>, job: Running) -> Self {
        Self { port, job }
    }

    pub(super) fn job(&self) -> &Running {
        &self.job
    }

    /// Makes the calling thread one of the runner's own until the returned guard is dropped. User
    /// code that stops the runner there must not wait for this very attempt.
    pub(super) fn enter(&self) -> Own {
        self.port.enter()
    }

    pub(super) fn hooks(&self) -> &Hooks {
        self.port.hooks()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.port.is_stopping()
    }

    /// Returns the time since the claim.
    pub(super) fn elapsed(&self) -> Duration {
        self.port.moment().now.saturating_duration_since(self.job.begun())
    }

    /// Hands the end to the threads of the pool, unless the attempt has timed out before.
    pub(super) fn report(self, report: impl FnOnce(&Self) -> Report) {
        if self.claim_end() {
            self.hand_in(report);
        }
    }

    pub(super) fn claim_end(&self) -> bool {
        self.port.claim_end(self.job.flight())
    }

    /// Hands the end to the threads of the pool. The caller has the right to do so.
    pub(super) fn hand_in(&self, report: impl FnOnce(&Self) -> Report) {
        let report = {
            let _own = self.enter();
            report(self)
        };
        self.port.hand_in(report);
    }
}

/// The outcome of an attempt, and the changes that are written with its end if the job is finished.
pub(super) type Answer = (Outcome, Changes);

/// The end of an attempt that is to be written.
pub(super) struct Report {
    pub(super) job: Running,
    pub(super) end: End,
    pub(super) data: Option<Vec<u8>>,
    /// The time from the claim to the answer of the handler.
    pub(super) took: Duration,
    pub(super) effects: Changes,
    /// Set if the end is written already.
    pub(super) written: Option<Written>,
}

/// The state of a job after an attempt (`Some(None)`: its row is gone); `None`: the lease was over.
pub(crate) type Written = Option<Option<JobState>>;

impl Report {
    /// Returns the report of an attempt. It calls the user's code, so no lock may be held.
    pub(super) fn of(attempt: &Attempt, outcome: Result<Outcome, BoxError>) -> Self {
        Self::of_answer(attempt, outcome.map(|outcome| (outcome, Changes::default())))
    }

    pub(super) fn of_answer(attempt: &Attempt, answer: Result<Answer, BoxError>) -> Self {
        let (outcome, effects) = match answer {
            Ok((outcome, effects)) => (Ok(outcome), effects),
            Err(error) => (Err(error), Changes::default()),
        };
        let (job, took) = (attempt.job().clone(), attempt.elapsed());
        let outcome = attempt.hooks().after(&job, outcome);
        let (end, data) = match outcome.and_then(|outcome| end_of(&job, outcome)) {
            Ok(ended) => ended,
            Err(error) => {
                let end = end_of_failure(attempt, &error);
                // Its destructor must not end a thread of the runner, and the report with it.
                drop_guarded(error);
                (end, None)
            }
        };
        let effects = if end == End::Finished { effects } else { Changes::default() };
        Self { job, end, data, took, effects, written: None }
    }

    /// Returns the report of an end that was, or could not be, written elsewhere, after the hooks.
    pub(super) fn written_elsewhere(attempt: &Attempt, written: Result<Written, BoxError>) -> Self {
        let (job, took) = (attempt.job().clone(), attempt.elapsed());
        let (end, written) = match written {
            Ok(written) => (End::Finished, Some(written)),
            Err(error) => (end_of_failure(attempt, &error), None),
        };
        Self { job, end, data: None, took, effects: Changes::default(), written }
    }

    /// Returns the end as it was written; `None`: the job was no longer this worker's.
    pub(super) fn ended(&self, written: Option<Option<JobState>>) -> AttemptEnd {
        written.map_or(AttemptEnd::Lost, |state| AttemptEnd::of(&self.end, state))
    }
}

/// Returns the end of an attempt, with the data that it leaves.
fn end_of(job: &Running, outcome: Outcome) -> Result<(End, Option<Vec<u8>>), BoxError> {
    let time = |time| millis(time).unwrap_or(LATEST);
    Ok(match outcome {
        Outcome::Done => (End::Finished, None),
        Outcome::DoneWith(data) => {
            let data = to_json(job.id(), &data)?;
            job.job().queue.shared.options.check_payload("data", data.len())?;
            (End::Finished, Some(data))
        }
        Outcome::RetryAt(at) => {
            (End::Failed { error: "it asked for another time".to_owned(), at: Some(time(at)) }, None)
        }
        Outcome::Snooze(at) => (End::Snoozed { at: When::At(time(at)) }, None),
        Outcome::Dead(reason) => (End::Buried { reason }, None),
    })
}

/// Returns the end of a failed attempt. While the runner is stopping, the job is put back.
fn end_of_failure(attempt: &Attempt, error: &BoxError) -> End {
    match end_of_error(error) {
        End::Failed { error, .. } if attempt.is_stopping() => End::PutBack { error },
        end => end,
    }
}

/// Returns how an error ends its attempt: see [`Failure`](waterline::Failure).
fn end_of_error(error: &BoxError) -> End {
    let text = describe(&**error);
    match verdict(&**error) {
        Verdict::Retry => End::Failed { error: text, at: None },
        Verdict::Permanent => End::Buried { reason: text },
        Verdict::Defer(delay) => End::Snoozed { at: When::After(delay) },
    }
}
