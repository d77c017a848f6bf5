//! Moves by an operator while no consumer has the name: a seek, and a skip of one job.

use super::embedded::{StoreProgress, enter};
use super::history::{History, Move, MoveKind};
use super::ledger::Ledger;
use super::life::wall_time;
use super::parked::{ParkedRecord, ParkedRecords};
use super::{Saved, Snapshot, reads};
use crate::base::config::{check_index, check_name, check_reason};
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
        let from = moving.before.as_ref().map(|before| before.next);
        let made = Move::new(wall_time(time::wall()), MoveKind::Seek, from, next, reason);
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
        let wall = time::wall();
        let (after, made) = before.skip(self.name(), index, reason, wall_time(wall))?;
        self.note_parking()?;
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
        let (ledger, before) = self.load_ledger()?;
        Ok(Moving { progress: self, before: before.map(Saved::in_order), ledger, _name })
    }
}

impl Moving<'_> {
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
