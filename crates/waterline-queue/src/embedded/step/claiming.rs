//! Claims: which job a worker gets.

use crate::embedded::codec::head::Head;
use crate::embedded::keys::List;
use crate::embedded::step::ending::Unrun;
use crate::embedded::step::{ClaimResult, Step};
use crate::embedded::txn::held_logs::NextHeld;
use crate::embedded::txn::limits::Admission;
use crate::embedded::txn::{AT_ONCE, LOOKS};
use crate::engine::Claimed;
use crate::rules::lanes;
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use crate::types::wanted::Wanted;
use waterline::BoxError;

/// The number of entries that a selective claim reads first. Mostly one of them will do.
const FIRST_LOOKS: usize = 4;

impl Step<'_, '_> {
    /// Claims the next wanted job.
    pub(crate) fn claim(&mut self, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        if self.txn.staged.head.is_paused(self.txn.at.wall) {
            return Ok(ClaimResult::Nothing);
        }
        if self.txn.staged.gate.is_full(self.txn.tokens_at) {
            return Ok(ClaimResult::Nothing);
        }
        let claim = if wanted.is_older(self.txn.at.wall) {
            self.claim_wanted(wanted)?
        } else if wanted.kinds.is_some() || !self.txn.staged.kinds.is_empty() {
            self.claim_of_kinds(wanted)?
        } else {
            self.claim_first(wanted)?
        };
        let has_found = self.find_lost()?;
        let claim = if has_found && matches!(claim, ClaimResult::Nothing) { ClaimResult::Again } else { claim };
        // Ends that are still to be told may make a job ready.
        let is_last = self.txn.staged.from.of(List::Untold) == u64::MAX;
        Ok(if matches!(claim, ClaimResult::Nothing) && !is_last { ClaimResult::Again } else { claim })
    }

    fn claim_first(&mut self, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        for _ in 0..LOOKS {
            let lane = lanes::lane(&self.txn.staged.head.lanes, self.txn.staged.head.claims);
            if self.txn.staged.head.has_freed() {
                match self.turn()? {
                    NextHeld::Passed | NextHeld::Others | NextHeld::Gap => continue,
                    NextHeld::Job(held)
                        if lanes::is_before(held.row.priority as usize, lane, self.txn.staged.head.claims) =>
                    {
                        return self.claim_held(*held);
                    }
                    NextHeld::Job(held) => self.txn.keep_turn(*held)?,
                }
            }
            let Some(lane) = lane else { return self.claim_early(wanted) };
            // The entry claimed now is read below, so a later range deletes it.
            self.txn.delete_behind(lane)?;
            let index = self.txn.staged.head.lanes[lane].next;
            let claim = match self.txn.entry(lane, index)? {
                Some((id, row)) => self.claim_job(id, row)?,
                None => ClaimResult::Again,
            };
            if matches!(claim, ClaimResult::Nothing) {
                return Ok(claim);
            }
            self.txn.head().lanes[lane].next += 1;
            if matches!(claim, ClaimResult::Job(_)) {
                return Ok(claim);
            }
        }
        Ok(ClaimResult::Again)
    }

    /// Claims a job. `Again`: it does not run now, and has left its place if it was ready.
    /// `Nothing`: the queue is full, or the job has to run alone and others run; nothing changed.
    pub(super) fn claim_job(&mut self, id: JobId, row: Row) -> Result<ClaimResult, BoxError> {
        if row.extras.is_some()
            && let Some(end) = self.unrun(&id, &row)
        {
            self.end_unrun(&id, row, end)?;
            return Ok(ClaimResult::Again);
        }
        if row.extras().is_suspect && self.txn.staged.gate.holds_alone() || self.is_no_company(&row) {
            return Ok(ClaimResult::Nothing);
        }
        match self.txn.admit(&id, &row)? {
            Admission::Yes => self.begin(id, row),
            Admission::Held => Ok(ClaimResult::Again),
            Admission::Full => Ok(ClaimResult::Nothing),
        }
    }

    /// Begins a job that has its places. `Again`: its payload is missing, so it is dead.
    pub(super) fn begin(&mut self, id: JobId, mut row: Row) -> Result<ClaimResult, BoxError> {
        let Some(payload) = self.txn.batch.get(&self.txn.queue.rows, &self.txn.queue.keys.payload(&id))? else {
            self.txn.release_limits(&row)?;
            let error = "its payload is not there: remove the job, and push it again".to_owned();
            self.end_unrun(&id, row, Unrun::Dead(error))?;
            return Ok(ClaimResult::Again);
        };
        if row.extras.is_some() {
            self.txn.release_claimed(&id, &mut row)?;
            if let Some(expires) = row.extras_mut().expires.take() {
                self.txn.remove_entry(List::Expiring, expires, &id)?;
            }
        }
        self.txn.leave(&id, &row)?;
        row.state = JobState::Running;
        // This run covers every push up to now.
        row.resubmit = row.resubmit.filter(|due| *due > self.txn.at.wall);
        row.resubmitted = if row.resubmit.is_some() { row.resubmitted } else { 0 };
        self.txn.head().claims += 1;
        self.txn.enter(&id, &mut row)?;
        self.txn.tell(&id, Some(JobState::Running), None);
        Ok(ClaimResult::Job(Box::new(Claimed { queue: self.txn.queue.keys.0, id, row, payload })))
    }

    /// True if the job has to be claimed alone, and others are claimed in this turn.
    pub(super) fn is_no_company(&self, row: &Row) -> bool {
        row.is_claimed_alone() && self.has_claimed
    }

    /// Claims a wanted job, which may be behind others.
    fn claim_wanted(&mut self, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        for _ in 0..AT_ONCE {
            if let Some(claim) = self.look_for(wanted)? {
                return Ok(claim);
            }
        }
        Ok(ClaimResult::Again)
    }

    /// Looks for a wanted job. `None`: one has ended or moved instead: look again from the start.
    fn look_for(&mut self, wanted: &Wanted) -> Result<Option<ClaimResult>, BoxError> {
        let held = self.wanted_turn(wanted)?;
        let claims = self.txn.staged.head.claims;
        let mut found_stale = false;
        for lane in lanes::lanes(claims) {
            if held.is_some_and(|(_, priority)| lanes::is_before(priority, Some(lane), claims)) {
                break;
            }
            if let Some(line) = self.txn.first_in_lane(lane, wanted)? {
                return Ok(
                    Some(self.claim_job(line.id, line.row)?).filter(|claim| !matches!(claim, ClaimResult::Again))
                );
            }
            if let Some(claim) = self.claim_in_lane(lane, wanted, &mut found_stale)? {
                return Ok(Some(claim).filter(|claim| !matches!(claim, ClaimResult::Again)));
            }
        }
        if let Some((index, _)) = held {
            return match self.turn_at(index, wanted.kinds.as_deref())? {
                NextHeld::Job(held) => self.claim_held(*held).map(Some),
                // Its turn has passed meanwhile: look again.
                NextHeld::Passed | NextHeld::Others | NextHeld::Gap => Ok(None),
            };
        }
        // The stale entries are deleted, so the next look sees what is behind them.
        if found_stale { Ok(Some(ClaimResult::Again)) } else { self.claim_early(wanted).map(Some) }
    }

    /// Claims a wanted job among the first ones of a ready log. `None`: there is none. `Again`: one
    /// has ended instead. Stale entries are deleted, since each look begins at the front, which
    /// moves on only past gaps.
    fn claim_in_lane(
        &mut self,
        lane: usize,
        wanted: &Wanted,
        found_stale: &mut bool,
    ) -> Result<Option<ClaimResult>, BoxError> {
        let (mut from, mut looks, mut page) = (self.txn.staged.head.lanes[lane].next, LOOKS, FIRST_LOOKS);
        let mut is_front = true;
        while looks > 0 {
            let entries = self.txn.entries_of(lane, from, page.min(looks))?;
            if is_front {
                let front = entries.first().map_or(self.txn.staged.head.lanes[lane].end, |(index, _)| *index);
                self.txn.move_front(lane, front);
            }
            let Some((last, _)) = entries.last() else { break };
            (from, looks, page) = (last + 1, looks.saturating_sub(entries.len()), page * 4);
            for (index, id) in entries {
                let row = self.txn.row_in(JobState::Ready, &id)?.filter(|row| row.is_at(lane, index));
                if let Some(row) = row.as_ref().filter(|row| !wanted.takes(row, self.txn.at.wall)) {
                    is_front &= !wanted.has_kind(&row.kind);
                    if is_front {
                        self.txn.put_in_line(lane, index, &id, &row.kind)?;
                        self.txn.delete(self.txn.entries(), &self.txn.queue.keys.ready(lane, index))?;
                        self.txn.move_front(lane, index + 1);
                        *found_stale = true;
                    }
                    continue;
                }
                let is_stale = row.is_none();
                let claim = row.map_or(Ok(ClaimResult::Again), |row| self.claim_job(id.clone(), row))?;
                if matches!(claim, ClaimResult::Nothing) {
                    return Ok(Some(claim));
                }
                self.txn.delete(self.txn.entries(), &self.txn.queue.keys.ready(lane, index))?;
                if is_front {
                    self.txn.move_front(lane, index + 1);
                }
                let is_held = matches!(claim, ClaimResult::Again) && self.txn.row_in(JobState::Ready, &id)?.is_some();
                if !is_stale && !is_held {
                    return Ok(Some(claim));
                }
                *found_stale = true;
            }
        }
        Ok(None)
    }

    /// Claims the wanted scheduled job that is due first, if the claim takes jobs before their
    /// time. No ready one is there.
    pub(super) fn claim_early(&mut self, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        let Head { held, counts, lanes, claims, .. } = &self.txn.staged.head;
        // A ready job in no log has lost its entry.
        let is_empty = *held == 0 && self.txn.staged.kinds.is_empty() && lanes::lane(lanes, *claims).is_none();
        self.txn.has_lost |= is_empty && counts[JobState::Ready.number()] > 0;
        let Some(most) = wanted.early(self.txn.at.wall) else { return Ok(ClaimResult::Nothing) };
        let looks = if wanted.kinds.is_some() { LOOKS } else { AT_ONCE };
        let mut has_ended = false;
        for (at, id) in self.txn.listed(List::Scheduled, most, looks)?.0 {
            let row = self.txn.row_in(JobState::Scheduled, &id)?;
            let Some(row) =
                row.filter(|row| row.state == JobState::Scheduled && row.due == at && wanted.has_kind(&row.kind))
            else {
                continue;
            };
            match self.claim_job(id.clone(), row)? {
                // A job that a limit has no place for stays, since it is not due. One that has
                // ended makes room in the list, and others may have waited for it.
                ClaimResult::Again => {
                    has_ended |= self.txn.row(&id)?.is_none_or(|row| row.state != JobState::Scheduled);
                }
                claim => return Ok(claim),
            }
        }
        Ok(if has_ended { ClaimResult::Again } else { ClaimResult::Nothing })
    }
}
