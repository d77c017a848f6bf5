//! Claims of held jobs: the limits in the freed log take turns.

use crate::embedded::codec::head::FREED;
use crate::embedded::step::{ClaimResult, Step};
use crate::embedded::txn::LOOKS;
use crate::embedded::txn::held_logs::{Candidate, First, NextHeld, id_in};
use crate::embedded::txn::limits::LimitCache;
use crate::types::job::JobId;
use crate::types::row::Row;
use crate::types::wanted::{Wanted, is_among};
use waterline::BoxError;

impl Step<'_, '_> {
    /// Looks at the first limit of the freed log. A limit leaves the log when it has no place or no
    /// job; one whose job is claimed goes to the end. So limits take turns.
    pub(super) fn turn(&mut self) -> Result<NextHeld, BoxError> {
        self.txn.delete_behind(FREED)?;
        self.turn_at(self.txn.staged.head.log(FREED).next, None)
    }

    /// Looks for the first limit whose job is wanted. Returns its place in the log, and the
    /// priority of that job. The limits before it keep their turns.
    pub(super) fn wanted_turn(&mut self, wanted: &Wanted) -> Result<Option<(u64, usize)>, BoxError> {
        if !self.txn.staged.head.has_freed() {
            return Ok(None);
        }
        self.txn.delete_behind(FREED)?;
        let (mut index, kinds) = (0, wanted.kinds.as_deref());
        for _ in 0..LOOKS {
            let log = *self.txn.staged.head.log(FREED);
            index = self.txn.staged.kinds.behind_turns_of_others(log.next.max(index), kinds);
            if index >= log.end {
                break;
            }
            match self.turn_at(index, kinds)? {
                NextHeld::Passed => {}
                NextHeld::Gap | NextHeld::Others => index += 1,
                NextHeld::Job(held) => {
                    let takes = wanted.takes(&held.row, self.txn.at.wall);
                    let found = takes.then_some((index, held.row.priority as usize));
                    self.txn.keep_turn(*held)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                    index += 1;
                }
            }
        }
        Ok(None)
    }

    /// Looks at a limit in the freed log, for a claim of these kinds; `None`: of all.
    pub(super) fn turn_at(&mut self, index: u64, kinds: Option<&[String]>) -> Result<NextHeld, BoxError> {
        let queue = self.txn.queue;
        let Some(name) = self.txn.batch.get(&queue.entries, &queue.keys.ready(FREED, index))? else {
            self.txn.pass_freed(index)?;
            return Ok(NextHeld::Gap);
        };
        let (name, mut cache) = (id_in(name), LimitCache::default());
        let turn = cache.open(&mut self.txn, &name)?;
        if !cache.record(turn).called {
            // This limit is not meant to be here, so the entry of another one was damaged.
            return self.txn.call_limits_anew();
        }
        if cache.record(turn).held == 0 || cache.record(turn).waits.is_some() || !cache.at(turn).has_room() {
            return self.txn.leave_freed(cache, (turn, index));
        }
        let mut log = turn;
        let mut first = self.txn.first_held(&mut cache, turn)?;
        if let First::Key(key) = first {
            (log, first) = (key, self.txn.first_held(&mut cache, key)?);
            if matches!(first, First::None | First::Key(_)) {
                cache.leave_line(&mut self.txn, key)?;
            }
        }
        match first {
            First::Job(id, row) if !is_among(&row.kind, kinds) && self.unrun(&id, &row).is_none() => {
                self.txn.pass_by(cache, index, &id, *row)
            }
            First::Job(id, row) => self.look_at_held(cache, (turn, index), log, (id, *row)),
            First::None if log == turn => self.txn.leave_freed(cache, (turn, index)),
            _ => self.txn.passed(cache),
        }
    }

    /// Looks at the first job of the limit `turn`. `log` is that limit or a key that waits for it.
    fn look_at_held(
        &mut self,
        mut cache: LimitCache,
        (turn, index): (usize, u64),
        log: usize,
        (id, row): (JobId, Row),
    ) -> Result<NextHeld, BoxError> {
        if let Some(end) = self.unrun(&id, &row) {
            cache.write(&mut self.txn)?;
            self.end_unrun(&id, row, end)?;
            return Ok(NextHeld::Passed);
        }
        let (names, cost) = (self.txn.queue.limits.names(&row), row.extras().cost);
        let name = cache.at(turn).name.clone();
        if turn != log && names.kind.as_ref() != Some(&name) {
            // When the key began to wait, another job was its first.
            cache.leave_line(&mut self.txn, log)?;
            return self.txn.passed(cache);
        }
        if !cache.at(turn).has_place(cost) {
            cache.at(turn).need = cost;
            return self.txn.leave_freed(cache, (turn, index));
        }
        for other in names.iter().filter(|other| **other != name) {
            let at = cache.open(&mut self.txn, other)?;
            let has_place = cache.at(at).has_place(cost);
            if at == log {
                if !has_place {
                    cache.leave_line(&mut self.txn, log)?;
                    cache.at(log).need = cost;
                    return self.txn.passed(cache);
                }
            } else if !has_place || cache.record(at).held > 0 {
                if names.key.as_ref() == Some(other) {
                    // When this job was held, keys had no limit.
                    cache.take_out(&mut self.txn, &name, row.place)?;
                    cache.hold(&mut self.txn, at, &id, &row)?;
                    return self.txn.passed(cache);
                }
                cache.wait_for_kind(&mut self.txn, log, at, cost)?;
                return self.txn.leave_freed(cache, (turn, index));
            }
        }
        Ok(NextHeld::Job(Box::new(Candidate { id, row, turn: (turn, index), names, cache })))
    }

    /// Claims a held job whose turn it is.
    pub(super) fn claim_held(&mut self, candidate: Candidate) -> Result<ClaimResult, BoxError> {
        let waits_alone = candidate.row.extras().is_suspect && self.txn.staged.gate.holds_alone();
        if waits_alone || self.is_no_company(&candidate.row) {
            self.txn.keep_turn(candidate)?;
            return Ok(ClaimResult::Nothing);
        }
        let Candidate { id, mut row, turn, names, mut cache } = candidate;
        let cost = row.extras().cost;
        if !cache.queue_has_tokens(&mut self.txn, cost)? {
            cache.write(&mut self.txn)?;
            return Ok(ClaimResult::Nothing);
        }
        if let Some(limit) = row.extras().held.clone() {
            cache.take_out(&mut self.txn, &limit, row.place)?;
        }
        row.clear_state();
        cache.take_places(&mut self.txn, &names, cost)?;
        self.txn.leave_freed(cache, turn)?;
        self.begin(id, row)
    }
}
