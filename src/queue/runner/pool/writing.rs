//! The writes of a runner: the ends of jobs, and the claims of the next ones.

use super::{Flight, Pool};
use crate::base::error::{Error, describe};
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::commit::changes::Changes;
use crate::queue::intent::call_with;
use crate::queue::job::JobState;
use crate::queue::rules::End;
use crate::queue::runner::reports::Report;
use crate::queue::runner::{Ended, QueueEvent, Running};
use crate::queue::step::{AT_ONCE, Claim, Claimed, is_damage};
use crate::queue::{QueueError, SOME};

/// The answer to one write: the ends of attempts, and the next job.
type Written = (Vec<Option<Option<JobState>>>, Claim);

impl Pool {
    /// Writes the ends of attempts, and claims the next job in the same batch. Reports that are
    /// written are taken from the list.
    pub(super) fn write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: bool) -> Result<Claim, QueueError> {
        let answer = self.try_write(reports, wants);
        if !matches!(answer, Ok(Claim::Job(_))) {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(usize::from(wants));
            self.end_if_over(&mut state);
        }
        answer
    }

    /// Makes a job that was claimed one in flight. The handler gets the same [`Running`], so it
    /// sees when it is asked to end.
    pub(super) fn take_up(&self, claimed: Claimed) -> (Running, Vec<u8>) {
        let (job, payload) = Running::new(self.queue(), claimed, &self.stopping);
        let flight = Flight {
            job: job.clone(),
            ended: false,
            #[cfg(feature = "tokio")]
            task: None,
        };
        {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(1);
            state.claims += 1;
            if state.abandoned {
                self.give_up(&job);
            } else {
                state.flights.insert(job.token(), flight);
            }
        }
        self.queue().inner().slot_is_free();
        self.queue().inner().pass_on();
        (job, payload)
    }

    fn try_write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: bool) -> Result<Claim, QueueError> {
        self.queue().take_back_silent()?;
        // Writes of the user's are in the batch only if the job is still this worker's, so each
        // such report is a call of its own.
        while let Some(at) = reports.iter().position(|report| !report.effects.is_empty()) {
            let last = reports.len() == 1;
            let (written, claim) = match self.call(&reports[at..=at], last && wants) {
                Ok(written) => written,
                Err(QueueError::Halt { .. }) => (vec![None], Claim::Again),
                Err(QueueError::Store(error @ Error::Counter { .. })) => {
                    // No retry mends that.
                    let report = &mut reports[at];
                    (report.end, report.effects) = (End::Buried { reason: describe(&error) }, Changes::default());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let report = reports.remove(at);
            self.written(vec![report], written);
            if last && wants {
                return Ok(claim);
            }
        }
        let (written, claim) = self.call(reports, wants)?;
        self.written(std::mem::take(reports), written);
        Ok(claim)
    }

    /// Makes one batch of these ends and of a claim.
    pub(super) fn call(&self, reports: &[Report], wants: bool) -> Result<Written, QueueError> {
        if reports.is_empty() && !wants {
            return Ok((Vec::new(), Claim::Nothing));
        }
        let end =
            |report: &Report| (report.job.id().to_owned(), report.job.token(), report.end.clone(), report.data.clone());
        let ends: Vec<_> = reports.iter().map(end).collect();
        let effects = reports.first().map(|report| report.effects.clone()).unwrap_or_default();
        let has_effects = !effects.is_empty();
        let queue = self.queue();
        call_with(queue.store(), queue.inner(), "run a job", effects, move |step| {
            step.keep_house(SOME)?;
            let mut written = Vec::with_capacity(ends.len());
            for (id, token, end, data) in &ends {
                written.push(match step.end(id, *token, end.clone(), data.as_deref()) {
                    Ok(state) => Some(state),
                    Err(error) if !has_effects && (is_halt(&error) || is_damage(&error)) => None,
                    Err(error) => return Err(error),
                });
            }
            let claim = if wants { step.claim(None)? } else { Claim::Nothing };
            if wants && matches!(claim, Claim::Nothing) {
                // No job waits for this, so it may take longer.
                step.keep_house(AT_ONCE)?;
            }
            Ok((written, claim))
        })
    }

    /// Notes that these ends are written, and tells everybody.
    pub(super) fn written(&self, reports: Vec<Report>, written: Vec<Option<Option<JobState>>>) {
        for (report, written) in reports.into_iter().zip(written) {
            let ended = report.ended(written);
            let now = self.queue().inner().moment().now;
            let elapsed = now.saturating_duration_since(report.job.begun());
            {
                let mut state = self.state.lock();
                state.tally.count(&ended);
                state.flights.remove(&report.job.token());
            }
            self.timeouts.iter().for_each(|timeouts| timeouts.forget(report.job.token()));
            let job = &report.job;
            log(job, &ended);
            let (queue, id, kind, attempt) = (self.queue().name(), job.id(), job.kind(), job.attempt());
            let ended_event = QueueEvent::AttemptEnded { queue, id, kind, attempt, elapsed, ended: &ended };
            self.hooks().tell(job, &ended_event);
            self.hooks().teardown(job, &ended);
        }
    }
}

fn is_halt(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(QueueError::Halt { .. }))
}

fn log(job: &Running, ended: &Ended) {
    let (queue, id, kind, attempt) = (job.queue_name(), job.id(), job.kind(), job.attempt());
    match ended {
        Ended::Finished | Ended::Snoozed => {}
        Ended::Retried { error } => {
            tracing::debug!(target: "waterline", queue, id, kind, attempt, error, "a job failed, and is tried again");
        }
        Ended::Dead { error } => {
            tracing::warn!(target: "waterline", queue, id, kind, attempt, error, "a job is dead: mend its cause and requeue it, or remove it");
        }
        Ended::Lost => {
            tracing::warn!(target: "waterline", queue, id, kind, attempt, "a job was removed or taken over while it ran; its end was not written");
        }
    }
}
