//! Parked jobs: those that failed for good and were passed, and those that run once more.
//!
//! The record of a parked job is among the effects of the jobs that finished, so one write has it
//! and the progress that passes the job. A redriven job runs beside the window. Its success removes
//! the record in one write with its effects, and its failure writes the record anew.

use super::Driver;
use super::care::{Care, Recovered};
use super::core::Core;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::base::time::Now;
use crate::commit::changes::Changes;
use crate::observe::observers::Notice;
use crate::observe::{Event, Kind};
use crate::progress::{LiveParking, ParkedRecord, ParkedRecords};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Weak;

/// The records of single jobs, of a consumer whose progress can keep them.
pub(crate) struct Parking {
    records: ParkedRecords,
    /// The most parked jobs; `None`: no job is parked by this consumer.
    budget: Option<u64>,
    /// The jobs that have a record, or will have one with the next save.
    pub(super) jobs: BTreeMap<Index, Brief>,
    /// The number of those that are parked.
    parked: u64,
    /// The parked jobs whose record goes with the next save, and with the save under way. A save
    /// may be refused the effects of such a job, and then its record stays.
    leaving: (u64, u64),
    /// The state of the care for crashes, if they are counted.
    pub(super) care: Option<Box<Care>>,
    /// The jobs of the window whose success was taken back, and with it perhaps the removal of a
    /// record. (A seek back puts jobs with a record into the window.)
    taken_back: BTreeSet<Index>,
    /// The redriven jobs that have succeeded: those of the next save, and of the save under way.
    /// The window has passed them long since.
    redone: (BTreeSet<Index>, BTreeSet<Index>),
}

/// The part of a record that is needed in memory.
#[derive(Clone, Default)]
pub(super) struct Brief {
    attempts: u32,
    pub(super) crashes: u32,
    first_failed: u64,
    last_failed: u64,
    /// The time at which it was parked; `None`: it is not parked.
    parked: Option<u64>,
    /// The text of the last failure of a parked job. That of another job is where its back-off is.
    error: Box<str>,
}

impl Brief {
    fn of(record: &ParkedRecord) -> Self {
        let ParkedRecord { attempts, crashes, first_failed, last_failed, .. } = *record;
        let parked = (!record.pending).then_some(record.parked);
        let error = if record.pending { "" } else { &*record.error };
        Self { attempts, crashes, first_failed, last_failed, parked, error: error.into() }
    }
}

impl Parking {
    /// Goes on with these records. `next` is the lowest index that was never handed out.
    pub(crate) fn new(recovered: &Recovered, next: Index) -> Self {
        let jobs: BTreeMap<_, _> = recovered.jobs.iter().map(|record| (record.index, Brief::of(record))).collect();
        let parked = jobs.values().filter(|job| job.parked.is_some()).count() as u64;
        let (records, care) = (recovered.place.clone(), Care::new(recovered, next));
        let (taken_back, redone) = (BTreeSet::new(), <_>::default());
        Self { records, budget: recovered.budget, jobs, parked, leaving: (0, 0), care, taken_back, redone }
    }

    fn parked_jobs(&self) -> impl Iterator<Item = Index> {
        self.jobs.iter().filter(|(_, job)| job.parked.is_some()).map(|(index, _)| *index)
    }

    fn is_parked(&self, index: Index) -> bool {
        self.jobs.get(&index).is_some_and(|job| job.parked.is_some())
    }

    /// True if this job may be parked: a job that is parked needs no other place.
    fn has_room(&self, index: Index) -> bool {
        let records = self.parked + self.leaving.0 + self.leaving.1;
        self.budget.is_some_and(|budget| records < budget || self.is_parked(index))
    }

    /// A save takes everything that has changed, or it is on the disk.
    pub(super) fn leave(&mut self, saved: bool) {
        let (waiting, under_way) = self.leaving;
        self.leaving = if saved { (waiting, 0) } else { (0, waiting + under_way) };
        let (waiting, under_way) = &mut self.redone;
        if saved { under_way.clear() } else { under_way.append(waiting) }
    }

    /// Notes that a redriven job has succeeded.
    pub(super) fn redone(&mut self, index: Index) {
        self.redone.0.insert(index);
    }

    /// True if this job of the save under way is a redriven one, whose success is taken back.
    pub(super) fn undo(&mut self, index: Index) -> bool {
        self.redone.1.remove(&index)
    }

    /// The record of this job goes with the save that begins, if the job has one.
    pub(super) fn leave_with_batch(&mut self, index: Index) -> Option<Brief> {
        let brief = self.jobs.remove(&index)?;
        let was_parked = u64::from(brief.parked.is_some());
        (self.parked, self.leaving.0) = (self.parked - was_parked, self.leaving.0 + was_parked);
        Some(brief)
    }

    /// The record of this job stays, since that save was not written.
    pub(super) fn stay_after_all(&mut self, index: Index, brief: Brief) {
        let was_parked = u64::from(brief.parked.is_some());
        (self.parked, self.leaving.1) = (self.parked + was_parked, self.leaving.1.saturating_sub(was_parked));
        self.jobs.insert(index, brief);
    }

    pub(super) fn take_back_crash(&mut self, index: Index) {
        if let Some(job) = self.jobs.get_mut(&index) {
            job.crashes = job.crashes.saturating_sub(1);
        }
    }
}

impl Core {
    /// Returns the number of parked jobs.
    pub(super) fn parked(&self) -> u64 {
        self.parking.as_ref().map_or(0, |parking| parking.parked)
    }

    /// Returns the lowest parked job, whose item a log keeps.
    pub(crate) fn lowest_parked(&self) -> Option<Index> {
        let parking = self.parking.as_ref().filter(|parking| parking.parked > 0)?;
        parking.parked_jobs().next()
    }

    /// Parks a job that waits, since it is not tried again. Gives the failure back if it cannot be
    /// parked: then the consumer halts.
    pub(super) fn park(
        &mut self,
        index: Index,
        attempt: u32,
        failure: Failure,
        now: &Now,
    ) -> Result<Option<BoxError>, Failure> {
        let has_room = self.parking.as_ref().is_some_and(|parking| parking.has_room(index));
        if !has_room || !self.window.handle_parked(index) {
            return Err(failure);
        }
        self.hold_turn();
        self.outlived(index);
        self.no_suspect(index);
        self.note_parked(index, attempt, &failure.text);
        self.tell(&Event::new(Kind::Parked, index).attempt(attempt).error(&failure.text), now);
        self.notice(|_| Notice::Parked { index, attempt, error: failure.text.clone() });
        Ok(Some(failure.error))
    }

    /// Returns the settled jobs of a gap that have a record though they are not parked.
    pub(super) fn pending_within(&self, gap: &RangeInclusive<Index>) -> Vec<Index> {
        let Some(parking) = &self.parking else { return Vec::new() };
        let pending = parking.jobs.range(gap.clone()).filter(|(_, job)| job.parked.is_none());
        let pending = pending.filter(|(index, _)| self.window.is_done(**index));
        pending.map(|(index, _)| *index).collect()
    }

    /// Returns the rest of a sentence about a job that could not be parked.
    pub(super) fn why_not_parked(&self) -> String {
        match self.parking.as_ref().and_then(|parking| parking.budget) {
            Some(budget) if self.parking.as_ref().is_some_and(|parking| !parking.has_room(Index::MAX)) => {
                format!("; the budget of {budget} parked jobs is used up: redrive or discard some, or raise it")
            }
            _ => String::new(),
        }
    }

    /// Keeps the record of a redriven job that has failed. A job that was discarded meanwhile has
    /// none.
    pub(super) fn redrive_failed(&mut self, index: Index, attempt: u32, text: &str, now: &Now) {
        self.failures.forget(index);
        self.outlived(index);
        self.no_suspect(index);
        if self.parking.as_ref().is_some_and(|parking| parking.is_parked(index)) {
            self.note_parked(index, attempt, text);
        }
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempt).error(text), now);
    }

    /// Keeps the record of a redriven job whose effects cannot be written.
    pub(super) fn redrive_refused(&mut self, index: Index, attempt: u32, text: &str, now: &Now) {
        if let Some(parking) = self.parking.as_mut().filter(|parking| !parking.is_parked(index)) {
            parking.leaving.1 = parking.leaving.1.saturating_sub(1);
        }
        self.note_parked(index, attempt, text);
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempt).error(text), now);
    }

    /// Notes that the success of a job of the window is taken back.
    pub(super) fn take_back(&mut self, index: Index) {
        self.parking.iter_mut().for_each(|parking| _ = parking.taken_back.insert(index));
    }

    /// Writes the record of a parked job with the next save.
    fn note_parked(&mut self, index: Index, attempts: u32, error: &str) {
        let Some(parking) = &mut self.parking else { return };
        let wall = self.clock.wall();
        let first_failed = self.failures.first_failed(index);
        let job = parking.jobs.entry(index).or_default();
        parking.parked += u64::from(job.parked.is_none());
        *job = Brief {
            attempts: attempts.max(job.attempts),
            crashes: job.crashes,
            first_failed: first_failed.unwrap_or(if job.first_failed > 0 { job.first_failed } else { wall }),
            last_failed: wall,
            parked: Some(job.parked.unwrap_or(wall)),
            error: error.into(),
        };
        self.write_record(index, error, |_| {});
    }

    /// Writes the record of a job that failed and has attempts left with the next save, if attempts
    /// are to outlive the process.
    pub(super) fn note_attempt(&mut self, index: Index, attempts: u32, error: &str) {
        if !self.counts_crashes() {
            return;
        }
        self.outlived(index);
        let (suspect, first_failed) = (self.is_suspect(index), self.failures.first_failed(index));
        let Some(parking) = &mut self.parking else { return };
        let wall = self.clock.wall();
        let job = parking.jobs.entry(index).or_default();
        (job.attempts, job.first_failed, job.last_failed) = (attempts, first_failed.unwrap_or(wall), wall);
        self.write_record(index, error, |record| record.suspect = suspect);
    }

    /// The same for a job that was not ready: the attempt does not count. A job without a record
    /// needs none.
    pub(super) fn note_deferred(&mut self, index: Index, attempt: u32, error: &str) {
        if self.parking.as_ref().is_some_and(|parking| parking.jobs.contains_key(&index)) {
            self.note_attempt(index, attempt.saturating_sub(1), error);
        }
    }

    /// Writes with the next save that a job may start from then on, and this number of crashes, if
    /// it is not 0.
    pub(super) fn note_start(&mut self, index: Index, crashes: u32) {
        let (suspect, first_failed) = (self.is_suspect(index), self.failures.first_failed(index));
        let Some(parking) = &mut self.parking else { return };
        let job = parking.jobs.entry(index).or_default();
        let error = match job.parked {
            Some(_) => job.error.to_string(),
            None => self.failures.waiting(index).map_or_else(String::new, |failed| failed.error.clone()),
        };
        job.crashes = job.crashes.max(crashes);
        job.first_failed = first_failed.unwrap_or(job.first_failed);
        // A wish to run it once more stands until it has run.
        let wanted = self.window.is_redriven(index);
        self.write_record(index, &error, |record| {
            (record.started, record.suspect, record.wanted) = (true, suspect, wanted);
        });
    }

    /// Forgets the attempts of a job that halts its consumer. Its crashes stay.
    pub(super) fn forget_attempts(&mut self, index: Index) {
        self.outlived(index);
        let suspect = self.is_suspect(index);
        let Some(parking) = &mut self.parking else { return };
        let Some(job) = parking.jobs.get_mut(&index).filter(|job| job.parked.is_none()) else {
            if !parking.jobs.contains_key(&index) && parking.taken_back.remove(&index) {
                let mut changes = Changes::default();
                let removed = parking.records.remove(index, &mut changes);
                debug_assert!(removed.is_ok(), "the key is short");
                self.take_changes(&mut changes, index, 0);
            }
            return;
        };
        (job.attempts, job.first_failed) = (0, 0);
        self.write_record(index, "", |record| record.suspect = suspect);
    }

    /// Writes the record of this job with the next save.
    fn write_record(&mut self, index: Index, error: &str, change: impl FnOnce(&mut ParkedRecord)) {
        let Some(parking) = &self.parking else { return };
        let Some(job) = parking.jobs.get(&index) else { return };
        let Brief { attempts, crashes, first_failed, last_failed, parked, .. } = *job;
        let mut record = ParkedRecord {
            index,
            attempts,
            crashes,
            error: error.to_owned(),
            first_failed,
            last_failed,
            parked: parked.unwrap_or(0),
            pending: parked.is_none(),
            ..ParkedRecord::default()
        };
        change(&mut record);
        let mut changes = Changes::default();
        let put = parking.records.put(&record, &mut changes);
        debug_assert!(put.is_ok(), "the text of an error has at most 4 KiB");
        self.take_changes(&mut changes, index, attempts);
    }

    /// Removes the record of a job that has succeeded, among its effects.
    #[cold]
    pub(super) fn unpark(&mut self, index: Index, effects: &mut Changes) {
        self.no_suspect(index);
        let Some(parking) = &mut self.parking else { return };
        let removed = parking.jobs.remove(&index);
        let was_parked = u64::from(removed.as_ref().is_some_and(|job| job.parked.is_some()));
        (parking.parked, parking.leaving.0) = (parking.parked - was_parked, parking.leaving.0 + was_parked);
        if removed.is_some() | parking.taken_back.remove(&index) {
            let removed = parking.records.remove(index, effects);
            debug_assert!(removed.is_ok(), "the key is short");
            self.window.handle_changed();
        }
    }

    pub(super) fn take_changes(&mut self, changes: &mut Changes, index: Index, attempt: u32) {
        self.saving.effects.take(changes, index, attempt);
        self.fit_full();
        self.window.handle_changed();
    }

    /// Makes a parked job run once more. False if it is not parked.
    pub(super) fn redrive(&mut self, index: Index, now: &Now) -> bool {
        let parked = self.parking.as_mut().and_then(|parking| parking.jobs.get_mut(&index));
        let Some(attempts) = parked.filter(|job| job.parked.is_some()).map(|job| job.attempts) else { return false };
        if !self.is_suspect(index)
            && let Some(job) = self.parking.as_mut().and_then(|parking| parking.jobs.get_mut(&index))
        {
            // A wish of the user's is a new beginning for a job that has killed its process.
            job.crashes = 0;
        }
        if self.window.handle_redriven(index) {
            let waits = "it is parked, and is to run once more".to_owned();
            self.failures.redrive(index, attempts, waits, now.get());
            self.make_due(index);
        }
        true
    }

    /// Goes on with the records of earlier lives, and runs those parked jobs once more that
    /// somebody asked for while no consumer had the name. `None` if there are none and there will
    /// be none.
    pub(crate) fn go_on(&mut self, mut recovered: Recovered) -> Option<()> {
        let now = self.clock.when_asked();
        self.life.keep(recovered.life.take().map(Box::new), recovered.max_crashes.is_some());
        if recovered.jobs.is_empty() && recovered.budget.is_none() && recovered.max_crashes.is_none() {
            return None;
        }
        self.parking = Some(Box::new(Parking::new(&recovered, self.window.next())));
        self.tell_of_death(&recovered, &now);
        self.restore_waiting(&recovered, self.clock.wall(), &now);
        self.set_gate(Index::MAX);
        let wanted = recovered.jobs.iter().filter(|record| record.wanted && !record.pending).map(|record| record.index);
        self.redrive_wanted(wanted.collect::<Vec<_>>(), &now);
        Some(())
    }

    fn redrive_wanted(&mut self, wanted: impl IntoIterator<Item = Index>, now: &Now) {
        for index in wanted {
            self.redrive(index, now);
        }
    }

    /// Gives up to run this parked job, since the source no longer has it.
    pub(super) fn withdraw(&mut self, index: Index, now: &Now) {
        if !self.window.handle_withdrawn(index) {
            return;
        }
        let attempts = self.failures.forget_redriven(index);
        let error = "the source no longer has this job, so it did not run once more";
        self.outlived(index);
        self.no_suspect(index);
        self.note_parked(index, attempts, error);
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempts).error(error), now);
    }
}

impl Driver {
    /// Returns this consumer, for calls about its parked jobs.
    pub(crate) fn live_parking(self: &Arc<Self>) -> Weak<dyn LiveParking> {
        let me: Weak<Self> = Arc::downgrade(self);
        me
    }

    pub(super) fn redrive_parked(&self, index: Index) -> Result<(), Error> {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        if core.window.has_ended() || core.window.is_stopping() {
            return Err(Error::Stopped);
        }
        self.refuse_while_it_waits(&core)?;
        let is_parked = core.redrive(index, &now);
        self.settle_parked(core, &now);
        if is_parked { Ok(()) } else { Err(Error::NotParked { name: self.watermark.name(), index }) }
    }

    pub(super) fn redrive_all_parked(&self) -> Result<u64, Error> {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        if core.window.has_ended() || core.window.is_stopping() {
            return Err(Error::Stopped);
        }
        self.refuse_while_it_waits(&core)?;
        let all: Vec<Index> = core.parking.iter().flat_map(|parking| parking.parked_jobs()).collect();
        let count = all.len() as u64;
        core.redrive_wanted(all, &now);
        self.settle_parked(core, &now);
        Ok(count)
    }
}

impl LiveParking for Driver {
    fn discard(&self, index: Index) -> bool {
        let mut core = self.core.lock();
        let is_parked = core.parking.as_ref().is_some_and(|parking| parking.is_parked(index));
        if is_parked {
            // A redriven job that runs goes on. Its end finds no record to change.
            if core.window.handle_withdrawn(index) {
                core.failures.forget_redriven(index);
            }
            core.no_suspect(index);
            let mut changes = Changes::default();
            core.unpark(index, &mut changes);
            core.take_changes(&mut changes, index, 0);
        }
        self.settle_parked(core, &self.clock.when_asked());
        is_parked
    }
}
