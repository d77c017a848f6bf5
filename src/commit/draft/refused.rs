//! Finds the jobs that are to blame when an add cannot be made.

use super::{Cell, Draft, Touched, cell, touched};
use crate::base::error::Error;
use crate::base::index::BoxError;
use crate::commit::changes::{Add, Adder, Changes, Refused};
use crate::kv::batch::{FamilyId, Record};
use std::borrow::Cow;

/// Counters as they were before one job changed them, in the order of its changes.
type Before<'c> = Vec<(FamilyId, Cow<'c, [u8]>, Cell)>;

impl Draft<'_> {
    /// Finds the jobs with an add that cannot be made, when the changes of all of them are made in
    /// order: each job is done whole or refused, and the jobs after a refused one find nothing of
    /// it. Appends nothing.
    ///
    /// It finds all of them at once, since each look at counters goes through the whole batch.
    pub(super) fn refused(&mut self, all: &[Changes]) -> Result<Option<Refused>, BoxError> {
        self.learn(all.iter().flat_map(Changes::adds))?;
        let mut refused = None;
        all.iter().for_each(|changes| self.try_one(changes, &mut refused));
        // They are what they would come to, of which the batch has nothing.
        self.cells.clear();
        if let Some(Refused { jobs, .. }) = &mut refused {
            jobs.sort_unstable();
        }
        Ok(refused)
    }

    fn try_one(&mut self, changes: &Changes, refused: &mut Option<Refused>) {
        let mut records = changes.records().records();
        let mut number = 0;
        let mut before = Before::new();
        for (job, adds) in changes.jobs() {
            // Those of jobs that add nothing stand between, and can be written whatever is there.
            records.by_ref().take((job.records.start - number) as usize).for_each(|record| self.note(record));
            number = job.records.start;
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
                blame(refused, job, error);
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

/// Notes one more job that is to blame, and keeps the error of the lowest.
fn blame(refused: &mut Option<Refused>, &Adder { index, attempt, .. }: &Adder, error: Error) {
    match refused {
        None => *refused = Some(Refused { jobs: vec![index], lowest: index, attempt, error }),
        Some(refused) => {
            refused.jobs.push(index);
            if index < refused.lowest {
                *refused = Refused { jobs: std::mem::take(&mut refused.jobs), lowest: index, attempt, error };
            }
        }
    }
}
