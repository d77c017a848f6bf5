//! Finds the jobs that are at fault when an add or an operation cannot be made.

use super::{Draft, Owed};
use crate::base::{BoxError, Error};
use crate::commit::changes::{Asker, Changes, Op, Refused};
use crate::commit::counter_cache::{At, Cell};
use crate::commit::{adds::Add, refusal::Refusal};
use crate::kv::statement::Statement;

/// The previous states of the counters that one job changed, in the order of its changes.
type Before = Vec<(At, Cell)>;

/// A job with its operations, or operations without a job.
type JobOps<'c> = (Option<&'c Asker>, &'c [Op]);

/// The most rounds in which refused operations are retried. Each job of a chain in the worst order
/// takes a round, and all writers wait meanwhile.
const ROUNDS: usize = 64;

impl Draft<'_> {
    /// Appends the changes job by job, after one was refused: each job is done whole or refused,
    /// and the others see nothing of a refused one. If any job is refused, nothing is appended.
    ///
    /// It finds all refused jobs at once, since each look-up of counters scans the batch.
    pub(super) fn append_what_can_be(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
        let before = self.mark();
        let mut refused = self.make_what_can_be(all)?;
        refused.extend(self.refuse_adds(all, &refused)?);
        // The cells contain sums that the batch lacks.
        self.cells.clear();
        let appended = if refused.is_empty() { self.append_rests(all) } else { Ok(()) };
        if appended.is_err() || !refused.is_empty() {
            self.go_back(before);
        }
        refused.sort_unstable_by_key(|job| job.index);
        appended.map(|()| refused)
    }

    fn append_rests(&mut self, all: &[Changes]) -> Result<(), BoxError> {
        let (places, mut owed) = (self.learn(all.iter().flat_map(Changes::adds))?, Owed::new());
        let mut places = places.into_iter();
        all.iter().try_for_each(|changes| self.append_rest(changes, &mut places, &mut owed))?;
        Ok(self.put_owed(owed)?)
    }

    /// Makes the operations of jobs, in order. Refused jobs are retried after the others, which may
    /// push what they wait for. A refused statement ends its job at once. Returns the refused jobs,
    /// ascending.
    fn make_what_can_be(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
        let jobs = all.iter().flat_map(Changes::ops_by_job).collect();
        let mut refused = Vec::new();
        let left = in_rounds(jobs, |jobs| {
            let mut made = Vec::with_capacity(jobs.len());
            self.make_jobs(jobs, false, &mut made)?;
            let answers = jobs.iter().zip(made).map(|((job, _), made)| match (made, job) {
                (Made::Never(reason), Some(job)) => {
                    refused.push(Refused::new(job, reason));
                    None
                }
                (Made::Never(reason) | Made::NotNow(reason), _) => Some(reason),
                (Made::Yes, _) => None,
            });
            Ok(answers.collect())
        })?;
        refused.extend(left.into_iter().filter_map(|((job, _), error)| Some(Refused::new(job?, error))));
        refused.sort_unstable_by_key(|job| job.index);
        Ok(refused)
    }

    /// Makes the operations of these jobs, and adds each result to `made`. If they break a deferred
    /// constraint, it bisects the jobs, since each check reads whole tables. `broken` means that
    /// this is already known. Returns false if a job was left out for that.
    ///
    /// A refusal counts only if the constraints hold after it. Until then, rows of a job that
    /// breaks one may cause it.
    fn make_jobs(&mut self, jobs: &[JobOps<'_>], broken: bool, made: &mut Vec<Made>) -> Result<bool, BoxError> {
        let (before, count) = (self.mark(), made.len());
        if !broken {
            for job in jobs {
                made.push(self.make_job(job)?);
            }
            if self.overlay.statements().keep_the_rules()? {
                return Ok(true);
            }
            self.go_back(before);
            made.truncate(count);
        }
        if let [(job, ops)] = jobs {
            made.push(Made::NotNow(broken_rule(ops)).of(*job)?);
            return Ok(false);
        }
        let (first, second) = jobs.split_at(jobs.len() / 2);
        // If the first half is not at fault, the second one is.
        let broken = self.make_jobs(first, false, made)?;
        self.make_jobs(second, broken, made)?;
        Ok(false)
    }

    /// Makes all operations of a job, or none.
    fn make_job(&mut self, (job, ops): &JobOps<'_>) -> Result<Made, BoxError> {
        let before = self.mark();
        // Statements keep their order, so a refused one is not retried after others.
        let mut statement = None;
        let mut make = |op: &&Op| {
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
        };
        let left = in_rounds(ops.iter().collect(), |ops: &[&Op]| ops.iter().map(&mut make).collect())?;
        let reason = left.into_iter().next().map(|(_, reason)| reason);
        let made = match (statement, reason) {
            (None, None) => return Ok(Made::Yes),
            (Some(reason), _) => Made::Never(reason),
            (None, Some(reason)) => Made::NotNow(reason),
        };
        self.go_back(before);
        made.of(*job)
    }

    /// Finds the jobs with an add that cannot be made, except those in `without` (ascending).
    fn refuse_adds(&mut self, all: &[Changes], without: &[Refused]) -> Result<Vec<Refused>, BoxError> {
        let places = self.learn(all.iter().flat_map(Changes::adds))?;
        let (mut refused, mut rest) = (Vec::new(), &places[..]);
        for changes in all {
            let (own, others) = rest.split_at(changes.count_adds());
            self.try_one(changes, own, without, &mut refused);
            rest = others;
        }
        Ok(refused)
    }

    /// Tries the jobs of these changes. `places` are the positions of their counters.
    fn try_one(&mut self, changes: &Changes, places: &[At], without: &[Refused], refused: &mut Vec<Refused>) {
        let mut records = changes.records().records();
        let mut number = 0;
        let mut before = Before::new();
        for (job, numbers) in changes.jobs() {
            // Records in between belong to jobs that can always be written.
            records
                .by_ref()
                .take((job.records.start - number) as usize)
                .for_each(|record| self.cells.note(record, |_, _| ()));
            number = job.records.start;
            if without.binary_search_by_key(&job.index, |job| job.index).is_ok() {
                number = job.records.end;
                records.by_ref().take(job.records.len()).for_each(drop);
                continue;
            }
            let mut adds = changes.adds_of(numbers.clone()).zip(&places[numbers]).peekable();
            let mut made = Ok(());
            for record in records.by_ref().take(job.records.len()) {
                while let Some((add, at)) = adds.next_if(|(add, _)| add.after <= number) {
                    made = made.and_then(|()| self.try_add(&add, *at, &mut before));
                }
                self.cells.note(record, |at, was| before.push((at, was)));
                number += 1;
            }
            let made = made.and_then(|()| adds.try_for_each(|(add, at)| self.try_add(&add, *at, &mut before)));
            if let Err(error) = made {
                self.restore(&mut before);
                refused.push(Refused::new(job, error));
            }
            before.clear();
        }
        records.for_each(|record| self.cells.note(record, |_, _| ()));
    }

    fn try_add(&mut self, add: &Add<'_>, at: At, before: &mut Before) -> Result<(), Error> {
        let cell = self.cells.get(at).plus(add)?;
        before.push((at, self.cells.set(at, cell)));
        Ok(())
    }

    /// Undoes the changes, the last one first.
    fn restore(&mut self, before: &mut Before) {
        for (at, was) in before.drain(..).rev() {
            self.cells.set(at, was);
        }
    }
}

enum Made {
    Yes,
    /// It is retried after the others.
    NotNow(Error),
    Never(Error),
}

impl Made {
    /// Returns the reason as an error if there is no job to refuse.
    fn of(self, job: Option<&Asker>) -> Result<Self, BoxError> {
        match (self, job) {
            (Self::NotNow(reason) | Self::Never(reason), None) => Err(reason.into()),
            (made, _) => Ok(made),
        }
    }
}

/// Tries all in order, and refused ones again after the others, as long as that helps. A round
/// returns the refusals' reasons. Returns what stays refused, with the last reasons.
fn in_rounds<T>(
    mut all: Vec<T>,
    mut round: impl FnMut(&[T]) -> Result<Vec<Option<Error>>, BoxError>,
) -> Result<Vec<(T, Error)>, BoxError> {
    let mut places: Vec<usize> = (0..all.len()).collect();
    let mut rounds = 0;
    loop {
        let (count, reasons) = (all.len(), round(&all)?);
        let tried = places.into_iter().zip(all).zip(reasons);
        let mut left: Vec<_> = tried.filter_map(|((place, one), reason)| Some((place, one, reason?))).collect();
        rounds += 1;
        if left.is_empty() || left.len() == count || rounds == ROUNDS {
            left.sort_unstable_by_key(|(place, ..)| *place);
            return Ok(left.into_iter().map(|(_, one, reason)| (one, reason)).collect());
        }
        // In reverse order: a chain that is pushed from its end takes two rounds.
        (places, all) = left.into_iter().rev().map(|(place, one, _)| (place, one)).unzip();
    }
}

/// The error of a job whose statements break a deferred constraint.
fn broken_rule(ops: &[Op]) -> Error {
    let last = ops.iter().filter_map(|op| Statement::decode(&op.bytes)).next_back();
    let sql = last.map(|statement| statement.sql.to_owned()).unwrap_or_default();
    let source = "a deferred foreign key of it or of a statement before it has no row to point at".into();
    Error::Sql { sql, source }
}
