//! Finds the jobs that are to blame when an add or an operation cannot be made.

use super::{Cell, Draft, Touched, cell, touched};
use crate::base::error::Error;
use crate::base::index::BoxError;
use crate::commit::changes::{Add, Changes, Refused};
use crate::commit::participant::Refusal;
use crate::kv::batch::{FamilyId, Record};
use std::borrow::Cow;

/// Counters as they were before one job changed them, in the order of its changes.
type Before<'c> = Vec<(FamilyId, Cow<'c, [u8]>, Cell)>;

/// The most rounds in which operations are tried that were refused. Each job of a chain that is
/// pushed in the worst order takes a round, and the writer holds up everybody meanwhile.
const ROUNDS: usize = 64;

impl Draft<'_> {
    /// Appends the changes of jobs, one job after the other, after the first of them was refused:
    /// each job is done whole or refused, and the others find nothing of a refused one. If any job
    /// is refused, nothing is appended.
    ///
    /// It finds all of these jobs at once, since each look at counters goes through the whole
    /// batch.
    pub(super) fn append_what_can_be(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
        let (before, start) = (self.mark(), self.mark());
        let mut refused = self.make_what_can_be(all, false)?;
        if !self.overlay.statements().keep_the_rules()? {
            self.go_back(start);
            refused = self.make_what_can_be(all, true)?;
        }
        refused.extend(self.refuse_adds(all, &refused)?);
        // The cells are what they would come to, of which the batch has nothing.
        self.cells.clear();
        let appended = if refused.is_empty() { self.append_rests(all) } else { Ok(()) };
        if appended.is_err() || !refused.is_empty() {
            self.go_back(before);
        }
        refused.sort_unstable_by_key(|job| job.index);
        appended.map(|()| refused)
    }

    fn append_rests(&mut self, all: &[Changes]) -> Result<(), BoxError> {
        self.learn(all.iter().flat_map(Changes::adds))?;
        all.iter().try_for_each(|changes| self.append_rest(changes))
    }

    /// Makes the operations of jobs, in their order. Jobs that are refused come after the others,
    /// since one of those may push what they wait for. A statement that is refused ends its job at
    /// once. Returns the jobs that stay refused, in ascending order. `each` looks at each job for a
    /// rule that it breaks, which is checked at the end.
    fn make_what_can_be(&mut self, all: &[Changes], each: bool) -> Result<Vec<Refused>, BoxError> {
        let jobs = all.iter().flat_map(Changes::ops_by_job).collect();
        let mut refused = Vec::new();
        let left = in_rounds(jobs, |(job, ops)| {
            let before = self.mark();
            // Statements keep their order, so one that is refused is not tried behind others.
            let mut statement = None;
            let left = in_rounds(ops.iter().collect(), |op| {
                if statement.is_some() {
                    return Ok(None);
                }
                let before = self.mark();
                let Err(error) = self.make(op) else { return Ok(None) };
                self.go_back(before);
                match Refusal::reason(error)? {
                    error @ Error::Sql { .. } => {
                        self.overlay.statements().trust_refusal()?;
                        statement = Some(error);
                        Ok(None)
                    }
                    error => Ok(Some(error)),
                }
            })?;
            let is_final = statement.is_some();
            let reason = match statement.or(left.into_iter().next().map(|(_, reason)| reason)) {
                Some(reason) => reason,
                None if !each => return Ok(None),
                None => match self.overlay.statements().check(ops) {
                    Ok(()) => return Ok(None),
                    Err(error) => Refusal::reason(error)?,
                },
            };
            self.go_back(before);
            match job {
                Some(job) if is_final => {
                    refused.push(Refused::new(job, reason));
                    Ok(None)
                }
                Some(_) => Ok(Some(reason)),
                None => Err(reason.into()),
            }
        })?;
        refused.extend(left.into_iter().filter_map(|((job, _), error)| Some(Refused::new(job?, error))));
        refused.sort_unstable_by_key(|job| job.index);
        Ok(refused)
    }

    /// Finds the jobs with an add that cannot be made, beside these, which are in ascending order.
    fn refuse_adds(&mut self, all: &[Changes], without: &[Refused]) -> Result<Vec<Refused>, BoxError> {
        self.learn(all.iter().flat_map(Changes::adds))?;
        let mut refused = Vec::new();
        all.iter().for_each(|changes| self.try_one(changes, without, &mut refused));
        Ok(refused)
    }

    fn try_one(&mut self, changes: &Changes, without: &[Refused], refused: &mut Vec<Refused>) {
        let mut records = changes.records().records();
        let mut number = 0;
        let mut before = Before::new();
        for (job, adds) in changes.jobs() {
            // Those of jobs that ask for nothing stand between, and can be written whatever is
            // there.
            records.by_ref().take((job.records.start - number) as usize).for_each(|record| self.note(record));
            number = job.records.start;
            if without.binary_search_by_key(&job.index, |job| job.index).is_ok() {
                number = job.records.end;
                records.by_ref().take(job.records.len()).for_each(drop);
                continue;
            }
            let mut adds = adds.iter().peekable();
            let mut made = Ok(());
            for record in records.by_ref().take(job.records.len()) {
                while let Some(add) = adds.next_if(|add| add.after <= number) {
                    made = made.and_then(|()| self.try_add(add, &mut before));
                }
                self.try_record(record, &mut before);
                number += 1;
            }
            let made = made.and_then(|()| adds.try_for_each(|add| self.try_add(add, &mut before)));
            if let Err(error) = made {
                self.restore(&mut before);
                refused.push(Refused::new(job, error));
            }
            before.clear();
        }
        records.for_each(|record| self.note(record));
    }

    fn try_add<'c>(&mut self, add: &'c Add, before: &mut Before<'c>) -> Result<(), Error> {
        if let Some(cell) = cell(&mut self.cells, add.family.id, &add.key) {
            let count = Cell::Counted(cell.plus(add)?);
            before.push((add.family.id, Cow::Borrowed(&add.key), std::mem::replace(cell, count)));
        }
        Ok(())
    }

    fn try_record<'c>(&mut self, record: Record<'c>, before: &mut Before<'c>) {
        match touched(record) {
            Touched::Row(family, key, value) => {
                if let Some(cell) = cell(&mut self.cells, family, key) {
                    let stored = Cell::Stored(value.map(<[u8]>::to_vec));
                    before.push((family, Cow::Borrowed(key), std::mem::replace(cell, stored)));
                }
            }
            Touched::Range(range) => {
                let cells = self.cells.get_mut(&range.family).into_iter().flatten();
                for (key, cell) in cells.filter(|(key, _)| range.has(key)) {
                    let was = std::mem::replace(cell, Cell::Stored(None));
                    before.push((range.family, Cow::Owned(key.clone()), was));
                }
            }
        }
    }

    /// The last change is taken back first.
    fn restore(&mut self, before: &mut Before<'_>) {
        for (family, key, was) in before.drain(..).rev() {
            if let Some(cell) = cell(&mut self.cells, family, &key) {
                *cell = was;
            }
        }
    }
}

/// Tries each of these in turn, and those that are refused again after the others, as long as that
/// helps. Returns those that stay refused, in their order, each with its last reason.
fn in_rounds<T>(
    all: Vec<T>,
    mut try_one: impl FnMut(&T) -> Result<Option<Error>, BoxError>,
) -> Result<Vec<(T, Error)>, BoxError> {
    let mut all: Vec<(usize, T)> = all.into_iter().enumerate().collect();
    let mut rounds = 0;
    loop {
        let (count, mut left) = (all.len(), Vec::new());
        for (place, one) in all {
            let reason = try_one(&one)?;
            left.extend(reason.map(|reason| (place, one, reason)));
        }
        rounds += 1;
        if left.is_empty() || left.len() == count || rounds == ROUNDS {
            left.sort_unstable_by_key(|(place, ..)| *place);
            return Ok(left.into_iter().map(|(_, one, reason)| (one, reason)).collect());
        }
        // The other way round: a chain that is pushed from its end takes two rounds.
        all = left.into_iter().rev().map(|(place, one, _)| (place, one)).collect();
    }
}
