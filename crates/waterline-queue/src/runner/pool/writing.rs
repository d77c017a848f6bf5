//! The writes of a runner: the ends of jobs, and the claims of the next ones.

use crate::engine;
use crate::engine::{Claim, Claimed, Ending};
use crate::notify::losses::Runs;
use crate::rules::ends::{End, When};
use crate::runner::attempt::{AttemptPort, Report};
use crate::runner::outcome::QueueEvent;
use crate::runner::pool::stopping::held;
use crate::runner::pool::{Flight, Pool};
use crate::runner::running::{NextJob, Running};
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use crate::types::job::JobState;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use waterline::Error;
use waterline::seam::{Changes, ClockExt, describe};

/// What a write does besides the ends of attempts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteBeside {
    /// Maintenance, and it claims this many jobs at most.
    Claim(usize),
    /// Maintenance.
    Tidy,
    Nothing,
}

impl WriteBeside {
    fn of(wants: usize) -> Self {
        if wants > 0 { Self::Claim(wants) } else { Self::Tidy }
    }
}

/// The result of a claim.
pub(super) enum Answer {
    /// At least one job.
    Jobs(Vec<Claimed>),
    Nothing,
    /// No job so far: look again.
    Again,
}

/// A written end that was not announced yet.
struct Ended {
    report: Report,
    ended: AttemptEnd,
    /// The time since the attempt started.
    elapsed: Duration,
}

/// The result of one write: the ends of attempts, and the next jobs.
type WriteResult = (Vec<Option<Option<JobState>>>, Answer);

/// How long a job is snoozed that pushes into a full queue.
const FULL: Duration = Duration::from_secs(1);

impl Pool {
    /// Writes the ends of attempts, and claims this many jobs in the same batch, for which slots
    /// are reserved. The caller has counted the write. Written reports are taken from the list.
    pub(super) fn write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: usize) -> Result<Answer, QueueError> {
        let begun = waterline::seam::now();
        let mut ended = Vec::new();
        let mut answer = self.try_write(reports, WriteBeside::of(wants), &mut ended);
        if let Err(error @ QueueError::Store(Error::Corrupt { .. })) = &answer {
            // The queue of a group that the job is in must not hold up claims from the others.
            let others_go_on = self.source().set_aside(error);
            // A job that cannot be read holds up claims, but not the ends of others.
            let ends = if reports.is_empty() {
                Ok(Answer::Again)
            } else {
                self.try_write(reports, WriteBeside::Nothing, &mut ended)
            };
            answer = if others_go_on { ends.map(|_| Answer::Again) } else { ends.and(answer) };
        }
        let claimed = if let Ok(Answer::Jobs(claimed)) = &answer { claimed.len() } else { 0 };
        let rings = {
            let mut state = self.state.lock();
            state.slots.reserved = state.slots.reserved.saturating_sub(wants - claimed);
            state.outbox.writes = state.outbox.writes.saturating_sub(1);
            std::mem::take(&mut state.outbox.is_full)
        };
        // Hooks may take long, and must not hold up another write.
        if rings {
            self.source().ring();
        }
        self.tell_beside(ended, &answer);
        let mut state = self.state.lock();
        if wants > 0 && answer.is_ok() {
            state.outbox.batch_sizer.wrote(begun, waterline::seam::now(), claimed);
            state.outbox.tried.is_vain = claimed == 0;
        }
        self.end_if_over(&mut state);
        drop(state);
        answer
    }

    /// Starts the first of the claimed jobs, and puts the others into the claim batch.
    pub(super) fn take_up(&self, claimed: Vec<Claimed>) -> Option<NextJob> {
        let mut claimed = claimed.into_iter();
        let next = self.begin(claimed.next()?);
        let others: Vec<_> = claimed.collect();
        let is_shared = !others.is_empty();
        if is_shared {
            let abandoned = {
                let mut state = self.state.lock();
                state.outbox.claim_batch.put(others);
                if state.drain.abandoned { state.outbox.claim_batch.take_jobs() } else { VecDeque::new() }
            };
            self.put_back(abandoned.iter().map(held).collect());
        }
        self.source().slot_is_free();
        self.source().pass_on();
        if is_shared {
            // Another thread has to take them if the first one is long.
            self.source().ring();
        }
        next
    }

    /// Puts a claimed job in flight. The handler gets the same [`Running`], so it sees when it is
    /// asked to end. `None`: a stop has given up all jobs meanwhile, so this one, which that stop
    /// may have handed back, goes back without waiting for its lease.
    pub(super) fn begin(&self, claimed: Claimed) -> Option<NextJob> {
        let (job, payload) = self.claimed(claimed);
        let mut is_lost = false;
        let (is_stopping, is_first_full) = {
            let mut state = self.state.lock();
            if state.drain.abandoned {
                drop(state);
                self.put_back(vec![job.held()]);
                return None;
            }
            state.slots.reserved = state.slots.reserved.saturating_sub(1);
            state.drain.claims += 1;
            let is_stopping = self.is_stopping();
            state.drain.noting += usize::from(is_stopping);
            let flight = Flight {
                job: job.clone(),
                ended: false,
                is_noted: is_stopping,
                lost: None,
                #[cfg(feature = "tokio")]
                task: None,
            };
            state.slots.flights.insert(job.flight(), flight);
            if !state.slots.lost_early.is_empty() {
                let (flight, begun) = (job.flight(), state.drain.claims);
                is_lost = state.slots.lost_early.iter().any(|(lost, _)| *lost == flight);
                state.slots.lost_early.retain(|(_, until)| *until > begun);
            }
            (is_stopping, self.is_first_full(&mut state))
        };
        if is_first_full {
            self.spawn_watch();
        }
        if let Some(me) = self.threads.host().upgrade().filter(|_| is_lost) {
            me.lost(job.flight().0, &[job.token()]);
        }
        if is_stopping {
            self.note_stop(std::slice::from_ref(&job));
        }
        Some((job, payload))
    }

    /// Makes the writes, and adds the written ends to the list.
    fn try_write(
        self: &Arc<Self>,
        reports: &mut Vec<Report>,
        beside: WriteBeside,
        ended: &mut Vec<Ended>,
    ) -> Result<Answer, QueueError> {
        let (own, written) = reports
            .extract_if(.., |report| report.written.is_some())
            .map(|report| {
                let written = report.written.flatten();
                (report, written)
            })
            .unzip();
        self.settle(own, written, ended);
        // Writes of the user's are in the batch only if the job is still this worker's, so each
        // such report is a call of its own.
        while let Some(at) = reports.iter().position(|report| !report.effects.is_empty()) {
            let claims = matches!(beside, WriteBeside::Claim(_)) && reports.len() == 1;
            let tidies = if beside == WriteBeside::Nothing || claims { beside } else { WriteBeside::Tidy };
            let (written, claim) = match self.call(&reports[at..=at], tidies) {
                Ok(written) => written,
                Err(QueueError::Halt { .. }) => (vec![None], Answer::Again),
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
                    // Running jobs make room, so this one frees its slot for another one.
                    let report = &mut reports[at];
                    let at = When::After(FULL);
                    (report.end, report.effects, report.data) = (End::Snoozed { at }, Changes::default(), None);
                    let (queue, id) = (report.job.queue_name(), report.job.id());
                    let (kind, attempt) = (report.job.kind(), report.job.attempt());
                    tracing::warn!(target: "waterline", queue, id, kind, attempt, full, "a job pushes into a queue that is full, and is snoozed for a second");
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.settle(vec![reports.remove(at)], written, ended);
            if claims {
                return Ok(claim);
            }
        }
        let (written, claim) = self.call(reports, beside)?;
        self.settle(std::mem::take(reports), written, ended);
        Ok(claim)
    }

    /// Announces these ends, before any thread runs the jobs that were claimed with them. If this
    /// thread panics, those are given up as those in flight are.
    fn tell_beside(&self, ended: Vec<Ended>, answer: &Result<Answer, QueueError>) {
        let told = catch_unwind(AssertUnwindSafe(|| ended.into_iter().for_each(|ended| self.tell(ended))));
        if let Err(panic) = told {
            if let Ok(Answer::Jobs(claimed)) = answer {
                self.give_up(claimed.iter().map(held).collect());
            }
            resume_unwind(panic);
        }
    }

    pub(super) fn claimed(&self, claimed: Claimed) -> (Running, Vec<u8>) {
        let (_, queue) = self.source().by_number(claimed.queue);
        Running::new(queue, claimed, &self.stopping)
    }

    /// Makes one write.
    fn call(&self, reports: &[Report], beside: WriteBeside) -> Result<WriteResult, QueueError> {
        let news = self.source().news();
        let tried = self.state.lock().outbox.tried.since(news);
        let (from, most) = match beside {
            WriteBeside::Claim(most) => (self.source().choose(&tried), most),
            WriteBeside::Tidy | WriteBeside::Nothing => (None, 0),
        };
        if reports.is_empty() && from.is_none() {
            return Ok((Vec::new(), Answer::Nothing));
        }
        let ends: Vec<_> = reports.iter().map(ending).collect();
        let claim = from.map(|(_, queue)| Claim { queue: queue.number, most, wanted: self.source().wanted() });
        let beside = if beside == WriteBeside::Nothing { engine::Beside::Nothing } else { engine::Beside::Tidy };
        let first = self.source().first();
        let turned = match first.embedded() {
            Some(embedded) => {
                let effects = reports.first().map(|report| report.effects.clone()).unwrap_or_default();
                embedded.turn_with(&ends, claim, beside, effects)?
            }
            None => first.engine.turn(&ends, claim, beside)?,
        };
        let answer = match turned.claimed {
            claimed if !claimed.is_empty() => Answer::Jobs(claimed),
            _ if turned.again => Answer::Again,
            _ => from.map_or(Answer::Nothing, |(place, _)| self.found_nothing(news, place)),
        };
        Ok((turned.ended, answer))
    }

    /// Notes that a claim from the queue at this index has found nothing, since this news.
    fn found_nothing(&self, news: u64, place: usize) -> Answer {
        let tried = {
            let mut state = self.state.lock();
            state.outbox.tried.note(news, place);
            state.outbox.tried.since(news)
        };
        if self.source().has_others(&tried) { Answer::Again } else { Answer::Nothing }
    }

    /// Notes that these ends are written. Their slots are free from now on.
    fn settle(&self, reports: Vec<Report>, written: Vec<Option<Option<JobState>>>, ended: &mut Vec<Ended>) {
        let now = self.source().clock().now();
        let end = |(report, written): (Report, _)| {
            let elapsed = now.saturating_duration_since(report.job.begun());
            Ended { ended: report.ended(written), elapsed, report }
        };
        let settled: Vec<_> = reports.into_iter().zip(written).map(end).collect();
        {
            let mut state = self.state.lock();
            state.outbox.telling += settled.len();
            state.slots.last_end = if settled.is_empty() { state.slots.last_end } else { Some(now) };
            for Ended { report, ended, .. } in &settled {
                state.drain.tally(self.source().place_of(&report.job)).count(ended);
                state.slots.flights.remove(&report.job.flight());
            }
        }
        for Ended { report, ended, .. } in &settled {
            self.timeouts.iter().for_each(|timeouts| timeouts.forget(report.job.flight()));
            if *ended == AttemptEnd::Finished {
                report.job.queue().shared.averages.add(report.job.kind(), report.took);
            }
        }
        ended.extend(settled);
    }

    fn tell(&self, Ended { report: Report { job, .. }, ended, elapsed }: Ended) {
        let (queue, id, kind, attempt) = (job.queue().name(), job.id(), job.kind(), job.attempt());
        job.queue().shared.log_end((id, kind, attempt), &ended);
        let ended_event = QueueEvent::AttemptEnded { queue, id, kind, attempt, elapsed, ended: &ended };
        self.hooks().tell(&job, &ended_event);
        self.hooks().teardown(&job, &ended);
        self.state.lock().outbox.telling -= 1;
    }
}

/// True if no retry can make the writes of a job succeed. An unreadable record may be one of
/// another job, unless nothing is done besides the end of this one.
fn is_for_good(error: &Error, beside: WriteBeside) -> bool {
    error.is_for_good() || beside == WriteBeside::Nothing && matches!(error, Error::Corrupt { .. })
}

/// Returns the end of an attempt as it is written, with the durations to store with it.
fn ending(report: &Report) -> Ending {
    let Report { job, end, data, took, .. } = report;
    let due = || {
        let durations = job.queue().shared.averages.due(job.kind(), *took, job.begun().checked_add(*took)?)?;
        Some((job.kind().to_owned(), durations))
    };
    let durations = if *end == End::Finished { due() } else { None };
    Ending { job: job.held(), end: end.clone(), data: data.clone(), durations }
}
