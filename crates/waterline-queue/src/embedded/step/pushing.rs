//! Pushes: a new job, one whose id is there already, and one that has a twin.

use crate::embedded::step::ending::Unrun;
use crate::embedded::step::{Room, Step};
use crate::embedded::txn::dedup::Twin;
use crate::embedded::txn::edges::WaitsFor;
use crate::rules::pushing::{Again, Push};
use crate::rules::{ends, pushing};
use crate::types::error::QueueError;
use crate::types::job::{JobState, PushOutcome, Pushed};
use crate::types::row::Row;
use crate::types::unique::Clash;
use waterline::BoxError;

impl Step<'_, '_> {
    /// Pushes jobs, of which the last one waits for all others.
    pub(crate) fn push_batch(&mut self, pushes: &[Push]) -> Result<Vec<Pushed>, BoxError> {
        let Some((last, others)) = pushes.split_last() else { return Ok(Vec::new()) };
        if others.is_empty() {
            return Ok(vec![self.push(last)?]);
        }
        let mut pushed = others.iter().map(|push| self.push(push)).collect::<Result<Vec<_>, _>>()?;
        let mut last = last.clone();
        // A twin that is there already stands for the pushed job.
        last.after.extend(pushed.iter().map(|pushed| pushed.id.clone()));
        last.after.sort_unstable();
        last.after.dedup();
        pushed.push(self.push(&last)?);
        Ok(pushed)
    }

    pub(crate) fn push(&mut self, push: &Push) -> Result<Pushed, BoxError> {
        let push = &*push.of_time(self.txn.at.wall);
        let Push { id, made, row: new, .. } = push;
        if let Some(number) = made {
            let next = &mut self.txn.head().next_id;
            *next = (*next).max(number + 1);
        }
        // An id that the queue just made has no row.
        let old = if made.is_some() { None } else { self.row_to_replace(id)? };
        let waits = self.txn.waits(id, push, old.as_ref())?;
        // A job of the same id is a twin, too: a client that pushes again because it got no answer
        // must not cause the work to be done twice.
        if let Some(twin) = self.txn.twin_of(id, new)? {
            return self.push_to_twin(twin, push);
        }
        let again = match old.as_ref().map(|old| pushing::push_again(old.state, old.due, new.due)) {
            Some(Again::Same) if !self.txn.waits_so(id, old.as_ref(), push, &waits)? => Some(Again::Move),
            Some(Again::Flag) if !waits.is_over() => {
                return Err(QueueError::AlreadyRuns { queue: self.txn.queue.name.clone(), id: id.clone() }.into());
            }
            again => again,
        };
        match (old, again) {
            (Some(_), Some(Again::Same)) => Ok(pushed(id, PushOutcome::Duplicate(id.clone()))),
            (Some(old), Some(Again::Flag)) => {
                self.txn.write_row(
                    id,
                    &Row { resubmit: Some(new.due), resubmitted: push.reckoned_at(self.txn.at.wall), ..old },
                )?;
                Ok(pushed(id, PushOutcome::Resubmit))
            }
            (old, again) => self.place(id, old.as_ref(), push, waits, again == Some(Again::Move)),
        }
    }

    /// Makes pushes of a caller, if there is room for all of them. The caller runs maintenance
    /// first: jobs due before come first, and expired ones make room.
    pub(crate) fn push_bounded(&mut self, pushes: &[Push], pushed: &mut Vec<Pushed>) -> Result<(), BoxError> {
        self.room = Room::Now;
        let is_batch = pushes.iter().any(|push| push.awaited_by.is_some());
        let ended = match is_batch {
            true => self.push_batch(pushes).map(|all| pushed.extend(all)),
            false => pushes.iter().try_for_each(|push| self.push(push).map(|one| pushed.push(one))),
        };
        self.room = Room::Any;
        ended
    }

    fn check_room(&self) -> Result<(), QueueError> {
        let waiting = match self.room {
            Room::Any => return Ok(()),
            Room::Now => self.txn.staged.head.waiting(),
            Room::AtBegin => self.txn.staged.waited,
        };
        match self.txn.queue.options.max_waiting {
            Some(max_waiting) if !pushing::has_room(waiting, Some(max_waiting)) => {
                Err(QueueError::Full { queue: self.txn.queue.name.clone(), max_waiting })
            }
            _ => Ok(()),
        }
    }

    /// Places a job that is new or replaces the old one of its id. A moved job keeps its failures:
    /// otherwise a push now and then would keep a job alive that fails forever.
    fn place(
        &mut self,
        id: &str,
        old: Option<&Row>,
        push: &Push,
        waits: WaitsFor,
        is_moved: bool,
    ) -> Result<Pushed, BoxError> {
        if old.is_none_or(|old| old.state.is_ended()) {
            self.check_room()?;
        }
        let waiting = ends::waiting(push.row.due, self.txn.at.wall);
        let state = if waits.on.is_empty() { waiting } else { JobState::Waiting };
        let mut row = Row { state, ..push.row.clone() };
        if let Some(old) = old {
            self.txn.leave(id, old)?;
            self.txn.settle_replaced(id, old)?;
            row.has_data = old.has_data;
            self.txn.drop_data(id, &mut row)?;
            if is_moved {
                (row.failures, row.crashes, row.error) = (old.failures, old.crashes, old.error.clone());
                if old.extras().is_suspect {
                    row.extras_mut().is_suspect = true;
                }
            }
            inherit_lists(&mut row, old);
            if push.after.is_empty() && !waits.on.is_empty() {
                row.extras_mut().on_dead = old.extras().on_dead;
            }
        }
        if let Some(on_dead) = push.awaited_by {
            self.txn.list_of(&mut row, on_dead);
        }
        self.txn.wait_for(id, &mut row, &waits.on)?;
        self.txn.begin_anew(&mut row);
        self.txn.put(self.txn.rows(), &self.txn.queue.keys.payload(id), &push.payload)?;
        self.txn.replace_extra(id, old, push)?;
        self.txn.enter(id, &mut row)?;
        if row.extras.is_some() {
            self.txn.register(id, &row, push.window)?;
        }
        self.txn.staged.placed += 1;
        match old {
            Some(_) => self.txn.tell(id, Some(state), Some(None)),
            None => self.txn.staged.tell_new(id, state),
        }
        if let Some(of) = &waits.died {
            self.txn.keep_waits(id, &mut row, &waits.kept)?;
            self.end_unrun(id, row, Unrun::of_death(of))?;
        }
        Ok(pushed(id, if is_moved { PushOutcome::Rescheduled } else { PushOutcome::Added }))
    }

    /// Treats the push of a job that has a twin, as [`Clash`] says.
    fn push_to_twin(&mut self, Twin { id, row }: Twin, push: &Push) -> Result<Pushed, BoxError> {
        let due = push.row.due;
        match (push.clash, row) {
            (Clash::Replace, Some(old)) if old.state.waits() => {
                let waits = self.txn.waits(&id, push, Some(&old))?;
                self.place(&id, Some(&old), push, waits, true)
            }
            (Clash::Earliest, Some(old)) if old.state == JobState::Scheduled && due < old.due => {
                self.make_due(&id, old, due, push.row.named)?;
                Ok(pushed(&id, PushOutcome::Rescheduled))
            }
            _ => Ok(pushed(&id, PushOutcome::Duplicate(id.clone()))),
        }
    }

    /// Makes a job due at another time, and changes nothing else.
    fn make_due(&mut self, id: &str, old: Row, due: u64, named: bool) -> Result<(), BoxError> {
        self.txn.leave(id, &old)?;
        let mut row = Row { state: ends::waiting(due, self.txn.at.wall), due, named, ..old };
        self.txn.enter(id, &mut row)?;
        self.txn.tell(id, Some(row.state), None);
        Ok(())
    }

    /// Makes a scheduled job due now. Returns false if it is not scheduled.
    pub(crate) fn run_now(&mut self, id: &str) -> Result<bool, BoxError> {
        let row = self.txn.row(id)?.ok_or_else(|| self.txn.queue.not_found(id))?;
        let is_scheduled = row.state == JobState::Scheduled;
        if is_scheduled {
            self.make_due(id, row, 0, false)?;
        }
        Ok(is_scheduled)
    }
}

/// Makes jobs that wait for the old job wait for the new one in its place.
fn inherit_lists(row: &mut Row, old: &Row) {
    let (awaited, held_up) = (old.extras().awaited, old.extras().held_up);
    if awaited.is_some() || held_up.is_some() {
        let extras = row.extras_mut();
        (extras.awaited, extras.held_up) = (awaited, held_up);
    }
}

fn pushed(id: &str, outcome: PushOutcome) -> Pushed {
    Pushed { id: id.to_owned(), outcome }
}
