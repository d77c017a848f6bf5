//! Turns: the ends of attempts and the claims of the next jobs, in one call.

use super::answers::{self, Answer, Ended, happened, signed, state_of, unsigned, untold};
use super::opened::Opened;
use super::presence::said;
use super::queues::Remote;
use super::server::{Server, TurnCall};
use super::settings::whole;
use crate::engine::{Beside, Claim, Ending, Held, Turned};
use crate::notify::presence::Presence;
use crate::notify::shared::Wake;
use crate::rules::ends::{End, When};
use crate::types::error::QueueError;
use crate::types::events::Event;
use crate::types::job::JobState;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam;

/// How long one that waits for a job is notified, unless it asks again.
const LISTENS: Duration = Duration::from_secs(3);

/// The most jobs whose ends one call looks up.
const SETTLED: usize = 256;

/// The state of a job after an end; `None`: the lease had ended.
type Settled = Option<Option<JobState>>;

#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    /// The same by the clock of the machine, which no test sets.
    called: Instant,
    /// True if it also does the maintenance that is due.
    is_tidy: bool,
    /// How many changes this process knew of.
    changes: u64,
}

/// Returns whether a claim that takes each job of its kinds, behind ends that bring back no job,
/// left none that may run: it found fewer than it wanted, or the server says so. Then waiters need
/// not look, unless the queue has more. `None`: the answer says nothing of other jobs.
fn is_short(claim: Option<&Claim>, answers: &[Answer], told: &[Event]) -> Option<bool> {
    let is_over = |happened: &Event| match happened {
        Event::Seen { state, .. } => matches!(state, Some(JobState::Running | JobState::Finished)),
        Event::Line(_) => true,
        _ => false,
    };
    let count = |what: &str| answers.iter().filter(|answer| answer.what == what).count();
    let takes_each = |claim: &Claim| claim.wanted.due_by.is_none();
    let is_all = told.iter().all(is_over) && count("more") == 0;
    let claim = claim.filter(|claim| takes_each(claim) && count("again") == 0 && is_all)?;
    Some(count("claimed") < claim.most || count("short") > 0)
}

/// Returns the word for an end, the time that it names, and its error.
fn parts_of(end: &End) -> (&'static str, Option<u64>, Option<&String>) {
    match end {
        End::Finished => ("finished", None, None),
        End::Failed { error, at } => ("failed", *at, Some(error)),
        End::Snoozed { at: When::At(at) } => ("snoozed", Some(*at), None),
        End::Snoozed { at: When::After(_) } => ("snoozed", None, None),
        End::Buried { reason } => ("buried", None, Some(reason)),
        End::PutBack { error } => ("put_back", None, Some(error)),
        End::Crashed => ("crashed", None, None),
    }
}

impl<S: Server> Remote<S> {
    fn turned(
        &self,
        queue: &Arc<Opened>,
        answers: Vec<Answer>,
        ends: &[&Ending],
        claim: Option<&Claim>,
        asked: Asked,
    ) -> Turned {
        let mut turned = Turned::default();
        let (mut told, untold) = (happened(&answers), untold(&answers));
        let own: HashSet<_> = ends.iter().map(|end| &end.job.id).collect();
        let is_foreign = |happened: &Event| match happened {
            Event::Seen { id, .. } => !own.contains(id),
            _ => true,
        };
        let lost = self.note_lost(queue, told.iter().filter(|happened| is_foreign(happened)), asked.called);
        let ended = answers::ended(&answers);
        let state = |end: &&Ending| {
            ended.get(&self.leases.key(&end.job)).filter(|answer| answer.is_counted()).map(|answer| answer.state())
        };
        turned.ended = ends.iter().map(state).collect();
        for (end, ended) in ends.iter().zip(&turned.ended) {
            if ended.is_none() {
                told.retain(|happened| !matches!(happened, Event::Seen { id, .. } if *id == end.job.id));
            }
        }
        // Claims that looked while this call had such jobs locked have passed them by.
        let lined = answers.iter().any(|answer| answer.what == "lined");
        let is_short = is_short(claim, &answers, &told).filter(|_| !lined);
        let keeps_look = answers.iter().any(|answer| ["short", "full"].contains(&&*answer.what));
        let is_shown = answers.iter().any(|answer| answer.what == "peek");
        let mut changes = asked.changes;
        if let Some(is_short) = is_short.filter(|_| keeps_look) {
            queue.note_claimed(changes, !is_short, claim.and_then(|claim| claim.wanted.kinds.as_deref()));
        } else if lined || (!told.is_empty() || untold > 0) && !ends.is_empty() {
            // Its peek was taken behind its own ends, so it stays valid.
            changes = queue.note_own_change(changes);
        }
        let (mut claimed, mut untaken) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer.what.as_str() {
                "lined" => untaken.extend(answer.kind),
                "claimed" => claimed.push(answer.claimed(queue.number)),
                "again" => turned.again = true,
                "peek" => {
                    queue.note_peek(
                        &answer,
                        asked.is_tidy,
                        changes,
                        claim.and_then(|claim| claim.wanted.kinds.as_ref()),
                    );
                    queue.seen.lock().told_until = unsigned(answer.since);
                }
                _ => {}
            }
        }
        if !claimed.is_empty() {
            self.leases.add(queue, &claimed, asked.at).tell();
            turned.claimed = claimed.into_iter().map(|(_, claimed)| claimed).collect();
        }
        if !is_shown && is_short != Some(true) && claim.is_some_and(|claim| turned.claimed.len() == claim.most) {
            queue.note_more();
        }
        if !turned.claimed.is_empty() {
            self.keep_leases();
        }
        if lined || !told.is_empty() || untold > 0 {
            let all = is_short != Some(true) || queue.last_peek().is_none_or(|peek| peek.ready > 0);
            queue.shared.told(told, untold);
            queue.shared.wake(Wake { all, room: true, sooner: true, ..Wake::default() });
        }
        if untold > 0 {
            self.watch(queue, true);
        }
        lost.tell();
        queue.shared.settle();
        untaken.iter().for_each(|kind| queue.shared.note_kind(kind, || true));
        turned
    }

    /// Loads the jobs of a claim that did not fit into its answer. One that another worker has by
    /// now is left out, and so is one that cannot be loaded, which comes again after its lease.
    fn load(&self, queue: &Opened, answers: &mut Vec<Answer>) {
        let mut tries = 0;
        loop {
            let brief: Vec<_> = answers.iter().filter(|answer| answer.is_brief()).collect();
            if brief.is_empty() {
                return;
            }
            let run = |answer: &&Answer| Some((queue.number, answer.number?, answer.token?));
            let runs = brief.iter().filter_map(run).collect();
            match queue.explained("load jobs", self.server.load(queue.at(), &runs)) {
                Ok(loaded) if loaded.is_empty() => break,
                Ok(loaded) => loaded.into_iter().for_each(|one| answers::loaded(one, answers)),
                // The call before has succeeded, so the connection was lost since.
                Err(_) if tries == 0 => tries += 1,
                Err(error) => {
                    let (queue, jobs) = (queue.name(), runs.numbers.len());
                    tracing::warn!(target: "waterline", queue, jobs, %error, "jobs that were claimed cannot be loaded; they come again when their leases are over");
                    break;
                }
            }
        }
        answers.retain(|answer| !answer.is_brief());
    }

    pub(super) fn turn_of(
        &self,
        queue: &Arc<Opened>,
        ends: &[&Ending],
        claim: Option<&Claim>,
        is_tidy: bool,
    ) -> Result<Turned, QueueError> {
        if is_tidy {
            self.tick_all(queue)?;
        }
        let settled = self.settled(queue, ends)?;
        let all = ends;
        let ends: &[&Ending] =
            &all.iter().zip(&settled).filter(|(_, settled)| settled.is_none()).map(|(end, _)| *end).collect::<Vec<_>>();
        let mut turn = TurnCall { runs: self.leases.runs(ends.iter().map(|end| &end.job)), ..TurnCall::default() };
        for Ending { end, data, .. } in ends {
            let (name, at, error) = parts_of(end);
            turn.ends.push(name);
            let at = at.map(|at| signed(queue.on_server(at)));
            // A time below 0 is a delay, by the clock of the server.
            turn.ats.push(if let End::Snoozed { at: When::After(delay) } = end { Some(-whole(*delay)) } else { at });
            turn.errors.push(error.map(|error| error.replace('\0', "\u{fffd}")));
            turn.datas.push(data.as_deref().map(String::from_utf8_lossy));
        }
        // The server does due maintenance once a second by itself. A test does not wait for that.
        let seen = queue.last_peek().map_or_else(|| queue.clock().is_some(), |peek| peek.is_due());
        let asked =
            Asked { at: queue.moment().now, called: seam::now(), is_tidy: is_tidy && seen, changes: queue.changes() };
        let is_subscribed = queue.shared.is_watched();
        let due_since = is_subscribed.then(|| signed(queue.seen.lock().told_until));
        let by_hand = claim.map(|claim| Presence {
            slots: None,
            kinds: claim.wanted.kinds.clone(),
            stuck: 0,
            is_stopping: false,
            began: 0,
        });
        let about = said(queue.about(asked.at, by_hand));
        let turn = TurnCall {
            is_of_queue: is_tidy || claim.is_some(),
            most: claim.map(|claim| i32::try_from(claim.most).unwrap_or(i32::MAX)),
            kinds: claim.and_then(|claim| claim.wanted.kinds.as_deref()),
            due_by: claim.and_then(|claim| claim.wanted.due_by).map(|due| signed(queue.on_server(due))),
            // The clock of a test is frozen, so it renews nothing, and may jump.
            lease: queue.clock().map(|_| 1 << 50),
            tick: is_tidy && seen,
            arm: whole(LISTENS),
            due_since,
            about,
            ..turn
        };
        let doing = if ends.is_empty() { "claim jobs" } else { "end jobs" };
        let answers = queue.explained(doing, self.server.turn(queue.at(), &turn));
        queue.shared.note_failing(answers.as_ref().err());
        let TurnCall { runs, datas, .. } = &turn;
        let ended = ends.iter().enumerate().map(|(at, end)| -> Ended<'_> {
            let data = datas[at].as_ref().map(|data| data.clone().into_owned());
            (runs.numbers[at], runs.tokens[at], &*end.job.id, data)
        });
        let mut answers = answers::each_ended(answers?, &ended.collect::<Vec<_>>());
        self.load(queue, &mut answers);
        // The jobs of a claim come in any order, behind what happened before it.
        answers.sort_by_key(|answer| answer.place());
        let mut turned = self.turned(queue, answers, ends, claim, asked);
        let mut open = turned.ended.into_iter();
        turned.ended = settled.into_iter().map(|settled| settled.unwrap_or_else(|| open.next().flatten())).collect();
        Ok(turned)
    }

    /// Asks what became of ends that were sent without an answer. `None`: still to be written.
    fn settled(&self, queue: &Arc<Opened>, ends: &[&Ending]) -> Result<Vec<Option<Settled>>, QueueError> {
        let mut settled = vec![None; ends.len()];
        let doubted: Vec<_> = (0..ends.len()).filter(|at| self.leases.is_doubted(&ends[*at].job)).collect();
        if doubted.is_empty() {
            return Ok(settled);
        }
        let mut known = Vec::new();
        for doubted in doubted.chunks(SETTLED) {
            let runs = self.leases.runs(doubted.iter().map(|at| &ends[*at].job));
            known.extend(queue.explained("see if jobs have ended", self.server.ended_by(queue.at(), &runs))?);
        }
        for (at, (outcome, state)) in doubted.into_iter().zip(known) {
            let job = &ends[at].job;
            let state = state.as_deref().and_then(state_of);
            settled[at] = match &outcome[..] {
                "held" => continue,
                "counted" => Some(Some(state)),
                // A crash of the server may lose a claim. Then the job waits, or others have it, or
                // have ended it. (One that was pushed once more is told as lost, too.)
                _ if ends[at].end == End::Finished && state.is_some() => Some(None),
                // While the lease holds, no other process could end the job or take it back.
                _ => Some(self.leases.holds(job, queue.moment().now).then_some(state)),
            };
        }
        Ok(settled)
    }

    /// Asks what became of the end of a job with success that was sent without an answer: the state
    /// of the job, or `Some(None)`: the lease had ended. `None`: it is still to be written.
    pub fn settled_end(&self, job: &Held) -> Result<Option<Option<Option<JobState>>>, QueueError> {
        let ending = Ending { job: job.clone(), end: End::Finished, data: None, durations: None };
        Ok(self.settled(&self.of(job.queue), &[&ending])?.pop().flatten())
    }

    pub(super) fn turn_all(
        &self,
        ends: &[Ending],
        claim: Option<&Claim>,
        beside: Beside,
    ) -> Result<Turned, QueueError> {
        let is_tidy = beside == Beside::Tidy || claim.is_some();
        let mut turned = Turned { ended: vec![None; ends.len()], ..Turned::default() };
        let mut queues: Vec<_> = ends.iter().map(|end| end.job.queue).collect();
        queues.extend(claim.map(|claim| claim.queue));
        // The claim comes last: if a later call failed, no worker would have its jobs.
        queues.sort_unstable_by_key(|queue| (claim.is_some_and(|claim| claim.queue == *queue), *queue));
        queues.dedup();
        for number in queues {
            let queue = self.of(number);
            let own: Vec<_> = (0..ends.len()).filter(|at| ends[*at].job.queue == number).collect();
            let of_queue: Vec<_> = own.iter().map(|at| &ends[*at]).collect();
            let claim = claim.filter(|claim| claim.queue == number);
            let of_queue = match self.turn_of(&queue, &of_queue, claim, is_tidy) {
                Ok(turned) => turned,
                Err(error) => {
                    // The same ends come again, and some may be written.
                    self.leases.doubt(ends.iter().map(|end| &end.job));
                    return Err(error);
                }
            };
            own.into_iter().zip(of_queue.ended).for_each(|(at, ended)| turned.ended[at] = ended);
            turned.claimed.extend(of_queue.claimed);
            turned.again |= of_queue.again;
        }
        for end in ends {
            self.leases.remove(&end.job);
            if let Err(error) = self.store_durations(end) {
                let (queue, id) = (self.of(end.job.queue), &*end.job.id);
                tracing::debug!(target: "waterline", queue = queue.name(), id, %error, "the durations of a kind are not stored");
            }
        }
        Ok(turned)
    }

    fn store_durations(&self, end: &Ending) -> Result<(), QueueError> {
        let Some((kind, durations)) = &end.durations else { return Ok(()) };
        let queue = self.of(end.job.queue);
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let durations = [signed(durations.count), nanos(durations.mean), nanos(durations.last)];
        queue.explained("store the durations of a kind", self.server.set_average(queue.at(), kind, durations))
    }
}
