//! Failed jobs that have attempts left: one entry each, from the first failure until an attempt
//! succeeds or is the last one.

use crate::base::{Index, retry::Retry, time::Now};
use crate::driver::calls::{InVain, after};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// Why a job could not be read.
#[derive(Clone, Debug)]
pub(crate) enum Unread {
    Missing,
    Failed(String),
}

/// The failed jobs and their back-offs.
pub(crate) struct Failures {
    retry: Retry,
    jobs: BTreeMap<Index, Failed>,
    /// An entry for each job that backs off.
    timers: BinaryHeap<Reverse<(Instant, Index)>>,
}

/// A failed job that has attempts left.
pub(crate) struct Failed {
    /// The last failed attempt, from 1.
    pub(crate) attempt: u32,
    /// When its back-off ends.
    pub(crate) due: Instant,
    pub(crate) error: String,
    /// Its first failure in this life, in milliseconds since 1970; `None` if it was only deferred.
    first: Option<u64>,
    /// What the source answered to the last read of the job.
    pub(crate) unread: Option<Unread>,
    /// The fruitless reads of it since the last success.
    pub(in crate::driver) in_vain: InVain,
    /// True while its next attempt runs.
    running: bool,
    /// True if its last attempt was deferred.
    pub(crate) deferred: bool,
    /// True if it must not run in a batch with others, since it may make the batch fail.
    alone: bool,
    /// True if it only waited behind another job.
    fresh: bool,
}

impl Failed {
    fn new(attempt: u32, due: Instant, error: String, first: Option<u64>) -> Self {
        let (running, deferred, alone, fresh) = (false, false, true, false);
        Self { attempt, due, error, first, unread: None, in_vain: InVain::default(), running, deferred, alone, fresh }
    }

    /// True if the last read did not find it.
    pub(in crate::driver) fn is_missing(&self) -> bool {
        matches!(self.unread, Some(Unread::Missing))
    }
}

impl Failures {
    pub(in crate::driver) fn new(retry: Retry) -> Self {
        Self { retry, jobs: BTreeMap::new(), timers: BinaryHeap::new() }
    }

    /// Returns the back-off after this attempt, or `None` if it was the last one.
    pub(in crate::driver) fn delay(&self, attempt: u32, now: &Now) -> Option<Duration> {
        self.retry.delay(attempt, now.chance())
    }

    /// Notes that this attempt failed and the next one is due after a pause.
    pub(in crate::driver) fn note(&mut self, index: Index, attempt: u32, error: String, pause: Duration, now: &Now) {
        let due = after(pause, now.get());
        let first = Some(self.first_failed(index).unwrap_or_else(|| now.wall()));
        self.jobs.insert(index, Failed::new(attempt, due, error, first));
        self.timers.push(Reverse((due, index)));
    }

    /// Notes that a job was not ready. The attempt does not count.
    pub(in crate::driver) fn defer(&mut self, index: Index, attempt: u32, text: String, delay: Duration, now: &Now) {
        let first = self.first_failed(index);
        self.note(index, attempt.saturating_sub(1), text, delay, now);
        self.jobs.entry(index).and_modify(|job| (job.deferred, job.first) = (true, first));
    }

    /// Returns when a failed job first failed.
    pub(in crate::driver) fn first_failed(&self, index: Index) -> Option<u64> {
        self.jobs.get(&index)?.first
    }

    /// Adds a redriven job, which is due now.
    pub(in crate::driver) fn redrive(&mut self, index: Index, attempt: u32, text: String, due: Instant) {
        self.jobs.insert(index, Failed::new(attempt, due, text, None));
    }

    /// Adds a job of an earlier life, which is due after a pause once it is [armed](Self::arm).
    pub(in crate::driver) fn restore(
        &mut self,
        index: Index,
        attempt: u32,
        text: String,
        first: Option<u64>,
        pause: Duration,
        now: Instant,
    ) {
        // Without attempts it has not failed: it was in flight when the process died.
        let failed = Failed::new(attempt, after(pause, now), text, first);
        self.jobs.insert(index, Failed { alone: attempt > 0, ..failed });
    }

    /// Adds a job that waited behind another one, and whose value was not kept, unless it waits for
    /// a back-off anyway. It is read again, and has not run.
    pub(in crate::driver) fn wait_for_value(&mut self, index: Index, now: Instant) {
        let waits = || "it waited behind another job of its key, and is read again".to_owned();
        self.jobs.entry(index).or_insert_with(|| Failed {
            alone: false,
            fresh: true,
            ..Failed::new(0, now, waits(), None)
        });
    }

    /// Starts the back-off of a job, or what is left of it.
    pub(in crate::driver) fn arm(&mut self, index: Index, now: Instant) {
        let Some(failed) = self.jobs.get_mut(&index) else { return };
        failed.due = failed.due.max(now);
        self.timers.push(Reverse((failed.due, index)));
    }

    /// Makes a failed job wait for another pause.
    pub(in crate::driver) fn wait_again(&mut self, index: Index, pause: Duration, now: Instant) {
        let Some(failed) = self.jobs.get_mut(&index) else { return };
        failed.due = after(pause, now);
        self.timers.push(Reverse((failed.due, index)));
    }

    /// Forgets a redrive that was taken back. Returns the attempts of the job.
    pub(in crate::driver) fn forget_redriven(&mut self, index: Index) -> u32 {
        self.jobs.remove(&index).map_or(0, |failed| failed.attempt)
    }

    /// Begins the next attempt of this job, and returns its number. `None` if it is the first one,
    /// of a job that only waited behind another one.
    pub(in crate::driver) fn begin_attempt(&mut self, index: Index) -> Option<u32> {
        let failed = self.jobs.get_mut(&index)?;
        failed.running = true;
        (!failed.fresh).then_some(failed.attempt.saturating_add(1))
    }

    /// Forgets a job that has succeeded or has no attempt left.
    pub(in crate::driver) fn forget(&mut self, index: Index) {
        self.jobs.remove(&index);
    }

    /// True if this job runs in no batch with others.
    pub(in crate::driver) fn is_alone(&self, index: Index) -> bool {
        self.jobs.get(&index).is_some_and(|failed| failed.alone)
    }

    /// True if this job has failed or was deferred. One that is only recorded may never have run.
    pub(in crate::driver) fn has_run(&self, index: Index) -> bool {
        self.jobs.get(&index).is_some_and(|failed| failed.attempt > 0 || failed.deferred || failed.first.is_some())
    }

    /// Returns a job that waits for its next attempt.
    pub(in crate::driver) fn waiting(&self, index: Index) -> Option<&Failed> {
        self.jobs.get(&index).filter(|failed| !failed.running)
    }

    /// Returns all jobs that wait for their next attempt, by index.
    pub(in crate::driver) fn all_waiting(&self) -> impl Iterator<Item = (Index, &Failed)> {
        self.jobs.iter().filter(|(_, failed)| !failed.running).map(|(index, failed)| (*index, failed))
    }

    /// Returns the last failure of a job whose next attempt runs.
    pub(in crate::driver) fn before_this_attempt(&self, index: Index) -> Option<&Failed> {
        self.jobs.get(&index).filter(|failed| failed.running)
    }

    /// True if a job up to this index waits for its next attempt and `holds` the watermark.
    pub(in crate::driver) fn has_waiting_up_to(&self, index: Index, holds: impl Fn(Index) -> bool) -> bool {
        self.jobs.range(..=index).any(|(failed, job)| !job.running && holds(*failed))
    }

    /// Returns when the next back-off ends.
    pub(in crate::driver) fn next_due(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes the next timer that has ended. Returns its job, unless that has another due time by
    /// now: a look at the source may have brought it before its pause was over.
    pub(in crate::driver) fn take_due(&mut self, now: Instant) -> Option<Option<Index>> {
        self.next_due().filter(|due| *due <= now)?;
        let Reverse((due, index)) = self.timers.pop()?;
        Some(Some(index).filter(|index| self.jobs.get(index).is_some_and(|failed| failed.due == due)))
    }

    /// Notes that this job was read again.
    pub(in crate::driver) fn was_read(&mut self, index: Index) {
        if let Some(failed) = self.jobs.get_mut(&index) {
            (failed.unread, failed.in_vain) = (None, InVain::default());
        }
    }

    /// Returns the fruitless reads of this job, if it waits for its next attempt.
    pub(in crate::driver) fn in_vain(&mut self, index: Index) -> Option<&mut InVain> {
        self.jobs.get_mut(&index).filter(|failed| !failed.running).map(|failed| &mut failed.in_vain)
    }

    /// Notes why this job could not be read again, and reads it once more after a pause.
    pub(in crate::driver) fn not_read(&mut self, index: Index, unread: Unread, pause: Duration, now: Instant) {
        let Some(failed) = self.jobs.get_mut(&index) else { return };
        // A status does not show a retry without a pause.
        failed.unread = Some(unread).filter(|_| !pause.is_zero());
        self.wait_again(index, pause, now);
    }

    /// Takes all jobs. There may be very many, so the caller drops them later.
    pub(in crate::driver) fn take_all(&mut self) -> impl Sized + Send + 'static {
        (std::mem::take(&mut self.timers), std::mem::take(&mut self.jobs))
    }

    /// Returns the ends of all back-offs, unordered.
    #[cfg(test)]
    pub(in crate::driver) fn dues(&self) -> Vec<Instant> {
        self.timers.iter().map(|Reverse((due, _))| *due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::retry::Retry;

    #[test]
    fn a_failure_is_kept_until_an_attempt_succeeds() {
        let mut failures = Failures::new(Retry::fixed(Duration::ZERO));
        let now = Instant::now();
        failures.note(7, 1, "refused".to_owned(), Duration::from_millis(5), &Now::at(now));
        assert_eq!(failures.take_due(now), None);
        assert_eq!(failures.take_due(now + Duration::from_millis(5)), Some(Some(7)));
        assert!(
            failures.waiting(7).is_some()
                && failures.has_waiting_up_to(7, |_| true)
                && !failures.has_waiting_up_to(6, |_| true)
        );
        assert_eq!((failures.begin_attempt(7), failures.begin_attempt(8)), (Some(2), None));
        assert!(failures.waiting(7).is_none() && !failures.has_waiting_up_to(7, |_| true), "it runs");
        assert_eq!(failures.before_this_attempt(7).map(|failed| failed.error.as_str()), Some("refused"));
        failures.note(7, 2, "refused again".to_owned(), Duration::MAX, &Now::at(now));
        assert!(failures.waiting(7).is_some_and(|failed| failed.error == "refused again"));
        assert!(failures.next_due().is_some_and(|due| due > now), "a pause beyond the clock's end");
        failures.forget(7);
        assert!(failures.waiting(7).is_none() && failures.before_this_attempt(7).is_none());
    }
}
