//! Precautions against crashes: jobs that are recorded before they start, and jobs that run alone.
//!
//! A life that died leaves its record open. The next one cannot know which jobs were in flight, so
//! it records each candidate before it starts, many in one save. If that life dies too, the
//! recorded jobs are *suspects*: each runs alone, and its record counts a crash before it starts.
//! The end of the attempt takes the count back.
//!
//! This file decides which jobs to record and whose turn it is; [`FailedJobs`](super::FailedJobs)
//! writes the records.

use super::records::Recovered;
use crate::base::{Index, config::DEFAULT_SEARCH_AHEAD, time::Now};
use crate::driver::failed_jobs::lazy_box::Empty;
use crate::window::Window;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The fewest jobs to record in one save.
const LEAST: usize = 16;

/// After a failed turn the other jobs get this many times as long: two saves for their records, and
/// the same time for themselves.
const TURNS_OF_OTHERS: u32 = 4;

/// The precautions. Without them nothing is recorded, and only the gate holds jobs back.
pub(crate) struct Quarantine {
    /// The most crashes of a job, if crashes are counted.
    pub(super) max_crashes: Option<u32>,
    /// The last job to be recorded before it starts, if any.
    pub(super) until: Option<Index>,
    /// True if the first head that is seen limits `until`.
    to_head: bool,
    /// True if a sink takes the results in order.
    in_order: bool,
    /// The lowest value of `until`: a source may show more later than at first.
    least: Index,
    /// New jobs below this index are recorded and may start.
    recorded: Index,
    /// The new jobs that are recorded, or are about to be, and neither handed out nor gaps.
    ahead: BTreeSet<Index>,
    /// The index above the last job that the source lets through. Gaps need no record, so only
    /// this gate holds them back.
    pub(in crate::driver) gate: Index,
    /// The jobs that run alone until they succeed.
    suspects: BTreeSet<Index>,
    /// The suspects whose back-off is over and that wait for their turn.
    turns: BTreeSet<Index>,
    alone: Alone,
    /// When the last turn of a suspect began.
    turn_begun: Option<Instant>,
    /// When the time ends that the other jobs get for the failed turns so far.
    others_until: Option<Instant>,
    /// The other jobs whose back-off is over and that are recorded before they become due.
    due: Vec<Index>,
    /// The records in the next save, or in the save under way.
    asked: Option<SavedSuspects>,
}

/// The job that runs alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Alone {
    #[default]
    No,
    /// The jobs in flight end, and nothing starts.
    Draining(Index),
    /// Its crash is being counted.
    Counting(Index),
    /// It is read and runs.
    Running(Index),
    /// Its turn is over. Others start once the disk no longer counts its crash; true if the save
    /// that says so is under way.
    Settling(bool),
}

/// The records in the next save, or in the save under way.
struct SavedSuspects {
    /// New jobs below this index may start once the records are saved.
    recorded: Index,
    due: Vec<Index>,
    /// True if a save has taken the records.
    taken: bool,
}

impl Empty for Quarantine {
    const EMPTY: &'static Self = &Self::NEW;
    const NEW: Self = Self {
        max_crashes: None,
        until: None,
        to_head: false,
        in_order: false,
        least: 0,
        recorded: 0,
        ahead: BTreeSet::new(),
        gate: Index::MAX,
        suspects: BTreeSet::new(),
        turns: BTreeSet::new(),
        alone: Alone::No,
        turn_begun: None,
        others_until: None,
        due: Vec::new(),
        asked: None,
    };
}

impl Quarantine {
    /// Continues after earlier lives. `next` is the lowest index that was never handed out.
    pub(super) fn new(recovered: &Recovered, next: Index) -> Self {
        if recovered.max_crashes.is_none() {
            return Self::NEW;
        }
        let suspects = recovered.jobs.iter().filter(|job| job.suspect && (job.pending || job.wanted));
        Self {
            max_crashes: recovered.max_crashes,
            until: recovered.careful.map(|(last, _)| last),
            to_head: recovered.careful.is_some_and(|(_, to_head)| to_head),
            in_order: recovered.in_order,
            least: next.saturating_add(DEFAULT_SEARCH_AHEAD - 1),
            recorded: next,
            suspects: suspects.map(|job| job.index).collect(),
            ..Self::NEW
        }
    }

    /// Returns the index above the last new job that may start.
    pub(super) fn open_below(&self) -> Index {
        if self.until.is_some() { self.gate.min(self.recorded) } else { self.gate }
    }

    fn is_careful(&self, index: Index) -> bool {
        self.until.is_some_and(|until| index <= until)
    }

    /// True if the source holds this index back. This consumer itself may hold back more.
    pub(in crate::driver) fn is_gated(&self, index: Index) -> bool {
        index >= self.gate
    }

    /// Makes a retry or redrive due. If crashes count, it may first have to be recorded, or to wait
    /// for its turn to run alone. Returns false if the job does not wait.
    pub(super) fn make_due(&mut self, index: Index, window: &mut Window) -> bool {
        if self.is_suspect(index) {
            return self.turns.insert(index);
        }
        if self.max_crashes.is_some() && (window.is_redriven(index) || self.is_careful(index)) {
            self.due.push(index);
            return true;
        }
        window.handle_due(index)
    }

    /// Ends the precautions for new jobs once the last of these jobs is done.
    pub(super) fn narrow(&mut self, window: &mut Window) {
        if let Some(head) = window.head().filter(|_| std::mem::take(&mut self.to_head)) {
            self.until = self.until.map(|until| until.min(head.max(self.least)));
        }
        if self.until.is_some_and(|until| until < window.lowest_undone()) {
            self.until = None;
            window.handle_gate(self.gate);
        }
    }

    /// Takes the next suspect, and returns the one whose turn can begin since nothing else is in
    /// flight. `busy`: a result waits for the sink or a transaction, so it would be in flight
    /// beside the suspect.
    pub(super) fn next_alone(&mut self, busy: bool, window: &mut Window) -> Option<Index> {
        // One save ends a turn and counts the next crash. In order, the sink may need a turn
        // between.
        let settles = self.is_settling() && !self.in_order;
        if (self.alone == Alone::No || settles) && !window.is_paused() {
            let index = self.next_turn(window)?;
            self.alone = Alone::Draining(index);
            window.handle_alone(Some(index));
        }
        let Alone::Draining(index) = self.alone else { return None };
        (window.in_flight() == 0 && !busy && self.asked.is_none()).then_some(index)
    }

    /// Takes the lowest suspect that waits for its turn and that the window lets start.
    fn next_turn(&mut self, window: &Window) -> Option<Index> {
        let undone = window.lowest_undone();
        // Results are taken in order, so a higher job would not run alone from beginning to end.
        let in_order = |index| !self.in_order || index == undone || window.is_redriven(index);
        let mut turns = self.turns.iter().copied();
        // A window that was narrowed since the job started may have to move first.
        let index = turns.find(|index| window.reaches(*index) && in_order(*index))?;
        self.turns.remove(&index).then_some(index)
    }

    /// Begins the turn of this suspect with the save that counts its crash.
    pub(super) fn begin_turn(&mut self, index: Index, now: &Now) {
        (self.alone, self.turn_begun) = (Alone::Counting(index), Some(now.get()));
        self.asked = Some(SavedSuspects { recorded: 0, due: vec![index], taken: false });
    }

    /// Takes back the turn of a suspect that a narrowed window no longer lets start. Returns it.
    pub(super) fn put_off_turn(&mut self, window: &mut Window) -> Option<Index> {
        let index = self.alone().filter(|index| !window.reaches(*index))?;
        // If it is read already, it starts as soon as anything may.
        let runs = matches!(self.alone, Alone::Running(_));
        if runs && !window.handle_put_back(index) {
            return None;
        }
        self.asked.iter_mut().for_each(|asked| asked.due.retain(|due| *due != index));
        self.turns.insert(index);
        Some(index)
    }

    /// Returns the jobs to be recorded before they start, and adds them to the next save.
    /// `waits`: whether a job has a record of an earlier life, and waits for a retry.
    pub(super) fn next_records(&mut self, window: &mut Window, waits: impl Fn(Index) -> bool) -> Vec<Index> {
        let most = window.limits().max_processing.saturating_mul(2).max(LEAST);
        let (next, head) = (window.next(), window.head());
        let last = window.ends_at().unwrap_or(Index::MAX).min(head.unwrap_or(0));
        if self.asked.is_some() || self.alone != Alone::No {
            return Vec::new();
        }
        // A job behind the gate has not started. The next life must not take it for one that has.
        let below = self.gate.min(last + 1);
        while self.ahead.first().is_some_and(|index| *index < next) {
            self.ahead.pop_first();
        }
        let enough = self.ahead.len() > most / 2;
        let mut recorded = self.recorded.max(next);
        let mut new = Vec::new();
        // While more than half of them are unused, no new ones are recorded.
        if let Some(until) = self.until.filter(|_| head.is_some() && !enough) {
            while new.len() < most {
                let index = window.unstarted_from(recorded);
                if index > until || index >= below {
                    break;
                }
                if !waits(index) {
                    new.push(index);
                }
                recorded = index + 1;
            }
            if until < last && window.unstarted_from(recorded) > until {
                // Jobs above `until` are not recorded.
                recorded = Index::MAX;
            }
        }
        self.recorded = if new.is_empty() { recorded } else { self.recorded.max(next) };
        self.ahead.extend(&new);
        window.handle_gate(self.open_below());
        let due = std::mem::take(&mut self.due);
        if new.is_empty() && due.is_empty() {
            return new;
        }
        let recorded = if new.is_empty() { 0 } else { recorded };
        new.extend(&due);
        self.asked = Some(SavedSuspects { recorded, due, taken: false });
        new
    }

    /// Notes that a save takes everything requested so far.
    pub(super) fn taken(&mut self) {
        self.asked.iter_mut().for_each(|asked| asked.taken = true);
        if let Alone::Settling(taken) = &mut self.alone {
            *taken = true;
        }
    }

    /// Notes that the save is on disk: its recorded jobs may start. Returns true if there are any.
    pub(super) fn saved(&mut self, window: &mut Window) -> bool {
        if self.alone == Alone::Settling(true) {
            self.alone = Alone::No;
            window.handle_alone(None);
        }
        let Some(asked) = self.asked.take_if(|asked| asked.taken) else { return false };
        self.recorded = self.recorded.max(asked.recorded);
        if let Alone::Counting(index) = self.alone {
            self.alone = Alone::Running(index);
        }
        window.handle_gate(self.open_below());
        for index in asked.due {
            window.handle_due(index);
        }
        true
    }

    /// Ends the turn of this job: others may start with the next save. The caller writes its
    /// record, so no other job has started if the process dies before. Returns true if its crash
    /// was counted.
    pub(super) fn no_longer_alone(&mut self, index: Index, window: &mut Window) -> bool {
        if self.alone() != Some(index) {
            return false;
        }
        let counted = !matches!(self.alone, Alone::Draining(_));
        self.alone = Alone::Settling(false);
        window.handle_changed();
        counted
    }

    /// Clears a job of suspicion that has succeeded or is parked.
    pub(in crate::driver) fn no_suspect(&mut self, index: Index, window: &mut Window) {
        self.no_longer_alone(index, window);
        self.suspects.remove(&index);
        self.turns.remove(&index);
        self.ahead.remove(&index);
    }

    /// Ends the turns of a suspect that has crashed the process too often.
    pub(super) fn condemn(&mut self, index: Index, window: &mut Window) {
        self.no_longer_alone(index, window);
        self.suspects.remove(&index);
    }

    /// Returns the back-off of a failed job. The turn of a suspect blocks all other jobs and their
    /// records, so each failed turn gives the others several times as long; otherwise suspects that
    /// fail for ever would starve them. Suspects share this debt: each waits until the others had
    /// their time for all turns so far.
    pub(super) fn back_off(&mut self, index: Index, pause: Duration, now: &Now) -> Duration {
        if !self.is_suspect(index) {
            return pause;
        }
        let now = now.get();
        let turn = self.turn_begun.take().map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let until = self.others_until.map_or(now, |until| until.max(now)) + turn * TURNS_OF_OTHERS;
        self.others_until = Some(until);
        pause.max(until - now)
    }

    pub(in crate::driver) fn is_suspect(&self, index: Index) -> bool {
        self.suspects.contains(&index)
    }

    /// True until the disk no longer counts a crash of the job that ran alone.
    pub(in crate::driver) fn is_settling(&self) -> bool {
        matches!(self.alone, Alone::Settling(_))
    }

    /// Returns the job that runs alone or is about to.
    pub(in crate::driver) fn alone(&self) -> Option<Index> {
        match self.alone {
            Alone::No | Alone::Settling(_) => None,
            Alone::Draining(index) | Alone::Counting(index) | Alone::Running(index) => Some(index),
        }
    }
}
