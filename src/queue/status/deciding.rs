//! The reason why no job starts, from what is known of the queue, its runner and its workers.

use crate::base::clock::Moment;
use crate::queue::engine::Survey;
use crate::queue::rules::still::stands_still;
use crate::queue::status::Waits;
use crate::queue::waits::losses::{AllBusy, Stuck};
use crate::queue::waits::shared::Trouble;
use crate::queue::words::limit::LimitOf;
use std::time::{Duration, Instant};

/// What is known of a queue at a moment.
pub(super) struct Facts<'a> {
    pub(super) at: &'a Moment,
    pub(super) survey: &'a Survey,
    pub(super) trouble: &'a Trouble,
    /// The slots of the runner in this process.
    pub(super) slots: Option<usize>,
    /// Those whose jobs are lost.
    pub(super) stuck: Option<&'a Stuck>,
    /// The same slots if all of them are busy.
    pub(super) all_busy: Option<&'a AllBusy>,
    /// True if a thread here waits for a job.
    pub(super) is_awaited: bool,
    /// The number of kinds in lines that no worker takes.
    pub(super) untaken: usize,
}

impl Facts<'_> {
    /// Returns the first of the reasons, in the order in which they have to be seen to.
    pub(super) fn waits(&self) -> Waits {
        let Self { at, survey, trouble, .. } = self;
        let till = |wall: u64| Duration::from_millis(wall.saturating_sub(at.wall));
        let counts = &survey.counts;
        if let Some((error, begun)) = &trouble.failing {
            return Waits::StoreFails { error: error.clone(), since: self.since(*begun) };
        }
        if let Some(until) = survey.paused_until {
            return Waits::Paused { left: (until < u64::MAX).then(|| till(until)) };
        }
        if let Some(stands_still) = self.standstill() {
            return stands_still;
        }
        if counts.ready == 0 && survey.due.is_none_or(|due| due > at.wall) {
            return Waits::NothingReady { due_in: survey.due.map(till) };
        }
        if let Some((name, begun)) = &trouble.closed {
            return Waits::Gate { name: name.clone(), since: self.since(*begun) };
        }
        if let (Some(runs), Some((begun, oldest))) = (survey.alone, &survey.oldest_running) {
            return Waits::Alone { runs, oldest: oldest.clone(), since: self.since(*begun) };
        }
        if let Some(until) = survey.full {
            return Waits::Limited { limit: LimitOf::Queue, held: counts.ready, left: until.map(till) };
        }
        if let Some((limit, held, until)) = survey.held.as_ref().filter(|_| survey.only_held) {
            return Waits::Limited { limit: limit.clone(), held: *held, left: until.map(till) };
        }
        if survey.only_in_lines && self.untaken == survey.lines.len() {
            return Waits::OtherKinds;
        }
        self.of_workers()
    }

    fn since(&self, since: Instant) -> Duration {
        self.at.now.saturating_duration_since(since)
    }

    /// Returns the reason if no job ends, so that none starts.
    fn standstill(&self) -> Option<Waits> {
        let AllBusy { slots, since, patience, oldest: (begun, oldest), kind } = self.all_busy?;
        let no_end = self.since(*since);
        let (oldest, kind, slots) = (oldest.clone(), kind.clone(), *slots);
        let waits = Waits::StandsStill { slots, oldest, kind, since: self.since(*begun), no_end };
        stands_still(no_end, *patience).then_some(waits)
    }

    /// Returns the reason if all workers are busy, or none is there.
    fn of_workers(&self) -> Waits {
        let running = self.survey.running;
        let busy = running + self.stuck.map_or(0, |stuck| stuck.count);
        // A job that is lost runs on, though the store says nothing of it.
        let oldest = self.survey.oldest_running.iter().chain(self.stuck.map(|stuck| &stuck.oldest)).min();
        match (self.slots, oldest) {
            (Some(slots), Some((begun, oldest))) if busy >= slots => {
                Waits::Busy { slots, since: self.since(*begun), oldest: oldest.clone() }
            }
            (None, _) if !self.is_awaited && running == 0 => Waits::NoWorker,
            _ => Waits::No,
        }
    }
}
