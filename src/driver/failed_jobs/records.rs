//! The records of single jobs: parked ones, and those whose attempts and crashes outlive the
//! process.
//!
//! The record of a parked job is written with the effects of finished jobs, so one write has it and
//! the progress that passes the job.

use super::failures::Failures;
use crate::base::Index;
use crate::commit::changes::Changes;
use crate::driver::{failed_jobs::lazy_box::Empty, outbox::Ctx};
use crate::progress::{Life, ParkedRecord, ParkedRecords};
use crate::window::Window;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The records with which a new life continues.
pub(crate) struct Recovered {
    pub(crate) place: ParkedRecords,
    /// The records of jobs: of all that are parked and, if crashes count, of others.
    pub(crate) jobs: Vec<ParkedRecord>,
    pub(crate) life: Option<Life>,
    pub(crate) budget: Option<u64>,
    /// The most crashes of a job, if crashes are counted.
    pub(crate) max_crashes: Option<u32>,
    /// The jobs that wait as failed jobs do: they failed in an earlier life, or are suspects.
    pub(crate) waiting: Vec<Index>,
    /// The last job to be recorded before it starts, and whether the head limits it.
    pub(crate) careful: Option<(Index, bool)>,
    /// True if the previous life died. The precautions may stem from an earlier one.
    pub(crate) died: bool,
    /// True if a sink takes the results in order.
    pub(crate) in_order: bool,
    /// The latest wall-clock time that earlier lives have noted, in milliseconds since 1970.
    pub(crate) seen: u64,
}

impl Recovered {
    pub(crate) fn new(place: ParkedRecords, jobs: Vec<ParkedRecord>, budget: Option<u64>) -> Self {
        Self {
            place,
            jobs,
            life: None,
            budget,
            max_crashes: None,
            waiting: Vec::new(),
            careful: None,
            died: false,
            in_order: false,
            seen: 0,
        }
    }

    /// Returns the time since a job failed in an earlier life. If that failure is in the future,
    /// the clock was set back, and the latest time noted by earlier lives counts.
    pub(super) fn passed_since(&self, failed: u64, wall: u64) -> Duration {
        let now = if failed > wall { self.seen } else { wall };
        Duration::from_millis(now.saturating_sub(failed))
    }
}

/// The records of single jobs. Empty if the progress cannot keep them, or need not.
pub(crate) struct Records {
    /// `None` if there are no records and will be none.
    place: Option<ParkedRecords>,
    /// The most parked jobs; `None` if this consumer parks none.
    budget: Option<u64>,
    /// The jobs that have a record, or will with the next save.
    jobs: BTreeMap<Index, Brief>,
    pub(in crate::driver) parked: u64,
    /// The parked jobs whose records the next save removes, and the save under way. A save may
    /// refuse the effects of such a job, and then its record stays.
    leaving: (BTreeSet<Index>, BTreeSet<Index>),
    /// The changes among the parked jobs that the watermark was not told of.
    untold: ParkedNews,
    /// The jobs whose success was taken back, and perhaps the removal of a record with it. (A seek
    /// back puts jobs with a record into the window.)
    taken_back: BTreeSet<Index>,
    /// The successful redriven jobs of the next save, and of the save under way.
    redone: (BTreeSet<Index>, BTreeSet<Index>),
}

/// The changes among the parked jobs since they were last asked for.
#[derive(Default)]
pub(crate) struct ParkedNews {
    /// The jobs that are parked now, or by the save under way.
    pub(crate) parked: Vec<Index>,
    /// The jobs whose records are gone from the disk.
    pub(crate) released: Vec<Index>,
}

/// The part of a record that is needed in memory.
#[derive(Clone, Default)]
pub(in crate::driver) struct Brief {
    pub(super) attempts: u32,
    crashes: u32,
    first_failed: u64,
    last_failed: u64,
    /// When it was parked, if it is.
    parked: Option<u64>,
    /// The last failure of a parked job. That of another job is kept with its back-off.
    error: Box<str>,
}

impl Brief {
    fn of(record: &ParkedRecord) -> Self {
        let ParkedRecord { attempts, crashes, first_failed, last_failed, .. } = *record;
        let parked = (!record.pending).then_some(record.parked);
        let error = if record.pending { "" } else { &*record.error };
        Self { attempts, crashes, first_failed, last_failed, parked, error: error.into() }
    }

    /// Forgets the crashes of a job that the user wants to run again.
    pub(super) fn forgive(&mut self) {
        self.crashes = 0;
    }
}

impl Empty for Records {
    const EMPTY: &'static Self = &Self::NEW;
    const NEW: Self = Self {
        place: None,
        budget: None,
        jobs: BTreeMap::new(),
        parked: 0,
        leaving: (BTreeSet::new(), BTreeSet::new()),
        untold: ParkedNews { parked: Vec::new(), released: Vec::new() },
        taken_back: BTreeSet::new(),
        redone: (BTreeSet::new(), BTreeSet::new()),
    };
}

impl Records {
    /// Continues with these records.
    pub(super) fn new(recovered: &Recovered) -> Self {
        let jobs: BTreeMap<_, _> = recovered.jobs.iter().map(|record| (record.index, Brief::of(record))).collect();
        let all: Vec<_> = jobs.iter().filter(|(_, job)| job.parked.is_some()).map(|(index, _)| *index).collect();
        let (place, budget, parked) = (Some(recovered.place.clone()), recovered.budget, all.len() as u64);
        Self { place, budget, jobs, parked, untold: ParkedNews { parked: all, released: Vec::new() }, ..Self::NEW }
    }

    /// Takes the changes among the parked jobs. A job is released only once the disk has no record
    /// of it: until then another life would run it again.
    pub(in crate::driver) fn take_news(&mut self) -> ParkedNews {
        std::mem::take(&mut self.untold)
    }

    pub(in crate::driver) fn parked_jobs(&self) -> impl Iterator<Item = Index> {
        self.jobs.iter().filter(|(_, job)| job.parked.is_some()).map(|(index, _)| *index)
    }

    pub(super) fn is_parked(&self, index: Index) -> bool {
        self.jobs.get(&index).is_some_and(|job| job.parked.is_some())
    }

    pub(super) fn has(&self, index: Index) -> bool {
        self.jobs.contains_key(&index)
    }

    pub(super) fn crashes(&self, index: Index) -> u32 {
        self.jobs.get(&index).map_or(0, |job| job.crashes)
    }

    /// Returns the record of a parked job.
    pub(super) fn parked_job(&mut self, index: Index) -> Option<&mut Brief> {
        self.jobs.get_mut(&index).filter(|job| job.parked.is_some())
    }

    /// True if this job may be parked. A parked job needs no further room.
    pub(in crate::driver) fn has_room(&self, index: Index) -> bool {
        let records = self.parked + (self.leaving.0.len() + self.leaving.1.len()) as u64;
        self.budget.is_some_and(|budget| records < budget || self.is_parked(index))
    }

    /// Returns the end of a sentence about a job that could not be parked.
    pub(super) fn why_not_parked(&self) -> String {
        match self.budget {
            Some(budget) if !self.has_room(Index::MAX) => {
                format!("; the budget of {budget} parked jobs is used up: redrive or discard some, or raise it")
            }
            _ => String::new(),
        }
    }

    /// Returns the settled jobs of a gap that have a record and are not parked.
    pub(super) fn pending_within(&self, gap: &RangeInclusive<Index>, window: &Window) -> Vec<Index> {
        let pending = self.jobs.range(gap.clone()).filter(|(_, job)| job.parked.is_none());
        pending.filter(|(index, _)| window.is_done(**index)).map(|(index, _)| *index).collect()
    }

    /// Notes that a save begins with all changes, or that it is on disk.
    pub(super) fn leave(&mut self, saved: bool) {
        let (waiting, under_way) = &mut self.leaving;
        if saved {
            self.untold.released.extend(std::mem::take(under_way));
        } else {
            under_way.append(waiting);
        }
        let (waiting, under_way) = &mut self.redone;
        if saved { under_way.clear() } else { under_way.append(waiting) }
    }

    /// Notes that a redriven job has succeeded.
    pub(in crate::driver) fn redone(&mut self, index: Index) {
        self.redone.0.insert(index);
    }

    /// Takes back the success of a redriven job in the save under way. False for any other job.
    pub(in crate::driver) fn undo(&mut self, index: Index) -> bool {
        self.redone.1.remove(&index)
    }

    /// Removes the record of this job with the save that begins, if there is one.
    pub(in crate::driver) fn leave_with_batch(&mut self, index: Index) -> Option<Brief> {
        let brief = self.jobs.remove(&index)?;
        if brief.parked.is_some() {
            self.parked -= 1;
            self.leaving.0.insert(index);
        }
        Some(brief)
    }

    /// Keeps the record of this job, since that save was not written.
    pub(in crate::driver) fn stay_after_all(&mut self, index: Index, brief: Brief) {
        self.parked += u64::from(brief.parked.is_some());
        self.leaving.1.remove(&index);
        self.jobs.insert(index, brief);
    }

    /// Keeps the record of this redriven job, since the save refused the job's effects.
    pub(super) fn stay(&mut self, index: Index) {
        self.leaving.1.remove(&index);
    }

    pub(super) fn take_back_crash(&mut self, index: Index) {
        if let Some(job) = self.jobs.get_mut(&index) {
            job.crashes = job.crashes.saturating_sub(1);
        }
    }

    /// Notes that the success of a job of the window is taken back.
    pub(in crate::driver) fn take_back(&mut self, index: Index) {
        if self.place.is_some() {
            self.taken_back.insert(index);
        }
    }

    /// Writes a parked job's record with the next save. `failures` may have its first failure.
    pub(super) fn note_parked(
        &mut self,
        index: Index,
        attempts: u32,
        error: &str,
        failures: &Failures,
        at: &mut Ctx<'_>,
    ) {
        let wall = at.now.wall();
        let job = self.jobs.entry(index).or_default();
        if job.parked.is_none() {
            self.parked += 1;
            self.untold.parked.push(index);
        }
        let before = if job.first_failed > 0 { job.first_failed } else { wall };
        *job = Brief {
            attempts: attempts.max(job.attempts),
            crashes: job.crashes,
            first_failed: failures.first_failed(index).unwrap_or(before),
            last_failed: wall,
            parked: Some(job.parked.unwrap_or(wall)),
            error: error.into(),
        };
        self.write(index, error, |_| {}, at);
    }

    /// Writes, with the next save, the record of a job that will be retried.
    pub(super) fn note_attempt(
        &mut self,
        (index, attempts): (Index, u32),
        error: &str,
        suspect: bool,
        failures: &Failures,
        at: &mut Ctx<'_>,
    ) {
        let wall = at.now.wall();
        let job = self.jobs.entry(index).or_default();
        let first_failed = failures.first_failed(index).unwrap_or(wall);
        (job.attempts, job.first_failed, job.last_failed) = (attempts, first_failed, wall);
        self.write(index, error, |record| record.suspect = suspect, at);
    }

    /// Writes with the next save that a job may start from then on, and its crashes, if not 0.
    pub(super) fn note_start(
        &mut self,
        index: Index,
        crashes: u32,
        suspect: bool,
        failures: &Failures,
        at: &mut Ctx<'_>,
    ) {
        let job = self.jobs.entry(index).or_default();
        let error = match job.parked {
            Some(_) => job.error.to_string(),
            None => failures.waiting(index).map_or_else(String::new, |failed| failed.error.clone()),
        };
        job.crashes = job.crashes.max(crashes);
        job.first_failed = failures.first_failed(index).unwrap_or(job.first_failed);
        // A redrive stays wanted until the job has run.
        let wanted = at.window.is_redriven(index);
        let change =
            |record: &mut ParkedRecord| (record.started, record.suspect, record.wanted) = (true, suspect, wanted);
        self.write(index, &error, change, at);
    }

    /// Writes with the next save that a redriven job runs once more in the next life, since this
    /// one stops. Its attempts stay as they are.
    pub(super) fn note_put_back(&mut self, index: Index, at: &mut Ctx<'_>) {
        if let Some(error) = self.jobs.get(&index).map(|job| job.error.to_string()) {
            self.write(index, &error, |record| record.wanted = true, at);
        }
    }

    /// Forgets the attempts of a job that halts its consumer. Its crashes stay.
    pub(super) fn forget_attempts(&mut self, index: Index, suspect: bool, at: &mut Ctx<'_>) {
        let has_record = self.jobs.contains_key(&index);
        match self.jobs.get_mut(&index).filter(|job| job.parked.is_none()) {
            Some(job) => {
                (job.attempts, job.first_failed) = (0, 0);
                self.write(index, "", |record| record.suspect = suspect, at);
            }
            None if !has_record && self.taken_back.remove(&index) => {
                let mut changes = Changes::default();
                self.remove(index, &mut changes);
                at.write(&mut changes, index, 0);
            }
            None => {}
        }
    }

    /// Writes the record of this job with the next save.
    fn write(&mut self, index: Index, error: &str, change: impl FnOnce(&mut ParkedRecord), at: &mut Ctx<'_>) {
        let (Some(place), Some(job)) = (&self.place, self.jobs.get(&index)) else { return };
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
        let put = place.put(&record, &mut changes);
        debug_assert!(put.is_ok(), "the text of an error has at most 4 KiB");
        at.write(&mut changes, index, attempts);
    }

    fn remove(&self, index: Index, changes: &mut Changes) {
        let removed = self.place.iter().try_for_each(|place| place.remove(index, changes));
        debug_assert!(removed.is_ok(), "the key is short");
    }

    /// Adds the removal of a successful job's record to its effects. True if it may have had one.
    pub(super) fn unpark(&mut self, index: Index, effects: &mut Changes) -> bool {
        let had = self.leave_with_batch(index).is_some() | self.taken_back.remove(&index);
        if had {
            self.remove(index, effects);
        }
        had
    }
}
