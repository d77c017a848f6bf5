//! Parked jobs: those that failed for good and were passed, and those that run once more.
//!
//! The record of a parked job is among the effects of the jobs that finished, so one write has it
//! and the progress that passes the job. A redriven job runs beside the window. Its success removes
//! the record in one write with its effects, and its failure writes the record anew.

use super::Driver;
use super::core::Core;
use crate::base::error::Error;
use crate::base::guard::Failure;
use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::base::time::{self, Now};
use crate::commit::changes::Changes;
use crate::observe::observers::Notice;
use crate::observe::{Event, Kind};
use crate::progress::{LiveParking, ParkedRecord, ParkedRecords};
use std::collections::BTreeMap;
use std::sync::Weak;

/// The parked jobs of a consumer whose progress can keep their records.
pub(crate) struct Parking {
    records: ParkedRecords,
    /// The most records; `None`: no job is parked by this consumer.
    budget: Option<u64>,
    /// The jobs that have a record, or will have one with the next save.
    jobs: BTreeMap<Index, Brief>,
}

/// The part of a record that is needed in memory.
#[derive(Clone, Copy)]
struct Brief {
    attempts: u32,
    first_failed: u64,
    parked: u64,
}

impl Brief {
    fn of(record: &ParkedRecord) -> Self {
        Self { attempts: record.attempts, first_failed: record.first_failed, parked: record.parked }
    }
}

impl Parking {
    /// Goes on with these records.
    pub(crate) fn new(records: ParkedRecords, budget: Option<u64>, parked: &[ParkedRecord]) -> Self {
        let jobs = parked.iter().map(|record| (record.index, Brief::of(record))).collect();
        Self { records, budget, jobs }
    }

    /// True if this job may be parked: a job that has a record needs no other one.
    fn has_room(&self, index: Index) -> bool {
        self.budget.is_some_and(|budget| (self.jobs.len() as u64) < budget || self.jobs.contains_key(&index))
    }
}

impl<T: Send + 'static> Core<T> {
    /// Returns the number of parked jobs.
    pub(super) fn parked(&self) -> u64 {
        self.parking.as_ref().map_or(0, |parking| parking.jobs.len() as u64)
    }

    /// Returns the lowest parked job, whose item a log keeps.
    pub(crate) fn lowest_parked(&self) -> Option<Index> {
        self.parking.as_ref()?.jobs.first_key_value().map(|(index, _)| *index)
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
        self.note_failure(index, attempt, &failure.text);
        self.tell(&Event::new(Kind::Parked, index).attempt(attempt).error(&failure.text), now);
        self.notice(|_| Notice::Parked { index, attempt, error: failure.text.clone() });
        Ok(Some(failure.error))
    }

    /// Returns the rest of a sentence about a job that could not be parked.
    pub(super) fn why_not_parked(&self) -> String {
        match self.parking.as_ref().and_then(|parking| parking.budget) {
            Some(budget) if self.parked() >= budget => {
                format!("; the budget of {budget} parked jobs is used up: redrive or discard some, or raise it")
            }
            _ => String::new(),
        }
    }

    /// Keeps the record of a redriven job that has failed. A job that was discarded meanwhile has
    /// none.
    pub(super) fn redrive_failed(&mut self, index: Index, attempt: u32, text: &str, now: &Now) {
        self.failures.forget(index);
        if self.parking.as_ref().is_some_and(|parking| parking.jobs.contains_key(&index)) {
            self.note_failure(index, attempt, text);
        }
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempt).error(text), now);
    }

    /// Keeps the record of a redriven job whose effects cannot be written.
    pub(super) fn redrive_refused(&mut self, index: Index, attempt: u32, text: &str, now: &Now) {
        self.note_failure(index, attempt, text);
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempt).error(text), now);
    }

    /// Writes the record of a parked job with the next save.
    fn note_failure(&mut self, index: Index, attempts: u32, error: &str) {
        let Some(parking) = &mut self.parking else { return };
        let wall = time::wall();
        let fresh = Brief { attempts, first_failed: self.failures.first_failed(index).unwrap_or(wall), parked: wall };
        let brief = parking.jobs.entry(index).or_insert(fresh);
        brief.attempts = attempts;
        let Brief { attempts, first_failed, parked } = *brief;
        let error = error.to_owned();
        let record = ParkedRecord { index, attempts, error, first_failed, last_failed: wall, parked, wanted: false };
        let mut changes = Changes::default();
        let put = parking.records.put(&record, &mut changes);
        debug_assert!(put.is_ok(), "the text of an error has at most 4 KiB");
        self.take_changes(&mut changes, index, attempts);
    }

    /// Removes the record of a job that has succeeded, among its effects.
    #[cold]
    pub(super) fn unpark(&mut self, index: Index, effects: &mut Changes) {
        let Some(parking) = &mut self.parking else { return };
        if parking.jobs.remove(&index).is_some() {
            let removed = parking.records.remove(index, effects);
            debug_assert!(removed.is_ok(), "the key is short");
            self.window.handle_changed();
        }
    }

    fn take_changes(&mut self, changes: &mut Changes, index: Index, attempt: u32) {
        self.saving.effects.take(changes, index, attempt);
        self.window.set_full(self.saving.effects.is_full());
        self.window.handle_changed();
    }

    /// Makes a parked job run once more. False if it is not parked.
    pub(super) fn redrive(&mut self, index: Index, now: &Now) -> bool {
        let Some(brief) = self.parking.as_ref().and_then(|parking| parking.jobs.get(&index)).copied() else {
            return false;
        };
        if self.window.handle_redriven(index) {
            let waits = "it is parked, and is to run once more".to_owned();
            self.failures.redrive(index, brief.attempts, waits, now.get());
            self.window.handle_due(index);
        }
        true
    }

    /// Goes on with the parked jobs of earlier lives, and runs those once more that somebody asked
    /// for while no consumer had the name. `None` if there are none and this consumer parks none.
    pub(crate) fn keep_parked(
        &mut self,
        (records, parked): (ParkedRecords, Vec<ParkedRecord>),
        budget: Option<u64>,
    ) -> Option<()> {
        if parked.is_empty() && budget.is_none() {
            return None;
        }
        self.parking = Some(Box::new(Parking::new(records, budget, &parked)));
        let wanted = parked.iter().filter(|record| record.wanted).map(|record| record.index);
        self.redrive_wanted(wanted.collect::<Vec<_>>(), &Now::when_asked());
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
        self.note_failure(index, attempts, error);
        self.tell(&Event::new(Kind::RedriveFailed, index).attempt(attempts).error(error), now);
    }
}

impl<T: Send + 'static> Driver<T> {
    /// Returns this consumer, for calls about its parked jobs.
    pub(crate) fn live_parking(self: &Arc<Self>) -> Weak<dyn LiveParking> {
        let me: Weak<Self> = Arc::downgrade(self);
        me
    }

    pub(super) fn redrive_parked(&self, index: Index) -> Result<(), Error> {
        let mut core = self.core.lock();
        let now = Now::when_asked();
        if core.window.has_ended() || core.window.is_stopping() {
            return Err(Error::Stopped);
        }
        let is_parked = core.redrive(index, &now);
        self.settle(core, &now);
        if is_parked { Ok(()) } else { Err(Error::NotParked { name: self.watermark.name(), index }) }
    }

    pub(super) fn redrive_all_parked(&self) -> Result<u64, Error> {
        let mut core = self.core.lock();
        let now = Now::when_asked();
        if core.window.has_ended() || core.window.is_stopping() {
            return Err(Error::Stopped);
        }
        let all: Vec<Index> =
            core.parking.as_ref().map(|parking| parking.jobs.keys().copied().collect()).unwrap_or_default();
        let count = all.len() as u64;
        core.redrive_wanted(all, &now);
        self.settle(core, &now);
        Ok(count)
    }
}

impl<T: Send + 'static> LiveParking for Driver<T> {
    fn discard(&self, index: Index) -> bool {
        let mut core = self.core.lock();
        let is_parked = core.parking.as_ref().is_some_and(|parking| parking.jobs.contains_key(&index));
        if is_parked {
            // A redriven job that runs goes on. Its end finds no record to change.
            if core.window.handle_withdrawn(index) {
                core.failures.forget_redriven(index);
            }
            let mut changes = Changes::default();
            core.unpark(index, &mut changes);
            core.take_changes(&mut changes, index, 0);
        }
        self.settle(core, &Now::when_asked());
        is_parked
    }
}
