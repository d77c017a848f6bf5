//! Moves by an operator, for engines: the content of the save that makes them.

use super::history::{Move, MoveKind};
use super::parked::{Anew, NO_NAME, ParkedRecord, job_key};
use super::{Record, Saved, load_records};
use crate::base::config::{ConfigError, MAX_SKIP, check_index, check_reason};
use crate::base::{Error, Index};
use std::time::SystemTime;

/// Moves for an engine of your own, as [`StoreProgress`](crate::StoreProgress) makes them.
///
/// The engine takes the name as a consumer does, loads everything with all records, calls one of
/// these, and writes the result as a save, together with the record of the move, in one
/// transaction. The result has the records that change. Whatever else is stored as done is removed.
///
/// ```
/// use std::time::SystemTime;
/// use waterline::Saved;
///
/// let before = Saved::new(Some(6), 7, vec![9..=12]);
/// let (after, made) = Saved::seek(Some(&before), 4, "the prices of 4 to 6 were wrong", SystemTime::now())?;
/// assert_eq!((after.last_processed, after.next, after.done.len()), (Some(3), 4, 0));
/// assert_eq!((made.from, made.to), (Some(7), 4));
///
/// let (after, _) = before.skip("blocks", 7, "this block is empty", SystemTime::now())?;
/// assert_eq!((after.last_processed, after.next), (Some(7), 8));
/// assert_eq!(after.records[0].parked().unwrap().error, "skipped by hand: this block is empty");
/// # Ok::<(), waterline::Error>(())
/// ```
impl Saved {
    /// Makes the next consumer start with the job `next`, as
    /// [`StoreProgress::seek`](crate::StoreProgress::seek) does.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad reason or [`Index::MAX`], [`Error::Corrupt`] for a bad record.
    pub fn seek(before: Option<&Self>, next: Index, reason: &str, at: SystemTime) -> Result<(Self, Move), Error> {
        check_index("seek", next)?;
        check_reason(reason)?;
        let mut after = Self::new(next.checked_sub(1), next, Vec::new());
        let records = before.map(|before| (before.records.clone(), before.parked.clone())).unwrap_or_default();
        for job in load_records(records, true, NO_NAME)?.into_iter().flat_map(|earlier| earlier.jobs) {
            let index = job.index;
            match job.begun_anew(next) {
                Anew::Stays => {}
                Anew::Goes => after.records.push(Record { key: job_key(index), value: None }),
                Anew::Becomes(new) => after.records.push(record(&new)),
            }
        }
        Ok((after, Move::new(at, MoveKind::Seek, before.map(|before| before.next), next, reason)))
    }

    /// Makes the watermark pass a job that is not done, and parks it, as
    /// [`StoreProgress::skip`](crate::StoreProgress::skip) does. The name is for the error.
    ///
    /// # Errors
    /// [`Error::AlreadyDone`] if the job is done or parked; [`Error::Config`] for a bad reason, for
    /// [`Index::MAX`], and for a job that is too far ahead.
    pub fn skip(&self, name: &str, index: Index, reason: &str, at: SystemTime) -> Result<(Self, Move), Error> {
        check_index("skip", index)?;
        check_reason(reason)?;
        let mut after = with_done(self, index).ok_or_else(|| Error::AlreadyDone { name: name.to_owned(), index })?;
        if index - self.next >= MAX_SKIP {
            return Err(ConfigError::SkipTooFar { index, next: self.next }.into());
        }
        after.records.push(record(&ParkedRecord::by_hand(index, reason, super::life::stored_time(at))));
        Ok((after, Move::new(at, MoveKind::Skip, Some(self.next), index, reason)))
    }
}

fn record(job: &ParkedRecord) -> Record {
    Record { key: job_key(job.index), value: Some(job.encode(NO_NAME)) }
}

/// Returns everything that is done once this job is, too; `None` if it already is.
fn with_done(before: &Saved, index: Index) -> Option<Saved> {
    let Saved { last_processed, next, ref done, .. } = *before;
    if index < next || done.iter().any(|run| run.contains(&index)) {
        return None;
    }
    let mut done = done.clone();
    if index > next {
        done.push(index..=index);
        return Some(Saved::new(last_processed, next, done).in_order());
    }
    // The watermark passes the job, and the run of done jobs after it.
    let behind = done.first().filter(|run| *run.start() == index + 1).cloned();
    let last = behind.map_or(index, |run| *run.end());
    done.retain(|run| *run.start() > last);
    Some(Saved::new(Some(last), last + 1, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_job_joins_the_runs_beside_it() {
        let before = Saved::new(Some(4), 5, vec![6..=7, 9..=9]);
        for done in [0, 4, 6, 7, 9] {
            assert_eq!(with_done(&before, done), None, "job {done} is done");
        }
        assert_eq!(with_done(&before, 5), Some(Saved::new(Some(7), 8, vec![9..=9])));
        assert_eq!(with_done(&before, 8), Some(Saved::new(Some(4), 5, vec![6..=9])));
        assert_eq!(with_done(&before, 20), Some(Saved::new(Some(4), 5, vec![6..=7, 9..=9, 20..=20])));
        let first = Saved::new(None, 0, vec![2..=3]);
        assert_eq!(with_done(&first, 0), Some(Saved::new(Some(0), 1, vec![2..=3])));
        let top = Saved::new(Some(Index::MAX - 3), Index::MAX - 2, vec![Index::MAX - 1..=Index::MAX - 1]);
        assert_eq!(with_done(&top, Index::MAX - 2), Some(Saved::new(Some(Index::MAX - 1), Index::MAX, vec![])));
    }
}
