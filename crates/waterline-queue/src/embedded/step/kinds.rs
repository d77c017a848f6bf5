//! Claims of some kinds: jobs of other kinds that they meet go into the lines of those kinds.

use crate::embedded::step::{ClaimResult, Step};
use crate::embedded::txn::LOOKS;
use crate::embedded::txn::held_logs::NextHeld;
use crate::rules::lanes;
use crate::types::wanted::Wanted;
use waterline::BoxError;

impl Step<'_, '_> {
    /// Claims the first job of these kinds, whatever is before it. `Again`: none was met yet.
    pub(super) fn claim_of_kinds(&mut self, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        for _ in 0..LOOKS {
            let claims = self.txn.staged.head.claims;
            let held = self.wanted_turn(wanted)?;
            let ready = lanes::lane(&self.txn.staged.head.lanes, claims);
            // Jobs in a line come before all in the ready log of their priority.
            let line = self.txn.first_in_lines(wanted)?.filter(|line| lanes::is_before(line.lane, ready, claims));
            let first = line.as_ref().map(|line| line.lane).or(ready);
            if let Some((index, priority)) = held
                && lanes::is_before(priority, first, claims)
            {
                match self.turn_at(index, wanted.kinds.as_deref())? {
                    NextHeld::Job(held) => return self.claim_held(*held),
                    NextHeld::Passed | NextHeld::Others | NextHeld::Gap => continue,
                }
            }
            let claim = match (line, ready) {
                (Some(line), _) => self.claim_job(line.id, line.row)?,
                (None, Some(lane)) => self.claim_front(lane, wanted)?,
                (None, None) => return self.claim_early(wanted),
            };
            if !matches!(claim, ClaimResult::Again) {
                return Ok(claim);
            }
        }
        Ok(ClaimResult::Again)
    }

    /// Claims the first job of a ready log, or puts it into the line of its kind.
    fn claim_front(&mut self, lane: usize, wanted: &Wanted) -> Result<ClaimResult, BoxError> {
        // The entry claimed now is read below, so a later range deletes it.
        self.txn.delete_behind(lane)?;
        let index = self.txn.staged.head.lanes[lane].next;
        let claim = match self.txn.entry(lane, index)? {
            Some((id, row)) if wanted.has_kind(&row.kind) => self.claim_job(id, row)?,
            Some((id, row)) => {
                self.txn.put_in_line(lane, index, &id, &row.kind)?;
                ClaimResult::Again
            }
            None => ClaimResult::Again,
        };
        if !matches!(claim, ClaimResult::Nothing) {
            self.txn.head().lanes[lane].next += 1;
        }
        Ok(claim)
    }
}
