//! Crashes: jobs that are recorded before they start, and jobs that run alone.
//!
//! A life that died leaves its record open. The next one cannot know which jobs were in flight, so
//! it records each job that may have been before the job starts, many in one save. If that life
//! dies too, the recorded jobs are *suspects*: each of them runs alone, and its record counts a
//! crash before it starts. The end of its attempt takes the count back.

mod turns;

use super::core::Core;
use super::parking::Parking;
use crate::base::config::DEFAULT_SEARCH_AHEAD;
use crate::base::index::Index;
use crate::base::time::Now;
use crate::observe::{Event, Kind};
use crate::progress::{Life, ParkedRecord, ParkedRecords};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The fewest jobs that are recorded in one save.
const LEAST: usize = 16;

/// The pause after which a suspect that the source does not have is tried again.
const MISSING: Duration = Duration::from_secs(1);

/// A turn that fails gives the other jobs this many times as long: two saves for their records, and
/// as much for themselves.
const TURNS_OF_OTHERS: u32 = 4;

/// The reason why a suspect waits.
const SUSPICION: &str = "the process died while this job may have run, so it runs alone";

/// The records that a new life goes on with.
pub(crate) struct Recovered {
    pub(crate) place: ParkedRecords,
    /// The records of single jobs: all of those that are parked, and of others if crashes count.
    pub(crate) jobs: Vec<ParkedRecord>,
    pub(crate) life: Option<Life>,
    pub(crate) budget: Option<u64>,
    /// The most crashes of a job; `None` if they are not counted.
    pub(crate) max_crashes: Option<u32>,
    /// The jobs that wait as failed jobs do: they failed in an earlier life, or are suspects.
    pub(crate) waiting: Vec<Index>,
    /// The last job that is recorded before it starts, and true if the head is the last one.
    pub(crate) careful: Option<(Index, bool)>,
    /// True if a sink takes the results in order.
    pub(crate) in_order: bool,
}

impl Recovered {
    pub(crate) fn new(place: ParkedRecords, jobs: Vec<ParkedRecord>, budget: Option<u64>) -> Self {
        Self { place, jobs, life: None, budget, max_crashes: None, waiting: Vec::new(), careful: None, in_order: false }
    }
}

/// The state of a consumer that counts crashes.
pub(super) struct Care {
    max_crashes: u32,
    /// The last job that is recorded before it starts; `None` if none is.
    until: Option<Index>,
    /// True if the first head that is seen bounds `until`.
    to_head: bool,
    /// True if a sink takes the results in order.
    in_order: bool,
    /// The lowest bound: a source may show more later than it does at first.
    least: Index,
    /// New jobs below this index are recorded, and may start.
    recorded: Index,
    /// The new jobs that are recorded, or will be with the next save, and that are neither handed
    /// out nor gaps.
    ahead: BTreeSet<Index>,
    /// The gate of the source.
    gate: Index,
    /// The jobs that run alone until they succeed.
    suspects: BTreeSet<Index>,
    /// The suspects whose back-off is over. They await their turn to run alone.
    turns: BTreeSet<Index>,
    alone: Alone,
    /// The time since which nothing but the suspect whose turn came last may run.
    turn_begun: Option<Instant>,
    /// The end of the time that the other jobs have after the turns that failed so far.
    others_until: Option<Instant>,
    /// The other jobs whose back-off is over, and that are to be recorded before they are due.
    due: Vec<Index>,
    /// The records in the next save, or in the one under way.
    asked: Option<Asked>,
}

/// The job that runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    No,
    /// The jobs in flight end, and nothing starts.
    Draining(Index),
    /// Its crash is being counted.
    Counting(Index),
    /// It is read, and runs.
    Running(Index),
    /// It no longer does. Others start once the disk does not count its crash any more; true if the
    /// save that says so is under way.
    Settling(bool),
}

/// Records that are in the next save, or in the one under way.
struct Asked {
    /// New jobs below this index may start once the records are saved.
    recorded: Index,
    due: Vec<Index>,
    /// True if a save has taken the records.
    taken: bool,
}

impl Care {
    pub(super) fn new(recovered: &Recovered, next: Index) -> Option<Box<Self>> {
        let suspects = recovered.jobs.iter().filter(|job| job.suspect && (job.pending || job.wanted));
        Some(Box::new(Self {
            max_crashes: recovered.max_crashes?,
            until: recovered.careful.map(|(last, _)| last),
            to_head: recovered.careful.is_some_and(|(_, to_head)| to_head),
            in_order: recovered.in_order,
            least: next.saturating_add(DEFAULT_SEARCH_AHEAD - 1),
            recorded: next,
            ahead: BTreeSet::new(),
            gate: Index::MAX,
            suspects: suspects.map(|job| job.index).collect(),
            turns: BTreeSet::new(),
            alone: Alone::No,
            turn_begun: None,
            others_until: None,
            due: Vec::new(),
            asked: None,
        }))
    }

    /// One past the last new job that may start.
    fn open_below(&self) -> Index {
        if self.until.is_some() { self.gate.min(self.recorded) } else { self.gate }
    }

    fn is_careful(&self, index: Index) -> bool {
        self.until.is_some_and(|until| index <= until)
    }
}

impl Core {
    fn care(&mut self) -> Option<&mut Care> {
        self.parking.as_mut()?.care.as_deref_mut()
    }

    /// True if crashes are counted.
    pub(super) fn counts_crashes(&self) -> bool {
        self.parking.as_ref().is_some_and(|parking| parking.care.is_some())
    }

    /// Returns the last job that is still to be recorded before it starts.
    pub(super) fn careful_until(&self) -> Option<Index> {
        self.parking.as_ref()?.care.as_ref()?.until
    }

    /// Takes the gate of the source.
    pub(super) fn set_gate(&mut self, open_below: Index) {
        let open_below = match self.care() {
            Some(care) => {
                care.gate = open_below;
                care.open_below()
            }
            None => open_below,
        };
        self.window.handle_gate(open_below);
    }

    /// One past the last job that the gate of the source lets through. A gap needs no record, so it
    /// is not held back by more.
    pub(super) fn source_gate(&self) -> Index {
        match self.parking.as_ref().and_then(|parking| parking.care.as_ref()) {
            Some(care) => care.gate,
            None => self.window.gate(),
        }
    }

    /// Says that the life before died, if it did.
    pub(super) fn tell_of_death(&mut self, recovered: &Recovered, now: &Now) {
        let Some((last, _)) = recovered.careful else { return };
        let suspects = recovered.jobs.iter().filter(|job| job.suspect).count();
        let text = match suspects {
            0 => format!("jobs up to {last} may have been in flight"),
            _ => format!("jobs up to {last} may have been in flight; jobs that run alone: {suspects}"),
        };
        self.tell(&Event::new(Kind::Died, self.window.lowest_undone()).error(&text), now);
    }

    /// Makes the jobs of earlier lives wait: for the rest of their back-off if they failed, and
    /// else for their turn.
    pub(super) fn restore_waiting(&mut self, recovered: &Recovered, wall: u64, now: &Now) {
        let mut waiting = recovered.waiting.iter().peekable();
        for record in &recovered.jobs {
            let ParkedRecord { index, attempts, suspect, .. } = *record;
            if waiting.next_if(|waits| **waits == index).is_none() {
                continue;
            }
            let pause = (attempts > 0 && !suspect).then(|| {
                let passed = Duration::from_millis(wall.saturating_sub(record.last_failed));
                self.failures.delay(attempts, now).map(|delay| delay.saturating_sub(passed))
            });
            let error = if suspect { SUSPICION.to_owned() } else { record.error.clone() };
            let first = Some(record.first_failed).filter(|first| *first > 0);
            self.failures.restore(index, attempts, error, first, pause.flatten().unwrap_or_default(), now.get());
        }
    }

    /// Makes a job due whose back-off is over, or that is to run once more. If crashes count, it
    /// may have to be recorded before, or to await its turn to run alone. Returns false if it does
    /// not wait.
    pub(super) fn make_due(&mut self, index: Index) -> bool {
        let is_redriven = self.window.is_redriven(index);
        match self.care() {
            Some(care) if care.suspects.contains(&index) => care.turns.insert(index),
            Some(care) if is_redriven || care.is_careful(index) => {
                care.due.push(index);
                true
            }
            _ => self.window.handle_due(index),
        }
    }

    /// Takes the next steps: records the jobs that are to start, and gives suspects their turns.
    #[cold]
    pub(super) fn take_care(&mut self, now: &Now) {
        if self.window.is_stopping() || self.window.has_ended() {
            return;
        }
        let (head, undone) = (self.window.head(), self.window.lowest_undone());
        let Some(care) = self.care() else { return };
        if let Some(head) = head.filter(|_| std::mem::take(&mut care.to_head)) {
            let least = care.least;
            care.until = care.until.map(|until| until.min(head.max(least)));
        }
        if care.until.is_some_and(|until| until < undone) {
            care.until = None;
            let open_below = care.gate;
            self.window.handle_gate(open_below);
        }
        self.give_turn(now);
        self.record_next();
    }

    /// Records the jobs that are to start next, if they are to be recorded.
    fn record_next(&mut self) {
        let most = self.window.limits().max_processing.saturating_mul(2).max(LEAST);
        let (next, head) = (self.window.next(), self.window.head());
        let last = self.window.ends_at().unwrap_or(Index::MAX).min(head.unwrap_or(0));
        let Some(care) = self.care() else { return };
        if care.asked.is_some() || care.alone != Alone::No {
            return;
        }
        // A job behind the gate has not started. The next life must not take it for one that has.
        let below = care.gate.min(last + 1);
        while care.ahead.first().is_some_and(|index| *index < next) {
            care.ahead.pop_first();
        }
        let enough = care.ahead.len() > most / 2;
        let due = std::mem::take(&mut care.due);
        let mut recorded = care.recorded.max(next);
        let mut new = Vec::new();
        // The rest is enough for the next half.
        if let Some(until) = care.until.filter(|_| head.is_some() && !enough) {
            while new.len() < most {
                let index = self.window.unstarted_from(recorded);
                if index > until || index >= below {
                    break;
                }
                new.push(index);
                recorded = index + 1;
            }
            if until < last && self.window.unstarted_from(recorded) > until {
                // The jobs above are not recorded.
                recorded = Index::MAX;
            }
        }
        if let Some(care) = self.care() {
            care.recorded = if new.is_empty() { recorded } else { care.recorded.max(next) };
            care.ahead.extend(&new);
            let open_below = care.open_below();
            self.window.handle_gate(open_below);
        }
        if !new.is_empty() || !due.is_empty() {
            self.ask_for_records(0, (!new.is_empty()).then_some((recorded, new)), due);
        }
    }

    /// Puts records into the next save: these new jobs may start then, and those others are due.
    fn ask_for_records(&mut self, crashes: u32, new: Option<(Index, Vec<Index>)>, due: Vec<Index>) {
        let (recorded, new) = new.unwrap_or((0, Vec::new()));
        for index in new.into_iter().chain(due.iter().copied()) {
            self.note_start(index, crashes);
        }
        if let Some(care) = self.care() {
            care.asked = Some(Asked { recorded, due, taken: false });
        }
    }

    /// A save takes everything that was asked for.
    pub(super) fn records_taken(&mut self) {
        self.parking.iter_mut().for_each(|parking| parking.leave(false));
        let Some(care) = self.care() else { return };
        care.asked.iter_mut().for_each(|asked| asked.taken = true);
        if let Alone::Settling(taken) = &mut care.alone {
            *taken = true;
        }
    }

    /// The save is on the disk: the jobs that it records may start.
    pub(super) fn records_saved(&mut self) {
        self.parking.iter_mut().for_each(|parking| parking.leave(true));
        let Some(care) = self.care() else { return };
        if care.alone == Alone::Settling(true) {
            care.alone = Alone::No;
            self.window.handle_alone(None);
        }
        let Some(care) = self.care() else { return };
        let Some(asked) = care.asked.take_if(|asked| asked.taken) else { return };
        care.recorded = care.recorded.max(asked.recorded);
        if let Alone::Counting(index) = care.alone {
            care.alone = Alone::Running(index);
        }
        let open_below = care.open_below();
        self.window.handle_gate(open_below);
        for index in asked.due {
            self.window.handle_due(index);
        }
        self.reading.rouse = true;
    }

    /// The job that ran alone no longer does: others may start with the next save. The caller
    /// writes its record, so if the process dies before, no other job has started.
    fn no_longer_alone(&mut self, index: Index) -> bool {
        let Some(care) = self.care() else { return false };
        let (Alone::Draining(alone) | Alone::Counting(alone) | Alone::Running(alone)) = care.alone else {
            return false;
        };
        if alone != index {
            return false;
        }
        let counted = !matches!(care.alone, Alone::Draining(_));
        care.alone = Alone::Settling(false);
        self.window.handle_changed();
        counted
    }

    /// The attempt of a job has ended without a crash, or a job could not be read: it is not to
    /// blame. Its crash, if one was counted, is taken back; the caller writes the record.
    pub(super) fn outlived(&mut self, index: Index) {
        if self.no_longer_alone(index)
            && let Some(parking) = &mut self.parking
        {
            parking.take_back_crash(index);
        }
    }

    /// Nothing more starts: the job that runs alone, or was about to, is not to blame for that.
    pub(super) fn release_alone(&mut self) {
        if let Some(index) = self.alone() {
            self.outlived(index);
            self.note_start(index, 0);
        }
    }

    /// A job has succeeded, or is parked.
    pub(super) fn no_suspect(&mut self, index: Index) {
        self.no_longer_alone(index);
        if let Some(care) = self.care() {
            care.suspects.remove(&index);
            care.turns.remove(&index);
            care.ahead.remove(&index);
        }
    }

    /// Returns the back-off of a job that has failed. Nothing else starts in the turn of a suspect,
    /// and no record of others is saved. So each turn that fails gives the others some times as
    /// long, or suspects that fail for ever would starve them. Suspects share that: they fail one
    /// after the other, and each waits until the others had their time for all turns so far.
    pub(super) fn back_off(&mut self, index: Index, pause: Duration, now: &Now) -> Duration {
        let Some(care) = self.care().filter(|care| care.suspects.contains(&index)) else { return pause };
        let now = now.get();
        let turn = care.turn_begun.take().map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let until = care.others_until.map_or(now, |until| until.max(now)) + turn * TURNS_OF_OTHERS;
        care.others_until = Some(until);
        pause.max(until - now)
    }

    pub(super) fn is_suspect(&self, index: Index) -> bool {
        self.parking
            .as_ref()
            .and_then(|parking| parking.care.as_ref())
            .is_some_and(|care| care.suspects.contains(&index))
    }

    /// The source does not have a suspect, or it cannot be read: it waits, and others may start.
    pub(super) fn suspect_not_read(&mut self, index: Index, now: &Now) {
        if !self.is_suspect(index) {
            return;
        }
        self.outlived(index);
        self.note_start(index, 0);
        // A job that the source failed at waits for a back-off already.
        if self.window.handle_put_back(index) && self.failures.is_missing_now(index) {
            self.failures.wait_again(index, MISSING, now.get());
        }
    }

    /// True if the gate of the source holds this index back. Jobs that are not recorded yet are
    /// held back by this consumer itself.
    pub(super) fn is_gated(&self, index: Index) -> bool {
        match self.parking.as_ref().and_then(|parking| parking.care.as_ref()) {
            Some(care) => index >= care.gate,
            None => self.window.is_gated(index),
        }
    }

    /// True until the disk no longer counts a crash of the job that ran alone.
    pub(super) fn is_settling(&self) -> bool {
        let care = self.parking.as_ref().and_then(|parking| parking.care.as_ref());
        care.is_some_and(|care| matches!(care.alone, Alone::Settling(_)))
    }

    /// Returns the job that runs alone, or is about to.
    pub(super) fn alone(&self) -> Option<Index> {
        match self.parking.as_ref()?.care.as_ref()?.alone {
            Alone::No | Alone::Settling(_) => None,
            Alone::Draining(index) | Alone::Counting(index) | Alone::Running(index) => Some(index),
        }
    }
}

impl Parking {
    pub(super) fn crashes(&self, index: Index) -> Option<u32> {
        self.jobs.get(&index).map(|job| job.crashes)
    }
}
