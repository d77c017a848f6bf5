//! Claims: which job a worker gets.

use crate::embedded::codec::entry;
use crate::embedded::codec::head::Head;
use crate::embedded::keys::{List, number_of_entry};
use crate::embedded::step::ending::Unrun;
use crate::embedded::step::held::NextHeld;
use crate::embedded::step::limits::Admission;
use crate::embedded::step::{AT_ONCE, Claim, LOOKS, Step};
use crate::engine::Claimed;
use crate::rules::lanes;
use crate::rules::lanes::Lane;
use crate::types::events::Damaged;
use crate::types::job::{JobId, JobState, Priority};
use crate::types::row::Row;
use crate::types::wanted::Wanted;
use waterline::seam::KeyRange;
use waterline::{BoxError, StoreError};

/// The entries that a claim of some jobs alone reads first. Mostly one of them is such a job.
const FIRST_LOOKS: usize = 4;

/// The entries of a ready log are deleted by the range, once it has so many.
const RANGE: u64 = 10_000;

impl Step<'_, '_> {
    /// Claims the next job among these.
    pub(crate) fn claim(&mut self, wanted: &Wanted) -> Result<Claim, BoxError> {
        if self.staged.head.is_paused(self.at.wall) {
            return Ok(Claim::Nothing);
        }
        if self.staged.gate.is_full(self.tokens_at) {
            return Ok(Claim::Nothing);
        }
        let claim = if wanted.is_older(self.at.wall) {
            self.claim_wanted(wanted)?
        } else if wanted.kinds.is_some() || !self.staged.kinds.is_empty() {
            self.claim_of_kinds(wanted)?
        } else {
            self.claim_first(wanted)?
        };
        let claim = if std::mem::take(&mut self.has_lost) {
            self.recount()?;
            if matches!(claim, Claim::Nothing) { Claim::Again } else { claim }
        } else {
            claim
        };
        // A job may be about to become ready, since others have ended.
        let is_last = self.staged.from.of(List::Untold) == u64::MAX;
        Ok(if matches!(claim, Claim::Nothing) && !is_last { Claim::Again } else { claim })
    }

    fn claim_first(&mut self, wanted: &Wanted) -> Result<Claim, BoxError> {
        for _ in 0..LOOKS {
            let lane = lanes::lane(&self.staged.head.lanes, self.staged.head.claims);
            if self.staged.head.has_freed() {
                match self.turn()? {
                    NextHeld::Passed | NextHeld::Others | NextHeld::Gap => continue,
                    NextHeld::Job(held)
                        if lanes::is_before(held.row.priority as usize, lane, self.staged.head.claims) =>
                    {
                        return self.claim_held(*held);
                    }
                    NextHeld::Job(held) => self.keep_turn(*held)?,
                }
            }
            let Some(lane) = lane else { return self.claim_early(wanted) };
            // The entry that is claimed now is read below, so it is deleted with a later range.
            self.delete_behind(lane)?;
            let index = self.staged.head.lanes[lane].next;
            let claim = match self.entry(lane, index)? {
                Some((id, row)) => self.claim_job(id, row)?,
                None => Claim::Again,
            };
            if matches!(claim, Claim::Nothing) {
                return Ok(claim);
            }
            self.head().lanes[lane].next += 1;
            if matches!(claim, Claim::Job(_)) {
                return Ok(claim);
            }
        }
        Ok(Claim::Again)
    }

    /// Returns the job that is at this place of a ready log; `None` if the entry is stale.
    pub(super) fn entry(&mut self, lane: usize, index: u64) -> Result<Option<(JobId, Row)>, BoxError> {
        let key = self.queue.keys.ready(lane, index);
        let Some(entry) = self.batch.get(&self.queue.entries, &key)? else { return Ok(None) };
        let Some(id) = self.id_at(lane, &key, &entry) else { return Ok(None) };
        let row = self.row_in(JobState::Ready, &id)?;
        Ok(row.filter(|row| row.is_at(lane, index)).map(|row| (id, row)))
    }

    /// Returns the id in an entry of a ready log. `None`: it cannot be read, so a job has lost it,
    /// and all of them are counted anew.
    fn id_at(&mut self, lane: usize, key: &[u8], entry: &[u8]) -> Option<JobId> {
        let read = entry::id_in(&self.queue.name, key, entry);
        read.map_err(|error| {
            self.has_lost = true;
            let place = format!("{} of the ready jobs of the priority {:?}", number_of_entry(key), Priority::ALL[lane]);
            self.log_damage(Damaged::Entry { place, error });
        })
        .ok()
    }

    /// Deletes the entries of a ready log that were claimed, once they are many.
    pub(super) fn delete_behind(&mut self, lane: usize) -> Result<(), StoreError> {
        let Lane { next, deleted, .. } = *self.staged.head.log(lane);
        if next - deleted < RANGE.min(self.batch.deletion().rows) {
            return Ok(());
        }
        self.head().log_mut(lane).deleted = next;
        let (from, to) = (self.queue.keys.ready(lane, deleted), self.queue.keys.ready(lane, next));
        self.batch.delete_range(self.entries(), &from, &to)
    }

    /// Claims a job. `Again`: it is not to run now, and a ready one has left its place. `Nothing`:
    /// the limit of the queue is full, or it is to run alone and others run; nothing was changed.
    pub(super) fn claim_job(&mut self, id: JobId, row: Row) -> Result<Claim, BoxError> {
        if row.extras.is_some()
            && let Some(end) = self.unrun(&id, &row)
        {
            self.end_unrun(&id, row, end)?;
            return Ok(Claim::Again);
        }
        if row.extras().is_suspect && self.staged.gate.holds_alone() || self.is_no_company(&row) {
            return Ok(Claim::Nothing);
        }
        match self.admit(&id, &row)? {
            Admission::Yes => self.begin(id, row),
            Admission::Held => Ok(Claim::Again),
            Admission::Full => Ok(Claim::Nothing),
        }
    }

    /// Begins a job that has its places. `Again`: it has no payload, so it is dead.
    pub(super) fn begin(&mut self, id: JobId, mut row: Row) -> Result<Claim, BoxError> {
        let Some(payload) = self.batch.get(&self.queue.rows, &self.queue.keys.payload(&id))? else {
            self.release_limits(&row)?;
            let error = "its payload is not there: remove the job, and push it again".to_owned();
            self.end_unrun(&id, row, Unrun::Dead(error))?;
            return Ok(Claim::Again);
        };
        if row.extras.is_some() {
            self.release_claimed(&id, &mut row)?;
            if let Some(expires) = row.extras_mut().expires.take() {
                self.remove_entry(List::Expiring, expires, &id)?;
            }
        }
        self.leave(&id, &row)?;
        row.state = JobState::Running;
        // This run does what was asked for up to now.
        row.resubmit = row.resubmit.filter(|due| *due > self.at.wall);
        row.resubmitted = if row.resubmit.is_some() { row.resubmitted } else { 0 };
        self.head().claims += 1;
        self.enter(&id, &mut row)?;
        self.tell(&id, Some(JobState::Running), None);
        Ok(Claim::Job(Box::new(Claimed { queue: self.queue.keys.0, id, row, payload })))
    }

    /// True if the job is to be claimed without others, and others are claimed.
    pub(super) fn is_no_company(&self, row: &Row) -> bool {
        row.is_claimed_alone() && self.has_claimed
    }

    /// Returns the end of a job that is not to run at all.
    pub(super) fn unrun(&mut self, id: &str, row: &Row) -> Option<Unrun> {
        match row.extras().expires {
            Some(expires) if expires <= self.at.wall => Some(expired()),
            _ => self.skips(id, row).map(Unrun::Skipped),
        }
    }

    /// Claims a job among these, which may stand behind others.
    fn claim_wanted(&mut self, wanted: &Wanted) -> Result<Claim, BoxError> {
        for _ in 0..AT_ONCE {
            if let Some(claim) = self.look_for(wanted)? {
                return Ok(claim);
            }
        }
        Ok(Claim::Again)
    }

    /// Looks for a job among these. `None`: one has ended instead, which may have made another one
    /// ready that comes before those that were looked at.
    fn look_for(&mut self, wanted: &Wanted) -> Result<Option<Claim>, BoxError> {
        let held = self.wanted_turn(wanted)?;
        let claims = self.staged.head.claims;
        let mut found_stale = false;
        for lane in lanes::lanes(claims) {
            if held.is_some_and(|(_, priority)| lanes::is_before(priority, Some(lane), claims)) {
                break;
            }
            if let Some(line) = self.first_in_lane(lane, wanted)? {
                return Ok(Some(self.claim_job(line.id, line.row)?).filter(|claim| !matches!(claim, Claim::Again)));
            }
            if let Some(claim) = self.claim_in_lane(lane, wanted, &mut found_stale)? {
                return Ok(Some(claim).filter(|claim| !matches!(claim, Claim::Again)));
            }
        }
        if let Some((index, _)) = held {
            return match self.turn_at(index, wanted.kinds.as_deref())? {
                NextHeld::Job(held) => self.claim_held(*held).map(Some),
                // A job of the ready log has taken its place.
                NextHeld::Passed | NextHeld::Others | NextHeld::Gap => Ok(None),
            };
        }
        // They are deleted now, so the next look sees what is behind them.
        if found_stale { Ok(Some(Claim::Again)) } else { self.claim_early(wanted).map(Some) }
    }

    /// Claims a job among the first ones of a ready log. Entries that are stale are deleted: each
    /// look begins at the front, which moves on only if everything there has gone. `None`: none of
    /// them is such a job. `Again`: one has ended.
    fn claim_in_lane(
        &mut self,
        lane: usize,
        wanted: &Wanted,
        found_stale: &mut bool,
    ) -> Result<Option<Claim>, BoxError> {
        let (mut from, mut looks, mut page) = (self.staged.head.lanes[lane].next, LOOKS, FIRST_LOOKS);
        let mut is_front = true;
        while looks > 0 {
            let entries = self.entries_of(lane, from, page.min(looks))?;
            if is_front {
                let front = entries.first().map_or(self.staged.head.lanes[lane].end, |(index, _)| *index);
                self.move_front(lane, front);
            }
            let Some((last, _)) = entries.last() else { break };
            (from, looks, page) = (last + 1, looks.saturating_sub(entries.len()), page * 4);
            for (index, id) in entries {
                let row = self.row_in(JobState::Ready, &id)?.filter(|row| row.is_at(lane, index));
                if let Some(row) = row.as_ref().filter(|row| !wanted.takes(row, self.at.wall)) {
                    is_front &= !wanted.has_kind(&row.kind);
                    if is_front {
                        self.put_in_line(lane, index, &id, &row.kind)?;
                        self.delete(self.entries(), &self.queue.keys.ready(lane, index))?;
                        self.move_front(lane, index + 1);
                        *found_stale = true;
                    }
                    continue;
                }
                let is_stale = row.is_none();
                let claim = row.map_or(Ok(Claim::Again), |row| self.claim_job(id.clone(), row))?;
                if matches!(claim, Claim::Nothing) {
                    return Ok(Some(claim));
                }
                self.delete(self.entries(), &self.queue.keys.ready(lane, index))?;
                if is_front {
                    self.move_front(lane, index + 1);
                }
                let is_held = matches!(claim, Claim::Again) && self.row_in(JobState::Ready, &id)?.is_some();
                if !is_stale && !is_held {
                    return Ok(Some(claim));
                }
                *found_stale = true;
            }
        }
        Ok(None)
    }

    fn move_front(&mut self, lane: usize, front: u64) {
        if self.staged.head.lanes[lane].next < front {
            self.head().lanes[lane].next = front;
        }
    }

    /// Returns the entries of a ready log from this index on: so many at most.
    fn entries_of(&mut self, lane: usize, from: u64, most: usize) -> Result<Vec<(u64, JobId)>, BoxError> {
        let (keys, end) = (self.queue.keys, self.staged.head.lanes[lane].end.max(from));
        let range = KeyRange { from: keys.ready(lane, from), to: Some(keys.ready(lane, end)) };
        let entries = self.batch.rows(&self.queue.entries, range).take(most).collect::<Result<Vec<_>, _>>()?;
        // One that cannot be read is stale.
        let id = |(key, entry): (Vec<u8>, Vec<u8>)| {
            (number_of_entry(&key), self.id_at(lane, &key, &entry).unwrap_or_default())
        };
        Ok(entries.into_iter().map(id).collect())
    }

    /// Claims the scheduled job that is due first among these, if they are wanted before their
    /// time. No ready one is there.
    pub(super) fn claim_early(&mut self, wanted: &Wanted) -> Result<Claim, BoxError> {
        let Head { held, counts, lanes, claims, .. } = &self.staged.head;
        // A ready job that is in no log has lost its entry.
        let is_empty = *held == 0 && self.staged.kinds.is_empty() && lanes::lane(lanes, *claims).is_none();
        self.has_lost |= is_empty && counts[JobState::Ready.number()] > 0;
        let Some(most) = wanted.early(self.at.wall) else { return Ok(Claim::Nothing) };
        let looks = if wanted.kinds.is_some() { LOOKS } else { AT_ONCE };
        let mut has_ended = false;
        for (at, id) in self.listed(List::Scheduled, most, looks)?.0 {
            let row = self.row_in(JobState::Scheduled, &id)?;
            let Some(row) =
                row.filter(|row| row.state == JobState::Scheduled && row.due == at && wanted.has_kind(&row.kind))
            else {
                continue;
            };
            match self.claim_job(id.clone(), row)? {
                // A job that a limit has no place for stays where it is, since it is not due. One
                // that has ended makes a place in the list, and others may have waited for it.
                Claim::Again => has_ended |= self.row(&id)?.is_none_or(|row| row.state != JobState::Scheduled),
                claim => return Ok(claim),
            }
        }
        Ok(if has_ended { Claim::Again } else { Claim::Nothing })
    }
}

/// The end of a job that no worker has taken in time.
pub(super) fn expired() -> Unrun {
    Unrun::Dead("it expired: no worker had taken it in time".to_owned())
}
