//! The writes of a runner: the ends of jobs, and the claims of the next ones.

use crate::base::error::{Error, describe};
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::commit::changes::Changes;
use crate::queue::embedded::codec::durations::Pair;
use crate::queue::embedded::intent::call_on;
use crate::queue::embedded::state::QueueState;
use crate::queue::embedded::step::{AT_ONCE, Claim, Claimed};
use crate::queue::handle::{Queue, SOME};
use crate::queue::rules::ends::End;
use crate::queue::runner::attempt::{Desk, Report};
use crate::queue::runner::outcome::QueueEvent;
use crate::queue::runner::pool::{Flight, Pool};
use crate::queue::runner::running::Running;
use crate::queue::waits::lines;
use crate::queue::words::ended::Ended;
use crate::queue::words::error::{QueueError, is_damage};
use crate::queue::words::job::JobState;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The work of a write beside the ends of attempts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// It does what time has brought, and claims the next job.
    Claim,
    /// It does what time has brought.
    Tidy,
    Nothing,
}

impl Beside {
    fn of(wants: bool) -> Self {
        if wants { Self::Claim } else { Self::Tidy }
    }
}

/// The answer to one write: the ends of attempts, and the next job.
type Written = (Vec<Option<Option<JobState>>>, Claim);

/// The milliseconds for which a job is snoozed that pushes into a queue that is full.
const FULL: u64 = 1000;

impl Pool {
    /// Writes the ends of attempts, and claims the next job in the same batch. Reports that are
    /// written are taken from the list.
    pub(super) fn write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: bool) -> Result<Claim, QueueError> {
        let mut answer = self.try_write(reports, Beside::of(wants));
        if let Err(error @ QueueError::Store(Error::Corrupt { .. })) = &answer {
            // The queue of a group that the job is in holds up no claims from the others.
            let others_go_on = self.source().set_aside(error);
            // A job that cannot be read holds up claims, and no ends of others.
            let ends = if reports.is_empty() { Ok(Claim::Again) } else { self.try_write(reports, Beside::Nothing) };
            answer = if others_go_on { ends.map(|_| Claim::Again) } else { ends.and(answer) };
        }
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
        let (job, payload) = self.claimed(claimed);
        let is_stopping = {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(1);
            state.claims += 1;
            let is_stopping = self.is_stopping();
            state.noting += usize::from(is_stopping);
            if state.abandoned {
                self.give_up(&job);
            } else {
                let flight = Flight {
                    job: job.clone(),
                    ended: false,
                    is_noted: is_stopping,
                    #[cfg(feature = "tokio")]
                    task: None,
                };
                state.flights.insert(job.flight(), flight);
            }
            is_stopping
        };
        if is_stopping {
            self.note_stop(std::slice::from_ref(&job));
        }
        self.source().slot_is_free();
        self.source().pass_on();
        (job, payload)
    }

    fn try_write(self: &Arc<Self>, reports: &mut Vec<Report>, beside: Beside) -> Result<Claim, QueueError> {
        if beside != Beside::Nothing {
            self.source().take_back_silent()?;
        }
        // Writes of the user's are in the batch only if the job is still this worker's, so each
        // such report is a call of its own.
        while let Some(at) = reports.iter().position(|report| !report.effects.is_empty()) {
            let claims = beside == Beside::Claim && reports.len() == 1;
            let tidies = if beside == Beside::Nothing { beside } else { Beside::of(claims) };
            let (written, claim) = match self.call(&reports[at..=at], tidies) {
                Ok(written) => written,
                Err(QueueError::Halt { .. }) => (vec![None], Claim::Again),
                Err(QueueError::Store(error)) if is_for_good(&error, beside) => {
                    let report = &mut reports[at];
                    (report.end, report.effects) = (End::Buried { reason: describe(&error) }, Changes::default());
                    continue;
                }
                Err(
                    error @ (QueueError::NotFound { .. } | QueueError::Cycle { .. } | QueueError::AlreadyRuns { .. }),
                ) => {
                    // It pushes a job that cannot wait for those that it names. Its next attempt
                    // may name others.
                    let report = &mut reports[at];
                    let failed = End::Failed { error: describe(&error), at: None };
                    (report.end, report.effects) = (failed, Changes::default());
                    continue;
                }
                Err(QueueError::Full { queue: full, .. }) => {
                    // Jobs that run make room, so this one gives its slot to another one.
                    let report = &mut reports[at];
                    let until = self.source().moment().wall.saturating_add(FULL);
                    (report.end, report.effects, report.data) = (End::Snoozed { at: until }, Changes::default(), None);
                    let (queue, id) = (report.job.queue_name(), report.job.id());
                    let (kind, attempt) = (report.job.kind(), report.job.attempt());
                    tracing::warn!(target: "waterline", queue, id, kind, attempt, full, "a job pushes into a queue that is full, and is snoozed for a second");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let report = reports.remove(at);
            let claim = self.tell_beside(vec![report], written, claim);
            if claims {
                return Ok(claim);
            }
        }
        let (written, claim) = self.call(reports, beside)?;
        Ok(self.tell_beside(std::mem::take(reports), written, claim))
    }

    /// Tells everybody of these ends, while nobody runs the job that was claimed beside them. If
    /// this thread panics, that job is given up as those in flight are.
    fn tell_beside(&self, reports: Vec<Report>, written: Vec<Option<Option<JobState>>>, claim: Claim) -> Claim {
        let told = catch_unwind(AssertUnwindSafe(|| self.written(reports, written)));
        if let Err(panic) = told {
            if let Claim::Job(claimed) = claim {
                self.give_up(&self.claimed(*claimed).0);
            }
            resume_unwind(panic);
        }
        claim
    }

    fn claimed(&self, claimed: Claimed) -> (Running, Vec<u8>) {
        let (_, queue) = self.source().by_number(claimed.queue);
        Running::new(queue, claimed, &self.stopping)
    }

    /// Makes one batch of these ends and of what is done beside.
    fn call(&self, reports: &[Report], beside: Beside) -> Result<Written, QueueError> {
        let from = if beside == Beside::Claim { self.source().choose()? } else { None };
        if reports.is_empty() && from.is_none() {
            return Ok((Vec::new(), Claim::Nothing));
        }
        let mut queues = Vec::with_capacity(1);
        let ends: Vec<_> =
            reports.iter().map(|report| (place(&mut queues, report.job.queue()), report.written())).collect();
        let from = from.map(|queue| place(&mut queues, queue));
        let tidies = beside != Beside::Nothing;
        let effects = reports.first().map(|report| report.effects.clone()).unwrap_or_default();
        let has_effects = !effects.is_empty();
        let (count, durations) = (queues.len(), durations_due(reports, &mut queues));
        call_on(self.source().store(), queues, "run a job", effects, move |steps| {
            let (mut written, mut claim) = (vec![None; ends.len()], Claim::Nothing);
            for at in 0..count {
                let runs: Vec<_> = ends.iter().map(|(_, (_, token, ..))| steps.run_of(at, *token)).collect();
                steps.at(at, |step| {
                    if tidies {
                        step.keep_house(SOME)?;
                    }
                    let own = ends.iter().zip(&runs).zip(&mut written).filter(|(((place, _), _), _)| *place == at);
                    let mut has_ended = false;
                    for (((_, (id, token, end, data)), run), written) in own {
                        *written = match step.end(id, *token, end.clone(), data.as_deref(), run) {
                            Ok(state) => Some(state),
                            Err(error) if !has_effects && (is_halt(&error) || is_damage(&error)) => None,
                            Err(error) => return Err(error),
                        };
                        has_ended |= written.is_some();
                    }
                    if has_ended {
                        let own = durations.iter().filter(|(place, _)| *place == at);
                        step.store_durations(own.map(|(_, durations)| durations))?;
                    }
                    if from == Some(at) {
                        claim = step.claim(None)?;
                        if matches!(claim, Claim::Nothing) {
                            // No job waits for this, so it may take longer.
                            step.keep_house(AT_ONCE)?;
                        }
                    }
                    Ok(())
                })?;
            }
            Ok((written, claim))
        })
    }

    /// Notes that these ends are written, and tells everybody.
    pub(super) fn written(&self, reports: Vec<Report>, written: Vec<Option<Option<JobState>>>) {
        for (report, written) in reports.into_iter().zip(written) {
            let ended = report.ended(written);
            if ended == Ended::Finished {
                report.job.queue().inner().averages.add(report.job.kind(), report.took);
            }
            let now = self.source().clock().now();
            let elapsed = now.saturating_duration_since(report.job.begun());
            let place = self.source().place_of(&report.job);
            {
                let mut state = self.state.lock();
                state.tally(place).count(&ended);
                state.flights.remove(&report.job.flight());
                state.telling += 1;
            }
            self.timeouts.iter().for_each(|timeouts| timeouts.forget(report.job.flight()));
            let job = &report.job;
            let (queue, id, kind, attempt) = (job.queue().name(), job.id(), job.kind(), job.attempt());
            lines::ended(&job.queue().inner().lines, queue, (id, kind, attempt), &ended);
            let ended_event = QueueEvent::AttemptEnded { queue, id, kind, attempt, elapsed, ended: &ended };
            self.hooks().tell(job, &ended_event);
            self.hooks().teardown(job, &ended);
            self.state.lock().telling -= 1;
        }
    }
}

/// True if no retry makes the writes of a job. A record that cannot be read may be one of another
/// job, unless nothing is done beside the end of this one.
fn is_for_good(error: &Error, beside: Beside) -> bool {
    matches!(error, Error::Counter { .. }) || beside == Beside::Nothing && matches!(error, Error::Corrupt { .. })
}

/// Returns the records of durations that are due with these ends, each with the place of its queue.
/// Mostly there is none.
fn durations_due(reports: &[Report], queues: &mut Vec<Arc<QueueState>>) -> Vec<(usize, Pair)> {
    let finished = reports.iter().filter(|report| report.end == End::Finished);
    let due = |Report { job, took, .. }: &Report| {
        let durations = job.queue().inner().durations_due(job.kind(), job.begun(), *took)?;
        Some((place(queues, job.queue()), durations))
    };
    finished.filter_map(due).collect()
}

/// Returns the place of a queue in the list of a call, in which it is from then on.
fn place(queues: &mut Vec<Arc<QueueState>>, queue: &Queue) -> usize {
    let known = queues.iter().position(|state| Arc::ptr_eq(state, queue.inner()));
    known.unwrap_or_else(|| {
        queues.push(queue.inner().clone());
        queues.len() - 1
    })
}

pub(super) fn is_halt(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(QueueError::Halt { .. }))
}
