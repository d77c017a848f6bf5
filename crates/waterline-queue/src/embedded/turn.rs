//! A turn: the ends of attempts and the claims of jobs, in one write.

use crate::embedded::codec::durations::Pair;
use crate::embedded::engine::{Embedded, SOME};
use crate::embedded::intent::{Steps, call, call_on};
use crate::embedded::state::QueueState;
use crate::embedded::step::{ClaimResult, Step};
use crate::embedded::txn::AT_ONCE;
use crate::engine;
use crate::engine::{Beside, Edit, Ending, Held, QueueNo, Turned};
use crate::rules::ends::End;
use crate::types::error::{QueueError, is_damage, is_halt};
use crate::types::row::Row;
use std::sync::Arc;
use waterline::BoxError;
use waterline::seam::Changes;

impl Embedded {
    /// Ends attempts and claims jobs in one write with these changes of the user's, which are made
    /// only if each lease holds.
    pub(crate) fn turn_with(
        &self,
        ends: &[Ending],
        claim: Option<engine::Claim>,
        beside: Beside,
        effects: Changes,
    ) -> Result<Turned, QueueError> {
        let mut queues: Vec<Arc<QueueState>> = Vec::with_capacity(1);
        let mut place = |queue: QueueNo| {
            let known = queues.iter().position(|state| state.keys.0 == queue);
            known.unwrap_or_else(|| {
                queues.push(self.state(queue));
                queues.len() - 1
            })
        };
        let places: Vec<_> = ends.iter().map(|ending| place(ending.job.queue)).collect();
        let from = claim.map(|claim| (place(claim.queue), claim));
        if queues.is_empty() {
            return Ok(Turned::default());
        }
        if beside == Beside::Tidy {
            queues.iter().try_for_each(|state| self.take_back_silent(state))?;
        }
        let record = |(at, Ending { durations, .. }): (&usize, &Ending)| {
            let (kind, durations) = durations.as_ref()?;
            Some((*at, queues[*at].record_of(kind, *durations)))
        };
        let durations: Vec<_> = places.iter().zip(ends).filter_map(record).collect();
        let ends = ends.iter().map(|Ending { job, end, data, .. }| (job.clone(), end.clone(), data.clone()));
        let ends: Vec<_> = places.into_iter().zip(ends).collect();
        let turn = TurnIntent { ends, durations, from, beside, has_effects: !effects.is_empty() };
        let doing = match beside {
            _ if turn.ends.is_empty() => "claim a job",
            Beside::Alone => "end a job",
            _ => "run a job",
        };
        let count = queues.len();
        call_on(&self.store, queues, doing, effects, move |steps| turn.run(steps, count))
    }

    /// Edits a job in one write with the user's changes, if the lease holds. Returns its row.
    pub(crate) fn edit_with(&self, job: &Held, edit: Edit, effects: Changes) -> Result<Row, QueueError> {
        let doing = if effects.is_empty() { edit.doing() } else { "write for a job" };
        let (id, token, has_effects) = (job.id.clone(), job.token, !effects.is_empty());
        call_on(&self.store, [self.state(job.queue)], doing, effects, move |steps| {
            let row = steps.at(0, |step| step.txn.edit(&id, Some(token), &edit))?;
            if !has_effects {
                return Ok(row);
            }
            steps.make_effects()?;
            // The changes may have pushed the job again.
            Ok(steps.at(0, |step| step.txn.row(&id))?.unwrap_or(row))
        })
    }

    /// Takes back the jobs whose workers were silent for too long.
    pub(super) fn take_back_silent(&self, state: &Arc<QueueState>) -> Result<(), QueueError> {
        let now = state.moment().now;
        for (token, id, is_stopping) in state.silent(now) {
            let run = state.run_of(token, now);
            let taken =
                call(&self.store, state, "take back a job", move |step| step.take_back(&id, token, is_stopping, &run));
            match taken {
                // It was set aside, or its worker ended it meanwhile.
                Ok(()) | Err(QueueError::Halt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A job, its end, and the data that it leaves.
type EndReport = (Held, End, Option<Vec<u8>>);

/// A turn, ready to be made in a batch.
struct TurnIntent {
    /// The ends, each with the place of its queue.
    ends: Vec<(usize, EndReport)>,
    durations: Vec<(usize, Pair)>,
    from: Option<(usize, engine::Claim)>,
    beside: Beside,
    has_effects: bool,
}

impl TurnIntent {
    fn run(&self, steps: &mut Steps<'_, '_>, queues: usize) -> Result<Turned, BoxError> {
        // Other ends must not wait until a damaged record is mended.
        let skips_damage = !self.has_effects && self.beside != Beside::Alone;
        let mut turned = Turned { ended: vec![None; self.ends.len()], ..Turned::default() };
        for at in 0..queues {
            let runs: Vec<_> = self.ends.iter().map(|(_, (job, ..))| steps.run_of(at, job.token)).collect();
            steps.at(at, |step| {
                if self.beside == Beside::Tidy {
                    step.run_maintenance(SOME)?;
                }
                let mut has_ended = false;
                let own =
                    self.ends.iter().zip(&runs).zip(&mut turned.ended).filter(|(((place, _), _), _)| *place == at);
                for (((_, (job, end, data)), run), ended) in own {
                    *ended = match step.end(&job.id, job.token, end.clone(), data.as_deref(), run) {
                        Ok(state) => Some(state),
                        Err(error) if !self.has_effects && is_halt(&error) => None,
                        Err(error) if skips_damage && is_damage(&error) => None,
                        Err(error) => return Err(error),
                    };
                    has_ended |= ended.is_some();
                }
                if has_ended {
                    let own = self.durations.iter().filter(|(place, _)| *place == at);
                    step.txn.store_durations(own.map(|(_, durations)| durations))?;
                }
                match &self.from {
                    Some((from, claim)) if *from == at => claim_many(step, claim, &mut turned),
                    _ => Ok(()),
                }
            })?;
        }
        if self.has_effects {
            steps.make_effects()?;
            // The changes may have pushed the job again.
            for ((at, (job, ..)), ended) in self.ends.iter().zip(&mut turned.ended) {
                *ended = Some(steps.at(*at, |step| step.txn.row(&job.id))?.map(|row| row.state));
            }
        }
        Ok(turned)
    }
}

fn claim_many(step: &mut Step<'_, '_>, claim: &engine::Claim, turned: &mut Turned) -> Result<(), BoxError> {
    for _ in 0..claim.most {
        match step.claim(&claim.wanted)? {
            ClaimResult::Job(claimed) => {
                let was_last = claimed.row.is_claimed_alone();
                turned.claimed.push(*claimed);
                if was_last {
                    return Ok(());
                }
                step.has_claimed = true;
            }
            ClaimResult::Again => {
                turned.again = turned.claimed.is_empty();
                return Ok(());
            }
            ClaimResult::Nothing => {
                if turned.claimed.is_empty() {
                    // No job was claimed, so this may take longer.
                    step.run_maintenance(AT_ONCE)?;
                }
                return Ok(());
            }
        }
    }
    Ok(())
}
