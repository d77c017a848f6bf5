//! Moves by an operator while no consumer has the name: a seek, and a skip of one job.

use super::embedded::{StoreProgress, enter};
use super::history::{History, Move, MoveKind};
use super::ledger::{Ledger, Loaded};
use super::parked::{ParkedRecord, ParkedRecords};
use super::{Saved, Snapshot, reads};
use crate::base::config::{ConfigError, MAX_SKIP, check_index, check_name, check_reason};
use crate::base::{BoxError, Error, Index, time};
use crate::commit::changes::Changes;
use crate::store::NameGuard;

/// A move in progress. It holds the name until it is dropped.
struct Moving<'a> {
    progress: &'a StoreProgress,
    /// Everything that was done before, in order; `None` if nothing was saved.
    before: Option<Saved>,
    ledger: Ledger,
    _name: NameGuard,
}

impl StoreProgress {
    /// Makes a [`seek`](Self::seek), if `allowed` agrees to the log that the last consumer read.
    pub(crate) fn seek_if(
        &self,
        next: Index,
        reason: &str,
        allowed: impl FnOnce(&str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        check_index("seek", next)?;
        let moving = self.begin_move(reason)?;
        reads::load(self.store(), self.name())?.map_or(Ok(()), |log| allowed(&log))?;
        let after = Saved::new(next.checked_sub(1), next, Vec::new());
        let made = Move::at_wall(MoveKind::Seek, moving.from(), next, reason, time::wall());
        let mut changes = Changes::default();
        ParkedRecords::of(self.store(), self.name())?.begin_anew(self.store(), next, &mut changes)?;
        moving.write(&after, &made, changes)
    }

    /// Skips one job that is not done: no consumer runs it, and the watermark passes it.
    ///
    /// The job is parked, with no attempt and the error `skipped by hand: ` and the reason. So
    /// [`Store::parked`](crate::Store::parked) lists it, [`Store::redrive`](crate::Store::redrive)
    /// runs it after all, [`Store::discard`](crate::Store::discard) gives it up, and it counts in
    /// the [budget](crate::OnExhausted::Park).
    ///
    /// The job may be up to 2^30 jobs above the lowest undone one: until the watermark gets there,
    /// a consumer keeps a bit in memory for each job in between. If the source has no such job yet,
    /// the consumer passes the index when it gets there.
    ///
    /// The move, the record of the parked job and the record in the [history](Self::history) are
    /// one atomic write. The reason has 1 to 1,024 bytes.
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..4).collect::<MemoryJobs<u64>>());
    /// let life = || {
    ///     let consumer = Consumer::builder(jobs.clone(), store.progress("p")).stop_at(3);
    ///     consumer.start(|job| if job.payload == 2 { Err("a bad block".into()) } else { Ok(()) })?.join()
    /// };
    /// assert!(matches!(life(), Err(Error::Job { index: 2, .. })));
    /// store.progress("p").skip(2, "this block is empty")?;
    /// life()?;
    /// assert_eq!(store.progress("p").last_processed()?, Some(3));
    /// assert_eq!(store.parked("p")?[0].error, "skipped by hand: this block is empty");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`seek`](Self::seek), and:
    /// * [`Error::AlreadyDone`] if the job is done or parked.
    /// * [`Error::NothingSaved`] if nothing is saved under this name. A store does not know where
    ///   the stream begins, so [`seek`](Self::seek) there first.
    /// * [`Error::Config`] also for a job that is too far ahead.
    pub fn skip(&self, index: Index, reason: &str) -> Result<(), Error> {
        check_index("skip", index)?;
        let moving = self.begin_move(reason)?;
        let Some(before) = &moving.before else { return Err(Error::NothingSaved { name: self.name().to_owned() }) };
        let after =
            with_done(before, index).ok_or_else(|| Error::AlreadyDone { name: self.name().to_owned(), index })?;
        if index - before.next >= MAX_SKIP {
            return Err(ConfigError::SkipTooFar { index, next: before.next }.into());
        }
        self.note_parking()?;
        let wall = time::wall();
        let made = Move::at_wall(MoveKind::Skip, moving.from(), index, reason, wall);
        let mut changes = Changes::default();
        let record = ParkedRecord::by_hand(index, reason, wall);
        ParkedRecords::of(self.store(), self.name())?.put(&record, &mut changes)?;
        moving.write(&after, &made, changes)
    }

    /// Lists the moves by [`seek`](Self::seek) and [`skip`](Self::skip), the oldest first.
    ///
    /// The last 1,000 are kept. It does not take the name. [`remove`](Self::remove) deletes them.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad name, [`Error::Corrupt`] for an unreadable record,
    /// [`Error::Store`] if the database fails.
    pub fn history(&self) -> Result<Vec<Move>, Error> {
        check_name("progress", self.name())?;
        History::of(self.store(), self.name()).load(self.store())
    }

    /// Takes the name, and loads everything that is done.
    fn begin_move(&self, reason: &str) -> Result<Moving<'_>, Error> {
        check_name("progress", self.name())?;
        check_reason(reason)?;
        self.store().writable()?;
        let _name = self.store().reserve(self.name())?;
        let Some(loaded) = self.load()? else {
            if !self.store().creates() {
                return self.store().not_found("progress", self.name());
            }
            return Ok(Moving { progress: self, before: None, ledger: Ledger::empty(self.name()), _name });
        };
        let Loaded { ledger, last_processed, next, done } = loaded;
        let before = Saved::new(last_processed, next, done).in_order();
        Ok(Moving { progress: self, before: Some(before), ledger, _name })
    }
}

impl Moving<'_> {
    /// Returns the lowest undone index before the move.
    fn from(&self) -> Option<Index> {
        self.before.as_ref().map(|before| before.next)
    }

    /// Writes the progress after the move, with its record and changes to records of single jobs.
    fn write(mut self, after: &Saved, made: &Move, mut changes: Changes) -> Result<(), Error> {
        let (store, name) = (self.progress.store(), self.progress.name());
        let failed = |source: BoxError| Error::Progress { source };
        let snapshot = Snapshot::try_from(after).map_err(failed)?;
        // It lists everything that is done, so it is a page, which voids earlier deltas.
        let entry = enter(&mut self.ledger, &snapshot, store.ids()).map_err(failed)?;
        changes.put(store.system().id, &[&entry.put.0], &entry.put.1)?;
        History::of(store, name).add(store, made, &mut changes)?;
        Ok(store.write_records(changes.records())?)
    }
}

/// Returns everything that is done once this job is, too; `None` if it already is.
pub(super) fn with_done(before: &Saved, index: Index) -> Option<Saved> {
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
