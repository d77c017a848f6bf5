//! Reading: which jobs to fetch next, and what came of it.

use super::{Fetch, Hold, Window};
use crate::base::Index;
use core::ops::RangeInclusive;

impl Window {
    /// Lets at least this many jobs be read that have not started.
    pub(crate) fn widen_read_ahead(&mut self, jobs: u64) {
        self.least_read_ahead = jobs;
    }

    /// Returns the read-ahead (prefetch): the most jobs that are read and not yet started.
    pub(crate) fn read_ahead(&self) -> u64 {
        self.limits.read_ahead().max(self.least_read_ahead)
    }

    /// Sets how many more jobs may be read, by their weight. One more is read if no read job can
    /// start.
    pub fn set_room(&mut self, jobs: u64) {
        self.room = jobs;
    }

    /// Reports that the fetch under way returned this many jobs from its start, or has ended after
    /// its [parts](Self::handle_part). The window fetches the rest again at once.
    pub fn handle_fetched(&mut self, count: u64) {
        self.take_in(count);
        self.retries.rest_is_due(reach!(self));
    }

    /// Reports that the fetch under way returned this many jobs, and that the source does not have
    /// the next one. The window fetches that one again, alone, after the next
    /// [`handle_readable`](Self::handle_readable) or [`handle_head`](Self::handle_head); a failed
    /// job, after its own [`handle_due`](Self::handle_due) or the next `handle_head`.
    pub fn handle_missing(&mut self, count: u64) {
        self.hold_new(count, Hold::Missing);
        self.take_in(count);
        self.retries.first_is_missing();
        self.retries.rest_is_due(reach!(self));
    }

    /// Reports that the fetch under way returned this many jobs and then failed. The window fetches
    /// new jobs again after the next [`handle_readable`](Self::handle_readable), and each failed
    /// job after its own [`handle_due`](Self::handle_due), so that an unreadable job delays no
    /// other.
    pub fn handle_unreadable(&mut self, count: u64) {
        self.hold_new(count, Hold::Failed);
        self.take_in(count);
        self.retries.rest_waits();
    }

    /// Reports the end of the pause before new jobs are fetched again.
    pub fn handle_readable(&mut self) {
        self.hold = Hold::No;
    }

    /// Reads nothing new for now, since the job after this many cannot be read.
    fn hold_new(&mut self, count: u64, hold: Hold) {
        let wanted = self.read.saturating_add(count);
        // A job done in an earlier life is not needed, so its absence holds nothing up.
        if self.fetch == Some(Fetch::New) && !self.ahead.contains(wanted) {
            self.hold = hold;
            self.missing = (hold == Hold::Missing).then_some(wanted);
        }
    }

    fn take_in(&mut self, count: u64) {
        match self.fetch.take() {
            Some(Fetch::New) => {
                let (start, end) = (self.read, self.read + count);
                self.unstarted += count - self.ahead.restored_within(start, end) - self.behind_within(start, end);
                self.read = end;
                self.pass_restored();
            }
            Some(Fetch::Again) => {
                self.retries.end_read(usize::try_from(count).unwrap_or(usize::MAX), reach!(self));
            }
            None => debug_assert!(false, "no fetch is under way"),
        }
    }

    #[inline]
    pub(super) fn poll_fetch(&mut self) -> Option<RangeInclusive<Index>> {
        if self.fetch.is_some() || self.stopping || self.ended {
            return None;
        }
        // Retries and new jobs are read in turn, so neither waits for the end of the other.
        let new = |window: &Self| Some((Fetch::New, window.new_run()?));
        let again = |window: &Self| Some((Fetch::Again, window.run_again()?));
        let (fetch, run) =
            if self.fetched_again { new(self).or_else(|| again(self)) } else { again(self).or_else(|| new(self)) }?;
        self.fetched_again = fetch == Fetch::Again;
        if self.fetched_again {
            self.retries.begin_read(&run);
        }
        self.fetch = Some(fetch);
        Some(run)
    }

    /// True if failed jobs wait to be read again.
    pub(crate) fn has_due(&self) -> bool {
        self.retries.has_due()
    }

    /// Returns the number of jobs that are read and have not started.
    #[inline]
    fn idle(&self) -> u64 {
        self.unstarted + self.retries.len_read()
    }

    // Without inlining, the call costs a short job a twentieth of its time.
    #[inline(always)]
    pub(super) fn new_run(&self) -> Option<RangeInclusive<Index>> {
        if !self.has_unread() {
            return None;
        }
        let most = self.read_ahead();
        // Half is kept for retries, so that they are read in runs, too.
        let share = if self.retries.has_due() || self.retries.can_start() { most / 2 } else { most };
        // Waits until half of the share is used up, so that the source is read in runs.
        if self.unstarted > share / 2 {
            return None;
        }
        let room = (share - self.unstarted).min(most.saturating_sub(self.idle())).min(self.room);
        let starved = !self.retries.can_start() && !self.can_start_new();
        let count = room.max(u64::from(starved));
        // A job that is still missing would spoil a long run, which the source may build at once.
        let count = if self.missing == Some(self.read) { count.min(1) } else { count };
        let end = self.bound().min(self.read.saturating_add(count)).min(self.held_from(self.read));
        (count > 0).then(|| self.read..=self.ahead.trim(self.read, end) - 1)
    }

    /// Retries get half of the room, so that jobs which fail for ever leave room for new ones.
    #[inline]
    fn run_again(&self) -> Option<RangeInclusive<Index>> {
        if !self.retries.has_due() {
            return None;
        }
        if let Some(run) = self.only.and_then(|only| self.retries.run_of(only)) {
            // Nothing else may start, so it is read even without room.
            return Some(run);
        }
        let (most, retries) = (self.read_ahead(), self.retries.len_read());
        let room = (most / 2).saturating_sub(retries).min(most.saturating_sub(self.idle())).min(self.room);
        // One retry is always read, even without room: all buffered jobs may be blocked behind it.
        let count = if self.retries.can_start() { room } else { room.max(1) };
        let wanted = !self.retries.can_start() || retries <= most / 4;
        self.retries.next_run(count).filter(|_| wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Action, Limits};

    #[test]
    fn retries_leave_half_the_read_ahead_to_new_jobs() {
        let mut window = Window::begin(0, Limits { max_processing: 100, max_search_ahead: u64::MAX });
        window.handle_head(Some(1_000));
        // Two hundred jobs fail and are due again.
        for _ in 0..4 {
            while let Some(run) = window.poll_run() {
                assert!(run.index >= 200 || window.handle_failed(run.index) && window.handle_due(run.index));
            }
            match window.poll() {
                Some(Action::Fetch(run)) if *run.start() == 0 && window.next() > 0 => {
                    assert_eq!(run, 0..=99, "100 of the 200 jobs that may be read ahead");
                    return;
                }
                Some(Action::Fetch(run)) => window.handle_fetched(run.count() as u64),
                other => panic!("{other:?}"),
            }
        }
        panic!("no failed job was read again");
    }
}
